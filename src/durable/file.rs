//! Files that are there whole or not at all.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::fault;
use crate::error::{Context, Error, Kind, Result};
use crate::sys::{At, calls, reopen};

/// Names that begin so are files that were being written.
const TEMP: &str = ".tmp.";

/// Writes a file so that its name always leads to the old content or to the new one, whole.
///
/// Order: write a new file beside it, sync it, rename it over the name, sync the directory. Survives a killed process at
/// any point and, once it has returned, a power cut. Two writers at once do not mix: the last rename wins. What a killed
/// writer leaves beside the file is invisible to readers and taken away by [`sweep`].
pub fn write_atomic(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    write(path, bytes, mode, Sync::First)
}

/// When the content of a new file is brought to the disk. A killed process always leaves the old one or the new one, whole;
/// what differs is what a power cut leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Before it gets its name, which is brought there as well: the old file or the new one.
    First,
    /// After its name, and what else is new in the directory, which on many file systems is one way to the disk instead of two:
    /// the new one once the call has returned. Before that also an empty one, or none: for a file that is worth nothing
    /// until then.
    Last,
    /// Nobody waits for it, but it is on its way before the file gets its name. Where a file system keeps that order (ext4) a
    /// power cut leaves no empty file; else anything.
    Begun,
    /// Whenever the file system gets to it: anything.
    Never,
}

/// Writes a file as [`write_atomic`] does, with the content synced when `sync` says.
pub fn write(path: &Path, bytes: &[u8], mode: u32, sync: Sync) -> Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Error::new(Kind::Usage, "not the path of a file:").at(path));
    };
    let dir = open_dir(parent)?;
    let temp = temp_name();
    let temp = At::new(&dir, &temp);
    let done = fill(temp, bytes, mode).and_then(|file| {
        match sync {
            Sync::First => sync_content(&file)?,
            // Where it cannot be begun it only takes longer.
            Sync::Begun | Sync::Last => drop(calls::begin_writeback(&file)),
            Sync::Never => {}
        }
        fault::point("durable.rename")?;
        temp.rename(At::new(&dir, name))?;
        if matches!(sync, Sync::First | Sync::Last) {
            fault::point("durable.sync_dir")?;
            calls::fsync(&dir)?;
        }
        if sync == Sync::Last {
            sync_content(&file)?;
        }
        Ok(())
    });
    if done.is_err() {
        // Gone already where the rename went through; anything else is swept up later.
        let _ = temp.unlink();
    }
    done.context("cannot write", path)
}

fn fill(temp: At<'_>, bytes: &[u8], mode: u32) -> io::Result<calls::File> {
    fault::point("durable.create")?;
    let mut file = calls::File::from(temp.create(OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, mode)?);
    // The umask of the process has no say in the mode of our own records.
    calls::fchmod(&file, Mode::from_raw_mode(mode))?;
    file.put(bytes)?;
    Ok(file)
}

fn sync_content(file: &calls::File) -> io::Result<()> {
    fault::point("durable.sync")?;
    Ok(calls::fsync(file)?)
}

/// A name that no other writer uses: pid and a counter tell writers of one machine apart, and `O_EXCL` the rest.
fn temp_name() -> OsString {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let n = COUNTER.fetch_add(1, Ordering::Relaxed);
    let salt = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.subsec_nanos());
    format!("{TEMP}{}.{n}.{salt}", std::process::id()).into()
}

/// Removes what killed writers left in a directory. Only for whoever holds the lock under which its files are written.
pub fn sweep(dir: &Path) -> Result<()> {
    let fd = open_dir(dir)?;
    for entry in calls::Dir::read_from(&fd).context("cannot list", dir)? {
        let entry = entry.context("cannot list", dir)?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name.as_bytes().starts_with(TEMP.as_bytes()) {
            match At::new(&fd, name).unlink() {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(e).context("cannot remove", dir.join(name)),
            }
        }
    }
    Ok(())
}

/// Makes the names in a directory survive a power cut.
pub fn sync_dir(path: &Path) -> Result<()> {
    calls::fsync(&open_dir(path)?).context("cannot sync the directory", path)
}

/// Makes an object survive a power cut, given by an `O_PATH` descriptor: content of a file, names of a directory.
pub fn sync_fd(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(calls::fsync(&reopen(fd.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK)?)?)
}

fn open_dir(path: &Path) -> Result<OwnedFd> {
    // A bare file name has the parent "", which the kernel does not know.
    let path = if path.as_os_str().is_empty() { Path::new(OsStr::new(".")) } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    calls::open(path, flags, Mode::empty()).context("cannot open the directory", path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn old_or_new_at_every_fault() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("f");
        write_atomic(&path, b"old", 0o600).expect("first write");
        let (_, points) = fault::scoped(vec![], || write_atomic(&path, b"old", 0o600).expect("counted"));
        assert_eq!(points, ["durable.create", "durable.sync", "durable.rename", "durable.sync_dir"]);
        for n in 1..=points.len() as u64 {
            write_atomic(&path, b"old", 0o600).expect("reset");
            let rules = vec![fault::Rule::new("*", fault::Action::Fail(28), n)];
            let (result, _) = fault::scoped(rules, || write_atomic(&path, b"new", 0o640));
            assert_eq!(result.expect_err("it was told to fail").errno(), Some(28));
            let content = std::fs::read(&path).expect("readable");
            assert_eq!(content, if n == 4 { b"new" } else { b"old" }, "point {n}");
            assert_eq!(std::fs::read_dir(dir.path()).expect("listable").count(), 1, "nothing beside it");
        }
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o7777, 0o640);
        let (_, points) = fault::scoped(vec![], || write(&path, b"new", 0o600, Sync::Last).expect("counted"));
        assert_eq!(points, ["durable.create", "durable.rename", "durable.sync_dir", "durable.sync"]);
    }

    #[test]
    fn sweeping_takes_only_what_writers_left() {
        let dir = tempfile::tempdir().expect("temporary directory");
        for name in [".tmp.1.2.3", "record", ".tmpx"] {
            std::fs::write(dir.path().join(name), b"").expect("writable");
        }
        sweep(dir.path()).expect("sweeps");
        let mut left: Vec<_> =
            std::fs::read_dir(dir.path()).expect("listable").map(|e| e.expect("entry").file_name()).collect();
        left.sort();
        assert_eq!(left, [".tmpx", "record"]);
    }
}
