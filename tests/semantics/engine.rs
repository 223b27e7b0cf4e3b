//! Carrying out operations: the trait, and the engine that uses system calls on a directory (plain, or a mount).

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Gid, Mode, OFlags, RawDir, RenameFlags, SeekFrom, Timespec, Timestamps,
    UTIME_NOW, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::Errno;
use treefork::sys::{At, Stat, Time};

use super::ops::{Alloc, How, Move, Op, Put, SLOTS, When, pattern};
use super::random::{Known, intern};
use super::show::{self, Outcome, Value, bytes, count, done, names, short, text};

/// Something that carries out operations on a tree.
pub(super) trait Engine {
    /// Carries out one.
    fn apply(&mut self, op: &Op) -> Outcome;

    /// The number of the object at a path, for telling which names are one file.
    fn ino(&mut self, path: &str) -> u64;

    /// Everything that can be seen of the tree, by path.
    fn snapshot(&mut self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        let mut first = BTreeMap::new();
        let mut todo = vec![String::new()];
        while let Some(path) = todo.pop() {
            let at = intern(&path);
            let stat = self.apply(&Op::Stat { path: at, follow: false });
            let listing = self.apply(&Op::List { path: at });
            let mut shown = vec![short(&stat)];
            shown.push(short(&self.apply(&Op::ListXattr { path: at })));
            if let Ok(Value::Names(entries)) = &listing {
                todo.extend(entries.iter().filter(|(name, _)| name != "." && name != "..").map(|(name, _)| {
                    let name = name.to_str().expect("the operations use no other names");
                    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
                }));
            } else {
                shown.push(short(&self.apply(&Op::Readlink { path: at })));
                shown.push(short(&self.apply(&Op::ReadAll { path: at })));
                let ino = self.ino(at);
                shown.push(format!("one file with {:?}", first.entry(ino).or_insert_with(|| path.clone())));
            }
            shown.push(short(&listing));
            all.insert(path, shown.join(" | "));
        }
        all
    }
}

struct Open {
    fd: OwnedFd,
    /// `st_ino` when it was opened: it stays.
    ino: u64,
}

/// The engine that uses system calls.
pub(super) struct Dir<'a> {
    root: PathBuf,
    slots: [Option<Open>; SLOTS],
    start: Time,
    remount: Box<dyn FnMut() + 'a>,
    forget: Box<dyn FnMut() + 'a>,
    /// The root, where it is named by its descriptor.
    rooted: Option<OwnedFd>,
    /// The root, by path.
    home: PathBuf,
}

pub(super) type Done<T> = Result<T, Errno>;

impl<'a> Dir<'a> {
    /// On the tree at `root`; `start` is later than every time in it; `remount` is what [`Op::Remount`] does.
    pub(super) fn new(root: &Path, start: Time, remount: impl FnMut() + 'a) -> Self {
        Self {
            root: root.to_path_buf(),
            slots: Default::default(),
            start,
            remount: Box::new(remount),
            forget: Box::new(|| {}),
            rooted: None,
            home: root.to_path_buf(),
        }
    }

    /// The same; `forget` is what [`Op::Forget`] does.
    pub(super) fn forgetting(mut self, forget: impl FnMut() + 'a) -> Self {
        self.forget = Box::new(forget);
        self
    }

    /// Names the root by an open descriptor, so that the way to it needs no permissions.
    pub(super) fn by_descriptor(mut self) -> Self {
        self.enter();
        self
    }

    fn enter(&mut self) {
        let fd = rustix::fs::open(&self.home, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).expect("it is there");
        self.root = PathBuf::from(format!("/proc/self/fd/{}/.", fd.as_raw_fd()));
        self.rooted = Some(fd);
    }

