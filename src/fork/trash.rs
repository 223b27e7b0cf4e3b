//! The trash: what is on its way out is moved here in one step and deleted later.
//!
//! `trash/<id>.<n>` is being deleted; `trash/<id>` is a whole fork that waits to be restored.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FileType, IFlags, OFlags};
use rustix::io::Errno;

use super::{Id, Listed, Record, State, Store, labels};
use crate::durable::{FileLock, Wait, sync_dir};
use crate::error::{Context, Error, Kind, Result};
use crate::fuse;
use crate::sys::{At, Stat, calls, open_root};

/// Moves a fork's directory into the trash, to be deleted. With `durable` it is when this returns, else before anything of
/// it is deleted; gone already is success.
pub(super) fn discard(store: &Store, id: &Id, durable: bool) -> Result<()> {
    let from = store.fork(id);
    if let Some(to) = move_to_trash(store, &from, id)?
        // Whoever was just about to use the fork may have had it mounted once more.
        && let Err(e) = fuse::clear(&to.join("mnt"))
    {
        log::warn!("left to whoever empties the trash: {e}");
    }
    if durable { sync_dir(&store.forks()) } else { Ok(()) }
}

/// Deletes what was discarded of one fork, at once. For a fork of which there is nothing but its own administration.
pub(super) fn delete_discarded(store: &Store, id: &Id) -> Result<()> {
    for path in discarded(store)?.iter().filter(|path| path.file_stem().is_some_and(|stem| stem == id.as_str())) {
        delete_whole(path)?;
    }
    Ok(())
}

/// Moves some other directory of the store into the trash, to be deleted.
pub(super) fn discard_other(store: &Store, path: &Path) -> Result<()> {
    move_to_trash(store, path, &Id::random()?).map(drop)
}

/// Moves a fork's directory into the trash, whole, to wait there. Durable when it returns; gone already is success.
pub(super) fn keep(store: &Store, id: &Id) -> Result<()> {
    let (from, to) = (store.fork(id), store.trash().join(id.as_str()));
    match rename_new(&from, &to) {
        Err(Errno::NOENT) => return Ok(()),
        other => other.context("cannot move to the trash:", &from)?,
    }
    sync_dir(&store.trash())?;
    sync_dir(&store.forks())
}

/// The forks that wait in the trash, each with its record or what is wrong with that.
pub fn kept(store: &Store) -> Result<Vec<Listed>> {
    let trash = store.trash();
    let mut kept = Vec::new();
    for name in calls::names(&trash).context("cannot list", &trash)? {
        let Some(id) = name.to_str().and_then(|name| name.parse::<Id>().ok()) else { continue };
        let missing = || Err(Error::new(Kind::Corrupt, "there is no record in").at(trash.join(&name)));
        let record = Record::read(&trash.join(&name)).and_then(|record| record.map_or_else(missing, Ok));
        kept.push((id, record));
    }
    Ok(kept)
}

/// Gives up a fork that waits in the trash: the next emptying deletes it.
pub(super) fn give_up(store: &Store, id: &Id) -> Result<()> {
    move_to_trash(store, &store.trash().join(id.as_str()), id).map(drop)
}

/// Moves a fork from the trash back to where forks are, as one that is being restored.
pub(super) fn restore(store: &Store, mut record: Record) -> Result<()> {
    let (from, to) = (store.trash().join(record.id.as_str()), store.fork(&record.id));
    // Found in the trash in this state it is still what it was: one that waits.
    if record.state != State::Restoring {
        record.enter(State::Restoring, &from)?;
    }
    rename_new(&from, &to).context("cannot move out of the trash:", &from)?;
    sync_dir(&store.forks())?;
    sync_dir(&store.trash())
}

/// Moves a directory under a name that says that it is to be deleted: that name. `None` where it is gone already.
fn move_to_trash(store: &Store, from: &Path, id: &Id) -> Result<Option<PathBuf>> {
    for n in 0_u32.. {
        let to = store.trash().join(format!("{id}.{n}"));
        match rename_new(from, &to) {
            Err(Errno::EXIST | Errno::NOTEMPTY) => {}
            Err(Errno::NOENT) => return Ok(None),
            other => return other.map(|()| Some(to)).context("cannot move to the trash:", from),
        }
    }
    unreachable!("four thousand million names cannot be taken")
}

fn rename_new(from: &Path, to: &Path) -> std::result::Result<(), Errno> {
    let flags = rustix::fs::RenameFlags::NOREPLACE;
    match calls::renameat_with(rustix::fs::CWD, from, rustix::fs::CWD, to, flags) {
        // A file system without the flag: a directory never replaces a directory with something in it, and an empty one
        // is no loss.
        Err(Errno::INVAL) => calls::rename(from, to),
        other => other,
    }
}

/// Whether there is anything to delete.
pub fn has_work(store: &Store) -> bool {
    discarded(store).is_ok_and(|names| !names.is_empty())
}

