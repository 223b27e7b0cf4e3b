//! The one way of the core to the kernel: calls of the names and arguments that `rustix` gives them, each of which a test can
//! make fail, stop short, or stop the world before.
//!
//! Every call is a point `sys.NAME` of [`fault`]: it costs one relaxed load unless faults were asked for. A
//! call that a signal interrupted is made again, so that nobody above knows of `EINTR`. Files and listings have types of
//! their own ([`File`], [`Dir`]), which do what those of the standard library and of `rustix` do, by these calls.

mod dir;
#[allow(unsafe_code, reason = "an ioctl that no crate wraps, with a word on it")]
mod extents;
mod file;
#[allow(unsafe_code, reason = "calls that no crate wraps, with a word on each")]
mod mounted;
mod path;
#[allow(unsafe_code, reason = "a call that no crate wraps, with a word on it")]
mod writeback;
#[allow(unsafe_code, reason = "calls that no crate wraps, with a word on each")]
mod xattrat;

use std::os::fd::{AsFd, OwnedFd};

use rustix::ffi::CString;
use rustix::fs::{
    Access, AtFlags, FallocateFlags, FileType, FlockOperation, Gid, IFlags, Mode, OFlags, RenameFlags, ResolveFlags,
    SeekFrom, StatFs, StatVfs, Statx, StatxFlags, Timestamps, Uid, XattrFlags,
};
use rustix::io::{Errno, Result};
use rustix::path::Arg;

pub use dir::Dir;
pub use extents::allocated;
pub use file::File;
pub use mounted::{listmount, statmount};
pub use path::{exists, make_dirs, names, names_if_any};
pub use writeback::begin_writeback;
pub use xattrat::{has_xattrat, lgetxattrat, llistxattrat, lsetxattrat};

use super::fault::{self, Outcome};