    fn path(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(path) }
    }

    fn slot(&self, slot: usize) -> Done<&OwnedFd> {
        self.slots[slot].as_ref().map(|open| &open.fd).ok_or(Errno::BADF)
    }

    fn stat(&self, path: &str, follow: bool) -> Done<Stat> {
        let flags = OFlags::PATH | if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        Stat::of(rustix::fs::open(self.path(path), flags, Mode::empty())?.as_fd())
    }

    /// Opens what is not a FIFO or a device, whose opening has effects outside the tree.
    fn open(&self, path: &str, flags: OFlags, mode: u32) -> Done<OwnedFd> {
        if let Ok(stat) = self.stat(path, true)
            && matches!(stat.file_type(), FileType::Fifo | FileType::CharacterDevice)
        {
            return Err(Errno::NXIO);
        }
        rustix::fs::open(self.path(path), flags | OFlags::CLOEXEC, Mode::from_raw_mode(mode))
    }

    fn fill_slot(&mut self, slot: usize, path: &str, flags: OFlags) -> Outcome {
        self.slots[slot] = None;
        let fd = self.open(path, flags, 0o640)?;
        let ino = Stat::of(fd.as_fd())?.ino;
        self.slots[slot] = Some(Open { fd, ino });
        Ok(Value::Done)
    }

    fn on_slot(&mut self, op: &Op) -> Outcome {
        match *op {
            Op::Open { slot, path, how, create, excl, trunc } => {
                self.fill_slot(slot, path, open_flags(how, create, excl, trunc))
            }
            Op::OpenDir { slot, path } => self.fill_slot(slot, path, OFlags::RDONLY | OFlags::DIRECTORY),
            Op::Close { slot } => self.slots[slot].take().map(done).ok_or(Errno::BADF),
            Op::Read { slot, len } => read_full(len, |buf, _| rustix::io::read(self.slot(slot)?, buf)),
            Op::Pread { slot, off, len } => {
                read_full(len, |buf, at| rustix::io::pread(self.slot(slot)?, buf, off + at as u64))
            }
            Op::Write { slot, len, fill } => count(rustix::io::write(self.slot(slot)?, &pattern(0, len, fill))?),
            Op::Pwrite { slot, off, len, fill } => {
                count(rustix::io::pwrite(self.slot(slot)?, &pattern(off, len, fill), off)?)
            }
            Op::MapRead { slot, off, len } => self.map(slot, off, len, None),
            Op::MapWrite { slot, off, len, fill } => self.map(slot, off, len, Some(fill)),
            Op::Ftruncate { slot, len } => rustix::fs::ftruncate(self.slot(slot)?, len).map(done),
            Op::Allocate { slot, mode, off, len } => {
                rustix::fs::fallocate(self.slot(slot)?, alloc_flags(mode), off, len).map(done)
            }
            Op::Holes { slot, off } => self.holes(slot, off),
            Op::CopyRange { from, mut from_off, to, mut to_off, len } => {
                let (from, to) = (self.slot(from)?, self.slot(to)?);
                copy_full(len, |left| {
                    rustix::fs::copy_file_range(from, Some(&mut from_off), to, Some(&mut to_off), left)
                })
            }
            Op::Fsync { slot, data: true } => rustix::fs::fdatasync(self.slot(slot)?).map(done),
            Op::Fsync { slot, data: false } => rustix::fs::fsync(self.slot(slot)?).map(done),
            Op::Fstat { slot } => {
                let stat = Stat::of(self.slot(slot)?.as_fd())?;
                let same = self.slots[slot].as_ref().is_some_and(|open| open.ino == stat.ino);
                text(format!("{} ino kept {same}", show::stat(&stat, self.start)))
            }
            Op::Fchmod { slot, mode } => rustix::fs::fchmod(self.slot(slot)?, Mode::from_raw_mode(mode)).map(done),
            Op::Fchown { slot, uid, gid } => {
                rustix::fs::fchown(self.slot(slot)?, Some(user(uid)), group(gid)).map(done)
            }
            Op::Futimens { slot, atime, mtime } => {
                rustix::fs::futimens(self.slot(slot)?, &timestamps(atime, mtime)).map(done)
            }
            Op::Same { slot, path } => {
                let (open, named) = (Stat::of(self.slot(slot)?.as_fd())?, self.stat(path, true)?);
                text(format!("same {}", open.ino == named.ino))
            }
            Op::ListSlot { slot } => {
                let fd = self.slot(slot)?;
                if !Stat::of(fd.as_fd())?.is_dir() {
                    return Err(Errno::NOTDIR);
                }
                let position = rustix::fs::tell(fd)?;
                rustix::fs::seek(fd, SeekFrom::Start(0))?;
                let listing = list(fd, usize::MAX);
                rustix::fs::seek(fd, SeekFrom::Start(position))?;
                names(listing?.0)
            }
            _ => self.on_names(op),
        }
    }

    fn on_names(&mut self, op: &Op) -> Outcome {
        let at = |path| self.path(path);
        match *op {
            Op::Mkdir { path, mode } => rustix::fs::mkdir(at(path), Mode::from_raw_mode(mode)).map(done),
            Op::Mkfifo { path, mode } => self.mknod(path, FileType::Fifo, mode, 0),
            Op::Mkchar { path, mode } => self.mknod(path, FileType::CharacterDevice, mode, 0x103),
            Op::Symlink { path, target } => rustix::fs::symlink(target, at(path)).map(done),
            Op::Link { from, to } => rustix::fs::link(at(from), at(to)).map(done),
            Op::Unlink { path } => rustix::fs::unlink(at(path)).map(done),
            Op::Rmdir { path } => rustix::fs::rmdir(at(path)).map(done),
            Op::Rename { from, to, how } => self.rename(from, to, how),
            Op::Readlink { path } => {
                let target = rustix::fs::readlink(at(path), Vec::new())?;
                text(format!("{:?}", OsString::from_vec(target.into_bytes())))
            }
            Op::Truncate { path, len } => {
                // truncate(2) is an open for writing without the descriptor, but a FIFO is EINVAL to it.
                let stat = self.stat(path, true)?;
                match stat.file_type() {
                    FileType::Directory => Err(Errno::ISDIR),
                    FileType::RegularFile => {
                        truncate(&at(path), len)?;
                        if stat.size == len {
                            // Whether that counts as a change is up to the file system (not on btrfs and XFS).
                            rustix::fs::utimensat(
                                rustix::fs::CWD,
                                at(path),
                                &timestamps(When::Omit, When::Now),
                                AtFlags::empty(),
                            )?;
                        }
                        Ok(Value::Done)
                    }
                    _ => Err(Errno::INVAL),
                }
            }
            _ => self.on_attributes(op),
        }
    }

    fn on_attributes(&mut self, op: &Op) -> Outcome {
        let at = |path| self.path(path);
        match *op {
            Op::Chmod { path, mode } => rustix::fs::chmod(at(path), Mode::from_raw_mode(mode)).map(done),
            Op::Chown { path, uid, gid, follow } => {
                rustix::fs::chownat(rustix::fs::CWD, at(path), Some(user(uid)), group(gid), no_follow(follow)).map(done)
            }
            Op::Utimens { path, atime, mtime, follow } => {
                let times = timestamps(atime, mtime);
                rustix::fs::utimensat(rustix::fs::CWD, at(path), &times, no_follow(follow)).map(done)
            }
            Op::SetXattr { path, name, len, fill, put } => {
                rustix::fs::lsetxattr(at(path), name, &vec![fill; len], put_flags(put)).map(done)
            }
            Op::GetXattr { path, name } => {
                let mut value = vec![0; 65_536];
                let n = rustix::fs::lgetxattr(at(path), name, value.as_mut_slice())?;
                bytes(&value[..n])
            }
            Op::RemoveXattr { path, name } => rustix::fs::lremovexattr(at(path), name).map(done),
            Op::ListXattr { path } => {
                let mut list = vec![0_u8; 65_536];
                let n = rustix::fs::llistxattr(at(path), list.as_mut_slice())?;
                let mut names: Vec<&[u8]> = list[..n].split(|&b| b == 0).filter(|name| !name.is_empty()).collect();
                names.sort_unstable();
                text(names.iter().map(|name| name.escape_ascii().to_string()).collect::<Vec<_>>().join(" "))
            }
            _ => self.look(op),
        }
    }

    fn look(&mut self, op: &Op) -> Outcome {
        match *op {
            Op::Stat { path, follow } => text(show::stat(&self.stat(path, follow)?, self.start)),
            Op::ReadAll { path } => {
                let fd = self.open(path, OFlags::RDONLY, 0)?;
                read_full(16 << 20, |buf, at| rustix::io::pread(&fd, buf, at as u64))
            }
            Op::WriteAll { path, len, fill } => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
                count(rustix::io::write(&self.open(path, flags, 0o666)?, &pattern(0, len, fill))?)
            }
            Op::List { path } => {
                let fd = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW, 0)?;
                names(list(&fd, usize::MAX)?.0)
            }
            Op::ListWhile { path, after, name } => self.list_while(path, after, name),
            Op::Remount => {
                self.slots = Default::default();
                (self.remount)();
                if let Some(fd) = self.rooted.take() {
                    drop(fd);
                    self.enter();
                }
                Ok(Value::Done)
            }
            Op::Forget => {
                (self.forget)();
                Ok(Value::Done)
            }
            Op::Snapshot => Ok(Value::Done),
            _ => unreachable!("{op:?} is handled before"),
        }
    }

    fn mknod(&self, path: &str, kind: FileType, mode: u32, dev: u64) -> Outcome {
        rustix::fs::mknodat(rustix::fs::CWD, self.path(path), kind, Mode::from_raw_mode(mode), dev).map(done)
    }

    fn rename(&self, from: &str, to: &str, how: Move) -> Outcome {
        let (from, to) = (self.path(from), self.path(to));
        match rustix::fs::renameat_with(rustix::fs::CWD, &from, rustix::fs::CWD, &to, rename_flags(how)) {
            // POSIX allows both for a directory in the way; XFS uses this one, the others and a fork the other.
            Err(Errno::EXIST) if how == Move::Plain => Err(Errno::NOTEMPTY),
            Ok(()) if how == Move::Exchange => {
                // Whether the change times of the two change is up to the file system (those of files on XFS do not).
                let stats = [At::new(&rustix::fs::CWD, &from).stat()?, At::new(&rustix::fs::CWD, &to).stat()?];
                if stats[0].ino == stats[1].ino {
                    return Ok(Value::Done);
                }
                for (path, stat) in [from, to].iter().zip(stats) {
                    let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
                    let times = Timestamps { last_access: omit, last_modification: stat.mtime.into() };
                    rustix::fs::utimensat(rustix::fs::CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
                }
                Ok(Value::Done)
            }
            other => other.map(done),
        }
    }

    fn list_while(&self, path: &str, after: usize, name: &str) -> Outcome {
        let fd = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW, 0)?;
        let (first, cookie) = list(&fd, after)?;
        let at = self.path(path).join(name);
        let change = match rustix::fs::unlink(&at) {
            Err(Errno::NOENT) => {
                rustix::fs::mknodat(rustix::fs::CWD, &at, FileType::RegularFile, Mode::from_raw_mode(0o600), 0)
            }
            other => other,
        };
        rustix::fs::seek(&fd, SeekFrom::Start(cookie))?;
        let (rest, _) = list(&fd, usize::MAX)?;
        rustix::fs::seek(&fd, SeekFrom::Start(0))?;
        let (again, _) = list(&fd, usize::MAX)?;
        let plain = |entries: Vec<(OsString, FileType)>| entries.into_iter().map(|e| e.0).collect::<Vec<_>>();
        let there = at.symlink_metadata().is_ok();
        let listed = show::listing(&plain(first), &plain(rest), &plain(again), name, there);
        text(format!("{change:?} {listed:?}"))
    }

    /// Checks the map of data and holes from `off` on.
    fn holes(&self, slot: usize, off: u64) -> Outcome {
        let fd = self.slot(slot)?;
        let stat = Stat::of(fd.as_fd())?;
        if !stat.is_file() {
            return Err(Errno::INVAL);
        }
        let position = rustix::fs::tell(fd)?;
        let data = rustix::fs::seek(fd, SeekFrom::Data(off));
        let hole = rustix::fs::seek(fd, SeekFrom::Hole(off));
        rustix::fs::seek(fd, SeekFrom::Start(position))?;
        check_map(off, stat.size, data, hole, |from, to| {
            let mut buffer = vec![0; usize::try_from(to - from).expect("files are small here")];
            // A descriptor that is only open for writing cannot tell.
            match rustix::io::pread(fd, &mut buffer, from) {
                Ok(n) => Ok(buffer[..n].iter().all(|&b| b == 0)),
                Err(Errno::BADF) => Ok(true),
                Err(e) => Err(e),
            }
        })
    }

    /// Reads or writes through a shared mapping, inside the file only: past its end is SIGBUS.
    fn map(&self, slot: usize, off: u64, len: usize, fill: Option<u8>) -> Outcome {
        let fd = self.slot(slot)?;
        let stat = Stat::of(fd.as_fd())?;
        let end = stat.size.min(off + len as u64);
        if !stat.is_file() || end <= off {
            return Err(Errno::INVAL);
        }
        let whole = usize::try_from(end).expect("files are small here");
        let off = usize::try_from(off).expect("files are small here");
        let mut mapping = Mapping::new(fd, whole, fill.is_some())?;
        match fill {
            None => bytes(&mapping.bytes()[off..]),
            Some(fill) => {
                mapping.bytes()[off..].copy_from_slice(&pattern(off as u64, whole - off, fill));
                mapping.sync()?;
                count(whole - off)
            }
        }
    }
}

