//! Running git so that nothing but git runs.
//!
//! The environment is built from nothing: no `GIT_*` of the caller, a fixed locale, no terminal prompt, no system,
//! global or user configuration, no protocol. Whatever the repository's own configuration (and what it includes) could
//! have executed is overridden: hooks, pager, editor, fsmonitor, external diff, textconv, filter and merge drivers,
//! credential and signing programs. Standard input is empty or what the caller gives; the repository and its work tree
//! are named, never discovered.
//!
//! A filter that does not run has a price: content that a filter would translate (Git LFS) shows as it is stored.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::neutral::{FIXED, overrides};
use super::repo::Repo;
use crate::durable::CancelToken;
use crate::error::{Error, Kind, Result};

/// Commands that may show a diff; each gets the switches that keep external programs out of it.
const DIFFING: [&str; 7] = ["diff", "diff-files", "diff-index", "diff-tree", "format-patch", "log", "show"];

/// A repository ready to run git on.
#[derive(Clone, Debug)]
pub struct Git {
    git_dir: PathBuf,
    top: PathBuf,
    /// Configuration that stands above the repository's own.
    overrides: Vec<(OsString, &'static str)>,
    /// Ends the commands that run.
    cancel: Option<CancelToken>,
}

/// What `HEAD` of a repository names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The branch, as in `refs/heads/main`; `None` where HEAD is detached.
    pub branch: Option<String>,
    /// The commit in hexadecimal; `None` on a branch without commits.
    pub commit: Option<String>,
}

impl Git {
    /// Prepares to run git on `repo`: one look at its configuration (`git config --list`) for the programs it names.
    ///
    /// Configuration that changes afterwards is not seen; whoever lets a stranger write it makes a new one each time.
    pub fn new(repo: &Repo) -> Result<Self> {
        let mut git =
            Self { git_dir: repo.git_dir.clone(), top: repo.top.clone(), overrides: Vec::new(), cancel: None };
        let names = git.run(["config", "--includes", "--list", "--name-only", "-z"])?;
        git.overrides = names.split(|&b| b == 0).flat_map(overrides).collect();
        Ok(git)
    }

    /// The root of the work tree, where the commands run.
    pub fn top(&self) -> &Path {
        &self.top
    }

    /// The same repository with another work tree and git directory: a linked work tree that was just made.
    #[must_use]
    pub fn within(&self, git_dir: &Path, top: &Path) -> Self {
        let (overrides, cancel) = (self.overrides.clone(), self.cancel.clone());
        Self { git_dir: git_dir.to_path_buf(), top: top.to_path_buf(), overrides, cancel }
    }

    /// The same, for as long as the caller does not cancel: whatever runs then is ended, and nothing more is started.
    #[must_use]
    pub fn until(self, cancel: &CancelToken) -> Self {
        Self { cancel: Some(cancel.clone()), ..self }
    }

    /// A hardened `git` with these arguments, to be started by the caller. Null standard input, output into pipes.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = bare_command();
        command.current_dir(&self.top);
        let all = FIXED.iter().map(|(key, value)| (OsStr::new(key), *value));
        let all = all.chain(self.overrides.iter().map(|(key, value)| (key.as_os_str(), *value)));
        let mut count = 0;
        for (key, value) in all {
            command.env(format!("GIT_CONFIG_KEY_{count}"), key).env(format!("GIT_CONFIG_VALUE_{count}"), value);
            count += 1;
        }
        command.env("GIT_CONFIG_COUNT", count.to_string());
        command.arg("--no-pager").arg("--git-dir").arg(&self.git_dir).arg("--work-tree").arg(&self.top);
        let mut args = args.into_iter();
        if let Some(verb) = args.next() {
            command.arg(&verb);
            if DIFFING.iter().any(|diffing| verb.as_ref() == *diffing) {
                command.args(["--no-ext-diff", "--no-textconv"]);
            }
        }
        command.args(args);
        command
    }

    /// Runs git to its end; its standard output. [`Kind::Git`] with what it complained about where it fails.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Vec<u8>> {
        let mut command = self.command(args);
        let output = self.end(self.start(&mut command)?)?;
        self.stdout(&command, output)
    }

    fn start(&self, command: &mut Command) -> Result<Child> {
        self.check()?;
        command.spawn().map_err(|e| cannot_start(&self.top, e))
    }

    /// Waits for git to end, by itself or for the caller's sake.
    fn end(&self, child: Child) -> Result<Output> {
        let failed = |e| Error::io("cannot run git in", e).at(&self.top);
        let process = Pid::from_raw(child.id().cast_signed()).expect("a process has a number that is not 0");
        let process = pidfd_open(process, PidfdFlags::empty()).map_err(|e| failed(e.into()))?;
        // Not the hard way: git takes its lock files and what else is half-done away.
        let end = move || {
            let _ = pidfd_send_signal(&process, Signal::TERM);
        };
        let _ending = self.cancel.as_ref().map(|cancel| cancel.on_cancel(end));
        let output = child.wait_with_output().map_err(failed)?;
        self.check()?;
        Ok(output)
    }

    fn check(&self) -> Result<()> {
        self.cancel.as_ref().map_or(Ok(()), CancelToken::check)
    }

    /// Runs git with `input` on its standard input.
    pub fn run_with<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>, input: &[u8]) -> Result<Vec<u8>> {
        let mut command = self.command(args);
        let output = self.output_with(&mut command, input)?;
        self.stdout(&command, output)
    }

    /// Runs a prepared command with `input` on its standard input, and returns whatever came of it.
    pub(super) fn output_with(&self, command: &mut Command, input: &[u8]) -> Result<Output> {
        let mut child = self.start(command.stdin(Stdio::piped()))?;
        let mut stdin = child.stdin.take().expect("it was just asked for");
        std::thread::scope(|scope| {
            // Fails with EPIPE where git has heard enough; git's own exit status tells whether that was all right.
            scope.spawn(move || stdin.write_all(input));
            self.end(child)
        })
    }

    fn stdout(&self, command: &Command, output: Output) -> Result<Vec<u8>> {
        if output.status.success() { Ok(output.stdout) } else { Err(failure(command, &output).at(&self.top)) }
    }

    /// What `HEAD` names.
    pub fn head(&self) -> Result<Head> {
        let word = |args: &[&str]| -> Result<Option<String>> {
            let output = self.command(args).output().map_err(|e| cannot_start(&self.top, e))?;
            let text = output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim_end().to_owned());
            Ok(text.filter(|text| !text.is_empty()))
        };
        Ok(Head {
            branch: word(&["symbolic-ref", "--quiet", "HEAD"])?,
            commit: word(&["rev-parse", "--verify", "--quiet", "HEAD^{commit}"])?,
        })
    }

    /// The last value of a configuration variable of the repository, where it is set.
    pub fn config(&self, key: &str) -> Result<Option<OsString>> {
        let mut command = self.command(["config", "--includes", "-z", "--get", key]);
        let output = command.output().map_err(|e| cannot_start(&self.top, e))?;
        match output.status.code() {
            Some(1) => Ok(None),
            _ => {
                let mut value = self.stdout(&command, output)?;
                value.pop_if(|b| *b == 0);
                Ok(Some(OsString::from_vec(value)))
            }
        }
    }
}

