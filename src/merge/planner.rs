//! From the change set and the parent's present state to the plan: each path gets its verdict from the table.

mod deletions;
mod links;
mod objects;
mod scope;

use std::collections::{HashMap, HashSet};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::changes::{Change, Changes, What, is_dir};
use super::compare::{attributes, read_all, same_object, theirs};
use super::parent::{Found, Parent};
use super::plan::{Action, Conflict, Entry, LeftOut, Omission, Plan, Step};
use super::repository::Repository;
use super::table::{Ours, Reason, Theirs, Verdict, verdict};
use super::{Options, Side, Source};
use crate::error::{Error, Result};
use crate::layer::ledger::{BaseState, Digest};
use crate::names::RelPath;
use crate::sys::{At, Ident, Stat, open_beneath};

/// Works out the plan.
pub(crate) struct Planner<'a> {
    pub(crate) source: &'a Source,
    pub(crate) parent: &'a Parent,
    /// The base, where that is another tree than the parent.
    pub(crate) elsewhere: Option<&'a Parent>,
    pub(crate) changes: &'a Changes,
    pub(crate) options: &'a Options,
    /// The git repository of the parent, if its root is the top of one.
    pub(crate) repository: Option<&'a Repository>,
    ignored: HashSet<RelPath>,
    tracked: HashSet<RelPath>,
    /// Old places of renamed directories.
    moved: HashSet<RelPath>,
    /// What the fork deleted, by what it was: where a file went that turned up elsewhere.
    gone: HashMap<Ident, (RelPath, RelPath)>,
    /// Objects of the upper that have got further names, by device and number.
    linked: HashSet<(u64, u64)>,
    /// Objects of the upper with several names, one of which is asked for.
    named: HashSet<(u64, u64)>,
    /// Directories of the fork that the merge makes.
    fresh: HashSet<RelPath>,
    /// Directories of the fork below which nothing is looked at any more.
    closed: HashSet<RelPath>,
    plan: Plan,
}

/// An error of the file system about one path.
fn failed<'p>(path: &'p RelPath) -> impl FnOnce(Errno) -> Error + 'p {
    move |errno| Error::io("cannot compare the fork with the parent at", errno).at(path.as_path())
}

impl<'a> Planner<'a> {
    pub(crate) fn new(
        source: &'a Source,
        parent: &'a Parent,
        elsewhere: Option<&'a Parent>,
        changes: &'a Changes,
        options: &'a Options,
        repository: Option<&'a Repository>,
    ) -> Self {
        let mut moved = HashSet::new();
        let mut gone = HashMap::new();
        for change in &changes.list {
            match (&change.what, &change.lower, &change.was) {
                (What::Move { .. }, Some(from), _) => drop(moved.insert(from.clone())),
                (What::Gone, Some(lower), Some(was)) if !is_dir(was.mode) => {
                    gone.insert(was.ident, (change.path.clone(), lower.clone()));
                }
                _ => {}
            }
        }
        let linked = links::with_new_names(&changes.list);
        let named = scope::named(&changes.list, &options.only);
        let (ignored, tracked, fresh, closed) = Default::default();
        Self {
            source,
            parent,
            elsewhere,
            changes,
            options,
            repository,
            ignored,
            tracked,
            moved,
            gone,
            linked,
            named,
            fresh,
            closed,
            plan: Plan::default(),
        }
    }

    /// The plan. Writes nothing.
    pub(crate) fn plan(mut self) -> Result<Plan> {
        self.ask_git()?;
        for change in &self.changes.list {
            self.options.cancel.check()?;
            self.change(change)?;
        }
        self.plan.entries.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(self.plan)
    }

