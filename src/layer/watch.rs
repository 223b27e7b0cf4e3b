//! Notices what others change in the base: one inotify instance and one thread for all forks of a process.
//!
//! A fork caches for ever, so it has to hear of every change that it did not make. It subscribes once and adds each
//! directory when it first looks at it, and each file that has other names, which may lie in directories that it never
//! looks at; forks that watch the same object share one kernel watch. The events of one
//! read are coalesced, and a subscriber is called with no lock held, from the one thread of the [`Watch`].
//!
//! Add first, read afterwards: what happens after [`Subscription::add`] returned is told; what happened before is not.
//! A change may still be told shortly after its token was removed. Where the kernel's queue overflows, every subscriber
//! is told that it missed something. What inotify cannot see is stores through a foreign `mmap` (it reports the close
//! of the writer) and changes that are made on another machine of a network file system.

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, OsStr, OsString};
use std::hash::Hash;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use crate::sys::calls;

/// A result in the vocabulary of the kernel.
type Result<T> = std::result::Result<T, Errno>;

/// Enough for a thousand events with short names: one read, one batch.
const BUFFER: usize = 64 * 1024;

/// How many watches end between two looks at the queue.
const PIECE: usize = 1024;

/// What happened in a watched directory, or to a watched file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// An entry of this name was made, where there was none.
    New(OsString),
    /// An entry of this name went, was replaced, or came from elsewhere.
    Name(OsString),
    /// Content or attributes of the entry of this name changed.
    Content(OsString),
    /// The watched object itself: its attributes or (of a file) its content changed, or it was moved, removed or
    /// unmounted.
    Itself,
}

/// Who wants to hear of changes. Called from the watch's thread, with no lock of this module held.
pub trait DriftSink: Send + Sync {
    /// Something changed in the directory, or the file, that was added with this token.
    fn changed(&self, token: u64, change: Change);
    /// Changes were lost: anything may have changed.
    fn overflow(&self);
}

/// The one watch of a process. Its thread ends when it is dropped.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// One subscriber's part of a [`Watch`]; dropping it unsubscribes.
#[derive(Debug)]
pub struct Subscription {
    shared: Arc<Shared>,
    id: u64,
}

#[derive(Debug)]
struct Shared {
    inotify: OwnedFd,
    /// An eventfd; readable when the thread is to look at what follows.
    wake: OwnedFd,
    /// The thread is to end.
    stop: AtomicBool,
    /// What subscribers who left were listening to: who, and tokens with watches. The thread takes it apart, since it
    /// may be 50,000 directories; and in pieces, since each watch that ends puts an event into the queue, which holds
    /// 16,384 by default. Never locked together with the table.
    leaving: Mutex<Vec<Left>>,
    /// Innermost of all locks: nothing is called out to while it is held but `inotify_add_watch` and `_rm_watch`,
    /// neither of which waits for a disk.
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    next_id: u64,
    subscribers: HashMap<u64, Subscriber>,
    /// Who listens to a watch descriptor: subscriber and token.
    listeners: HashMap<i32, Vec<(u64, u64)>>,
    /// Watches that were removed and whose `IN_IGNORED` has not been read yet. Until then an event with this number may
    /// be of the old watch, and the `IN_IGNORED` must not end a new watch that got the same number.
    retiring: HashMap<i32, u32>,
}

struct Subscriber {
    sink: Weak<dyn DriftSink>,
    /// The watch descriptor behind each token.
    tokens: HashMap<u64, i32>,
}

/// A subscriber who left, and what of its watches is still there.
#[derive(Debug)]
struct Left {
    id: u64,
    /// Tokens, each with its watch descriptor.
    tokens: Vec<(u64, i32)>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Table({} subscribers, {} watches)", self.subscribers.len(), self.listeners.len())
    }
}

impl Watch {
    /// Starts a watch and its thread. `EMFILE` where the user has too many inotify instances.
    pub fn new() -> Result<Arc<Watch>> {
        let shared = Arc::new(Shared {
            inotify: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stop: AtomicBool::new(false),
            leaving: Mutex::default(),
            table: Mutex::default(),
        });
        let of_thread = Arc::clone(&shared);
        let run = move || of_thread.run();
        let thread = std::thread::Builder::new().name("treefork-watch".into()).spawn(run);
        Ok(Arc::new(Watch { shared, thread: Some(thread.map_err(|_| Errno::AGAIN)?) }))
    }

