//! The git side of a merge: commits made in the fork become the parent's.
//!
//! Objects come over as a pack (they are only added, so that undoing leaves them lying unused). Where the parent's
//! branch stands where the fork found it, it goes on to the fork's commit, and the index becomes what the fork's is,
//! except for what the parent has staged itself. Where it has moved, the commit lands as `refs/treefork/<id>/<branch>`.
//! Refs, `HEAD` and the index are steps of the journal like any other; `index.lock` is ours meanwhile.
//!
//! Nothing of the fork's configuration is read and no hook runs; commits come over byte by byte.

mod index;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use index::lock_index;
pub(crate) use index::unlock_index;

use super::Source;
use super::changes::{Changes, What};
use super::journal::Op;
use super::parent::Parent;
use super::preserve::Touch;
use super::repository::{Repository, finish, output};
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
            step.branches(repository, source, &fork, say)?;
            step.head(repository, source, &fork, say)?;
        }
        let index = Repository::fork_file(source, "index");
        let unmoved = repository.commit("HEAD")? == source.base_ref;
        if let Some(index) = index.filter(|_| unmoved) {
            step.index = Some((index, source.base_ref.clone()));
        }
        let idle = step.refs.is_empty() && step.head.is_none() && step.index.is_none();
        Ok((!idle).then_some(step))
    }

    fn branches(&mut self, repo: &Repository, source: &Source, fork: &ForkRefs, say: &mut Vec<String>) -> Result<()> {
        let ours = repo.all_refs()?;
        let head = repo.read_head()?;
        let elsewhere = repo.checked_out_elsewhere()?;
        for (name, new) in &fork.refs {
            let carried = ["refs/heads/", "refs/tags/", "refs/notes/"].iter().any(|kind| name.starts_with(kind));
            if (!carried && name != "refs/stash") || !fork.written.contains(name) {
                continue;
            }
            let old = ours.get(name);
            if old == Some(new) {
                continue;
            }
            let short = name.strip_prefix("refs/heads/").unwrap_or(name);
            let is_branch = name.starts_with("refs/heads/");
            let moves_on = match old {
                None => true,
                Some(_) if !is_branch => false,
                Some(old) if repo.is_ancestor(source, new, old)? => continue,
                // Rewritten in the fork (amended, rebased) while the parent stood still: the old one is in the reflog.
                Some(old) if head == format!("ref: {name}") && Some(old) == source.base_ref.as_ref() => true,
                Some(old) => repo.is_ancestor(source, old, new)?,
            };
            if moves_on && name != "refs/stash" && !elsewhere.contains(name) {
                let verb = if old.is_some() { "advances" } else { "is new" };
                say.push(format!("{short} {verb}, at {}", &new[..new.len().min(12)]));
                self.refs.push((name.clone(), old.cloned(), new.clone()));
            } else {
                let below = short.strip_prefix("refs/").unwrap_or(short);
                let aside = format!("refs/treefork/{}/{below}", source.id);
                if ours.get(&aside) != Some(new) {
                    say.push(format!("{short} has moved in the parent; the fork's commits land as {aside}"));
                    self.refs.push((aside.clone(), ours.get(&aside).cloned(), new.clone()));
                }
            }
        }
        Ok(())
    }

    fn head(&mut self, repo: &Repository, source: &Source, fork: &ForkRefs, say: &mut Vec<String>) -> Result<()> {
        let ours = repo.read_head()?;
        if fork.head == ours {
            return Ok(());
        }
        let unmoved = repo.commit("HEAD")? == source.base_ref;
        let lands = |name: &str| match self.refs.iter().find(|(n, ..)| n == name) {
            Some(_) => true,
            None => repo.read_ref(name).is_ok_and(|value| value.as_ref() == fork.refs.get(name)),
        };
        match (fork.head.strip_prefix("ref: "), ours.strip_prefix("ref: ")) {
            (Some(branch), _) if unmoved && lands(branch) => {
                say.push(format!("HEAD goes to {branch}, as in the fork"));
                self.head = Some((ours, fork.head.clone()));
            }
            (None, None) if unmoved => {
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
        touches.extend([replaced("index".into()), replaced("index.lock".into())]);
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
    for name in view.list(dir)? {
        let path = dir.join(&name);
        if view.is_dir(&path) {
            collect(view, &path, found)?;
        } else if let Some(content) = view.read(&path)? {
            found.push((path, content));
        }
    }
    Ok(())
}

/// Whether this is the hexadecimal name of an object (SHA-1 or SHA-256).
fn is_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

impl Repository {
    /// The commit that a revision names.
    pub(crate) fn commit(&self, revision: &str) -> Result<Option<String>> {
        let revision = format!("{revision}^{{commit}}");
        let output = output(&mut self.git.command(["rev-parse", "--verify", "--quiet", &revision]), &[])?;
        let text = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
        Ok(output.status.success().then_some(text))
    }

    /// The text of `HEAD`: `ref: NAME` or a commit.
    pub(crate) fn read_head(&self) -> Result<String> {
        let path = self.repo.git_dir.join("HEAD");
        Ok(fs::read_to_string(&path).context("cannot read", &path)?.trim_end().to_owned())
    }

    /// The object that a ref names.
    pub(crate) fn read_ref(&self, name: &str) -> Result<Option<String>> {
        let output = output(&mut self.git.command(["rev-parse", "--verify", "--quiet", name]), &[])?;
        let text = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
        Ok(output.status.success().then_some(text))
    }

    pub(super) fn all_refs(&self) -> Result<BTreeMap<String, String>> {
        let text = self.git.run(["for-each-ref", "--format=%(objectname) %(refname)"])?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let pairs = text.lines().filter_map(|line| line.split_once(' '));
        Ok(pairs.map(|(id, name)| (name.to_owned(), id.to_owned())).collect())
    }

    /// Branches that other work trees of the repository are on.
    fn checked_out_elsewhere(&self) -> Result<BTreeSet<String>> {
        let text = self.git.run(["worktree", "list", "--porcelain"])?;
        let text = String::from_utf8_lossy(&text).into_owned();
        // The first block is the main work tree, which is the parent.
        let others = text.split("\n\n").skip(1).flat_map(str::lines);
        Ok(others.filter_map(|line| line.strip_prefix("branch ")).map(str::to_owned).collect())
    }

    pub(super) fn is_ancestor(&self, source: &Source, old: &str, new: &str) -> Result<bool> {
        let mut command = self.with_fork_objects(source, &["merge-base", "--is-ancestor", old, new]);
        // An error (no such commit) is no proof of anything.
        Ok(output(&mut command, &[])?.status.success())
    }

    /// Sets a ref, if it is what it should be.
    pub(crate) fn update_ref(&self, name: &str, before: Option<&str>, after: Option<&str>, fork: &str) -> Result<()> {
        let message = format!("treefork: merge of {fork}");
        let before = before.unwrap_or("");
        match after {
            Some(after) => self.git.run(["update-ref", "--create-reflog", "-m", &message, name, after, before])?,
            None => self.git.run(["update-ref", "-d", "-m", &message, name, before])?,
        };
        Ok(())
    }

    /// Sets `HEAD` to `ref: NAME` or to a commit.
    pub(crate) fn set_head(&self, to: &str, fork: &str) -> Result<()> {
        let message = format!("treefork: merge of {fork}");
        match to.strip_prefix("ref: ") {
            Some(name) => self.git.run(["symbolic-ref", "-m", &message, "HEAD", name])?,
            None => self.git.run(["update-ref", "--no-deref", "-m", &message, "HEAD", to])?,
        };
        Ok(())
    }

    /// Copies what these objects lead to and the parent lacks, as one pack, and checks that nothing is missing.
    fn import(&self, source: &Source, wanted: &BTreeSet<String>) -> Result<()> {
        if wanted.is_empty() {
            return Ok(());
        }
        let mut revisions: Vec<String> = wanted.iter().cloned().collect();
        revisions.extend(self.all_refs()?.values().map(|id| format!("^{id}")));
        revisions.extend(self.commit("HEAD")?.map(|id| format!("^{id}")));
        let mut input = revisions.join("\n").into_bytes();
        input.push(b'\n');
        let pack = finish(&mut self.with_fork_objects(source, &["pack-objects", "--revs", "--stdout", "-q"]), &input)?;
        // The number of objects stands in the header of a pack, after "PACK" and the version.
        if pack.get(8..12).is_some_and(|count| count != [0; 4]) {
            finish(&mut self.git.command(["index-pack", "--stdin"]), &pack)?;
        }
        let check = ["rev-list", "--objects", "--quiet", "--stdin"];
        finish(&mut self.git.command(check), &input).map(drop)
    }
}
