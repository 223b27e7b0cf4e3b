//! The index of the parent's repository: what has to change in it, the new one in the stage, its lock.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::super::Source;
use super::super::compare::{self, skip};
use super::super::journal::{Op, Seen};
use super::super::repository::{Repository, finish};
use crate::copy;
use crate::error::{Context, Result};
use crate::names::RelPath;
use crate::sys::calls::{self, File};
use crate::sys::{At, open_root};

/// One change of the index.
pub(super) struct IndexEdit {
    mode: String,
    pub(super) id: String,
    path: Vec<u8>,
}

impl IndexEdit {
    /// Whether it names an object of this repository (not a removal, not a submodule's commit).
    pub(super) fn is_blob(&self) -> bool {
        self.mode != "0" && self.mode != "160000"
    }
}

type IndexEntries = BTreeMap<Vec<u8>, (String, String)>;

/// The slot of the new index in the stage.
const INDEX_SLOT: &str = "index";

impl Repository {
    /// What has to change in the parent's index: what the fork's differs in from the tree both came from, except where
    /// the parent has staged something itself.
    pub(super) fn index_edits(&self, source: &Source, index: &Path, tree: Option<&str>) -> Result<Vec<IndexEdit>> {
        let ours = entries(&self.git.run(["ls-files", "--stage", "-z"])?);
        let mut command = self.with_fork_objects(source, &["ls-files", "--stage", "-z"]);
        let theirs = entries(&finish(command.env("GIT_INDEX_FILE", index), &[])?);
        let base = match tree {
            Some(tree) => tree_entries(&self.git.run(["ls-tree", "-r", "-z", tree])?),
            None => IndexEntries::new(),
        };
        let paths: BTreeSet<&Vec<u8>> = ours.keys().chain(theirs.keys()).collect();
        let mut edits = Vec::new();
        for path in paths {
            let (mine, fork) = (ours.get(path), theirs.get(path));
            if mine != base.get(path) || mine == fork {
                continue;
            }
            let (mode, id) = match fork {
                Some((mode, id)) => (mode.clone(), id.clone()),
                None => ("0".to_owned(), "0".repeat(mine.map_or(40, |(_, id)| id.len()))),
            };
            edits.push(IndexEdit { mode, id, path: path.clone() });
        }
        Ok(edits)
    }

    /// Makes the new index in the stage.
    pub(super) fn stage_index(&self, stage: &OwnedFd, edits: &[IndexEdit]) -> Result<Op> {
        let cannot = "cannot stage the index of";
        let path = RelPath::root().join(OsStr::new(".git")).join(OsStr::new("index"));
        let dir = crate::sys::open_root(&self.repo.git_dir).context(cannot, &self.repo.top)?;
        let (from, to) = (At::new(&dir, "index"), At::new(stage, INDEX_SLOT));
        let old = from.try_stat().context(cannot, &self.repo.top)?;
        if old.is_some() {
            let bytes = compare::read_all(from).context(cannot, &self.repo.top)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            let mut file = File::from(to.create(flags, 0o600).context(cannot, &self.repo.top)?);
            file.put(&bytes).context(cannot, &self.repo.top)?;
        }
        let mut input = Vec::new();
        for IndexEdit { mode, id, path } in edits {
            input.extend_from_slice(format!("{mode} {id}\t").as_bytes());
            input.extend_from_slice(path);
            input.push(0);
        }
        let mut command = self.git.command(["update-index", "-z", "--index-info"]);
        let name = std::os::fd::AsRawFd::as_raw_fd(stage);
        // The stage is open here, not there: git gets it by the path of this process's descriptor.
        let staged = format!("/proc/{}/fd/{name}/{INDEX_SLOT}", std::process::id());
        finish(command.env("GIT_INDEX_FILE", staged), &input)?;
        let made = old.as_ref().map_or(Ok(()), |old| {
            copy::metadata(from, to, old, skip).and_then(|()| {
                // Its times are those of the new content.
                to.utimens(&rustix::fs::Timestamps {
                    last_access: rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
                    last_modification: rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
                })
            })
        });
        made.context(cannot, &self.repo.top)?;
        if let Some((uid, gid)) = self.foreign_owner().filter(|_| old.is_none()) {
            to.chown(Some(uid), Some(gid)).context(cannot, &self.repo.top)?;
        }
        crate::durable::sync_fd(std::os::fd::AsFd::as_fd(&to.open(OFlags::PATH).context(cannot, &self.repo.top)?))
            .context(cannot, &self.repo.top)?;
        let new = Seen::from(&to.stat().context(cannot, &self.repo.top)?);
        let slot = INDEX_SLOT.to_owned();
        Ok(match old {
            Some(old) => Op::Swap { path, slot, old: (&old).into(), new, direct: false },
            None => Op::Attach { path, slot, new, direct: false },
        })
    }

