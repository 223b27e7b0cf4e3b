//! Descriptors kept open between operations, in one bounded cache for all forks of a process.
//!
//! There are no open files in this file system, so a read or a write finds its descriptor here or opens one. The hard
//! limit on descriptors is shared by a thousand forks: the least recently used one is closed first, which is always
//! allowed, since a node can be opened again. The one descriptor that cannot, that of an object without a name, is held
//! by its node instead, and counted here: there are only so many.

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use lru::LruCache;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::partial::Partial;
use super::{Overlay, Result};

/// A cached descriptor.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) fd: Arc<OwnedFd>,
    /// The file had set-id bits when it was opened: a write by an ordinary user has to clear them.
    pub(super) set_id: AtomicBool,
    /// The file is known to have no capabilities, as one that was just made.
    pub(super) incapable: AtomicBool,
    /// Where a file of a lower ended when it was opened.
    pub(super) end: Option<u64>,
    /// The file was still being brought up when it was opened.
    partial: Option<Arc<Partial>>,
}

impl Opened {
    pub(super) fn new(fd: OwnedFd) -> Arc<Self> {
        Self::of(Arc::new(fd), None)
    }

    /// A file of a lower, of this size.
    pub(super) fn of_lower(fd: OwnedFd, size: u64) -> Arc<Self> {
        Arc::new(Self { end: Some(size), ..Self::made(Arc::new(fd), None) })
    }

    /// A file of the upper, which may be a partial one.
    pub(super) fn of(fd: Arc<OwnedFd>, partial: Option<Arc<Partial>>) -> Arc<Self> {
        Arc::new(Self::made(fd, partial))
    }

    fn made(fd: Arc<OwnedFd>, partial: Option<Arc<Partial>>) -> Self {
        Self { fd, set_id: AtomicBool::new(false), incapable: AtomicBool::new(false), end: None, partial }
    }

    /// The file as one that is still being brought up, if it is.
    pub(super) fn partial(&self) -> Option<&Arc<Partial>> {
        self.partial.as_ref().filter(|partial| !partial.is_settled())
    }
}

/// What a descriptor of a node is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Slot {
    /// The directory in the upper (`O_PATH`).
    UpperDir,
    /// The directory in the lower layer of this id (`O_PATH`).
    LowerDir(u32),
    /// The file, for reading.
    Read,
    /// The file in the upper, for reading and writing.
    Write,
}

type Key = (u32, u64, Slot);

const SHARDS: usize = 16;

/// The cache: least recently used first out.
#[derive(Debug)]
pub struct FdCache {
    shards: Vec<Mutex<LruCache<Key, Arc<Opened>>>>,
    owners: AtomicU32,
    /// How many are held besides, and how many may be.
    held: AtomicUsize,
    most_held: usize,
}

/// A descriptor that stays open for as long as somebody has it.
#[derive(Debug)]
pub(super) struct Held {
    fd: Arc<OwnedFd>,
    cache: Arc<FdCache>,
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.cache.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What is still open in the upper of a file system that has ended, and is of no use to anybody: dropping this closes it.
/// Until then it counts in the cache, which closes it sooner where it needs the room.
#[derive(Debug)]
pub struct Leftovers {
    pub(super) fds: Arc<FdCache>,
    pub(super) owner: u32,
}

impl Overlay {
    /// Ends it where nothing of it is wanted any more: what it has open in the upper, which may be thousands of descriptors,
    /// is closed with what this returns, and not with the overlay.
    pub fn leave(&self) -> Leftovers {
        self.quiesce();
        self.leaves.store(true, Ordering::Relaxed);
        Leftovers { fds: Arc::clone(&self.fds), owner: self.owner }
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        self.fds.remove_owner(self.owner);
    }
}

impl FdCache {
    /// A cache for all file systems of this process.
    pub fn of_process() -> Arc<Self> {
        const MOST: usize = 4096;
        // Three quarters of what may be open, with those that are held: the layers' own, the devices and the clients have to
        // fit in, too.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let half = limit.map_or(MOST, |limit| usize::try_from(limit / 2).unwrap_or(MOST));
        Self::new(half.min(MOST))
    }

