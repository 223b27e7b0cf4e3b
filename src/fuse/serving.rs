//! Where a request runs: on the session's own thread, or on the pool where it may take long. And what is the same for all:
//! they are counted, can be made to fail by tests, and a panic inside one is its own failure (`EIO`) and nobody else's.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use fuser::{INodeNo, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyWrite, WriteFlags};
use rustix::io::Errno;

use super::buffers;
use super::changes::Changes;
use super::convert::{errno, file_type};
use super::pool::Lane;
use super::reply::{add_ahead, written};
use super::session::Ending;
use super::stats::{Op, Stats};
use crate::durable::fault;
use crate::overlay::{Overlay, Result};

/// The largest read or write in one request. The kernel takes no more by default (`fs.fuse.max_pages_limit`).
pub(super) const MAX_IO: u32 = 1024 * 1024;

/// The overlay behind a session, in the words of the FUSE library; what it answers is in [`adapter`](super::adapter).
#[derive(Clone)]
pub(super) struct Adapter {
    pub(super) overlay: Arc<Overlay>,
    pub(super) stats: Arc<Stats>,
    lane: Arc<Lane>,
    pub(super) changes: Arc<Changes>,
    /// Held until the session's last request is over, on whatever thread.
    _ending: Arc<Ending>,
}

impl Adapter {
    /// For a session with so many threads of its own.
    pub(super) fn new(overlay: Arc<Overlay>, stats: Arc<Stats>, threads: usize, ending: Ending) -> Self {
        let changes = Changes::new(threads);
        Self { overlay, stats, lane: Arc::default(), changes, _ending: Arc::new(ending) }
    }

    /// Calls the overlay; a panic becomes `EIO`.
    pub(super) fn call<T>(&self, op: Op, f: impl FnOnce(&Overlay) -> Result<T>) -> Result<T> {
        self.stats.count(op);
        self.guarded(op, f)
    }

    /// The same for a request that was counted before.
    pub(super) fn guarded<T>(&self, op: Op, f: impl FnOnce(&Overlay) -> Result<T>) -> Result<T> {
        let guarded = || {
            fault::point(op.fault()).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
            f(&self.overlay)
        };
        catch_unwind(AssertUnwindSafe(guarded)).unwrap_or_else(|_| {
            self.stats.panicked();
            log::error!("a panic in {}; that request fails, nothing else", op.name());
            Err(Errno::IO)
        })
    }

    /// Runs a job that changes something, here or on the pool.
    pub(super) fn change(&self, job: impl FnOnce(&Self) + Send + 'static) {
        match self.changes.here() {
            Some(_change) => job(self),
            None => self.slowly(job),
        }
    }

    /// The same for a change of a file, which goes to the pool also where it would first copy much.
    pub(super) fn change_file(&self, node: INodeNo, job: impl FnOnce(&Self) + Send + 'static) {
        if self.overlay.copies_up(node.0) { self.slowly(job) } else { self.change(job) }
    }

    /// Runs a job on the pool.
    pub(super) fn slowly(&self, job: impl FnOnce(&Self) + Send + 'static) {
        let this = self.clone();
        self.lane.run(move || job(&this));
    }

    /// A request that this mode does without.
    pub(super) fn refuse(&self, op: Op) -> fuser::Errno {
        self.stats.count(op);
        fuser::Errno::ENOSYS
    }

    pub(super) fn read_now(&self, node: u64, offset: u64, size: u32, reply: ReplyData) {
        let mut buffer = buffers::take();
        let buffer = &mut buffer[..size.min(MAX_IO) as usize];
        match self.call(Op::Read, |fs| fs.read(node, offset, buffer)) {
            Ok(n) => reply.data(&buffer[..n]),
            Err(e) => reply.error(errno(e)),
        }
    }

    pub(super) fn list_now(&self, ino: INodeNo, offset: u64, mut reply: ReplyDirectory) {
        let listed = self.call(Op::ReadDir, |fs| {
            fs.readdir(ino.0, offset, &mut |e| reply.add(INodeNo(e.ino), e.next, file_type(e.kind), e.name))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(e)),
        }
    }

    pub(super) fn list_ahead_now(&self, ino: INodeNo, offset: u64, mut reply: ReplyDirectoryPlus) {
        let listed = self.call(Op::ReadDirPlus, |fs| {
            fs.readdirplus(ino.0, offset, &mut |listed, entry| add_ahead(&mut reply, &listed, entry))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(e)),
        }
    }

    pub(super) fn write_now(&self, node: u64, offset: u64, data: &[u8], flags: WriteFlags, reply: ReplyWrite) {
        let kill = flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        written(reply, self.call(Op::Write, |fs| fs.write(node, offset, data, kill)));
    }
}
