//! The refs and objects of the parent's repository: read, and written.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt;

use rustix::fs::CWD;

use super::super::Source;
use super::super::repository::{Repository, finish, output};
use crate::error::{Context, Result};
use crate::sys::At;
use crate::sys::calls::File;

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
        let bytes = File::read(&path).context("cannot read", &path)?;
        Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
    }

    /// The object that a ref names.
    pub(crate) fn read_ref(&self, name: &str) -> Result<Option<String>> {
        let output = output(&mut self.git.command(["rev-parse", "--verify", "--quiet", name]), &[])?;
        let text = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
        Ok(output.status.success().then_some(text))
    }

    pub(crate) fn all_refs(&self) -> Result<BTreeMap<String, String>> {
        let text = self.git.run(["for-each-ref", "--format=%(objectname) %(refname)"])?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let pairs = text.lines().filter_map(|line| line.split_once(' '));
        Ok(pairs.map(|(id, name)| (name.to_owned(), id.to_owned())).collect())
    }

    /// Branches that other work trees of the repository are on.
    pub(super) fn checked_out_elsewhere(&self) -> Result<BTreeSet<String>> {
        let text = self.git.run(["worktree", "list", "--porcelain"])?;
        let text = String::from_utf8_lossy(&text).into_owned();
        // The first block is the main work tree, which is the parent.
        let others = text.split("\n\n").skip(1).flat_map(str::lines);
        Ok(others.filter_map(|line| line.strip_prefix("branch ")).map(str::to_owned).collect())
    }

    pub(crate) fn is_ancestor(&self, source: &Source, old: &str, new: &str) -> Result<bool> {
        let mut command = self.with_fork_objects(source, &["merge-base", "--is-ancestor", old, new]);
        // An error (no such commit) is no proof of anything.
        Ok(output(&mut command, &[])?.status.success())
    }

    /// Sets a ref, if it is what it should be.
    pub(crate) fn update_ref(&self, name: &str, before: Option<&str>, after: Option<&str>, fork: &str) -> Result<()> {
        let message = format!("treefork: merge of {fork}");
        let before = before.unwrap_or("");
        match after {
            Some(after) => self.write(&["update-ref", "--create-reflog", "-m", &message, name, after, before], &[]),
            None => self.write(&["update-ref", "-d", "-m", &message, name, before], &[]),
        }
    }

    /// Sets `HEAD` to `ref: NAME` or to a commit.
    pub(crate) fn set_head(&self, to: &str, fork: &str) -> Result<()> {
        let message = format!("treefork: merge of {fork}");
        match to.strip_prefix("ref: ") {
            Some(name) => self.write(&["symbolic-ref", "-m", &message, "HEAD", name], &[]),
            None => self.write(&["update-ref", "--no-deref", "-m", &message, "HEAD", to], &[]),
        }
    }

    /// Copies what these objects lead to and the parent lacks, as one pack, and checks that nothing is missing.
    pub(super) fn import(&self, source: &Source, wanted: &BTreeSet<String>) -> Result<()> {
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
            self.write(&["index-pack", "--stdin"], &pack)?;
        }
        let check = ["rev-list", "--objects", "--quiet", "--stdin"];
        finish(&mut self.git.command(check), &input).map(drop)
    }

    /// Runs a command that writes to the repository, as its owner where this process is root: what it makes must not be in
    /// the owner's way.
    pub(super) fn write(&self, args: &[&str], input: &[u8]) -> Result<()> {
        let mut command = self.git.command(args);
        if let Some((uid, gid)) = self.foreign_owner() {
            command.uid(uid).gid(gid);
            // Where the owner does not get to it, as below a directory of root's alone, it stays a matter of root.
            if output(&mut command, input)?.status.success() {
                return Ok(());
            }
            command = self.git.command(args);
        }
        finish(&mut command, input).map(drop)
    }

    /// Owner and group of the git directory, where this process is root and that is somebody else's.
    pub(super) fn foreign_owner(&self) -> Option<(u32, u32)> {
        let stat = At::new(&CWD, &self.repo.git_dir).stat().ok()?;
        (rustix::process::geteuid().is_root() && stat.uid != 0).then_some((stat.uid, stat.gid))
    }
}
