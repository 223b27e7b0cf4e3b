//! Going through directories, in the order of names.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{FileType, OFlags};

use super::Os;
use crate::names::RelPath;
use crate::sys::calls::Dir;
use crate::sys::open_beneath;

/// The names in a directory, in the order of their bytes.
pub(crate) fn names(dir: &OwnedFd) -> Os<Vec<OsString>> {
    Ok(typed_names(dir)?.into_iter().map(|(name, _)| name).collect())
}

/// The names in a directory, in the order of their bytes, with the types that the listing gives.
fn typed_names(dir: &OwnedFd) -> Os<Vec<(OsString, FileType)>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push((OsStr::from_bytes(name).to_os_string(), entry.file_type()));
        }
    }
    names.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    Ok(names)
}

/// Goes through all below a directory, from the top down and in the order of names. `visit` gets name, type as far as the
/// listing tells it, directory and path of each entry, and opens what is to be entered.
///
/// No recursion: a fork's tree may be deeper than the stack of whoever merges it.
pub(super) fn walk(
    top: &OwnedFd,
    mut visit: impl FnMut(&OsStr, FileType, &OwnedFd, RelPath) -> Os<Option<(OwnedFd, RelPath)>>,
) -> Os<()> {
    let listed = |dir: OwnedFd, path: RelPath| Ok((typed_names(&dir)?.into_iter(), dir, path));
    let mut way = vec![listed(open_dir(top)?, RelPath::root())?];
    while let Some((names, dir, path)) = way.last_mut() {
        let Some((name, kind)) = names.next() else {
            way.pop();
            continue;
        };
        if let Some((below, path)) = visit(&name, kind, dir, path.deeper(&name)?)? {
            way.push(listed(below, path)?);
        }
    }
    Ok(())
}

/// Opens a directory given by an `O_PATH` descriptor for reading.
pub(crate) fn open_dir(dir: &OwnedFd) -> Os<OwnedFd> {
    open_beneath(dir, &RelPath::root(), OFlags::RDONLY | OFlags::DIRECTORY)
}
