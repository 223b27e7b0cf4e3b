//! Single files as the fork shows them, without going through its mount: from the upper, else from the base.

use std::collections::HashMap;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::changes::{Change, Changes, What};
use super::parent::Parent;
use super::{Os, Source, upper_object};
use crate::names::RelPath;
use crate::sys::open_beneath;

/// A fork's files by path.
pub(crate) struct View<'a> {
    source: &'a Source,
    base: &'a Parent,
    changes: HashMap<&'a RelPath, &'a Change>,
}

impl<'a> View<'a> {
    /// The view of a fork of `base` with these changes.
    pub(crate) fn new(source: &'a Source, base: &'a Parent, changes: &'a Changes) -> Self {
        // Where a renamed directory took a place, its deletion comes first and the directory wins.
        Self { source, base, changes: changes.list.iter().map(|change| (&change.path, change)).collect() }
    }

    /// The content of a regular file; `None` where the fork has none there.
    pub(crate) fn read(&self, path: &RelPath) -> Os<Option<Vec<u8>>> {
        if self.whole() {
            let stat = upper_object(self.source, None, path, |at| at.try_stat());
            return match stat {
                Ok(Some(stat)) if stat.is_file() => {
                    upper_object(self.source, None, path, super::compare::read_all).map(Some)
                }
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
                Err(e) => Err(e),
            };
        }
        match self.changes.get(path).map(|change| &change.what) {
            Some(What::Put(put)) if put.stat.is_file() => {
                upper_object(self.source, put.index.as_deref(), path, super::compare::read_all).map(Some)
            }
            Some(_) => Ok(None),
            None => match self.lower(path) {
                Some(lower) => {
                    let stat = self.base.look(&lower)?.stat();
                    if stat.is_some_and(|stat| stat.is_file()) {
                        self.base.with(&lower, super::compare::read_all).map(Some)
                    } else {
                        Ok(None)
                    }
                }
                None => Ok(None),
            },
        }
    }

    /// The names in a directory of the fork, those of the base included.
    pub(crate) fn list(&self, path: &RelPath) -> Os<Vec<std::ffi::OsString>> {
        let mut found = std::collections::BTreeSet::new();
        if let Ok(dir) = open_beneath(&self.source.upper, path, OFlags::RDONLY | OFlags::DIRECTORY) {
            found.extend(super::walk::names(&dir)?);
        }
        let opaque = matches!(
            self.changes.get(path).map(|change| &change.what),
            Some(What::Mkdir(_) | What::Attributes { opaque: Some(_), .. })
        );
        if self.whole() {
            return Ok(found.into_iter().collect());
        }
        let lower = match self.changes.get(path) {
            Some(Change { what: What::Move { .. }, lower, .. }) => lower.clone(),
            _ => self.lower(path),
        };
        if let Some(lower) = lower.filter(|_| !opaque)
            && let Ok(dir) = open_beneath(&self.base.root, &lower, OFlags::RDONLY | OFlags::DIRECTORY)
        {
            found.extend(super::walk::names(&dir)?);
        }
        // Whiteouts among them read as nothing.
        Ok(found.into_iter().collect())
    }

    /// Whether the upper is all of the fork: that of a copy, which shows nothing of the base.
    fn whole(&self) -> bool {
        self.source.manifest.is_some()
    }

    /// Whether a directory stands there in the upper or the base.
    pub(crate) fn is_dir(&self, path: &RelPath) -> bool {
        if self.whole() {
            return open_beneath(&self.source.upper, path, OFlags::PATH | OFlags::DIRECTORY).is_ok();
        }
        match self.changes.get(path).map(|change| &change.what) {
            Some(What::Put(_) | What::Gone) => false,
            Some(_) => true,
            None => self.lower(path).is_some_and(|lower| {
                self.base.look(&lower).is_ok_and(|found| found.stat().is_some_and(|stat| stat.is_dir()))
            }),
        }
    }

    /// The base path that an unchanged path of the fork shows; `None` where a change above it hides the base.
    fn lower(&self, path: &RelPath) -> Option<RelPath> {
        for above in path.as_path().ancestors().skip(1) {
            let above = RelPath::new(above)?;
            let Some(change) = self.changes.get(&above) else { continue };
            match (&change.what, &change.lower) {
                (What::Move { .. }, Some(from)) => {
                    let rest = path.as_path().strip_prefix(above.as_path()).ok()?;
                    return RelPath::new(&from.as_path().join(rest));
                }
                (What::Attributes { opaque: None, .. }, _) => {}
                _ => return None,
            }
        }
        Some(path.clone())
    }
}

impl std::fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("source", &self.source.id).finish_non_exhaustive()
    }
}
