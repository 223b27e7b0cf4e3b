//! What the fork deleted: everything in it must be as the fork saw it, and git must be able to bring it back.

use std::collections::HashSet;
use std::ffi::OsString;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::super::Os;
use super::super::changes::Change;
use super::super::parent::Found;
use super::super::plan::{Action, Omission, Step};
use super::super::table::{Ours, Reason, Verdict, verdict};
use super::super::walk::names;
use super::{Planner, failed};
use crate::error::Result;
use crate::layer::ledger::BaseState;
use crate::names::RelPath;
use crate::sys::{At, Stat, open_beneath};

impl Planner<'_> {
    pub(super) fn gone(&mut self, change: &Change, found: Found) -> Result<()> {
        let Some(lower) = &change.lower else { return Ok(()) };
        let stat = match found {
            Found::There(stat) => stat,
            Found::Blocked(Reason::OtherFileSystem) => {
                self.conflict(&change.path, Reason::OtherFileSystem);
                return Ok(());
            }
            Found::Absent | Found::Blocked(_) => {
                self.plan.settle.trim.push(change.path.clone());
                return Ok(());
            }
        };
        if self.delete(&change.path, lower, &stat, change.was.as_ref(), false)? {
            self.plan.steps.push(Step::Detach { path: lower.clone(), seen: stat });
            self.plan.settle.trim.push(change.path.clone());
        }
        Ok(())
    }

    /// Old entries of a directory that the fork emptied go; new ones of the parent stay.
    pub(super) fn emptied(&mut self, change: &Change, kept: &HashSet<OsString>) -> Result<()> {
        let Some(lower) = &change.lower else { return Ok(()) };
        for (name, stat) in self.entries(lower).map_err(failed(lower))? {
            let (path, below) = (change.path.join(&name), lower.join(&name));
            if kept.contains(&name) || self.moved.contains(&below) || self.ignored.contains(&below) {
                continue;
            }
            let Some(was) = self.changes.past.was(&below, Some(&stat)) else { continue };
            if self.delete(&path, &below, &stat, Some(&was), false)? {
                self.plan.steps.push(Step::Detach { path: below, seen: stat });
            }
        }
        Ok(())
    }

    /// Whether an object and all that is in it may go. What may go although its directory must stay is taken away here.
    pub(super) fn delete(
        &mut self,
        path: &RelPath,
        lower: &RelPath,
        stat: &Stat,
        was: Option<&BaseState>,
        inside: bool,
    ) -> Result<bool> {
        if self.ignored.contains(lower) && !stat.is_dir() {
            self.leave_out(path, Omission::Ignored);
            return Ok(false);
        }
        if stat.mount_root || stat.dev != self.parent.stat.dev {
            self.conflict(path, Reason::OtherFileSystem);
            return Ok(false);
        }
        if was.is_none() && inside && !stat.is_dir() {
            return Ok(self.resolved(path, Reason::NewInDeleted));
        }
        let there = self.judge(was, lower, Some(stat))?;
        if stat.is_dir() {
            match verdict(Ours::DeleteDir, there) {
                Verdict::Conflict(reason) if !self.resolved(path, reason) => return Ok(false),
                // A directory nobody noted: what is in it decides, and an empty one that is new is not ours to remove.
                _ => return self.delete_inside(path, lower, stat, was.is_some()),
            }
        }
        match verdict(Ours::Delete, there) {
            Verdict::Conflict(reason) if !self.resolved(path, reason) => return Ok(false),
            _ => {}
        }
        if self.repository.is_some() && !self.options.allow_delete && !self.tracked.contains(lower) {
            let renamed = self.tracked.contains(path);
            if !renamed && !self.resolved(path, Reason::UntrackedDeletion) {
                return Ok(false);
            }
        }
        self.entry(path.clone(), Action::Delete, stat, Some(stat.mode), None);
        Ok(true)
    }

    pub(super) fn delete_inside(&mut self, path: &RelPath, lower: &RelPath, stat: &Stat, known: bool) -> Result<bool> {
        let mut going = Vec::new();
        let mut all = true;
        let mut empty = true;
        for (name, child) in self.entries(lower).map_err(failed(lower))? {
            let below = lower.join(&name);
            if self.moved.contains(&below) {
                continue;
            }
            empty = false;
            let was = self.changes.past.was(&below, Some(&child));
            if self.delete(&path.join(&name), &below, &child, was.as_ref(), true)? {
                going.push(Step::Detach { path: below, seen: child });
            } else {
                all = false;
            }
        }
        if empty && !known {
            return Ok(self.resolved(path, Reason::NewInDeleted));
        }
        // One by one even where the directory goes as well: what somebody puts there meanwhile must not go with it.
        self.plan.steps.extend(going);
        if all {
            self.entry(path.clone(), Action::Delete, stat, Some(stat.mode), None);
        }
        Ok(all)
    }

    pub(super) fn entries(&self, lower: &RelPath) -> Os<Vec<(OsString, Stat)>> {
        // Who deletes goes down step by step, on whatever stack the caller has.
        const DEEPEST: usize = 1000;
        if lower.as_path().components().count() > DEEPEST {
            return Err(Errno::NAMETOOLONG);
        }
        let dir = open_beneath(&self.parent.root, lower, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut entries = Vec::new();
        for name in names(&dir)? {
            // Gone since it was listed: nothing to delete.
            entries.extend(At::new(&dir, &name).try_stat()?.map(|stat| (name, stat)));
        }
        Ok(entries)
    }
}
