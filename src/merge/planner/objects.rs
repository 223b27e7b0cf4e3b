//! What the fork put somewhere that is no directory: edited, replaced, added, touched.

use super::super::changes::{Change, Put, is_dir};
use super::super::combine::{Combined, Combiner};
use super::super::compare::same_object;
use super::super::parent::Found;
use super::super::plan::{Action, Make, Step};
use super::super::table::{Ours, Reason, Verdict, verdict};
use super::super::{Os, upper_object};
use super::{Planner, failed};
use crate::error::Result;
use crate::names::RelPath;
use crate::sys::Stat;

impl Planner<'_> {
    pub(super) fn put(&mut self, change: &Change, put: &Put, found: Found) -> Result<()> {
        let path = &change.path;
        let present = match found {
            Found::Blocked(reason) => {
                self.conflict(path, reason);
                return Ok(());
            }
            found => found.stat(),
        };
        if let (Some(lower), Some(there)) = (&change.lower, &present)
            && !there.is_dir()
            && !self.has_new_names(put)
            && self.same(put, path, lower, there).map_err(failed(path))?
        {
            match &change.was {
                Some(was) if was.mtime == there.mtime && was.mtime != put.stat.mtime => self.touch(change, put, *there),
                _ => self.trim_put(path, put),
            }
            return Ok(());
        }
        let ours = match &change.was {
            None => Ours::Add,
            Some(was) if is_dir(was.mode) != put.stat.is_dir() || kind(was.mode) != kind(put.stat.mode) => {
                Ours::Replace
            }
            Some(_) => Ours::Edit,
        };
        let renamed_from =
            put.origin.and_then(|origin| self.gone.get(&origin)).filter(|_| change.was.is_none()).cloned();
        if let Some((from, lower)) = &renamed_from {
            // Renamed here and gone there: the parent must not get back in one place what it deleted in another.
            if present.is_none() && matches!(self.parent.look(lower).map_err(failed(from))?, Found::Absent) {
                if self.resolved(path, Reason::DeletedInParent) {
                    self.put_step(change, put, None, None);
                }
                return Ok(());
            }
        }
        match verdict(ours, self.judge_change(change, present.as_ref())?) {
            Verdict::Nothing => Ok(()),
            Verdict::Take => self.take_put(change, put, present, renamed_from.map(|(from, _)| from)),
            Verdict::Combine => self.combine(change, put, present),
            Verdict::Conflict(reason) => {
                if self.resolved(path, reason) {
                    self.take_put(change, put, present, None)?;
                }
                Ok(())
            }
        }
    }

    /// What the parent has by now needs no place in the upper of a fork that lives on, but for what it would not be shown
    /// there.
    fn trim_put(&mut self, path: &RelPath, put: &Put) {
        let settle = &mut self.plan.settle;
        let list = if self.changes.past.may_hide(path, &put.stat) { &mut settle.stay } else { &mut settle.trim };
        list.push(path.clone());
    }

    fn take_put(
        &mut self,
        change: &Change,
        put: &Put,
        present: Option<Stat>,
        renamed_from: Option<RelPath>,
    ) -> Result<()> {
        match (present, &change.lower) {
            (Some(there), Some(lower)) if there.is_dir() => {
                let was = change.was.as_ref().filter(|was| is_dir(was.mode));
                if self.delete(&change.path, lower, &there, was, false)? {
                    self.plan.steps.push(Step::Detach { path: lower.clone(), seen: there });
                    self.put_step(change, put, None, renamed_from);
                } else if !self.plan.conflicts.iter().any(|c| c.path.as_path().starts_with(change.path.as_path())) {
                    self.conflict(&change.path, Reason::TypeChanged);
                }
            }
            (over, _) => self.put_step(change, put, over, renamed_from),
        }
        Ok(())
    }

    fn put_step(&mut self, change: &Change, put: &Put, over: Option<Stat>, renamed_from: Option<RelPath>) {
        let make = match &put.index {
            Some(name) => Make::Index { name: name.clone(), mode: None },
            None => Make::Upper { path: change.path.clone(), stat: put.stat, mode: None },
        };
        let action = match (&over, &renamed_from) {
            (None, Some(_)) => Action::Rename,
            (None, None) if change.was.is_some() && change.lower.is_some() => Action::Retype,
            (None, None) => Action::Add,
            (Some(over), _) if kind(over.mode) != kind(put.stat.mode) => Action::Retype,
            (Some(_), _) => Action::Edit,
        };
        self.entry(change.path.clone(), action, &put.stat, over.map(|s| s.mode), Some(put.stat.mode));
        if let Some(entry) = self.plan.entries.last_mut() {
            entry.from = renamed_from;
            entry.present.clone_from(&change.lower);
        }
        self.trim_put(&change.path, put);
        self.plan.steps.push(Step::Put { path: change.path.clone(), over, make });
    }

    fn combine(&mut self, change: &Change, put: &Put, present: Option<Stat>) -> Result<()> {
        let (Some(there), Some(lower), Some(was)) = (present, &change.lower, &change.was) else { return Ok(()) };
        let (source, parent, elsewhere) = (self.source, self.parent, self.elsewhere);
        let combiner = Combiner { source, parent, elsewhere, repository: self.repository };
        match combiner.combine(change, put, was, lower, &there).map_err(failed(&change.path))? {
            Combined::Nothing => {
                self.trim_put(&change.path, put);
                Ok(())
            }
            Combined::Put { make, action, mode } => {
                self.trim_put(&change.path, put);
                self.entry(change.path.clone(), action, &put.stat, Some(there.mode), Some(mode));
                if let Some(entry) = self.plan.entries.last_mut() {
                    entry.present.clone_from(&change.lower);
                }
                self.plan.steps.push(Step::Put { path: change.path.clone(), over: Some(there), make });
                Ok(())
            }
            Combined::Conflict(reason) => {
                if self.resolved(&change.path, reason) {
                    self.take_put(change, put, Some(there), None)?;
                }
                Ok(())
            }
        }
    }

    /// The fork gave the object another modification time and nothing else, and the parent's still has the old one: what a
    /// build goes by lands too. It is never a conflict: where the parent's has another time by now, that one stays.
    fn touch(&mut self, change: &Change, put: &Put, there: Stat) {
        self.put_step(change, put, Some(there), None);
        if let Some(entry) = self.plan.entries.last_mut() {
            entry.action = Action::Touch;
            entry.mtime = Some((there.mtime, put.stat.mtime));
        }
    }

    /// Whether the fork's object and the parent's are the same.
    fn same(&self, put: &Put, path: &RelPath, lower: &RelPath, there: &Stat) -> Os<bool> {
        upper_object(self.source, put.index.as_deref(), path, |ours| {
            self.parent.with(lower, |theirs| same_object(ours, &put.stat, theirs, there))
        })
    }
}

/// The type bits of a mode.
fn kind(mode: u32) -> u32 {
    mode & 0o170_000
}
