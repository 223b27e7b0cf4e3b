//! A directory in the temporary directory of the system, gone with its value.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{CWD, Mode};

use crate::error::{Context, Result};
use crate::layer::staging::remove_tree;
use crate::sys::{At, calls};

/// The directory, by its path.
#[derive(Debug)]
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    /// Makes one that is empty, for ourselves alone.
    pub(crate) fn new(purpose: &str) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (process, n) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("treefork-{purpose}-{process}-{n}"));
        calls::mkdir(&path, Mode::from_raw_mode(0o700)).context("cannot make the directory", &path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // In the temporary directory of the system, which is cleaned anyway.
        let _ = remove_tree(At::new(&CWD, &self.0));
    }
}
