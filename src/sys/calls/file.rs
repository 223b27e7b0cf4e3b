//! A file that is read or written from one end to the other.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result};

/// `File` of the standard library, as far as the core needs it.
#[derive(Debug)]
pub struct File(OwnedFd);

impl File {
    /// Opens a file for reading.
    pub fn open(path: &Path) -> Result<Self> {
        super::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(Self)
    }

    /// Makes an empty file that only its owner may use, for writing; one that is there is emptied.
    pub fn create(path: &Path) -> Result<Self> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        super::open(path, flags, Mode::RUSR | Mode::WUSR).map(Self)
    }

    /// The whole content of the file at `path`.
    pub fn read(path: &Path) -> Result<Vec<u8>> {
        Self::open(path)?.rest()
    }

    /// All from the present place to the end.
    pub fn rest(&mut self) -> Result<Vec<u8>> {
        // Room for all of a small file: else reading begins with a few bytes and feels its way up.
        let mut bytes = Vec::with_capacity(8192);
        self.read_to_end(&mut bytes).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        Ok(bytes)
    }

    /// Writes all of it.
    pub fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match super::write(&self.0, bytes)? {
                0 => return Err(Errno::IO),
                n => bytes = &bytes[n..],
            }
        }
        Ok(())
    }
}

impl From<OwnedFd> for File {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Read for File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(super::read(&self.0, buffer)?)
    }
}

impl Read for &File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(super::read(&self.0, buffer)?)
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(super::write(&self.0, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
