//! Notices that a fork has gone from under its command.
//!
//! The command itself may never look: it can sit in a directory of a dead mount and compute. So a thread asks four
//! times a second whether the root still answers and is still where it was.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
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

/// How long the end of a watch waits for its thread: a server that is stopped may leave the last question unanswered.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    /// Nobody wants to know any more.
    over: bool,
    /// The thread is gone, and has let go of the root.
    left: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// A running watch. Once it is dropped nothing of it holds the root open, so that a mount that nobody else uses ends.
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
        let thread = move || {
            let gone = theirs.watch(&watched);
            drop(watched);
            theirs.state.lock().left = true;
            theirs.changed.notify_all();
            if gone {
                bark();
            }
        };
        std::thread::Builder::new()
            .name("treefork-watchdog".into())
            .spawn(thread)
            .map_err(|e| Error::io("cannot start a thread", e))?;
        Ok(Self { shared, root })
    }

    /// Looks at once.
    pub(super) fn sees_it_gone(&self) -> bool {
        !self.root.alive()
    }
}

impl Shared {
    /// Looks until the root is gone (true) or nobody wants to know any more.
    fn watch(&self, root: &Root) -> bool {
        let mut state = self.state.lock();
        while !state.over {
            self.changed.wait_for(&mut state, INTERVAL);
            if !state.over && !MutexGuard::unlocked(&mut state, || root.alive()) {
                return !state.over;
            }
        }
        false
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.over = true;
        self.shared.changed.notify_all();
        self.shared.changed.wait_while_for(&mut state, |state| !state.left, PATIENCE);
    }
}
