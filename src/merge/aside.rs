//! Commits of a fork whose parent's git directory lies elsewhere (a linked work tree, a submodule).
//!
//! Such a fork has a repository of its own, and the parent shares its with others: its index and its `HEAD` are not in
//! the tree that the journal covers, and its branches may be checked out elsewhere. So nothing that exists is moved.
//! Branches and tags that are new land under their names; whatever else the fork wrote lands below `refs/treefork/`,
//! and the files land as changes that are not committed.

use super::Source;
use super::changes::Changes;
use super::gitstep::{ForkRefs, GitStep};
use super::parent::Parent;
use super::repository::Repository;
use crate::error::Result;

impl GitStep {
    /// Works the step out for a parent whose git directory lies elsewhere.
    pub(super) fn aside(
        repository: &Repository,
        source: &Source,
        changes: &Changes,
        parent: &Parent,
        say: &mut Vec<String>,
    ) -> Result<Option<Self>> {
        let fork = ForkRefs::read(source, changes, parent)?;
        let ours = repository.all_refs()?;
        let mut step = Self::default();
        for (name, new) in fork.refs.iter().filter(|(name, _)| fork.written.contains(*name)) {
            let is_named = ["refs/heads/", "refs/tags/", "refs/notes/"].iter().any(|kind| name.starts_with(kind));
            let short = name.strip_prefix("refs/heads/").or(name.strip_prefix("refs/")).unwrap_or(name);
            match ours.get(name) {
                _ if !is_named && name != "refs/stash" => {}
                Some(old) if old == new || repository.is_ancestor(source, new, old)? => {}
                None if is_named => {
                    say.push(format!("{short} is new, at {}", &new[..new.len().min(12)]));
                    step.refs.push((name.clone(), None, new.clone()));
                }
                _ => step.land_aside(source, short, new, &ours, say),
            }
        }
        let detached = !fork.head.is_empty() && !fork.head.starts_with("ref: ");
        if detached && source.base_ref.as_deref() != Some(&fork.head) {
            step.land_aside(source, "HEAD", &fork.head, &ours, say);
        }
        Ok((!step.refs.is_empty()).then_some(step))
    }

    fn land_aside(
        &mut self,
        source: &Source,
        short: &str,
        new: &str,
        ours: &std::collections::BTreeMap<String, String>,
        say: &mut Vec<String>,
    ) {
        let aside = format!("refs/treefork/{}/{short}", source.id);
        if ours.get(&aside).map(String::as_str) != Some(new) {
            say.push(format!("the repository of the parent lies elsewhere; the fork's {short} lands as {aside}"));
            self.refs.push((aside.clone(), ours.get(&aside).cloned(), new.to_owned()));
        }
    }
}
