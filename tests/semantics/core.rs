//! The engine that drives the overlay in-process: what the kernel does between a system call and a FUSE request.
//!
//! Paths are walked by lookups, which are held like the kernel's cached names until something lets go of them; open
//! files hold a node. Checks that the kernel makes before it asks the file system are made here, in its order
//! (`fs/namei.c`, `fs/open.c`, `fs/read_write.c`, `fs/xattr.c`), as far as root gets to see them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::{Arc, Weak};

use rustix::fs::FileType;
use rustix::io::Errno;
use treefork::layer::hidden::Hidden;
use treefork::overlay::{Attr, Caller, Config, Entry, FdCache, Large, Lookup, Lower, Overlay, ROOT, SetAttr, SetTime};
use treefork::sys::{Time, open_root};

use super::differential::{Forks, Site, run};
use super::engine::{Done, Engine, alloc_flags, check_map, copy_full, put_flags, read_full, rename_flags};
use super::ops::{How, Move, Op, SLOTS, When, pattern};
use super::show::{self, Outcome, Value, bytes, count, done, names, text};
use crate::common::Fs;

const ROOT_USER: Caller = Caller { uid: 0, gid: 0 };

/// Where a path leads.
struct Found {
    /// The directories from the root to the parent.
    chain: Vec<u64>,
    name: String,
    entry: Option<Entry>,
}

impl Found {
    fn parent(&self) -> u64 {
        *self.chain.last().expect("the root is always in it")
    }

    fn there(&self) -> Done<Entry> {
        self.entry.ok_or(Errno::NOENT)
    }

    fn absent(&self) -> Done<()> {
        if self.entry.is_some() { Err(Errno::EXIST) } else { Ok(()) }
    }
}

struct Open {
    node: u64,
    /// The directory that its name was in.
    parent: u64,
    how: How,
    dir: bool,
    at: u64,
    ino: u64,
}

/// What the kernel keeps of a node.
struct Held {
    generation: u64,
    lookups: u64,
    /// Where it was last found. A name that is cached keeps the directory that it is in.
    parent: u64,
}

pub(super) struct Core<'a> {
    fs: Arc<Overlay>,
    make: Box<dyn FnMut() -> Arc<Overlay> + 'a>,
    /// The nodes whose lookups were not given back yet.
    held: HashMap<u64, Held>,
    slots: [Option<Open>; SLOTS],
    start: Time,
    umask: u32,
}

impl<'a> Core<'a> {
    /// On the overlay that `make` makes, now and after each [`Op::Remount`].
    pub(super) fn new(start: Time, mut make: impl FnMut() -> Arc<Overlay> + 'a) -> Self {
        let fs = make();
        Self { fs, make: Box::new(make), held: HashMap::new(), slots: Default::default(), start, umask: umask() }
    }

    fn hold(&mut self, parent: u64, entry: Entry) -> Entry {
        let Entry { node, generation, .. } = entry;
        let held = self.held.entry(node).or_insert(Held { generation, lookups: 0, parent });
        if held.generation != generation {
            let open = self.slots.iter().flatten().any(|open| open.node == node);
            assert!(!open, "node {node} is open and became another object");
            held.generation = generation;
        }
        held.lookups += 1;
        held.parent = parent;
        entry
    }

    /// Gives back all lookups of a node, unless it is open or the way to something that is held.
    fn let_go(&mut self, node: u64) {
        let open = self.slots.iter().flatten().any(|open| open.node == node || open.parent == node);
        let way = self.held.values().any(|held| held.parent == node);
        if !open
            && !way
            && let Some(held) = self.held.remove(&node)
        {
            self.fs.forget(node, held.lookups);
        }
    }

    /// Gives back whatever can be, leaves first.
    fn let_all_go(&mut self) {
        loop {
            let before = self.held.len();
            let mut nodes: Vec<u64> = self.held.keys().copied().collect();
            nodes.sort_unstable();
            nodes.into_iter().for_each(|node| self.let_go(node));
            if self.held.len() == before {
                return;
            }
        }
    }

    fn close(&mut self, slot: usize) -> Done<()> {
        let open = self.slots[slot].take().ok_or(Errno::BADF)?;
        if self.attr(open.node)?.nlink == 0 {
            self.let_go(open.node);
        }
        Ok(())
    }

