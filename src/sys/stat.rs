//! What `statx(2)` says of an object, in plain numbers.

use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, StatxTimestamp};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// A point in time, as file systems keep it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Time {
    /// Seconds since the epoch; negative before it.
    pub sec: i64,
    /// Nanoseconds within the second.
    pub nsec: u32,
}

impl Time {
    /// The time by the real clock.
    pub fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        // Both in range: the kernel keeps nanoseconds below a thousand million.
        Self { sec: now.tv_sec, nsec: now.tv_nsec as u32 }
    }

    /// The time that no change made from here on is older than: file systems go by a clock that lags a tick behind.
    pub fn of_changes() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        Self { sec: now.tv_sec, nsec: now.tv_nsec as u32 }
    }
}

impl From<StatxTimestamp> for Time {
    fn from(t: StatxTimestamp) -> Self {
        Self { sec: t.tv_sec, nsec: t.tv_nsec }
    }
}

impl From<Time> for rustix::fs::Timespec {
    fn from(t: Time) -> Self {
        Self { tv_sec: t.sec, tv_nsec: t.nsec.into() }
    }
}

/// Which object an inode number means: file systems reuse numbers at once, so the birth time goes with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ident {
    /// Inode number.
    pub ino: u64,
    /// Birth time; zero on a file system that keeps none.
    pub btime: Time,
}

/// The attributes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// Device number of the file system the object is on.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// File type and permission bits.
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, as `makedev` packs it.
    pub rdev: u64,
    /// Size in bytes.
    pub size: u64,
    /// Allocated size in units of 512 bytes.
    pub blocks: u64,
    /// Preferred block size in bytes.
    pub blksize: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of content or attributes.
    pub ctime: Time,
    /// Birth; zero on a file system that keeps none.
    pub btime: Time,
    /// The object is the root of a mount (false where the kernel cannot tell, before Linux 5.8).
    pub mount_root: bool,
}

impl Stat {
    /// Number and birth time.
    pub fn ident(&self) -> Ident {
        Ident { ino: self.ino, btime: self.btime }
    }

    /// The type in the mode.
    pub fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    /// Whether this is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    /// Whether this is a regular file.
    pub fn is_file(&self) -> bool {
        self.file_type() == FileType::RegularFile
    }

    /// Whether this is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.file_type() == FileType::Symlink
    }

    /// The attributes behind a descriptor (`O_PATH` will do).
    pub fn of(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        statx(fd, "", AtFlags::EMPTY_PATH)
    }
}

/// The number of the mount that an object was reached through: what `rename(2)` and `link(2)` do not cross, even where
/// both sides are on one file system. Zero before Linux 5.8.
pub fn mount_id(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let x = super::calls::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    Ok(x.stx_mnt_id)
}

/// `statx` of a name in a directory, never following a final link; `flags` are added to that.
pub(super) fn statx(dir: BorrowedFd<'_>, name: impl rustix::path::Arg + Copy, flags: AtFlags) -> Result<Stat, Errno> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let x = super::calls::statx(dir, name, flags | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT, wanted)?;
    Ok(from_statx(&x))
}

fn from_statx(x: &Statx) -> Stat {
    let has_btime = x.stx_mask & StatxFlags::BTIME.bits() != 0;
    Stat {
        dev: rustix::fs::makedev(x.stx_dev_major, x.stx_dev_minor),
        ino: x.stx_ino,
        mode: x.stx_mode.into(),
        nlink: x.stx_nlink,
        uid: x.stx_uid,
        gid: x.stx_gid,
        rdev: rustix::fs::makedev(x.stx_rdev_major, x.stx_rdev_minor),
        size: x.stx_size,
        blocks: x.stx_blocks,
        blksize: x.stx_blksize,
        atime: x.stx_atime.into(),
        mtime: x.stx_mtime.into(),
        ctime: x.stx_ctime.into(),
        btime: if has_btime { x.stx_btime.into() } else { Time::default() },
        mount_root: x.stx_attributes.contains(rustix::fs::StatxAttributes::MOUNT_ROOT),
    }
}
