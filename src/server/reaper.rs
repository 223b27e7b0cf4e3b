//! Letting go of mounts that ended for good, behind the back of whoever had them end.
//!
//! With the last reference to a mount the kernel drops all that it remembers of it: names, attributes, pages. For a fork
//! with thousands of files that takes longer than all the rest of its removal, and so does closing what was open in its
//! upper; nobody needs to wait for it. One thread does it, one mount after the other and with a pause before each, so that whoever had it end is not kept from
//! going on; the thread is there only while there is something to do.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::table::Rest;
use crate::durable::fault;

/// What the rest of a removal takes, and what may come after it.
const PAUSE: Duration = Duration::from_millis(50);

/// With more than so many there is no pause.
const MANY: usize = 8;

/// What is left of mounts that have ended, on its way out.
#[derive(Default)]
pub(super) struct Reaper {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    rests: VecDeque<Rest>,
    /// Its thread is there, and takes what is in the queue.
    works: bool,
    /// Somebody waits for the end of it.
    hurries: bool,
}

impl Reaper {
    /// Lets go of a mount that has ended, soon.
    pub(super) fn take(self: &Arc<Self>, rest: Rest) {
        let mut queue = self.queue.lock();
        queue.rests.push_back(rest);
        if queue.works {
            return;
        }
        let this = Arc::clone(self);
        match std::thread::Builder::new().name("treefork-reaper".into()).spawn(move || this.work()) {
            Ok(_) => queue.works = true,
            Err(e) => {
                log::warn!("cannot start a thread: {e}");
                let all = std::mem::take(&mut queue.rests);
                drop(queue);
                drop(all);
            }
        }
    }

    /// Waits until there is nothing more to do.
    pub(super) fn finish(&self) {
        let mut queue = self.queue.lock();
        queue.hurries = true;
        self.changed.notify_all();
        while queue.works {
            self.changed.wait(&mut queue);
        }
    }

    fn work(&self) {
        while let Some(rest) = self.next() {
            // Where tests hold it back.
            let _ = fault::point("server.reap");
            // Whoever waits for the end of this thread must not wait for one that is gone.
            if catch_unwind(AssertUnwindSafe(|| drop(rest))).is_err() {
                log::error!("a panic while a mount was let go of; the others are not touched by it");
            }
        }
    }

    fn next(&self) -> Option<Rest> {
        let mut queue = self.queue.lock();
        if !queue.hurries && (1..=MANY).contains(&queue.rests.len()) {
            self.changed.wait_for(&mut queue, PAUSE);
        }
        let next = queue.rests.pop_front();
        if next.is_none() {
            queue.works = false;
            self.changed.notify_all();
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_panic_is_not_waited_for() {
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("expected by the test");
            }
        }
        let reaper = Arc::new(Reaper::default());
        let (mut other, rest) = std::io::pipe().expect("descriptors");
        reaper.take(Box::new(Panics));
        reaper.take(Box::new(rest));
        reaper.finish();
        assert_eq!(other.read(&mut [0]).expect("readable"), 0, "what came after it is closed");
    }

    #[test]
    fn at_the_end_all_that_it_was_given_is_closed_and_its_thread_gone() {
        let reaper = Arc::new(Reaper::default());
        let mut others = Vec::new();
        for _ in 0..2 * MANY {
            let (other, rest) = std::io::pipe().expect("descriptors");
            others.push(other);
            reaper.take(Box::new(rest));
        }
        reaper.finish();
        for mut other in others {
            // Waits for as long as somebody could write.
            assert_eq!(other.read(&mut [0]).expect("readable"), 0);
        }
        assert!(!reaper.queue.lock().works);
        // Nothing to do is fine.
        reaper.finish();
    }
}
