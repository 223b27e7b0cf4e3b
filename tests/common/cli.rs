//! The `treefork` command as a user would run it, with a store of its own; its server ends with the test.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::run::Done;
use super::{Env, Run};

/// The binary that was built with these tests.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_treefork");

/// The command and the environment it runs in. Dropping it ends the server (see [`super::TempTree`]).
#[derive(Debug)]
pub(crate) struct Treefork {
    env: Env,
}

impl Treefork {
    pub(crate) fn new() -> Self {
        Self { env: Env::new() }
    }

    pub(crate) fn env(&self) -> &Env {
        &self.env
    }

    /// `treefork ARGS`, not started yet.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.env.command(BINARY);
        command.args(args);
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
}
