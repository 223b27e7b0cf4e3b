//! Whether a ref of the parent still is what the fork found.
//!
//! The fork remembers the file of each ref that it wrote, as of any other file that it covered; and what it did not cover
//! is as it was where it is older than the fork. Where the file of a ref was packed away meanwhile, by either side, this
//! cannot be told, and the ref counts as moved.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;

use super::super::changes::{Change, Changes};
use super::super::compare::theirs;
use super::super::parent::Parent;
use super::super::table::Theirs;
use crate::layer::ledger::BaseState;
use crate::names::RelPath;
use crate::sys::Stat;

/// What the parent's git directory has, against what the fork found there.
pub(super) struct Still<'a> {
    parent: &'a Parent,
    changes: &'a Changes,
    by_path: HashMap<&'a RelPath, &'a Change>,
}

impl<'a> Still<'a> {
    pub(super) fn new(parent: &'a Parent, changes: &'a Changes) -> Self {
        // Something else may have taken the place of what is gone: what was there stands in either.
        let mut by_path: HashMap<&RelPath, &Change> = HashMap::new();
        for change in &changes.list {
            if change.was.is_some() || !by_path.contains_key(&change.path) {
                by_path.insert(&change.path, change);
            }
        }
        Self { parent, changes, by_path }
    }

    /// Whether the fork found a ref of this name, and the parent's is still that.
    pub(super) fn is_still(&self, name: &str) -> bool {
        let (was, present) = self.file(name);
        match (was, present) {
            (Some(was), present) => is_same(&was, present.as_ref()),
            // New since, whether or not a packed one is behind it.
            (None, Some(_)) => false,
            (None, None) => {
                let (was, present) = self.file("packed-refs");
                was.is_some_and(|was| is_same(&was, present.as_ref()))
            }
        }
    }

    /// Whether the fork found a ref of this name that the parent has no more.
    pub(super) fn is_gone(&self, name: &str) -> bool {
        self.file(name).0.is_some()
    }

    /// The file in the git directory as the fork found it, and as it is.
    fn file(&self, name: &str) -> (Option<BaseState>, Option<Stat>) {
        let Some(path) = RelPath::new(&Path::new(".git").join(name)) else { return (None, None) };
        let present = self.parent.look(&path).ok().and_then(super::super::parent::Found::stat);
        let was = match self.by_path.get(&path) {
            Some(change) => change.was,
            None => self.changes.past.was(&path, present.as_ref()),
        };
        (was, present)
    }
}

fn is_same(was: &BaseState, present: Option<&Stat>) -> bool {
    matches!(theirs(Some(was), present), Theirs::Same | Theirs::Touched)
}

/// The path in the tree of the file that a ref has.
pub(crate) fn file_of(name: &str) -> RelPath {
    let git = RelPath::root().join(OsStr::new(".git"));
    Path::new(name).components().fold(git, |path, part| path.join(part.as_os_str()))
}
