//! One object of a tree copy: file, link, special file, and the attributes of any of them.
//!
//! A file is copied, given its attributes, and then the original is looked at again: unless it is what it was before,
//! the copy is made anew. Hard links are kept by whoever meets an inode first copying it while the others wait for it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

use parking_lot::{Condvar, Mutex};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::data::{Method, file_data_watched, reflink};
use super::links::{Symlinks, leads_outside, retarget};
use super::meta;
use super::tree::{Options, Progress, Report, Shared, cancelled, place};
use super::walk::Dir;
use crate::error::{self, Error, Kind};
use crate::names::RelPath;
use crate::sys::{At, Stat, open_beneath};

/// So often a file that changes while it is copied is tried before the report names it.
const TRIES: u32 = 4;

/// Magic numbers of file systems that are interfaces of the kernel (`linux/magic.h`): proc, sysfs, cgroup, cgroup2,
/// debugfs, tracefs, securityfs, bpf, devpts, configfs, pstore, binfmt_misc, autofs, mqueue, selinux.
const INTERFACES: [u32; 15] = [
    0x9fa0,
    0x6265_6572,
    0x0027_e0eb,
    0x6367_7270,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0xcafe_4a11,
    0x1cd1,
    0x6265_6570,
    0x6165_676c,
    0x4249_4e4d,
    0x0187,
    0x1980_0202,
    0xf97c_ff8c,
];

/// An inode with several names.
enum Linked {
    /// A thread is copying it.
    Copying,
    /// Copied: its attributes in the source, and its names in the copy.
    Done(Box<Stat>, Vec<RelPath>),
}

pub(super) struct Objects<'a> {
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    /// Device and inode of the copy's root, which must not lie in the source.
    to_key: (u64, u64),
    options: &'a Options<'a>,
    shared: &'a Shared,
    /// By device and inode.
    linked: Mutex<HashMap<(u64, u64), Linked>>,
    link_done: Condvar,
}

/// How an attempt to copy an object ended.
enum Outcome {
    Copied(Stat),
    /// Left out, or vanished meanwhile.
    Nothing,
    /// It is not what it was before; what was copied is removed.
    Changed,
}

impl<'a> Objects<'a> {
    pub(super) fn new(
        from: BorrowedFd<'a>,
        to: BorrowedFd<'a>,
        options: &'a Options<'a>,
        shared: &'a Shared,
    ) -> Result<Self, Errno> {
        let target = Stat::of(to)?;
        let to_key = (target.dev, target.ino);
        let linked = Mutex::default();
        Ok(Self { from, to, to_key, options, shared, linked, link_done: Condvar::new() })
    }

    /// Copies an object that is no directory, attributes included.
    pub(super) fn copy(&self, dir: &Dir, name: &OsStr, path: &RelPath, stat: &Stat) -> error::Result<()> {
        let result =
            if stat.nlink > 1 { self.copy_linked(dir, name, path, stat) } else { self.copy_one(dir, name, path, stat) };
        result.map_err(|e| self.error("cannot copy", e, path))
    }

    fn error(&self, action: &'static str, errno: Errno, path: &RelPath) -> Error {
        if errno == Errno::CANCELED { cancelled() } else { Error::io(action, errno).at(place(self.options, path)) }
    }

    fn note(&self, note: impl FnOnce(&mut Report)) {
        note(&mut self.shared.report.lock());
    }

    fn copy_one(&self, dir: &Dir, name: &OsStr, path: &RelPath, stat: &Stat) -> Result<(), Errno> {
        if let Some((stat, copy)) = self.attempt_all(dir, name, path, stat)? {
            (self.options.observe)(path, &stat, &copy);
        }
        Ok(())
    }

    /// Copies an inode with several names, or gives the copy that there is another name.
    fn copy_linked(&self, dir: &Dir, name: &OsStr, path: &RelPath, stat: &Stat) -> Result<(), Errno> {
        let key = (stat.dev, stat.ino);
        let mut linked = self.linked.lock();
        loop {
            match linked.get_mut(&key) {
                None => break,
                Some(Linked::Copying) => self.link_done.wait(&mut linked),
                Some(Linked::Done(_, names)) => {
                    let first = names[0].clone();
                    names.push(path.clone());
                    drop(linked);
                    self.shared.entries.fetch_add(1, Ordering::Relaxed);
                    return self.link(&first, dir.entry(name).1);
                }
            }
        }
        linked.insert(key, Linked::Copying);
        drop(linked);
        let result = self.attempt_all(dir, name, path, stat);
        let mut linked = self.linked.lock();
        match &result {
            Ok(Some((stat, _))) => linked.insert(key, Linked::Done(Box::new(*stat), vec![path.clone()])),
            // Whoever waits tries for itself, or finds that everything has stopped.
            Ok(None) | Err(_) => linked.remove(&key),
        };
        drop(linked);
        self.link_done.notify_all();
        result.map(drop)
    }

