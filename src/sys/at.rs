//! An entry of a directory, and the calls on it that never follow a final link.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags, XattrFlags};
use rustix::io::Errno;

use super::calls;
use super::stat::{Stat, statx};
use crate::names::RelPath;

/// One name in one directory.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    /// The directory; an `O_PATH` descriptor will do.
    pub dir: BorrowedFd<'a>,
    /// The name in it; a single component.
    pub name: &'a OsStr,
}

impl<'a> At<'a> {
    /// The entry `name` of `dir`.
    pub fn new(dir: &'a impl AsFd, name: &'a (impl AsRef<OsStr> + ?Sized)) -> Self {
        Self { dir: dir.as_fd(), name: name.as_ref() }
    }

    /// The object behind a descriptor itself, which needs no name (`O_PATH` will do). Only reading, setting attributes
    /// and opening make sense on it.
    pub fn object(fd: &'a impl AsFd) -> Self {
        Self { dir: fd.as_fd(), name: OsStr::new("") }
    }

    /// The flag that makes a call act on the object behind the descriptor where there is no name.
    fn empty(self) -> AtFlags {
        if self.name.is_empty() { AtFlags::EMPTY_PATH } else { AtFlags::empty() }
    }

    /// Its attributes.
    pub fn stat(self) -> Result<Stat, Errno> {
        statx(self.dir, self.name, self.empty())
    }

