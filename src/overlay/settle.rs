//! Large files that are not all there yet: bringing up the rest, until each is an ordinary file of the upper.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;

use super::partial::{Next, Partial};
use super::{Overlay, Result, Upper};
use crate::durable::fault;
use crate::names::RelPath;
use crate::sys::{Ident, Stat};

impl Overlay {
    /// Brings up one more piece of a file, or makes it an ordinary one where nothing is missing; whether there is more
    /// to do. Must be called without `names`.
    ///
    /// `EIO` where the lower has changed, `ECANCELED` where the overlay ends.
    pub(super) fn bring_up_some(&self, partial: &Partial) -> Result<bool> {
        match partial.claim()? {
            Next::Settled => Ok(false),
            Next::Copy(blocks) => {
                let copied = partial.copy(self, &blocks);
                let mut state = partial.state.lock();
                state.claimed = None;
                partial.changed.notify_all();
                if copied? {
                    state.take(blocks);
                    return Ok(true);
                }
                let first = !std::mem::replace(&mut state.lost, true);
                drop(state);
                if first {
                    partial.lost(self);
                }
                Err(Errno::IO)
            }
            Next::Finish => {
                let finished = self.finish(self.writable()?, partial);
                partial.state.lock().finishing = false;
                partial.changed.notify_all();
                finished.map(|()| false)
            }
        }
    }

    /// Makes a file an ordinary one of the upper.
    ///
    /// First what was brought up is on the disk: a part that the fork has synced counts as such only together with the
    /// map. Then the mark goes, then the map.
    fn finish(&self, upper: &Upper, partial: &Partial) -> Result<()> {
        partial.sync_complete()?;
        fault_point("blocks synced")?;
        {
            // Nobody is between looking at the file and asking here what it shows.
            let _names = self.names.write();
            partial.become_ordinary()?;
            upper.partials.remove(partial.ident);
        }
        fault_point("blocks unmarked")?;
        partial.remove_map()?;
        if let Some(sink) = self.drift.sink() {
            // Its change time is that of this moment now.
            sink.node(partial.node, false);
        }
        Ok(())
    }

    /// Makes a file an ordinary one of the upper, helping with what is to be copied. Must be called without `names`.
    pub(super) fn settle(&self, partial: &Partial) -> Result<()> {
        while self.bring_up_some(partial)? {}
        Ok(())
    }

    /// Lower paths of the files that cannot be completed any more, since the lower has changed.
    pub fn lost(&self) -> Vec<RelPath> {
        let partials = self.upper.iter().flat_map(|upper| upper.partials.all());
        let lost = partials.filter(|partial| {
            let state = partial.state.lock();
            state.lost && state.missing > 0
        });
        lost.map(|partial| partial.source.path.clone()).collect()
    }

    /// Makes all files ordinary ones; the first error, once everything was tried.
    pub fn settle_all(&self) -> Result<()> {
        let Some(upper) = &self.upper else { return Ok(()) };
        let settle = |partial: Arc<Partial>| match self.settle(&partial) {
            // Nobody can see it any more.
            Err(Errno::CANCELED) => Ok(()),
            other => other,
        };
        upper.partials.all().into_iter().map(settle).fold(Ok(()), Result::and)
    }
}

/// All partial files of a fork.
#[derive(Debug, Default)]
pub(super) struct Partials {
    /// By their identity in the upper.
    table: Mutex<HashMap<Ident, Arc<Partial>>>,
    /// How many there are, so that who has none pays nothing.
    count: AtomicUsize,
}

impl Partials {
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    pub(super) fn insert(&self, partial: Arc<Partial>) {
        let mut table = self.table.lock();
        table.insert(partial.ident, partial);
        self.count.store(table.len(), Ordering::Release);
    }

    pub(super) fn remove(&self, ident: Ident) -> Option<Arc<Partial>> {
        let mut table = self.table.lock();
        let partial = table.remove(&ident);
        self.count.store(table.len(), Ordering::Release);
        partial
    }

    pub(super) fn get(&self, ident: Ident) -> Option<Arc<Partial>> {
        if self.is_empty() { None } else { self.table.lock().get(&ident).cloned() }
    }

    /// The one behind a descriptor of the upper.
    pub(super) fn behind(&self, fd: &OwnedFd) -> Result<Option<Arc<Partial>>> {
        if self.is_empty() { Ok(None) } else { Ok(self.get(Stat::of(fd.as_fd())?.ident())) }
    }

    pub(super) fn all(&self) -> Vec<Arc<Partial>> {
        self.table.lock().values().cloned().collect()
    }
}

fn fault_point(name: &'static str) -> Result<()> {
    fault::point(name).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
}
