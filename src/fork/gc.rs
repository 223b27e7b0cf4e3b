//! Reaping forks that nobody will come back to. Every decision has a reason, and whoever is unsure keeps.

use std::path::Path;
use std::time::Duration;

use rustix::fs::CWD;
use serde::Serialize;

use super::forks::Forks;
use super::pending::Pending;
use super::record::since;
use super::{Id, Record, State, find, labels, recover, trash, users};
use crate::durable::{FileLock, Wait};
use crate::error::{Context, Error, Kind, Result};
use crate::fuse;
use crate::git::worktree;
use crate::server::{Client, MOUNT_KIND};
use crate::strategy::strategy;
use crate::sys::{At, calls, mounts};

/// A directory without a record this young may be somebody's work in progress on a machine whose locks do not hold.
const GRACE: Duration = Duration::from_secs(60);

/// What gc may do.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Forks younger than this are kept.
    pub min_age: Duration,
    /// Move forks with changes that were never merged to the trash, too; they can be restored from there.
    pub unmerged: bool,
    /// What has waited in the trash for longer than this is deleted.
    pub trash_age: Duration,
    /// Only say what would be done.
    pub dry_run: bool,
}

/// What becomes of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Fate {
    /// It stays as it is.
    Kept,
    /// It stays in the trash for a while, to be restored.
    Waiting,
    /// A fork without changes is removed.
    Removed,
    /// A fork with changes is moved to the trash.
    Trashed,
    /// What was in the trash, or what a dead process left, is deleted.
    Deleted,
    /// It was tried and did not work; the reason says why.
    Failed,
}

impl Fate {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Fate::Kept => "kept",
            Fate::Waiting => "waiting",
            Fate::Removed => "removed",
            Fate::Trashed => "trashed",
            Fate::Deleted => "deleted",
            Fate::Failed => "failed",
        }
    }
}

/// One decision.
#[derive(Clone, Debug, Serialize)]
pub struct Decision {
    /// The fork, or what else it is about.
    pub id: String,
    /// The fork's label.
    pub label: Option<String>,
    /// What becomes of it.
    pub fate: Fate,
    /// Why.
    pub reason: String,
}

impl Decision {
    fn about(record: &Record, fate: Fate, reason: impl Into<String>) -> Self {
        let label = record.label.as_ref().map(ToString::to_string);
        Self { id: record.id.to_string(), label, fate, reason: reason.into() }
    }

    fn other(id: impl Into<String>, fate: Fate, reason: impl Into<String>) -> Self {
        Self { id: id.into(), label: None, fate, reason: reason.into() }
    }
}

impl Forks {
    /// Decides about every fork and everything left over, and does it unless the policy is a dry run.
    pub fn gc(&self, policy: &Policy) -> Result<Vec<Decision>> {
        let mut decisions = Vec::new();
        if !policy.dry_run {
            self.settle_all()?;
        }
        for (id, record) in find::all(self.store())? {
            decisions.push(match record {
                Err(e) => Decision::other(id.as_str(), Fate::Kept, format!("its record cannot be read: {e}")),
                Ok(record) => self.gc_fork(&record, policy),
            });
        }
        for id in self.store().ids()?.into_iter().filter(|id| recover::is_abandoned(self.store(), id)) {
            decisions.extend(self.gc_abandoned(&id, policy));
        }
        self.gc_trash(policy, &mut decisions)?;
        self.gc_mounts(policy, &mut decisions)?;
        self.gc_work_trees(policy, &mut decisions);
        decisions.extend(self.gc_socket(policy));
        if !policy.dry_run
            && let Err(e) = self.gc_labels()
        {
            decisions.push(Decision::other("labels", Fate::Failed, e.to_string()));
        }
        Ok(decisions)
    }

    fn gc_fork(&self, record: &Record, policy: &Policy) -> Decision {
        let decision = self.judge(record, policy);
        if policy.dry_run || decision.fate == Fate::Kept {
            return decision;
        }
        match self.execute(record, decision.fate, policy) {
            Ok(None) => decision,
            Ok(Some(changed)) => changed,
            Err(e) => Decision::about(record, Fate::Failed, e.to_string()),
        }
    }

