//! What is not for the threads that answer requests: one thread of the process runs it, now or at a time.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};

type Job = Box<dyn FnOnce() + Send>;

/// Runs a job once this time has come, after all that were to run at it or before.
pub(crate) fn at(time: Instant, job: impl FnOnce() + Send + 'static) {
    static JOBS: OnceLock<Sender<(Instant, Job)>> = OnceLock::new();
    // Cannot fail: the thread never ends. Where none could be started, the jobs are dropped.
    let _ = JOBS.get_or_init(start).send((time, Box::new(job)));
}

fn start() -> Sender<(Instant, Job)> {
    let (sender, jobs) = unbounded();
    let started = std::thread::Builder::new().name("treefork-later".into()).spawn(move || work(&jobs));
    if let Err(e) = started {
        log::error!("cannot start a thread: {e}");
    }
    sender
}

fn work(jobs: &Receiver<(Instant, Job)>) {
    let mut waiting: BTreeMap<(Instant, u64), Job> = BTreeMap::new();
    let mut come = 0;
    loop {
        let next = waiting.first_key_value().map(|((time, _), _)| *time);
        let got = match next {
            Some(time) => jobs.recv_deadline(time),
            None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match got {
            Ok((time, job)) => {
                come += 1;
                waiting.insert((time, come), job);
            }
            Err(RecvTimeoutError::Timeout) => {
                let (_, job) = waiting.pop_first().expect("one is waiting whose time has come");
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    log::error!("a panic in what was to be done later");
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
