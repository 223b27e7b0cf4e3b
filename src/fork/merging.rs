//! A fork while it is merged: unmounted, so that it stands still, and marked, so that it is noticed when the merge is
//! killed.

use rustix::io::Errno;

use super::forks::{Forks, Locked};
use super::{Id, Record, State, Store, pending};
use crate::error::{Context, Kind, Result};
use crate::server::Client;
use crate::strategy::{self, Way};
use crate::sys::calls;

/// The names under which a merge keeps its journal in a base's directory: before the parent is new, and after.
pub const JOURNALS: [&str; 2] = ["journal.json", "landed.json"];

/// Whether the journal of a merge of this fork is open: then it may get back what was moved out of it, and must stand still.
pub fn is_under_way(store: &Store, id: &Id) -> Result<bool> {
    let bases = store.bases();
    for base in calls::names(&bases).context("cannot list", &bases)? {
        for name in JOURNALS {
            let path = bases.join(&base).join(name);
            match calls::File::read(&path) {
                // A look at the bytes is enough: too often is only later.
                Ok(text) if text.windows(id.as_str().len()).any(|part| part == id.as_str().as_bytes()) => {
                    return Ok(true);
                }
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(e) => return Err(e).context("cannot read", path),
            }
        }
    }
    Ok(false)
}

impl Forks {
    /// Takes a locked fork out of use for a merge.
    pub fn begin_merge(&self, locked: &mut Locked) -> Result<()> {
        if locked.record.state == State::Merging {
            // Killed just before its first step or after its last.
            locked.record.enter(State::Live, &locked.dir)?;
        }
        pending::Pending::new(self.store(), &locked.record.id)?.keep();
        locked.record.enter(State::Merging, &locked.dir)?;
        super::forks::fault_point("fork.merging")?;
        Client::new(self.store().root()).unmount(locked.record.id.as_str())?;
        let settled = match locked.record.strategy {
            // What was written just before the end may still be on its way into the upper.
            Way::Overlay => strategy::Overlay::settle(&locked.record.site(self.store().root(), &locked.dir)?),
            _ => Ok(()),
        };
        if settled.is_err() {
            self.end_merge(locked)?;
        }
        settled
    }

    /// Brings a locked fork back into use after a merge that it outlives.
    pub fn end_merge(&self, locked: &mut Locked) -> Result<()> {
        locked.record.enter(State::Live, &locked.dir)?;
        self.revive(&locked.record)?;
        pending::remove(self.store(), &locked.record.id);
        Ok(())
    }

    /// Makes sure that a fork which is to be mounted is.
    pub(super) fn revive(&self, record: &Record) -> Result<()> {
        let site = record.site(self.store().root(), &self.store().fork(&record.id))?;
        match strategy::strategy(record.strategy).revive(&site) {
            // Where its base is gone it shows nothing, before and after; what it holds is still there.
            Err(e) if e.kind() == Kind::NotFound && calls::exists(&record.base.path) == Ok(false) => Ok(()),
            other => other,
        }
    }
}