    fn attr(&self, node: u64) -> Done<Attr> {
        Ok(self.fs.getattr(node)?.0)
    }

    fn child(&mut self, parent: u64, name: &str) -> Done<Option<Entry>> {
        match self.fs.lookup(parent, OsStr::new(name))? {
            Lookup::Absent(_) => Ok(None),
            Lookup::Found(entry) => {
                let entry = self.hold(parent, entry);
                let attr = self.attr(entry.node)?;
                // Blocks are allocated when the disk is written, and the change time of a large file moves once more when all
                // of it has come up, which may be between the two.
                let later = entry.attr.is_file() && attr.ctime > entry.attr.ctime;
                let ctime = if later { attr.ctime } else { entry.attr.ctime };
                let same = Attr { atime: attr.atime, blocks: attr.blocks, ctime, ..entry.attr };
                assert_eq!(same, attr, "lookup and getattr of {name:?} disagree");
                Ok(Some(entry))
            }
        }
    }

    /// Walks a path from the root; a link at its end is followed only where `follow` says so.
    fn find(&mut self, path: &str, follow: bool) -> Done<Found> {
        if path.is_empty() {
            let attr = self.attr(ROOT)?;
            let zero = std::time::Duration::ZERO;
            let entry = Entry { node: ROOT, generation: 0, attr, entry_ttl: zero, attr_ttl: zero };
            return Ok(Found { chain: vec![ROOT], name: String::new(), entry: Some(entry) });
        }
        self.walk(vec![ROOT], path, follow, &mut 0)
    }

    fn walk(&mut self, mut chain: Vec<u64>, path: &str, follow: bool, links: &mut u32) -> Done<Found> {
        if path.starts_with('/') {
            // Out of the tree; the operations know one such target, which does not exist.
            return Err(Errno::NOENT);
        }
        let mut components = path.split('/').peekable();
        loop {
            let name = components.next().expect("a path has a component, and the last one returns");
            let last = components.peek().is_none();
            let parent = *chain.last().expect("never empty");
            let mut found = Found { chain: chain.clone(), name: name.to_owned(), entry: self.child(parent, name)? };
            if let Some(entry) = found.entry
                && entry.attr.is_symlink()
                && (follow || !last)
            {
                *links += 1;
                if *links > 40 {
                    return Err(Errno::LOOP);
                }
                let target = self.fs.readlink(entry.node)?;
                found = self.walk(chain, target.to_str().expect("the operations use text"), true, links)?;
            }
            if last {
                return Ok(found);
            }
            let entry = found.there()?;
            if !entry.attr.is_dir() {
                return Err(Errno::NOTDIR);
            }
            chain = found.chain;
            chain.push(entry.node);
        }
    }

    fn node(&mut self, path: &str, follow: bool) -> Done<Entry> {
        self.find(path, follow)?.there()
    }

    fn slot(&self, slot: usize) -> Done<&Open> {
        self.slots[slot].as_ref().ok_or(Errno::BADF)
    }

    fn readable(&self, slot: usize) -> Done<&Open> {
        match self.slot(slot)? {
            open if open.dir => Err(Errno::ISDIR),
            open if open.how == How::Write => Err(Errno::BADF),
            open => Ok(open),
        }
    }

    fn writable(&self, slot: usize) -> Done<&Open> {
        self.slot(slot).and_then(|open| if open.how == How::Read { Err(Errno::BADF) } else { Ok(open) })
    }

    /// Opens a path: the directory it is in, and the node.
    fn open(&mut self, path: &str, how: How, create: bool, excl: bool, trunc: bool, mode: u32) -> Done<(u64, Entry)> {
        if let Ok(entry) = self.node(path, true)
            && matches!(entry.attr.file_type(), FileType::Fifo | FileType::CharacterDevice)
        {
            return Err(Errno::NXIO);
        }
        let found = self.find(path, !(create && excl))?;
        let Some(entry) = found.entry else {
            if !create {
                return Err(Errno::NOENT);
            }
            let mode = mode | FileType::RegularFile.as_raw_mode();
            let entry = self.fs.mknod(ROOT_USER, found.parent(), OsStr::new(&found.name), mode, self.umask, 0)?;
            return Ok((found.parent(), self.hold(found.parent(), entry)));
        };
        if create && excl {
            return Err(Errno::EXIST);
        }
        if entry.attr.is_dir() && (create || trunc || how != How::Read) {
            return Err(Errno::ISDIR);
        }
        if trunc {
            self.fs.setattr(ROOT_USER, entry.node, &SetAttr { size: Some(0), ..SetAttr::default() })?;
        }
        Ok((found.parent(), entry))
    }

