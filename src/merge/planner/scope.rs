//! What is part of a merge: what was asked for, what is no git directory, what git does not ignore.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::super::Os;
use super::super::Side;
use super::super::changes::{Change, What};
use super::super::plan::Omission;
use super::super::repository::{is_carried, is_history};
use super::super::table::Reason;
use super::super::view::View;
use super::{Planner, failed};
use crate::error::Result;
use crate::names::RelPath;

/// The objects with several names of which at least one is asked for.
pub(super) fn named(changes: &[Change], only: &[RelPath]) -> HashSet<(u64, u64)> {
    changes.iter().filter(|change| is_below(&change.path, only)).filter_map(object).collect()
}

/// The object of a change, if it has several names.
fn object(change: &Change) -> Option<(u64, u64)> {
    match &change.what {
        What::Put(put) if put.stat.nlink > 1 => Some((put.stat.dev, put.stat.ino)),
        _ => None,
    }
}

fn is_below(path: &RelPath, dirs: &[RelPath]) -> bool {
    dirs.iter().any(|dir| path.as_path().starts_with(dir.as_path()))
}

impl Planner<'_> {
    pub(super) fn is_closed(&self, path: &RelPath) -> bool {
        !self.closed.is_empty()
            && path.as_path().ancestors().any(|a| RelPath::new(a).is_some_and(|a| self.closed.contains(&a)))
    }

    pub(super) fn is_wanted(&self, change: &Change) -> bool {
        let only = &self.options.only;
        let container = matches!(change.what, What::Mkdir(_) | What::Move { .. } | What::Attributes { .. });
        only.is_empty()
            || is_below(&change.path, only)
            // What leads there comes along.
            || container && only.iter().any(|wanted| wanted.as_path().starts_with(change.path.as_path()))
            // And so do the other names of an object, or it would be two.
            || object(change).is_some_and(|key| self.named.contains(&key))
    }

    /// Deals with what is in a git directory; true where that was it.
    pub(super) fn is_git(&mut self, change: &Change) -> bool {
        let path = change.path.as_path();
        let Some(depth) = path.components().position(|c| c.as_os_str() == ".git") else { return false };
        if self.options.git_paths.iter().any(|named| path.starts_with(named.as_path())) {
            return false;
        }
        let below: PathBuf = path.components().skip(depth + 1).collect();
        let top: PathBuf = path.components().take(depth + 1).collect();
        // A repository in the repository: its history is more than its files, and losing commits is no merge.
        let (top, below) = match (depth, below.strip_prefix("modules")) {
            (0, Ok(rest)) if self.repository.is_some() => (top.join("modules"), history_of_module(rest)),
            (0, _) if self.repository.is_some() => {
                let object = matches!(change.what, What::Put(_) | What::Gone);
                if object && !is_carried(&change.path) {
                    self.leave_out(&change.path, Omission::GitSetting);
                }
                return true;
            }
            _ => (top, Some(below)),
        };
        let history = below.is_some_and(|below| is_history(&below)) && !matches!(change.what, What::Attributes { .. });
        let Some(top) = RelPath::new(&top) else { return true };
        if history && !self.closed.contains(&top) {
            self.closed.insert(top.clone());
            if self.side(&top) == Some(Side::Theirs) {
                self.leave_out(&top, Omission::Resolved);
            } else {
                self.conflict(&top, Reason::NestedRepository);
            }
        }
        true
    }

    /// Asks git what it ignores and what it tracks, for the paths that matter.
    pub(super) fn ask_git(&mut self) -> Result<()> {
        let Some(repository) = self.repository else { return Ok(()) };
        let mut paths = Vec::new();
        for change in &self.changes.list {
            if change.path.as_path().components().any(|c| c.as_os_str() == ".git") {
                continue;
            }
            match &change.what {
                What::Put(_) | What::Mkdir(_) | What::Move { .. } => paths.push(change.path.clone()),
                What::Attributes { opaque: None, .. } => {}
                What::Gone | What::Attributes { .. } => {
                    if let Some(lower) = &change.lower {
                        self.below(lower, &mut paths).map_err(failed(lower))?;
                    }
                }
            }
        }
        if paths.is_empty() {
            return Ok(());
        }
        self.tracked = repository.tracked(self.source)?;
        if !self.options.ignored {
            paths.retain(|path| !self.tracked.contains(path));
            let shown = View::new(self.source, self.parent, self.changes);
            self.ignored = repository.ignored(&paths, &shown)?;
        }
        Ok(())
    }

    /// A path of the parent and all below it.
    pub(super) fn below(&self, lower: &RelPath, paths: &mut Vec<RelPath>) -> Os<()> {
        paths.push(lower.clone());
        if self.parent.look(lower)?.stat().is_some_and(|stat| stat.is_dir()) {
            for (name, stat) in self.entries(lower)? {
                let below = lower.join(&name);
                if stat.is_dir() && !stat.mount_root { self.below(&below, paths)? } else { paths.push(below) }
            }
        }
        Ok(())
    }
}

/// The part of a path below `modules` of a git directory that lies in a submodule's git directory.
fn history_of_module(rest: &Path) -> Option<PathBuf> {
    // The name of a submodule may have slashes: what follows it begins with one of these.
    const PARTS: [&str; 4] = ["objects", "refs", "packed-refs", "HEAD"];
    let at = rest.components().position(|c| PARTS.iter().any(|part| c.as_os_str() == *part))?;
    Some(rest.components().skip(at).collect())
}
