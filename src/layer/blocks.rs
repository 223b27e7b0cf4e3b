//! Large files of the upper that are not all there yet: which of their blocks are.
//!
//! A large file that is changed in one place is not copied first: it becomes a file of full size in the upper, and its
//! other blocks are brought up afterwards. Until then it carries the mark [`BLOCKS`], which says where the rest is
//! ([`Source`]), and `work/blocks/<ino>-<sec>.<nsec>`, named after the upper file, is its map:
//!
//! | bytes | what |
//! |---|---|
//! | 0 to 36 | boot id under which the first set of bits counts |
//! | 36 | `1` once every block is in the upper, though maybe not on the disk |
//! | from 64 | one bit a block: the fork has written it (set before the write is acknowledged) |
//! | then | one bit a block: the fork has written it, and synced the file since |
//!
//! After a killed server the first set counts, after a power cut the second. What is set in neither is the lower's.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{OFlags, XattrFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::index::Key;
use super::marks::BLOCKS;
use crate::names::RelPath;
use crate::sys::{At, Ident, Stat, Time, calls};

/// The name of the directory of maps in the work area.
pub const DIR: &str = "blocks";

/// The smallest block: what the kernel writes at once.
const SMALLEST: u64 = 4096;
/// A file has at most about so many blocks, so that no map is larger than a quarter of a megabyte.
const MOST: u64 = 1 << 20;
const HEAD: usize = 64;
const BOOT: usize = 36;

/// Where the blocks are that are missing in the upper, and in what state that was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The path in the lower.
    pub path: RelPath,
    /// Number and birth time of the lower file.
    pub ident: Ident,
    /// Its size in bytes.
    pub size: u64,
    /// Last change of its content.
    pub mtime: Time,
    /// Last change of content or attributes.
    pub ctime: Time,
    /// Its names.
    pub nlink: u32,
    /// Bytes in a block, a power of two.
    pub block: u64,
}

impl Source {
    /// The lower file at `path`, which is like `stat`.
    pub fn new(path: RelPath, stat: &Stat) -> Self {
        let block = (stat.size / MOST).next_power_of_two().max(SMALLEST);
        let Stat { size, mtime, ctime, nlink, .. } = *stat;
        Self { path, ident: stat.ident(), size, mtime, ctime, nlink, block }
    }

    /// How many blocks it has.
    pub fn blocks(&self) -> u64 {
        self.size.div_ceil(self.block)
    }

    /// Whether the content is still what it was, as far as attributes tell: those of `stat` are the newer ones.
    ///
    /// Another count of names, mode or owner would explain a new change time; here only the count is known.
    pub fn is_in(&self, stat: &Stat) -> bool {
        let content = (self.ident, self.size, self.mtime) == (stat.ident(), stat.size, stat.mtime);
        content && (self.ctime == stat.ctime || self.nlink != stat.nlink)
    }

    /// Marks an upper file that is still to be filled. `ENOSPC` or `E2BIG` where the mark does not fit.
    pub fn mark(&self, file: &OwnedFd) -> Result<(), Errno> {
        let text = serde_json::to_vec(self).expect("numbers and a path always serialise");
        calls::fsetxattr(file, BLOCKS, &text, XattrFlags::empty())
    }

    /// The mark of an upper file; `None` where it has none, and is complete. `EIO` where it is nothing that was made here:
    /// numbers of which no map can be made would end the server.
    pub fn of(file: &OwnedFd) -> Result<Option<Self>, Errno> {
        let Some(text) = At::object(file).xattr(OsStr::new(BLOCKS))? else { return Ok(None) };
        let source: Self = serde_json::from_slice(&text).map_err(|_| Errno::IO)?;
        let sound = source.block.is_power_of_two() && source.block >= SMALLEST && source.blocks() <= 2 * MOST;
        if sound && source.size <= i64::MAX.unsigned_abs() { Ok(Some(source)) } else { Err(Errno::IO) }
    }
}

/// Takes the mark off an upper file: it is an ordinary one from now on.
pub fn unmark(file: &OwnedFd) -> Result<(), Errno> {
    match calls::fremovexattr(file, BLOCKS) {
        Err(Errno::NODATA) => Ok(()),
        other => other,
    }
}

/// A set of blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bits {
    bytes: Vec<u8>,
    len: u64,
}

