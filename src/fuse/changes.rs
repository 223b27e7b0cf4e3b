//! How many threads of a session are busy changing something.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many of the session's own threads may change something at a time. A change can block on the disk, and then one
/// thread at least is still there for those who only read.
pub(super) struct Changes {
    most: usize,
    now: AtomicUsize,
}

/// One change that runs on a thread of the session.
pub(super) struct Change(Arc<Changes>);

impl Changes {
    /// For a session with so many threads.
    pub(super) fn new(threads: usize) -> Arc<Self> {
        Arc::new(Self { most: threads.saturating_sub(1).max(1), now: AtomicUsize::new(0) })
    }

    /// Leave to change something on this thread; `None` where it is to be done on the pool.
    pub(super) fn here(self: &Arc<Self>) -> Option<Change> {
        let change = Change(Arc::clone(self));
        (self.now.fetch_add(1, Ordering::Relaxed) < self.most).then_some(change)
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_is_left() {
        let changes = Changes::new(3);
        let (first, second) = (changes.here(), changes.here());
        assert!(first.is_some() && second.is_some() && changes.here().is_none());
        drop(first);
        assert!(changes.here().is_some());
        assert!(Changes::new(1).here().is_some(), "where there is but one, it does everything");
    }
}