/// Deletes what was discarded, including what comes in meanwhile. Another process at it is success: it does the work.
pub fn empty(store: &Store) -> Result<()> {
    match empty_once_free(store, Wait::No) {
        Err(e) if e.kind() == Kind::Locked => Ok(()),
        other => other,
    }
}

/// The same, but what another process is at is done when this returns. [`Kind::Locked`] where that takes longer than
/// `patience`.
pub fn finish(store: &Store, patience: Duration) -> Result<()> {
    empty_once_free(store, Wait::For(patience))
}

fn empty_once_free(store: &Store, wait: Wait) -> Result<()> {
    let lock = store.trash_lock();
    loop {
        let held = FileLock::acquire(&lock, "emptying the trash", wait)?;
        let mut failed = None;
        let paths = discarded(store)?;
        if !paths.is_empty() {
            // A fork must not come back from a power cut with parts of it missing.
            sync_dir(&store.forks())?;
            sync_dir(&store.trash())?;
        }
        for path in paths {
            release_label(store, &path);
            // One that cannot be deleted does not keep the others.
            if let Err(e) = delete_whole(&path) {
                failed = Some(e);
            }
        }
        drop(held);
        if let Some(e) = failed {
            return Err(e);
        }
        // What came in after the listing and found the lock taken would be nobody's otherwise.
        if discarded(store)?.is_empty() {
            return Ok(());
        }
    }
}

/// Lets go of the label of a fork in the trash, while its record still says which that was.
fn release_label(store: &Store, path: &Path) {
    if let Ok(Some(Record { id, label: Some(label), .. })) = Record::read(path) {
        labels::release(store, &label, &id, Wait::For(super::forks::PATIENCE));
    }
}

fn discarded(store: &Store) -> Result<Vec<PathBuf>> {
    let trash = store.trash();
    let mut paths = Vec::new();
    for name in calls::names(&trash).context("cannot list", &trash)? {
        if name.to_str().is_some_and(|name| name.split_once('.').is_some_and(|(id, _)| id.parse::<Id>().is_ok())) {
            paths.push(trash.join(name));
        }
    }
    Ok(paths)
}

/// Deletes a directory of the trash, and first the mount that a fork may have brought along.
fn delete_whole(path: &Path) -> Result<()> {
    fuse::clear(&path.join("mnt"))?;
    delete(path).context("cannot delete", path)
}

/// Deletes a tree: never through a symbolic link, never across a mount, whatever the modes in it are, and together with
/// others who are at it, if there are any.
fn delete(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Errno::INVAL.into());
    };
    let parent = open_root(parent)?;
    let at = At::new(&parent, name);
    let Some(stat) = at.try_stat()? else { return Ok(()) };
    if !stat.is_dir() {
        return Ok(remove(at, false)?);
    }
    // An explicit stack: trees may be deeper than the program's. One descriptor a level, so the deepest are flattened.
    const DEEPEST: usize = 512;
    let Some(first) = unless_gone(enter(at, stat.dev))? else { return Ok(()) };
    let top = first.dir.try_clone()?;
    let mut stack = vec![first];
    loop {
        let depth = stack.len();
        let Some(level) = stack.last_mut() else { return Ok(()) };
        let Some((name, kind)) = unless_gone(level.next())?.flatten() else {
            let done = stack.pop().expect("it is the last");
            let above = stack.last().map_or(&parent, |above| &above.dir);
            remove(At::new(above, done.name.as_os_str()), true)?;
            continue;
        };
        let entry = At::new(&level.dir, name.as_os_str());
        if kind != FileType::Directory {
            remove(entry, false)?;
        } else if depth < DEEPEST {
            let next = unless_gone(enter(entry, stat.dev))?;
            stack.extend(next);
        } else if let Some(Stat { ino, .. }) = entry.try_stat()? {
            let flat = format!(".deep.{ino}");
            unless_gone(entry.rename(At::new(&top, &flat)).map_err(io::Error::from))?;
        }
    }
}

/// What came of it, unless somebody else had deleted that before.
fn unless_gone<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        done => done.map(Some),
    }
}

/// A directory that is being emptied.
struct Level {
    dir: OwnedFd,
    name: OsString,
    /// Entries that were read and not yet removed.
    batch: Vec<(OsString, FileType)>,
}

impl Level {
    /// The next entry, in whatever order. Everything handed out before must be gone.
    fn next(&mut self) -> io::Result<Option<(OsString, FileType)>> {
        const BATCH: usize = 4096;
        if self.batch.is_empty() {
            // Read from the start: what was there the last time is removed by now.
            for entry in calls::Dir::read_from(&self.dir)?.take(BATCH) {
                let entry = entry?;
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                if name != "." && name != ".." {
                    self.batch.push((name.to_os_string(), entry.file_type()));
                }
            }
        }
        let Some((name, kind)) = self.batch.pop() else { return Ok(None) };
        let kind = match kind {
            FileType::Unknown => At::new(&self.dir, name.as_os_str()).stat()?.file_type(),
            kind => kind,
        };
        Ok(Some((name, kind)))
    }
}

