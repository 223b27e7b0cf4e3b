//! Calls by whole paths, for directories whose entries are few. What cannot be told is an error, never an absence.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, Result};

/// The names in a directory, in no order.
pub fn names(dir: &Path) -> Result<Vec<OsString>> {
    let fd = super::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut names = Vec::new();
    for entry in super::Dir::read_from(&fd)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push(name.to_os_string());
        }
    }
    Ok(names)
}

/// The same; none where there is no such directory.
pub fn names_if_any(dir: &Path) -> Result<Vec<OsString>> {
    match names(dir) {
        Err(Errno::NOENT) => Ok(Vec::new()),
        other => other,
    }
}

/// Whether there is anything at a path; a symbolic link is something.
pub fn exists(path: &Path) -> Result<bool> {
    match super::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Makes a directory, and those above it that are missing; one that is there is left as it is.
pub fn make_dirs(path: &Path, mode: Mode) -> Result<()> {
    match super::mkdir(path, mode) {
        Err(Errno::EXIST) => Ok(()),
        Err(Errno::NOENT) => {
            make_dirs(path.parent().ok_or(Errno::NOENT)?, mode)?;
            make_dirs(path, mode)
        }
        other => other,
    }
}
