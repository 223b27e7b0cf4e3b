//! The file system of a fork, by inode, knowing nothing of FUSE.
//!
//! An [`Overlay`] is made of lower layers and an upper; every method is one operation that a kernel asks for, on nodes
//! named by number. There are no open files here: whoever drives it holds nodes (by looking them up, until it forgets
//! them), and reading, writing and syncing go to the node. That is the shape of a FUSE session in which `OPEN` and
//! `OPENDIR` are answered `ENOSYS`, so that the kernel keeps its caches and asks nothing when files are opened.

use std::ffi::OsStr;
use std::time::Duration;

use rustix::io::Errno;

use crate::sys::{Stat, Time};

/// The number of the root node.
pub const ROOT: u64 = 1;

/// What an operation returns: a value, or the errno that the caller gets to see.
pub type Result<T> = std::result::Result<T, Errno>;

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
    fn node(&self, node: u64, data: bool);
}