    fn fill_slot(&mut self, slot: usize, parent: u64, entry: Entry, how: How) -> Outcome {
        let Entry { node, attr, .. } = entry;
        self.slots[slot] = Some(Open { node, parent, how, dir: attr.is_dir(), at: 0, ino: attr.ino });
        Ok(Value::Done)
    }

    fn on_slot(&mut self, op: &Op) -> Outcome {
        match *op {
            Op::Open { slot, path, how, create, excl, trunc } => {
                let _ = self.close(slot);
                let (parent, entry) = self.open(path, how, create, excl, trunc, 0o640)?;
                self.fill_slot(slot, parent, entry, how)
            }
            Op::OpenDir { slot, path } => {
                let _ = self.close(slot);
                let (parent, entry) = self.open(path, How::Read, false, false, false, 0)?;
                if !entry.attr.is_dir() {
                    return Err(Errno::NOTDIR);
                }
                self.fill_slot(slot, parent, entry, How::Read)
            }
            Op::Close { slot } => self.close(slot).map(done),
            Op::Read { slot, len } => {
                let at = self.readable(slot)?.at;
                let mut end = at;
                let read = self.read(slot, at, len, &mut end);
                self.slots[slot].as_mut().expect("it was readable").at = end;
                read
            }
            Op::Pread { slot, off, len } => self.read(slot, off, len, &mut 0),
            Op::Write { slot, len, fill } => {
                let off = self.writable(slot)?.at;
                let (n, end) = self.write(slot, off, &pattern(0, len, fill))?;
                self.slots[slot].as_mut().expect("it was writable").at = end;
                count(n)
            }
            Op::Pwrite { slot, off, len, fill } => count(self.write(slot, off, &pattern(off, len, fill))?.0),
            Op::MapRead { slot, off, len } => {
                let (off, end) = self.mapped(slot, off, len, false)?;
                self.read(slot, off, end - usize::try_from(off).expect("small"), &mut 0)
            }
            Op::MapWrite { slot, off, len, fill } => self.map_write(slot, off, len, fill),
            Op::Ftruncate { slot, len } => {
                let open = self.slot(slot)?;
                if open.dir || open.how == How::Read {
                    return Err(Errno::INVAL);
                }
                self.set(open.node, SetAttr { size: Some(len), ..SetAttr::default() })
            }
            Op::Allocate { slot, mode, off, len } => {
                self.slot(slot)?;
                if len == 0 {
                    return Err(Errno::INVAL);
                }
                let mode = alloc_flags(mode).bits().cast_signed();
                self.fs.fallocate(ROOT_USER, self.writable(slot)?.node, off, len, mode).map(done)
            }
            Op::Holes { slot, off } => self.holes(slot, off),
            Op::CopyRange { from, from_off, to, to_off, len } => self.copy_range(from, from_off, to, to_off, len),
            _ => self.on_open(op),
        }
    }

