//! Which forks are between two states, so that a killed command is noticed without reading every record.
//!
//! `pending/<id>` is made before a transition is recorded and removed when it is over; whoever is at it holds the fork's
//! lock. An entry whose lock is free therefore names a fork whose command was killed. The entries are not synced: after
//! a power cut some may be missing, and `gc` and the start of the server, which read all records, find those forks.

use rustix::io::Errno;

use super::{Id, Store};
use crate::error::{Context, Result};
use crate::sys::calls;

/// An entry; dropping it takes it away, unless the process is killed before.
#[derive(Debug)]
pub(super) struct Pending<'a> {
    store: &'a Store,
    id: Id,
    /// Left behind for recovery, since the transition did not come to its end.
    kept: bool,
}

impl<'a> Pending<'a> {
    /// Announces a transition.
    pub(super) fn new(store: &'a Store, id: &Id) -> Result<Self> {
        let path = store.pending().join(id.as_str());
        calls::File::create(&path).context("cannot write in the store:", path)?;
        Ok(Self { store, id: id.clone(), kept: false })
    }

    /// Leaves the entry to recovery.
    pub(super) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if !self.kept {
            remove(self.store, &self.id);
        }
    }
}

/// Takes an entry away.
pub(super) fn remove(store: &Store, id: &Id) {
    match calls::unlink(&store.pending().join(id.as_str())) {
        // Recovery looks at it once more and finds nothing to do.
        Err(e) if e != Errno::NOENT => log::warn!("cannot remove the mark of {id}: {e}"),
        _ => {}
    }
}

/// The ids of all entries.
pub(super) fn all(store: &Store) -> Result<Vec<Id>> {
    let dir = store.pending();
    let names = calls::names(&dir).context("cannot list", &dir)?;
    Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
}
