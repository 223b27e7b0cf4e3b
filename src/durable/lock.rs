//! A lock file that holds across processes and says who holds it.
//!
//! The lock is `flock(2)` on an open file, so the kernel drops it with the last descriptor, however the process ends:
//! there are no stale locks. The text inside (pid, what for, since when) is for messages alone; what a killed holder
//! leaves there is harmless and overwritten by the next one. The file itself stays for ever: removing it while
//! somebody waits would let two hold "the" lock. Where its directory was removed and made anew meanwhile, the waiter
//! notices that its file is no longer the one at the path and starts over.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::CancelToken;
use crate::error::{Context, Error, Kind, Result};
use crate::sys::{At, Stat, calls};

/// Who holds a lock, as far as its file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The process, as it numbered itself.
    pub pid: u32,
    /// What it is doing, as in `merge of idea-a`.
    pub what: String,
    /// Since when, in seconds since the epoch.
    pub since: u64,
}

impl Holder {
    fn me(what: &str) -> Self {
        Self { pid: std::process::id(), what: what.to_owned(), since: now() }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let age = humantime::format_duration(Duration::from_secs(now().saturating_sub(self.since)));
        write!(f, "{} (pid {}, for {age})", self.what, self.pid)
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// At most so long.
    For(Duration),
    /// As long as it takes.
    Forever,
}

/// A held lock; dropping it lets go.
#[derive(Debug)]
pub struct FileLock {
    file: OwnedFd,
}

impl FileLock {
    /// Takes the lock at `path` (made when missing); `what` says to others what it is held for.
    ///
    /// # Errors
    /// [`Kind::Locked`] with the holder in the message when it is not free in time.
    pub fn acquire(path: &Path, what: &str, wait: Wait) -> Result<Self> {
        Self::acquire_with(path, what, wait, &CancelToken::new(), |_| {})
    }

    /// The same; `waiting` is called once, with the holder where known, when the lock is not free at once and there is
    /// time to wait. Cancelling ends the waiting.
    pub fn acquire_with(
        path: &Path,
        what: &str,
        wait: Wait,
        cancel: &CancelToken,
        waiting: impl FnOnce(Option<&Holder>),
    ) -> Result<Self> {
        let start = Instant::now();
        let mut waiting = Some(waiting);
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(lock) = Self::attempt(path, what)? {
                return Ok(lock);
            }
            let left = match wait {
                Wait::No => None,
                Wait::For(limit) => limit.checked_sub(start.elapsed()).filter(|left| !left.is_zero()),
                Wait::Forever => Some(Duration::MAX),
            };
            let Some(left) = left else { return Err(Self::held(path)) };
            if let Some(waiting) = waiting.take() {
                waiting(Self::holder(path).as_ref());
            }
            cancel.check()?;
            // flock has no time limit of its own; 20 ms is unnoticeable beside what these locks are held for.
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    fn attempt(path: &Path, what: &str) -> Result<Option<Self>> {
        loop {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
            let file = calls::open(path, flags, Mode::from_raw_mode(0o600)).context("cannot open the lock", path)?;
            match calls::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(e) => return Err(e).context("cannot lock", path),
            }
            let mine = Stat::of(file.as_fd()).context("cannot look at the lock", path)?;
            // Somebody removed it between our open and our lock: a lock on a nameless file excludes nobody.
            let there = At::new(&CWD, path).try_stat().context("cannot look at the lock", path)?;
            if there.is_none_or(|there| (there.dev, there.ino) != (mine.dev, mine.ino)) {
                continue;
            }
            let lock = Self { file };
            // Only for messages: a full disk must not keep anybody from locking.
            let _ = lock.sign(what, mine.size);
            return Ok(Some(lock));
        }
    }

    fn sign(&self, what: &str, size: u64) -> rustix::io::Result<()> {
        let text = serde_json::to_vec(&Holder::me(what)).expect("numbers and strings always serialise");
        // Of a holder that was killed.
        if size > 0 {
            calls::ftruncate(&self.file, 0)?;
        }
        calls::pwrite(&self.file, &text, 0).map(drop)
    }

