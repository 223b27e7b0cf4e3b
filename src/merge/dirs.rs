//! The directory of a tree that was opened last: changes come directory by directory, and each needs its own.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use super::Os;
use crate::names::RelPath;

/// Keeps the directory opened last.
#[derive(Debug, Default)]
pub(crate) struct LastDir(RefCell<Option<(RelPath, Rc<OwnedFd>)>>);

impl LastDir {
    /// The directory at `path`, which is opened by `open` unless it was the last one.
    pub(crate) fn get(&self, path: &RelPath, open: impl FnOnce() -> Os<OwnedFd>) -> Os<Rc<OwnedFd>> {
        if let Some((last, fd)) = &*self.0.borrow()
            && last.as_bytes() == path.as_bytes()
        {
            return Ok(Rc::clone(fd));
        }
        let fd = Rc::new(open()?);
        *self.0.borrow_mut() = Some((path.clone(), Rc::clone(&fd)));
        Ok(fd)
    }

    /// Names have moved: the next one is opened anew.
    pub(crate) fn forget(&self) {
        *self.0.borrow_mut() = None;
    }
}
