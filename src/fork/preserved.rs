//! The preserved layers of a base: `bases/<key>/preserved/<n>`, numbered in the order of the merges that made them.
//!
//! A fork reads through those that are younger than itself. Which they are is settled under the base's lock (`lock`
//! beside them): a merge holds it from its first step to its last, and the maker of a fork from before it counts the
//! layers until the fork is complete, so that no fork is made in the middle of a merge.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::forks::Forks;
use super::{Base, Id, Record, State, Store, find, trash};
use crate::durable::{CancelToken, FileLock, Wait, sync_dir};
use crate::error::{Context, Result};
use crate::layer::preserved::{self, Keeper};
use crate::server::Client;
use crate::strategy::Way;
use crate::sys::open_root;

/// The name of the directory of all preserved layers, in a base's.
pub const PRESERVED: &str = "preserved";
/// A layer that is being made.
const BEGUN: &str = "begun";

/// The number of the youngest preserved layer of a base, by the base's directory in the store; 0 where there is none.
pub fn youngest(base_dir: &Path) -> u64 {
    numbers(base_dir).last().copied().unwrap_or(0)
}

/// The numbers of the layers of a base, oldest first.
fn numbers(base_dir: &Path) -> Vec<u64> {
    let entries = fs::read_dir(base_dir.join(PRESERVED)).into_iter().flatten().flatten();
    let mut numbers: Vec<u64> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

/// The layers of a base that are younger than `born`, oldest first, in the store at this path.
pub(super) fn layers(store: &Path, base: &Base, born: u64) -> Vec<PathBuf> {
    let dir = store.join("bases").join(base.key());
    let younger = numbers(&dir).into_iter().filter(|&n| n > born);
    younger.map(|n| dir.join(PRESERVED).join(n.to_string())).collect()
}

/// The forks that a merge into a base has to spare: all that read through it but the one that is merged, which becomes
/// part of it.
#[derive(Debug)]
pub struct Siblings<'a> {
    forks: &'a Forks,
    base: Base,
    merged: &'a Id,
}

impl<'a> Siblings<'a> {
    /// The siblings of the fork `merged`, as readers of `base`.
    pub fn of(forks: &'a Forks, base: Base, merged: &'a Id) -> Self {
        Self { forks, base, merged }
    }

    fn readers(&self) -> Result<Vec<Record>> {
        let mut readers = self.forks.readers(&self.base)?;
        readers.retain(|record| record.id != *self.merged);
        Ok(readers)
    }
}

impl Keeper for Siblings<'_> {
    fn begin(&self, base_dir: &Path) -> Result<Option<PathBuf>> {
        if self.readers()?.is_empty() {
            return Ok(None);
        }
        let layer = base_dir.join(PRESERVED).join(BEGUN);
        if layer.exists() {
            // A merge was killed while it made it; nobody was told of it.
            trash::discard_other(self.forks.store(), &layer)?;
        }
        fs::create_dir_all(&layer).context("cannot make the layer", &layer)?;
        Ok(Some(layer))
    }

    fn expect(&self, layer: &Path) -> Result<()> {
        let client = Client::new(self.forks.store().root());
        self.readers()?.iter().try_for_each(|record| client.expect(record.id.as_str(), layer).map(|_| ()))
    }

    fn next(&self, base_dir: &Path) -> Result<Option<PathBuf>> {
        let next = || base_dir.join(PRESERVED).join((youngest(base_dir) + 1).to_string());
        Ok((!self.readers()?.is_empty()).then(next))
    }

    fn withdraw(&self, layer: &Path) -> Result<()> {
        withdraw(self.forks.store(), layer)
    }

    fn complete(&self, base_dir: &Path, begun: &Path) -> Result<()> {
        let layer = base_dir.join(PRESERVED).join((youngest(base_dir) + 1).to_string());
        fs::rename(begun, &layer).context("cannot publish the layer", &layer)?;
        sync_dir(&base_dir.join(PRESERVED))?;
        let client = Client::new(self.forks.store().root());
        self.readers()?.iter().try_for_each(|record| client.preserve(record.id.as_str(), &layer).map(|_| ()))
    }

    fn landed(&self, base_dir: &Path, stays: bool) -> Result<()> {
        let dir = self.forks.store().fork(self.merged);
        let Some(mut record) = Record::read(&dir)? else { return Ok(()) };
        if !stays {
            return record.enter(State::Removing, &dir);
        }
        // Merged into another tree it goes on reading through the layers of its own base as before.
        if base_dir.ends_with(record.base.key()) {
            record.born = youngest(base_dir);
        }
        record.write(&dir)
    }
}

/// Withdraws a layer whose merge was undone: every fork that reads through it reads in the base again. Nothing to do where
/// the merge was undone before it was made.
pub fn withdraw(store: &Store, layer: &Path) -> Result<()> {
    let dir = match open_root(layer) {
        Err(Errno::NOENT) => return Ok(()),
        other => other.context("cannot open the layer", layer)?,
    };
    let client = Client::new(store.root());
    for (_, record) in find::all(store)? {
        if let Ok(record) = record {
            client.withdraw(record.id.as_str(), layer)?;
        }
    }
    preserved::empty(&dir).context("cannot empty the layer", layer)
}

impl Forks {
    /// Locks a base against merges into it.
    pub(super) fn lock_base(&self, base: &Base, what: &str, wait: Wait, cancel: &CancelToken) -> Result<FileLock> {
        let dir = self.store().base(&base.key());
        fs::create_dir_all(&dir).context("cannot make the directory", &dir)?;
        FileLock::acquire_with(&dir.join("lock"), what, wait, cancel, |_| {})
    }

    /// The live overlays of a base: those that a merge into it has to preserve the old state for.
    pub fn readers(&self, base: &Base) -> Result<Vec<Record>> {
        let forks = find::all(self.store())?.into_iter().filter_map(|(_, record)| record.ok());
        let reads = |record: &Record| {
            record.strategy == Way::Overlay
                && record.base.path == base.path
                && record.base.ident == base.ident
                && !matches!(record.state, State::Removing)
        };
        // What waits in the trash may be restored.
        let waiting = trash::kept(self.store())?.into_iter().filter_map(|(_, record)| record.ok());
        Ok(forks.chain(waiting).filter(reads).collect())
    }

    /// Discards the preserved layers of a base that no fork reads through any more. A merge or a create at work there is
    /// left alone: whoever comes next does it.
    pub(super) fn drop_layers(&self, base: &Base) -> Result<()> {
        let dir = self.store().base(&base.key());
        if numbers(&dir).is_empty() {
            return Ok(());
        }
        let Ok(_lock) = self.lock_base(base, "dropping of preserved layers", Wait::No, &CancelToken::new()) else {
            return Ok(());
        };
        let readers = self.readers(base)?;
        let oldest = readers.iter().map(|record| record.born).min().unwrap_or(u64::MAX);
        // While anybody counts from the youngest number it stays taken, or a new layer would get it once more.
        let youngest = if readers.is_empty() { u64::MAX } else { youngest(&dir) };
        for n in numbers(&dir).into_iter().filter(|&n| n <= oldest && n < youngest) {
            trash::discard_other(self.store(), &dir.join(PRESERVED).join(n.to_string()))?;
        }
        Ok(())
    }
}