    fn on_open(&mut self, op: &Op) -> Outcome {
        match *op {
            Op::Fsync { slot, data } => self.fs.fsync(self.slot(slot)?.node, data).map(done),
            Op::Fstat { slot } => {
                let open = self.slot(slot)?;
                let attr = self.attr(open.node)?;
                text(format!("{} ino kept {}", show::stat(&attr, self.start), attr.ino == open.ino))
            }
            Op::Fchmod { slot, mode } => {
                self.set(self.slot(slot)?.node, SetAttr { mode: Some(mode), ..SetAttr::default() })
            }
            Op::Fchown { slot, uid, gid } => {
                self.set(self.slot(slot)?.node, SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() })
            }
            Op::Futimens { slot, atime, mtime } => self.utimens(self.slot(slot)?.node, atime, mtime),
            Op::Same { slot, path } => {
                let node = self.slot(slot)?.node;
                let ino = self.attr(node)?.ino;
                text(format!("same {}", ino == self.node(path, true)?.attr.ino))
            }
            Op::ListSlot { slot } => {
                let (node, dir) = self.slot(slot).map(|open| (open.node, open.dir))?;
                if !dir {
                    return Err(Errno::NOTDIR);
                }
                if self.attr(node)?.nlink == 0 {
                    return Err(Errno::NOENT);
                }
                names(self.list(node, 0, usize::MAX)?.0)
            }
            _ => self.on_names(op),
        }
    }

    fn on_names(&mut self, op: &Op) -> Outcome {
        match *op {
            Op::Mkdir { path, mode } => {
                let found = self.find(path, false)?;
                found.absent()?;
                let name = OsStr::new(&found.name);
                let entry = self.fs.mkdir(ROOT_USER, found.parent(), name, mode & 0o1777, self.umask)?;
                Ok(done(self.hold(found.parent(), entry)))
            }
            Op::Mkfifo { path, mode } => self.mknod(path, FileType::Fifo, mode, 0),
            Op::Mkchar { path, mode } => self.mknod(path, FileType::CharacterDevice, mode, 0x103),
            Op::Symlink { path, target } => {
                let found = self.find(path, false)?;
                found.absent()?;
                let name = OsStr::new(&found.name);
                let entry = self.fs.symlink(ROOT_USER, found.parent(), name, OsStr::new(target))?;
                Ok(done(self.hold(found.parent(), entry)))
            }
            Op::Link { from, to } => {
                let entry = self.node(from, false)?;
                let found = self.find(to, false)?;
                found.absent()?;
                if entry.attr.is_dir() {
                    return Err(Errno::PERM);
                }
                let made = self.fs.link(entry.node, found.parent(), OsStr::new(&found.name))?;
                assert_eq!(made.node, entry.node, "a link to {from:?} is another node");
                Ok(done(self.hold(found.parent(), made)))
            }
            Op::Unlink { path } => {
                let found = self.find(path, false)?;
                let entry = found.there()?;
                if entry.attr.is_dir() {
                    return Err(Errno::ISDIR);
                }
                self.fs.unlink(found.parent(), OsStr::new(&found.name))?;
                self.let_go(entry.node);
                Ok(Value::Done)
            }
            Op::Rmdir { path } => {
                let found = self.find(path, false)?;
                let entry = found.there()?;
                if !entry.attr.is_dir() {
                    return Err(Errno::NOTDIR);
                }
                self.fs.rmdir(found.parent(), OsStr::new(&found.name))?;
                self.let_go(entry.node);
                Ok(Value::Done)
            }
            Op::Rename { from, to, how } => self.rename(from, to, how).map(done),
            Op::Readlink { path } => {
                let entry = self.node(path, false)?;
                if !entry.attr.is_symlink() {
                    return Err(Errno::INVAL);
                }
                text(format!("{:?}", self.fs.readlink(entry.node)?))
            }
            _ => self.on_attributes(op),
        }
    }

    fn on_attributes(&mut self, op: &Op) -> Outcome {
        match *op {
            Op::Truncate { path, len } => {
                let entry = self.node(path, true)?;
                match entry.attr.file_type() {
                    FileType::Directory => Err(Errno::ISDIR),
                    FileType::RegularFile => self.set(entry.node, SetAttr { size: Some(len), ..SetAttr::default() }),
                    _ => Err(Errno::INVAL),
                }
            }
            Op::Chmod { path, mode } => {
                let node = self.node(path, true)?.node;
                self.set(node, SetAttr { mode: Some(mode), ..SetAttr::default() })
            }
            Op::Chown { path, uid, gid, follow } => {
                let node = self.node(path, follow)?.node;
                self.set(node, SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() })
            }
            // The kernel does not even look at the path.
            Op::Utimens { atime: When::Omit, mtime: When::Omit, .. } => Ok(Value::Done),
            Op::Utimens { path, atime, mtime, follow } => {
                let node = self.node(path, follow)?.node;
                self.utimens(node, atime, mtime)
            }
            Op::SetXattr { path, name, len, fill, put } => {
                let entry = self.node(path, false)?;
                user_attribute(entry, name, Errno::PERM)?;
                let value = vec![fill; len];
                self.fs.setxattr(ROOT_USER, entry.node, OsStr::new(name), &value, put_flags(put)).map(done)
            }
            Op::GetXattr { path, name } => {
                let entry = self.node(path, false)?;
                user_attribute(entry, name, Errno::NODATA)?;
                bytes(&self.fs.getxattr(entry.node, OsStr::new(name))?)
            }
            Op::RemoveXattr { path, name } => {
                let entry = self.node(path, false)?;
                user_attribute(entry, name, Errno::PERM)?;
                self.fs.removexattr(ROOT_USER, entry.node, OsStr::new(name)).map(done)
            }
            Op::ListXattr { path } => {
                let node = self.node(path, false)?.node;
                let mut names = self.fs.listxattr(node)?;
                names.sort();
                let shown: Vec<_> =
                    names.iter().map(|name| name.as_encoded_bytes().escape_ascii().to_string()).collect();
                text(shown.join(" "))
            }
            _ => self.look(op),
        }
    }

    fn look(&mut self, op: &Op) -> Outcome {
        match *op {
            Op::Stat { path, follow } => text(show::stat(&self.node(path, follow)?.attr, self.start)),
            Op::ReadAll { path } => {
                let (_, entry) = self.open(path, How::Read, false, false, false, 0)?;
                if entry.attr.is_dir() {
                    return Err(Errno::ISDIR);
                }
                let fs = &self.fs;
                read_full(16 << 20, |buf, at| fs.read(entry.node, at as u64, buf))
            }
            Op::WriteAll { path, len, fill } => {
                let (_, entry) = self.open(path, How::Write, true, false, true, 0o666)?;
                if len == 0 { count(0) } else { count(self.fs.write(entry.node, 0, &pattern(0, len, fill), false)?) }
            }
            Op::List { path } => {
                let node = self.directory(path)?;
                names(self.list(node, 0, usize::MAX)?.0)
            }
            Op::ListWhile { path, after, name } => self.list_while(path, after, name),
            Op::Remount => {
                self.slots = Default::default();
                self.held.clear();
                self.fs = (self.make)();
                Ok(Value::Done)
            }
            Op::Forget => {
                self.let_all_go();
                if self.slots.iter().all(Option::is_none) {
                    // Case 40: lookups and forgets balance, and nothing is left but the root.
                    assert!(self.held.is_empty(), "the engine holds on to {} nodes", self.held.len());
                    assert_eq!(self.fs.nodes(), 1, "nodes that nobody holds");
                }
                Ok(Value::Done)
            }
            Op::Snapshot => Ok(Value::Done),
            _ => unreachable!("{op:?} is handled before"),
        }
    }

    fn set(&self, node: u64, change: SetAttr) -> Outcome {
        self.fs.setattr(ROOT_USER, node, &change).map(done)
    }

    fn utimens(&self, node: u64, atime: When, mtime: When) -> Outcome {
        let time = |when| match when {
            When::Now => Some(SetTime::Now),
            When::Omit => None,
            When::At(sec, nsec) => Some(SetTime::To(Time { sec, nsec })),
        };
        if matches!((atime, mtime), (When::Omit, When::Omit)) {
            return Ok(Value::Done);
        }
        self.set(node, SetAttr { atime: time(atime), mtime: time(mtime), ..SetAttr::default() })
    }

    fn read(&self, slot: usize, off: u64, len: usize, end: &mut u64) -> Outcome {
        let node = self.readable(slot)?.node;
        read_full(len, |buf, at| {
            let n = self.fs.read(node, off + at as u64, buf)?;
            *end = off + (at + n) as u64;
            Ok(n)
        })
    }

    /// Writes at an offset, or at the end of a file open for appending: the count, and where it ended.
    fn write(&self, slot: usize, off: u64, data: &[u8]) -> Done<(usize, u64)> {
        let open = self.writable(slot)?;
        if data.is_empty() {
            return Ok((0, off));
        }
        let off = if open.how == How::Append { self.attr(open.node)?.size } else { off };
        let n = self.fs.write(open.node, off, data, false)?;
        Ok((n, off + n as u64))
    }

    /// The range of a mapping, where one is possible: its start and its end.
    fn mapped(&self, slot: usize, off: u64, len: usize, write: bool) -> Done<(u64, usize)> {
        let open = self.slot(slot)?;
        let attr = self.attr(open.node)?;
        let end = attr.size.min(off + len as u64);
        if !attr.is_file() || end <= off {
            return Err(Errno::INVAL);
        }
        match open.how {
            How::Write => Err(Errno::ACCESS),
            How::Read if write => Err(Errno::ACCESS),
            _ => Ok((off, usize::try_from(end).expect("small"))),
        }
    }

    /// Whole pages are read, changed, and written back as far as the file goes.
    fn map_write(&self, slot: usize, off: u64, len: usize, fill: u8) -> Outcome {
        let (off, end) = self.mapped(slot, off, len, true)?;
        let node = self.slot(slot)?.node;
        let size = usize::try_from(self.attr(node)?.size).expect("small");
        let first = off / 4096 * 4096;
        let last = end.next_multiple_of(4096).min(size);
        let mut pages = vec![0; last - usize::try_from(first).expect("small")];
        let mut at = 0;
        while at < pages.len() {
            match self.fs.read(node, first + at as u64, &mut pages[at..])? {
                0 => break,
                n => at += n,
            }
        }
        let len = end - usize::try_from(off).expect("small");
        let within = usize::try_from(off - first).expect("small");
        pages[within..within + len].copy_from_slice(&pattern(off, len, fill));
        self.fs.write(node, first, &pages, false)?;
        count(len)
    }

    fn holes(&self, slot: usize, off: u64) -> Outcome {
        let open = self.slot(slot)?;
        let attr = self.attr(open.node)?;
        if !attr.is_file() {
            return Err(Errno::INVAL);
        }
        let seek = |whence| self.fs.lseek(open.node, off.cast_signed(), whence).map(i64::cast_unsigned);
        let (data, hole) = (seek(libc::SEEK_DATA), seek(libc::SEEK_HOLE));
        check_map(off, attr.size, data, hole, |from, to| {
            let mut buffer = vec![0; usize::try_from(to - from).expect("small")];
            let n = self.fs.read(open.node, from, &mut buffer)?;
            Ok(buffer[..n].iter().all(|&b| b == 0))
        })
    }

    fn copy_range(&self, from: usize, from_off: u64, to: usize, to_off: u64, len: usize) -> Outcome {
        let (source, target) = (self.slot(from)?, self.slot(to)?);
        if source.dir || target.dir {
            return Err(Errno::ISDIR);
        }
        if source.how == How::Write || matches!(target.how, How::Read | How::Append) {
            return Err(Errno::BADF);
        }
        let (mut from_off, mut to_off) = (from_off, to_off);
        copy_full(len, |left| {
            let size = self.attr(source.node)?.size;
            let left = (left as u64).min(size.saturating_sub(from_off));
            if source.node == target.node && to_off + left > from_off && to_off < from_off + left {
                return Err(Errno::INVAL);
            }
            if left == 0 {
                return Ok(0);
            }
            let n = match self.fs.copy_file_range(ROOT_USER, (source.node, from_off), (target.node, to_off), left) {
                // The kernel then copies by reading and writing.
                Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::NOSYS) => {
                    let mut buffer = vec![0; usize::try_from(left).expect("small")];
                    let n = self.fs.read(source.node, from_off, &mut buffer)?;
                    self.fs.write(target.node, to_off, &buffer[..n], false)?
                }
                other => other?,
            };
            from_off += n as u64;
            to_off += n as u64;
            Ok(n)
        })
    }

    fn mknod(&mut self, path: &str, kind: FileType, mode: u32, rdev: u64) -> Outcome {
        let found = self.find(path, false)?;
        found.absent()?;
        let mode = mode | kind.as_raw_mode();
        let entry = self.fs.mknod(ROOT_USER, found.parent(), OsStr::new(&found.name), mode, self.umask, rdev)?;
        Ok(done(self.hold(found.parent(), entry)))
    }

    fn rename(&mut self, from: &str, to: &str, how: Move) -> Done<()> {
        // Both directories are looked for before either name.
        for path in [from, to] {
            if let Some((parent, _)) = path.rsplit_once('/')
                && !self.node(parent, true)?.attr.is_dir()
            {
                return Err(Errno::NOTDIR);
            }
        }
        let old = self.find(from, false)?;
        let source = old.there()?;
        let new = self.find(to, false)?;
        match how {
            Move::NoReplace => new.absent()?,
            Move::Exchange => drop(new.there()?),
            Move::Plain => {}
        }
        if new.chain.contains(&source.node) {
            return Err(Errno::INVAL);
        }
        if let Some(target) = new.entry {
            if old.chain.contains(&target.node) {
                return Err(if how == Move::Exchange { Errno::INVAL } else { Errno::NOTEMPTY });
            }
            if target.node == source.node {
                return Ok(());
            }
            match (source.attr.is_dir(), target.attr.is_dir()) {
                (true, false) if how == Move::Plain => return Err(Errno::NOTDIR),
                (false, true) if how == Move::Plain => return Err(Errno::ISDIR),
                _ => {}
            }
        }
        let (name, new_name) = (OsStr::new(&old.name), OsStr::new(&new.name));
        self.fs.rename(old.parent(), name, new.parent(), new_name, rename_flags(how))?;
        self.moved(source.node, old.parent(), new.parent());
        if let (Some(target), Move::Exchange) = (new.entry, how) {
            self.moved(target.node, new.parent(), old.parent());
        }
        if let Some(target) = new.entry
            && how == Move::Plain
        {
            self.let_go(target.node);
        }
        Ok(())
    }

    /// A name that moves keeps its new directory instead of the old one.
    fn moved(&mut self, node: u64, from: u64, to: u64) {
        for open in self.slots.iter_mut().flatten().filter(|open| open.node == node && open.parent == from) {
            open.parent = to;
        }
        if let Some(held) = self.held.get_mut(&node) {
            held.parent = to;
        }
    }

    /// The directory that `opendir` without following finds.
    fn directory(&mut self, path: &str) -> Done<u64> {
        if let Ok(entry) = self.node(path, true)
            && matches!(entry.attr.file_type(), FileType::Fifo | FileType::CharacterDevice)
        {
            return Err(Errno::NXIO);
        }
        let entry = self.node(path, false)?;
        if entry.attr.is_dir() { Ok(entry.node) } else { Err(Errno::NOTDIR) }
    }

    /// Up to `limit` entries from an offset, and the offset after the last of them.
    fn list(&mut self, node: u64, mut offset: u64, limit: usize) -> Done<(Vec<(OsString, FileType)>, u64)> {
        let mut entries = Vec::new();
        loop {
            // A few at a time, so that a listing takes several calls.
            let end = limit.min(entries.len() + 3);
            let before = entries.len();
            let mut inos = Vec::new();
            self.fs.readdir(node, offset, &mut |entry| {
                if entries.len() == end {
                    return true;
                }
                entries.push((entry.name.to_os_string(), entry.kind));
                inos.push(entry.ino);
                offset = entry.next;
                false
            })?;
            for ((name, _), ino) in entries[before..].iter().zip(inos) {
                self.check_ino(node, name, ino)?;
            }
            if entries.len() < end || entries.len() == limit {
                return Ok((entries, offset));
            }
        }
    }

    fn check_ino(&mut self, dir: u64, name: &OsStr, ino: u64) -> Done<()> {
        let name = name.to_str().expect("the operations use text");
        let real = match name {
            ".." => return Ok(()),
            "." => self.attr(dir)?.ino,
            _ => self.child(dir, name)?.unwrap_or_else(|| panic!("{name:?} is listed but not there")).attr.ino,
        };
        assert_eq!(real, ino, "d_ino and st_ino of {name:?}");
        Ok(())
    }

    fn list_while(&mut self, path: &str, after: usize, name: &str) -> Outcome {
        let dir = self.directory(path)?;
        let (first, cookie) = self.list(dir, 0, after)?;
        let change = match self.child(dir, name)? {
            Some(entry) if entry.attr.is_dir() => Err(Errno::ISDIR),
            Some(entry) => self.fs.unlink(dir, OsStr::new(name)).map(|()| self.let_go(entry.node)),
            None => {
                let mode = FileType::RegularFile.as_raw_mode() | 0o600;
                let made = self.fs.mknod(ROOT_USER, dir, OsStr::new(name), mode, self.umask, 0)?;
                self.hold(dir, made);
                Ok(())
            }
        };
        let (rest, _) = self.list(dir, cookie, usize::MAX)?;
        let (again, _) = self.list(dir, 0, usize::MAX)?;
        let plain = |entries: Vec<(OsString, FileType)>| entries.into_iter().map(|e| e.0).collect::<Vec<_>>();
        let there = self.child(dir, name)?.is_some();
        let listed = show::listing(&plain(first), &plain(rest), &plain(again), name, there);
        text(format!("{change:?} {listed:?}"))
    }
}

