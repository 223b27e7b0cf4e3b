//! The tree that receives a merge, looked at by path: beneath its root, through no symbolic link, across no mount.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::Os;
use super::dirs::LastDir;
use super::table::Reason;
use crate::error::{Context, Result};
use crate::names::RelPath;
use crate::sys::{At, Stat, calls, mount_id, open_on_mount};

/// What a path of the parent leads to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    /// To this.
    There(Stat),
    /// To nothing, in a directory that is there.
    Absent,
    /// Nowhere: for this reason nothing can be put there either.
    Blocked(Reason),
}

impl Found {
    /// The attributes, if something is there.
    pub(crate) fn stat(self) -> Option<Stat> {
        match self {
            Found::There(stat) => Some(stat),
            Found::Absent | Found::Blocked(_) => None,
        }
    }
}

/// The parent of a merge.
#[derive(Debug)]
pub(crate) struct Parent {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// Its root, open for reading.
    pub(crate) root: OwnedFd,
    /// Attributes of the root.
    pub(crate) stat: Stat,
    /// The mount that the root is on.
    pub(crate) mount: u64,
    /// The directory opened last: changes come directory by directory.
    last: LastDir,
}

const DIR: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW);

/// What helps where the parent is not at its place.
const MOVED: &str = "if it has moved, bring it back to its place";

impl Parent {
    /// Opens the tree at `path`, links in that path followed.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let cannot = "cannot open the parent";
        let path = std::fs::canonicalize(path).context(cannot, path).map_err(|e| e.remedy(MOVED))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = calls::open(&path, flags, rustix::fs::Mode::empty()).context(cannot, &path)?;
        let stat = Stat::of(root.as_fd()).context(cannot, &path)?;
        let mount = mount_id(root.as_fd()).context(cannot, &path)?;
        Ok(Self { path, root, stat, mount, last: LastDir::default() })
    }

    /// Opens a directory of it (`O_PATH`). `ELOOP`, `ENOTDIR` or `ENOENT` where there is none, `EXDEV` where another
    /// file system or mount is there.
    pub(crate) fn dir(&self, path: &RelPath) -> Os<Rc<OwnedFd>> {
        self.last.get(path, || {
            let fd = open_on_mount(&self.root, path, DIR)?;
            // A subvolume of btrfs is another device on the same mount.
            if Stat::of(fd.as_fd())?.dev == self.stat.dev { Ok(fd) } else { Err(Errno::XDEV) }
        })
    }

    /// Forgets the directory opened last: names have moved.
    pub(crate) fn forget(&self) {
        self.last.forget();
    }

    /// Calls `body`, which changes names, with the entry that a path means right now: its directory is opened for this
    /// one call, since one that was kept open could have been moved out of the parent meanwhile.
    pub(crate) fn with_fresh<T>(&self, path: &RelPath, body: impl FnOnce(At<'_>) -> Os<T>) -> Os<T> {
        match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) if parent.is_root() => body(At::new(&self.root, name)),
            (Some(parent), Some(name)) => body(At::new(&open_on_mount(&self.root, &parent, DIR)?, name)),
            _ => body(At::new(&self.root, ".")),
        }
    }

    /// Calls `body` with the entry that a path means.
    pub(crate) fn with<T>(&self, path: &RelPath, body: impl FnOnce(At<'_>) -> Os<T>) -> Os<T> {
        match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => body(At::new(&*self.dir(&parent)?, name)),
            _ => body(At::new(&self.root, ".")),
        }
    }

    /// What a path leads to.
    pub(crate) fn look(&self, path: &RelPath) -> Os<Found> {
        match self.with(path, |at| at.stat()) {
            Ok(stat) if stat.dev != self.stat.dev || (stat.mount_root && !path.is_root()) => {
                Ok(Found::Blocked(Reason::OtherFileSystem))
            }
            Ok(stat) => Ok(Found::There(stat)),
            Err(Errno::NOENT) => {
                let parent = path.parent().unwrap_or_default();
                match self.dir(&parent) {
                    Ok(_) => Ok(Found::Absent),
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(Found::Blocked(Reason::NoDirectory)),
                    Err(Errno::XDEV) => Ok(Found::Blocked(Reason::OtherFileSystem)),
                    Err(e) => Err(e),
                }
            }
            Err(Errno::NOTDIR | Errno::LOOP) => Ok(Found::Blocked(Reason::NoDirectory)),
            Err(Errno::XDEV) => Ok(Found::Blocked(Reason::OtherFileSystem)),
            Err(e) => Err(e),
        }
    }
}
