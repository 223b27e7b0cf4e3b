//! The bytes of one file: reflink, else `copy_file_range`, else read and write. Holes stay holes.
//!
//! Descriptors in, descriptors out: nothing here names a path. The source may change meanwhile; the caller who cares
//! compares its attributes before and after.

use std::ops::{ControlFlow, Range};
use std::os::fd::BorrowedFd;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::sys::calls;

/// How the bytes of a file came over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// The copy shares the blocks of the original (`FICLONE`).
    Reflink,
    /// The kernel copied (`copy_file_range`).
    CopyRange,
    /// Read into memory and written from there.
    ReadWrite,
}

/// At most so many bytes between two looks at whether to go on.
const STEP: u64 = 64 << 20;
/// Buffer of the last resort.
const BUFFER: usize = 256 << 10;

/// Copies the content of `from` to the empty file `to`, and says how.
///
/// `size` is the size of `from`; where it differs from what `from` really holds by now, a reflink has the present
/// content, any other method at most `size` bytes of it. Moves the file offset of `from`, which must be open for
/// reading; `to` must be open for writing, without `O_APPEND`.
pub fn file_data(from: BorrowedFd<'_>, to: BorrowedFd<'_>, size: u64) -> Result<Method, Errno> {
    match reflink(from, to)? {
        true => Ok(Method::Reflink),
        false => file_data_watched(from, to, size, &mut |_| ControlFlow::Continue(())),
    }
}

/// Copies the content of `from` to the empty file `to` without trying a reflink, in steps.
///
/// After each step `progress` is told how many bytes it brought; when it breaks off, the result is `ECANCELED` and `to`
/// holds a part. Otherwise like [`file_data`].
pub fn file_data_watched(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    size: u64,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Method, Errno> {
    let mut copier = Copier { from, to, method: Method::CopyRange, buffer: Vec::new(), progress };
    let mut at = 0;
    let mut hole_at_end = size == 0;
    while at < size {
        let Some((start, end)) = next_data(from, at, size)? else {
            hole_at_end = true;
            break;
        };
        let copied = copier.range(start, end)?;
        hole_at_end = copied < end;
        at = end;
    }
    // A hole at the end, or an end that is not there any more, leaves no other trace than the size.
    if hole_at_end && size > 0 {
        calls::ftruncate(to, size)?;
    }
    Ok(copier.method)
}

/// Copies `start..end` of `from` to the same place in `to`, up to the end of `from` if that comes first; where it stopped.
pub fn file_range(from: BorrowedFd<'_>, to: BorrowedFd<'_>, start: u64, end: u64) -> Result<u64, Errno> {
    let progress = &mut |_| ControlFlow::Continue(());
    Copier { from, to, method: Method::CopyRange, buffer: Vec::new(), progress }.range(start, end)
}

/// Where `from`, of this size, has data, in order; `None` where that is in more than `most` places.
pub fn data_ranges(from: BorrowedFd<'_>, size: u64, most: usize) -> Result<Option<Vec<Range<u64>>>, Errno> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size
        && let Some((start, end)) = next_data(from, at, size)?
    {
        if ranges.len() == most {
            return Ok(None);
        }
        ranges.push(start..end);
        at = end;
    }
    Ok(Some(ranges))
}

/// Whether a file shares the blocks of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// It does.
    Shared,
    /// These two files cannot.
    NotThese,
    /// No files of these two file systems can.
    Never,
}

