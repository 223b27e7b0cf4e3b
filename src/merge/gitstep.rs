//! The git side of a merge: commits made in the fork become the parent's.
//!
//! Objects come over as a pack (they are only added, so that undoing leaves them lying unused). Where the parent's
//! branch stands where the fork found it, it goes on to the fork's commit, and the index becomes what the fork's is,
//! except for what the parent has staged itself. Where it has moved, the commit lands as `refs/treefork/<id>/<branch>`.
//! Refs, `HEAD` and the index are steps of the journal like any other; `index.lock` is ours meanwhile.
//!
//! Nothing of the fork's configuration is read and no hook runs; commits come over byte by byte.

mod branches;
mod index;
mod refs;
mod still;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use branches::Scene;
pub(crate) use index::unlock_index;
use index::{UNFINISHED_LOCK, lock_index};
use still::Still;
pub(crate) use still::file_of;

use super::Source;
use super::changes::{Changes, What};
use super::journal::Op;
use super::parent::Parent;
use super::preserve::Touch;
use super::repository::Repository;
use super::view::View;
use crate::error::{Context, Error, Kind, Result};
use crate::names::RelPath;

/// What a merge does to the parent's repository.
#[derive(Debug, Default)]
pub(crate) struct GitStep {
    /// Refs that change: name, old value, new value.
    pub(super) refs: Vec<(String, Option<String>, String)>,
    /// `HEAD`, when it changes: old text, new text.
    head: Option<(String, String)>,
    /// The fork's index, where the parent's is to take over what it says; and the tree both came from.
    index: Option<(PathBuf, Option<String>)>,
    /// The commit that the fork is at.
    at: Option<String>,
    /// The git directory is in the parent's tree, so that its index can be locked and is preserved for others.
    inside: bool,
}

/// What a fork did to its repository, as far as a merge cares.
pub(super) struct ForkRefs {
    pub(super) head: String,
    pub(super) refs: BTreeMap<String, String>,
    /// Refs that the fork wrote itself, rather than only packed anew.
    pub(super) written: BTreeSet<String>,
}

impl GitStep {
    /// Works out the step; `None` where the fork did nothing that concerns git. Notes go to `say`.
    pub(crate) fn plan(
        repository: &Repository,
        source: &Source,
        changes: &Changes,
        parent: &Parent,
        say: &mut Vec<String>,
    ) -> Result<Option<Self>> {
        let touched = |part: &str| {
            let part = Path::new(".git").join(part);
            changes.list.iter().any(|change| {
                change.path.as_path().starts_with(&part) && !matches!(change.what, What::Attributes { .. })
            })
        };
        if !repository.is_plain() {
            return Self::aside(repository, source, changes, parent, say);
        }
        let refused = |what: &str| Err(Error::new(Kind::Git, what.to_owned()).at(&source.path));
        if touched("reftable") {
            return refused("commits of a fork in a repository with reftable refs cannot be merged; fetch them from");
        }
        if touched("objects/info/alternates") {
            return refused("the fork borrows objects from another repository, which a merge does not follow:");
        }
        let mut step = Self { inside: true, ..Self::default() };
        if ["HEAD", "refs", "packed-refs"].iter().any(|part| touched(part)) {
            let fork = ForkRefs::read(source, changes, parent)?;
            let scene = Scene::new(repository, source, &fork, Still::new(parent, changes))?;
            step.branches(&scene, say)?;
            step.head(repository, source, &fork, scene.follows, say)?;
            step.at = fork.commit();
        }
        let index = Repository::fork_file(source, "index");
        let unmoved = repository.commit("HEAD")? == source.base_ref;
        if let Some(index) = index.filter(|_| unmoved) {
            step.index = Some((index, source.base_ref.clone()));
        }
        let idle = step.refs.is_empty() && step.head.is_none() && step.index.is_none();
        Ok((!idle).then_some(step))
    }

    /// `HEAD` goes where the fork's is, if it `follows`: the parent is at the commit that the fork found, and nobody has
    /// set it meanwhile.
    fn head(
        &mut self,
        repo: &Repository,
        source: &Source,
        fork: &ForkRefs,
        follows: bool,
        say: &mut Vec<String>,
    ) -> Result<()> {
        let ours = repo.read_head()?;
        if fork.head == ours {
            return Ok(());
        }
        match (fork.head.strip_prefix("ref: "), ours.strip_prefix("ref: ")) {
            (Some(branch), _) if follows && self.lands(repo, fork) => {
                say.push(format!("HEAD goes to {branch}, as in the fork"));
                self.head = Some((ours, fork.head.clone()));
            }
            (None, None) if follows => {
                say.push(format!("detached HEAD goes to {}", fork.head));
                self.head = Some((ours, fork.head.clone()));
            }
            (None, _) if source.base_ref.as_deref() != Some(&fork.head) => {
                let aside = format!("refs/treefork/{}/HEAD", source.id);
                say.push(format!("the fork's detached HEAD lands as {aside}"));
                let old = repo.read_ref(&aside)?;
                self.refs.push((aside, old, fork.head.clone()));
            }
            _ => say.push("HEAD stays where it is in the parent".to_owned()),
        }
        Ok(())
    }

    /// The commit that a fork which goes on was made from, so to speak: the one that both sides are at after landing.
    pub(crate) fn common(&self, repository: &Repository) -> Result<Option<String>> {
        let ours = repository.commit("HEAD")?;
        Ok(self.at.clone().filter(|_| self.at == ours))
    }

    /// Whether the index is locked meanwhile.
    pub(crate) fn locks_index(&self) -> bool {
        self.inside
    }

