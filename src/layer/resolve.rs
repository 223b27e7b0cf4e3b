//! What a name in a directory means, through the upper and the lowers.
//!
//! The upper decides first: an object there hides everything below, a whiteout says there is nothing, a directory shows
//! the lower directories of its name (or of its redirect) unless it is opaque. The lowers follow, top first; a
//! directory merges with the directories below it until something else stands in the way.

use std::ffi::{OsStr, OsString};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::hidden::Hidden;
use super::marks::{self, DirMarks, Origin};
use super::origins::Origins;
use super::tree::Layer;
use crate::names::RelPath;
use crate::sys::{At, Ident, Stat, open_beneath};

/// A directory in a lower layer.
#[derive(Clone, Debug)]
pub struct LowerDir {
    /// The layer.
    pub layer: Arc<Layer>,
    /// The path in it.
    pub path: RelPath,
    /// Which directory was there when it was found.
    pub ident: Ident,
}

/// What a name means.
#[derive(Clone, Debug)]
pub enum Found {
    /// Not a directory, in the upper.
    Upper {
        /// Its attributes there.
        stat: Stat,
        /// What it was copied from.
        origin: Option<Origin>,
    },
    /// Not a directory, in a lower layer.
    Lower {
        /// The layer.
        layer: Arc<Layer>,
        /// The path in it.
        path: RelPath,
        /// Its attributes.
        stat: Stat,
    },
    /// A directory.
    Dir {
        /// Attributes and marks in the upper, where it stands there.
        upper: Option<(Stat, DirMarks)>,
        /// The lower directories that show through, top first, and the attributes of the first.
        lowers: Vec<LowerDir>,
        /// Attributes of the first lower.
        top: Option<Stat>,
    },
}

/// What the upper itself says of a name.
#[expect(clippy::large_enum_variant, reason = "made and taken apart at once")]
enum Own {
    /// Nothing: the lowers decide.
    Nothing,
    /// There is no such name, whatever the lowers have.
    Whiteout,
    /// It has an entry.
    Entry(Found),
}

/// The upper directory that a name is looked up in.
#[derive(Clone, Copy, Debug)]
pub struct UpperDir<'a> {
    /// The directory.
    pub fd: BorrowedFd<'a>,
    /// Whether whiteouts in attribute form may stand in it.
    pub attribute_whiteouts: bool,
}

/// Says what a non-directory in the upper was copied from.
pub type OriginOf<'a> = dyn Fn(At<'_>, &Stat) -> Result<Option<Origin>, Errno> + 'a;

/// A directory being looked into: its place in the upper and in the lowers.
pub struct Scope<'a> {
    /// In the upper, if it stands there.
    pub upper: Option<UpperDir<'a>>,
    /// In the lowers.
    pub lowers: &'a [LowerDir],
    /// All lower layers, for redirects.
    pub layers: &'a [Arc<Layer>],
    /// Opens a lower directory, checked to be the one that was found.
    pub open: &'a dyn Fn(&LowerDir) -> Result<Arc<OwnedFd>, Errno>,
    /// The origin of a non-directory in the upper.
    pub origin: &'a OriginOf<'a>,
    /// Which names of the lowers are not shown.
    pub hidden: &'a Hidden,
}