    /// Registers a subscriber, who then adds directories.
    pub fn subscribe(&self, sink: Weak<dyn DriftSink>) -> Subscription {
        let mut table = self.shared.table.lock();
        table.next_id += 1;
        let id = table.next_id;
        table.subscribers.insert(id, Subscriber { sink, tokens: HashMap::new() });
        Subscription { shared: Arc::clone(&self.shared), id }
    }

    /// How many directories the kernel watches for this process.
    pub fn watched(&self) -> usize {
        self.shared.table.lock().listeners.len()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            // The last reference may go while the thread itself calls a sink: it cannot wait for itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Subscription {
    /// Watches a directory (an `O_PATH` descriptor will do); its changes come with `token`.
    ///
    /// Adding a token again moves it to the new directory. `ENOSPC` when the user's limit of watches is reached,
    /// `EACCES` when the directory may not be read.
    pub fn add(&self, dir: BorrowedFd<'_>, token: u64) -> Result<()> {
        self.add_object(dir, token, of_directories())
    }

    /// Watches a file by itself, whatever name it is changed through; otherwise as [`add`](Self::add).
    pub fn add_file(&self, file: BorrowedFd<'_>, token: u64) -> Result<()> {
        self.add_object(file, token, of_files())
    }

    fn add_object(&self, object: BorrowedFd<'_>, token: u64, mask: WatchFlags) -> Result<()> {
        // The magic link names the very object behind the descriptor, whatever its path means by now; it has to be
        // followed, and since it can lead to nothing but that object, IN_DONT_FOLLOW is not wanted.
        let path = format!("/proc/self/fd/{}", object.as_raw_fd());
        let mut table = self.shared.table.lock();
        let wd = inotify::add_watch(&self.shared.inotify, path, mask)?;
        let Some(subscriber) = table.subscribers.get_mut(&self.id) else { return Ok(()) };
        let old = subscriber.tokens.insert(token, wd);
        if old != Some(wd) {
            table.listeners.entry(wd).or_default().push((self.id, token));
        }
        if let Some(old) = old.filter(|&old| old != wd) {
            self.shared.release(&mut table, old, (self.id, token));
        }
        Ok(())
    }

    /// Stops watching what was added with this token.
    pub fn remove(&self, token: u64) {
        let mut table = self.shared.table.lock();
        let wd = table.subscribers.get_mut(&self.id).and_then(|s| s.tokens.remove(&token));
        if let Some(wd) = wd {
            self.shared.release(&mut table, wd, (self.id, token));
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let Some(gone) = self.shared.table.lock().subscribers.remove(&self.id) else { return };
        self.shared.leaving.lock().push(Left { id: self.id, tokens: gone.tokens.into_iter().collect() });
        self.shared.wake();
    }
}

/// What is asked of the kernel for every directory. The same for all, since adding a watch again replaces the mask.
fn of_directories() -> WatchFlags {
    WatchFlags::ONLYDIR
        | WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::MODIFY
        | WatchFlags::ATTRIB
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
}

/// What is asked of the kernel for every file.
fn of_files() -> WatchFlags {
    WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::CLOSE_WRITE
}

/// What one read brought, and for whom.
#[derive(Default)]
struct Batch {
    /// In the order of the events; each change once.
    changes: Vec<(u64, u64, Change)>,
    /// Held until they have been called: dropping the last reference may call back into this module.
    sinks: HashMap<u64, Arc<dyn DriftSink>>,
    overflow: bool,
}

impl Shared {
    /// The thread: waits, reads, tells, cleans up.
    fn run(&self) {
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut more = false;
        loop {
            let mut fds = [PollFd::new(&self.inotify, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
            match poll(&mut fds, more.then_some(&now)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => {
                    log::error!("the drift watch ended: {e}");
                    return;
                }
            }
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            // Back to zero; nothing to read where it was an event that woke us.
            let _ = calls::read(&self.wake, &mut [0_u8; 8]);
            self.read_one(&mut buffer).tell();
            more = self.release_some();
        }
    }

    /// Makes the thread look.
    fn wake(&self) {
        // A full counter would mean that it was told already.
        let _ = calls::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Ends some of the watches of subscribers who left; whether there are more.
    fn release_some(&self) -> bool {
        let mut leaving = self.leaving.lock();
        let Some(left) = leaving.last_mut() else { return false };
        let (id, piece) = (left.id, left.tokens.split_off(left.tokens.len().saturating_sub(PIECE)));
        if left.tokens.is_empty() {
            leaving.pop();
        }
        let more = !leaving.is_empty();
        drop(leaving);
        for (token, wd) in piece {
            // Locked for each: others want to add meanwhile.
            self.release(&mut self.table.lock(), wd, (id, token));
        }
        more
    }

    /// One read of the queue, made into a batch.
    fn read_one(&self, buffer: &mut [MaybeUninit<u8>]) -> Batch {
        let mut reader = Reader::new(&self.inotify, buffer);
        let mut batch = Batch::default();
        let mut seen = HashSet::new();
        loop {
            match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => batch.overflow = true,
                Ok(event) => self.take(event.wd(), event.events(), event.file_name(), &mut batch, &mut seen),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(e) => {
                    log::error!("cannot read drift events: {e}");
                    batch.overflow = true;
                    break;
                }
            }
            if reader.is_buffer_empty() {
                break;
            }
        }
        let table = self.table.lock();
        let wanted: HashSet<u64> = batch.changes.iter().map(|c| c.0).collect();
        for (id, subscriber) in &table.subscribers {
            if batch.overflow || wanted.contains(id) {
                batch.sinks.extend(subscriber.sink.upgrade().map(|sink| (*id, sink)));
            }
        }
        batch
    }

    /// Adds one event to the batch.
    fn take(
        &self,
        wd: i32,
        events: ReadFlags,
        name: Option<&CStr>,
        batch: &mut Batch,
        seen: &mut HashSet<(i32, Change)>,
    ) {
        let mut table = self.table.lock();
        if let Some(change) = change(events, name).filter(|change| seen.insert((wd, change.clone()))) {
            for &(id, token) in table.listeners.get(&wd).into_iter().flatten() {
                batch.changes.push((id, token, change.clone()));
            }
        }
        if events.contains(ReadFlags::IGNORED) {
            table.ended(wd);
            // What comes under this number from now on is of another directory.
            seen.retain(|(of, _)| *of != wd);
        }
    }

    /// Takes a listener off a watch, and the watch off the kernel with the last one.
    fn release(&self, table: &mut Table, wd: i32, listener: (u64, u64)) {
        let Some(listeners) = table.listeners.get_mut(&wd) else { return };
        remove_item(listeners, &listener);
        if !listeners.is_empty() {
            return;
        }
        table.listeners.remove(&wd);
        // EINVAL: the directory went first, and its IN_IGNORED is in the queue or was read already.
        if inotify::remove_watch(&self.inotify, wd).is_ok() {
            *table.retiring.entry(wd).or_default() += 1;
        }
    }
}

impl Table {
    /// The kernel says that a watch is over: one that was removed here, or one whose directory is gone.
    fn ended(&mut self, wd: i32) {
        if let Some(pending) = self.retiring.get_mut(&wd) {
            *pending -= 1;
            if *pending == 0 {
                self.retiring.remove(&wd);
            }
            return;
        }
        for (id, token) in self.listeners.remove(&wd).into_iter().flatten() {
            if let Some(subscriber) = self.subscribers.get_mut(&id) {
                subscriber.tokens.remove(&token);
            }
        }
    }
}

impl Batch {
    /// Calls the subscribers. A panic in one of them must not end the watch of all the others.
    fn tell(self) {
        if self.overflow {
            for sink in self.sinks.values() {
                guarded(|| sink.overflow());
            }
        }
        for (id, token, change) in self.changes {
            if let Some(sink) = self.sinks.get(&id) {
                guarded(|| sink.changed(token, change));
            }
        }
    }
}

fn guarded(call: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(call)).is_err() {
        log::error!("a drift subscriber panicked; the change it was told of may be shown late");
    }
}

/// What an event means; `None` for the bookkeeping ones.
fn change(events: ReadFlags, name: Option<&CStr>) -> Option<Change> {
    let named = ReadFlags::DELETE | ReadFlags::MOVED_FROM | ReadFlags::MOVED_TO;
    let itself = ReadFlags::ATTRIB
        | ReadFlags::MODIFY
        | ReadFlags::CLOSE_WRITE
        | ReadFlags::DELETE_SELF
        | ReadFlags::MOVE_SELF
        | ReadFlags::UNMOUNT;
    match name.map(|name| OsStr::from_bytes(name.to_bytes()).to_os_string()) {
        Some(name) if events.intersects(ReadFlags::CREATE) => Some(Change::New(name)),
        Some(name) if events.intersects(named) => Some(Change::Name(name)),
        Some(name) => Some(Change::Content(name)),
        None => events.intersects(itself).then_some(Change::Itself),
    }
}

fn remove_item<T: Eq + Hash>(list: &mut Vec<T>, item: &T) {
    if let Some(at) = list.iter().position(|other| other == item) {
        list.swap_remove(at);
    }
}

#[cfg(test)]
mod tests;
