//! Finishing or undoing what a killed command left, and mounting again what a dead server served.
//!
//! Runs at the start of every command that changes something. Each state a fork can be found in is dealt with as the
//! table of [`State`] says, under the fork's lock; a fork whose lock is held is somebody's work in progress.

use rustix::fs::CWD;

use super::forks::{Forks, Locked};
use super::{Id, Record, State, Store, find, labels, merging, pending, record, trash};
use crate::durable::{FileLock, Wait};
use crate::error::{Kind, Result};
use crate::server::{Client, MountSpec};
use crate::strategy::{Overlay, Way, strategy};
use crate::sys::At;

impl Forks {
    /// Finishes or undoes the transitions that killed commands left, and makes sure that the forks that were mounted
    /// are.
    pub(super) fn recover(&self) -> Result<()> {
        for id in pending::all(self.store())? {
            if let Err(e) = self.settle(&id) {
                log::warn!("the fork {id} cannot be brought in order: {e}");
            }
        }
        self.revive_server()
    }

    /// Starts the server where none runs and there are forks for it to serve. It mounts them by itself.
    fn revive_server(&self) -> Result<()> {
        let client = Client::new(self.store().root());
        // One that does not answer, or is about to end, is found out by whoever asks it for something.
        if client.is_served()? {
            return Ok(());
        }
        // The machine may have lost its power, and with it marks of what is pending, and entries of labels.
        labels::doubt(self.store())?;
        self.settle_all()?;
        if mounted(self.store()).is_empty() {
            return Ok(());
        }
        client.ensure().map(drop)
    }

    /// Brings every fork that is between two states into one of its own, by all records.
    pub(super) fn settle_all(&self) -> Result<()> {
        for (id, record) in find::all(self.store())? {
            if record.is_ok_and(|record| record.state != State::Live)
                && let Err(e) = self.settle(&id)
            {
                log::warn!("the fork {id} cannot be brought in order: {e}");
            }
        }
        Ok(())
    }

    /// Brings a fork that may be between two states into one of its own.
    pub(super) fn settle(&self, id: &Id) -> Result<()> {
        let locked = match self.lock_with(id, "recovery", Wait::No) {
            // Somebody is at it.
            Err(e) if e.kind() == Kind::Locked => return Ok(()),
            Err(_) if record::is_lost(&self.store().fork(id)) => None,
            other => other?,
        };
        let Some(mut locked) = locked else { return self.settle_recordless(id) };
        match locked.record.state {
            State::Live => self.revive(&locked.record)?,
            // The journal of the merge was dealt with before, by whoever knows merges; what is left is to mount it. Where it
            // could not be dealt with, the fork waits for that.
            State::Merging if merging::is_under_way(self.store(), id)? => return Ok(()),
            State::Merging => return self.end_merge(&mut locked),
            State::Creating => {
                self.destroy_any(&locked.record, &locked.dir)?;
                return self.finish_removal(locked);
            }
            State::Removing => return self.finish_removal(locked),
            State::Trashed => return self.finish_trashing(locked),
            State::Restoring => {
                locked.record.enter(State::Live, &locked.dir)?;
                self.revive(&locked.record)?;
            }
        }
        pending::remove(self.store(), id);
        Ok(())
    }

    /// A directory without a record: its maker was killed before it wrote one, or a power cut came before that was on the
    /// disk. Under the store's lock, since makers hold that from before the directory is there until the record is.
    fn settle_recordless(&self, id: &Id) -> Result<()> {
        let _store = FileLock::acquire(&self.store().lock_path(), "recovery", Wait::For(super::forks::PATIENCE))?;
        if is_abandoned(self.store(), id) {
            trash::discard(self.store(), id, true)?;
        }
        pending::remove(self.store(), id);
        Ok(())
    }

    /// Moves a locked fork into the trash, whole, whatever step an earlier try got to.
    pub(super) fn finish_trashing(&self, mut locked: Locked) -> Result<()> {
        let id = locked.record.id.clone();
        let pending = pending::Pending::new(self.store(), &id)?;
        let done = (|| {
            // What waits there is worth keeping, whatever it was made for.
            locked.record.temporary = false;
            locked.record.enter(State::Trashed, &locked.dir)?;
            let site = locked.record.site(self.store().root(), &locked.dir)?;
            strategy(locked.record.strategy).put_away(&site)?;
            trash::keep(self.store(), &id)
        })();
        match done {
            Ok(()) => drop(pending),
            Err(_) => pending.keep(),
        }
        done
    }
}

/// What a server of this store has to mount: the overlays of all forks that are complete. Not one that is being merged:
/// it has to stand still, and is mounted again when that is over.
pub fn mounted(store: &Store) -> Vec<MountSpec> {
    let forks = find::all(store).unwrap_or_else(|e| {
        log::error!("cannot list the forks: {e}");
        vec![]
    });
    let is_mounted =
        |record: &Record| record.strategy == Way::Overlay && !record.private_mount && record.state == State::Live;
    let records = forks.into_iter().filter_map(|(_, record)| record.ok()).filter(is_mounted);
    let spec = |record: Record| match record.site(store.root(), &store.fork(&record.id)) {
        Ok(site) => Some(Overlay::spec(&site)),
        Err(e) => {
            log::error!("the fork {} cannot be mounted: {e}", record.id);
            None
        }
    };
    records.filter_map(spec).collect()
}

/// Whether a directory is a fork's that was never completed: no record, and nobody at it.
pub(super) fn is_abandoned(store: &Store, id: &Id) -> bool {
    let dir = store.fork(id);
    At::new(&CWD, &dir).stat().is_ok_and(|stat| stat.is_dir())
        && match Record::read(&dir) {
            Ok(record) => record.is_none(),
            Err(_) => record::is_lost(&dir),
        }
}
