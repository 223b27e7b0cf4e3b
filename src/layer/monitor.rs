//! Follows everything that happens in a tree: each of its directories is watched, and each name that changes is logged.
//!
//! The drift watch of the forks ([`super::watch`]) knows the directories that a fork holds at the moment, and says at
//! once what changed. This one is for the other question: what changed since a position, anywhere, looked at by anybody
//! or not. It answers it exactly, or says that it does not know: while it makes itself ready, after the kernel lost
//! events or a directory moved, and where it cannot watch all of the tree. What was queued before somebody asked is in the answer.
//!
//! Left out is what is below directories called `.git`. A directory that came is named with everything in it, one that
//! went with a name in each directory below it, so that whoever knows something of a directory by its path knows better.
//! As with any inotify, stores through a foreign `mmap` show when the writer closes the file.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::touched::{Since, Touched};
use crate::names::RelPath;
use crate::sys::calls::{self, Dir};
use crate::sys::{self, At, open_beneath};

/// Stands for any name in a directory. There need not be such an entry: it is for whoever believes to know the
/// directory, and looks at it anew.
pub const INSIDE: &str = "~";

/// A tree of more directories than this is not followed; nor one that would take more than half of what the user may
/// watch.
const MOST: usize = 100_000;

/// Enough for a thousand events with short names.
const BUFFER: usize = 64 * 1024;

/// A place in the log of a monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The number of the log.
    pub log: u64,
    /// The position in it.
    pub position: u64,
}

/// What a monitor has to say of the time since a mark.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// These names, and the mark to go on from.
    Names(Vec<RelPath>, Mark),
    /// Anything may have changed before this mark.
    Anything(Mark),
    /// Not ready yet: ask again in a moment.
    NotYet,
    /// Never: the tree cannot be watched.
    Blind,
}

/// Follows one tree, with a thread of its own that ends when it is dropped.
#[derive(Debug)]
pub struct Monitor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    root: OwnedFd,
    /// An eventfd: the thread is to look at `stop`, or at a state that is in need of it.
    wake: OwnedFd,
    stop: AtomicBool,
    /// Held while events are read and logged, which waits for nothing but the base's file system.
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// The thread is making it ready.
    Starting,
    Ready(Following),
    /// Events were lost. Made ready anew when somebody asks.
    Lost,
    /// The tree cannot be watched.
    Blind,
}

/// The watches of a tree, and what they told.
#[derive(Debug)]
struct Following {
    inotify: OwnedFd,
    paths: HashMap<i32, RelPath>,
    watches: BTreeMap<RelPath, i32>,
    /// How many there may be.
    most: usize,
    log: Touched,
}

impl Monitor {
    /// Begins to follow the tree below this directory (`O_PATH` will do). It takes a while to be ready.
    pub fn new(root: OwnedFd) -> Result<Self, Errno> {
        let shared = Arc::new(Shared {
            root,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stop: AtomicBool::new(false),
            state: Mutex::new(State::Starting),
        });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("treefork-monitor".into()).spawn(move || of_thread.run());
        Ok(Self { shared, thread: Some(thread.map_err(|_| Errno::AGAIN)?) })
    }

    /// What changed since a mark; without one, where things stand.
    pub fn since(&self, mark: Option<Mark>) -> Heard {
        let heard = self.with(|following| {
            let log = &mut following.log;
            let known = mark.filter(|mark| mark.log == log.id());
            let names = match known.map(|mark| log.since(mark.position)) {
                Some(Since::Names(names)) => Some(names.to_vec()),
                _ => None,
            };
            let now = Mark { log: log.id(), position: log.give() };
            names.map_or(Heard::Anything(now), |names| Heard::Names(names, now))
        });
        heard.unwrap_or_else(|nothing| nothing)
    }

    /// Adds names that somebody found changed by other means. False where the monitor is not ready, or not the one of
    /// the mark any more.
    pub fn add(&self, mark: Mark, names: Vec<RelPath>) -> bool {
        let added = self.with(|following| {
            let same = following.log.id() == mark.log;
            for name in names.into_iter().filter(|_| same) {
                following.log.note(name);
            }
            same
        });
        added.unwrap_or(false)
    }

    /// The directories of the tree, the root first. Empty where the monitor is not ready.
    pub fn directories(&self) -> Vec<RelPath> {
        self.with(|following| following.watches.keys().cloned().collect()).unwrap_or_default()
    }

