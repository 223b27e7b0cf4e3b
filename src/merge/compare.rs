//! The parent's present state against what the fork saw, and whether two objects are the same.

use std::ffi::{OsStr, OsString};
use std::io::Read;

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::Os;
use super::changes::is_dir;
use super::table::Theirs;
use crate::layer::ledger::BaseState;
use crate::layer::marks;
use crate::sys::calls::File;
use crate::sys::{At, Stat};

/// What became of an object whose state the fork noted as `was` (`None`: there was none).
pub(crate) fn theirs(was: Option<&BaseState>, present: Option<&Stat>) -> Theirs {
    let (was, present) = match (was, present) {
        (None, None) => return Theirs::Nothing,
        (None, Some(stat)) if stat.is_dir() => return Theirs::AppearedDir,
        (None, Some(_)) => return Theirs::Appeared,
        (Some(_), None) => return Theirs::Gone,
        (Some(was), Some(present)) => (was, present),
    };
    if FileType::from_raw_mode(was.mode) != present.file_type() {
        Theirs::Retyped
    } else if is_dir(was.mode) {
        // Times and size of a directory change with its entries, which are looked at one by one.
        if was.mode == present.mode { Theirs::Same } else { Theirs::Attributes }
    } else if !same_content(was, present) {
        Theirs::Content
    } else if was.mode == present.mode && was.ctime == present.ctime {
        Theirs::Same
    } else if was.mode == present.mode {
        Theirs::Touched
    } else {
        Theirs::Attributes
    }
}

/// Whether the object's content is most likely what it was: the same object, of the same size and time.
pub(crate) fn same_content(was: &BaseState, present: &Stat) -> bool {
    was.ident == present.ident() && was.size == present.size && was.mtime == present.mtime
}

/// Whether two objects that are no directories are the same in everything but times, names and numbers.
pub(crate) fn same_object(a: At<'_>, a_stat: &Stat, b: At<'_>, b_stat: &Stat) -> Os<bool> {
    Ok(a_stat.mode == b_stat.mode && same_data(a, a_stat, b, b_stat)? && same_owner(a, a_stat, b, b_stat)?)
}

/// Whether two objects have the same type and content.
pub(crate) fn same_data(a: At<'_>, a_stat: &Stat, b: At<'_>, b_stat: &Stat) -> Os<bool> {
    if a_stat.file_type() != b_stat.file_type() {
        return Ok(false);
    }
    match a_stat.file_type() {
        FileType::RegularFile => Ok(a_stat.size == b_stat.size && same_bytes(a, b)?),
        FileType::Symlink => Ok(a.readlink()? == b.readlink()?),
        FileType::CharacterDevice | FileType::BlockDevice => Ok(a_stat.rdev == b_stat.rdev),
        _ => Ok(true),
    }
}

/// Whether two objects have the same owner, group and extended attributes.
pub(crate) fn same_owner(a: At<'_>, a_stat: &Stat, b: At<'_>, b_stat: &Stat) -> Os<bool> {
    Ok((a_stat.uid, a_stat.gid) == (b_stat.uid, b_stat.gid) && attributes(a)? == attributes(b)?)
}

/// The extended attributes of an object that belong to it: not our marks, not the label of a security module, which
/// depends on the place.
pub(crate) fn attributes(at: At<'_>) -> Os<Vec<(OsString, Vec<u8>)>> {
    let mut all = Vec::new();
    for name in at.xattrs()? {
        if !skip(&name) {
            // None: removed since it was listed.
            all.extend(at.xattr(&name)?.map(|value| (name, value)));
        }
    }
    all.sort_unstable();
    Ok(all)
}

/// Attributes that a merge neither compares nor brings over.
pub(crate) fn skip(name: &OsStr) -> bool {
    marks::is_ours(name) || name == "security.selinux" || name == "system.nfs4_acl"
}

/// Opens a regular file for reading; a FIFO that took its place does not block.
pub(crate) fn open_file(at: At<'_>) -> Os<File> {
    Ok(File::from(at.open_quiet(OFlags::RDONLY | OFlags::NONBLOCK)?))
}

/// The content of a regular file.
pub(crate) fn read_all(at: At<'_>) -> Os<Vec<u8>> {
    open_file(at)?.rest()
}

fn same_bytes(a: At<'_>, b: At<'_>) -> Os<bool> {
    const CHUNK: usize = 128 << 10;
    let (mut a, mut b) = (open_file(a)?, open_file(b)?);
    let (mut left, mut right) = (vec![0; CHUNK], vec![0; CHUNK]);
    loop {
        let n = fill(&mut a, &mut left)?;
        let m = fill(&mut b, &mut right)?;
        if left[..n] != right[..m] {
            return Ok(false);
        }
        if n == 0 {
            return Ok(true);
        }
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut File, buffer: &mut [u8]) -> Os<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Errno::from_io_error(&e).unwrap_or(Errno::IO)),
        }
    }
    Ok(filled)
}
