//! The threads of a tree copy: a stack of directories to enter and of batches of names to copy.
//!
//! Last in, first out, so that few directories are open at a time (about depth times threads). A directory gets its
//! attributes when the last thing in it is complete: before that it is writable, whatever its mode, and afterwards
//! nothing moves its times any more.

use std::ffi::{OsStr, OsString};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex};
use rustix::fs::{Dir as Listing, OFlags};
use rustix::io::Errno;

use super::meta;
use super::object::Objects;
use super::tree::{Options, Shared, cancelled, place};
use crate::error::{Context, Error, Result};
use crate::names::RelPath;
use crate::sys::{At, Stat};

/// So many names of one directory are copied by one thread in one go.
const BATCH: usize = 256;

/// A directory that is being copied.
pub(super) struct Dir {
    parent: Option<Arc<Dir>>,
    pub(super) path: RelPath,
    /// Its attributes in the source when it was found.
    stat: Stat,
    /// Opened when its turn comes: the original and the copy.
    fds: OnceLock<(OwnedFd, OwnedFd)>,
    /// Batches and directories in it that are not complete yet.
    pending: AtomicUsize,
}

impl Dir {
    fn fds(&self) -> &(OwnedFd, OwnedFd) {
        self.fds.get().expect("a directory is opened before anything in it is looked at")
    }

    /// The entry `name` in the original and in the copy.
    pub(super) fn entry<'a>(&'a self, name: &'a OsStr) -> (At<'a>, At<'a>) {
        let (from, to) = self.fds();
        (At::new(from, name), At::new(to, name))
    }

    /// The directory itself, as an entry of its parent, in the original and in the copy.
    fn own_entry(&self) -> (At<'_>, At<'_>) {
        match (&self.parent, self.path.file_name()) {
            (Some(parent), Some(name)) => parent.entry(name),
            _ => self.entry(OsStr::new(".")),
        }
    }
}

enum Task {
    /// Open this directory, list it, and share its names out.
    Enter(Arc<Dir>),
    /// Copy these entries of it.
    Batch(Arc<Dir>, Vec<OsString>),
}

/// What the threads share. One lock, never held while a task runs.
#[derive(Default)]
struct Queue {
    stack: Vec<Task>,
    /// Threads that are running a task, which may push more.
    busy: usize,
    failed: Option<Error>,
}

