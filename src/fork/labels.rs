//! Which fork has which label, without a look at every record: `labels/LABEL` is a symbolic link whose target is the id.
//!
//! Entries are made and taken away under the store's lock, and believed only as far as the record they lead to says the
//! same. One that leads to no fork is what a removal or a killed command left: whoever wants the label next replaces it,
//! and gc takes it away. That a label without an entry is free counts only while `labels/.complete` names this boot: the
//! entries are not synced, so that a power cut may take some along. Where it does not (an older store, the first command
//! after a start) they are made anew from all records. Records stay what decides; the directory can be deleted at any time.
//!
//! A label is a file name as it is: it has no slash, is short, and begins with no dot. Where a file system takes two labels
//! for one name, or has no symbolic links, the entries are never complete, and labels are looked for in the records. So it is
//! for as long as there is a record that cannot be read: it may be put right.

use std::collections::BTreeMap;
use std::path::Path;

use rustix::fs::{CWD, Mode};
use rustix::io::Errno;

use super::{Id, Label, Record, Store, find};
use crate::durable::{FileLock, Wait};
use crate::error::{Context, Result};
use crate::sys::{boot_id, calls};

/// The entry whose target says since which boot there is one for every label.
const COMPLETE: &str = ".complete";

/// The fork that an entry says has this label, if its record says so too. `None` says nothing: there may be no entry.
pub(super) fn lookup(store: &Store, label: &str) -> Option<Record> {
    let label: Label = label.parse().ok()?;
    let id = entry(&store.labels().join(label.as_str())).ok()??;
    let record = Record::read(&store.fork(&id)).ok().flatten()?;
    (record.id == id && record.label == Some(label)).then_some(record)
}

/// The fork that has this label. The caller holds the store's lock. Records that cannot be read are passed over.
pub(super) fn holder(store: &Store, label: &Label) -> Result<Option<Id>> {
    if !is_complete(store) {
        rebuild(store)?;
    }
    if let Some(record) = lookup(store, label.as_str()) {
        return Ok(Some(record.id));
    }
    let taken_by_another = entry(&store.labels().join(label.as_str()))?.is_some_and(|id| has_record(store, &id));
    if is_complete(store) && !taken_by_another {
        return Ok(None);
    }
    let has = |record: &Record| record.label.as_ref() == Some(label);
    Ok(find::all(store)?.into_iter().find_map(|(id, record)| record.ok().filter(has).map(|_| id)))
}

/// Gives a label that is free to a fork. The caller holds the store's lock, and writes the fork's record next.
pub(super) fn claim(store: &Store, label: &Label, id: &Id) -> Result<()> {
    let path = store.labels().join(label.as_str());
    let mut made = point(&path, id);
    if made == Err(Errno::EXIST) && entry(&path)?.is_none_or(|old| !has_record(store, &old)) {
        calls::unlink(&path).context("cannot remove", &path)?;
        made = point(&path, id);
    }
    match made {
        Err(e) if is_no_place(e) => doubt(store),
        made => made.context("cannot write in the store:", path),
    }
}

/// Takes the entry of a fork that is gone away, if nobody holds the store's lock just then and it is still its own.
pub(super) fn release(store: &Store, label: &Label, id: &Id, wait: Wait) {
    let released = FileLock::acquire(&store.lock_path(), "release of a label", wait).and_then(|_store| {
        let path = store.labels().join(label.as_str());
        if entry(&path)?.as_ref() == Some(id) && !store.exists(id)? {
            calls::unlink(&path).context("cannot remove", path)?;
        }
        Ok(())
    });
    if let Err(e) = released {
        log::debug!("the entry of the label {:?} stays for now: {e}", label.as_str());
    }
}

/// Says that entries may be missing: the disk may not hold what it held.
pub(super) fn doubt(store: &Store) -> Result<()> {
    let path = store.labels().join(COMPLETE);
    match calls::unlink(&path) {
        // Where nothing can be written no label is given either.
        Ok(()) | Err(Errno::NOENT | Errno::ROFS) => Ok(()),
        Err(e) => Err(e).context("cannot remove", path),
    }
}

/// Makes the entries what the records say. The caller holds the store's lock.
pub(super) fn rebuild(store: &Store) -> Result<()> {
    let dir = store.labels();
    calls::make_dirs(&dir, Mode::RWXU).context("cannot make the directory", &dir)?;
    doubt(store)?;
    let mut wanted: BTreeMap<Label, Id> = BTreeMap::new();
    let records = find::all(store)?;
    let all_readable = records.iter().all(|(_, record)| record.is_ok());
    for (id, record) in records {
        if let Some(label) = record.ok().and_then(|record| record.label) {
            // Of two, which there should not be, the older one, as everywhere.
            wanted.entry(label).or_insert(id);
        }
    }
    for name in calls::names(&dir).context("cannot list", &dir)? {
        let label = name.to_str().and_then(|name| name.parse::<Label>().ok());
        let path = dir.join(&name);
        let as_it_should = match label.as_ref().and_then(|label| wanted.get(label)) {
            Some(id) => entry(&path)?.as_ref() == Some(id),
            None => false,
        };
        match label {
            Some(label) if as_it_should => drop(wanted.remove(&label)),
            _ => match calls::unlink(&path) {
                Err(e) if is_no_place(e) => return Ok(()),
                done => done.context("cannot remove", path)?,
            },
        }
    }
    for (label, id) in wanted {
        let path = dir.join(label.as_str());
        match point(&path, &id) {
            Err(e) if is_no_place(e) => return Ok(()),
            made => made.context("cannot write in the store:", path)?,
        }
    }
    if !all_readable {
        return Ok(());
    }
    let (path, boot) = (dir.join(COMPLETE), boot_id().context("cannot read the boot id of", "this machine")?);
    match calls::symlinkat(boot, CWD, &path) {
        Err(e) if is_no_place(e) => Ok(()),
        made => made.context("cannot write in the store:", path),
    }
}

/// Whether there is an entry for every label.
fn is_complete(store: &Store) -> bool {
    let boot = calls::readlinkat(CWD, &store.labels().join(COMPLETE));
    boot.is_ok_and(|boot| boot_id().is_ok_and(|this| boot.as_bytes() == this.as_bytes()))
}

/// The id that an entry leads to; `None` where there is none, or nothing that could be one.
fn entry(path: &Path) -> Result<Option<Id>> {
    match calls::readlinkat(CWD, path) {
        Ok(target) => Ok(target.to_str().ok().and_then(|target| target.parse().ok())),
        Err(Errno::NOENT | Errno::INVAL) => Ok(None),
        Err(e) => Err(e).context("cannot read", path),
    }
}

fn point(path: &Path, id: &Id) -> std::result::Result<(), Errno> {
    calls::symlinkat(id.as_str(), CWD, path)
}

/// Whether an entry cannot be made here: its name is another label's or something else's, or there are no symbolic links.
fn is_no_place(e: Errno) -> bool {
    matches!(e, Errno::EXIST | Errno::ISDIR | Errno::PERM | Errno::OPNOTSUPP)
}

/// Whether an id is one of a fork that still has whatever label it was given.
fn has_record(store: &Store, id: &Id) -> bool {
    matches!(Record::read(&store.fork(id)), Ok(Some(_)))
}
