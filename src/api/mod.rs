//! The facade for programs that give each of their helpers a fork: agent harnesses, dispatchers, test runners.
//!
//! A [`Forker`] makes an isolated [`Environment`] from another one; a [`Merger`] brings the changes of one back into
//! its parent; a [`Manager`] is the same for dispatchers that think in tasks. There is no logic here beyond joining
//! what the layers below offer. Each role is a trait ([`EnvironmentForker`], [`EnvironmentMerger`], [`CommandRunner`],
//! [`Workspace`]), so that a host can put its own in.
//!
//! ```no_run
//! use treefork::api::{CancelToken, Command, Environment, EnvironmentForker, EnvironmentMerger, Forker, Merger};
//!
//! # fn main() -> treefork::Result<()> {
//! let cancel = CancelToken::new();
//! let project = Environment::at("/home/me/project");
//! let forker = Forker::builder().force_copy().isolated_runner().build()?;
//! let fork = forker.fork(&project, "try the other parser", &cancel)?;
//! let tests = fork.environment.runner()?.run(&Command::new(["make", "test"]), &cancel)?;
//! if tests.is_success() {
//!     Merger::default().merge(&fork.environment, &project, &cancel)?;
//! }
//! fork.cleanup.run()?; // also done when `fork` is dropped
//! # Ok(())
//! # }
//! ```
//!
//! Everything blocks and no runtime is needed; under an async one call it where blocking is allowed. The mounts are
//! served by a process of their own, see [`host`].

mod cleanup;
mod environment;
mod forker;
mod hooks;
pub mod host;
mod join;
mod manager;
mod merger;
mod observe;
mod runner;

pub use crate::durable::{CancelToken, Registration};
pub use cleanup::Cleanup;
pub use environment::{
    Command, CommandRunner, Directory, Environment, EnvironmentForker, EnvironmentMerger, Fork, Merged, Output,
    Workspace,
};
pub use forker::{Builder, Forker};
pub use hooks::{PreMerge, create_fork};
pub use join::{Landing, merge_fork, recover, source};
pub use manager::{Managed, Manager};
pub use merger::{Merger, SerializingMerger};
pub use observe::observe;
pub use runner::{Isolated, caveat, target};
