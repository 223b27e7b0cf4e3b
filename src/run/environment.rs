//! The environment of a command in a fork.
//!
//! Whatever would redirect git away from the place where the command stands is taken out; who runs it is put in.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use super::Target;
use crate::error::{Context, Error, Kind, Result};

/// Names and values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    vars: BTreeMap<OsString, OsString>,
    git: Vec<(String, String)>,
    fsmonitor: bool,
}

/// What names a repository, an index or objects, or carries settings that could. `GIT_CONFIG_GLOBAL`, `_SYSTEM` and
/// `_NOSYSTEM` stay: like `HOME` they choose which of the user's files are read, and hermetic callers need them.
const REDIRECTS: [&str; 17] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_INDEX_VERSION",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "GIT_SHALLOW_FILE",
    "GIT_GRAFT_FILE",
    "GIT_REPLACE_REF_BASE",
    "GIT_QUARANTINE_PATH",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_CONFIG",
    "GIT_CONFIG_PARAMETERS",
    "GIT_CONFIG_COUNT",
];

/// Settings under which git runs nothing that a repository names, for read-only helpers.
const HARDENING: [(&str, &str); 10] = [
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.pager", "cat"),
    ("core.editor", "false"),
    ("core.sshCommand", "false"),
    ("core.askPass", ""),
    ("credential.helper", ""),
    ("diff.external", ""),
    ("protocol.ext.allow", "never"),
    ("gc.auto", "0"),
];

impl Default for Environment {
    /// This process's.
    fn default() -> Self {
        Self::new(std::env::vars_os())
    }
}

impl Environment {
    /// An environment of these variables.
    pub fn new(vars: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        Self { vars: vars.into_iter().collect(), git: vec![], fsmonitor: true }
    }

    /// Sets a variable.
    pub fn set(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) {
        self.vars.insert(name.into(), value.into());
    }

    /// The value of a variable.
    pub fn get(&self, name: impl AsRef<OsStr>) -> Option<&OsStr> {
        self.vars.get(name.as_ref()).map(OsString::as_os_str)
    }

    /// Sets what a file says: a line each `NAME=value`, taken as it is; empty lines and such that begin with `#` are
    /// skipped. A line without `=` passes the caller's own value of that name on, which it has anyway.
    pub fn load(&mut self, path: &Path) -> Result<()> {
        let text = fs::read(path).context("cannot read the environment file", path)?;
        for line in text.split(|&b| b == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let (name, value) = match line.iter().position(|&b| b == b'=') {
                Some(at) => (&line[..at], Some(&line[at + 1..])),
                None => (line, None),
            };
            if name.is_empty() || line.contains(&0) {
                let shown = String::from_utf8_lossy(line).into_owned();
                return Err(Error::new(Kind::Usage, format!("no NAME=value: {shown:?} in")).at(path));
            }
            if let Some(value) = value {
                self.set(OsStr::from_bytes(name), OsStr::from_bytes(value));
            }
        }
        Ok(())
    }

    /// A git setting that every git of the command sees, over those of any file.
    pub fn git_setting(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.git.push((key.into(), value.into()));
    }

    /// Git is to look at every file itself, as its own settings say, instead of asking the fork what changed.
    pub fn no_fsmonitor(&mut self) {
        self.fsmonitor = false;
    }

    /// Whether git may ask the fork what changed.
    pub fn wants_fsmonitor(&self) -> bool {
        self.fsmonitor
    }

    /// Settings under which git runs no hook, pager, monitor, external diff or helper that a repository names. Filters
    /// and `textconv` programs are named freely by a repository and stay.
    pub fn harden_git(&mut self) {
        self.no_fsmonitor();
        for (key, value) in HARDENING {
            self.git_setting(key, value);
        }
        for name in ["GIT_PAGER", "PAGER"] {
            self.set(name, "cat");
        }
        for name in ["GIT_TERMINAL_PROMPT", "GIT_OPTIONAL_LOCKS"] {
            self.set(name, "0");
        }
        self.set("GIT_CONFIG_NOSYSTEM", "1");
        self.set("GIT_CONFIG_GLOBAL", "/dev/null");
        for name in
            ["GIT_EXTERNAL_DIFF", "GIT_SSH", "GIT_SSH_COMMAND", "GIT_ASKPASS", "GIT_PROXY_COMMAND", "GIT_EDITOR"]
        {
            self.vars.remove(OsStr::new(name));
        }
    }

