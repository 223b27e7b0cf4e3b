//! Three-way merge of one path that both sides changed: content, mode and the rest, each on its own.
//!
//! The ancestor of the content has to be proven to be what the fork saw. It comes from the first of these that has it:
//! 1. the preserved layers that the fork reads through: another merge kept the very object there;
//! 2. the base itself, when the merge goes into another tree and the base is still as the fork saw it;
//! 3. the blob that the git index names, when the index describes the very object that the fork saw (size and times
//!    agree);
//! 4. the blob at the path in the commit the fork was made from, when its content is what the ledger noted.
//!
//! Owner and extended attributes are not in the ledger, so that where the two sides differ in them nobody can say whose
//! they are: a conflict.

use super::changes::{Change, Put};
use super::compare::{read_all, same_content, same_data, same_owner};
use super::parent::Parent;
use super::plan::{Action, Make};
use super::repository::Repository;
use super::table::{Reason, Theirs};
use super::{Os, Source, text, upper_object};
use rustix::fs::OFlags;

use crate::layer::ledger::{BaseState, Digest};
use crate::layer::preserved;
use crate::layer::resolve::see;
use crate::names::RelPath;
use crate::sys::{At, Stat, open_beneath, open_root};

/// What came of it.
pub(crate) enum Combined {
    /// The parent has all of it already.
    Nothing,
    /// This object takes the place.
    Put { make: Make, action: Action, mode: u32 },
    /// They cannot be reconciled.
    Conflict(Reason),
}

/// What three-way merges need.
pub(crate) struct Combiner<'a> {
    pub(crate) source: &'a Source,
    pub(crate) parent: &'a Parent,
    pub(crate) elsewhere: Option<&'a Parent>,
    pub(crate) repository: Option<&'a Repository>,
}

/// Whose content the result has.
enum Content {
    Ours,
    Theirs,
    Both(Vec<u8>),
}

impl Combiner<'_> {
    /// Merges the fork's and the parent's version of a path that stood as `was` when the fork covered it.
    pub(crate) fn combine(
        &self,
        change: &Change,
        put: &Put,
        was: &BaseState,
        lower: &RelPath,
        there: &Stat,
    ) -> Os<Combined> {
        let Some(content) = self.content(change, put, was, lower, there)? else {
            return Ok(Combined::Conflict(Reason::BothChanged));
        };
        let same_rest = self
            .ours(change, put, |ours| self.parent.with(lower, |theirs| same_owner(ours, &put.stat, theirs, there)))?;
        let Some(mode) = three_way(was.mode, put.stat.mode, there.mode).filter(|_| same_rest) else {
            return Ok(Combined::Conflict(Reason::BothChangedAttributes));
        };
        let other_mode = (mode != put.stat.mode).then_some(mode);
        let (make, action) = match content {
            Content::Theirs if mode == there.mode => return Ok(Combined::Nothing),
            Content::Ours => match &put.index {
                Some(name) => (Make::Index { name: name.clone(), mode: other_mode }, Action::Edit),
                None => (Make::Upper { path: change.path.clone(), stat: put.stat, mode: other_mode }, Action::Edit),
            },
            Content::Theirs => {
                let bytes = self.parent.with(lower, read_all)?;
                (Make::Content { bytes, mode, mtime: Some(there.mtime), like: lower.clone() }, Action::Attributes)
            }
            Content::Both(bytes) => (Make::Content { bytes, mode, mtime: None, like: lower.clone() }, Action::Combine),
        };
        Ok(Combined::Put { make, action, mode })
    }

    fn ours<T>(&self, change: &Change, put: &Put, body: impl FnOnce(At<'_>) -> Os<T>) -> Os<T> {
        upper_object(self.source, put.index.as_deref(), &change.path, body)
    }

    fn content(
        &self,
        change: &Change,
        put: &Put,
        was: &BaseState,
        lower: &RelPath,
        there: &Stat,
    ) -> Os<Option<Content>> {
        // The same object, size and time to the nanosecond: nobody has written to it, short of forging its times.
        if same_content(was, there) {
            return Ok(Some(Content::Ours));
        }
        let same =
            self.ours(change, put, |ours| self.parent.with(lower, |theirs| same_data(ours, &put.stat, theirs, there)))?;
        if same {
            return Ok(Some(Content::Theirs));
        }
        let sizes = [was.size, put.stat.size, there.size];
        if !put.stat.is_file() || !there.is_file() || sizes.iter().any(|&size| size > text::LIMIT) {
            return Ok(None);
        }
        let ours = self.ours(change, put, read_all)?;
        // The fork changed attributes or times alone: the content is what it found.
        if was.content.is_some_and(|content| content == Digest::of(&ours)) {
            return Ok(Some(Content::Theirs));
        }
        let Some(ancestor) = self.ancestor(was, lower)? else { return Ok(None) };
        let theirs = self.parent.with(lower, read_all)?;
        Ok(text::merge(&ancestor, &ours, &theirs).map(|merged| {
            if merged == ours {
                Content::Ours
            } else if merged == theirs {
                Content::Theirs
            } else {
                Content::Both(merged)
            }
        }))
    }

    fn ancestor(&self, was: &BaseState, lower: &RelPath) -> Os<Option<Vec<u8>>> {
        for dir in &self.source.layers {
            let layer = preserved::open(&open_root(dir)?)?;
            if see(&layer, lower)?.is_some_and(|seen| seen.shown.ident() == was.ident) {
                let (above, name) = (lower.parent().unwrap_or_default(), lower.file_name().unwrap_or_default());
                let above = open_beneath(&layer.root, &above, OFlags::PATH | OFlags::DIRECTORY)?;
                return read_all(At::new(&above, name)).map(Some);
            }
        }
        if let Some(base) = self.elsewhere {
            let stat = base.look(lower)?.stat();
            if super::compare::theirs(Some(was), stat.as_ref()) == Theirs::Same {
                return base.with(lower, read_all).map(Some);
            }
        }
        let from_git = |repository: &Repository| repository.ancestor(self.source, lower, was);
        let fits = |bytes: &Vec<u8>| was.content.is_none_or(|content| content == Digest::of(bytes));
        Ok(self.repository.and_then(from_git).filter(fits))
    }
}

/// The usual rule: whoever changed it wins; both changing it differently is `None`.
fn three_way(was: u32, ours: u32, theirs: u32) -> Option<u32> {
    match (ours == was, theirs == was) {
        _ if ours == theirs => Some(ours),
        (true, _) => Some(theirs),
        (_, true) => Some(ours),
        _ => None,
    }
}
