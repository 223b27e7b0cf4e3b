//! The one integration binary: everything that needs a mount, a process or a whole repository.
//!
//! Each area is a folder with its own `mod.rs`; [`common`] is what they share. [`harness`] tests the tests: among
//! other things it fails when a file below `tests/` is reachable by no `mod` line.

mod api;
mod cases;
mod cli;
mod common;
mod docs;
mod fuzz;
mod git;
mod harness;
mod hostile;
mod jobs;
mod life;
mod merge;
mod mount;
mod quota;
mod run;
mod semantics;
mod siblings;
mod soak;
mod strategy;