impl Dir<'_> {
    /// What there is, for making operations that make sense.
    pub(super) fn known(&self) -> Known {
        let mut known = Known { dirs: vec![""], ..Known::default() };
        known.open = (0..SLOTS).filter(|&slot| self.slots[slot].is_some()).collect();
        let mut at = 0;
        while let Some(&dir) = known.dirs.get(at) {
            at += 1;
            let listing = self.path(dir).read_dir().into_iter().flatten().flatten();
            let mut entries: Vec<_> = listing.map(|e| (e.file_name(), e.file_type().expect("it is there"))).collect();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            for (name, kind) in entries {
                let name = name.to_str().expect("the operations use text");
                let path = if dir.is_empty() { intern(name) } else { intern(&format!("{dir}/{name}")) };
                match () {
                    () if kind.is_dir() => known.dirs.push(path),
                    () if kind.is_file() => known.files.push(path),
                    () => known.others.push(path),
                }
            }
        }
        known.dirs.remove(0);
        known
    }
}

impl Engine for Dir<'_> {
    fn apply(&mut self, op: &Op) -> Outcome {
        self.on_slot(op)
    }

    fn ino(&mut self, path: &str) -> u64 {
        self.stat(path, false).map_or(0, |stat| stat.ino)
    }
}

/// Judges what `lseek` said of a file, given a way to tell whether a stretch reads as zeros.
pub(super) fn check_map(
    off: u64,
    size: u64,
    data: Done<u64>,
    hole: Done<u64>,
    mut zeros: impl FnMut(u64, u64) -> Done<bool>,
) -> Outcome {
    if off >= size {
        return text(format!("{data:?} {hole:?}"));
    }
    let hidden = match data {
        Ok(at) if at < off || at > size => return text(format!("data at {at}, asked from {off} of {size}")),
        Ok(at) => !zeros(off, at)?,
        Err(Errno::NXIO) => !zeros(off, size)?,
        Err(e) => return Err(e),
    };
    match hole {
        _ if hidden => text(format!("data hidden from {off} on: {data:?}")),
        Ok(at) if at < off || at > size => text(format!("hole at {at}, asked from {off} of {size}")),
        Ok(_) => text("sound"),
        Err(e) => Err(e),
    }
}

