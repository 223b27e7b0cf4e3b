//! The server: one background process per store that serves all its mounts.
//!
//! A [`Client`] starts it on demand and talks to it over a Unix socket; [`run`] is its main loop, in the foreground.
//! It knows nothing of forks as such: a mount is an overlay of given directories at a given place.
//!
//! It must never wait for itself: it opens base, upper and work before it mounts, refuses a base that lies on the mount
//! of a fork, and never resolves a path through a mount of its own.
//!
//! ```text
//! store/server.lock   held by the one server (or by the one that is about to be it)
//! store/server.start  held by the client that starts it
//! store/server.sock   where it listens
//! store/server.log    what it has to say, and server.log.1 before that
//! ```

mod backend;
mod client;
mod log_file;
mod observed;
mod others;
mod pointers;
mod protocol;
mod reaper;
mod run;
mod start;
mod table;
mod wire;

pub use backend::Fuse;
pub use client::{Client, Drift};
pub use log_file::LogFile;
pub use others::refuse_any_inside;
pub use protocol::{Layer, MountInfo, MountSpec, Pong};
pub use run::{Options, run};
pub use start::{AS_SERVER, Program, READY, program_path, set_program, this_program};
pub use table::{Backend, How, Mounted, Rest};

use std::path::{Path, PathBuf};

/// The type under which the mounts of forks show in `/proc/self/mountinfo`.
pub const MOUNT_KIND: &str = crate::fuse::FS_TYPE;

fn socket(store: &Path) -> PathBuf {
    store.join("server.sock")
}

fn lock(store: &Path) -> PathBuf {
    store.join("server.lock")
}