impl Engine for Core<'_> {
    fn apply(&mut self, op: &Op) -> Outcome {
        self.on_slot(op)
    }

    fn ino(&mut self, path: &str) -> u64 {
        self.node(path, false).map_or(0, |entry| entry.attr.ino)
    }
}

/// `user.*` attributes are for files and directories only; the kernel says so without asking the file system.
fn user_attribute(entry: Entry, name: &str, otherwise: Errno) -> Done<()> {
    let fits = entry.attr.is_file() || entry.attr.is_dir() || !name.starts_with("user.");
    if fits { Ok(()) } else { Err(otherwise) }
}

/// The umask of this process, which can only be read without changing it here.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").expect("every process can read its status");
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:")).expect("since Linux 4.7");
    u32::from_str_radix(line.trim(), 8).expect("octal")
}

/// Forks in-process: an overlay on the base, with upper and work area beside it.
#[derive(Default)]
pub(super) struct InProcess {
    /// What counts as a large file.
    large: Large,
}

impl InProcess {
    /// What the overlay of a site is made of.
    pub(super) fn config(&self, site: &Site, start: Time, fds: &Arc<FdCache>) -> Config {
        let open = |path: &Path| open_root(path).expect("it was made before");
        let base = Lower { root: open(&site.base), marked: false, image: false, watch: false };
        Config {
            lowers: vec![base],
            upper: Some(open(&site.dir.join("upper"))),
            work: Some(open(&site.dir.join("work"))),
            watch: None,
            fds: Arc::clone(fds),
            created: Some(start),
            made_on: None,
            hidden: Hidden::default(),
            large: self.large,
        }
    }
}

