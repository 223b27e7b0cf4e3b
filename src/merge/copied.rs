//! Forks that are copies: the change set from their manifest, and the manifest of one that goes on after a merge.
//!
//! The tree of such a fork is whole, so it takes the place of the upper: whatever a change set names is found in it. A
//! copy remembers the state of every object of its base, not only of those that it covered.

use std::path::Path;

use super::Source;
use super::changes::{Change, Changes, Past, Put, What, is_dir};
use super::compare::{same_data, same_owner};
use super::parent::Parent;
use crate::error::{Context, Result};
use crate::layer::ledger::BaseState;
use crate::layer::manifest::{Difference, Manifest, Pair};
use crate::names::RelPath;
use crate::sys::{At, open_beneath, open_root};

/// Reads the change set of a copied fork.
pub(crate) fn read(source: &Source, manifest: &Manifest) -> Result<Changes> {
    let mut list = Vec::new();
    // What stands below a directory that is gone, or is none any more, went with it.
    let mut closed: Option<RelPath> = None;
    for difference in manifest.compare(&source.upper_path)? {
        let path = &difference.path;
        if closed.as_ref().is_some_and(|above| path != above && path.as_path().starts_with(above)) {
            continue;
        }
        let was_dir = difference.was.is_some_and(|was| is_dir(was.base.mode));
        if was_dir && difference.now.is_none_or(|now| !now.is_dir()) {
            closed = Some(path.clone());
        }
        list.extend(change(difference));
    }
    let states = manifest.entries.iter().map(|(path, pair)| (path.clone(), pair.base)).collect();
    Ok(Changes { list, past: Past::whole(states) })
}

fn change(difference: Difference) -> Option<Change> {
    let Difference { path, was, now } = difference;
    let base = was.map(|pair| pair.base);
    let what = match (base, now) {
        (Some(_), None) => What::Gone,
        (Some(was), Some(stat)) if is_dir(was.mode) && stat.is_dir() => {
            What::Attributes { stat, opaque: None, untouched: false }
        }
        (_, Some(stat)) if stat.is_dir() => What::Mkdir(stat),
        (_, Some(stat)) => {
            let same_type = base.is_some_and(|was| stat.file_type().as_raw_mode() == was.mode & libc::S_IFMT);
            let origin = base.filter(|_| same_type).map(|was| was.ident);
            What::Put(Put { stat, index: None, origin })
        }
        (None, None) => return None,
    };
    Some(Change { lower: Some(path.clone()), path, was: base, what })
}

/// Lets a copy go on from the merged state: what the fork and the parent have in common now is no change any more.
///
/// Doing it twice does no harm, and neither does not getting to it: what both have alike is never a conflict.
pub(crate) fn settle(tree: &Path, work: &Path, parent: &Parent) -> Result<()> {
    let mut manifest = Manifest::read(work)?;
    let root = open_root(tree).context("cannot open", tree)?;
    for Difference { path, now, .. } in manifest.compare(tree)? {
        let there = parent.look(&path).context("cannot look at", &path)?.stat();
        match (now, there) {
            (None, None) => drop(manifest.entries.remove(&path)),
            (Some(now), Some(there)) => {
                let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { continue };
                let alike = open_beneath(&root, &dir, rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY)
                    .and_then(|dir| {
                        let ours = At::new(&dir, name);
                        parent.with(&path, |theirs| {
                            let same_mode = now.mode == there.mode;
                            Ok(same_mode
                                && same_owner(ours, &now, theirs, &there)?
                                && (now.is_dir() || same_data(ours, &now, theirs, &there)?))
                        })
                    })
                    .context("cannot compare", &path)?;
                if alike {
                    let pair = Pair { base: BaseState::from(&there), fork: BaseState::from(&now) };
                    manifest.entries.insert(path, pair);
                }
            }
            _ => {}
        }
    }
    manifest.write(work)
}
