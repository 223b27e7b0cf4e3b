//! Bytes and metadata from one file or tree to another.
//!
//! [`file_data`] brings over the bytes of one file by the cheapest means the file systems offer and says which it was;
//! [`metadata`] brings over everything else of one object; [`tree`] does both for a whole tree, in parallel. None of
//! them ever follows a symbolic link.

mod data;
mod links;
mod meta;
mod object;
mod tree;
mod walk;

pub use data::{Method, Sharing, data_ranges, file_data, file_data_watched, file_range, reflink, share, write_all_at};
pub use links::{Symlinks, leads_outside, leads_outside_of, retarget};
pub use meta::{metadata, owner, permissions, times, xattrs};
pub use tree::{Options, Progress, Report, default_threads, tree};
