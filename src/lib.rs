//! treefork: near-free, isolated forks of a directory tree, and a safe way back.
//!
//! A *fork* is a FUSE overlay mount that reads through to a base tree and catches every write in a private upper
//! layer; a *merge* replays that upper layer into the parent. The folders of this crate are its architecture, from the
//! top down; `docs/design.md` has the table of which may use which.
//!
//! A program that gives forks to helpers of its own starts at [`api`].

#![deny(unsafe_code)]
// The headers of files speak to those who work on them, too.
#![allow(rustdoc::private_intra_doc_links)]

pub mod api;
pub mod cli;
pub mod config;
pub mod copy;
pub mod durable;
pub mod error;
pub mod fork;
pub mod fuse;
pub mod git;
pub mod layer;
pub mod merge;
pub mod names;
pub mod overlay;
pub mod run;
pub mod server;
pub mod strategy;
pub mod sys;

pub use cli::serve_if_asked;
pub use error::{Error, Kind, Result};