pub(super) struct Walk<'a> {
    options: &'a Options<'a>,
    objects: Objects<'a>,
    queue: Mutex<Queue>,
    wake: Condvar,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        from: BorrowedFd<'a>,
        to: BorrowedFd<'a>,
        options: &'a Options<'a>,
        shared: &'a Shared,
    ) -> Result<Self> {
        let stat = Stat::of(from).context("cannot look at", options.root)?;
        let objects = Objects::new(from, to, options, shared).context("cannot look at the copy of", options.root)?;
        meta::bequeath_nothing(At::new(&to, ".")).context("cannot change the ACL of the copy of", options.root)?;
        let fds = OnceLock::new();
        let open = |dir| At::new(&dir, ".").open(OFlags::RDONLY | OFlags::DIRECTORY);
        let pair = open(from).and_then(|from| Ok((from, open(to)?))).context("cannot open", options.root)?;
        fds.set(pair).expect("new, thus empty");
        let root = Arc::new(Dir { parent: None, path: RelPath::root(), stat, fds, pending: AtomicUsize::new(0) });
        let queue = Mutex::new(Queue { stack: vec![Task::Enter(root)], ..Queue::default() });
        Ok(Self { options, objects, queue, wake: Condvar::new() })
    }

    /// Copies everything; the first error ends it.
    pub(super) fn run(self) -> Result<()> {
        std::thread::scope(|scope| {
            for _ in 1..self.options.threads.max(1) {
                scope.spawn(|| self.work());
            }
            self.work();
        });
        if let Some(error) = self.queue.into_inner().failed {
            return Err(error);
        }
        self.objects.observe_links()
    }

    fn work(&self) {
        while let Some(task) = self.next() {
            let result = self.perform(task);
            let mut queue = self.queue.lock();
            queue.busy -= 1;
            if let Err(error) = result {
                queue.failed.get_or_insert(error);
            }
            drop(queue);
            self.wake.notify_all();
        }
    }

    /// Waits for something to do; `None` when there will be nothing any more.
    fn next(&self) -> Option<Task> {
        let mut queue = self.queue.lock();
        loop {
            if queue.failed.is_some() {
                return None;
            }
            if let Some(task) = queue.stack.pop() {
                queue.busy += 1;
                return Some(task);
            }
            if queue.busy == 0 {
                return None;
            }
            self.wake.wait(&mut queue);
        }
    }

    fn push(&self, tasks: impl IntoIterator<Item = Task>) {
        self.queue.lock().stack.extend(tasks);
        self.wake.notify_all();
    }

    fn perform(&self, task: Task) -> Result<()> {
        match task {
            Task::Enter(dir) => self.enter(&dir),
            Task::Batch(dir, names) => {
                for name in &names {
                    if (self.options.watch)(self.objects.progress()).is_break() {
                        return Err(cancelled());
                    }
                    self.entry(&dir, name)?;
                }
                self.release(&dir)
            }
        }
    }

    fn enter(&self, dir: &Arc<Dir>) -> Result<()> {
        let names = self.open_and_list(dir).context("cannot read the directory", place(self.options, &dir.path))?;
        // One more than the batches, so that an empty directory is completed here.
        dir.pending.store(names.len().div_ceil(BATCH) + 1, Ordering::Relaxed);
        self.push(names.chunks(BATCH).map(|batch| Task::Batch(Arc::clone(dir), batch.to_vec())));
        self.release(dir)
    }

    fn open_and_list(&self, dir: &Dir) -> std::result::Result<Vec<OsString>, Errno> {
        if dir.parent.is_some() {
            let (from, to) = dir.own_entry();
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let from = match from.open_quiet(flags) {
                Ok(fd) => fd,
                // Gone or replaced since it was found: an empty directory is what is left of it.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE) => to.open(flags)?,
                Err(e) => return Err(e),
            };
            dir.fds.set((from, to.open(flags)?)).expect("each directory is entered once");
        }
        let mut names = Vec::new();
        let here = At::new(&dir.fds().0, ".").open_quiet(OFlags::RDONLY | OFlags::DIRECTORY)?;
        for entry in Listing::new(here)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsStr::from_bytes(name).to_os_string());
            }
        }
        Ok(names)
    }

    fn entry(&self, dir: &Arc<Dir>, name: &OsStr) -> Result<()> {
        let path = dir.path.join(name);
        let (from, to) = dir.entry(name);
        let stat = match from.try_stat() {
            Ok(Some(stat)) => stat,
            Ok(None) => return Ok(()),
            Err(e) => return Err(Error::io("cannot look at", e).at(place(self.options, &path))),
        };
        if (self.options.skip)(&path, &stat) {
            return Ok(());
        }
        if !stat.is_dir() {
            return self.objects.copy(dir, name, &path, &stat);
        }
        let enter = self.objects.may_enter(from, &path, &stat)?;
        to.mkdir(0o700).context("cannot make a directory for", place(self.options, &path))?;
        if !enter {
            return self.objects.finish_dir(from, to, &path, &stat);
        }
        dir.pending.fetch_add(1, Ordering::Relaxed);
        let child =
            Dir { parent: Some(Arc::clone(dir)), path, stat, fds: OnceLock::new(), pending: AtomicUsize::new(0) };
        self.push([Task::Enter(Arc::new(child))]);
        Ok(())
    }

    /// Counts one thing in `dir` as complete; with the last one the directory is, and so on upwards.
    fn release(&self, dir: &Arc<Dir>) -> Result<()> {
        let mut dir = dir;
        // Release and acquire: who completes a directory has seen everything that others did in it.
        while dir.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            let (from, to) = dir.own_entry();
            self.objects.finish_dir(from, to, &dir.path, &dir.stat)?;
            match &dir.parent {
                Some(parent) => dir = parent,
                None => break,
            }
        }
        Ok(())
    }
}
