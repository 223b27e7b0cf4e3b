//! The kernel is told another size only when no page is left that does not go with it.

use std::time::{Duration, Instant};

use super::super::told::GRACE;
use super::*;

/// Stands for the kernel; notes when it was to drop pages.
#[derive(Default)]
struct Kernel(Mutex<Vec<Instant>>);

impl Kernel {
    fn drops(&self) -> Vec<Instant> {
        self.0.lock().clone()
    }
}

impl Invalidate for Kernel {
    fn entry(&self, _: u64, _: &OsStr) {}

    fn node(&self, _: u64, data: bool) {
        assert!(data, "content is what has changed");
        self.0.lock().push(Instant::now());
    }

    fn settle(&self, _: u64) {}
}

/// A fork whose base has a file of this length, which the kernel knows; the file's node.
fn seen(len: usize) -> (Fork, Arc<Kernel>, u64) {
    let fork = fork(|base| fs::write(base.join("f"), vec![b'x'; len]).expect("room"));
    let kernel = Arc::new(Kernel::default());
    let sink: Arc<dyn Invalidate> = Arc::clone(&kernel) as _;
    fork.overlay.set_invalidate(Arc::downgrade(&sink));
    let node = fork.entry("f").expect("there").node;
    (fork, kernel, node)
}

impl Fork {
    /// What an answer says of the size now, and whether that may be kept.
    fn told(&self, node: u64) -> (u64, bool) {
        let (attr, ttl) = self.overlay.getattr(node).expect("there");
        (attr.size, ttl > Duration::ZERO)
    }

    fn set_len(&self, len: u64) {
        fs::OpenOptions::new().write(true).open(self.base("f")).and_then(|f| f.set_len(len)).expect("the base is ours");
    }

    fn read_up_to(&self, node: u64, offset: u64) -> Result<usize> {
        self.overlay.read(node, offset, &mut [0; 8192])
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_larger_size_is_told_a_moment_after_the_pages_are_dropped() {
    let (fork, kernel, node) = seen(100);
    assert_eq!(fork.told(node), (100, true));
    let mut before = 100;
    for now in [300, 9000] {
        let drops = kernel.drops().len();
        fork.set_len(now);
        eventually("the larger size is told", || {
            // Others see the name, or read, meanwhile.
            let named = fork.entry("f").expect("there").attr.size;
            assert_eq!(fork.read_up_to(node, 0), Ok(8192.min(now as usize)), "pages are read as they are");
            let (size, kept) = fork.told(node);
            assert_eq!(kept, size == now, "the old size only for this once");
            assert!([before, now].contains(&size) && named <= size);
            if size == now {
                let first = kernel.drops()[drops];
                assert!(first.elapsed() >= GRACE, "readers may still hold a page of before");
            }
            size == now
        });
        before = now;
    }
}

#[test]
fn a_file_that_was_cut_is_read_again_until_its_size_is_told() {
    let (fork, kernel, node) = seen(5000);
    fork.set_len(10);
    assert_eq!(fork.read_up_to(node, 0), Err(Errno::INTR), "the kernel would fill up what it believes is there");
    eventually("it can be read", || fork.read_up_to(node, 0) == Ok(10));
    assert_eq!(kernel.drops().len(), 1, "after the pages were dropped");
    assert_eq!(fork.told(node), (10, true));
    // Whoever still goes by the old size gets to the end in a while.
    assert_eq!(fork.read_up_to(node, 4096), Err(Errno::INTR));
    eventually("a reader behind the end sees that", || fork.read_up_to(node, 4096) == Ok(0));
    assert_eq!(fork.read_up_to(node, 10), Ok(0));
}

#[test]
fn what_the_fork_has_changed_is_its_own_affair() {
    let (fork, kernel, node) = seen(100);
    fork.set_len(50);
    assert_eq!(fork.overlay.write(node, 0, b"mine", false), Ok(4));
    assert_eq!(fork.told(node), (50, true));
    assert_eq!(fork.read_up_to(node, 0), Ok(50));
    assert_eq!(fork.read_up_to(node, 4096), Ok(0));
    eventually("pages of before are dropped", || kernel.drops().len() == 1);
    fork.set_len(0);
    assert_eq!(fork.told(node), (50, true));
}
