//! The watch against a real kernel: every test waits for an event, never for a time.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::*;
use crate::sys::open_root;

/// Sends what it hears down a channel; `u64::MAX` stands for an overflow.
struct Ear(Mutex<Sender<(u64, Change)>>);

impl DriftSink for Ear {
    fn changed(&self, dir: u64, change: Change) {
        // The receiver may be gone at the end of a test.
        let _ = self.0.lock().send((dir, change));
    }

    fn overflow(&self) {
        let _ = self.0.lock().send((u64::MAX, Change::Itself));
    }
}

/// A subscriber with its end of the channel.
fn ear() -> (Arc<Ear>, Receiver<(u64, Change)>) {
    let (tx, rx) = channel();
    (Arc::new(Ear(Mutex::new(tx))), rx)
}

fn subscribe(watch: &Watch, ear: &Arc<Ear>) -> Subscription {
    let weak: Weak<Ear> = Arc::downgrade(ear);
    watch.subscribe(weak)
}

fn add(to: &Subscription, dir: &Path, token: u64) {
    to.add(open_root(dir).expect("open").as_fd(), token).expect("add");
}

/// Everything up to and including the change that `last` accepts. The limit is there to fail instead of hanging.
fn until(rx: &Receiver<(u64, Change)>, last: impl Fn(&(u64, Change)) -> bool) -> Vec<(u64, Change)> {
    let mut all = Vec::new();
    loop {
        all.push(rx.recv_timeout(Duration::from_secs(60)).expect("an event"));
        if all.last().is_some_and(&last) {
            return all;
        }
    }
}

fn name(s: &str) -> Change {
    Change::Name(s.into())
}

fn new(s: &str) -> Change {
    Change::New(s.into())
}

#[test]
fn tells_names_contents_and_the_directory_itself() {
    let tmp = tempfile::tempdir().expect("tempdir");
    let dir = tmp.path().join("d");
    fs::create_dir(&dir).expect("mkdir");
    fs::write(dir.join("old"), "1").expect("write");
    let watch = Watch::new().expect("watch");
    let (ear, rx) = ear();
    let subscription = subscribe(&watch, &ear);
    add(&subscription, &dir, 7);

    fs::write(dir.join("old"), "22").expect("write");
    until(&rx, |c| *c == (7, Change::Content("old".into())));
    fs::write(dir.join("new"), "").expect("write");
    until(&rx, |c| *c == (7, new("new")));
    fs::rename(dir.join("new"), dir.join("newer")).expect("rename");
    until(&rx, |c| *c == (7, name("newer")));
    fs::rename(&dir, tmp.path().join("e")).expect("rename");
    until(&rx, |c| *c == (7, Change::Itself));
}

#[test]
fn one_kernel_watch_for_all_who_listen() {
    let tmp = tempfile::tempdir().expect("tempdir");
    let watch = Watch::new().expect("watch");
    let ((ear1, rx1), (ear2, rx2)) = (ear(), ear());
    let one = subscribe(&watch, &ear1);
    let two = subscribe(&watch, &ear2);
    add(&one, tmp.path(), 1);
    add(&two, tmp.path(), 2);
    assert_eq!(watch.watched(), 1);
    fs::write(tmp.path().join("a"), "").expect("write");
    until(&rx1, |c| *c == (1, new("a")));
    until(&rx2, |c| *c == (2, new("a")));

    drop(one);
    assert_eq!(watch.watched(), 1);
    fs::write(tmp.path().join("b"), "").expect("write");
    until(&rx2, |c| *c == (2, new("b")));
    two.remove(2);
    // Watches end in the background.
    while watch.watched() > 0 {
        std::thread::yield_now();
    }
    assert!(!rx1.try_iter().any(|c| c.1 == new("b")), "told after it unsubscribed");
}