    /// Makes it the environment of a command that starts in `cwd` of this fork.
    pub(super) fn enter(&mut self, target: &Target, cwd: &Path) {
        self.vars.retain(|name, _| !redirects(name));
        self.vars.remove(OsStr::new("OLDPWD"));
        self.set("PWD", cwd);
        self.set("TREEFORK_ID", &target.id);
        self.set("TREEFORK_LABEL", &target.label);
        self.set("TREEFORK_BASE", &target.base);
        if !self.git.is_empty() {
            self.set("GIT_CONFIG_COUNT", self.git.len().to_string());
        }
        for (n, (key, value)) in self.git.clone().into_iter().enumerate() {
            self.set(format!("GIT_CONFIG_KEY_{n}"), key);
            self.set(format!("GIT_CONFIG_VALUE_{n}"), value);
        }
    }

    /// The variables as `execve` takes them.
    pub(super) fn into_strings(self) -> impl Iterator<Item = OsString> {
        self.vars.into_iter().map(|(name, value)| {
            let mut string = name.into_vec();
            string.push(b'=');
            string.extend_from_slice(value.as_bytes());
            OsString::from_vec(string)
        })
    }
}

/// Whether a variable of this name could lead git elsewhere.
pub(super) fn redirects(name: &OsStr) -> bool {
    let name = name.as_bytes();
    REDIRECTS.iter().any(|redirect| redirect.as_bytes() == name)
        || name.starts_with(b"GIT_CONFIG_KEY_")
        || name.starts_with(b"GIT_CONFIG_VALUE_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Root;

    fn target() -> Target {
        let root = Root::Directory("/f".into());
        Target {
            id: "i".into(),
            label: "l".into(),
            base: "/b".into(),
            base_ident: None,
            start: "".into(),
            root,
            hide: vec![],
            shared_git: None,
        }
    }

    #[test]
    fn redirections_go_and_settings_of_ours_come() {
        let names = ["GIT_DIR", "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_7", "OLDPWD", "PWD", "HOME", "GIT_CONFIG_GLOBAL"];
        let mut env = Environment::new(names.map(|name| (name.into(), "/elsewhere".into())));
        env.git_setting("core.fsmonitor", "true");
        env.enter(&target(), Path::new("/b/sub"));
        assert_eq!(env.get("GIT_DIR"), None);
        assert_eq!(env.get("GIT_CONFIG_KEY_7"), None);
        assert_eq!(env.get("OLDPWD"), None);
        assert_eq!(env.get("HOME"), Some(OsStr::new("/elsewhere")));
        assert_eq!(env.get("GIT_CONFIG_GLOBAL"), Some(OsStr::new("/elsewhere")));
        let expected = [
            ("PWD", "/b/sub"),
            ("TREEFORK_ID", "i"),
            ("TREEFORK_BASE", "/b"),
            ("GIT_CONFIG_COUNT", "1"),
            ("GIT_CONFIG_KEY_0", "core.fsmonitor"),
            ("GIT_CONFIG_VALUE_0", "true"),
        ];
        for (name, value) in expected {
            assert_eq!(env.get(name), Some(OsStr::new(value)), "{name}");
        }
    }

    #[test]
    fn files_are_taken_line_by_line() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("env");
        fs::write(&path, "# a comment\n\nA=1=2\r\nB= x \nHOME\n").expect("writable");
        let mut env = Environment::new([]);
        env.load(&path).expect("well formed");
        assert_eq!(env.get("A"), Some(OsStr::new("1=2")));
        assert_eq!(env.get("B"), Some(OsStr::new(" x ")));
        assert_eq!(env.vars.len(), 2);
        fs::write(&path, "=x\n").expect("writable");
        assert_eq!(env.load(&path).expect_err("no name").kind(), Kind::Usage);
    }
}