/// Reads until `len` bytes or the end.
pub(super) fn read_full(len: usize, mut read: impl FnMut(&mut [u8], usize) -> Done<usize>) -> Outcome {
    let mut buffer = vec![0; len.min(1 << 20)];
    let mut at = 0;
    loop {
        match read(&mut buffer[at..], at)? {
            0 => return bytes(&buffer[..at]),
            n => at += n,
        }
    }
}

/// Copies until `len` bytes or the end: a file system that shares blocks stops early at odd lengths.
pub(super) fn copy_full(len: usize, mut copy: impl FnMut(usize) -> Done<usize>) -> Outcome {
    let mut total = 0;
    loop {
        match copy(len - total)? {
            0 => return count(total),
            n => total += n,
        }
    }
}

/// Up to `limit` entries from the present offset of a directory, and the offset after the last of them.
fn list(fd: &OwnedFd, limit: usize) -> Done<(Vec<(OsString, FileType)>, u64)> {
    let mut entries = Vec::new();
    let mut cookie = 0;
    // Small, so that a listing takes several calls.
    let mut buffer = [MaybeUninit::uninit(); 512];
    let mut dir = RawDir::new(fd, &mut buffer);
    while entries.len() < limit {
        let Some(entry) = dir.next() else { break };
        let entry = entry?;
        cookie = entry.next_entry_cookie();
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != ".." {
            match rustix::fs::openat(fd, name, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()) {
                Ok(named) => assert_eq!(Stat::of(named.as_fd())?.ino, entry.ino(), "d_ino and st_ino of {name:?}"),
                // Removed since the listing began.
                Err(Errno::NOENT) => {}
                Err(e) => return Err(e),
            }
        }
        entries.push((name.to_os_string(), entry.file_type()));
    }
    Ok((entries, cookie))
}