    /// Looks at the watches and the log, with everything in it that has happened; else says why not.
    fn with<T>(&self, look: impl FnOnce(&mut Following) -> T) -> Result<T, Heard> {
        let mut state = self.shared.state.lock();
        if let State::Ready(following) = &mut *state {
            match following.drain(&self.shared.root) {
                Ok(()) => return Ok(look(following)),
                Err(lost) => *state = lost.state(),
            }
        }
        match *state {
            State::Blind => return Err(Heard::Blind),
            State::Lost => {
                *state = State::Starting;
                self.shared.wake();
            }
            State::Starting | State::Ready(_) => {}
        }
        Err(Heard::NotYet)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn wake(&self) {
        // A full counter would mean that it was told already.
        let _ = calls::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn run(&self) {
        while !self.stop.load(Ordering::Acquire) {
            let starting = matches!(*self.state.lock(), State::Starting);
            if starting {
                let begun = Following::begin(&self.root, &self.stop);
                *self.state.lock() = begun.unwrap_or_else(|e| e.state());
                continue;
            }
            self.wait();
        }
    }

    /// Waits for events, and takes them out of the queue before it runs over.
    fn wait(&self) {
        // A second name for the queue, so that it can be waited for without the lock.
        let queue = match &*self.state.lock() {
            State::Ready(following) => following.inotify.try_clone().ok(),
            _ => None,
        };
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        fds.extend(queue.as_ref().map(|queue| PollFd::new(queue, PollFlags::IN)));
        let _ = poll(&mut fds, None);
        let _ = calls::read(&self.wake, &mut [0_u8; 8]);
        let mut state = self.state.lock();
        if let State::Ready(following) = &mut *state
            && let Err(lost) = following.drain(&self.root)
        {
            *state = lost.state();
        }
    }
}

/// Why a tree is not followed.
#[derive(Clone, Copy)]
enum Trouble {
    /// Events were lost, or the tree changed in a way that makes watching it a new beginning.
    Lost,
    /// The kernel gives no more watches.
    NoRoom,
}

impl Trouble {
    fn state(self) -> State {
        match self {
            Trouble::Lost => State::Lost,
            Trouble::NoRoom => State::Blind,
        }
    }
}

impl Following {
    fn begin(root: &OwnedFd, stop: &AtomicBool) -> Result<State, Trouble> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(|e| {
            log::info!("bases are not followed for git: {e}");
            Trouble::NoRoom
        })?;
        let mut following =
            Self { inotify, paths: HashMap::new(), watches: BTreeMap::new(), most: most(), log: Touched::default() };
        following.add_tree(root, RelPath::root(), false, stop)?;
        Ok(State::Ready(following))
    }

    /// Watches a directory and all below it. With `name_all` every entry is named: it may be new.
    fn add_tree(&mut self, root: &OwnedFd, path: RelPath, name_all: bool, stop: &AtomicBool) -> Result<(), Trouble> {
        let mut todo = vec![path];
        while let Some(path) = todo.pop() {
            if stop.load(Ordering::Acquire) {
                return Err(Trouble::Lost);
            }
            match self.add(root, &path, name_all, &mut todo) {
                Ok(()) => {}
                // Gone, or something else by now: an event says so. Closed: an event says when it opens.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) if !path.is_root() => {}
                Err(e) => {
                    log::info!("a base is not followed for git: {e} at {path:?}; see fs.inotify.max_user_watches");
                    return Err(Trouble::NoRoom);
                }
            }
        }
        Ok(())
    }

    /// Watches a directory, and then lists it: what comes afterwards is an event.
    fn add(&mut self, root: &OwnedFd, path: &RelPath, name_all: bool, todo: &mut Vec<RelPath>) -> Result<(), Errno> {
        let quiet = OFlags::RDONLY | OFlags::DIRECTORY;
        let dir = match open_beneath(root, path, quiet | OFlags::NOATIME) {
            Err(Errno::PERM) => open_beneath(root, path, quiet)?,
            other => other?,
        };
        if self.watches.len() >= self.most {
            return Err(Errno::NOSPC);
        }
        // The magic link names the very directory behind the descriptor.
        let wd = inotify::add_watch(&self.inotify, format!("/proc/self/fd/{}", dir.as_raw_fd()), mask())?;
        if let Some(old) = self.paths.insert(wd, path.clone())
            && old != *path
        {
            self.watches.remove(&old);
        }
        self.watches.insert(path.clone(), wd);
        if name_all {
            self.log.note(path.join(OsStr::new(INSIDE)));
        }
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if matches!(name.as_bytes(), b"." | b".." | b".git") {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => At { dir: dir.as_fd(), name }.stat().map(|stat| stat.file_type()),
                kind => Ok(kind),
            };
            if kind == Ok(FileType::Directory) {
                todo.push(path.join(name));
            } else if name_all {
                self.log.note(path.join(name));
            }
        }
        Ok(())
    }