#[test]
fn a_batch_tells_each_change_once() {
    let tmp = tempfile::tempdir().expect("tempdir");
    let watch = Watch::new().expect("watch");
    // Keeps the thread busy in a first event while a thousand more are queued.
    struct Gate(Mutex<Receiver<()>>, Mutex<Sender<Change>>);
    impl DriftSink for Gate {
        fn changed(&self, _: u64, change: Change) {
            let first = change == new("first");
            let _ = self.1.lock().send(change);
            if first {
                let _ = self.0.lock().recv();
            }
        }
        fn overflow(&self) {}
    }
    let ((open, gate), (tx, rx)) = (channel(), channel());
    let sink = Arc::new(Gate(Mutex::new(gate), Mutex::new(tx)));
    let weak: Weak<Gate> = Arc::downgrade(&sink);
    let subscription = watch.subscribe(weak);
    add(&subscription, tmp.path(), 1);
    fs::create_dir(tmp.path().join("first")).expect("mkdir");
    assert_eq!(rx.recv_timeout(Duration::from_secs(60)), Ok(new("first")));
    for _ in 0..500 {
        fs::write(tmp.path().join("x"), "1").expect("write");
        fs::write(tmp.path().join("y"), "1").expect("write");
    }
    fs::create_dir(tmp.path().join("last")).expect("mkdir");
    open.send(()).expect("the gate listens");
    let mut heard = Vec::new();
    while heard.last() != Some(&new("last")) {
        heard.push(rx.recv_timeout(Duration::from_secs(60)).expect("an event"));
    }
    // 4,000 events; the queue is read in a few pieces, each of which tells a change once.
    assert!(heard.len() < 50, "{} changes told", heard.len());
}

#[test]
fn a_directory_that_goes_ends_its_watch() {
    let tmp = tempfile::tempdir().expect("tempdir");
    let (d, e) = (tmp.path().join("d"), tmp.path().join("e"));
    fs::create_dir(&d).expect("mkdir");
    fs::create_dir(&e).expect("mkdir");
    let watch = Watch::new().expect("watch");
    let (ear, rx) = ear();
    let subscription = subscribe(&watch, &ear);
    add(&subscription, &d, 1);
    add(&subscription, &e, 2);
    fs::remove_dir(&d).expect("rmdir");
    until(&rx, |c| *c == (1, Change::Itself));
    // A later event has been read only after IN_IGNORED, which the kernel queued before it.
    fs::write(e.join("x"), "").expect("write");
    until(&rx, |c| *c == (2, new("x")));
    assert_eq!(watch.watched(), 1);
    subscription.remove(1);
    // The token is free for another directory.
    add(&subscription, tmp.path(), 1);
    fs::write(tmp.path().join("y"), "").expect("write");
    until(&rx, |c| *c == (1, new("y")));
}

#[test]
fn adding_a_token_again_moves_it() {
    let tmp = tempfile::tempdir().expect("tempdir");
    let (d, e) = (tmp.path().join("d"), tmp.path().join("e"));
    fs::create_dir(&d).expect("mkdir");
    fs::create_dir(&e).expect("mkdir");
    let watch = Watch::new().expect("watch");
    let (ear, rx) = ear();
    let subscription = subscribe(&watch, &ear);
    add(&subscription, &d, 1);
    add(&subscription, &d, 1);
    add(&subscription, &e, 1);
    assert_eq!(watch.watched(), 1);
    fs::write(d.join("x"), "").expect("write");
    fs::write(e.join("y"), "").expect("write");
    let heard = until(&rx, |c| *c == (1, new("y")));
    assert!(!heard.contains(&(1, new("x"))), "{heard:?}");
}

#[test]
fn an_ignored_of_the_old_watch_does_not_end_the_new_one() {
    let mut table = Table::default();
    let sink: Weak<Ear> = Weak::new();
    table.subscribers.insert(1, Subscriber { sink, tokens: HashMap::from([(9, 5)]) });
    table.listeners.insert(5, vec![(1, 9)]);
    table.retiring.insert(5, 1);
    table.ended(5);
    assert_eq!(table.listeners.len(), 1, "the number was in use again");
    table.ended(5);
    assert!(table.listeners.is_empty() && table.subscribers[&1].tokens.is_empty());
}

