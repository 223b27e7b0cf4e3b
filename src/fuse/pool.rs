//! The threads for what takes long: copying a file up, waiting for a disk.
//!
//! One small pool for all sessions of the process. A request that goes there leaves the session's own thread free for
//! the next one; its answer is sent from here. The threads are started with the first job and stay.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use crossbeam_channel::{Receiver, Sender, unbounded};

type Job = Box<dyn FnOnce() + Send>;

/// More than there are cores, since most of the time these threads wait for a disk; and enough that a few forks which
/// copy large files do not hold up the `fsync` of all others.
const THREADS: usize = 8;

/// Runs a job on the pool. Falls back to the caller's thread where no thread can be started.
pub(super) fn run(job: impl FnOnce() + Send + 'static) {
    static POOL: OnceLock<Option<Sender<Job>>> = OnceLock::new();
    match POOL.get_or_init(start) {
        Some(pool) => {
            // Cannot fail while a thread lives, and these never end. Should it, dropping the job answers EIO.
            let _ = pool.send(Box::new(job));
        }
        None => job(),
    }
}

fn start() -> Option<Sender<Job>> {
    let (sender, receiver) = unbounded::<Job>();
    let spawn = |_| {
        let receiver = receiver.clone();
        std::thread::Builder::new().name("treefork-slow".into()).spawn(move || work(&receiver)).ok()
    };
    let started = (0..THREADS).filter_map(spawn).count();
    (started > 0).then_some(sender)
}

fn work(jobs: &Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        // The calls into the file system are guarded one by one; this is for what comes around them.
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            log::error!("a slow request panicked outside of the file system");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_run_beside_each_other_and_outlive_a_panic() {
        let (done, all) = unbounded();
        let (open, gate) = unbounded::<()>();
        for _ in 0..2 * THREADS {
            run(|| panic!("expected by the test"));
        }
        let held = gate.clone();
        let waits = done.clone();
        run(move || {
            let _ = held.recv();
            let _ = waits.send("held");
        });
        run(move || {
            let _ = done.send("free");
        });
        assert_eq!(all.recv(), Ok("free"));
        drop(open);
        assert_eq!(all.recv(), Ok("held"));
    }
}