    /// Takes a directory and all below it out, as it is known under this path.
    fn remove_tree(&mut self, path: &RelPath) {
        let below: Vec<RelPath> = self
            .watches
            .range(path.clone()..)
            .map(|(below, _)| below)
            .take_while(|below| below.as_path().starts_with(path.as_path()))
            .cloned()
            .collect();
        for path in below {
            if let Some(wd) = self.watches.remove(&path) {
                self.paths.remove(&wd);
                // EINVAL: the directory went first.
                let _ = inotify::remove_watch(&self.inotify, wd);
            }
            self.log.note(path.join(OsStr::new(INSIDE)));
        }
    }

    /// Logs what is in the queue.
    fn drain(&mut self, root: &OwnedFd) -> Result<(), Trouble> {
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER];
        loop {
            let mut events = Vec::new();
            let mut reader = Reader::new(&self.inotify, &mut buffer);
            loop {
                match reader.next() {
                    Ok(event) => events.push((event.wd(), event.events(), event.file_name().map(CStr::to_owned))),
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR) => {}
                    Err(_) => return Err(Trouble::Lost),
                }
                if reader.is_buffer_empty() {
                    break;
                }
            }
            if events.is_empty() {
                return Ok(());
            }
            for (wd, events, name) in events {
                self.take(root, wd, events, name.as_deref())?;
            }
        }
    }

    fn take(&mut self, root: &OwnedFd, wd: i32, events: ReadFlags, name: Option<&CStr>) -> Result<(), Trouble> {
        if events.intersects(ReadFlags::QUEUE_OVERFLOW | ReadFlags::UNMOUNT) {
            return Err(Trouble::Lost);
        }
        let Some(dir) = self.paths.get(&wd).cloned() else { return Ok(()) };
        let Some(name) = name else { return self.itself(dir, wd, events) };
        let name = OsStr::from_bytes(name.to_bytes());
        let path = dir.join(name);
        self.log.note(path.clone());
        if name == ".git" {
            return Ok(());
        }
        if !events.contains(ReadFlags::ISDIR) {
            return self.other_names(root, &path);
        }
        if events.intersects(ReadFlags::MOVED_FROM | ReadFlags::DELETE) {
            self.remove_tree(&path);
        }
        if events.contains(ReadFlags::MOVED_FROM) {
            // What is in it went along without an event. Git before 2.37 takes the name of a directory for nothing.
            self.log.note_anything();
        }
        // Also where it was closed until now.
        let opened = events.contains(ReadFlags::ATTRIB) && !self.watches.contains_key(&path);
        if opened || events.intersects(ReadFlags::MOVED_TO | ReadFlags::CREATE) {
            self.remove_tree(&path);
            self.add_tree(root, path, true, &AtomicBool::new(false))?;
        }
        Ok(())
    }

    /// What an event says of the watched directory itself.
    fn itself(&mut self, dir: RelPath, wd: i32, events: ReadFlags) -> Result<(), Trouble> {
        if events.contains(ReadFlags::IGNORED) {
            self.paths.remove(&wd);
            if self.watches.get(&dir) == Some(&wd) {
                self.watches.remove(&dir);
            }
            return if dir.is_root() { Err(Trouble::Lost) } else { Ok(()) };
        }
        if events.contains(ReadFlags::ATTRIB) && !dir.is_root() {
            self.log.note(dir);
        }
        Ok(())
    }

    /// A file with several names changed: which the others are nobody knows.
    fn other_names(&mut self, root: &OwnedFd, path: &RelPath) -> Result<(), Trouble> {
        let stat = open_beneath(root, path, OFlags::PATH | OFlags::NOFOLLOW).and_then(|fd| sys::Stat::of(fd.as_fd()));
        if stat.is_ok_and(|stat| stat.nlink > 1) {
            self.log.note_anything();
        }
        Ok(())
    }
}

/// How many directories to watch at the most.
fn most() -> usize {
    sys::watch_limit().map_or(MOST, |limit| MOST.min(limit / 2))
}

/// What is asked of the kernel for every directory.
fn mask() -> WatchFlags {
    WatchFlags::ONLYDIR
        | WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::MODIFY
        | WatchFlags::ATTRIB
        | WatchFlags::CLOSE_WRITE
}

#[cfg(test)]
mod tests;
