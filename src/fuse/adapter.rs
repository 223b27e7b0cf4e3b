//! What the kernel asks, passed on to the overlay: decode, call, reply.
//!
//! There are no open files here. `OPEN`, `OPENDIR`, `CREATE` and `FLUSH` are answered `ENOSYS` once each, and the kernel
//! then opens files without asking, keeps its caches across opens, and makes files by `MKNOD`. Locks, `ACCESS` and the
//! like are refused the same way and stay with the kernel.

use std::ffi::OsStr;
use std::path::Path;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyBmap,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock,
    ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::XattrFlags;

use super::convert::{errno, rdev_in, set_time};
use super::reply::{attributes, caller, empty, entry, found, joined, sized, written};
use super::serving::{Adapter, MAX_IO};
use super::stats::Op;
use crate::overlay::{Overlay, SetAttr, later};

/// How many background requests (readahead, writeback) the kernel may have under way.
const BACKGROUND: u16 = 64;

/// What is asked of the kernel where it can.
///
/// Not asked for: `ATOMIC_O_TRUNC` (without `OPEN` the truncation would be lost), `WRITEBACK_CACHE` (a write is
/// acknowledged once it is with us, and sizes and times are ours).
const WANTED: [InitFlags; 8] = [
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_ASYNC_DIO,
];

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let needed = InitFlags::FUSE_NO_OPEN_SUPPORT | InitFlags::FUSE_NO_OPENDIR_SUPPORT;
        if config.add_capabilities(needed).is_err() {
            return Err(std::io::Error::other("this needs Linux 5.1 or newer"));
        }
        for flag in WANTED {
            // What an older kernel lacks it does in its own, slower or plainer way.
            let _ = config.add_capabilities(flag);
        }
        let fits = config.set_max_write(MAX_IO).and(config.set_max_background(BACKGROUND).map_err(u32::from));
        fits.map(drop).map_err(|nearest| std::io::Error::other(format!("the library takes {nearest} at most")))
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if self.overlay.may_make_stand_ins(parent.0, Some(name)) {
            let name = name.to_os_string();
            return self.slowly(move |this| found(reply, this.call(Op::Lookup, |fs| fs.lookup(parent.0, &name))));
        }
        found(reply, self.call(Op::Lookup, |fs| fs.lookup(parent.0, name)));
    }

    fn forget(&self, _: &Request, ino: INodeNo, nlookup: u64) {
        // There is no answer to this, so there is nobody to tell of an error.
        let _ = self.call(Op::Forget, |fs| {
            fs.forget(ino.0, nlookup);
            Ok(())
        });
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let answer = self.call(Op::GetAttr, |fs| fs.getattr(ino.0));
        let Some(time) = self.overlay.growing_until(ino.0) else { return attributes(reply, answer) };
        let this = self.clone();
        later::at(time, move || attributes(reply, this.guarded(Op::GetAttr, |fs| fs.getattr(ino.0))));
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (atime, mtime) = (atime.map(set_time), mtime.map(set_time));
        let (caller, change) = (caller(req), SetAttr { mode, uid, gid, size, atime, mtime });
        self.change_file(ino, move |this| {
            attributes(reply, this.call(Op::SetAttr, |fs| fs.setattr(caller, ino.0, &change)));
        });
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.call(Op::ReadLink, |fs| fs.readlink(ino.0)) {
            Ok(target) => reply.data(target.as_encoded_bytes()),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let (caller, name) = (caller(req), name.to_os_string());
        self.change(move |this| {
            let make = |fs: &Overlay| fs.mknod(caller, parent.0, &name, mode, umask, rdev_in(rdev));
            entry(reply, this.call(Op::MkNod, make));
        });
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let (caller, name) = (caller(req), name.to_os_string());
        self.change(move |this| {
            entry(reply, this.call(Op::MkDir, |fs| fs.mkdir(caller, parent.0, &name, mode, umask)));
        });
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (caller, name, target) = (caller(req), name.to_os_string(), target.as_os_str().to_os_string());
        self.change(move |this| {
            entry(reply, this.call(Op::SymLink, |fs| fs.symlink(caller, parent.0, &name, &target)));
        });
    }

    fn link(&self, _: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.to_os_string();
        self.change_file(ino, move |this| {
            entry(reply, this.call(Op::Link, |fs| fs.link(ino.0, parent.0, &name)));
        });
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_os_string();
        self.change(move |this| empty(reply, this.call(Op::Unlink, |fs| fs.unlink(parent.0, &name))));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_os_string();
        self.change(move |this| empty(reply, this.call(Op::RmDir, |fs| fs.rmdir(parent.0, &name))));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        let (name, newname) = (name.to_os_string(), newname.to_os_string());
        self.change(move |this| {
            empty(reply, this.call(Op::Rename, |fs| fs.rename(parent.0, &name, newparent.0, &newname, flags)));
        });
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if !self.overlay.reads_slowly(ino.0) {
            return self.read_now(ino.0, offset, size, reply);
        }
        self.slowly(move |this| this.read_now(ino.0, offset, size, reply));
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let here = if self.overlay.copies_up(ino.0) { None } else { self.changes.here() };
        if here.is_some() {
            return self.write_now(ino.0, offset, data, write_flags, reply);
        }
        // The session reads the next request into the buffer that `data` lies in.
        let data = data.to_vec();
        self.slowly(move |this| this.write_now(ino.0, offset, &data, write_flags, reply));
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.slowly(move |this| empty(reply, this.call(Op::Fsync, |fs| fs.fsync(ino.0, datasync))));
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.slowly(move |this| empty(reply, this.call(Op::FsyncDir, |fs| fs.fsync(ino.0, datasync))));
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, reply: ReplyDirectory) {
        if offset == 0 && self.overlay.may_make_stand_ins(ino.0, None) {
            return self.slowly(move |this| this.list_now(ino, offset, reply));
        }
        self.list_now(ino, offset, reply);
    }

    fn readdirplus(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, reply: ReplyDirectoryPlus) {
        if self.overlay.may_make_stand_ins(ino.0, None) {
            return self.slowly(move |this| this.list_ahead_now(ino, offset, reply));
        }
        self.list_ahead_now(ino, offset, reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        match self.call(Op::StatFs, Overlay::statfs) {
            Ok(s) => reply.statfs(
                s.f_blocks,
                s.f_bfree,
                s.f_bavail,
                s.f_files,
                s.f_ffree,
                small(s.f_bsize),
                small(s.f_namemax),
                small(s.f_frsize),
            ),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (name, value) = (name.to_os_string(), value.to_vec());
        let (caller, flags) = (caller(req), XattrFlags::from_bits_retain(flags.cast_unsigned()));
        self.change_file(ino, move |this| {
            empty(reply, this.call(Op::SetXattr, |fs| fs.setxattr(caller, ino.0, &name, &value, flags)));
        });
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        sized(reply, size, self.call(Op::GetXattr, |fs| fs.getxattr(ino.0, name)));
    }

    fn listxattr(&self, _: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        sized(reply, size, self.call(Op::ListXattr, |fs| Ok(joined(&fs.listxattr(ino.0)?))));
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (caller(req), name.to_os_string());
        self.change_file(ino, move |this| {
            empty(reply, this.call(Op::RemoveXattr, |fs| fs.removexattr(caller, ino.0, &name)));
        });
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let caller = caller(req);
        self.change_file(ino, move |this| {
            empty(reply, this.call(Op::Fallocate, |fs| fs.fallocate(caller, ino.0, offset, length, mode)));
        });
    }

    fn lseek(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        match self.call(Op::Lseek, |fs| fs.lseek(ino.0, offset, whence)) {
            Ok(offset) => reply.offset(offset),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        _: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _: FileHandle,
        offset_out: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (caller, from, to) = (caller(req), (ino_in.0, offset_in), (ino_out.0, offset_out));
        // However much is copied, it is a disk that one waits for.
        self.slowly(move |this| {
            written(reply, this.call(Op::CopyFileRange, |fs| fs.copy_file_range(caller, from, to, len)));
        });
    }

    // What this mode does without. Each has to be answered here: the library's own answers open files, or log.

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(self.refuse(Op::Open));
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(self.refuse(Op::OpenDir));
    }

    fn create(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        reply.error(self.refuse(Op::Create));
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(self.refuse(Op::Flush));
    }

    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        reply.error(self.refuse(Op::Other));
    }

    fn getlk(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: LockOwner,
        _: u64,
        _: u64,
        _: i32,
        _: u32,
        reply: ReplyLock,
    ) {
        reply.error(self.refuse(Op::Other));
    }

    fn setlk(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: LockOwner,
        _: u64,
        _: u64,
        _: i32,
        _: u32,
        _: bool,
        reply: ReplyEmpty,
    ) {
        reply.error(self.refuse(Op::Other));
    }

    fn bmap(&self, _: &Request, _: INodeNo, _: u32, _: u64, reply: ReplyBmap) {
        reply.error(self.refuse(Op::Other));
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        self.stats.count(Op::Other);
        // What an object without such a call says; ENOSYS would reach the program as it is.
        reply.error(fuser::Errno::ENOTTY);
    }

    fn poll(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: PollNotifier,
        _: PollEvents,
        _: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(self.refuse(Op::Other));
    }
}
