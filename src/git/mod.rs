//! Git repositories: where their parts lie, and git commands that run nothing but git.
//!
//! [`Repo`] finds a repository by reading files, without running git. [`Git`] runs git on it hardened: nothing that the
//! repository's own configuration names is executed, and nothing of the caller's environment or configuration plays in.

mod command;
pub mod dirty;
pub mod index;
mod neutral;
pub mod own;
mod paths;
pub mod prepare;
mod read;
mod repo;
pub mod worktree;

pub use command::{Git, Head, version};
pub use repo::{DotGit, Elsewhere, Repo};
