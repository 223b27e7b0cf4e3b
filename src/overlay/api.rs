//! The words in which the overlay is asked, and answers.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::{FdCache, Large};
use crate::layer::hidden::Hidden;
use crate::layer::watch::Watch;
use crate::sys::{Stat, Time};

/// On whose behalf an operation runs.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// User, as the file system checks it.
    pub uid: u32,
    /// Group, as the file system checks it.
    pub gid: u32,
}

/// The attributes that a node shows. `ino` is the number for `st_ino`.
pub type Attr = Stat;

/// A node that a lookup or a creation found, with how long the kernel may believe it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The number by which later operations name the node. Each `Entry` handed out counts as one lookup.
    pub node: u64,
    /// Tells apart two objects that had the same number, one after the other.
    pub generation: u64,
    /// The attributes.
    pub attr: Attr,
    /// How long the name may be believed.
    pub entry_ttl: Duration,
    /// How long the attributes may be believed.
    pub attr_ttl: Duration,
}

/// The answer to a lookup.
#[derive(Clone, Copy, Debug)]
pub enum Lookup {
    /// There is such an entry.
    Found(Entry),
    /// There is none, and that may be believed so long.
    Absent(Duration),
}

/// A new value for a time stamp.
#[derive(Clone, Copy, Debug)]
pub enum SetTime {
    /// The current time.
    Now,
    /// This time.
    To(Time),
}

/// What `setattr` is to change; `None` leaves a field alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// Permission bits (with or without the type, which is ignored).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the content.
    pub mtime: Option<SetTime>,
}

impl SetAttr {
    pub(super) fn is_empty(&self) -> bool {
        let Self { mode, uid, gid, size, atime, mtime } = self;
        let owner = uid.is_none() && gid.is_none();
        owner && mode.is_none() && size.is_none() && atime.is_none() && mtime.is_none()
    }
}

/// One entry of a directory listing.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// The number that `st_ino` of the entry shows.
    pub ino: u64,
    /// The type, as in the type bits of a mode.
    pub kind: rustix::fs::FileType,
    /// The name.
    pub name: &'a OsStr,
    /// The offset to go on from after this entry. It stays valid while the directory changes.
    pub next: u64,
}

/// How the overlay tells the kernel (or whoever caches on top) that something changed without being asked to.
///
/// Called from the thread that noticed the change, never from inside an operation, and with no lock held.
pub trait Invalidate: Send + Sync {
    /// The name `name` in `parent` means something else now, or nothing.
    fn entry(&self, parent: u64, name: &OsStr);
    /// Attributes (and with `data` also the cached content or listing) of `node` are out of date.
    ///
    /// Says nothing to a lookup whose answer is still on its way: [`settle`](Self::settle) first.
    fn node(&self, node: u64, data: bool);
    /// Returns once every answer to a lookup in `dir` that was under way has arrived, so that what it brought can be
    /// taken back.
    fn settle(&self, dir: u64);
}

/// A lower layer to read through.
#[derive(Debug)]
pub struct Lower {
    /// Its root (`O_PATH`), opened before the fork is mounted.
    pub root: OwnedFd,
    /// Whether it is in overlay format; the base of a fork is not.
    pub marked: bool,
    /// Whether it is a layer of a container image, with whiteouts that are files named `.wh.NAME`.
    pub image: bool,
    /// Whether to follow changes from outside.
    pub watch: bool,
}

/// What an overlay is made of.
#[derive(Debug)]
pub struct Config {
    /// The lower layers, top first, the base last; at least one.
    pub lowers: Vec<Lower>,
    /// The root of the upper (`O_PATH`); `None` for a read-only file system.
    pub upper: Option<OwnedFd>,
    /// The work area, on the file system of the upper; needed with an upper.
    pub work: Option<OwnedFd>,
    /// Notices changes from outside; shared by all forks of a process. Without one, what is to be followed is believed for
    /// moments only.
    pub watch: Option<Arc<Watch>>,
    /// Descriptors kept open; shared by all forks of a process.
    pub fds: Arc<FdCache>,
    /// When the fork was created (real time). With it the root of a new upper takes over the attributes of the base's
    /// root, and a base object changed since then counts as drift.
    pub created: Option<Time>,
    /// The device number that the base had when the upper was begun, where that may be another one by now. The marks of
    /// origin in the upper speak of the base's device by this number for ever.
    pub made_on: Option<u64>,
    /// Which names of the lowers are not shown.
    pub hidden: Hidden,
    /// What counts as a large file.
    pub large: Large,
}