    /// Does what was decided, after deciding again under the fork's lock: it may have been taken up meanwhile. The
    /// decision that holds then, where it is another one.
    fn execute(&self, record: &Record, fate: Fate, policy: &Policy) -> Result<Option<Decision>> {
        let locked = match self.lock_with(&record.id, "gc", Wait::No) {
            Err(e) if e.kind() == Kind::Locked => {
                return Ok(Some(Decision::about(record, Fate::Kept, "a command is at it")));
            }
            other => other?,
        };
        let Some(locked) = locked else { return Ok(None) };
        let again = self.judge(&locked.record, policy);
        if again.fate != fate {
            return Ok(Some(again));
        }
        match fate {
            Fate::Trashed => self.finish_trashing(locked)?,
            Fate::Removed => self.finish_removal(locked)?,
            Fate::Kept | Fate::Waiting | Fate::Deleted | Fate::Failed => {}
        }
        Ok(None)
    }

    /// What is to become of a fork. Each question that cannot be answered keeps it.
    fn judge(&self, record: &Record, policy: &Policy) -> Decision {
        let kept = |why: String| Decision::about(record, Fate::Kept, why);
        if record.keep {
            return kept("it was made to be kept".into());
        }
        if record.state != State::Live {
            return kept(format!("it is {}", record.state.as_str()));
        }
        match record.owner.is_alive() {
            Ok(false) => {}
            Ok(true) => return kept(format!("its owner, process {}, is alive", record.owner.pid)),
            Err(e) => return kept(format!("whether its owner is alive cannot be told: {e}")),
        }
        let age = record.age();
        if age < policy.min_age {
            let (age, limit) = (rounded(age), rounded(policy.min_age));
            return kept(format!("it is {age} old, less than {limit}"));
        }
        let dir = self.store().fork(&record.id);
        match users::users(&dir) {
            Ok(users) if users.is_empty() => {}
            Ok(users) => return kept(format!("it is in use by {} (pid {})", users[0].command, users[0].pid)),
            Err(e) => return kept(format!("whether it is in use cannot be told: {e}")),
        }
        let site = record.site(self.store().root(), &dir);
        let changed = site.and_then(|site| strategy(record.strategy).is_changed(&site));
        let why = match changed {
            Ok(Some(false)) => {
                return Decision::about(record, Fate::Removed, "its owner is gone and it has no changes");
            }
            Ok(Some(true)) => "it has changes that were never merged".to_owned(),
            Ok(None) => format!("whether a {} has changes is not known", record.strategy),
            Err(e) => return kept(format!("whether it has changes cannot be told: {e}")),
        };
        let fate = if policy.unmerged { Fate::Trashed } else { Fate::Kept };
        Decision::about(record, fate, why)
    }

    /// A directory without a record.
    fn gc_abandoned(&self, id: &Id, policy: &Policy) -> Option<Decision> {
        let dir = self.store().fork(id);
        let modified = At::new(&CWD, &dir).stat().ok()?.mtime;
        if since(modified) < GRACE {
            return Some(Decision::other(id.as_str(), Fate::Kept, "it is just being made"));
        }
        if !policy.dry_run
            && let Err(e) = self.settle(id)
        {
            return Some(Decision::other(id.as_str(), Fate::Failed, e.to_string()));
        }
        Some(Decision::other(id.as_str(), Fate::Deleted, "it was never completed"))
    }

    fn gc_trash(&self, policy: &Policy, decisions: &mut Vec<Decision>) -> Result<()> {
        for (id, record) in trash::kept(self.store())? {
            let record = match record {
                Ok(record) => record,
                Err(e) => {
                    let reason = format!("in the trash; its record cannot be read: {e}");
                    decisions.push(Decision::other(id.as_str(), Fate::Kept, reason));
                    continue;
                }
            };
            let waited = record.time_in_state();
            if waited < policy.trash_age {
                let reason = format!("in the trash for {}, less than {}", rounded(waited), rounded(policy.trash_age));
                decisions.push(Decision::about(&record, Fate::Waiting, reason));
                continue;
            }
            if !policy.dry_run {
                trash::give_up(self.store(), &id)?;
            }
            let reason = format!("in the trash for {}", rounded(waited));
            decisions.push(Decision::about(&record, Fate::Deleted, reason));
        }
        if !policy.dry_run {
            trash::empty(self.store())?;
        }
        Ok(())
    }

    /// Entries of labels whose forks are gone.
    fn gc_labels(&self) -> Result<()> {
        let _store = FileLock::acquire(&self.store().lock_path(), "gc", Wait::For(super::forks::PATIENCE))?;
        labels::rebuild(self.store())
    }

    /// The socket of a server that was killed.
    fn gc_socket(&self, policy: &Policy) -> Option<Decision> {
        let found = Client::new(self.store().root()).remove_dead_socket(policy.dry_run);
        match found {
            Ok(false) => None,
            Ok(true) => Some(Decision::other("server.sock", Fate::Deleted, "the server that it belonged to is gone")),
            Err(e) => Some(Decision::other("server.sock", Fate::Failed, e.to_string())),
        }
    }

