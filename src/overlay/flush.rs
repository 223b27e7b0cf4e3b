//! New content gets to the disk along with the names that stand for old content, as file systems see to it of themselves.
//!
//! Programs change files without a sync: they append, write a new file and rename it over the old one, or cut the old one to
//! nothing and write it anew. A file system keeps the old content through a power cut, since it knows that there is some
//! (ext4: `auto_da_alloc`). The upper's knows of none, since the old content is the base's, and would keep a name with
//! nothing behind it for as long as it puts off writing: half a minute. So writing begins at once: before a file is
//! renamed over one of the base, where ext4 keeps that order; right after a copy-up, by another thread, since a copy-up is
//! to take no longer for it (names reach the disk every few seconds); and a while after a file was cut to nothing, when what comes
//! instead is there. Nobody waits for the disk, and nothing is promised that was not synced.

use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};

use super::fds::Opened;
use crate::sys::calls;

/// When most programs are done with a file that they write anew.
const A_WHILE: Duration = Duration::from_secs(1);
/// So many files wait at a time: each is a descriptor.
const MOST: usize = 256;

/// A file, and when it is its turn.
type Waiting = (Instant, Arc<Opened>);

/// Begins to write a file to the disk. A failure is nobody's business: whoever wants to know syncs.
pub(super) fn begin(file: impl AsFd) {
    if let Err(e) = calls::begin_writeback(file) {
        log::debug!("writing a file to the disk cannot be begun: {e}");
    }
}

/// The same by another thread. Where that has too much to do already, by this one.
pub(super) fn soon(file: Arc<Opened>) {
    static FILES: OnceLock<Sender<Waiting>> = OnceLock::new();
    if let Err(e) = FILES.get_or_init(start).try_send((Instant::now(), file)) {
        begin(&*e.into_inner().1.fd);
    }
}

/// The same in a while, for a file that was cut to nothing. Of too many at a time some are left to the file system.
pub(super) fn later(file: Arc<Opened>) {
    static FILES: OnceLock<Sender<Waiting>> = OnceLock::new();
    let _ = FILES.get_or_init(start).try_send((Instant::now() + A_WHILE, file));
}

fn start() -> Sender<Waiting> {
    let (sender, receiver) = bounded(MOST);
    if let Err(e) = std::thread::Builder::new().name("treefork-flush".into()).spawn(move || work(&receiver)) {
        log::error!("cannot start a thread: {e}");
    }
    sender
}

fn work(files: &Receiver<Waiting>) {
    while let Ok((when, file)) = files.recv() {
        std::thread::sleep(when.saturating_duration_since(Instant::now()));
        begin(&*file.fd);
    }
}