#[test]
fn an_overflow_is_told_to_all() {
    let (one, rx1) = ear();
    let (two, rx2) = ear();
    let sinks = HashMap::from([(1, one as Arc<dyn DriftSink>), (2, two as Arc<dyn DriftSink>)]);
    Batch { overflow: true, sinks, changes: Vec::new() }.tell();
    assert_eq!(rx1.try_recv().map(|c| c.0), Ok(u64::MAX));
    assert_eq!(rx2.try_recv().map(|c| c.0), Ok(u64::MAX));
}

#[test]
fn a_panic_in_one_subscriber_leaves_the_watch_running() {
    struct Bomb;
    impl DriftSink for Bomb {
        fn changed(&self, _: u64, _: Change) {
            panic!("expected by the test");
        }
        fn overflow(&self) {}
    }
    let tmp = tempfile::tempdir().expect("tempdir");
    let watch = Watch::new().expect("watch");
    let bomb = Arc::new(Bomb);
    let weak: Weak<Bomb> = Arc::downgrade(&bomb);
    let first = watch.subscribe(weak);
    let (ear, rx) = ear();
    let second = subscribe(&watch, &ear);
    add(&first, tmp.path(), 1);
    add(&second, tmp.path(), 2);
    fs::write(tmp.path().join("a"), "").expect("write");
    until(&rx, |c| *c == (2, new("a")));
    fs::write(tmp.path().join("b"), "").expect("write");
    until(&rx, |c| *c == (2, new("b")));
}

#[test]
fn the_last_reference_may_go_inside_a_sink() {
    /// Owns the watch that calls it.
    struct Owner(Mutex<Option<Arc<Watch>>>, Mutex<Sender<()>>);
    impl DriftSink for Owner {
        fn changed(&self, _: u64, _: Change) {
            drop(self.0.lock().take());
            let _ = self.1.lock().send(());
        }
        fn overflow(&self) {}
    }
    let tmp = tempfile::tempdir().expect("tempdir");
    let watch = Watch::new().expect("watch");
    let shared = Arc::downgrade(&watch.shared);
    let (tx, rx) = channel();
    let owner = Arc::new(Owner(Mutex::new(None), Mutex::new(tx)));
    let weak: Weak<Owner> = Arc::downgrade(&owner);
    let subscription = watch.subscribe(weak);
    add(&subscription, tmp.path(), 1);
    *owner.0.lock() = Some(watch);
    fs::write(tmp.path().join("a"), "").expect("write");
    rx.recv_timeout(Duration::from_secs(60)).expect("the sink ran to its end");
    drop(subscription);
    // The thread holds the last reference and lets go of it by ending.
    while shared.strong_count() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn many_watches_that_end_lose_no_events() {
    // More than the queue holds.
    const DIRECTORIES: u64 = 17_000;
    // So many directories are made fast in memory.
    let shm = Path::new("/dev/shm");
    let tmp = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.expect("tempdir");
    let watch = Watch::new().expect("watch");
    let ((leaves, _rx), (stays, rx)) = (ear(), ear());
    let leaving = subscribe(&watch, &leaves);
    let staying = subscribe(&watch, &stays);
    for i in 0..DIRECTORIES {
        let dir = tmp.path().join(i.to_string());
        fs::create_dir(&dir).expect("mkdir");
        leaving.add(open_root(&dir).expect("open").as_fd(), i).expect("fs.inotify.max_user_watches allows so many");
    }
    add(&staying, tmp.path(), 1);
    drop(leaving);
    while watch.watched() > 1 {
        std::thread::yield_now();
    }
    fs::write(tmp.path().join("x"), "").expect("write");
    assert_eq!(until(&rx, |c| *c == (1, new("x"))), [(1, new("x"))], "no overflow was told");
}

#[test]
fn only_directories_can_be_watched() {
    let tmp = tempfile::tempdir().expect("tempdir");
    fs::write(tmp.path().join("f"), "").expect("write");
    let watch = Watch::new().expect("watch");
    let (ear, _rx) = ear();
    let subscription = subscribe(&watch, &ear);
    let file = fs::File::open(tmp.path().join("f")).expect("open");
    assert_eq!(subscription.add(file.as_fd(), 1), Err(Errno::NOTDIR));
    assert_eq!(watch.watched(), 0);
}