/// Runs `git config` on a configuration file that belongs to no repository yet. A variable that is to be unset and is
/// not set is fine.
pub(super) fn configure(file: &Path, args: &[&str]) -> Result<()> {
    const NOT_SET: i32 = 5;
    let mut command = bare_command();
    command.args(["config", "--file"]).arg(file).args(args);
    let output = command.output().map_err(|e| cannot_start(Path::new("/"), e))?;
    if output.status.success() || output.status.code() == Some(NOT_SET) {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    Err(Error::new(Kind::Git, format!("git config failed ({said}) on")).at(file))
}

/// The version of the git in the path, as far as two numbers; `None` where there is none that says so.
pub fn version() -> Option<(u32, u32)> {
    let output = bare_command().arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut numbers = text.strip_prefix("git version ")?.split('.');
    Some((numbers.next()?.trim().parse().ok()?, numbers.next()?.trim().parse().ok()?))
}

/// `git` in an environment made from nothing.
fn bare_command() -> Command {
    let mut command = Command::new("git");
    command.env_clear();
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    command.envs([
        // Nowhere: `~` in an included path leads to nothing, and no user's ignore or attributes file is found.
        ("HOME", "/nonexistent"),
        ("LC_ALL", "C"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_SYSTEM", "/dev/null"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_ATTR_NOSYSTEM", "1"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_ASKPASS", "false"),
        ("GIT_EDITOR", "false"),
        ("GIT_SEQUENCE_EDITOR", "false"),
        ("GIT_PAGER", "cat"),
        ("GIT_OPTIONAL_LOCKS", "0"),
        // A partial clone must not start a transport for an object it lacks; nor anything else.
        ("GIT_NO_LAZY_FETCH", "1"),
        ("GIT_ALLOW_PROTOCOL", "none"),
        ("GIT_LITERAL_PATHSPECS", "1"),
        // For reflogs: who moved a ref is treefork.
        ("GIT_AUTHOR_NAME", "treefork"),
        ("GIT_AUTHOR_EMAIL", "treefork@localhost"),
        ("GIT_COMMITTER_NAME", "treefork"),
        ("GIT_COMMITTER_EMAIL", "treefork@localhost"),
    ]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn cannot_start(top: &Path, source: std::io::Error) -> Error {
    if source.kind() == std::io::ErrorKind::NotFound && top.is_dir() {
        return Error::new(Kind::Unavailable, "git is not in the PATH");
    }
    Error::io("cannot run git in", source).at(top)
}

/// What a failed git has to say: its verb and the first line that is an error, else the first line.
fn failure(command: &Command, output: &Output) -> Error {
    let verb = command.get_args().nth(5).unwrap_or_default().to_string_lossy().into_owned();
    let text = String::from_utf8_lossy(&output.stderr);
    let said = text.lines().find(|line| line.starts_with("fatal:") || line.starts_with("error:"));
    let said = said.or_else(|| text.lines().next()).map_or_else(|| output.status.to_string(), str::to_owned);
    Error::new(Kind::Git, format!("git {verb} failed ({said}) in"))
}
