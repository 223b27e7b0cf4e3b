//! What the roles of the facade speak of: environments, commands, and the roles themselves.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{CancelToken, Cleanup};
use crate::error::{Error, Kind, Result};
use crate::fork::Id;
use crate::run::End;

/// A tree of files as its host opened it.
pub trait Workspace: Send + Sync {
    /// Where it is; `None` for one that is not a directory of this machine. Such a one cannot be forked.
    fn root(&self) -> Option<&Path>;
}

/// The plain [`Workspace`]: a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory(pub PathBuf);

impl Workspace for Directory {
    fn root(&self) -> Option<&Path> {
        Some(&self.0)
    }
}

/// Runs commands in one environment.
pub trait CommandRunner: Send + Sync {
    /// Runs a command to its end, or until it is cancelled. A command that fails is no error.
    fn run(&self, command: &Command, cancel: &CancelToken) -> Result<Output>;
}

/// A command to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// The program and its arguments.
    pub args: Vec<OsString>,
    /// Where to start, below the root of the environment.
    pub cwd: PathBuf,
    /// Variables on top of the host's own.
    pub env: Vec<(OsString, OsString)>,
    /// What it reads.
    pub stdin: Vec<u8>,
    /// How long it may take.
    pub timeout: Option<Duration>,
}

impl Command {
    /// A program with its arguments.
    pub fn new<S: Into<OsString>>(args: impl IntoIterator<Item = S>) -> Self {
        Self { args: args.into_iter().map(Into::into).collect(), ..Self::default() }
    }
}

/// What a command did.
#[derive(Debug)]
pub struct Output {
    /// How it ended.
    pub end: End,
    /// What it wrote to its standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to its standard error.
    pub stderr: Vec<u8>,
}

impl Output {
    /// Whether it exited with 0.
    pub fn is_success(&self) -> bool {
        self.end.is_success()
    }
}

/// A workspace, the runner that is bound to it, and the fork it belongs to, if it is one.
#[derive(Clone)]
pub struct Environment {
    workspace: Arc<dyn Workspace>,
    runner: Option<Arc<dyn CommandRunner>>,
    fork: Option<ForkOf>,
}

/// Which fork an environment shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ForkOf {
    pub(super) store: PathBuf,
    pub(super) id: Id,
}

impl Environment {
    /// An environment of a host's making.
    pub fn new(workspace: Arc<dyn Workspace>, runner: Option<Arc<dyn CommandRunner>>) -> Self {
        Self { workspace, runner, fork: None }
    }

    /// A directory, without a runner: what one forks.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self::new(Arc::new(Directory(root.into())), None)
    }

    pub(super) fn of_fork(self, fork: ForkOf) -> Self {
        Self { fork: Some(fork), ..self }
    }

    /// The workspace, as the host opened it.
    pub fn workspace(&self) -> &Arc<dyn Workspace> {
        &self.workspace
    }

    /// Where it is.
    ///
    /// # Errors
    /// `Usage` where the workspace has no root.
    pub fn root(&self) -> Result<&Path> {
        self.workspace.root().ok_or_else(|| Error::new(Kind::Usage, "the workspace has no root directory"))
    }

    /// What runs commands in it.
    ///
    /// # Errors
    /// `NoShell` where the host gave it none.
    pub fn runner(&self) -> Result<&Arc<dyn CommandRunner>> {
        self.runner.as_ref().ok_or_else(|| Error::new(Kind::NoShell, "no commands can be run in this environment"))
    }

    /// The id of the fork that it shows; `None` for one that is no fork of treefork's.
    pub fn fork_id(&self) -> Option<&str> {
        self.fork.as_ref().map(|fork| fork.id.as_str())
    }

    pub(super) fn fork(&self) -> Option<&ForkOf> {
        self.fork.as_ref()
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").field("root", &self.workspace.root()).field("fork", &self.fork).finish()
    }
}

/// An environment that was forked, and what the caller has to know and to do about it.
#[derive(Debug)]
pub struct Fork {
    /// The isolated environment.
    pub environment: Environment,
    /// Takes the fork away; also when the last clone of it is dropped.
    pub cleanup: Cleanup,
    /// What is weaker than asked, in sentences; empty where nothing is.
    pub advisory: String,
}

/// Makes isolated environments.
pub trait EnvironmentForker: Send + Sync {
    /// A fork of `base`. `label` is a hint for people: any text will do, and it need not be unique.
    ///
    /// # Errors
    /// `Usage` where the base has no root or cannot be forked, `Cancelled` where the caller cancelled; nothing is left
    /// behind then.
    fn fork(&self, base: &Environment, label: &str, cancel: &CancelToken) -> Result<Fork>;
}

/// What a merge did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// The paths of the parent that changed, relative to its root.
    pub changed: Vec<PathBuf>,
    /// Sentences about commits that came along, and about what was left out.
    pub notes: Vec<String>,
}

impl Merged {
    /// Whether there was nothing to merge.
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.notes.is_empty()
    }
}

/// Brings the changes of a fork back.
pub trait EnvironmentMerger: Send + Sync {
    /// Merges what changed in `child` into `parent`, whole or not at all; the child stays as it is. A child without
    /// changes does not touch the parent.
    ///
    /// # Errors
    /// Whatever it is, the parent is as before, and the error names where the child's changes are. `Conflict` where the
    /// parent changed in the same places.
    fn merge(&self, child: &Environment, parent: &Environment, cancel: &CancelToken) -> Result<Merged>;
}