    /// Whether anybody holds the lock at `path` just now. Who tries to take it at this moment without waiting may find it held.
    pub fn is_held(path: &Path) -> Result<bool> {
        let file = match calls::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(false),
            other => other.context("cannot open the lock", path)?,
        };
        match calls::flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => Ok(true),
            other => other.map(|()| false).context("cannot look at the lock", path),
        }
    }

    /// Who holds the lock at `path`, as far as its file says; also tells of a holder that is long gone.
    pub fn holder(path: &Path) -> Option<Holder> {
        serde_json::from_slice(&calls::File::read(path).ok()?).ok()
    }

    fn held(path: &Path) -> Error {
        let by = Self::holder(path).map_or_else(|| "another process".to_owned(), |h| h.to_string());
        Error::new(Kind::Locked, format!("locked by {by}:")).at(path)
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // A courtesy to whoever reads the file.
        let _ = calls::ftruncate(&self.file, 0);
        // Not left to the end of the descriptor: a process that is just being started from another thread has a copy of it until
        // it executes its program.
        let _ = calls::flock(&self.file, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_free_at_once_whoever_has_a_copy_of_the_descriptor() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("lock");
        let held = FileLock::acquire(&path, "one", Wait::No).expect("free");
        let _copy = held.file.try_clone().expect("a descriptor more");
        drop(held);
        FileLock::acquire(&path, "other", Wait::No).expect("free again");
    }

    #[test]
    fn excludes_and_names_the_holder() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("lock");
        assert!(!FileLock::is_held(&path).expect("absent is fine"));
        let held = FileLock::acquire(&path, "merge of idea-a", Wait::No).expect("free");
        assert!(FileLock::is_held(&path).expect("there"));
        let e = FileLock::acquire(&path, "other", Wait::No).expect_err("held");
        assert_eq!(e.kind(), Kind::Locked);
        assert!(e.to_string().contains("merge of idea-a"), "{e}");
        assert!(e.to_string().contains(&std::process::id().to_string()), "{e}");

        let mut told = None;
        let wait = Wait::For(Duration::from_millis(5));
        FileLock::acquire_with(&path, "other", wait, &CancelToken::new(), |h| told = h.cloned())
            .expect_err("still held");
        assert_eq!(told.expect("told who").what, "merge of idea-a");
        drop(held);
        assert!(!FileLock::is_held(&path).expect("there"));
        FileLock::acquire(&path, "other", Wait::No).expect("free again");
    }

    #[test]
    fn what_a_dead_holder_wrote_is_harmless() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("lock");
        std::fs::write(&path, br#"{"pid":1,"what":"a very long text that a shorter one must not leave","since":0}"#)
            .expect("writable");
        let _held = FileLock::acquire(&path, "x", Wait::No).expect("nobody holds it");
        assert_eq!(FileLock::holder(&path).expect("readable").what, "x");
    }

    #[test]
    fn waits_for_the_holder_to_let_go() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("lock");
        let held = FileLock::acquire(&path, "first", Wait::No).expect("free");
        let second = std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            let waiter = scope.spawn({
                let path = path.clone();
                move || {
                    let never = CancelToken::new();
                    let tell = |_: Option<&Holder>| tell.send(()).expect("heard");
                    FileLock::acquire_with(&path, "second", Wait::Forever, &never, tell)
                }
            });
            told.recv().expect("it waits");
            drop(held);
            waiter.join().expect("no panic")
        });
        second.expect("got it");
    }

    #[test]
    fn cancelling_ends_the_waiting() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("lock");
        let _held = FileLock::acquire(&path, "first", Wait::No).expect("free");
        let cancel = CancelToken::new();
        let waited = FileLock::acquire_with(&path, "second", Wait::Forever, &cancel, |_| cancel.cancel());
        assert_eq!(waited.expect_err("cancelled").kind(), Kind::Cancelled);
    }

    #[test]
    fn a_lock_file_made_anew_is_another_lock() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("lock");
        let _old = FileLock::acquire(&path, "old", Wait::No).expect("free");
        std::fs::remove_file(&path).expect("removable");
        let new = FileLock::acquire(&path, "new", Wait::No).expect("the old one has no name any more");
        assert_eq!(FileLock::holder(&path).expect("readable").what, "new");
        drop(new);
    }
}