impl Bits {
    /// No block of `len`.
    pub fn none(len: u64) -> Self {
        Self { bytes: vec![0; bytes_for(len)], len }
    }

    /// Whether a block is in the set. Everything beyond the end is.
    pub fn has(&self, block: u64) -> bool {
        block >= self.len || self.bytes[(block / 8) as usize] & 1 << (block % 8) != 0
    }

    /// Adds blocks; how many are new.
    pub fn add(&mut self, blocks: Range<u64>) -> u64 {
        let mut new = 0;
        for block in blocks.start..blocks.end.min(self.len) {
            new += u64::from(!self.has(block));
            self.bytes[(block / 8) as usize] |= 1 << (block % 8);
        }
        new
    }

    /// The first run of blocks from `from` on, of at most `most`, that are not in the set.
    pub fn missing(&self, from: u64, most: u64) -> Option<Range<u64>> {
        let start = (from..self.len).find(|&block| !self.has(block))?;
        let end = (start..self.len.min(start + most)).find(|&block| self.has(block));
        Some(start..end.unwrap_or(self.len.min(start + most)))
    }

    /// How many blocks are not in the set.
    pub fn count_missing(&self) -> u64 {
        self.len - self.bytes.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>()
    }
}

fn bytes_for(blocks: u64) -> usize {
    usize::try_from(blocks.div_ceil(8)).expect("a map has a million blocks at most")
}

/// The map of one file, open.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    /// Length of one set of bits.
    bytes: usize,
}