/// Makes a call, again and again while signals interrupt it.
#[inline]
fn call<T>(name: &'static str, mut call: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match fault::call(name).and_then(|_| call()) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Like [`call`], for calls that move bytes: they can also be told to move only half of `len`.
#[inline]
fn transfer(name: &'static str, len: usize, mut call: impl FnMut(usize) -> Result<usize>) -> Result<usize> {
    loop {
        let len = match fault::call(name) {
            Ok(Outcome::Whole) => Ok(len),
            Ok(Outcome::Short) => Ok(len.div_ceil(2)),
            Err(e) => Err(e),
        };
        match len.and_then(&mut call) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

macro_rules! calls {
    ($($module:ident::$name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of `rustix`.")]
        #[inline]
        pub fn $name($($arg: $type),*) -> Result<$out> {
            call(concat!("sys.", stringify!($name)), || rustix::$module::$name($($arg),*))
        }
    )*};
}

calls! {
    fs::open(path: impl Arg + Copy, flags: OFlags, mode: Mode) -> OwnedFd;
    fs::openat(dir: impl AsFd + Copy, path: impl Arg + Copy, flags: OFlags, mode: Mode) -> OwnedFd;
    fs::openat2(
        dir: impl AsFd + Copy, path: impl Arg + Copy, flags: OFlags, mode: Mode, resolve: ResolveFlags
    ) -> OwnedFd;
    fs::statx(dir: impl AsFd + Copy, path: impl Arg + Copy, flags: AtFlags, mask: StatxFlags) -> Statx;
    fs::fstatvfs(fd: impl AsFd + Copy) -> StatVfs;
    fs::fstatfs(fd: impl AsFd + Copy) -> StatFs;
    fs::mkdirat(dir: impl AsFd + Copy, path: impl Arg + Copy, mode: Mode) -> ();
    fs::mknodat(dir: impl AsFd + Copy, path: impl Arg + Copy, kind: FileType, mode: Mode, dev: u64) -> ();
    fs::symlinkat(target: impl Arg + Copy, dir: impl AsFd + Copy, path: impl Arg + Copy) -> ();
    fs::linkat(
        dir: impl AsFd + Copy, path: impl Arg + Copy, to: impl AsFd + Copy, name: impl Arg + Copy, flags: AtFlags
    ) -> ();
    fs::unlinkat(dir: impl AsFd + Copy, path: impl Arg + Copy, flags: AtFlags) -> ();
    fs::renameat_with(
        dir: impl AsFd + Copy, path: impl Arg + Copy, to: impl AsFd + Copy, name: impl Arg + Copy, flags: RenameFlags
    ) -> ();
    fs::mkdir(path: impl Arg + Copy, mode: Mode) -> ();
    fs::rmdir(path: impl Arg + Copy) -> ();
    fs::unlink(path: impl Arg + Copy) -> ();
    fs::rename(path: impl Arg + Copy, to: impl Arg + Copy) -> ();
    fs::accessat(dir: impl AsFd + Copy, path: impl Arg + Copy, access: Access, flags: AtFlags) -> ();
    fs::chmod(path: impl Arg + Copy, mode: Mode) -> ();
    fs::fchmod(fd: impl AsFd + Copy, mode: Mode) -> ();
    fs::fchown(fd: impl AsFd + Copy, owner: Option<Uid>, group: Option<Gid>) -> ();
    fs::chownat(
        dir: impl AsFd + Copy, path: impl Arg + Copy, owner: Option<Uid>, group: Option<Gid>, flags: AtFlags
    ) -> ();
    fs::futimens(fd: impl AsFd + Copy, times: &Timestamps) -> ();
    fs::utimensat(dir: impl AsFd + Copy, path: impl Arg + Copy, times: &Timestamps, flags: AtFlags) -> ();
    fs::setxattr(path: impl Arg + Copy, name: impl Arg + Copy, value: &[u8], flags: XattrFlags) -> ();
    fs::lsetxattr(path: impl Arg + Copy, name: impl Arg + Copy, value: &[u8], flags: XattrFlags) -> ();
    fs::fsetxattr(fd: impl AsFd + Copy, name: impl Arg + Copy, value: &[u8], flags: XattrFlags) -> ();
    fs::removexattr(path: impl Arg + Copy, name: impl Arg + Copy) -> ();
    fs::lremovexattr(path: impl Arg + Copy, name: impl Arg + Copy) -> ();
    fs::fremovexattr(fd: impl AsFd + Copy, name: impl Arg + Copy) -> ();
    fs::seek(fd: impl AsFd + Copy, to: SeekFrom) -> u64;
    fs::ftruncate(fd: impl AsFd + Copy, size: u64) -> ();
    fs::fallocate(fd: impl AsFd + Copy, mode: FallocateFlags, offset: u64, len: u64) -> ();
    fs::ioctl_getflags(fd: impl AsFd + Copy) -> IFlags;
    fs::ioctl_setflags(fd: impl AsFd + Copy, flags: IFlags) -> ();
    fs::ioctl_ficlone(fd: impl AsFd + Copy, from: impl AsFd + Copy) -> ();
    fs::flock(fd: impl AsFd + Copy, operation: FlockOperation) -> ();
    fs::fsync(fd: impl AsFd + Copy) -> ();
    fs::fdatasync(fd: impl AsFd + Copy) -> ();
    fs::syncfs(fd: impl AsFd + Copy) -> ();
}

/// `readlinkat` of `rustix`.
pub fn readlinkat(dir: impl AsFd + Copy, path: impl Arg + Copy) -> Result<CString> {
    call("sys.readlinkat", || rustix::fs::readlinkat(dir, path, Vec::new()))
}

/// `getxattr` of `rustix`.
pub fn getxattr(path: impl Arg + Copy, name: impl Arg + Copy, value: &mut [u8]) -> Result<usize> {
    call("sys.getxattr", || rustix::fs::getxattr(path, name, &mut *value))
}

/// `lgetxattr` of `rustix`.
pub fn lgetxattr(path: impl Arg + Copy, name: impl Arg + Copy, value: &mut [u8]) -> Result<usize> {
    call("sys.lgetxattr", || rustix::fs::lgetxattr(path, name, &mut *value))
}

/// `fgetxattr` of `rustix`.
pub fn fgetxattr(fd: impl AsFd + Copy, name: impl Arg + Copy, value: &mut [u8]) -> Result<usize> {
    call("sys.fgetxattr", || rustix::fs::fgetxattr(fd, name, &mut *value))
}

/// `listxattr` of `rustix`.
pub fn listxattr(path: impl Arg + Copy, list: &mut [u8]) -> Result<usize> {
    call("sys.listxattr", || rustix::fs::listxattr(path, &mut *list))
}

/// `llistxattr` of `rustix`.
pub fn llistxattr(path: impl Arg + Copy, list: &mut [u8]) -> Result<usize> {
    call("sys.llistxattr", || rustix::fs::llistxattr(path, &mut *list))
}

/// `flistxattr` of `rustix`.
pub fn flistxattr(fd: impl AsFd + Copy, list: &mut [u8]) -> Result<usize> {
    call("sys.flistxattr", || rustix::fs::flistxattr(fd, &mut *list))
}

/// `read` of `rustix`.
#[inline]
pub fn read(fd: impl AsFd + Copy, buffer: &mut [u8]) -> Result<usize> {
    transfer("sys.read", buffer.len(), |len| rustix::io::read(fd, &mut buffer[..len]))
}

/// `pread` of `rustix`.
#[inline]
pub fn pread(fd: impl AsFd + Copy, buffer: &mut [u8], offset: u64) -> Result<usize> {
    transfer("sys.pread", buffer.len(), |len| rustix::io::pread(fd, &mut buffer[..len], offset))
}

/// `write` of `rustix`.
#[inline]
pub fn write(fd: impl AsFd + Copy, bytes: &[u8]) -> Result<usize> {
    transfer("sys.write", bytes.len(), |len| rustix::io::write(fd, &bytes[..len]))
}

/// `pwrite` of `rustix`.
#[inline]
pub fn pwrite(fd: impl AsFd + Copy, bytes: &[u8], offset: u64) -> Result<usize> {
    transfer("sys.pwrite", bytes.len(), |len| rustix::io::pwrite(fd, &bytes[..len], offset))
}

/// `copy_file_range` of `rustix`.
pub fn copy_file_range(
    from: impl AsFd + Copy,
    mut from_offset: Option<&mut u64>,
    to: impl AsFd + Copy,
    mut to_offset: Option<&mut u64>,
    len: usize,
) -> Result<usize> {
    transfer("sys.copy_file_range", len, |len| {
        rustix::fs::copy_file_range(from, from_offset.as_deref_mut(), to, to_offset.as_deref_mut(), len)
    })
}
