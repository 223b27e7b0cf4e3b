//! Preserving what a merge is about to change, for the forks that read through the parent.
//!
//! Made before the first step in the parent: a layer ([`crate::layer::preserved`]) in which every object that will be
//! replaced or removed stands as one more hard link, every name that will be new as a whiteout, and every directory whose
//! entries or attributes will change as a shell that remembers its attributes. What git will do to the repository is
//! among it: refs, `HEAD` and the index like any other object; reflogs, which git appends to in place, as copies; and the
//! directory of packs as it is, since the names of new packs are not known.
//!
//! In order: shells, whiteouts and attributes; the forks expect these attributes; the links, which change those of the base's
//! objects; sync; the forks read through the layer. Killed before that, the layer is thrown away by the next merge.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{OFlags, XattrFlags};
use rustix::io::Errno;

use super::Os;
use super::journal::Op;
use super::parent::{Found, Parent};
use crate::copy;
use crate::error::{Context, Result};
use crate::layer::marks::{self, Origin};
use crate::layer::preserved::{self, Keeper};
use crate::layer::tree;
use crate::names::RelPath;
use crate::sys::{At, Stat, calls, open_beneath, open_root};

/// What a merge will do to a path of the parent, apart from its own steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// The object is replaced or removed, comes into being, or (a directory) gets entries of unknown names.
    Replaced(RelPath),
    /// The file is written to where it is.
    Written(RelPath),
}

/// Preserves what the steps and touches will change, and has the forks read through it.
pub(crate) fn preserve(parent: &Parent, base: &Path, keeper: &dyn Keeper, ops: &[Op], touches: &[Touch]) -> Result<()> {
    let Some(dir) = keeper.begin(base)? else { return Ok(()) };
    let mut layer = Layer::new(parent, &dir).context("cannot make the layer", &dir)?;
    for op in ops {
        layer.spare(op).context("cannot preserve in", &dir)?;
    }
    for touch in touches {
        layer.touch(touch).context("cannot preserve in", &dir)?;
    }
    preserved::write_overrides(&layer.dir, &layer.stats).context("cannot preserve in", &dir)?;
    keeper.expect(&dir)?;
    layer.fill().context("cannot preserve in", &dir)?;
    keeper.complete(base, &dir)
}

struct Layer<'a> {
    parent: &'a Parent,
    dir: OwnedFd,
    tree: OwnedFd,
    /// Attributes of everything preserved, as they were.
    stats: Vec<Stat>,
    /// Paths that stand in the layer, or will.
    done: HashSet<RelPath>,
    /// Objects that are to stand in it, and whether by a link: they change with it, and have to be expected first.
    objects: Vec<(RelPath, Stat, bool)>,
}

impl<'a> Layer<'a> {
    fn new(parent: &'a Parent, dir: &Path) -> Os<Self> {
        let dir = open_root(dir)?;
        let at = At::new(&dir, preserved::TREE);
        at.mkdir(0o700)?;
        let tree = at.open(OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut layer = Self { parent, dir, tree, stats: Vec::new(), done: HashSet::new(), objects: Vec::new() };
        layer.shell(&RelPath::root())?;
        Ok(layer)
    }

    fn spare(&mut self, op: &Op) -> Os<()> {
        match op {
            Op::Detach { path, .. } | Op::Swap { path, .. } | Op::Attach { path, .. } => self.keep(path),
            // In a directory that moves the path is that of the result: what was there stays as part of its old place.
            Op::Attributes { path, .. } => match self.parent.look(path)? {
                Found::There(stat) if stat.is_dir() => self.shell(path),
                _ => Ok(()),
            },
            // Named as touches, with everything that git writes along with them.
            Op::Ref { .. } | Op::Head { .. } => Ok(()),
        }
    }

    fn touch(&mut self, touch: &Touch) -> Os<()> {
        match touch {
            Touch::Replaced(path) => self.keep(path),
            Touch::Written(path) => self.keep_as(path, false),
        }
    }

    /// Preserves whatever is at a path, with everything in it.
    fn keep(&mut self, path: &RelPath) -> Os<()> {
        self.keep_as(path, true)
    }

    fn keep_as(&mut self, path: &RelPath, link: bool) -> Os<()> {
        // No recursion: the tree may be deeper than the stack of whoever merges.
        let mut todo = vec![(path.clone(), link)];
        while let Some((path, link)) = todo.pop() {
            if self.done.contains(&path) && !self.is_shell(&path)? {
                continue;
            }
            match self.parent.look(&path)? {
                Found::There(stat) if stat.is_dir() => {
                    todo.extend(self.keep_dir(&path)?.into_iter().map(|below| (below, true)));
                }
                Found::There(stat) => self.keep_object(&path, &stat, link)?,
                Found::Absent => self.hide(&path)?,
                // In a directory that will be new: its own name is hidden.
                Found::Blocked(_) => todo.extend(path.parent().map(|above| (above, link))),
            }
        }
        Ok(())
    }

    /// Whether a path stands in the layer as a shell through which the parent's entries still show.
    fn is_shell(&self, path: &RelPath) -> Os<bool> {
        let shell = |at: At<'_>| {
            Ok(at.try_stat()?.is_some_and(|stat| stat.is_dir())
                && at.xattr(OsStr::new(marks::OPAQUE))?.as_deref() != Some(b"y"))
        };
        self.entry(path, shell)
    }