    /// Gives the index the attributes of the files as they are now, so that nobody reads them again. Best effort: git
    /// does the same by itself whenever it looks.
    pub(crate) fn refresh(&self) {
        // It fails where files differ from the index, which is nothing but the truth.
        let _ = self.write(&["update-index", "-q", "--refresh"], &[]);
        // Git does not sync it, and some file systems have an empty file at its place after a power cut.
        let index = self.git.top().join(".git/index");
        let synced =
            calls::open(&index, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).and_then(|index| calls::fsync(&index));
        if let Err(e) = synced {
            log::debug!("cannot sync {index:?}: {e}");
        }
    }
}

/// What `ls-files --stage -z` printed: mode and object by path. Unmerged paths count as none.
fn entries(text: &[u8]) -> IndexEntries {
    let mut found = IndexEntries::new();
    for line in text.split(|&b| b == 0).filter(|line| !line.is_empty()) {
        let Some(tab) = line.iter().position(|&b| b == b'\t') else { continue };
        let words = String::from_utf8_lossy(&line[..tab]).into_owned();
        let mut words = words.split(' ');
        if let (Some(mode), Some(id), Some("0")) = (words.next(), words.next(), words.next()) {
            found.insert(line[tab + 1..].to_vec(), (mode.to_owned(), id.to_owned()));
        }
    }
    found
}

/// What `ls-tree -r -z` printed.
fn tree_entries(text: &[u8]) -> IndexEntries {
    let mut found = IndexEntries::new();
    for line in text.split(|&b| b == 0).filter(|line| !line.is_empty()) {
        let Some(tab) = line.iter().position(|&b| b == b'\t') else { continue };
        let words = String::from_utf8_lossy(&line[..tab]).into_owned();
        let mut words = words.split(' ');
        if let (Some(mode), Some(_kind), Some(id)) = (words.next(), words.next(), words.next()) {
            found.insert(line[tab + 1..].to_vec(), (mode.to_owned(), id.to_owned()));
        }
    }
    found
}

/// What the lock is called in `.git` until all of its text is on the disk.
pub(super) const UNFINISHED_LOCK: &str = "index.lock.treefork";

fn lock_text(fork: &str) -> String {
    format!("treefork merge of {fork}\n")
}

/// Takes the lock of the index, as git does. It says whose it is from the first moment on, also after a power cut: one
/// that says nothing could be anybody's, and would stay.
pub(super) fn lock_index(top: &Path, fork: &str) -> Result<()> {
    let path = top.join(".git/index.lock");
    let lock = || {
        let dir = open_root(&top.join(".git"))?;
        let written = At::new(&dir, UNFINISHED_LOCK);
        match written.unlink() {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e),
        }
        let mut file = File::from(written.create(OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, 0o666)?);
        let locked = file.put(lock_text(fork).as_bytes()).and_then(|()| {
            calls::fsync(&file)?;
            written.rename_with(At::new(&dir, "index.lock"), RenameFlags::NOREPLACE)
        });
        locked.inspect_err(|_| {
            // The next merge takes it away.
            let _ = written.unlink();
        })
    };
    lock().context("cannot lock the index of the parent's repository by", &path)
}

/// Lets go of the lock of the index, if it is ours.
pub(crate) fn unlock_index(top: &Path, fork: &str) -> Result<()> {
    let path = top.join(".git/index.lock");
    match File::read(&path) {
        Ok(text) if text == lock_text(fork).as_bytes() => calls::unlink(&path).context("cannot remove", &path),
        _ => Ok(()),
    }
}