impl Scope<'_> {
    /// What `name` means here.
    pub fn find(&self, name: &OsStr) -> Result<Option<Found>, Errno> {
        match self.own(name)? {
            Own::Entry(found) => Ok(Some(found)),
            Own::Whiteout => Ok(None),
            Own::Nothing => self.find_below(name),
        }
    }

    /// What `name` means here, and what it means in the lowers.
    pub fn find_both(&self, name: &OsStr) -> Result<(Option<Found>, Option<Found>), Errno> {
        let (own, below) = (self.own(name)?, self.find_below(name)?);
        Ok(match own {
            Own::Entry(found) => (Some(found), below),
            Own::Whiteout => (None, below),
            Own::Nothing => (below.clone(), below),
        })
    }

    /// What the upper says of `name`.
    fn own(&self, name: &OsStr) -> Result<Own, Errno> {
        let Some(upper) = self.upper else { return Ok(Own::Nothing) };
        let at = At { dir: upper.fd, name };
        let Some(stat) = at.try_stat()? else { return Ok(Own::Nothing) };
        if marks::of_upper(at, |at| marks::is_whiteout(at, &stat, upper.attribute_whiteouts))? {
            return Ok(Own::Whiteout);
        }
        if !stat.is_dir() {
            let origin = (self.origin)(at, &stat)?;
            return Ok(Own::Entry(Found::Upper { stat, origin }));
        }
        let marks = marks::of_upper(at, DirMarks::read)?;
        let (lowers, top) = if marks.opaque {
            (Vec::new(), None)
        } else if let Some(path) = &marks.redirect {
            dirs_at(self.layers, path)?
        } else {
            match self.find_below(name)? {
                Some(Found::Dir { lowers, top, .. }) => (lowers, top),
                _ => (Vec::new(), None),
            }
        };
        Ok(Own::Entry(Found::Dir { upper: Some((stat, marks)), lowers, top }))
    }

    /// What `name` means in the lowers alone: what the upper hides, or would show without its own entry.
    pub fn find_below(&self, name: &OsStr) -> Result<Option<Found>, Errno> {
        let Some(found) = self.merged_below(name)? else { return Ok(None) };
        Ok(if self.is_hidden(name, found.file_type())? { None } else { Some(found) })
    }

    /// Whether an entry of the lowers, of this type, is one that is not shown.
    pub fn is_hidden(&self, name: &OsStr, kind: FileType) -> Result<bool, Errno> {
        // The first lower has the name that the directory had when the fork was made.
        let Some(first) = self.lowers.first().filter(|_| !self.hidden.is_nothing()) else { return Ok(false) };
        self.hidden.hides(&first.path.join(name), kind, &|path| link_at(self.layers, path))
    }

    fn merged_below(&self, name: &OsStr) -> Result<Option<Found>, Errno> {
        let mut dirs: Vec<LowerDir> = Vec::new();
        let mut top = None;
        let mut redirect: Option<RelPath> = None;
        for lower in self.lowers {
            let (at_path, stat, shown, marks) = match &redirect {
                Some(path) => match see(&lower.layer, path)? {
                    Some(seen) if seen.whiteout => break,
                    Some(seen) => (path.clone(), seen.stat, seen.shown, seen.marks),
                    None => continue,
                },
                None => {
                    let dir = (self.open)(lower)?;
                    let at = At::new(&*dir, name);
                    let hides_below = lower.layer.image_whiteout(at)?.is_some();
                    let stat = match lower.layer.entry(at)? {
                        Some(stat) => stat,
                        None if hides_below => break,
                        None => continue,
                    };
                    if lower.layer.marked && marks::is_whiteout(at, &stat, true)? {
                        break;
                    }
                    let mut marks = lower.layer.dir_marks(at, &stat)?;
                    marks.opaque |= hides_below;
                    (lower.path.join(name), stat, lower.layer.shown(at, stat)?, marks)
                }
            };
            if !stat.is_dir() {
                if dirs.is_empty() {
                    return Ok(Some(Found::Lower { layer: Arc::clone(&lower.layer), path: at_path, stat: shown }));
                }
                break;
            }
            top.get_or_insert(shown);
            dirs.push(LowerDir { layer: Arc::clone(&lower.layer), path: at_path, ident: stat.ident() });
            if marks.opaque {
                break;
            }
            redirect = marks.redirect.or(redirect);
        }
        Ok(top.is_some().then_some(Found::Dir { upper: None, lowers: dirs, top }))
    }
}

impl Found {
    fn file_type(&self) -> FileType {
        match self {
            Found::Upper { stat, .. } | Found::Lower { stat, .. } => stat.file_type(),
            Found::Dir { .. } => FileType::Directory,
        }
    }
}

