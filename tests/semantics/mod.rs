//! A fork behaves as a plain directory does.
//!
//! [`ops`] are file operations as values, [`random`] makes sequences of them, [`engine`] carries them out on a
//! directory (plain or a mount), and [`differential`] runs them on a fork and on a plain copy of its base. Where a fork is
//! meant to differ is in [`exceptions`]. Many clients of many forks, with merges and drift in between, are held to a [`model`]
//! that is nothing but memory in [`concurrent`].

mod concurrent;
mod core;
mod differential;
mod engine;
mod exceptions;
mod faults;
mod model;
mod mounted;
mod ops;
mod random;
mod regressions;
pub(crate) mod rng;
mod show;
