//! Notices that a fork has gone from under its command.
//!
//! The command itself may never look: it can sit in a directory of a dead mount and compute. So a thread asks four
//! times a second whether the root still answers and is still where it was.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::fs::{AtFlags, CWD, StatxFlags};

use crate::error::{Error, Result};

const INTERVAL: Duration = Duration::from_millis(250);

/// The root of a fork, watched.
pub(super) struct Root {
    /// Held open, so that its number is not given to another object.
    pub(super) fd: OwnedFd,
    /// Where it was; `None` where it has no path outside the cell.
    pub(super) path: Option<PathBuf>,
}

impl Root {
    /// Whether it still answers, and is still at its path.
    ///
    /// The descriptor is asked with a request to the server, since cached attributes outlive a server; the path from the
    /// cache, since a path whose mount was taken away shows another object.
    pub(super) fn alive(&self) -> bool {
        let asked = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        let Ok(own) = rustix::fs::statx(self.fd.as_fd(), "", asked, StatxFlags::BASIC_STATS) else { return false };
        let Some(path) = &self.path else { return true };
        let cached = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
        let key = |x: &rustix::fs::Statx| (x.stx_dev_major, x.stx_dev_minor, x.stx_ino);
        rustix::fs::statx(CWD, path, cached, StatxFlags::BASIC_STATS).is_ok_and(|x| key(&x) == key(&own))
    }
}

#[derive(Default)]
struct Shared {
    over: Mutex<bool>,
    changed: Condvar,
}

/// A running watch; dropping it ends it without waiting for a question that a stopped server leaves unanswered.
pub(super) struct Watchdog {
    shared: Arc<Shared>,
    root: Arc<Root>,
}

impl Watchdog {
    /// Calls `bark` once, from a thread of its own, when the root is gone.
    pub(super) fn start(root: Root, bark: impl FnOnce() + Send + 'static) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let root = Arc::new(root);
        let (theirs, watched) = (shared.clone(), root.clone());
        let watch = move || {
            let mut over = theirs.over.lock();
            while !*over {
                theirs.changed.wait_for(&mut over, INTERVAL);
                if *over {
                    return;
                }
                let alive = parking_lot::MutexGuard::unlocked(&mut over, || watched.alive());
                if !alive && !*over {
                    drop(over);
                    return bark();
                }
            }
        };
        std::thread::Builder::new()
            .name("treefork-watchdog".into())
            .spawn(watch)
            .map_err(|e| Error::io("cannot start a thread", e))?;
        Ok(Self { shared, root })
    }

    /// Looks at once.
    pub(super) fn sees_it_gone(&self) -> bool {
        !self.root.alive()
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        *self.shared.over.lock() = true;
        self.shared.changed.notify_all();
    }
}
