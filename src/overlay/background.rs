//! The threads that bring up the rest of large files, for all forks of the process.
//!
//! They work at low priority and take turns among the files, a few pieces each, so that one huge file does not hold up
//! the others. Nobody waits for them: who needs a file whole does it himself.

use std::sync::{OnceLock, Weak};

use crossbeam_channel::{Receiver, Sender, unbounded};
use rustix::io::Errno;

use super::Overlay;
use crate::durable::fault;
use crate::sys::Ident;

const THREADS: usize = 2;
/// Pieces of one file in a row.
const TURN: usize = 16;
/// How much others come first, as for `nice(1)`.
const NICE: i32 = 10;

/// A partial file of an overlay.
struct Job {
    overlay: Weak<Overlay>,
    file: Ident,
    jobs: Sender<Job>,
}

/// Has the rest of a file brought up. Where no thread can be started it stays as it is until somebody needs it whole.
pub(super) fn bring_up(overlay: Weak<Overlay>, file: Ident) {
    static JOBS: OnceLock<Sender<Job>> = OnceLock::new();
    let jobs = JOBS.get_or_init(start);
    // Cannot fail while a thread lives, and these never end.
    let _ = jobs.send(Job { overlay, file, jobs: jobs.clone() });
}

fn start() -> Sender<Job> {
    let (sender, receiver) = unbounded();
    for _ in 0..THREADS {
        let receiver = receiver.clone();
        let work = move || work(&receiver);
        if let Err(e) = std::thread::Builder::new().name("treefork-blocks".into()).spawn(work) {
            log::error!("cannot start a thread: {e}");
        }
    }
    sender
}

fn work(jobs: &Receiver<Job>) {
    // Of this thread alone; where that is refused, it works as everybody does.
    let _ = rustix::process::setpriority_process(None, NICE);
    while let Ok(job) = jobs.recv() {
        job.take_turn();
    }
}

impl Job {
    fn take_turn(self) {
        let Some(overlay) = self.overlay.upgrade() else { return };
        let Some(partial) = overlay.upper.as_ref().and_then(|upper| upper.partials.get(self.file)) else { return };
        if fault::point("blocks background").is_err() {
            return;
        }
        for _ in 0..TURN {
            match overlay.bring_up_some(&partial) {
                Ok(true) => {}
                Ok(false) | Err(Errno::CANCELED) => return,
                Err(e) => return log::warn!("cannot bring up the rest of a large file: {e}"),
            }
        }
        let jobs = self.jobs.clone();
        let _ = jobs.send(self);
    }
}
