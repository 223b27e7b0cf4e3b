//! Where an object waits before it goes to the parent, and where the one goes whose place it takes.
//!
//! Most wait in the stage, where they were made. A file of the upper that can be moved waits where it is: it changes places
//! with the parent's at once, and the old one goes with what is left of the fork.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::super::Os;
use super::super::dirs::LastDir;
use crate::names::RelPath;
use crate::sys::{At, open_beneath, open_root};

/// The upper of the fork that is merged. Nobody else is at work in it.
pub(crate) struct Upper {
    root: OwnedFd,
    last: LastDir,
}

impl Upper {
    /// The upper at this path; `None` where it is gone.
    pub(crate) fn open(path: &Path) -> Os<Option<Self>> {
        match open_root(path) {
            Ok(root) => Ok(Some(Self { root, last: LastDir::default() })),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn with<T>(&self, path: &RelPath, body: impl FnOnce(At<'_>) -> Os<T>) -> Os<T> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::INVAL) };
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        body(At::new(&*self.last.get(&parent, || open_beneath(&self.root, &parent, flags))?, name))
    }
}

/// Where one object waits.
#[derive(Clone, Copy)]
pub(super) enum Waiting<'a> {
    /// In the stage.
    Stage(At<'a>),
    /// At its path in the upper.
    Upper(&'a Upper, &'a RelPath),
    /// In an upper that is gone.
    Gone,
}

impl Waiting<'_> {
    /// Calls `body` with the entry.
    pub(super) fn with<T>(self, body: impl FnOnce(At<'_>) -> Os<T>) -> Os<T> {
        match self {
            Waiting::Stage(at) => body(at),
            Waiting::Upper(upper, path) => upper.with(path, body),
            Waiting::Gone => Err(Errno::STALE),
        }
    }
}
