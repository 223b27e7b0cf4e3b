//! Cases that broke other systems of this kind, each under its number.
//!
//! They run on forks as the command line makes them. Where a case says only "as on a plain directory", the same script
//! runs on a plain copy of the base too and has to give the same.

mod data;
mod directories;
mod git;
mod links;
mod listing;
mod merges;
mod metadata;
mod names;
