//! What the integration tests share: a hermetic environment, trees that clean up, images, listings, repositories.
//!
//! Everything here fails loudly (a panic that names the path or the command): a test has no use for half an answer.

pub(crate) mod caches;
pub(crate) mod cli;
pub(crate) mod env;
pub(crate) mod faults;
pub(crate) mod fork;
pub(crate) mod image;
pub(crate) mod mounts;
pub(crate) mod repo;
pub(crate) mod run;
pub(crate) mod temp;
pub(crate) mod tree;

pub(crate) use cli::Treefork;
pub(crate) use env::Env;
pub(crate) use fork::{Fork, eventually, same_as_plain};
pub(crate) use image::{Fs, Image};
pub(crate) use repo::{Repo, Shape};
pub(crate) use run::Run;
pub(crate) use temp::TempTree;
pub(crate) use tree::{Look, Tree, assert_same};