    /// What this does to the repository, for those who must not see it.
    pub(crate) fn touches(&self) -> Vec<Touch> {
        if !self.inside {
            return Vec::new();
        }
        let below = |path: &str| RelPath::new(&Path::new(".git").join(path));
        let replaced = |path: String| below(&path).map(Touch::Replaced);
        let written = |path: String| below(&path).map(Touch::Written);
        let mut touches: Vec<Option<Touch>> = vec![below("objects/pack").map(Touch::Replaced)];
        let mut names: Vec<&str> = self.refs.iter().map(|(name, ..)| name.as_str()).collect();
        // A branch that moves while it is checked out moves HEAD's reflog along.
        if self.head.is_some() || !names.is_empty() {
            names.push("HEAD");
        }
        for name in names {
            touches.extend([replaced(name.into()), replaced(format!("{name}.lock")), written(format!("logs/{name}"))]);
        }
        touches.extend(["index", "index.lock", UNFINISHED_LOCK].map(|name| replaced(name.into())));
        touches.into_iter().flatten().collect()
    }

    /// Brings the objects over, makes the new index in the stage, and says what is to be done in the parent.
    pub(crate) fn prepare(&self, repo: &Repository, source: &Source, stage: &OwnedFd) -> Result<Vec<Op>> {
        if self.inside {
            lock_index(&repo.repo.top, &source.id)?;
        }
        let mut wanted: BTreeSet<String> = self.refs.iter().map(|(.., new)| new.clone()).collect();
        if let Some((_, new)) = &self.head {
            wanted.extend((!new.starts_with("ref: ")).then(|| new.clone()));
        }
        let edits = match &self.index {
            Some((index, tree)) => repo.index_edits(source, index, tree.as_deref())?,
            None => Vec::new(),
        };
        wanted.extend(edits.iter().filter(|edit| edit.is_blob()).map(|edit| edit.id.clone()));
        repo.import(source, &wanted)?;
        let mut ops = Vec::new();
        if !edits.is_empty() {
            ops.push(repo.stage_index(stage, &edits)?);
        }
        for (name, before, after) in &self.refs {
            ops.push(Op::Ref { name: name.clone(), before: before.clone(), after: Some(after.clone()) });
        }
        if let Some((before, after)) = &self.head {
            ops.push(Op::Head { before: before.clone(), after: after.clone() });
        }
        Ok(ops)
    }
}

impl ForkRefs {
    /// Whether `HEAD` is on this branch.
    fn is_on(&self, name: &str) -> bool {
        self.head.strip_prefix("ref: ") == Some(name)
    }

    /// The commit that `HEAD` leads to.
    fn commit(&self) -> Option<String> {
        match self.head.strip_prefix("ref: ") {
            Some(name) => self.refs.get(name).cloned(),
            None => Some(self.head.clone()).filter(|head| is_id(head)),
        }
    }

    pub(super) fn read(source: &Source, changes: &Changes, parent: &Parent) -> Result<Self> {
        let view = View::new(source, parent, changes);
        let cannot = "cannot read the fork's refs at";
        let text = |name: &str| -> Result<String> {
            let path = RelPath::root().join(OsStr::new(".git")).join(OsStr::new(name));
            let bytes = view.read(&path).context(cannot, &source.path)?.unwrap_or_default();
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        let mut refs = BTreeMap::new();
        for line in text("packed-refs")?.lines().filter(|line| !line.starts_with(['#', '^'])) {
            if let Some((id, name)) = line.split_once(' ').filter(|(id, _)| is_id(id)) {
                refs.insert(name.to_owned(), id.to_owned());
            }
        }
        let mut loose = Vec::new();
        let top = RelPath::root().join(OsStr::new(".git")).join(OsStr::new("refs"));
        collect(&view, &top, &mut loose).context(cannot, &source.path)?;
        let mut written = BTreeSet::new();
        let changed: BTreeSet<&RelPath> = changes.list.iter().map(|change| &change.path).collect();
        // Packing moves a ref from its own file into packed-refs: one that the fork wrote and then packed leaves a
        // whiteout or nothing, so that after packing every packed ref may be one it wrote.
        let packed_anew = changes.list.iter().any(|change| change.path.as_path() == Path::new(".git/packed-refs"));
        if packed_anew {
            written.extend(refs.keys().cloned());
        }
        for (path, content) in loose {
            let name = path.as_path().strip_prefix(".git").ok().and_then(Path::to_str).map(str::to_owned);
            let id = String::from_utf8_lossy(&content).trim_end().to_owned();
            let Some(name) = name.filter(|_| is_id(&id)) else { continue };
            if changed.contains(&path) {
                written.insert(name.clone());
            }
            refs.insert(name, id);
        }
        Ok(Self { head: text("HEAD")?.trim_end().to_owned(), refs, written })
    }
}

/// The loose refs below a directory, with what is in them.
fn collect(view: &View<'_>, dir: &RelPath, found: &mut Vec<(RelPath, Vec<u8>)>) -> super::Os<()> {
    let mut todo = vec![dir.clone()];
    while let Some(dir) = todo.pop() {
        for name in view.list(&dir)? {
            let path = dir.deeper(&name)?;
            if view.is_dir(&path) {
                todo.push(path);
            } else if let Some(content) = view.read(&path)? {
                found.push((path, content));
            }
        }
    }
    Ok(())
}

/// Whether this is the hexadecimal name of an object (SHA-1 or SHA-256).
fn is_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|b| b.is_ascii_hexdigit())
}
