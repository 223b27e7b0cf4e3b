//! What can be said about a fork at the moment: beside its record, what is measured and asked.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Listed, Record, State, Store, base, find};
use crate::error::Result;
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
    /// How many entries of its private layer say something; `null` where that takes a comparison with the base.
    pub changes: Option<u64>,
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
    Ok(find::all(store)?.into_iter().map(|(id, record): Listed| (id, record.map(|r| look.at(r)))).collect())
}

/// The condition of one fork.
pub fn of(store: &Store, record: Record) -> Result<Status> {
    Ok(Look::new(store)?.at(record))
}

/// One look at what is mounted and served, for any number of forks.
struct Look<'a> {
    store: &'a Store,
    /// What is mounted where.
    mounted: HashMap<PathBuf, String>,
    /// The forks that the running server serves.
    served: Vec<String>,
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
        let served = served.unwrap_or_default().into_iter().map(|mount| mount.id).collect();
        Ok(Self { store, mounted, served, client })
    }

    fn at(&self, record: Record) -> Status {
        let dir = self.store.fork(&record.id);
        let mount = self.mount(&record, &dir);
        let drift = match mount {
            Mount::Alive => self.client.drift(record.id.as_str()).unwrap_or_default(),
            Mount::Private if self.serves(&record) => self.client.drift(record.id.as_str()).unwrap_or_default(),
            Mount::Stale | Mount::Absent | Mount::Files | Mount::Private => Drift::default(),
        };
        let (upper_bytes, changes) = match record.strategy {
            Way::Overlay => {
                let (bytes, entries) = measure(&dir.join("upper"));
                (bytes, Some(entries))
            }
            Way::Reflink | Way::Copy | Way::Worktree => (measure(&dir.join("mnt")).0, None),
        };
        Status {
            path: record.path(&dir),
            mount,
            owner_alive: record.owner.is_alive().ok(),
            age_seconds: record.age().as_secs(),
            base_problem: base::reopen(&record.base).err().map(|e| e.to_string()),
            upper_bytes,
            changes,
            drift: drift.paths.into_iter().map(Drifted).collect(),
            unwatched: drift.unwatched,
            guarantees: strategy(record.strategy).guarantees(),
            record,
        }
    }

    fn serves(&self, record: &Record) -> bool {
        self.served.iter().any(|id| id == record.id.as_str())
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

/// Allocated bytes below a directory, and how many entries other than plain directories it has. What cannot be read
/// counts as nothing; nothing is followed.
fn measure(root: &Path) -> (u64, u64) {
    let (mut bytes, mut entries) = (0, 0);
    let mut todo = vec![root.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            bytes += meta.blocks() * 512;
            if meta.is_dir() {
                todo.push(entry.path());
            } else {
                entries += 1;
            }
        }
    }
    (bytes, entries)
}