/// Makes `to` share the blocks of `from`; false where these file systems or files cannot.
pub fn reflink(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<bool, Errno> {
    share(from, to).map(|sharing| sharing == Sharing::Shared)
}

/// Makes `to` share the blocks of `from`, if these file systems and files can.
pub fn share(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<Sharing, Errno> {
    match calls::ioctl_ficlone(to, from) {
        Ok(()) => Ok(Sharing::Shared),
        Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::NOTTY | Errno::NOSYS) => Ok(Sharing::Never),
        // A kind of file it does not share, a swap file, an immutable or append-only one, a security module: all of
        // them leave an ordinary copy possible, or that says itself why not.
        Err(Errno::INVAL | Errno::PERM | Errno::ACCESS | Errno::TXTBSY) => Ok(Sharing::NotThese),
        Err(e) => Err(e),
    }
}

/// Writes all of these bytes to `to`, from an offset on.
pub fn write_all_at(to: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> Result<(), Errno> {
    let mut written = 0;
    while written < bytes.len() {
        written += match calls::pwrite(to, &bytes[written..], offset + written as u64)? {
            0 => return Err(Errno::IO),
            n => n,
        };
    }
    Ok(())
}

/// The next range of data at or after `at`, cut at `size`; `None` where only a hole follows.
///
/// Asked first where the next hole is: for a file without holes that is all there is to ask.
fn next_data(from: BorrowedFd<'_>, at: u64, size: u64) -> Result<Option<(u64, u64)>, Errno> {
    let hole = |at| match calls::seek(from, SeekFrom::Hole(at)) {
        Ok(hole) => Ok(hole.min(size)),
        // A file system that knows no holes, or a file that was truncated since: reading finds out what there is.
        Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => Ok(size),
        Err(e) => Err(e),
    };
    let end = hole(at)?;
    if end > at {
        return Ok(Some((at, end)));
    }
    let start = match calls::seek(from, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        Err(e) => return Err(e),
    };
    if start >= size {
        return Ok(None);
    }
    // A file that shrinks and grows under us must not hold us here for ever.
    let end = hole(start)?;
    Ok(Some((start, if end > start { end } else { size })))
}

struct Copier<'a> {
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    /// The weakest method that was needed so far.
    method: Method,
    /// Empty until reading and writing is needed.
    buffer: Vec<u8>,
    progress: &'a mut dyn FnMut(u64) -> ControlFlow<()>,
}

impl Copier<'_> {
    /// Copies `start..end`, or up to the end of the source if that comes first; where it stopped.
    fn range(&mut self, start: u64, end: u64) -> Result<u64, Errno> {
        let mut at = start;
        while at < end {
            let n = self.step(at, (end - at).min(STEP))?;
            if n == 0 {
                break;
            }
            at += n;
            if (self.progress)(n).is_break() {
                return Err(Errno::CANCELED);
            }
        }
        Ok(at)
    }

    /// Copies up to `len` bytes at `at`; 0 at the end of the source.
    fn step(&mut self, at: u64, len: u64) -> Result<u64, Errno> {
        if self.method == Method::CopyRange {
            let (mut read_at, mut write_at) = (at, at);
            let len = usize::try_from(len).unwrap_or(BUFFER);
            match calls::copy_file_range(self.from, Some(&mut read_at), self.to, Some(&mut write_at), len) {
                Ok(n) if n > 0 => return Ok(n as u64),
                // 0 is the end of the source, or one of those files that copy_file_range(2) takes for empty; reading
                // tells which.
                Ok(_) => {}
                Err(
                    Errno::XDEV
                    | Errno::INVAL
                    | Errno::NOSYS
                    | Errno::OPNOTSUPP
                    | Errno::PERM
                    | Errno::TXTBSY
                    | Errno::BADF,
                ) => {}
                Err(e) => return Err(e),
            }
        }
        self.read_write(at, len)
    }

    fn read_write(&mut self, at: u64, len: u64) -> Result<u64, Errno> {
        self.buffer.resize(BUFFER, 0);
        let len = usize::try_from(len).unwrap_or(BUFFER).min(BUFFER);
        let n = calls::pread(self.from, &mut self.buffer[..len], at)?;
        if n > 0 {
            self.method = Method::ReadWrite;
        }
        write_all_at(self.to, &self.buffer[..n], at)?;
        Ok(n as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn copy_of(from: &File) -> (Method, File) {
        let to = tempfile::tempfile().unwrap();
        let size = from.metadata().unwrap().len();
        (file_data(from.as_fd(), to.as_fd(), size).unwrap(), to)
    }

    fn content(mut file: &File) -> Vec<u8> {
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn bytes_come_over() {
        for size in [0, 1, 4096, 1_000_003] {
            let mut from = tempfile::tempfile().unwrap();
            let bytes: Vec<u8> = (0..size).map(|i: u32| (i % 251) as u8).collect();
            from.write_all(&bytes).unwrap();
            assert_eq!(content(&copy_of(&from).1), bytes, "{size}");
        }
    }

    #[test]
    fn holes_stay_holes() {
        let mut from = tempfile::tempfile().unwrap();
        from.seek(std::io::SeekFrom::Start(64 << 20)).unwrap();
        from.write_all(b"end").unwrap();
        from.set_len(128 << 20).unwrap();
        let (_, to) = copy_of(&from);
        let stat = to.metadata().unwrap();
        assert_eq!(stat.len(), 128 << 20);
        assert!(stat.blocks() * 512 < 1 << 20, "{} blocks", stat.blocks());
        let mut word = [0; 3];
        rustix::io::pread(&to, &mut word, 64 << 20).unwrap();
        assert_eq!(&word, b"end");
    }

    #[test]
    fn another_file_system_is_read_and_written() {
        // memfd lives on the kernel's internal tmpfs: neither reflink nor copy_file_range crosses over.
        let mut from = File::from(rustix::fs::memfd_create("a", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        from.write_all(&[7; 600_000]).unwrap();
        let (method, to) = copy_of(&from);
        assert_eq!(method, Method::ReadWrite);
        assert_eq!(content(&to), [7; 600_000]);
    }

    #[test]
    fn breaking_off_says_so() {
        let mut from = tempfile::tempfile().unwrap();
        from.write_all(b"x").unwrap();
        let to = tempfile::tempfile().unwrap();
        let result = file_data_watched(from.as_fd(), to.as_fd(), 1, &mut |_| ControlFlow::Break(()));
        assert_eq!(result, Err(Errno::CANCELED));
    }

    #[test]
    fn a_source_that_shrank_ends_early() {
        let mut from = tempfile::tempfile().unwrap();
        from.write_all(b"abc").unwrap();
        let to = tempfile::tempfile().unwrap();
        file_data_watched(from.as_fd(), to.as_fd(), 10, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(content(&to), b"abc\0\0\0\0\0\0\0");
    }
}