    /// A cache of about this many descriptors, with half as many more that are held.
    pub fn new(capacity: usize) -> Arc<Self> {
        let each = NonZeroUsize::new(capacity / SHARDS).unwrap_or(NonZeroUsize::MIN);
        // Unbounded in name, bounded by hand on insertion: a bounded LruCache allocates its table up front.
        let shards = (0..SHARDS).map(|_| Mutex::new(LruCache::unbounded())).collect::<Vec<_>>();
        for shard in &shards {
            shard.lock().resize(each);
        }
        let (owners, held) = (AtomicU32::new(0), AtomicUsize::new(0));
        Arc::new(Self { shards, owners, held, most_held: capacity / 2 })
    }

    /// A number for one more file system that uses the cache.
    pub(super) fn owner(&self) -> u32 {
        self.owners.fetch_add(1, Ordering::Relaxed)
    }

    /// Opens something to be held; `None` where as much is held as may be, or nothing more can be opened.
    pub(super) fn hold(self: &Arc<Self>, open: impl FnOnce() -> Result<Arc<OwnedFd>>) -> Result<Option<Arc<Held>>> {
        let before = self.held.fetch_add(1, Ordering::Relaxed);
        let opened = if before < self.most_held { open() } else { Err(Errno::MFILE) };
        match opened {
            // Counted off again when it is dropped.
            Ok(fd) => Ok(Some(Arc::new(Held { fd, cache: Arc::clone(self) }))),
            Err(e) => {
                self.held.fetch_sub(1, Ordering::Relaxed);
                if matches!(e, Errno::MFILE | Errno::NFILE) { Ok(None) } else { Err(e) }
            }
        }
    }

    pub(super) fn get(&self, owner: u32, node: u64, slot: Slot) -> Option<Arc<Opened>> {
        self.shard(owner, node).lock().get(&(owner, node, slot)).cloned()
    }

    pub(super) fn put(&self, owner: u32, node: u64, slot: Slot, opened: Arc<Opened>) {
        let old = self.shard(owner, node).lock().push((owner, node, slot), opened);
        // Closing may block on the disk (last close of an unlinked file): never under the lock.
        drop(old);
    }

    pub(super) fn remove(&self, owner: u32, node: u64, slot: Slot) {
        let old = self.shard(owner, node).lock().pop(&(owner, node, slot));
        drop(old);
    }

    /// Closes all that a file system has here; the nodes that they were of.
    pub(super) fn remove_owner(&self, owner: u32) -> Vec<u64> {
        self.remove_where(owner, |_, _| true)
    }

    /// The same for those that may lead to a lower layer.
    pub(super) fn remove_lowers(&self, owner: u32) -> Vec<u64> {
        self.remove_where(owner, |slot, opened| {
            matches!(slot, Slot::LowerDir(_) | Slot::Read) || opened.partial.is_some()
        })
    }

    fn remove_where(&self, owner: u32, goes: impl Fn(Slot, &Opened) -> bool) -> Vec<u64> {
        let mut nodes = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let ours = shard.iter().filter(|(key, opened)| key.0 == owner && goes(key.2, opened));
            let keys: Vec<Key> = ours.map(|(key, _)| *key).collect();
            let old: Vec<_> = keys.iter().map(|key| shard.pop(key)).collect();
            drop(shard);
            drop(old);
            nodes.extend(keys.iter().map(|key| key.1));
        }
        nodes
    }

    fn shard(&self, owner: u32, node: u64) -> &Mutex<LruCache<Key, Arc<Opened>>> {
        // Fibonacci hashing: inode numbers come in runs.
        let mixed = (node ^ u64::from(owner)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.shards[(mixed >> 60) as usize % SHARDS]
    }
}
