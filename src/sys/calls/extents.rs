//! Which parts of a file have room on the disk (`FS_IOC_FIEMAP`, see `Documentation/filesystems/fiemap.rst`).
//!
//! Unlike `SEEK_HOLE` it tells a hole from what was set aside by `fallocate` and not written yet.

use std::ops::Range;
use std::os::fd::AsFd;

use rustix::io::{Errno, Result};
use rustix::ioctl::{Updater, opcode};

use super::call;

/// So many are asked for at once.
const EXTENTS: usize = 64;
/// There is none after this one.
const LAST: u32 = 1;

/// The first part of `struct fiemap`, whose size is in the number of the call.
#[repr(C)]
struct Head {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
}

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
struct Map {
    head: Head,
    extents: [Extent; EXTENTS],
}

const FIEMAP: rustix::ioctl::Opcode = opcode::read_write::<Head>(b'f', 11);

/// How many bytes of this range have room on the disk; `None` where the file system does not say.
pub fn allocated(fd: impl AsFd + Copy, range: Range<u64>) -> Result<Option<u64>> {
    let (mut at, mut found) = (range.start, 0);
    while at < range.end {
        let map = match call("sys.fiemap", || map(fd, at..range.end)) {
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS | Errno::INVAL) => return Ok(None),
            other => other?,
        };
        let extents = &map.extents[..(map.head.mapped as usize).min(EXTENTS)];
        for extent in extents {
            let end = extent.logical.saturating_add(extent.length).min(range.end);
            found += end.saturating_sub(extent.logical.max(at));
            at = at.max(end);
        }
        if extents.last().is_none_or(|extent| extent.flags & LAST != 0) {
            break;
        }
    }
    Ok(Some(found))
}

fn map(fd: impl AsFd, range: Range<u64>) -> Result<Box<Map>> {
    let room = EXTENTS as u32;
    let head = Head { start: range.start, length: range.end - range.start, flags: 0, mapped: 0, room, reserved: 0 };
    let none = Extent { logical: 0, physical: 0, length: 0, reserved64: [0; 2], flags: 0, reserved: [0; 3] };
    let mut map = Box::new(Map { head, extents: [none; EXTENTS] });
    // SAFETY: the call reads a `struct fiemap` and writes it back with at most `room` extents behind it, which is what
    // `Map` has room for; every bit pattern is valid for the plain numbers in it.
    unsafe { rustix::ioctl::ioctl(fd, Updater::<FIEMAP, Map>::new(&mut map)) }?;
    Ok(map)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use rustix::fs::{FallocateFlags, fallocate};

    use super::*;

    #[test]
    fn holes_are_told_from_what_was_set_aside() {
        let file = tempfile::tempfile().expect("room");
        file.set_len(1 << 20).expect("ours");
        file.write_all_at(&[1; 8192], 65_536).expect("room");
        fallocate(&file, FallocateFlags::empty(), 131_072, 16_384).expect("room");
        // Not every file system that temporary files are on says it.
        let Some(all) = allocated(&file, 0..1 << 20).expect("answered") else { return };
        assert_eq!(all, 8192 + 16_384);
        assert_eq!(allocated(&file, 69_632..135_168).expect("answered"), Some(4096 + 4096));
        assert_eq!(allocated(&file, 0..65_536).expect("answered"), Some(0));
    }
}