    fn link(&self, first: &RelPath, to: At<'_>) -> Result<(), Errno> {
        let (Some(parent), Some(name)) = (first.parent(), first.file_name()) else { return Err(Errno::INVAL) };
        let parent = open_beneath(&self.to, &parent, OFlags::PATH | OFlags::DIRECTORY)?;
        At::new(&parent, name).link_to(to)
    }

    /// Tells the observer of the hard links, whose change time moved with each name.
    pub(super) fn observe_links(&self) -> error::Result<()> {
        for linked in self.linked.lock().values() {
            let Linked::Done(stat, names) = linked else { continue };
            for path in names {
                let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
                let copy = open_beneath(&self.to, &parent, OFlags::PATH | OFlags::DIRECTORY)
                    .and_then(|parent| At::new(&parent, name).stat())
                    .map_err(|e| self.error("cannot look at the copy of", e, path))?;
                (self.options.observe)(path, stat, &copy);
            }
        }
        Ok(())
    }

    /// Copies until the original, which was last seen as `stat`, stands still. The attributes of it and of the copy.
    fn attempt_all(&self, dir: &Dir, name: &OsStr, path: &RelPath, stat: &Stat) -> Result<Option<(Stat, Stat)>, Errno> {
        let (from, to) = dir.entry(name);
        let mut seen = Some(*stat);
        for attempt in 1.. {
            let Some(stat) = seen else { return Ok(None) };
            if stat.mount_root && attempt == 1 {
                self.note(|report| report.mounts_entered.push(path.clone()));
            }
            let last = attempt == TRIES;
            let outcome = match stat.file_type() {
                FileType::RegularFile => self.file(from, to, path, &stat, last),
                FileType::Symlink => self.symlink(from, to, path, &stat),
                FileType::Directory => Ok(Outcome::Nothing),
                _ => self.special(from, to, path, &stat),
            };
            match outcome {
                Ok(Outcome::Copied(copy)) => {
                    self.shared.entries.fetch_add(1, Ordering::Relaxed);
                    return Ok(Some((stat, copy)));
                }
                Ok(Outcome::Nothing) => return Ok(None),
                // Gone or replaced between two looks.
                Ok(Outcome::Changed) | Err(Errno::NOENT | Errno::STALE | Errno::LOOP) if !last => {
                    if to.try_stat()?.is_some() {
                        to.unlink()?;
                    }
                    seen = from.try_stat()?;
                }
                Ok(Outcome::Changed) => return Err(Errno::STALE),
                Err(e) => return Err(e),
            }
        }
        unreachable!("the last attempt returns")
    }

    fn file(&self, from: At<'_>, to: At<'_>, path: &RelPath, stat: &Stat, last: bool) -> Result<Outcome, Errno> {
        // NONBLOCK: what was a file a moment ago may be a FIFO by now.
        let source = from.open_quiet(OFlags::RDONLY | OFlags::NONBLOCK)?;
        let before = Stat::of(source.as_fd())?;
        if !same(stat, &before) {
            return Ok(Outcome::Changed);
        }
        let target = to.create(OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, 0o600)?;
        let method = self.data(source.as_fd(), target.as_fd(), stat.size)?;
        let copy = self.attributes(At::object(&source), At::object(&target), stat)?;
        let still = from.try_stat()?.is_some_and(|after| same(stat, &after));
        if !still && !last {
            return Ok(Outcome::Changed);
        }
        self.note(|report| {
            match method {
                Method::Reflink => report.reflinked += 1,
                Method::CopyRange => report.copied += 1,
                Method::ReadWrite => report.read_written += 1,
            }
            if !still {
                report.unstable.push(path.clone());
            }
        });
        Ok(Outcome::Copied(copy))
    }

    fn data(&self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, size: u64) -> Result<Method, Errno> {
        if self.options.reflink && reflink(from, to)? {
            self.shared.bytes.fetch_add(size, Ordering::Relaxed);
            return Ok(Method::Reflink);
        }
        file_data_watched(from, to, size, &mut |n| {
            self.shared.bytes.fetch_add(n, Ordering::Relaxed);
            // A small file is watched by its batch.
            if n < size { (self.options.watch)(self.shared.progress()) } else { ControlFlow::Continue(()) }
        })
    }

