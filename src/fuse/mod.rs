//! An overlay as a mount: the adapter between the kernel's FUSE requests and [`crate::overlay`], and the session.
//!
//! Nothing of the file system is decided here. [`Session`] mounts, serves and ends; the adapter decodes a request, calls
//! the overlay and replies; [`Stats`] counts what was asked. What takes long (copying up a large file, `fsync`) runs on
//! a pool of threads that all sessions share, so that a session's own threads are free for the next request.
//!
//! A process that serves sessions calls [`crate::sys::map_large_blocks`] first, has a umask of 0 (what the caller's takes
//! away the kernel tells us), and must not touch its own mounts.

mod adapter;
mod buffers;
mod changes;
mod connection;
mod convert;
mod device;
mod leftover;
mod notify;
mod pool;
mod reply;
mod serving;
mod session;
mod stats;

use std::ffi::OsString;

use rustix::mount::MountFlags;

pub use connection::abort;
pub use device::{FS_TYPE, detach};
pub use leftover::{clear, end_mount};
pub use session::Session;
pub use stats::{Op, Stats};

/// How a session is mounted.
#[derive(Clone, Debug)]
pub struct Options {
    /// What `/proc/mounts` shows as the source.
    pub source: OsString,
    /// Mount flags: `RDONLY`, `NODEV`, `NOSUID` and so on.
    pub flags: MountFlags,
    /// Let users other than the one who mounts in; the kernel checks permissions in any case. For root, or with
    /// `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Threads that take requests; at least one.
    pub threads: usize,
}

impl Default for Options {
    /// Two threads; no devices and no set-user-id programs; open to others exactly when root mounts.
    fn default() -> Self {
        Self {
            source: "treefork".into(),
            flags: MountFlags::NODEV | MountFlags::NOSUID,
            allow_other: rustix::process::geteuid().is_root(),
            threads: 2,
        }
    }
}
