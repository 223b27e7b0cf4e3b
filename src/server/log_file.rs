//! The server's log: two files of bounded size.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::error::{Context, Result};

/// Past this many bytes the log becomes `server.log.1` and a new one is begun.
const LIMIT: u64 = 1024 * 1024;

/// Opens the log for appending, after moving a long one aside.
pub(super) fn open(store: &Path) -> Result<File> {
    LogFile::new(store).map(|log| log.file)
}

/// The server's log, for a logger to write to.
pub struct LogFile {
    path: PathBuf,
    file: File,
    size: u64,
}

impl LogFile {
    /// Opens the log of the store at this path.
    pub fn new(store: &Path) -> Result<Self> {
        let path = store.join("server.log");
        Self::at(path.clone()).context("cannot open the log", path)
    }

    fn at(path: PathBuf) -> io::Result<Self> {
        let file = File::options().append(true).create(true).mode(0o600).open(&path)?;
        let size = file.metadata()?.len();
        let mut log = Self { path, file, size };
        log.bound()?;
        Ok(log)
    }

    fn bound(&mut self) -> io::Result<()> {
        if self.size > LIMIT {
            std::fs::rename(&self.path, self.path.with_extension("log.1"))?;
            *self = Self::at(self.path.clone())?;
        }
        Ok(())
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bound()?;
        let n = self.file.write(bytes)?;
        self.size += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_within_two_files() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut log = LogFile::new(dir.path()).expect("opens");
        let line = vec![b'x'; 64 * 1024];
        for _ in 0..40 {
            log.write_all(&line).expect("writes");
        }
        let sizes: Vec<u64> = ["server.log", "server.log.1"]
            .iter()
            .map(|name| std::fs::metadata(dir.path().join(name)).expect("there").len())
            .collect();
        assert!(sizes.iter().all(|&size| size <= LIMIT + 64 * 1024), "{sizes:?}");
        assert_eq!(std::fs::read_dir(dir.path()).expect("listable").count(), 2);
    }
}