    fn symlink(&self, from: At<'_>, to: At<'_>, path: &RelPath, stat: &Stat) -> Result<Outcome, Errno> {
        let target = from.readlink()?;
        let leave_out = match self.options.symlinks {
            Symlinks::Keep => false,
            Symlinks::Confine => leads_outside(&self.from, self.options.root, path, &target),
            Symlinks::Skip => true,
        };
        if leave_out {
            self.note(|report| report.links_left_out += 1);
            return Ok(Outcome::Nothing);
        }
        to.symlink(retarget(self.options.root, path, &target).as_deref().unwrap_or(&target))?;
        Ok(Outcome::Copied(self.attributes(from, to, stat)?))
    }

    fn special(&self, from: At<'_>, to: At<'_>, path: &RelPath, stat: &Stat) -> Result<Outcome, Errno> {
        let kind = stat.file_type();
        match to.mknod(kind.as_raw_mode() | 0o600, stat.rdev) {
            Err(Errno::PERM) if matches!(kind, FileType::CharacterDevice | FileType::BlockDevice) => {
                self.note(|report| report.devices_left_out.push(path.clone()));
                return Ok(Outcome::Nothing);
            }
            other => other?,
        }
        Ok(Outcome::Copied(self.attributes(from, to, stat)?))
    }

    /// Gives a directory of the copy, with everything in it, its attributes.
    pub(super) fn finish_dir(&self, from: At<'_>, to: At<'_>, path: &RelPath, stat: &Stat) -> error::Result<()> {
        let copy = match self.attributes(from, to, stat) {
            // Gone meanwhile: what was seen of it stays, with the attributes that were seen.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::STALE) => {
                meta::permissions(to, stat).and_then(|()| meta::times(to, stat)).and_then(|()| to.stat())
            }
            other => other,
        };
        let copy = copy.map_err(|e| self.error("cannot set the attributes of the copy of", e, path))?;
        self.shared.entries.fetch_add(1, Ordering::Relaxed);
        (self.options.observe)(path, stat, &copy);
        Ok(())
    }

    /// Gives `to` everything but the content, and returns what it is like then.
    ///
    /// An owner that this process may not give (or that its user namespace does not know) is counted, and then set-id
    /// bits go: they would lend somebody else's rights.
    fn attributes(&self, from: At<'_>, to: At<'_>, stat: &Stat) -> Result<Stat, Errno> {
        let mut stat = *stat;
        let now = to.stat()?;
        let owned = meta::set_owner(to, &now, &stat);
        if matches!(owned, Err(Errno::PERM | Errno::INVAL)) {
            self.note(|report| report.owners_lost += 1);
            stat.mode &= !0o6000;
        } else {
            owned?;
        }
        let marked = meta::xattrs_of_new(from, to)?;
        if owned == Ok(true) || marked || now.mode != stat.mode {
            meta::permissions(to, &stat)?;
        }
        meta::times(to, &stat)?;
        to.stat()
    }

    /// Whether the content of a directory is to be copied: not that of a kernel interface, nor ever the copy itself.
    pub(super) fn may_enter(&self, from: At<'_>, path: &RelPath, stat: &Stat) -> error::Result<bool> {
        if (stat.dev, stat.ino) == self.to_key {
            let message = "the copy would contain itself, since it lies inside its source";
            return Err(Error::new(Kind::Usage, message).at(place(self.options, path)));
        }
        if !stat.mount_root {
            return Ok(true);
        }
        let kind = from.open(OFlags::PATH | OFlags::DIRECTORY).and_then(rustix::fs::fstatfs);
        let kind = kind.map_err(|e| self.error("cannot look at the mount", e, path))?;
        // The magic numbers are 32 bits wide; the type of the field differs between machines.
        let enter = !INTERFACES.contains(&(kind.f_type as u32));
        self.note(|report| {
            let list = if enter { &mut report.mounts_entered } else { &mut report.mounts_left_out };
            list.push(path.clone());
        });
        Ok(enter)
    }

    /// How far all threads are.
    pub(super) fn progress(&self) -> Progress {
        self.shared.progress()
    }
}

/// Whether two looks saw the same object in the same state.
fn same(a: &Stat, b: &Stat) -> bool {
    (a.dev, a.ident(), a.mode, a.size, a.mtime, a.ctime) == (b.dev, b.ident(), b.mode, b.size, b.mtime, b.ctime)
}
