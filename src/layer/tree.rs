//! A lower layer: a directory tree that is only read.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use crate::sys::Stat;

/// The root of a lower layer.
#[derive(Debug)]
pub struct Layer {
    /// The root directory (`O_PATH`).
    pub root: OwnedFd,
    /// The file system it is on.
    pub dev: u64,
    /// Whether it is in overlay format. The base is not: there a character device 0:0 is one, and no attribute of it
    /// means anything to us.
    pub marked: bool,
    /// Whether changes from outside are followed.
    pub watch: bool,
    /// A number of its own, unique in the process.
    pub id: u32,
}

impl Layer {
    /// A layer with this root.
    pub fn new(root: OwnedFd, marked: bool, watch: bool) -> Result<Self, Errno> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let dev = Stat::of(root.as_fd())?.dev;
        Ok(Self { root, dev, marked, watch, id: NEXT.fetch_add(1, Ordering::Relaxed) })
    }
}
