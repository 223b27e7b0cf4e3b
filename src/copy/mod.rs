//! Bytes and metadata from one file or tree to another.
//!
//! [`file_data`] brings over the bytes of one file by the cheapest means the file systems offer and says which it was;
//! [`metadata`] brings over everything else of one object. Neither ever follows a final symbolic link.

mod data;
mod meta;

pub use data::{Method, file_data, file_data_watched, reflink};
pub use meta::{metadata, owner, permissions, times, xattrs};
