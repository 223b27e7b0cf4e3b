//! Putting right what a fork may not share with its base's repository: [`own::fixes`] done to a copy, or to the upper
//! layer of an overlay that is about to be mounted.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{OFlags, Timestamps};
use rustix::io::Errno;

use crate::copy;
use crate::error::{Context, Result};
use crate::git::own::{self, Fix};
use crate::layer::marks::{self, Origin};
use crate::names::RelPath;
use crate::sys::{At, open_beneath, open_root};

/// Makes the fixes in a copied tree. The times of the directories that they stand in stay as they were.
pub(super) fn in_copy(fixes: &[Fix], tree: &Path, reflink: bool) -> Result<()> {
    for fix in fixes {
        let path = tree.join(fix.at());
        let parent = path.parent().unwrap_or(tree);
        let before = fs::metadata(parent).context("cannot look at", parent)?;
        match fix {
            Fix::Own { repo, .. } => {
                clear(&path)?;
                own::build(repo, &path, reflink)?;
            }
            Fix::Write { content, .. } => fs::write(&path, content).context("cannot write", &path)?,
        }
        let times = fs::FileTimes::new().set_accessed(before.accessed().context("no time of", parent)?);
        let times = times.set_modified(before.modified().context("no time of", parent)?);
        let dir = fs::File::open(parent).context("cannot open", parent)?;
        dir.set_times(times).context("cannot set the times of", parent)?;
    }
    Ok(())
}

/// Makes the fixes in an empty upper layer, as if they had been written through the fork.
///
/// For a base that has its git directory where it belongs this does nothing, and the upper stays empty. The cost
/// otherwise is that of copying the repository.
pub fn in_upper(fixes: &[Fix], base: &Path, upper: &Path, reflink: bool) -> Result<()> {
    let lower = open_root(base).context("cannot open", base)?;
    let root = open_root(upper).context("cannot open", upper)?;
    for fix in fixes {
        let at = fix.at();
        let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else { continue };
        let dir = directories(&lower, &root, &parent).context("cannot make in the upper layer", &parent)?;
        let path = upper.join(at);
        match fix {
            Fix::Own { repo, .. } => {
                own::build(repo, &path, reflink)?;
                marks::set_opaque(At::new(&dir, name)).context("cannot mark", &path)?;
            }
            Fix::Write { content, .. } => {
                fs::write(&path, content).context("cannot write", &path)?;
                like_lower(&lower, at, At::new(&dir, name)).context("cannot set the attributes of", &path)?;
            }
        }
    }
    Ok(())
}

/// Makes the directories of a path in the upper, each like its lower one, and opens the last.
fn directories(lower: &OwnedFd, root: &OwnedFd, path: &RelPath) -> std::result::Result<OwnedFd, rustix::io::Errno> {
    let mut dir = At::new(root, ".").open(OFlags::PATH | OFlags::DIRECTORY)?;
    let mut here = RelPath::root();
    for name in path.as_path().iter() {
        here = here.join(name);
        let entry = At::new(&dir, name);
        match entry.mkdir(0o700) {
            Ok(()) => {
                like_lower(lower, &here, entry)?;
                let stat = lower_stat(lower, &here)?;
                let origin = Origin { ident: stat.ident(), dev: stat.dev, indexed: false, ctime: Some(stat.ctime) };
                marks::set_origin(entry, &origin)?;
                let times = Timestamps { last_access: stat.atime.into(), last_modification: stat.mtime.into() };
                entry.utimens(&times)?;
            }
            Err(Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
        dir = entry.open(OFlags::PATH | OFlags::DIRECTORY)?;
    }
    Ok(dir)
}

fn lower_stat(lower: &OwnedFd, path: &RelPath) -> std::result::Result<crate::sys::Stat, rustix::io::Errno> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::INVAL) };
    At::new(&open_beneath(lower, &parent, OFlags::PATH | OFlags::DIRECTORY)?, name).stat()
}

fn like_lower(lower: &OwnedFd, path: &RelPath, to: At<'_>) -> std::result::Result<(), rustix::io::Errno> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::INVAL) };
    let parent = open_beneath(lower, &parent, OFlags::PATH | OFlags::DIRECTORY)?;
    let from = At::new(&parent, name);
    copy::metadata(from, to, &from.stat()?, |attribute: &OsStr| marks::is_ours(attribute))
}

/// Removes whatever is at a path of a copy that is being made.
fn clear(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(stat) if stat.is_dir() => fs::remove_dir_all(path).context("cannot remove", path),
        Ok(_) => fs::remove_file(path).context("cannot remove", path),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e).context("cannot look at", path),
    }
}

/// Whether two paths lie on one file system, as far as device numbers tell.
pub(super) fn same_device(a: &Path, b: &Path) -> bool {
    let dev = |path: &Path| fs::metadata(path).map(|stat| stat.dev()).ok();
    dev(a).is_some() && dev(a) == dev(b)
}

/// The sentence about a git directory that was made for the fork.
pub(super) fn own_git(fix: &Fix) -> Option<String> {
    let Fix::Own { at, repo } = fix else { return None };
    let (at, common) = (at.as_path(), &repo.common_dir);
    Some(format!("{at:?} is a git directory of the fork's own, copied whole from {common:?}"))
}
