//! What is fuzzed: functions of any bytes that must neither panic nor hang, and whose promises must hold.
//!
//! `cargo fuzz` runs them from `fuzz/`, for as long as somebody lets it; the tests beside this folder run them over the
//! kept seeds and some thousand inputs derived from these. So nothing here uses what the other tests share.

pub(crate) mod marks;
pub(crate) mod protocol;
pub(crate) mod records;
pub(crate) mod repository;
pub(crate) mod text;
pub(crate) mod upper;

use std::fs;
use std::path::{Path, PathBuf};

/// A directory of its own for each thread, made once and gone with the thread.
pub(crate) fn scratch() -> PathBuf {
    thread_local!(static DIR: tempfile::TempDir = tempfile::tempdir().expect("there is room"));
    DIR.with(|dir| dir.path().to_path_buf())
}

/// Writes what is to be read.
fn put(path: &Path, data: &[u8]) {
    fs::write(path, data).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}
