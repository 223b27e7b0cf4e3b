//! Objects of the fork with several names: what is one object there becomes one in the parent.

use std::collections::{HashMap, HashSet};

use super::super::changes::{Change, Put, What};
use super::Planner;
use crate::sys::Ident;

impl Planner<'_> {
    /// Whether the fork gave an object names that it did not have: then all of its names come, or they would not stay
    /// names of one object.
    pub(super) fn has_new_names(&self, put: &Put) -> bool {
        self.linked.contains(&(put.stat.dev, put.stat.ino))
    }
}

/// The objects of the upper whose names stand for different objects of the base, or some of them for none.
pub(super) fn with_new_names(changes: &[Change]) -> HashSet<(u64, u64)> {
    let mut first: HashMap<(u64, u64), Option<Ident>> = HashMap::new();
    let mut linked = HashSet::new();
    for change in changes {
        if let What::Put(put) = &change.what
            && put.stat.nlink > 1
            && !put.stat.is_dir()
        {
            let (key, was) = ((put.stat.dev, put.stat.ino), change.was.map(|was| was.ident));
            if *first.entry(key).or_insert(was) != was {
                linked.insert(key);
            }
        }
    }
    linked
}
