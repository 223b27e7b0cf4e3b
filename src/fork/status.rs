//! What can be said about a fork at the moment: beside its record, what is measured and asked.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use serde::Serialize;

use super::{Listed, Record, State, Store, base, find};
use crate::error::Result;
use crate::layer::manifest::{self, Manifest};
use crate::names::RelPath;
use crate::overlay::{self, Usage};
use crate::server::{Client, Drift, MOUNT_KIND};
use crate::strategy::{Guarantees, Way, strategy};
use crate::sys::mounts;

/// How a fork's files are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mount {
    /// Mounted, and served.
    Alive,
    /// It should be mounted, and is not, or nobody serves it. The next command that needs it mounts it again.
    Stale,
    /// Not mounted, nor meant to be: it is being made, merged or taken away.
    Absent,
    /// Plain files.
    Files,
    /// Mounted by whoever uses it, in a namespace of its own.
    Private,
}

impl Mount {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Mount::Alive => "alive",
            Mount::Stale => "stale",
            Mount::Absent => "absent",
            Mount::Files => "files",
            Mount::Private => "private",
        }
    }
}

/// A fork and its condition. The stable shape of `list --json` and `show --json`.
#[derive(Debug, Serialize)]
pub struct Status {
    /// The record.
    #[serde(flatten)]
    pub record: Record,
    /// The caller's own directory in the fork.
    #[serde(with = "crate::names::json")]
    pub path: PathBuf,
    /// How its files are there.
    pub mount: Mount,
    /// Whether the process it belongs to still runs; `null` where that cannot be told.
    pub owner_alive: Option<bool>,
    /// Seconds since it was made.
    pub age_seconds: u64,
    /// What is wrong with its base, if anything: gone, or another directory.
    pub base_problem: Option<String>,
    /// What its changes take on the disk, in bytes.
    pub upper_bytes: u64,
    /// What counts against its limit of size, in bytes, files among it that are deleted and still open; `null` where it has
    /// no limits.
    pub used_bytes: Option<u64>,
    /// How many objects count against its limit of files; `null` where it has no limits.
    pub used_files: Option<u64>,
    /// How many objects it has written, replaced or deleted, outside of git directories; `null` in a list where that takes
    /// a comparison of everything, and for work trees. A merge may find fewer: what git ignores, and what was taken back.
    pub changes: Option<u64>,
    /// The same in git directories: what git writes for itself.
    pub git_changes: Option<u64>,
    /// Base paths that changed under it, below the base's root.
    pub drift: Vec<Drifted>,
    /// Some directories of the base could not be watched: changes there are noticed a moment later.
    pub unwatched: bool,
    /// What it may be relied on for.
    pub guarantees: Guarantees,
}

/// A path of the base that changed under a fork.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Drifted(#[serde(with = "crate::names::json")] pub PathBuf);

/// The condition of all forks, in the order of [`find::all`]; those that cannot be read with what is wrong.
pub fn all(store: &Store) -> Result<Vec<(super::Id, Result<Status>)>> {
    let look = Look::new(store)?;
    Ok(find::all(store)?.into_iter().map(|(id, record): Listed| (id, record.map(|r| look.at(r, false)))).collect())
}

/// The condition of one fork.
pub fn of(store: &Store, record: Record) -> Result<Status> {
    Ok(Look::new(store)?.at(record, true))
}

/// One look at what is mounted and served, for any number of forks.
struct Look<'a> {
    store: &'a Store,
    /// What is mounted where.
    mounted: HashMap<PathBuf, String>,
    /// The forks that the running server serves, with what they take where that is limited.
    served: HashMap<String, Option<Usage>>,
    client: Client,
}

impl<'a> Look<'a> {
    fn new(store: &'a Store) -> Result<Self> {
        let mounted = mounts().unwrap_or_default().into_iter().map(|m| (m.point, m.kind)).collect();
        let client = Client::new(store.root());
        // A server of another version or one that does not answer: its forks count as stale, and that is shown.
        let served = client.mounts().unwrap_or_else(|e| {
            log::warn!("{e}");
            None
        });
        let served = served.unwrap_or_default().into_iter().map(|mount| (mount.id, mount.usage)).collect();
        Ok(Self { store, mounted, served, client })
    }

