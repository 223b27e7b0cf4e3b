//! A command in a fork that cannot reach the base: namespaces, environment, guard, fan-out.
//!
//! With [`Isolation::Path`] the fork is bound over the base's own path (and every other name of the base) in a mount
//! namespace of the command's own, so that absolute paths lead into the fork and the base has no name. The command runs
//! in a PID namespace: nothing of it outlives the run. Where that cannot be had the run is refused; the weaker
//! [`Isolation::Cwd`] has to be asked for. `docs/isolation.md` says what is closed by this and what is not.
//!
//! Everything here takes plain values ([`Target`], [`Job`]): nothing is known of stores and records.

mod descriptors;
mod environment;
mod failure;
mod fanout;
mod guard;
mod place;
mod plan;
mod running;
mod scan;
mod watchdog;

use std::ffi::OsString;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::Result;
use crate::sys::Ident;

pub use environment::Environment;
pub use fanout::fan_out;
pub use guard::{Guard, Liveness, Place};
pub use running::{End, Event, Handle, Outcome, Running};
pub use scan::{Finding, How, Scan};

/// A fork to run something in.
#[derive(Debug)]
pub struct Target {
    /// Its id.
    pub id: String,
    /// What a person calls it.
    pub label: String,
    /// The root of the tree it was made from: absolute, without symbolic links.
    pub base: PathBuf,
    /// Which directory that was; `None` accepts whatever is there.
    pub base_ident: Option<Ident>,
    /// Where below the base a command starts whose caller is not inside; empty for the base itself.
    pub start: PathBuf,
    /// Its files.
    pub root: Root,
    /// What no command in a fork gets to see: the store and whatever else belongs to treefork.
    pub hide: Vec<PathBuf>,
    /// The repository of a fork that has none of its own.
    pub shared_git: Option<SharedGit>,
}

/// A repository that a fork shares with its base: git in an isolated command may read it, and write nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedGit {
    /// Where objects and refs are.
    pub common: PathBuf,
    /// The git directory of the fork's work tree, below that.
    pub own: PathBuf,
    /// A directory of [`Target::hide`] in which the repository shows instead, where its own place is covered by the fork.
    pub place: PathBuf,
}

/// How the files of a fork are reached.
pub enum Root {
    /// The root of a mount.
    Mount(PathBuf),
    /// A plain directory.
    Directory(PathBuf),
    /// Not mounted: the command's own namespace mounts FUSE, for users who may not do so outside.
    Unmounted(Attach),
}

/// What a FUSE mount needs that a namespace makes by itself.
pub struct Attach {
    /// The permission bits of the root, as the mount option `rootmode` wants them.
    pub mode: u32,
    /// What shows as the source of the mount.
    pub source: OsString,
    /// Hands the connection to the server; returns once it is served.
    pub serve: Box<dyn FnOnce(OwnedFd) -> Result<()> + Send>,
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Root::Mount(path) => f.debug_tuple("Mount").field(path).finish(),
            Root::Directory(path) => f.debug_tuple("Directory").field(path).finish(),
            Root::Unmounted(attach) => f.debug_tuple("Unmounted").field(&attach.source).finish(),
        }
    }
}

/// How a command is kept from the base.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// The fork is at the base's path, and the base has no name.
    #[default]
    Path,
    /// The command merely starts in the fork. Absolute paths lead to the base; only what the guard can see beforehand is
    /// refused.
    Cwd,
}

/// What is run, and how.
#[derive(Debug, Default)]
pub struct Job {
    /// The program and its arguments.
    pub args: Vec<OsString>,
    /// Where the caller is: mapped to the same place in the fork. `None` for this process's working directory.
    pub cwd: Option<PathBuf>,
    /// The environment before what the fork adds and takes away.
    pub environment: Environment,
    /// How it is kept from the base.
    pub isolation: Isolation,
    /// Everything but the fork, `/tmp`, `/dev` and [`writable`](Self::writable) can only be read.
    pub read_only_root: bool,
    /// What stays writable all the same.
    pub writable: Vec<PathBuf>,
    /// What the command gets to see as empty.
    pub hide: Vec<PathBuf>,
    /// No network but a loopback of its own.
    pub no_network: bool,
    /// What becomes of standard input, output and error; `None` shares the caller's.
    pub stdio: [Option<OwnedFd>; 3],
    /// How long it may take.
    pub timeout: Option<Duration>,
}

/// Starts a command in a fork.
///
/// # Errors
/// `Vanished` where the fork is gone, `Covered` where another mount hides the base, `Astray` where the working directory
/// is not in the fork, `Unavailable` where this machine gives no namespaces, `Usage` for a job that makes no sense.
/// What goes wrong later comes from [`Running::wait`].
pub fn start(target: Target, job: Job) -> Result<Running> {
    Running::start(target, job)
}
