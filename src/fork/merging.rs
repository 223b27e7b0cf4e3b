//! A fork while it is merged: unmounted, so that it stands still, and marked, so that it is noticed when the merge is
//! killed.

use super::forks::{Forks, Locked};
use super::{Record, State, pending};
use crate::error::{Kind, Result};
use crate::server::Client;
use crate::strategy::{self, Way};

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
            Way::Overlay => strategy::Overlay::settle(&locked.record.site(self.store().root(), &locked.dir)),
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
        match self.revive(&locked.record) {
            // Where its base is gone it shows nothing, before the merge and after it; what it holds is still there.
            Err(e) if e.kind() == Kind::NotFound && !locked.record.base.path.exists() => {}
            other => other?,
        }
        pending::remove(self.store(), &locked.record.id);
        Ok(())
    }

    pub(super) fn revive(&self, record: &Record) -> Result<()> {
        strategy::strategy(record.strategy).revive(&record.site(self.store().root(), &self.store().fork(&record.id)))
    }
}
