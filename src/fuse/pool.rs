//! The threads for what takes long: copying a file up, waiting for a disk.
//!
//! One pool for all sessions of the process. A request that goes there leaves the session's own thread free for the next
//! one; its answer is sent from here.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;

type Job = Box<dyn FnOnce() + Send>;

/// Most of the time these threads wait for a disk, so there may be many more than cores; they come as they are needed,
/// and stay.
const THREADS: usize = 64;

/// So many of them work for one session at a time, so that one fork on a disk that stands still does not take them all.
const EACH: usize = 12;

/// The jobs of one session.
#[derive(Default)]
pub(super) struct Lane(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    running: usize,
    waiting: VecDeque<Job>,
}

impl Lane {
    /// Runs a job on the pool, when it is its turn. Falls back to the caller's thread where no thread can be started.
    pub(super) fn run(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) {
        let mut queue = self.0.lock();
        if queue.running == EACH {
            return queue.waiting.push_back(Box::new(job));
        }
        queue.running += 1;
        drop(queue);
        let lane = Arc::clone(self);
        run(Box::new(move || lane.work(Box::new(job))));
    }

    /// One job after the other until none waits.
    fn work(&self, mut job: Job) {
        loop {
            // The calls into the file system are guarded one by one; this is for what comes around them.
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                log::error!("a slow request panicked outside of the file system");
            }
            let mut queue = self.0.lock();
            let Some(next) = queue.waiting.pop_front() else {
                queue.running -= 1;
                return;
            };
            job = next;
        }
    }
}

/// The threads, and how many of them have nothing to do.
struct Pool {
    jobs: Sender<Job>,
    next: Receiver<Job>,
    threads: Mutex<usize>,
    idle: AtomicUsize,
}

fn run(job: Job) {
    static POOL: LazyLock<Pool> = LazyLock::new(|| {
        let (jobs, next) = unbounded();
        Pool { jobs, next, threads: Mutex::new(0), idle: AtomicUsize::new(0) }
    });
    let pool: &'static Pool = &POOL;
    if pool.idle.load(Ordering::Relaxed) <= pool.next.len() && !pool.grow() {
        return job();
    }
    // Cannot fail: the pool has both ends.
    let _ = pool.jobs.send(job);
}

impl Pool {
    /// One thread more, unless there are enough; false where there is none at all.
    fn grow(&'static self) -> bool {
        let mut threads = self.threads.lock();
        if *threads < THREADS {
            let started = std::thread::Builder::new().name("treefork-slow".into()).spawn(|| self.work());
            *threads += usize::from(started.is_ok());
        }
        *threads > 0
    }

    fn work(&self) {
        loop {
            self.idle.fetch_add(1, Ordering::Relaxed);
            let job = self.next.recv();
            self.idle.fetch_sub(1, Ordering::Relaxed);
            match job {
                Ok(job) => job(),
                Err(_) => return,
            }
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
        let (held, free) = (Arc::new(Lane::default()), Arc::new(Lane::default()));
        for _ in 0..2 * EACH {
            held.run(|| panic!("expected by the test"));
        }
        for _ in 0..2 * THREADS {
            let (gate, done) = (gate.clone(), done.clone());
            held.run(move || {
                let _ = gate.recv();
                let _ = done.send("held");
            });
        }
        free.run(move || {
            let _ = done.send("free");
        });
        assert_eq!(all.recv(), Ok("free"));
        drop(open);
        assert_eq!(all.iter().filter(|word| *word == "held").count(), 2 * THREADS);
    }
}