fn truncate(path: &Path, len: u64) -> Done<()> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).expect("paths hold no NUL");
    // SAFETY: the pointer is to a string that ends in NUL and outlives the call.
    let result = unsafe { libc::truncate(path.as_ptr(), len.cast_signed()) };
    if result == 0 { Ok(()) } else { Err(Errno::from_io_error(&std::io::Error::last_os_error()).expect("set")) }
}

/// A shared mapping of the start of a file.
struct Mapping {
    start: *mut u8,
    len: usize,
}

impl Mapping {
    fn new(fd: &OwnedFd, len: usize, write: bool) -> Done<Self> {
        let prot = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
        // SAFETY: the kernel picks the address; nothing of ours is there.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(Errno::from_io_error(&std::io::Error::last_os_error()).expect("set"));
        }
        Ok(Self { start: start.cast(), len })
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is `len` bytes long, lives as long as `self`, and the file is changed by nobody else
        // meanwhile: one thread carries out all operations of an engine.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    fn sync(&self) -> Done<()> {
        // SAFETY: the range is the mapping.
        let result = unsafe { libc::msync(self.start.cast(), self.len, libc::MS_SYNC) };
        if result == 0 { Ok(()) } else { Err(Errno::from_io_error(&std::io::Error::last_os_error()).expect("set")) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping, and no slice of it outlives `self`.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

pub(super) fn open_flags(how: How, create: bool, excl: bool, trunc: bool) -> OFlags {
    let mut flags = match how {
        How::Read => OFlags::RDONLY,
        How::Write => OFlags::WRONLY,
        How::ReadWrite => OFlags::RDWR,
        How::Append => OFlags::RDWR | OFlags::APPEND,
    };
    flags.set(OFlags::CREATE, create);
    flags.set(OFlags::EXCL, create && excl);
    flags.set(OFlags::TRUNC, trunc);
    flags
}

pub(super) fn alloc_flags(mode: Alloc) -> FallocateFlags {
    match mode {
        Alloc::Extend => FallocateFlags::empty(),
        Alloc::Keep => FallocateFlags::KEEP_SIZE,
        Alloc::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        Alloc::Zero => FallocateFlags::ZERO_RANGE,
        Alloc::ZeroKeep => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
    }
}

pub(super) fn rename_flags(how: Move) -> RenameFlags {
    match how {
        Move::Plain => RenameFlags::empty(),
        Move::NoReplace => RenameFlags::NOREPLACE,
        Move::Exchange => RenameFlags::EXCHANGE,
    }
}

pub(super) fn put_flags(put: Put) -> XattrFlags {
    match put {
        Put::Any => XattrFlags::empty(),
        Put::Create => XattrFlags::CREATE,
        Put::Replace => XattrFlags::REPLACE,
    }
}

fn timestamps(atime: When, mtime: When) -> Timestamps {
    let spec = |when| match when {
        When::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        When::Omit => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        When::At(sec, nsec) => Timespec { tv_sec: sec, tv_nsec: nsec.into() },
    };
    Timestamps { last_access: spec(atime), last_modification: spec(mtime) }
}

fn user(uid: u32) -> Uid {
    Uid::from_raw(uid)
}

fn group(gid: u32) -> Option<Gid> {
    Some(Gid::from_raw(gid))
}

fn no_follow(follow: bool) -> AtFlags {
    if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW }
}