impl Forks for InProcess {
    fn with(&self, site: &Site, start: Time, work: &mut dyn FnMut(&mut dyn Engine)) {
        for name in ["upper", "work"] {
            let dir = site.dir.join(name);
            let _ = std::fs::remove_dir_all(&dir);
            std::fs::create_dir(&dir).expect("it was just removed");
        }
        let fds = FdCache::new(64);
        let last: RefCell<Weak<Overlay>> = RefCell::default();
        work(&mut Core::new(start, || {
            // The last one ends as a killed server does, but its threads are ours.
            last.borrow().upgrade().inspect(|overlay| overlay.quiesce());
            let overlay = Overlay::new(self.config(site, start, &fds))
                .expect("a base, an upper and a work area are all it takes");
            overlay.resume().expect("its own files");
            last.replace(Arc::downgrade(&overlay));
            overlay
        }));
    }
}

/// Every file that takes room on the disk is a large one.
const ALL_LARGE: Large = Large { from: 1, background: true };

#[test]
fn the_core_agrees_on_ext4() {
    run(Fs::Ext4, 1, &InProcess::default());
}

#[test]
fn the_core_agrees_on_xfs() {
    run(Fs::Xfs, 2, &InProcess::default());
}

#[test]
fn the_core_agrees_on_btrfs() {
    run(Fs::Btrfs, 3, &InProcess::default());
}

#[test]
fn the_core_agrees_with_files_that_come_up_block_by_block() {
    run(Fs::Ext4, 4, &InProcess { large: ALL_LARGE });
}

#[test]
fn the_core_agrees_with_files_that_do_not_come_up_unasked() {
    run(Fs::Ext4, 5, &InProcess { large: Large { background: false, ..ALL_LARGE } });
}
