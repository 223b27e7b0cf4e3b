//! A large file of the upper that is not all there yet.
//!
//! It came up block by block: what the fork has written is in the upper, the rest is read from the lower, which is held
//! open, and brought up at once by the threads of `background`. Whoever needs the whole file ([`Overlay::settle`]) helps
//! with that instead of waiting. Then it is an ordinary file of the upper.
//!
//! The lower may be changed by others meanwhile, so every look at it is followed by a look at its attributes before
//! anything of it is used. If it changed, what is missing is lost: that part cannot be read (`EIO`), the file is named
//! as drifted, and what the fork has written stays. A file that is merely replaced or removed there changes nothing.
//!
//! Locks: `state` is held while the fork's own writes go to the upper, not while blocks are copied: those are `claimed`
//! for so long, and whoever wants to write there waits. It comes after `names`; `times` and `seen` are leaves.

mod pieces;

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;

pub(super) use self::pieces::Next;
use super::{Overlay, Result};
use crate::copy;
use crate::layer::blocks::{Bits, Map, Source};
use crate::layer::tree::Layer;
use crate::sys::{Ident, Stat, Time, calls};

/// So many of them a process has at once, each with three descriptors; further files are copied as a whole.
const MOST: usize = 256;

static LIVE: AtomicUsize = AtomicUsize::new(0);

/// A large file of the upper that is not all there yet.
#[derive(Debug)]
pub(super) struct Partial {
    /// The node that was written to.
    pub(super) node: u64,
    /// The file in the upper, and its identity there.
    fd: Arc<OwnedFd>,
    pub(super) ident: Ident,
    /// Where the rest is; `None` where that is another file by now.
    lower: Option<(Arc<Layer>, OwnedFd)>,
    pub(super) source: Source,
    /// The directory of maps, and its own.
    area: OwnedFd,
    map: Map,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
    /// The lower's attributes at the last look.
    seen: Mutex<Stat>,
    /// Content and change time as the fork's own writes left them: bringing up blocks touches those of the file.
    times: Mutex<Times>,
    /// It is an ordinary file by now.
    settled: AtomicBool,
}

#[derive(Debug)]
pub(super) struct State {
    /// Blocks that are in the upper.
    present: Bits,
    pub(super) missing: u64,
    /// Those of them that the fork has written.
    written: Bits,
    /// All blocks before this one are in the upper.
    from: u64,
    /// Blocks that are being brought up.
    pub(super) claimed: Option<Range<u64>>,
    /// All blocks are in the upper, and somebody is making it an ordinary file.
    pub(super) finishing: bool,
    /// The lower has changed.
    pub(super) lost: bool,
    /// The overlay ends, or nobody can see the file any more.
    dropped: bool,
}

/// The times that a file shows.
#[derive(Clone, Copy, Debug)]
struct Times {
    mtime: Time,
    ctime: Time,
}