    /// `compare` where a copy may be compared with what it was made from, object by object.
    fn at(&self, record: Record, compare: bool) -> Status {
        let dir = self.store.fork(&record.id);
        let mount = self.mount(&record, &dir);
        let drift = match mount {
            Mount::Alive => self.client.drift(record.id.as_str()).unwrap_or_default(),
            Mount::Private if self.serves(&record) => self.client.drift(record.id.as_str()).unwrap_or_default(),
            Mount::Stale | Mount::Absent | Mount::Files | Mount::Private => Drift::default(),
        };
        let (upper_bytes, changes) = match record.strategy {
            Way::Overlay => {
                let (bytes, changes) = measure(&dir.join("upper"), &dir.join("work"));
                (bytes, Some(changes))
            }
            Way::Reflink | Way::Copy | Way::Worktree => {
                let copied = compare && record.strategy != Way::Worktree;
                (measure(&dir.join("mnt"), &dir).0, copied.then(|| compared(&dir)).flatten())
            }
        };
        let used = self.used(&record, &dir);
        Status {
            path: record.path(&dir),
            mount,
            owner_alive: record.owner.is_alive().ok(),
            age_seconds: record.age().as_secs(),
            base_problem: base::reopen(&record.base).err().map(|e| e.to_string()),
            upper_bytes,
            used_bytes: used.map(|used| used.size),
            used_files: used.map(|used| used.files),
            changes: changes.map(|changes| changes.files),
            git_changes: changes.map(|changes| changes.git),
            drift: drift.paths.into_iter().map(Drifted).collect(),
            unwatched: drift.unwatched,
            guarantees: strategy(record.strategy).guarantees(),
            record,
        }
    }

    /// What a fork with limits takes.
    fn used(&self, record: &Record, dir: &Path) -> Option<Usage> {
        if record.limits.is_nothing() {
            return None;
        }
        let known = self.served.get(record.id.as_str()).copied().flatten();
        known.or_else(|| overlay::usage_of(&dir.join("upper"), &dir.join("work")).ok())
    }

    fn serves(&self, record: &Record) -> bool {
        self.served.contains_key(record.id.as_str())
    }

    fn mount(&self, record: &Record, dir: &Path) -> Mount {
        if record.strategy != Way::Overlay {
            return Mount::Files;
        }
        if record.private_mount {
            return Mount::Private;
        }
        let mounted = self.mounted.get(&dir.join("mnt")).is_some_and(|kind| kind == MOUNT_KIND);
        let served = self.serves(record);
        match (mounted && served, record.state) {
            (true, _) => Mount::Alive,
            (false, State::Live) => Mount::Stale,
            (false, _) => Mount::Absent,
        }
    }
}

/// How many objects changed, other than directories.
#[derive(Clone, Copy, Debug, Default)]
struct Changes {
    files: u64,
    git: u64,
}

impl Changes {
    fn count(&mut self, path: &Path) {
        let git = path.components().any(|component| component.as_os_str() == ".git");
        *(if git { &mut self.git } else { &mut self.files }) += 1;
    }
}

/// Allocated bytes below a directory, and the entries other than directories that it has, without those that the work
/// area says were put there. What cannot be read counts as nothing; nothing is followed.
fn measure(root: &Path, work: &Path) -> (u64, Changes) {
    let prepared = Manifest::prepared(work).unwrap_or_default();
    let (mut bytes, mut changes) = (0, Changes::default());
    let mut todo = vec![root.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            bytes += meta.blocks() * 512;
            let path = entry.path();
            if meta.is_dir() {
                todo.push(path);
                continue;
            }
            let below = path.strip_prefix(root).unwrap_or(&path);
            let put_there = prepared.as_ref().zip(RelPath::new(below)).is_some_and(|(prepared, below)| {
                manifest::look_at(&path).is_ok_and(|stat| prepared.is_as_made(&below, &stat))
            });
            if !put_there {
                changes.count(below);
            }
        }
    }
    (bytes, changes)
}

/// What a copy has changed; `None` where that cannot be told.
fn compared(dir: &Path) -> Option<Changes> {
    let differences = Manifest::read(&dir.join("work")).and_then(|made| made.compare(&dir.join("mnt"))).ok()?;
    let mut changes = Changes::default();
    let is_dir = |mode: u32| FileType::from_raw_mode(mode) == FileType::Directory;
    for difference in differences {
        let was_dir = difference.was.is_none_or(|was| is_dir(was.fork.mode));
        if !was_dir || difference.now.is_some_and(|now| !now.is_dir()) {
            changes.count(difference.path.as_path());
        }
    }
    Some(changes)
}
