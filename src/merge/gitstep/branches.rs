//! What becomes of each branch, tag and note that the fork wrote.
//!
//! Branches that stand where the fork found them go on to the fork's commit, or to what the fork rewrote them to: the old
//! one is in the reflog. Tags have none, so that one which exists is never moved; and nothing is deleted.

use std::collections::{BTreeMap, BTreeSet};

use super::super::Source;
use super::super::repository::Repository;
use super::still::Still;
use super::{ForkRefs, GitStep};
use crate::error::Result;

/// The refs that a merge brings over, by the beginnings of their names.
const CARRIED: [&str; 3] = ["refs/heads/", "refs/tags/", "refs/notes/"];
const STASH: &str = "refs/stash";

/// Both repositories, as far as refs go.
pub(super) struct Scene<'a> {
    repo: &'a Repository,
    source: &'a Source,
    fork: &'a ForkRefs,
    still: Still<'a>,
    ours: BTreeMap<String, String>,
    /// The branch that the parent is on.
    checked_out: Option<String>,
    /// Branches that other work trees of the parent's repository are on.
    elsewhere: BTreeSet<String>,
    /// The parent is at the commit that the fork found.
    unmoved: bool,
    /// And nobody has set its `HEAD` meanwhile, so that it may follow the fork's.
    pub(super) follows: bool,
}

/// What becomes of a ref.
enum Fate {
    /// The parent has it, or more.
    Stays,
    /// It is set, and this is said of it.
    Moves(&'static str),
    /// The fork's lands beside it, and this is why.
    Aside(&'static str),
}

impl<'a> Scene<'a> {
    pub(super) fn new(repo: &'a Repository, source: &'a Source, fork: &'a ForkRefs, still: Still<'a>) -> Result<Self> {
        let checked_out = repo.read_head()?.strip_prefix("ref: ").map(str::to_owned);
        let unmoved = repo.commit("HEAD")? == source.base_ref;
        let follows = unmoved && still.is_still("HEAD");
        let (ours, elsewhere) = (repo.all_refs()?, repo.checked_out_elsewhere()?);
        Ok(Self { repo, source, fork, still, ours, checked_out, elsewhere, unmoved, follows })
    }

    fn fate(&self, name: &String, new: &str, head_lands: impl Fn() -> bool) -> Result<Fate> {
        if name == STASH {
            return Ok(Fate::Aside("a stash is not merged"));
        }
        let Some(old) = self.ours.get(name) else {
            let gone = self.still.is_gone(name);
            return Ok(if gone { Fate::Aside("it was deleted in the parent") } else { Fate::Moves("is new") });
        };
        if !name.starts_with("refs/heads/") {
            return Ok(Fate::Aside("the parent has another of that name"));
        }
        let is_here = self.checked_out.as_ref() == Some(name);
        let still = self.still.is_still(name) || (is_here && self.source.base_ref.as_ref() == Some(old));
        if !still && self.repo.is_ancestor(self.source, new, old)? {
            return Ok(Fate::Stays);
        }
        if self.elsewhere.contains(name) {
            return Ok(Fate::Aside("another work tree of the parent is on it"));
        }
        // The files and the index of the parent are those of the branch that it is on: it moves with them, or when HEAD
        // leaves it.
        if is_here && !(self.unmoved && self.fork.is_on(name) || self.follows && head_lands()) {
            return Ok(Fate::Aside("it has moved in the parent, or the parent has gone to it"));
        }
        Ok(match self.repo.is_ancestor(self.source, old, new)? {
            true => Fate::Moves("advances"),
            false if still => Fate::Moves("is rewritten as in the fork"),
            false => Fate::Aside("it has moved in the parent"),
        })
    }
}

impl GitStep {
    /// Works out which refs change.
    pub(super) fn branches(&mut self, scene: &Scene<'_>, say: &mut Vec<String>) -> Result<()> {
        let Scene { fork, ours, still, .. } = scene;
        let carried = |name: &String| CARRIED.iter().any(|kind| name.starts_with(kind));
        for name in ours.keys().filter(|name| carried(name) && !fork.refs.contains_key(*name) && still.is_still(name)) {
            say.push(format!("{name} was deleted in the fork, and stays in the parent"));
        }
        let written = |name: &String| (carried(name) || name == STASH) && fork.written.contains(name);
        let mut names: Vec<(&String, &String)> = fork.refs.iter().filter(|(name, _)| written(name)).collect();
        // The one that the parent is on last: it depends on where HEAD will be.
        names.sort_by_key(|(name, _)| scene.checked_out.as_ref() == Some(*name));
        for (name, new) in names {
            let old = ours.get(name);
            if old == Some(new) {
                continue;
            }
            let short = name.strip_prefix("refs/heads/").unwrap_or(name);
            match scene.fate(name, new, || self.lands(scene.repo, fork))? {
                Fate::Stays => {}
                Fate::Moves(verb) => {
                    say.push(format!("{short} {verb}, at {}", &new[..new.len().min(12)]));
                    self.refs.push((name.clone(), old.cloned(), new.clone()));
                }
                Fate::Aside(why) => {
                    let aside =
                        format!("refs/treefork/{}/{}", scene.source.id, short.strip_prefix("refs/").unwrap_or(short));
                    if ours.get(&aside) != Some(new) {
                        say.push(format!("{short}: {why}; the fork's lands as {aside}"));
                        self.refs.push((aside.clone(), ours.get(&aside).cloned(), new.clone()));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the branch that the fork is on will be in the parent what it is in the fork.
    pub(super) fn lands(&self, repo: &Repository, fork: &ForkRefs) -> bool {
        let Some(branch) = fork.head.strip_prefix("ref: ") else { return false };
        self.refs.iter().any(|(name, ..)| name == branch)
            || repo.read_ref(branch).is_ok_and(|value| value.as_ref() == fork.refs.get(branch))
    }
}
