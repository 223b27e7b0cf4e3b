//! A lower layer: a directory tree that is only read.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::marks::{self, DirMarks};
use crate::names::RelPath;
use crate::sys::calls::Dir;
use crate::sys::{At, Ident, Stat, open_beneath};

/// A lower layer.
#[derive(Debug)]
pub struct Layer {
    /// The root directory (`O_PATH`).
    pub root: OwnedFd,
    /// The file system it is on.
    pub dev: u64,
    /// Whether it is in overlay format. The base is not: there a character device 0:0 is one, and no attribute of it
    /// means anything to us.
    pub marked: bool,
    /// Whether it is a layer of a container image as tools keep them that mount through a program: whiteouts are files
    /// named `.wh.NAME`. Elsewhere such names are like all others.
    pub image: bool,
    /// Whether changes from outside are followed.
    pub watch: bool,
    /// A number of its own, unique in the process.
    pub id: u32,
    /// Of a preserved layer: the attributes that base objects had when they were preserved, by their identity then.
    pub overrides: HashMap<Ident, Stat>,
}

impl Layer {
    /// A layer with this root.
    pub fn new(root: OwnedFd, marked: bool, watch: bool) -> Result<Self, Errno> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let dev = Stat::of(root.as_fd())?.dev;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Self { root, dev, marked, image: false, watch, id, overrides: HashMap::new() })
    }

    /// The whiteout that stands in it for a name, in the form of container images.
    pub fn image_whiteout(&self, at: At<'_>) -> Result<Option<Stat>, Errno> {
        if self.image { At { name: &marks::image_whiteout(at.name), ..at }.try_stat() } else { Ok(None) }
    }

    /// What the entry of a name is; marks are none.
    pub fn entry(&self, at: At<'_>) -> Result<Option<Stat>, Errno> {
        if self.image && marks::image_mark(at.name).is_some() { Ok(None) } else { at.try_stat() }
    }

    /// The marks of an entry.
    pub fn dir_marks(&self, at: At<'_>, stat: &Stat) -> Result<DirMarks, Errno> {
        if !stat.is_dir() {
            return Ok(DirMarks::default());
        }
        let mut marks = if self.marked { DirMarks::read(at)? } else { DirMarks::default() };
        if self.image {
            let dir = at.open(OFlags::PATH | OFlags::DIRECTORY)?;
            marks.opaque |= At::new(&dir, marks::IMAGE_OPAQUE).try_stat()?.is_some();
        }
        Ok(marks)
    }

    /// Whether it holds what a merge preserved.
    pub fn is_preserved(&self) -> bool {
        !self.overrides.is_empty()
    }

    /// What an object of the layer shows, whose attributes on disk are `stat`.
    ///
    /// In a preserved layer an object stands for one of the base as it was: itself, moved aside, or what its mark of
    /// origin names (the shells of directories, and copies where the store is on another file system).
    pub fn shown(&self, at: At<'_>, stat: Stat) -> Result<Stat, Errno> {
        if !self.is_preserved() {
            return Ok(stat);
        }
        if let Some(shown) = self.overrides.get(&stat.ident()) {
            return Ok(*shown);
        }
        let carries_marks = stat.is_dir() || stat.is_file();
        let origin = if carries_marks { marks::read_origin(at)? } else { None };
        Ok(origin.and_then(|origin| self.overrides.get(&origin.ident)).copied().unwrap_or(stat))
    }
}

/// The paths of what is in a directory below a root.
pub fn below(root: &impl AsFd, path: &RelPath) -> Result<Vec<RelPath>, Errno> {
    let dir = open_beneath(root, path, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut below = Vec::new();
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            below.push(path.join(name));
        }
    }
    Ok(below)
}
