//! Telling the kernel that something it caches is out of date.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;

use fuser::{INodeNo, Notifier};

use crate::overlay::Invalidate;

/// The kernel's caches of one session.
///
/// The kernel may make the caller wait for requests that are under way in the same directory or file, so this must
/// never be called by a thread that serves requests, nor with a lock that serving one takes.
#[derive(Debug)]
pub(super) struct Caches(pub(super) Notifier);

impl Invalidate for Caches {
    fn entry(&self, parent: u64, name: &OsStr) {
        told("entry", parent, self.0.inval_entry(INodeNo(parent), name));
        // A name that nobody has looked up has no entry to drop, but the cached listing may lack it, or show it still.
        self.node(parent, true);
    }

    fn node(&self, node: u64, data: bool) {
        // A negative offset leaves the cached pages alone.
        let offset = if data { 0 } else { -1 };
        told("node", node, self.0.inval_inode(INodeNo(node), offset, 0));
    }

    fn settle(&self, dir: u64) {
        // Lookups hold the directory's lock until they have their answer, and dropping an entry takes it exclusively
        // (fuse_reverse_inval_entry). No entry can have this name: it is longer than any may be.
        told("lookups in", dir, self.0.inval_entry(INodeNo(dir), OsStr::from_bytes(&[b'-'; 256])));
    }
}

fn told(what: &str, node: u64, result: io::Result<()>) {
    if let Err(e) = result {
        // The session is ending; the caches go with it. What the kernel does not know (ENOENT) is no error to fuser.
        log::debug!("cannot invalidate {what} {node:#x}: {e}");
    }
}
