//! Layers on disk, by path: what a lower holds, what the upper says about it, and how the two merge.
//!
//! The upper is the kernel's overlay format with `user.overlay.*` attributes ([`marks`]), so that the kernel's overlay
//! or fuse-overlayfs can read it; what goes beyond that format is drawn in `docs/format.md`. [`ledger`] remembers the
//! state in which the fork found each base object that it changed or hid: a merge compares the parent against it.
//! [`hidden`] says which names of the base a fork does not show at all.

pub mod blocks;
pub mod hidden;
pub mod index;
pub mod ledger;
pub mod manifest;
pub mod marks;
pub mod monitor;
pub mod origins;
pub mod ours;
pub mod prepared;
pub mod preserved;
pub mod resolve;
pub mod staging;
pub mod touched;
pub mod tree;
pub mod watch;

use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::sys::At;

/// Opens a directory of a fork's work area; made when missing.
fn area(work: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    let at = At::new(work, name);
    match at.mkdir(0o700) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e),
    }
    at.open(OFlags::RDONLY | OFlags::DIRECTORY)
}