    /// Keeps a directory; what is in it is still to be kept.
    fn keep_dir(&mut self, path: &RelPath) -> Os<Vec<RelPath>> {
        self.shell(path)?;
        self.entry(path, marks::set_opaque)?;
        tree::below(&self.parent.root, path)
    }

    fn keep_object(&mut self, path: &RelPath, stat: &Stat, link: bool) -> Os<()> {
        self.shell_above(path)?;
        self.objects.push((path.clone(), *stat, link));
        self.stats.push(*stat);
        self.done.insert(path.clone());
        Ok(())
    }

    fn copy(&self, path: &RelPath, stat: &Stat) -> Os<()> {
        self.between(path, |from, to| {
            match stat.file_type() {
                rustix::fs::FileType::RegularFile => {
                    let (from, copy) = (from.open(OFlags::RDONLY)?, to.create(NEW, 0o600)?);
                    copy::file_data(from.as_fd(), copy.as_fd(), stat.size)?;
                    marks::set_origin(to, &origin(stat))?;
                }
                rustix::fs::FileType::Symlink => to.symlink(&from.readlink()?)?,
                _ => to.mknod(stat.mode, stat.rdev)?,
            }
            copy::metadata(from, to, stat, marks::is_ours)
        })
    }

    /// A name that will be new is hidden.
    fn hide(&mut self, path: &RelPath) -> Os<()> {
        self.shell_above(path)?;
        self.done.insert(path.clone());
        let device = rustix::fs::FileType::CharacterDevice.as_raw_mode();
        match self.entry(path, |at| at.mknod(device, 0)) {
            // Where devices cannot be made: the attribute form.
            Err(Errno::PERM | Errno::OPNOTSUPP) => {
                let above = path.parent().unwrap_or_default();
                let mark = |at: At<'_>| at.set_xattr(OsStr::new(marks::OPAQUE), b"x", XattrFlags::empty());
                if self.is_shell(&above)? {
                    self.entry(&above, mark)?;
                }
                self.entry(path, |at| {
                    drop(at.create(NEW, 0o600)?);
                    at.set_xattr(OsStr::new(marks::WHITEOUT), b"y", XattrFlags::empty())
                })
            }
            other => other,
        }
    }

    fn shell_above(&mut self, path: &RelPath) -> Os<()> {
        path.parent().map_or(Ok(()), |above| self.shell(&above))
    }

    /// Makes a directory stand in the layer, with its attributes remembered.
    fn shell(&mut self, path: &RelPath) -> Os<()> {
        if !self.done.insert(path.clone()) {
            return Ok(());
        }
        self.shell_above(path)?;
        let stat = match self.parent.look(path)? {
            Found::There(stat) if stat.is_dir() => stat,
            _ => return Err(Errno::NOTDIR),
        };
        if !path.is_root() {
            self.entry(path, |at| at.mkdir(0o700))?;
        }
        self.between(path, |from, to| {
            marks::set_origin(to, &origin(&stat))?;
            copy::xattrs(from, to, marks::is_ours)
        })?;
        self.stats.push(stat);
        Ok(())
    }

    /// Calls `body` with the entry of a path in the layer.
    fn entry<T>(&self, path: &RelPath, body: impl FnOnce(At<'_>) -> Os<T>) -> Os<T> {
        match (path.parent(), path.file_name()) {
            (Some(above), Some(name)) => {
                let dir = open_beneath(&self.tree, &above, OFlags::PATH | OFlags::DIRECTORY)?;
                body(At::new(&dir, name))
            }
            _ => body(At::object(&self.tree)),
        }
    }

    /// Calls `body` with the entries of a path in the parent and in the layer.
    fn between(&self, path: &RelPath, body: impl FnOnce(At<'_>, At<'_>) -> Os<()>) -> Os<()> {
        self.parent.with(path, |from| self.entry(path, |to| body(from, to)))
    }

    /// Brings the objects into the layer, which is complete with that.
    fn fill(&self) -> Os<()> {
        for (path, stat, link) in &self.objects {
            self.place(path, stat, *link)?;
        }
        calls::syncfs(&self.tree)
    }

    fn place(&self, path: &RelPath, stat: &Stat, link: bool) -> Os<()> {
        let linked = if link { self.between(path, |from, to| from.link_to(to)) } else { Err(Errno::XDEV) };
        match linked {
            Ok(()) => Ok(()),
            // Another file system or mount, too many names, or a policy against links to what others own: a copy, which
            // a mark says what it is a copy of (a link or a special file carries none, and shows a number of its own).
            Err(Errno::XDEV | Errno::MLINK | Errno::PERM) => self.copy(path, stat),
            Err(e) => Err(e),
        }
    }
}

const NEW: OFlags = OFlags::RDWR.union(OFlags::CREATE).union(OFlags::EXCL);

fn origin(stat: &Stat) -> Origin {
    Origin { ident: stat.ident(), dev: stat.dev, indexed: false, ctime: None }
}