    /// Whether there is certainly no such fork.
    fn is_gone(&self, id: &Id) -> bool {
        self.store().exists(id).is_ok_and(|there| !there)
    }

    /// Mounts in the store that belong to no fork.
    fn gc_mounts(&self, policy: &Policy, decisions: &mut Vec<Decision>) -> Result<()> {
        let forks = self.store().forks();
        for mount in mounts().context("cannot read", "/proc/self/mountinfo")? {
            let Ok(below) = mount.point.strip_prefix(&forks) else { continue };
            let id = below.iter().next().and_then(|name| name.to_str()).and_then(|name| name.parse::<Id>().ok());
            if mount.kind != MOUNT_KIND || id.is_none_or(|id| !self.is_gone(&id)) {
                continue;
            }
            if !policy.dry_run {
                fuse::end_mount(&mount)?;
            }
            let place = below.display().to_string();
            decisions.push(Decision::other(place, Fate::Deleted, "a mount without a fork"));
        }
        Ok(())
    }

    /// Entries in repositories for work trees of this store whose forks are gone.
    fn gc_work_trees(&self, policy: &Policy, decisions: &mut Vec<Decision>) {
        let Ok(forks) = std::fs::canonicalize(self.store().forks()) else { return };
        let is_orphan = |tree: &Path| {
            let id = tree.strip_prefix(&forks).ok().and_then(|below| below.iter().next());
            let id = id.and_then(|name| name.to_str()).and_then(|name| name.parse::<Id>().ok());
            id.is_some_and(|id| self.is_gone(&id))
        };
        let locks = self.store().root().join("locks");
        for repository in worktree::repositories(&locks) {
            if calls::exists(&repository) == Ok(false) {
                continue;
            }
            let place = repository.display().to_string();
            match worktree::orphans(&repository, &locks, &is_orphan, policy.dry_run) {
                Ok(trees) => decisions.extend(trees.iter().map(|tree| {
                    let reason = format!("its entry for {}, a fork that is gone", tree.display());
                    Decision::other(&place, Fate::Deleted, reason)
                })),
                Err(e) => decisions.push(Decision::other(&place, Fate::Failed, e.to_string())),
            }
        }
    }

    /// Brings a fork back from the trash.
    ///
    /// # Errors
    /// `NotFound` where none there is called so, `Exists` where its label was given away meanwhile.
    pub fn restore(&self, name: &str) -> Result<Record> {
        let _store = FileLock::acquire(&self.store().lock_path(), "restore", Wait::For(super::forks::PATIENCE))?;
        let waiting = trash::kept(self.store())?.into_iter().filter_map(|(_, record)| record.ok()).collect();
        let record = find::pick(waiting, name).map_err(|e| {
            Error::new(e.kind(), format!("in the trash: {e}")).remedy("`treefork gc --dry-run` shows what is there")
        })?;
        if let Some(label) = &record.label {
            self.check_label(label)?;
            labels::claim(self.store(), label, &record.id)?;
        }
        let pending = Pending::new(self.store(), &record.id)?;
        match trash::restore(self.store(), record.clone()).and_then(|()| self.settle(&record.id)) {
            Ok(()) => drop(pending),
            Err(e) => {
                pending.keep();
                return Err(e);
            }
        }
        self.ready(record.id.as_str()).map(|(record, _)| record)
    }
}

/// A duration in its two largest units, as one would write it for an option: `1d 3h`, `24h` being `1d`.
fn rounded(time: Duration) -> String {
    let seconds = time.as_secs();
    let parts = [("d", seconds / 86_400), ("h", seconds / 3600 % 24), ("m", seconds / 60 % 60), ("s", seconds % 60)];
    let first = parts.iter().position(|(_, n)| *n > 0).unwrap_or(parts.len() - 1);
    let shown = parts.iter().skip(first).take(2).enumerate().filter(|(at, (_, n))| *at == 0 || *n > 0);
    shown.map(|(_, (unit, n))| format!("{n}{unit}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_one_would_write_them() {
        for (seconds, text) in
            [(0, "0s"), (59, "59s"), (60, "1m"), (3_599, "59m 59s"), (86_400, "1d"), (97_201, "1d 3h"), (604_800, "7d")]
        {
            assert_eq!(rounded(Duration::from_secs(seconds)), text);
        }
    }
}
