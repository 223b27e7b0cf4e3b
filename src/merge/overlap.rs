//! Which forks of one base touch the same paths, before anybody merges.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Options, Side, Source, prepare};
use crate::error::Result;
use crate::names::RelPath;

/// Two forks that touch the same paths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Overlap {
    /// The first fork, by its place in what was asked.
    pub first: usize,
    /// The second.
    pub second: usize,
    /// The paths that both change. What one deletes or renames as a directory touches everything in it.
    pub paths: Vec<RelPath>,
}

/// The pairs of forks that touch the same paths; each may still merge three-way when its turn comes.
pub fn overlaps(sources: &[Source]) -> Result<Vec<Overlap>> {
    let mut touched = Vec::new();
    for source in sources {
        let options = Options { resolve: vec![(RelPath::root(), Side::Ours)], ..Options::default() };
        let plan = prepare(source, &options)?.plan;
        let mut paths: BTreeMap<RelPath, bool> = BTreeMap::new();
        for entry in plan.entries {
            let whole = entry.kind == super::ObjectType::Directory && entry.action != super::Action::Add;
            paths.extend(entry.from.map(|from| (from, whole)));
            paths.insert(entry.path, whole && entry.action != super::Action::Attributes);
        }
        touched.push(paths);
    }
    let mut found = Vec::new();
    for first in 0..touched.len() {
        for second in first + 1..touched.len() {
            let paths = common(&touched[first], &touched[second]);
            if !paths.is_empty() {
                found.push(Overlap { first, second, paths });
            }
        }
    }
    Ok(found)
}

fn common(a: &BTreeMap<RelPath, bool>, b: &BTreeMap<RelPath, bool>) -> Vec<RelPath> {
    let covered = |path: &RelPath, by: &BTreeMap<RelPath, bool>| {
        let above = || path.as_path().ancestors().skip(1).filter_map(RelPath::new);
        by.contains_key(path) || above().any(|dir| by.get(&dir) == Some(&true))
    };
    let mut paths: Vec<RelPath> = a.keys().filter(|path| covered(path, b)).cloned().collect();
    paths.extend(b.keys().filter(|path| covered(path, a)).cloned());
    paths.sort();
    paths.dedup();
    paths
}
