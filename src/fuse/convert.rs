//! Between the words of the overlay and those of the FUSE library.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use rustix::fs::FileType as Kind;
use rustix::io::Errno;

use crate::overlay::{Attr, SetTime};
use crate::sys::Time;

/// An errno for a reply.
pub(super) fn errno(e: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(e.raw_os_error())
}

/// Attributes under the number that the kernel is to show.
pub(super) fn attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.btime),
        kind: file_type(attr.file_type()),
        // Truncation is meant: the type bits go.
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: rdev_out(attr.rdev),
        blksize: attr.blksize,
        flags: 0,
    }
}

/// The answer to a lookup that found nothing: node number 0, of which the kernel believes the absence.
pub(super) fn absent() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// The type of an object.
pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharacterDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        // The core resolves what a file system does not tell; there is no way to say "unknown" here.
        Kind::RegularFile | Kind::Unknown => FileType::RegularFile,
    }
}

/// A point in time for a reply.
fn system_time(t: Time) -> SystemTime {
    let whole = Duration::from_secs(t.sec.unsigned_abs());
    let base = if t.sec < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    base.and_then(|base| base.checked_add(Duration::from_nanos(t.nsec.into()))).unwrap_or(UNIX_EPOCH)
}

/// A point in time from a request.
///
/// Before the epoch the library subtracts the nanoseconds where the kernel means them to be added; taking the distance
/// to the epoch apart again gives the two numbers that the kernel sent.
fn time(t: SystemTime) -> Time {
    let parts = |d: Duration| (i64::try_from(d.as_secs()).unwrap_or(i64::MAX), d.subsec_nanos());
    match t.duration_since(UNIX_EPOCH) {
        Ok(after) => {
            let (sec, nsec) = parts(after);
            Time { sec, nsec }
        }
        Err(before) => {
            let (sec, nsec) = parts(before.duration());
            Time { sec: -sec, nsec }
        }
    }
}

/// A new time stamp from a request.
pub(super) fn set_time(t: TimeOrNow) -> SetTime {
    match t {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(t) => SetTime::To(time(t)),
    }
}

/// A device number from the kernel's 32 bits: 12 bits of major, 20 bits of minor (`new_decode_dev`).
pub(super) fn rdev_in(dev: u32) -> u64 {
    rustix::fs::makedev((dev >> 8) & 0xfff, (dev & 0xff) | ((dev >> 12) & 0xf_ff00))
}

/// A device number as the kernel's 32 bits (`new_encode_dev`).
fn rdev_out(dev: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive() {
        for (major, minor) in [(0, 0), (1, 3), (8, 255), (8, 256), (259, 0xf_ffff), (0xfff, 0xf_ffff)] {
            let dev = rustix::fs::makedev(major, minor);
            assert_eq!(rdev_in(rdev_out(dev)), dev, "{major}:{minor}");
        }
    }

    #[test]
    fn times_before_the_epoch_survive_the_library() {
        // What the library makes of (sec, nsec) with sec < 0.
        let decoded = |sec: u64, nsec| UNIX_EPOCH - Duration::new(sec, nsec);
        assert_eq!(time(decoded(2, 300)), Time { sec: -2, nsec: 300 });
        assert_eq!(time(decoded(1, 999_999_999)), Time { sec: -1, nsec: 999_999_999 });
        // On the way out the library is right: -1.5 s is second -2 and half a second.
        let out = system_time(Time { sec: -2, nsec: 500_000_000 });
        assert_eq!(out, UNIX_EPOCH - Duration::from_millis(1500));
        assert_eq!(time(system_time(Time { sec: 7, nsec: 9 })), Time { sec: 7, nsec: 9 });
    }
}