    fn change(&mut self, change: &Change) -> Result<()> {
        let path = &change.path;
        if self.is_closed(path) {
            return Ok(());
        }
        if !self.is_wanted(change) {
            self.plan.partial |= !matches!(change.what, What::Attributes { untouched: true, opaque: None, .. });
            return Ok(());
        }
        if self.is_git(change) {
            return Ok(());
        }
        if self.ignored.contains(path) {
            self.leave_out(path, Omission::Ignored);
            return Ok(());
        }
        // In a directory that the merge makes there is nothing yet; but what moves there comes from elsewhere.
        let moves = matches!(change.what, What::Move { .. });
        let found = match &change.lower {
            Some(lower) if moves || !self.is_in_fresh(path) => self.parent.look(lower).map_err(failed(path))?,
            _ => Found::Absent,
        };
        match &change.what {
            What::Gone => self.gone(change, found),
            What::Put(put) => self.put(change, put, found),
            What::Mkdir(stat) => self.mkdir(change, stat, found),
            What::Move { stat, place } => self.r#move(change, stat, place.as_ref(), found),
            What::Attributes { stat, untouched, opaque } => {
                self.attributes(change, stat, *untouched, found)?;
                match (opaque, found) {
                    (Some(kept), Found::There(there)) if there.is_dir() => {
                        self.plan.settle.open.push(path.clone());
                        self.emptied(change, kept)
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    /// Whether a path of the fork is in a directory that the merge makes.
    fn is_in_fresh(&self, path: &RelPath) -> bool {
        path.parent().is_some_and(|parent| self.fresh.contains(&parent))
    }

    fn mkdir(&mut self, change: &Change, stat: &Stat, found: Found) -> Result<()> {
        let path = &change.path;
        let present = match found {
            Found::Blocked(reason) => {
                self.conflict(path, reason);
                self.closed.insert(path.clone());
                return Ok(());
            }
            found => found.stat(),
        };
        if present.is_some_and(|there| there.is_dir()) {
            self.plan.settle.open.push(path.clone());
            return Ok(());
        }
        let ours = if change.was.is_some() { Ours::Replace } else { Ours::AddDir };
        let take = match verdict(ours, self.judge_change(change, present.as_ref())?) {
            Verdict::Take => true,
            Verdict::Nothing | Verdict::Combine => false,
            Verdict::Conflict(reason) => self.resolved(path, reason),
        };
        if !take {
            self.closed.insert(path.clone());
            return Ok(());
        }
        let action = match (present, &change.lower) {
            (Some(there), Some(lower)) => {
                self.plan.steps.push(Step::Detach { path: lower.clone(), seen: there });
                Action::Retype
            }
            _ => Action::Add,
        };
        self.entry(path.clone(), action, stat, None, Some(stat.mode));
        self.plan.settle.open.push(path.clone());
        self.fresh.insert(path.clone());
        self.plan.steps.push(Step::Mkdir { path: path.clone() });
        Ok(())
    }

    fn r#move(&mut self, change: &Change, stat: &Stat, place: Option<&RelPath>, found: Found) -> Result<()> {
        let (path, Some(from)) = (&change.path, &change.lower) else { return Ok(()) };
        let at_place = match place {
            Some(place) if !self.is_in_fresh(path) => self.parent.look(place).map_err(failed(path))?,
            _ => Found::Absent,
        };
        // What the base had at the new place is a deletion of its own, which came before.
        let leaves = |step: &Step| matches!(step, Step::Detach { path, .. } if Some(path) == place);
        let taken = at_place.stat().is_some()
            && !place.is_some_and(|place| self.moved.contains(place))
            && !self.plan.steps.iter().any(leaves);
        let verdict = match (found, at_place) {
            (Found::Blocked(reason), _) | (_, Found::Blocked(reason)) => Verdict::Conflict(reason),
            _ if taken => Verdict::Conflict(Reason::BothAdded),
            (found, _) => verdict(Ours::MoveDir, self.judge_change(change, found.stat().as_ref())?),
        };
        let seen = match (verdict, found) {
            (Verdict::Take, Found::There(seen)) => seen,
            (verdict, _) => {
                let reason = if let Verdict::Conflict(reason) = verdict { reason } else { Reason::DeletedInParent };
                match self.side(path) {
                    Some(Side::Theirs) => self.leave_out(path, Omission::Resolved),
                    // There is nothing that could be moved, or no place for it: the operator cannot decide that away.
                    _ => self.conflict(path, reason),
                }
                self.closed.insert(path.clone());
                return Ok(());
            }
        };
        self.entry(path.clone(), Action::Rename, stat, Some(seen.mode), Some(seen.mode));
        if let Some(entry) = self.plan.entries.last_mut() {
            entry.from = Some(from.clone());
        }
        self.plan.settle.moves.push((from.clone(), path.clone()));
        self.plan.steps.push(Step::Move { from: from.clone(), seen, path: path.clone() });
        self.attributes(change, stat, false, found)
    }

    fn attributes(&mut self, change: &Change, stat: &Stat, untouched: bool, found: Found) -> Result<()> {
        let (Some(lower), Some(was)) = (&change.lower, &change.was) else { return Ok(()) };
        let settled = RelPath::clone(&change.path);
        if untouched && !matches!(change.what, What::Move { .. }) {
            self.plan.settle.open.push(settled);
            return Ok(());
        }
        let mode_changed = stat.mode != was.mode;
        let Found::There(there) = found else {
            if mode_changed || self.has_attributes(change)? {
                self.conflict(&change.path, Reason::DeletedInParent);
            } else {
                self.plan.settle.open.push(settled);
            }
            return Ok(());
        };
        let upper = open_beneath(&self.source.upper, &change.path, OFlags::PATH).map_err(failed(&change.path))?;
        let same_rest = self
            .parent
            .with(lower, |at| {
                let same = (stat.uid, stat.gid) == (there.uid, there.gid);
                Ok(same && attributes(At::new(&upper, "."))? == attributes(at)?)
            })
            .map_err(failed(&change.path))?;
        if same_rest && there.mode == stat.mode {
            self.plan.settle.open.push(settled);
            return Ok(());
        }
        // The times of a directory change with its entries too, so a difference in what the ledger does not hold can
        // be told apart from a change in the parent only while nothing at all changed there.
        let unknown = !same_rest && there.ctime != was.ctime;
        let verdict = match self.judge_change(change, Some(&there))? {
            Theirs::Attributes if !mode_changed && same_rest => Verdict::Nothing,
            _ if unknown => Verdict::Conflict(Reason::BothChangedAttributes),
            theirs => verdict(Ours::DirAttributes, theirs),
        };
        let take = match verdict {
            Verdict::Take => true,
            Verdict::Conflict(reason) => self.resolved(&change.path, reason),
            Verdict::Nothing | Verdict::Combine => {
                self.plan.settle.open.push(settled.clone());
                false
            }
        };
        if take {
            if !matches!(change.what, What::Move { .. }) {
                self.entry(change.path.clone(), Action::Attributes, stat, Some(there.mode), Some(stat.mode));
            }
            self.plan.settle.open.push(settled);
            self.plan.steps.push(Step::Attributes { path: change.path.clone(), present: lower.clone() });
        }
        Ok(())
    }

    /// Where the base is not what it was, or is gone: an object of another tree is the same when it holds what the fork
    /// noted of the base's; or, where it noted none, what the commit holds that it was made from. (Should the base have been
    /// edited since, to the same size, nothing is lost by replacing what was committed.)
    fn judge_by_content(&self, was: Option<&BaseState>, lower: &RelPath, present: &Stat) -> Result<Theirs> {
        let Some(noted) = was.filter(|was| was.size == present.size) else { return Ok(Theirs::Content) };
        if !present.is_file() {
            return Ok(Theirs::Content);
        }
        let bytes = self.parent.with(lower, read_all).map_err(failed(lower))?;
        let same = match noted.content {
            Some(content) => content == Digest::of(&bytes),
            None => self.repository.and_then(|repository| repository.committed(self.source, lower)) == Some(bytes),
        };
        Ok(match (same, noted.mode == present.mode) {
            (false, _) => Theirs::Content,
            (true, true) => Theirs::Same,
            (true, false) => Theirs::Attributes,
        })
    }

    /// Whether a directory of the fork has attributes beside mode and owner: what it had before is not known.
    fn has_attributes(&self, change: &Change) -> Result<bool> {
        let upper = open_beneath(&self.source.upper, &change.path, OFlags::PATH);
        let all = upper.and_then(|upper| attributes(At::new(&upper, "."))).map_err(failed(&change.path))?;
        Ok(!all.is_empty())
    }

    fn judge_change(&self, change: &Change, present: Option<&Stat>) -> Result<Theirs> {
        match &change.lower {
            Some(lower) => self.judge(change.was.as_ref(), lower, present),
            None => Ok(theirs(change.was.as_ref(), present)),
        }
    }

    /// What became of a path since the fork saw it. In another tree than the base nothing has the number it had there:
    /// then an object counts as the same when it equals the base's, and that one is still as the fork saw it.
    fn judge(&self, was: Option<&BaseState>, lower: &RelPath, present: Option<&Stat>) -> Result<Theirs> {
        let there = theirs(was, present);
        let (Some(base), Some(present), Theirs::Content) = (self.elsewhere, present, there) else { return Ok(there) };
        let original = base.look(lower).map_err(failed(lower))?.stat();
        let Some(original) = original.filter(|original| theirs(was, Some(original)) == Theirs::Same) else {
            return self.judge_by_content(was, lower, present);
        };
        let same = base.with(lower, |a| self.parent.with(lower, |b| same_object(a, &original, b, present)));
        Ok(if same.map_err(failed(lower))? { Theirs::Same } else { there })
    }

    // What goes into the plan.

    fn side(&self, path: &RelPath) -> Option<Side> {
        let fits = |resolved: &RelPath| path.as_path().starts_with(resolved.as_path());
        self.options.resolve.iter().rev().find(|(resolved, _)| fits(resolved)).map(|(_, side)| *side)
    }

    /// Notes a conflict unless the operator has decided it. True where the fork's side is to be taken.
    fn resolved(&mut self, path: &RelPath, reason: Reason) -> bool {
        match self.side(path) {
            Some(Side::Ours) => return true,
            Some(Side::Theirs) => self.leave_out(path, Omission::Resolved),
            None => self.conflict(path, reason),
        }
        false
    }

    fn conflict(&mut self, path: &RelPath, reason: Reason) {
        let fork = self.source.path.join(path);
        self.plan.conflicts.push(Conflict { path: path.clone(), reason, fork });
    }

    fn leave_out(&mut self, path: &RelPath, why: Omission) {
        self.plan.left_out.push(LeftOut { path: path.clone(), why });
    }

    fn entry(&mut self, path: RelPath, action: Action, stat: &Stat, before: Option<u32>, after: Option<u32>) {
        let mut notes = Vec::new();
        if stat.is_symlink() && action != Action::Delete {
            notes.extend(self.escape(&path));
        }
        if stat.is_file() && before.is_none_or(|mode| mode & 0o6000 == 0) && after.is_some_and(|m| m & 0o6000 != 0) {
            notes.push("set-user-id or set-group-id".to_owned());
        }
        if path.as_path() == Path::new(crate::config::FILE) && action != Action::Delete {
            notes.push("its commands run in later forks".to_owned());
        }
        let kind = stat.file_type().into();
        let mode = (before.map(|m| m & 0o7777), after.map(|m| m & 0o7777));
        self.plan.entries.push(Entry {
            path,
            from: None,
            present: None,
            action,
            kind,
            mode,
            size: stat.size,
            mtime: None,
            notes,
        });
    }

    /// A note about a symbolic link that leads out of the parent.
    fn escape(&self, path: &RelPath) -> Option<String> {
        let target = super::upper_object(self.source, None, path, |at| at.readlink()).ok()?;
        let outside = crate::copy::leads_outside(&self.parent.root, &self.parent.path, path, &target);
        outside.then(|| format!("leads outside, to {}", std::path::Path::new(&target).display()))
    }
}
