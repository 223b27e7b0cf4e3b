//! Filling the kernel's caches of a fork ahead of whoever works in it: a process of its own walks through all of it.
//!
//! Never the server, which must not touch its own mounts. It holds `prewarm` in the fork's directory, a lock that says
//! who it is, so that whoever is about to take the fork away ends it first: it is no user of the fork that one would
//! have to wait for.

use std::fs;
use std::path::{Path, PathBuf};

use parking_lot::{Condvar, Mutex};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::durable::{FileLock, Wait};
use crate::error::Result;

/// More entries than this are not looked at: the kernel would forget the first for the last.
const MOST: usize = 2_000_000;

/// What waits for the server most of the time can do more than there are cores.
const THREADS: usize = 4;

fn lock(dir: &Path) -> PathBuf {
    dir.join("prewarm")
}

/// Looks at everything in the fork with this directory; how many entries that were. Nothing where that is being done.
pub fn walk(dir: &Path) -> Result<usize> {
    let _lock = match FileLock::acquire(&lock(dir), "prewarm", Wait::No) {
        Err(e) if e.kind() == crate::error::Kind::Locked => return Ok(0),
        other => other?,
    };
    let walk =
        Walk { state: Mutex::new(State { todo: vec![dir.join("mnt")], busy: 0, seen: 0 }), more: Condvar::new() };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| walk.work());
        }
    });
    let seen = walk.state.lock().seen;
    Ok(seen)
}

/// Ends whoever fills the caches of the fork with this directory.
pub(super) fn end(dir: &Path) {
    let path = lock(dir);
    if !path.exists() {
        return;
    }
    // The kernel drops the lock with its holder: who is named is alive as long as it is held.
    let holder = || match FileLock::acquire(&path, "the end of a prewarm", Wait::No) {
        Ok(_) => None,
        Err(_) => FileLock::holder(&path).map(|holder| holder.pid),
    };
    let Some(pid) = holder().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) else { return };
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    if holder().is_some_and(|again| i32::try_from(again) == Ok(pid.as_raw_nonzero().get())) {
        let _ = pidfd_send_signal(&process, Signal::KILL);
        let mut fds = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: 2, tv_nsec: 0 };
        let _ = rustix::event::poll(&mut fds, Some(&limit));
    }
}

struct Walk {
    state: Mutex<State>,
    more: Condvar,
}

struct State {
    todo: Vec<PathBuf>,
    /// How many threads are looking at a directory, and may find more.
    busy: usize,
    seen: usize,
}

impl Walk {
    fn work(&self) {
        while let Some(dir) = self.next() {
            let (seen, found) = look(&dir);
            let mut state = self.state.lock();
            state.busy -= 1;
            state.seen += seen;
            if state.seen < MOST {
                state.todo.extend(found);
            }
            self.more.notify_all();
        }
    }

    fn next(&self) -> Option<PathBuf> {
        let mut state = self.state.lock();
        loop {
            if let Some(dir) = state.todo.pop() {
                state.busy += 1;
                return Some(dir);
            }
            if state.busy == 0 {
                return None;
            }
            self.more.wait(&mut state);
        }
    }
}

/// Looks at a directory and at each of its entries: how many, and which are directories. What cannot be looked at, since
/// it is closed or gone, is nobody's loss.
fn look(dir: &Path) -> (usize, Vec<PathBuf>) {
    let (mut seen, mut found) = (0, Vec::new());
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        seen += 1;
        // As other programs look at it: by its name, not following a link.
        if fs::symlink_metadata(entry.path()).is_ok_and(|meta| meta.is_dir()) {
            found.push(entry.path());
        }
    }
    // Reading a directory changes its access time, which the kernel then asks for anew.
    let _ = fs::symlink_metadata(dir);
    (seen, found)
}
