//! The world as a test sees it: own home, own XDG directories, own store, pinned git identity and dates.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Run, TempTree};

/// The ordinary user whom tests turn into.
pub(crate) const USER: u32 = 1000;

/// The date of everything that has one: 2024-01-02 03:04:05 UTC.
pub(crate) const DATE: i64 = 1_704_164_645;

/// A hermetic environment. Everything in it is gone when it is dropped.
#[derive(Debug)]
pub(crate) struct Env {
    tree: TempTree,
}

impl Env {
    pub(crate) fn new() -> Self {
        let tree = TempTree::new();
        for dir in ["home", "config", "cache", "state", "data", "runtime", "tmp"] {
            tree.dir(dir);
        }
        super::temp::chmod(&tree.join("runtime"), 0o700);
        super::temp::chmod(&tree.join("tmp"), 0o1777);
        // `file` transport: submodules of local repositories. Maintenance in the background would outlive the test.
        let config = "[user]\n\tname = Test\n\temail = test@example.org\n[init]\n\tdefaultBranch = main\n\
                      [protocol \"file\"]\n\tallow = always\n[safe]\n\tdirectory = *\n\
                      [gc]\n\tautoDetach = false\n[maintenance]\n\tauto = false\n[advice]\n\tdetachedHead = false\n";
        std::fs::write(tree.join("home/.gitconfig"), config).expect("the new directory is ours");
        Self { tree }
    }

    /// The temporary tree that all of this lives in.
    pub(crate) fn tree(&self) -> &TempTree {
        &self.tree
    }

    /// A path in the temporary tree.
    pub(crate) fn join(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.tree.join(name)
    }

    /// A new directory in the temporary tree.
    pub(crate) fn dir(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.tree.dir(name)
    }

    /// Where `treefork` keeps its state here.
    pub(crate) fn store(&self) -> PathBuf {
        self.tree.join("store")
    }

    /// A command that sees this environment and nothing of the caller's but `PATH` and the Rust toolchain.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let date = format!("{DATE} +0000");
        command.env_clear().current_dir(self.tree.path());
        for (name, dir) in [
            ("HOME", "home"),
            ("XDG_CONFIG_HOME", "config"),
            ("XDG_CACHE_HOME", "cache"),
            ("XDG_STATE_HOME", "state"),
            ("XDG_DATA_HOME", "data"),
            ("XDG_RUNTIME_DIR", "runtime"),
            ("TMPDIR", "tmp"),
            ("TREEFORK_STORE", "store"),
        ] {
            command.env(name, self.tree.join(dir));
        }
        command.envs([
            ("LC_ALL", "C.UTF-8"),
            ("TZ", "UTC"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_TERMINAL_PROMPT", "0"),
        ]);
        command.env("GIT_CONFIG_GLOBAL", self.tree.join("home/.gitconfig"));
        command.env("GIT_AUTHOR_DATE", &date).env("GIT_COMMITTER_DATE", &date);
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        for (name, below_home) in [("PATH", None), ("CARGO_HOME", Some(".cargo")), ("RUSTUP_HOME", Some(".rustup"))] {
            let fallback = below_home.map(|dir| home.join(dir).into_os_string());
            if let Some(value) = std::env::var_os(name).or(fallback) {
                command.env(name, value);
            }
        }
        for name in ["RUST_BACKTRACE", "RUST_LOG", "LLVM_PROFILE_FILE"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command
    }

    /// The same as the ordinary user [`USER`] with no privileges. Only root can turn into somebody else.
    pub(crate) fn user_command(&self, program: impl AsRef<OsStr>) -> Command {
        assert!(rustix::process::geteuid().is_root(), "turning into an ordinary user takes root");
        let mut command = self.command("setpriv");
        let id = USER.to_string();
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--inh-caps=-all", "--"]).arg(program);
        command
    }

    /// A command in `dir`.
    pub(crate) fn command_in(&self, dir: &Path, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.command(program);
        command.current_dir(dir);
        command
    }

    /// Runs git in `dir`; it has to succeed. Returns what it printed.
    #[track_caller]
    pub(crate) fn git<S: AsRef<OsStr>>(&self, dir: &Path, args: impl IntoIterator<Item = S>) -> String {
        self.command_in(dir, "git").args(args).ok().text()
    }

    /// Runs a shell script in `dir`; it has to succeed. Returns what it printed.
    #[track_caller]
    pub(crate) fn sh(&self, dir: &Path, script: &str) -> String {
        self.command_in(dir, "bash").args(["-euo", "pipefail", "-c", script]).ok().text()
    }
}
