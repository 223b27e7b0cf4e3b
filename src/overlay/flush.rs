//! New content gets to the disk along with the names that stand for old content, as file systems see to it of themselves.
//!
//! Programs change files without a sync: they append, write a new file and rename it over the old one, or cut the old one to
//! nothing and write it anew. A file system keeps the old content through a power cut, since it knows that there is some
//! (ext4: `auto_da_alloc`). The upper's knows of none, since the old content is the base's, and would keep a name with
//! nothing behind it for as long as it puts off writing: half a minute. So writing begins at once: before a file is
//! renamed over one of the base, where ext4 keeps that order; right after a copy-up, by another thread, since a copy-up is
//! to take no longer for it (names reach the disk every few seconds); and a while after a file was cut to nothing, when what comes
//! instead is there. Nobody waits for the disk, and nothing is promised that was not synced.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::fds::Opened;
use crate::sys::calls;

/// When most programs are done with a file that they write anew.
const A_WHILE: Duration = Duration::from_secs(1);
/// How long the thread collects what comes, so that a thousand files do not wake it a thousand times.
const A_MOMENT: Duration = Duration::from_millis(5);
/// So many files of each kind wait at a time: each is a descriptor.
const MOST: usize = 256;

/// The files that wait.
#[derive(Debug)]
struct Waiting<F> {
    files: Mutex<Files<F>>,
    some: Condvar,
}

#[derive(Debug)]
struct Files<F> {
    now: Vec<F>,
    /// Each with when it is its turn, in that order.
    later: VecDeque<(Instant, F)>,
    /// The thread waits to be told.
    asleep: bool,
}

static WAITING: LazyLock<Waiting<Arc<Opened>>> = LazyLock::new(|| {
    let work = || {
        loop {
            WAITING.take().iter().for_each(|file| begin(&*file.fd));
            std::thread::sleep(A_MOMENT);
        }
    };
    if let Err(e) = std::thread::Builder::new().name("treefork-flush".into()).spawn(work) {
        log::error!("cannot start a thread: {e}");
    }
    Waiting::default()
});

/// Begins to write a file to the disk. A failure is nobody's business: whoever wants to know syncs.
pub(super) fn begin(file: impl AsFd) {
    if let Err(e) = calls::begin_writeback(file) {
        log::debug!("writing a file to the disk cannot be begun: {e}");
    }
}

/// The same by another thread. Where that has too much to do already, by this one.
pub(super) fn soon(file: Arc<Opened>) {
    if let Err(file) = WAITING.put(file) {
        begin(&*file.fd);
    }
}

/// The same in a while, for a file that was cut to nothing. Of too many at a time some are left to the file system.
pub(super) fn later(file: Arc<Opened>) {
    WAITING.put_for(Instant::now() + A_WHILE, file);
}

impl<F> Default for Waiting<F> {
    fn default() -> Self {
        let files = Files { now: Vec::new(), later: VecDeque::new(), asleep: false };
        Self { files: Mutex::new(files), some: Condvar::new() }
    }
}

impl<F> Waiting<F> {
    /// Puts a file that is to be written now; given back where too many wait.
    fn put(&self, file: F) -> Result<(), F> {
        let mut files = self.files.lock();
        if files.now.len() == MOST {
            return Err(file);
        }
        files.now.push(file);
        if std::mem::take(&mut files.asleep) {
            self.some.notify_one();
        }
        Ok(())
    }

    /// Puts a file that is to be written then, if not too many wait.
    fn put_for(&self, when: Instant, file: F) {
        let mut files = self.files.lock();
        if files.later.len() == MOST {
            return;
        }
        files.later.push_back((when, file));
        // With others there, the thread wakes up for the first of them.
        if files.later.len() == 1 && std::mem::take(&mut files.asleep) {
            self.some.notify_one();
        }
    }

    /// Waits until it is the turn of some.
    fn take(&self) -> Vec<F> {
        let mut files = self.files.lock();
        loop {
            let mut due = std::mem::take(&mut files.now);
            let now = Instant::now();
            while files.later.front().is_some_and(|(when, _)| *when <= now) {
                due.extend(files.later.pop_front().map(|(_, file)| file));
            }
            if !due.is_empty() {
                return due;
            }
            files.asleep = true;
            match files.later.front().map(|(when, _)| *when) {
                Some(when) => drop(self.some.wait_until(&mut files, when)),
                None => self.some.wait(&mut files),
            }
            files.asleep = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_later_holds_up_nothing() {
        let waiting = Waiting::default();
        let when = Instant::now() + Duration::from_millis(50);
        waiting.put_for(when, "later");
        waiting.put("now").expect("room");
        assert_eq!(waiting.take(), ["now"]);
        assert_eq!(waiting.take(), ["later"]);
        assert!(Instant::now() >= when);
    }

    #[test]
    fn only_so_many_wait() {
        let waiting = Waiting::default();
        for n in 0..MOST + 2 {
            assert_eq!(waiting.put(n).is_ok(), n < MOST);
            waiting.put_for(Instant::now(), n);
        }
        assert_eq!(waiting.take().len(), 2 * MOST);
        waiting.put(1).expect("room again");
    }
}