impl Map {
    /// A new map, of a file of which no block was written yet.
    pub fn create(area: &OwnedFd, upper: Ident, blocks: u64) -> Result<Self, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC;
        let fd = At::new(area, &Key(upper).file_name()).create(flags, 0o600)?;
        let map = Self { fd, bytes: bytes_for(blocks) };
        map.begin(&Bits::none(blocks))?;
        Ok(map)
    }

    /// The map that is there, which blocks the fork has written, and whether all others were brought up as well.
    pub fn open(area: &OwnedFd, upper: Ident, blocks: u64) -> Result<(Self, Bits, bool), Errno> {
        let fd = At::new(area, &Key(upper).file_name()).open(OFlags::RDWR)?;
        let map = Self { fd, bytes: bytes_for(blocks) };
        // After a power cut the file may be shorter: what is not there was never synced.
        let mut head = [0; HEAD];
        map.read(0, &mut head)?;
        let this_boot = head[..BOOT] == boot_id()?;
        let mut bits = Bits::none(blocks);
        let set = if this_boot { 0 } else { map.bytes };
        map.read(HEAD + set, &mut bits.bytes)?;
        if !this_boot {
            map.begin(&bits)?;
        }
        Ok((map, bits, this_boot && head[BOOT] == b'1'))
    }

    /// Writes the first set anew, as of this boot.
    fn begin(&self, written: &Bits) -> Result<(), Errno> {
        let mut text = vec![0; HEAD];
        text[..BOOT].copy_from_slice(&boot_id()?);
        text.extend(&written.bytes);
        self.write(0, &text)
    }

    /// Notes blocks that were written; they survive a killed process from now on.
    pub fn note(&self, written: &Bits, blocks: &Range<u64>) -> Result<(), Errno> {
        let (first, last) = ((blocks.start / 8) as usize, bytes_for(blocks.end).min(written.bytes.len()));
        if first >= last { Ok(()) } else { self.write(HEAD + first, &written.bytes[first..last]) }
    }

    /// Notes that every block is in the upper.
    pub fn note_complete(&self) -> Result<(), Errno> {
        self.write(BOOT, b"1")
    }

    /// Notes blocks whose content is on the disk; they survive a power cut once this has returned.
    pub fn sync(&self, area: &OwnedFd, written: &Bits) -> Result<(), Errno> {
        self.write(HEAD + self.bytes, &written.bytes)?;
        calls::fsync(&self.fd)?;
        calls::fsync(area)
    }

    fn read(&self, at: usize, buffer: &mut [u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < buffer.len() {
            match calls::pread(&self.fd, &mut buffer[done..], (at + done) as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < bytes.len() {
            match calls::pwrite(&self.fd, &bytes[done..], (at + done) as u64) {
                Ok(0) => return Err(Errno::IO),
                Ok(n) => done += n,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// Opens the directory of maps; made when missing.
pub fn area(work: &OwnedFd) -> Result<OwnedFd, Errno> {
    super::area(work, DIR)
}

/// The upper files that have a map in this work area.
pub fn pending(work: &OwnedFd) -> Result<Vec<Ident>, Errno> {
    let mut found = Vec::new();
    let area = match At::new(work, DIR).open(OFlags::RDONLY | OFlags::DIRECTORY) {
        Err(Errno::NOENT) => return Ok(found),
        other => other?,
    };
    for entry in calls::Dir::read_from(&area)? {
        let entry = entry?;
        found.extend(Key::parse(OsStr::from_bytes(entry.file_name().to_bytes())).map(|Key(ident)| ident));
    }
    Ok(found)
}

/// Removes the map of a file; nothing to do is fine.
pub fn remove(area: &OwnedFd, upper: Ident) -> Result<(), Errno> {
    match At::new(area, &Key(upper).file_name()).unlink() {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// What tells one run of the kernel from another.
fn boot_id() -> Result<[u8; BOOT], Errno> {
    let id = crate::sys::boot_id().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    id.as_bytes().try_into().map_err(|_| Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::open_root;

    #[test]
    fn runs_of_missing_blocks() {
        let mut bits = Bits::none(20);
        assert_eq!(bits.add(3..5), 2);
        assert_eq!(bits.add(4..9), 4);
        assert_eq!(bits.missing(0, 100), Some(0..3));
        assert_eq!(bits.missing(3, 100), Some(9..20));
        assert_eq!(bits.missing(3, 4), Some(9..13));
        assert_eq!(bits.count_missing(), 14);
        bits.add(0..30);
        assert_eq!((bits.missing(0, 1), bits.has(1_000)), (None, true));
    }

    #[test]
    fn marks_of_which_no_map_can_be_made_are_refused() {
        let file = OwnedFd::from(tempfile::tempfile().expect("room"));
        let time = Time { sec: 1, nsec: 2 };
        let ident = Ident { ino: 7, btime: time };
        let path = RelPath::from_bytes(b"d/f").expect("plain");
        let good = Source { path, ident, size: 1 << 33, mtime: time, ctime: time, nlink: 1, block: 8192 };
        good.mark(&file).expect("room");
        assert_eq!(Source::of(&file), Ok(Some(good.clone())));
        for (size, block) in [(1, 0), (1, 1), (1 << 20, 4097), (1 << 60, 4096), (u64::MAX, 1 << 62)] {
            Source { size, block, ..good.clone() }.mark(&file).expect("room");
            assert_eq!(Source::of(&file), Err(Errno::IO), "{size} bytes in blocks of {block}");
        }
    }

    #[test]
    fn a_map_is_what_was_noted_and_after_a_power_cut_what_was_synced() {
        let dir = tempfile::tempdir().expect("room");
        let work = open_root(dir.path()).expect("there");
        let area = area(&work).expect("room");
        let ident = Ident { ino: 7, btime: Time { sec: 1, nsec: 2 } };
        let map = Map::create(&area, ident, 100).expect("room");
        let mut bits = Bits::none(100);
        bits.add(0..1);
        map.note(&bits, &(0..1)).expect("room");
        map.sync(&area, &bits).expect("room");
        bits.add(90..100);
        map.note(&bits, &(90..100)).expect("room");
        let (_, now, complete) = Map::open(&area, ident, 100).expect("there");
        assert_eq!((now, complete), (bits, false));
        // Another boot.
        map.write(0, b"x").expect("room");
        map.note_complete().expect("room");
        let (_, now, complete) = Map::open(&area, ident, 100).expect("there");
        let mut synced = Bits::none(100);
        synced.add(0..1);
        assert_eq!((now, complete), (synced.clone(), false));
        let (_, again, _) = Map::open(&area, ident, 100).expect("there");
        assert_eq!(again, synced);
        // Cut off before anything of it was on the disk.
        map.write(0, b"x").expect("room");
        rustix::fs::ftruncate(&map.fd, 10).expect("ours");
        assert_eq!(Map::open(&area, ident, 100).expect("there").1, Bits::none(100));
        assert_eq!(pending(&work).expect("there"), [ident]);
        remove(&area, ident).expect("there");
        remove(&area, ident).expect("nothing to do");
        assert_eq!(pending(&work).expect("there"), []);
    }
}