/// The target of the symbolic link at a path of the lower layers as they merge; `None` for anything else, or nothing.
fn link_at(layers: &[Arc<Layer>], path: &RelPath) -> Result<Option<OsString>, Errno> {
    let open =
        |dir: &LowerDir| open_beneath(&dir.layer.root, &dir.path, OFlags::PATH | OFlags::DIRECTORY).map(Arc::new);
    let (mut lowers, _) = dirs_at(layers, &RelPath::root())?;
    let mut names = path.as_path().iter().peekable();
    while let Some(name) = names.next() {
        let hidden = &Hidden::default();
        let scope = Scope { upper: None, lowers: &lowers, layers, open: &open, origin: &|_, _| Ok(None), hidden };
        match scope.merged_below(name)? {
            Some(Found::Dir { lowers: below, .. }) => lowers = below,
            Some(Found::Lower { layer, path, stat }) if stat.is_symlink() && names.peek().is_none() => {
                let dir =
                    open_beneath(&layer.root, &path.parent().unwrap_or_default(), OFlags::PATH | OFlags::DIRECTORY)?;
                return At::new(&dir, path.file_name().unwrap_or_default()).readlink().map(Some);
            }
            _ => return Ok(None),
        }
    }
    Ok(None)
}

/// The origin of a non-directory in the upper, from its attribute or from the table of those that carry none.
pub fn upper_origin(at: At<'_>, stat: &Stat, origins: Option<&Origins>) -> Result<Option<Origin>, Errno> {
    match stat.is_file() {
        true => marks::of_upper(at, marks::read_origin),
        false => Ok(origins.and_then(|table| table.get(stat.ident()))),
    }
}

/// The directories at a path of the lower layers, top first, as a redirect names them.
pub fn dirs_at(layers: &[Arc<Layer>], path: &RelPath) -> Result<(Vec<LowerDir>, Option<Stat>), Errno> {
    let mut dirs = Vec::new();
    let mut top = None;
    for layer in layers {
        let Some(seen) = see(layer, path)? else { continue };
        if seen.whiteout || !seen.stat.is_dir() {
            break;
        }
        top.get_or_insert(seen.shown);
        dirs.push(LowerDir { layer: Arc::clone(layer), path: path.clone(), ident: seen.stat.ident() });
        if seen.marks.opaque {
            break;
        }
    }
    Ok((dirs, top))
}

/// What stands at a path of a layer.
#[derive(Debug)]
pub struct Seen {
    /// Its attributes on disk.
    pub stat: Stat,
    /// What it shows.
    pub shown: Stat,
    /// Its marks, of a directory in overlay format.
    pub marks: DirMarks,
    /// A whiteout stands there: nothing, and nothing below shows through.
    pub whiteout: bool,
}

/// What stands at a path of a layer, whiteouts included. Never follows a link.
pub fn see(layer: &Layer, path: &RelPath) -> Result<Option<Seen>, Errno> {
    let (parent, name) = match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => (parent, name),
        _ => {
            let at = At::object(&layer.root);
            let stat = at.stat()?;
            let marks = layer.dir_marks(at, &stat)?;
            return Ok(Some(Seen { stat, shown: layer.shown(at, stat)?, marks, whiteout: false }));
        }
    };
    let dir = match open_beneath(&layer.root, &parent, OFlags::PATH | OFlags::DIRECTORY) {
        Ok(dir) => dir,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        Err(e) => return Err(e),
    };
    let at = At::new(&dir, name);
    let image_whiteout = layer.image_whiteout(at)?;
    let whiteout = |stat| Seen { stat, shown: stat, marks: DirMarks::default(), whiteout: true };
    let Some(stat) = layer.entry(at)? else { return Ok(image_whiteout.map(whiteout)) };
    if layer.marked && marks::is_whiteout(at, &stat, true)? {
        return Ok(Some(whiteout(stat)));
    }
    let mut marks = layer.dir_marks(at, &stat)?;
    marks.opaque |= image_whiteout.is_some();
    Ok(Some(Seen { stat, shown: layer.shown(at, stat)?, marks, whiteout: false }))
}
