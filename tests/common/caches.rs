//! The kernel's caches, which belong to all tests of a run.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

static DROPPED: RwLock<()> = RwLock::new(());

/// While this is held no other test drops the caches: for tests that count requests, or on watches of what was looked at.
pub(crate) fn kept() -> RwLockReadGuard<'static, ()> {
    // A test that fails with it leaves nothing half-done.
    DROPPED.read().unwrap_or_else(PoisonError::into_inner)
}

/// Has the kernel forget all names and nodes that nobody uses, on the whole machine.
pub(crate) fn drop_all() {
    let _alone = DROPPED.write().unwrap_or_else(PoisonError::into_inner);
    std::fs::write("/proc/sys/vm/drop_caches", "2").expect("root may drop caches");
}
