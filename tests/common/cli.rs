//! The `treefork` command as a user would run it, with a store of its own; its server ends with the test.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::run::Done;
use super::{Env, Run, mounts};

/// The binary that was built with these tests.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_treefork");

/// The command and the environment it runs in. Dropping it ends the server and its mounts.
#[derive(Debug)]
pub(crate) struct Treefork {
    env: Env,
    store: PathBuf,
    /// Further variables that commands, and with them the server, see.
    variables: Vec<(&'static str, String)>,
}

impl Treefork {
    pub(crate) fn new() -> Self {
        let env = Env::new();
        let store = env.store();
        Self { env, store, variables: Vec::new() }
    }

    /// With the store somewhere else, such as on an image.
    pub(crate) fn with_store(store: PathBuf) -> Self {
        Self { env: Env::new(), store, variables: Vec::new() }
    }

    /// The same with one more variable.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.set(name, value);
        self
    }

    /// Commands from now on, and a server that one of them starts, see this variable.
    pub(crate) fn set(&mut self, name: &'static str, value: impl Into<String>) {
        self.variables.retain(|(other, _)| *other != name);
        self.variables.push((name, value.into()));
    }

    /// The directory that keeps the forks.
    pub(crate) fn store(&self) -> &Path {
        &self.store
    }

    pub(crate) fn env(&self) -> &Env {
        &self.env
    }

    /// `treefork ARGS`, not started yet.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.env.command(BINARY);
        command.env("TREEFORK_STORE", &self.store).envs(self.variables.iter().cloned()).args(args);
        command
    }

    /// Runs `treefork ARGS`; it has to succeed.
    #[track_caller]
    pub(crate) fn ok<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Done {
        self.command(args).ok()
    }

    /// Runs `treefork ARGS`; it has to fail with this exit code.
    #[track_caller]
    pub(crate) fn fails<S: AsRef<OsStr>>(&self, code: i32, args: impl IntoIterator<Item = S>) -> Done {
        self.command(args).fails(code)
    }

    /// Forks `base` under a label; the path of the fork.
    #[track_caller]
    pub(crate) fn create(&self, base: &Path, label: &str) -> PathBuf {
        let done = self.ok([OsStr::new("create"), base.as_os_str(), OsStr::new("--label"), OsStr::new(label)]);
        PathBuf::from(done.text())
    }

    /// The process that serves the forks, if one runs.
    pub(crate) fn server(&self) -> Option<Pid> {
        let holder = std::fs::read_to_string(self.store.join("server.lock")).ok()?;
        let holder: serde_json::Value = serde_json::from_str(&holder).ok()?;
        let pid = i32::try_from(holder["pid"].as_i64()?).ok()?;
        // A lock file outlives its holder, and the number may be somebody else's by now.
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let ours = command.windows(8).any(|w| w == b"treefork") && mounts::mentions(&command, &self.store);
        if ours { Pid::from_raw(pid) } else { None }
    }

    /// Kills the server without a warning. Its mounts are dead afterwards.
    pub(crate) fn kill_server(&self) {
        let Some(pid) = self.server() else { return };
        let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return };
        let _ = rustix::process::kill_process(pid, Signal::KILL);
        let _ = rustix::event::poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None);
    }

    /// Kills the server and has the next one mount the fork again.
    #[track_caller]
    pub(crate) fn restart(&self, label: &str) {
        self.kill_server();
        self.ok(["path", label]);
    }
}

impl Drop for Treefork {
    fn drop(&mut self) {
        self.kill_server();
        mounts::detach_below(&self.store);
    }
}
