//! The entries of a directory.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::DirEntry;
use rustix::io::Result;

use super::call;

/// `Dir` of `rustix`; reading on can fail at any entry.
#[derive(Debug)]
pub struct Dir(rustix::fs::Dir);

impl Dir {
    /// Lists the directory behind a descriptor, which keeps its own place in it.
    pub fn read_from(fd: impl AsFd + Copy) -> Result<Self> {
        call("sys.read_dir", || rustix::fs::Dir::read_from(fd)).map(Self)
    }

    /// Lists a directory that was opened for that, which spares two calls.
    pub fn of(fd: OwnedFd) -> Result<Self> {
        rustix::fs::Dir::new(fd).map(Self)
    }
}

impl Iterator for Dir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        call("sys.getdents", || self.0.next().transpose()).transpose()
    }
}
