//! Many pieces of work, a few at a time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;

/// Does `count` pieces of work, at most `jobs` at once, begun in the order of their numbers; what came of each.
///
/// Once `stop` is set none is begun any more: `None` for those. The ones that are being done are the caller's to end.
pub fn fan_out<T: Send>(
    count: usize,
    jobs: usize,
    stop: &AtomicBool,
    work: impl Fn(usize) -> T + Sync,
) -> Vec<Option<T>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new((0..count).map(|_| None).collect::<Vec<_>>());
    let worker = || {
        while !stop.load(Ordering::Relaxed) {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= count {
                return;
            }
            let result = work(n);
            done.lock()[n] = Some(result);
        }
    };
    // A panic in one worker is one of the caller, once all others are done.
    thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, count.max(1)) {
            scope.spawn(worker);
        }
    });
    done.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_done_and_never_too_much_at_once() {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let results = fan_out(50, 4, &AtomicBool::new(false), |n| {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::yield_now();
            now.fetch_sub(1, Ordering::SeqCst);
            n * n
        });
        assert_eq!(results, (0..50).map(|n| Some(n * n)).collect::<Vec<_>>());
        assert!(most.into_inner() <= 4);
        assert_eq!(fan_out(0, 4, &AtomicBool::new(false), |n| n), []);
    }

    #[test]
    fn nothing_is_begun_after_a_stop() {
        let stop = AtomicBool::new(false);
        let results = fan_out(10, 1, &stop, |n| stop.store(n == 3, Ordering::Relaxed));
        assert_eq!(results.iter().filter(|result| result.is_some()).count(), 4);
    }
}