impl Drop for Partial {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a partial file is made of.
pub(super) struct Parts {
    pub(super) node: u64,
    pub(super) fd: Arc<OwnedFd>,
    pub(super) lower: Option<(Arc<Layer>, OwnedFd)>,
    /// The lower's attributes.
    pub(super) seen: Stat,
    pub(super) source: Source,
    pub(super) area: OwnedFd,
    pub(super) map: Map,
    /// What the fork has written.
    pub(super) written: Bits,
    /// Nothing is missing.
    pub(super) complete: bool,
    /// Content and change time to be shown.
    pub(super) times: (Time, Time),
}

/// Whether there may be one more.
pub(super) fn may_begin() -> bool {
    LIVE.load(Ordering::Relaxed) < MOST
}

impl Partial {
    pub(super) fn new(parts: Parts) -> Result<Arc<Self>> {
        let Parts { node, fd, lower, seen, source, area, map, written, complete, times: (mtime, ctime) } = parts;
        let upper = Stat::of(fd.as_fd())?;
        let mut present = written.clone();
        // Truncated since: what was beyond the end is nobody's any more.
        present.add(if complete { 0 } else { upper.size.div_ceil(source.block) }..source.blocks());
        let state = State {
            missing: present.count_missing(),
            lost: lower.is_none(),
            present,
            written,
            from: 0,
            claimed: None,
            finishing: false,
            dropped: false,
        };
        LIVE.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Self {
            node,
            fd,
            ident: upper.ident(),
            lower,
            source,
            area,
            map,
            state: Mutex::new(state),
            changed: Condvar::new(),
            seen: Mutex::new(seen),
            times: Mutex::new(Times { mtime, ctime }),
            settled: AtomicBool::new(false),
        }))
    }

    /// Whether it is an ordinary file by now.
    pub(super) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    /// What the file shows whose attributes on disk are `stat`.
    pub(super) fn shown(&self, stat: Stat) -> Stat {
        let Times { mtime, ctime } = *self.times.lock();
        Stat { mtime, ctime, ..stat }
    }

    fn blocks_of(&self, start: u64, end: u64) -> Range<u64> {
        start / self.source.block..end.div_ceil(self.source.block)
    }

    /// The bytes of a block that the lower has.
    fn bytes_of(&self, block: u64) -> Range<u64> {
        block * self.source.block..((block + 1) * self.source.block).min(self.source.size)
    }

    /// The state, once nobody is bringing up any of these blocks.
    fn lock(&self, blocks: &Range<u64>) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        while state.claimed.as_ref().is_some_and(|c| c.start < blocks.end && blocks.start < c.end) {
            self.changed.wait(&mut state);
        }
        state
    }

    /// How far from `at` the bytes are in one place, `end` at the most, and whether that is the lower.
    fn run(&self, at: u64, end: u64) -> Result<(u64, bool)> {
        if at >= self.source.size {
            return Ok((end, false));
        }
        let end = end.min(self.source.size);
        let state = self.state.lock();
        let blocks = self.blocks_of(at, end);
        let missing = !state.present.has(blocks.start);
        if missing && state.lost {
            return Err(Errno::IO);
        }
        let other = blocks.clone().find(|&block| state.present.has(block) == missing);
        Ok((other.map_or(end, |block| block * self.source.block), missing))
    }

    /// Whether what was just read of the lower is what it held when the fork first wrote to the file.
    fn stood(&self, overlay: &Overlay, layer: &Layer, lower: &OwnedFd) -> Result<bool> {
        let now = overlay.without_our_names(layer, Stat::of(lower.as_fd())?);
        let mut seen = self.seen.lock();
        // A new change time with nothing to show for it may be new content with its old time put back.
        let attributes = |s: &Stat| (s.nlink, s.mode, s.uid, s.gid);
        let explained = now.ctime == seen.ctime || attributes(&now) != attributes(&seen);
        let stood = (now.size, now.mtime) == (seen.size, seen.mtime) && explained;
        if stood {
            *seen = now;
        }
        Ok(stood)
    }

    fn lose(&self, overlay: &Overlay) {
        if !std::mem::replace(&mut self.state.lock().lost, true) {
            self.lost(overlay);
        }
    }

    /// Says that what is missing cannot be had any more.
    pub(super) fn lost(&self, overlay: &Overlay) {
        overlay.drift.note(&self.source.path);
        log::warn!("{:?} changed in the base before all of it was copied: the rest is lost", self.source.path);
    }

    fn lower(&self) -> Result<(&Layer, &OwnedFd)> {
        self.lower.as_ref().map(|(layer, fd)| (&**layer, fd)).ok_or(Errno::IO)
    }

    /// Reads up to the end of the buffer or of the file.
    pub(super) fn read(&self, overlay: &Overlay, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let size = Stat::of(self.fd.as_fd())?.size;
        let end = size.min(offset.saturating_add(buffer.len() as u64));
        let mut at = offset;
        while at < end {
            let (until, missing) = self.run(at, end)?;
            let piece = &mut buffer[(at - offset) as usize..(until - offset) as usize];
            let n = if missing {
                let (layer, lower) = self.lower()?;
                let n = calls::pread(lower, piece, at)?;
                if n == 0 || !self.stood(overlay, layer, lower)? {
                    self.lose(overlay);
                    continue;
                }
                n
            } else {
                calls::pread(&*self.fd, piece, at)?
            };
            if n == 0 {
                break;
            }
            at += n as u64;
        }
        Ok(at.saturating_sub(offset) as usize)
    }

    /// Writes; how much was written. Blocks that are written in part are brought up first.
    pub(super) fn write(&self, overlay: &Overlay, offset: u64, data: &[u8]) -> Result<usize> {
        let end = offset + data.len() as u64;
        let blocks = self.blocks_of(offset, end);
        let mut state = self.lock(&blocks);
        if self.is_settled() || data.is_empty() {
            return write_all(&self.fd, offset, data);
        }
        for block in [blocks.start, blocks.end.saturating_sub(1)] {
            let lower = self.bytes_of(block);
            let covered = offset <= lower.start && lower.end <= end;
            if !state.present.has(block) && !covered {
                self.fill(overlay, &mut state, block)?;
            }
        }
        let written = write_all(&self.fd, offset, data)? as u64;
        // Of a block at the end of a write that was cut short the rest is missing: it counts as not written.
        let mut done = offset + written;
        if done < end {
            done = done.min(self.bytes_of(done / self.source.block).start);
        }
        if done <= offset {
            return Err(Errno::NOSPC);
        }
        let blocks = self.blocks_of(offset, done);
        state.written.add(blocks.clone());
        // On record before anybody is told that it was written.
        self.map.note(&state.written, &blocks)?;
        state.take(blocks);
        let now = Stat::of(self.fd.as_fd())?;
        *self.times.lock() = Times { mtime: now.mtime, ctime: now.ctime };
        if state.missing == 0 && state.claimed.is_none() {
            overlay.bring_up(self.ident);
        }
        Ok((done - offset) as usize)
    }

    /// Brings a block up that is about to be written in part.
    fn fill(&self, overlay: &Overlay, state: &mut State, block: u64) -> Result<()> {
        if state.lost {
            return Err(Errno::IO);
        }
        let (layer, lower) = self.lower()?;
        let Range { start, end } = self.bytes_of(block);
        let until = copy::file_range(lower.as_fd(), self.fd.as_fd(), start, end)?;
        if until < end || !self.stood(overlay, layer, lower)? {
            state.lost = true;
            self.lost(overlay);
            return Err(Errno::IO);
        }
        state.take(block..block + 1);
        Ok(())
    }

    /// Makes what was written survive a power cut.
    pub(super) fn sync(&self, data_only: bool) -> Result<()> {
        let written = {
            let state = self.state.lock();
            (!self.is_settled()).then(|| state.written.clone())
        };
        if data_only {
            calls::fdatasync(&*self.fd)?
        } else {
            calls::fsync(&*self.fd)?
        }
        // The content first: a block that counts as written must hold what was written.
        written.map_or(Ok(()), |written| self.map.sync(&self.area, &written))
    }

    /// Empties the file: nothing of the lower is needed any more.
    pub(super) fn empty(&self) -> Result<()> {
        let all = 0..self.source.blocks();
        let mut state = self.lock(&all);
        calls::ftruncate(&*self.fd, 0)?;
        if self.is_settled() {
            return Ok(());
        }
        state.written.add(all.clone());
        self.map.note(&state.written, &all)?;
        state.take(all);
        let now = Stat::of(self.fd.as_fd())?;
        *self.times.lock() = Times { mtime: now.mtime, ctime: now.ctime };
        Ok(())
    }
}

impl State {
    /// These blocks are in the upper.
    pub(super) fn take(&mut self, blocks: Range<u64>) {
        self.missing -= self.present.add(blocks);
    }
}

/// Writes; how much was written, which is all unless something kept the rest from it.
pub(super) fn write_all(fd: &OwnedFd, offset: u64, data: &[u8]) -> Result<usize> {
    let mut done = 0;
    while done < data.len() {
        match calls::pwrite(fd, &data[done..], offset + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n,
            // What is written is written: the rest will fail on its own, as on any file system.
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}
