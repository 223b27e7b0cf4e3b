//! The preserved layers of a base: `bases/<key>/preserved/<n>`, numbered in the order of the merges that made them.
//!
//! A fork reads through those that are younger than itself. Which they are is settled under the base's lock (`lock`
//! beside them): a merge holds it from its first step to its last, and the maker of a fork from before it counts the
//! layers until the fork is complete, so that no fork is made in the middle of a merge.

use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;

use super::forks::Forks;
use super::{Base, Id, Listed, Record, State, Store, find, trash};
use crate::durable::{CancelToken, FileLock, Wait, sync_dir};
use crate::error::{Context, Kind, Result};
use crate::layer::preserved::{self, Keeper};
use crate::server::Client;
use crate::strategy::Way;
use crate::sys::{calls, open_root};

/// The name of the directory of all preserved layers, in a base's.
pub const PRESERVED: &str = "preserved";
/// Of directories in a base's; the store's own keeps others out.
const MODE: Mode = Mode::RWXU;
/// A layer that is being made.
const BEGUN: &str = "begun";

/// The number of the youngest preserved layer of a base, by the base's directory in the store; 0 where there is none.
pub fn youngest(base_dir: &Path) -> Result<u64> {
    Ok(numbers(base_dir)?.last().copied().unwrap_or(0))
}

/// The numbers of the layers of a base, oldest first.
fn numbers(base_dir: &Path) -> Result<Vec<u64>> {
    let dir = base_dir.join(PRESERVED);
    let names = calls::names_if_any(&dir).context("cannot list the layers", &dir)?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Where the next layer of a base comes to be.
fn next(base_dir: &Path) -> Result<PathBuf> {
    Ok(base_dir.join(PRESERVED).join((youngest(base_dir)? + 1).to_string()))
}

/// The layers of a base that are younger than `born`, oldest first, in the store at this path.
pub(super) fn layers(store: &Path, base: &Base, born: u64) -> Result<Vec<PathBuf>> {
    let dir = store.join("bases").join(base.key());
    let younger = numbers(&dir)?.into_iter().filter(|&n| n > born);
    Ok(younger.map(|n| dir.join(PRESERVED).join(n.to_string())).collect())
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
        if calls::exists(&layer).context("cannot look for", &layer)? {
            // A merge was killed while it made it; nobody was told of it.
            trash::discard_other(self.forks.store(), &layer)?;
        }
        calls::make_dirs(&layer, MODE).context("cannot make the layer", &layer)?;
        Ok(Some(layer))
    }

    fn expect(&self, layer: &Path) -> Result<()> {
        let client = Client::new(self.forks.store().root());
        self.readers()?.iter().try_for_each(|record| client.expect(record.id.as_str(), layer).map(|_| ()))
    }

    fn next(&self, base_dir: &Path) -> Result<Option<PathBuf>> {
        if self.readers()?.is_empty() {
            return Ok(None);
        }
        next(base_dir).map(Some)
    }

    fn withdraw(&self, layer: &Path) -> Result<()> {
        withdraw(self.forks.store(), layer)
    }

    fn complete(&self, base_dir: &Path, begun: &Path) -> Result<()> {
        let layer = next(base_dir)?;
        calls::rename(begun, &layer).context("cannot publish the layer", &layer)?;
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
            record.born = youngest(base_dir)?;
        }
        record.write(&dir)
    }
}

/// Withdraws a layer whose merge was undone: every fork that reads through it reads in the base again. Nothing to do where
/// the merge was undone before it was made.
pub fn withdraw(store: &Store, layer: &Path) -> Result<()> {
    finish_begun(store, layer)?;
    let dir = match open_root(layer) {
        Err(Errno::NOENT) => return Ok(()),
        other => other.context("cannot open the layer", layer)?,
    };
    let client = Client::new(store.root());
    for record in readable(store)? {
        client.withdraw(record.id.as_str(), layer)?;
    }
    preserved::empty(&dir).context("cannot empty the layer", layer)
}

/// A merge that was broken off while it made its layer leaves that begun. Where its attributes are complete, the objects may
/// have changed as those say, and it becomes the layer that it was to be, with nothing in it; else it goes.
fn finish_begun(store: &Store, layer: &Path) -> Result<()> {
    let begun = layer.with_file_name(BEGUN);
    let dir = match open_root(&begun) {
        Err(Errno::NOENT) => return Ok(()),
        other => other.context("cannot open the layer", &begun)?,
    };
    if preserved::read_overrides(&dir).is_err() {
        return trash::discard_other(store, &begun);
    }
    preserved::empty(&dir).context("cannot empty the layer", &begun)?;
    calls::rename(&begun, layer).context("cannot publish the layer", layer)?;
    layer.parent().map_or(Ok(()), sync_dir)?;
    let client = Client::new(store.root());
    let base = layer.parent().and_then(Path::parent).and_then(Path::file_name);
    for record in readable(store)? {
        if record.strategy == Way::Overlay && base.is_some_and(|key| key == record.base.key().as_str()) {
            client.preserve(record.id.as_str(), layer)?;
        }
    }
    Ok(())
}

/// The records of all forks but those that are damaged. One that cannot be read for now may be of a fork that is to be spared.
fn readable(store: &Store) -> Result<Vec<Record>> {
    let undamaged = |(_, record): Listed| match record {
        Err(e) if e.kind() == Kind::Corrupt => None,
        other => Some(other),
    };
    find::all(store)?.into_iter().chain(trash::kept(store)?).filter_map(undamaged).collect()
}

impl Forks {
    /// Locks a base against merges into it.
    pub(super) fn lock_base(&self, base: &Base, what: &str, wait: Wait, cancel: &CancelToken) -> Result<FileLock> {
        let dir = self.store().base(&base.key());
        calls::make_dirs(&dir, MODE).context("cannot make the directory", &dir)?;
        FileLock::acquire_with(&dir.join("lock"), what, wait, cancel, |_| {})
    }

    /// The live overlays of a base: those that a merge into it has to preserve the old state for.
    pub fn readers(&self, base: &Base) -> Result<Vec<Record>> {
        let reads = |record: &Record| {
            record.strategy == Way::Overlay
                && record.base.path == base.path
                && record.base.ident == base.ident
                && !matches!(record.state, State::Removing)
        };
        // What waits in the trash may be restored.
        Ok(readable(self.store())?.into_iter().filter(reads).collect())
    }

    /// Discards the preserved layers of a base that no fork reads through any more. A merge or a create at work there is
    /// left alone: whoever comes next does it.
    pub(super) fn drop_layers(&self, base: &Base) -> Result<()> {
        let dir = self.store().base(&base.key());
        if numbers(&dir)?.is_empty() {
            return Ok(());
        }
        let Ok(_lock) = self.lock_base(base, "dropping of preserved layers", Wait::No, &CancelToken::new()) else {
            return Ok(());
        };
        let readers = self.readers(base)?;
        let oldest = readers.iter().map(|record| record.born).min().unwrap_or(u64::MAX);
        // While anybody counts from the youngest number it stays taken, or a new layer would get it once more.
        let youngest = if readers.is_empty() { u64::MAX } else { youngest(&dir)? };
        for n in numbers(&dir)?.into_iter().filter(|&n| n <= oldest && n < youngest) {
            trash::discard_other(self.store(), &dir.join(PRESERVED).join(n.to_string()))?;
        }
        Ok(())
    }
}