/// Opens a directory to empty it; one that forbids it is made to allow it.
fn enter(at: At<'_>, device: u64) -> io::Result<Level> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let dir = match at.open(flags) {
        Err(Errno::ACCESS) => {
            at.chmod(0o700)?;
            at.open(flags)?
        }
        other => other?,
    };
    let stat = Stat::of(dir.as_fd())?;
    if stat.dev != device || stat.mount_root {
        let what = format!("something is mounted at {:?}", at.name);
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, what));
    }
    if stat.mode & 0o300 != 0o300 {
        writable(dir.as_fd());
    }
    Ok(Level { dir, name: at.name.to_os_string(), batch: Vec::new() })
}

/// Makes a directory of ours writable to us; where that fails, the deletion in it will say why.
fn writable(dir: BorrowedFd<'_>) {
    let _ = calls::fchmod(dir, rustix::fs::Mode::from_raw_mode(0o700));
}

/// Removes one entry. Immutable and append-only flags that a fork's user set go first.
fn remove(at: At<'_>, dir: bool) -> std::result::Result<(), Errno> {
    let once = || if dir { at.rmdir() } else { at.unlink() };
    match once() {
        Err(Errno::PERM | Errno::ACCESS) => {
            unlock(at);
            once()
        }
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Clears what keeps an entry from being removed; whether that was it shows in the next try.
fn unlock(at: At<'_>) {
    let clear = |fd: &OwnedFd| {
        if let Ok(flags) = calls::ioctl_getflags(fd) {
            let _ = calls::ioctl_setflags(fd, flags & !(IFlags::IMMUTABLE | IFlags::APPEND));
        }
    };
    if let Ok(parent) = crate::sys::reopen(at.dir, OFlags::RDONLY | OFlags::DIRECTORY) {
        clear(&parent);
        writable(parent.as_fd());
    }
    if at.stat().is_ok_and(|stat| stat.is_dir() || stat.is_file())
        && let Ok(file) = at.open(OFlags::RDONLY | OFlags::NONBLOCK)
    {
        clear(&file);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(&dir.path().join("store")).expect("made");
        (dir, store)
    }

    #[test]
    fn deletes_closed_directories_and_follows_no_link() {
        let (dir, store) = store();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).expect("made");
        fs::write(outside.join("precious"), "x").expect("writable");
        let id = Id::random().expect("random");
        let fork = store.fork(&id);
        fs::create_dir_all(fork.join("upper/closed/inner")).expect("made");
        fs::write(fork.join("upper/closed/inner/f"), "x").expect("writable");
        symlink(&outside, fork.join("upper/closed/link")).expect("made");
        for closed in ["upper/closed/inner", "upper/closed", "upper"] {
            fs::set_permissions(fork.join(closed), fs::Permissions::from_mode(0o555)).expect("closed");
        }
        discard(&store, &id, true).expect("moved");
        assert!(!fork.exists() && has_work(&store));
        discard(&store, &id, true).expect("gone already is fine");
        empty(&store).expect("emptied");
        assert!(!has_work(&store));
        assert_eq!(fs::read_dir(store.trash()).expect("listable").count(), 0);
        assert!(outside.join("precious").exists());
    }

    #[test]
    fn deletes_trees_deeper_than_any_path() {
        let (_dir, store) = store();
        let id = Id::random().expect("random");
        fs::create_dir(store.fork(&id)).expect("made");
        let mut at = open_root(&store.fork(&id)).expect("opens");
        for _ in 0..2000 {
            At::new(&at, "deep").mkdir(0o500).expect("made");
            let next = At::new(&at, "deep").open(OFlags::RDONLY | OFlags::DIRECTORY).expect("opens");
            rustix::fs::fchmod(&next, rustix::fs::Mode::from_raw_mode(0o700)).expect("opened up");
            at = next;
        }
        discard(&store, &id, true).expect("moved");
        empty(&store).expect("emptied");
        assert_eq!(fs::read_dir(store.trash()).expect("listable").count(), 0);
    }

    #[test]
    fn several_may_delete_the_same() {
        let (_dir, store) = store();
        for _ in 0..5 {
            let fork = store.trash().join(format!("{}.0", Id::random().expect("random")));
            for n in 0..200 {
                let dir = fork.join(format!("upper/{}/{n}", n % 7));
                fs::create_dir_all(&dir).expect("made");
                fs::write(dir.join("f"), "x").expect("writable");
            }
            std::thread::scope(|scope| {
                let all: Vec<_> = (0..4).map(|_| scope.spawn(|| delete_whole(&fork))).collect();
                all.into_iter().for_each(|one| one.join().expect("no panic").expect("deleted"));
            });
            assert!(!fork.exists());
        }
    }

    #[test]
    fn what_waits_to_be_restored_stays() {
        let (_dir, store) = store();
        let id = Id::random().expect("random");
        fs::create_dir(store.trash().join(id.as_str())).expect("made");
        empty(&store).expect("emptied");
        assert!(store.trash().join(id.as_str()).exists());
    }
}