    /// Its attributes, or `None` where there is no such entry.
    pub fn try_stat(self) -> Result<Option<Stat>, Errno> {
        match self.stat() {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Opens it; a final symbolic link is `ELOOP` (unless `O_PATH` asks for the link itself).
    pub fn open(self, flags: OFlags) -> Result<OwnedFd, Errno> {
        self.create(flags, 0)
    }

    /// Opens it with a mode for `O_CREAT`; the mode is taken as it is, less the umask of the process.
    pub fn create(self, flags: OFlags, mode: u32) -> Result<OwnedFd, Errno> {
        if self.name.is_empty() {
            return reopen(self.dir, flags);
        }
        calls::openat(self.dir, self.name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::from_raw_mode(mode))
    }

    /// Opens it for reading without bumping its access time where that is allowed (owner or root).
    pub fn open_quiet(self, flags: OFlags) -> Result<OwnedFd, Errno> {
        match self.open(flags | OFlags::NOATIME) {
            Err(Errno::PERM) => self.open(flags),
            other => other,
        }
    }

    /// The target of a symbolic link, as bytes.
    pub fn readlink(self) -> Result<OsString, Errno> {
        Ok(OsString::from_vec(calls::readlinkat(self.dir, self.name)?.into_bytes()))
    }

    /// Makes a directory.
    pub fn mkdir(self, mode: u32) -> Result<(), Errno> {
        calls::mkdirat(self.dir, self.name, Mode::from_raw_mode(mode))
    }

    /// Makes a node of any type but directory and link; the type is in `mode`.
    pub fn mknod(self, mode: u32, rdev: u64) -> Result<(), Errno> {
        calls::mknodat(self.dir, self.name, FileType::from_raw_mode(mode), Mode::from_raw_mode(mode), rdev)
    }

    /// Makes a symbolic link to `target`.
    pub fn symlink(self, target: &OsStr) -> Result<(), Errno> {
        calls::symlinkat(target, self.dir, self.name)
    }

    /// Gives this object a second name.
    pub fn link_to(self, to: At<'_>) -> Result<(), Errno> {
        calls::linkat(self.dir, self.name, to.dir, to.name, AtFlags::empty())
    }

    /// Removes a name that is not a directory.
    pub fn unlink(self) -> Result<(), Errno> {
        calls::unlinkat(self.dir, self.name, AtFlags::empty())
    }

    /// Removes an empty directory.
    pub fn rmdir(self) -> Result<(), Errno> {
        calls::unlinkat(self.dir, self.name, AtFlags::REMOVEDIR)
    }

    /// Renames it, replacing what is there.
    pub fn rename(self, to: At<'_>) -> Result<(), Errno> {
        self.rename_with(to, RenameFlags::empty())
    }

    /// Renames it as the flags say.
    pub fn rename_with(self, to: At<'_>, flags: RenameFlags) -> Result<(), Errno> {
        calls::renameat_with(self.dir, self.name, to.dir, to.name, flags)
    }

    /// Sets permission bits (never through a symbolic link, whose mode cannot be set: `EOPNOTSUPP`).
    pub fn chmod(self, mode: u32) -> Result<(), Errno> {
        if self.name.is_empty() {
            return calls::chmod(&proc_fd(self.dir), Mode::from_raw_mode(mode & 0o7777));
        }
        let fd = self.open(OFlags::PATH)?;
        if Stat::of(fd.as_fd())?.is_symlink() {
            return Err(Errno::OPNOTSUPP);
        }
        calls::chmod(&proc_fd(fd.as_fd()), Mode::from_raw_mode(mode & 0o7777))
    }

    /// Sets owner and group where given.
    pub fn chown(self, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
        let (uid, gid) = (uid.map(rustix::fs::Uid::from_raw), gid.map(rustix::fs::Gid::from_raw));
        calls::chownat(self.dir, self.name, uid, gid, AtFlags::SYMLINK_NOFOLLOW | self.empty())
    }

    /// Sets access and change times; `UTIME_NOW` and `UTIME_OMIT` as in `utimensat(2)`.
    pub fn utimens(self, times: &rustix::fs::Timestamps) -> Result<(), Errno> {
        calls::utimensat(self.dir, self.name, times, AtFlags::SYMLINK_NOFOLLOW | self.empty())
    }

    /// An extended attribute; `None` where it is not set or the file system keeps none.
    pub fn xattr(self, attribute: &OsStr) -> Result<Option<Vec<u8>>, Errno> {
        match self.get_xattr(attribute) {
            Ok(value) => Ok(Some(value)),
            Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// An extended attribute; `ENODATA` where it is not set, `EOPNOTSUPP` where the file system keeps none of the kind.
    pub fn get_xattr(self, attribute: &OsStr) -> Result<Vec<u8>, Errno> {
        if self.has_xattrat() {
            return whole(|value| calls::lgetxattrat(self.dir, self.name, attribute, value));
        }
        let path = self.proc_path();
        whole(|value| self.get_xattr_at(&path, attribute, value))
    }

    /// Sets an extended attribute.
    pub fn set_xattr(self, attribute: &OsStr, value: &[u8], flags: XattrFlags) -> Result<(), Errno> {
        match self.name.is_empty() {
            true => calls::setxattr(&self.proc_path(), attribute, value, flags),
            false if self.has_xattrat() => calls::lsetxattrat(self.dir, self.name, attribute, value, flags),
            false => calls::lsetxattr(&self.proc_path(), attribute, value, flags),
        }
    }

    /// Removes an extended attribute; `ENODATA` where it is not set.
    pub fn remove_xattr(self, attribute: &OsStr) -> Result<(), Errno> {
        match self.name.is_empty() {
            true => calls::removexattr(&self.proc_path(), attribute),
            false => calls::lremovexattr(&self.proc_path(), attribute),
        }
    }

    /// The names of all extended attributes; empty where the file system keeps none.
    pub fn xattrs(self) -> Result<Vec<OsString>, Errno> {
        let path = if self.has_xattrat() { None } else { Some(self.proc_path()) };
        let mut list = vec![0_u8; 1024];
        let n = loop {
            let listed = match &path {
                Some(path) => self.list_xattr_at(path, &mut list),
                None => calls::llistxattrat(self.dir, self.name, &mut list),
            };
            match listed {
                Ok(n) => break n,
                Err(Errno::NOTSUP) => break 0,
                Err(Errno::RANGE) if list.len() < 65_536 => list.resize(65_536, 0),
                Err(e) => return Err(e),
            }
        };
        let names = list[..n].split(|&b| b == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| OsStr::from_bytes(name).to_os_string()).collect())
    }

    /// Whether its attributes can be reached by directory and name. What has no name has to be open for that, which `O_PATH` is not.
    fn has_xattrat(self) -> bool {
        !self.name.is_empty() && calls::has_xattrat()
    }

    fn get_xattr_at(self, path: &Path, attribute: &OsStr, value: &mut [u8]) -> Result<usize, Errno> {
        match self.name.is_empty() {
            true => calls::getxattr(path, attribute, value),
            false => calls::lgetxattr(path, attribute, value),
        }
    }

    fn list_xattr_at(self, path: &Path, list: &mut [u8]) -> Result<usize, Errno> {
        match self.name.is_empty() {
            true => calls::listxattr(path, list),
            false => calls::llistxattr(path, list),
        }
    }

    /// A path for the calls that take no directory descriptor (extended attributes before Linux 6.13). The path of an
    /// object behind a descriptor is a magic link: the calls on it have to follow.
    fn proc_path(self) -> PathBuf {
        let mut path = proc_fd(self.dir);
        if !self.name.is_empty() {
            path.push(self.name);
        }
        path
    }
}

/// An extended attribute of an open file (not `O_PATH`); errors as of [`At::get_xattr`].
pub fn xattr_of(fd: &OwnedFd, attribute: &OsStr) -> Result<Vec<u8>, Errno> {
    whole(|value| calls::fgetxattr(fd, attribute, value))
}

/// The whole of an attribute that `get` reads into a buffer, if it fits.
fn whole(get: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 256];
    loop {
        match get(&mut value) {
            Ok(n) => {
                value.truncate(n);
                return Ok(value);
            }
            // 64 KiB is XATTR_SIZE_MAX: nothing larger exists.
            Err(Errno::RANGE) if value.len() < 65_536 => value.resize(65_536, 0),
            Err(e) => return Err(e),
        }
    }
}

/// The path under which the kernel names an open descriptor.
fn proc_fd(fd: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Opens the object behind an `O_PATH` descriptor for real.
pub fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    calls::open(&proc_fd(fd), flags | OFlags::CLOEXEC, Mode::empty())
}

/// Opens a directory by an absolute or relative path, links followed, as the root of a layer or tree (`O_PATH`).
pub fn open_root(path: &Path) -> Result<OwnedFd, Errno> {
    calls::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Opens an object below `root`: no component may be a symbolic link, and the path cannot leave the root.
///
/// `EXDEV` where it would leave, `ELOOP` where a component is a link (`openat2(2)`, Linux 5.6).
pub fn open_beneath(root: &impl AsFd, path: &RelPath, flags: OFlags) -> Result<OwnedFd, Errno> {
    open_resolved(root, path, flags, ResolveFlags::empty())
}

/// Like [`open_beneath`], and on the mount of `root`: `EXDEV` where another mount is on the way.
pub fn open_on_mount(root: &impl AsFd, path: &RelPath, flags: OFlags) -> Result<OwnedFd, Errno> {
    open_resolved(root, path, flags, ResolveFlags::NO_XDEV)
}

fn open_resolved(root: &impl AsFd, path: &RelPath, flags: OFlags, more: ResolveFlags) -> Result<OwnedFd, Errno> {
    let path = if path.is_root() { Path::new(".") } else { path.as_path() };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | more;
    loop {
        // EAGAIN: a rename elsewhere raced with the walk; the manual page says to try again.
        match calls::openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Err(Errno::AGAIN) => {}
            other => return other,
        }
    }
}
