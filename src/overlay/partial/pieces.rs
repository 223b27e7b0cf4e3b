//! Bringing up the rest of a large file: a piece at a time, by whoever claims it first, until it is an ordinary file.

use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use rustix::fs::{Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

use super::Partial;
use crate::copy;
use crate::layer::blocks;
use crate::overlay::{Overlay, Result};
use crate::sys::calls;

/// How much is brought up between two looks at the lower's attributes, in bytes.
const PIECE: u64 = 1 << 20;

/// What is to be done next for a partial file.
pub(in crate::overlay) enum Next {
    Copy(Range<u64>),
    Finish,
    Settled,
}

impl Partial {
    /// Blocks that are holes in the lower need not be brought up.
    pub(in crate::overlay) fn leave_holes(&self, data: &[Range<u64>]) {
        let mut state = self.state.lock();
        let block = self.source.block;
        let mut at = 0;
        for range in data {
            state.take(at..range.start / block);
            at = range.end.div_ceil(block);
        }
        state.take(at..self.source.blocks());
    }

    /// Ends the bringing up of blocks, and waits for the piece that is under way.
    pub(in crate::overlay) fn stop(&self) {
        let mut state = self.state.lock();
        state.dropped = true;
        while state.claimed.is_some() {
            self.changed.wait(&mut state);
        }
    }

    /// Ends the bringing up of blocks without waiting.
    pub(in crate::overlay) fn drop_now(&self) {
        self.state.lock().dropped = true;
        self.changed.notify_all();
    }

    /// Everything is in the upper: brings it to the disk.
    pub(in crate::overlay) fn sync_complete(&self) -> Result<()> {
        self.map.note_complete()?;
        calls::fdatasync(&*self.fd)
    }

    /// Takes the mark off, and leaves the times as the fork's own writes did.
    pub(in crate::overlay) fn become_ordinary(&self) -> Result<()> {
        let state = self.state.lock();
        if state.dropped {
            return Err(Errno::CANCELED);
        }
        let mtime = self.times.lock().mtime;
        let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: omit, last_modification: mtime.into() };
        calls::futimens(&*self.fd, &times)?;
        blocks::unmark(&self.fd)?;
        self.settled.store(true, Ordering::Release);
        Ok(())
    }

    /// Removes the map: nothing is missing any more, or nobody can see the file.
    pub(in crate::overlay) fn remove_map(&self) -> Result<()> {
        blocks::remove(&self.area, self.ident)
    }

    /// Claims what is to be brought up next; `None` where nothing is, and the caller is to finish.
    pub(in crate::overlay) fn claim(&self) -> Result<Next> {
        let mut state = self.state.lock();
        loop {
            if self.is_settled() {
                return Ok(Next::Settled);
            }
            if state.dropped {
                return Err(Errno::CANCELED);
            }
            if state.claimed.is_none() && !state.finishing {
                break;
            }
            self.changed.wait(&mut state);
        }
        let most = (PIECE / self.source.block).max(1);
        match state.present.missing(state.from, most) {
            Some(_) if state.lost => Err(Errno::IO),
            Some(blocks) => {
                state.from = blocks.start;
                state.claimed = Some(blocks.clone());
                Ok(Next::Copy(blocks))
            }
            None => {
                state.finishing = true;
                Ok(Next::Finish)
            }
        }
    }

    /// Brings up what was claimed.
    pub(in crate::overlay) fn copy(&self, overlay: &Overlay, blocks: &Range<u64>) -> Result<bool> {
        let (layer, lower) = self.lower()?;
        let (start, end) = (self.bytes_of(blocks.start).start, self.bytes_of(blocks.end - 1).end);
        let until = copy::file_range(lower.as_fd(), self.fd.as_fd(), start, end)?;
        Ok(until == end && self.stood(overlay, layer, lower)?)
    }
}
