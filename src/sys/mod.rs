//! System calls in the shape the rest of the crate wants them, and the only unsafe code of the crate.
//!
//! [`At`] is an entry named by a directory descriptor and one name: every call on it is confined to that directory and
//! never follows a final symbolic link. [`Stat`] is what `statx` says, birth time included. [`mounts`] reads what is mounted where.
//! [`cell`] runs a command in namespaces of its own. What reads and writes trees goes through [`calls`], where tests can
//! make any of it fail, by [`fault`].

mod at;
pub mod calls;
#[allow(unsafe_code, reason = "cloning and executing, with a word on each block")]
pub mod cell;
pub mod fault;
mod memory;
mod mounts;
mod process;
#[allow(unsafe_code, reason = "a signal handler, with a word on each block")]
mod signals;
mod stat;

pub use at::{At, open_beneath, open_on_mount, open_root, reopen, xattr_of};
pub use memory::{give_back_memory, map_large_blocks};
pub use mounts::{Mount, Mounted, Newer, about, mount_above, mount_of, mounted_at, mounts};
pub use process::{
    boot_id, detach, leave_session, process_group, raise_descriptor_limit, set_undumpable, spawn_behind, watch_limit,
};
pub use signals::{Caught, Mask, catch_signals, caught, stop_by};
pub use stat::{Ident, Stat, Time, mount_id};
