//! Forks and merges joined: neither knows the other.
//!
//! A fork is merged while its lock is held and its state says so. It is unmounted for that long, so that it stands still:
//! no writer, no page that is written back later. Lock order: the fork's lock, then the parent's.

use super::hooks::{self, PreMerge};
use crate::durable::{Holder, Wait};
use crate::error::{Error, Kind, Result};
use crate::fork::preserved::{self, Siblings};
use crate::fork::{self, Base, Forks, Locked, Record, State, Store};
use crate::merge::{self, Ending, Options, Plan, Recovered, Source};
use crate::server::Client;
use crate::strategy::{Overlay, Way};

/// What came of the merge of a fork.
#[derive(Debug)]
pub struct Landing {
    /// The fork.
    pub record: Record,
    /// What was to be done, with the conflicts that kept it from happening.
    pub plan: Plan,
    /// The parent has everything of the plan now; false for conflicts.
    pub merged: bool,
    /// The fork is gone.
    pub removed: bool,
}

/// Merges a fork into its parent, whole or not at all. The fork is removed where everything of it has landed, unless it is
/// to be kept. The fork's `pre_merge` commands run first. `waiting` is told who holds the parent's lock.
///
/// # Errors
/// `Hook` where one of those commands fails, `InUse` where processes are in the fork, and whatever [`merge::merge`] fails with; the parent is as it was, and the
/// fork lives. Conflicts are no error.
pub fn merge_fork(
    forks: &Forks,
    record: &Record,
    options: &Options,
    pre_merge: PreMerge<'_>,
    wait: Wait,
    waiting: impl FnOnce(Option<&Holder>),
) -> Result<Landing> {
    let store = forks.store();
    let Some(mut locked) = forks.lock(&record.id, "merge")? else {
        return Err(Error::new(Kind::NotFound, format!("the fork {} is gone", record.name())));
    };
    if forks.is_changed(&locked.record)? != Some(false) {
        hooks::pre_merge(forks, &locked.record, pre_merge, &options.cancel)?;
    }
    let source = source(store, &locked.record)?;
    refuse_if_used(&locked)?;
    forks.settle_locked(&mut locked)?;
    forks.begin_merge(&mut locked)?;
    let parent = options.into.as_deref().map_or_else(|| Ok(record.base.clone()), Base::at)?;
    let siblings = Siblings::of(forks, parent, &record.id);
    let outcome = match merge::merge(&source, &store.bases(), options, &siblings, wait, waiting) {
        Ok(outcome) => outcome,
        Err(error) => {
            // Undone; unless that failed, too, which leaves it to the next command.
            if !fork::is_under_way(store, &record.id)? {
                forks.end_merge(&mut locked)?;
            }
            return Err(error);
        }
    };
    let record = locked.record.clone();
    let merged = outcome.plan.conflicts.is_empty();
    let removed = merged && outcome.complete && !options.keep;
    let unfinished = outcome.landed == Some(Ending::Unfinished);
    let landed = outcome.landed.is_some();
    if let Err(e) = if unfinished { Ok(()) } else { after(forks, locked, removed, outcome.base_ref) } {
        if !landed {
            return Err(e);
        }
        // The parent is new, whatever becomes of the fork.
        log::warn!("the merge has landed; the next command clears up after it: {e}");
    }
    Ok(Landing { record, plan: outcome.plan, merged, removed })
}

/// What becomes of a fork when its merge is over: it goes, or goes on.
fn after(forks: &Forks, mut locked: Locked, goes: bool, base_ref: Option<String>) -> Result<()> {
    if goes {
        return forks.finish_removal(locked);
    }
    if let Some(written) = Record::read(&locked.dir)? {
        // Where the merge landed, it has recorded from which layer on the fork reads.
        locked.record.born = written.born;
    }
    if let Some(commit) = base_ref {
        locked.record.base_ref = Some(commit);
    }
    forks.end_merge(&mut locked)
}

/// A fork as a merge reads it: what was written in it is in its upper.
pub fn source(store: &Store, record: &Record) -> Result<Source> {
    if record.strategy == Way::Worktree {
        let what = format!("the fork {} is a work tree of the base's own repository", record.name());
        let how = "commit in it, and bring the commit over with git; or fork with another strategy";
        return Err(Error::new(Kind::Unavailable, what).remedy(how));
    }
    let client = Client::new(store.root());
    // Where no server runs, nothing is held back in one.
    if client.mounts()?.is_some_and(|mounts| mounts.iter().any(|mount| mount.id == record.id.as_str())) {
        client.sync(record.id.as_str())?;
    } else if record.strategy == Way::Overlay {
        Overlay::settle(&record.site(store.root(), &store.fork(&record.id))?)?;
    }
    let dir = store.fork(&record.id);
    let (id, name) = (record.id.as_str(), record.name());
    let path = dir.join("mnt");
    let open = if record.strategy == Way::Overlay { Source::open } else { Source::open_copy };
    let mut source = open(&dir, id, name, path, record.base.path.clone(), record.created_at)?;
    source.base_ref.clone_from(&record.base_ref);
    source.hide.clone_from(&record.hide);
    source.layers = record.site(store.root(), &dir)?.layers;
    Ok(source)
}

/// Undoes or finishes merges that were broken off, and lets their forks go on or go; what was found. Cheap where there
/// are none.
pub fn recover(store: &Store) -> Result<Vec<Recovered>> {
    let found = merge::recover(&store.bases(), &|layer| preserved::withdraw(store, layer))?;
    for recovered in &found {
        let forks = Forks::unrecovered(store.clone());
        let Some(id) = recovered.fork.parse().ok() else { continue };
        let Some(mut locked) = forks.lock(&id, "recovery of a merge")? else { continue };
        if locked.record.state != State::Merging {
            continue;
        }
        if recovered.landed && !recovered.keep {
            forks.finish_removal(locked)?;
        } else {
            let base = locked.record.base.key();
            if recovered.landed && Base::at(&recovered.parent).is_ok_and(|parent| parent.key() == base) {
                goes_on(store, &mut locked)?;
            }
            forks.end_merge(&mut locked)?;
        }
    }
    Ok(found)
}

/// The forks of the store at this path, once broken-off merges are dealt with.
pub(super) fn open(store: &std::path::Path) -> Result<Forks> {
    let store = Store::open(store)?;
    for recovered in recover(&store)? {
        let how = if recovered.landed { "finished" } else { "undone" };
        log::warn!("a merge of {} into {:?} had been broken off; it was {how}", recovered.fork, recovered.parent);
    }
    Forks::open(store)
}

/// A fork that was merged and lives goes on from the merged state, and reads through what later merges preserve.
fn goes_on(store: &Store, locked: &mut Locked) -> Result<()> {
    locked.record.born = preserved::youngest(&store.base(&locked.record.base.key()))?;
    Ok(())
}

/// A fork that somebody works in does not stand still.
fn refuse_if_used(locked: &Locked) -> Result<()> {
    let users = fork::users_quickly(&locked.dir)?;
    if users.is_empty() {
        return Ok(());
    }
    let names: Vec<String> =
        users.iter().map(|user| format!("{} (pid {}, {})", user.command, user.pid, user.by)).collect();
    let what = format!("the fork {} is in use by {}", locked.record.name(), names.join(", "));
    Err(Error::new(Kind::InUse, what).remedy("end those processes or leave the fork, then merge again"))
}
