//! Making the objects of a stage: taken from the upper, copied from it, or written.
//!
//! Many plain copies are made by several threads: most of their time goes by in waiting for the file system.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, OFlags};

use super::super::compare::skip;
use super::super::dirs::LastDir;
use super::super::journal::Taken;
use super::super::parent::Parent;
use super::super::plan::Make;
use super::super::{Os, Source, upper_object};
use super::{Object, entry};
use crate::copy;
use crate::durable::{CancelToken, fault};
use crate::error::{Context, Result};
use crate::names::RelPath;
use crate::sys::{At, Stat, Time, calls, open_beneath};

/// With fewer copies than this for each, more threads are not worth while.
const BATCH: usize = 64;
const MOST_THREADS: usize = 4;

/// A plain copy: the path in the stage, the path in the upper, the attributes there, the mode that it gets.
struct Copy<'a> {
    path: &'a RelPath,
    shown: &'a RelPath,
    stat: &'a Stat,
    mode: u32,
}

fn copies(upper: &OwnedFd, stage: &OwnedFd, all: &[Copy<'_>], cancel: &CancelToken) -> Result<()> {
    let dirs = LastDir::default();
    let mut copier = Copier { cancel, buffer: Vec::new() };
    for copy in all {
        cancel.check()?;
        fault::point("merge.stage.object").context("cannot stage", copy.shown.as_path())?;
        let made = (|| {
            let above = copy.shown.parent().unwrap_or_default();
            let dir = dirs.get(&above, || open_beneath(upper, &above, OFlags::PATH | OFlags::DIRECTORY))?;
            let from = At::new(&*dir, copy.shown.file_name().unwrap_or_default());
            entry(stage, copy.path, |to| copier.object(from, to, copy.stat, copy.mode))
        })();
        made.context("cannot stage", copy.shown.as_path())?;
    }
    Ok(())
}

/// What the objects of a stage are made from.
pub(super) struct Builder<'a> {
    pub(super) source: &'a Source,
    pub(super) parent: &'a Parent,
    pub(super) stage: &'a OwnedFd,
    pub(super) cancel: &'a CancelToken,
}

impl Builder<'_> {
    /// Makes these objects in the stage; those that are `taken` are moved.
    pub(super) fn objects(&self, objects: &[Object], taken: &[Taken]) -> Result<()> {
        let taken: HashSet<&RelPath> = taken.iter().map(|taken| &taken.stage).collect();
        let mut names: HashMap<(u64, u64), RelPath> = HashMap::new();
        let mut plain = Vec::new();
        for (path, make, shown) in objects {
            match make {
                Make::Upper { stat, mode, .. } if stat.nlink == 1 && !taken.contains(path) => {
                    plain.push(Copy { path, shown, stat, mode: mode.unwrap_or(stat.mode) });
                    continue;
                }
                _ => {}
            }
            self.cancel.check()?;
            fault::point("merge.stage.object").context("cannot stage", shown.as_path())?;
            let made = self.object(path, make, taken.contains(path), &mut names);
            made.context("cannot stage", shown.as_path())?;
        }
        self.plain(&plain)
    }

    fn plain(&self, all: &[Copy<'_>]) -> Result<()> {
        let (upper, stage, cancel) = (&self.source.upper, self.stage, self.cancel);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = all.len().div_ceil(BATCH).clamp(1, cores.min(MOST_THREADS));
        if threads == 1 {
            return copies(upper, stage, all, cancel);
        }
        std::thread::scope(|scope| {
            let work = |part| scope.spawn(move || copies(upper, stage, part, cancel));
            let running: Vec<_> = all.chunks(all.len().div_ceil(threads)).map(work).collect();
            let done = |thread: std::thread::ScopedJoinHandle<'_, Result<()>>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            running.into_iter().try_for_each(done)
        })
    }

    fn object(&self, path: &RelPath, make: &Make, take: bool, names: &mut HashMap<(u64, u64), RelPath>) -> Os<()> {
        let (index, shown, mode): (Option<&OsString>, &RelPath, Option<u32>) = match make {
            Make::Content { bytes, mode, mtime, like } => return self.content(path, bytes, *mode, *mtime, like),
            Make::Index { name, mode } => (Some(name), path, *mode),
            Make::Upper { path, mode, .. } => (None, path, *mode),
        };
        upper_object(self.source, index.map(OsString::as_os_str), shown, |from| {
            let stat = from.stat()?;
            let linked = (stat.nlink > 1 && mode.is_none()).then_some((stat.dev, stat.ino));
            if let Some(first) = linked.and_then(|key| names.get(&key)) {
                return entry(self.stage, first, |first| entry(self.stage, path, |to| first.link_to(to)));
            }
            entry(self.stage, path, |to| match take {
                true => from.rename(to),
                false => Copier { cancel: self.cancel, buffer: Vec::new() }.object(
                    from,
                    to,
                    &stat,
                    mode.unwrap_or(stat.mode),
                ),
            })?;
            names.extend(linked.map(|key| (key, path.clone())));
            Ok(())
        })
    }

    /// A file of this content, otherwise like one of the parent's.
    fn content(&self, path: &RelPath, bytes: &[u8], mode: u32, mtime: Option<Time>, like: &RelPath) -> Os<()> {
        entry(self.stage, path, |to| {
            calls::File::from(to.create(OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, 0o600)?).put(bytes)?;
            let fresh = to.stat()?;
            self.parent.with(like, |like| {
                let mut stat = like.stat()?;
                stat.mode = mode;
                stat.mtime = mtime.unwrap_or(fresh.mtime);
                copy::metadata(like, to, &stat, skip)
            })
        })
    }
}

struct Copier<'a> {
    cancel: &'a CancelToken,
    buffer: Vec<u8>,
}

impl Copier<'_> {
    /// Copies an object that is no directory, with everything but its number and our marks. Nobody but us gets into the
    /// stage, so that it may have its mode from the beginning.
    fn object(&mut self, from: At<'_>, to: At<'_>, stat: &Stat, mode: u32) -> Os<()> {
        let wanted = Stat { mode, ..*stat };
        match stat.file_type() {
            FileType::RegularFile => {
                let source = from.open_quiet(OFlags::RDONLY | OFlags::NONBLOCK)?;
                // Without set-id bits, which a write would take away again.
                let target = to.create(OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, mode & 0o777 | 0o200)?;
                self.data(&source, &target, stat)?;
                return copy::metadata(At::object(&source), At::object(&target), &wanted, skip);
            }
            FileType::Symlink => to.symlink(&from.readlink()?)?,
            _ => to.mknod(stat.mode & !0o7777 | 0o600, stat.rdev)?,
        }
        copy::metadata(from, to, &wanted, skip)
    }

    /// The content of a file. A small one without holes that goes to another file system, where nothing can be shared, is
    /// read and written at once.
    fn data(&mut self, from: &OwnedFd, to: &OwnedFd, stat: &Stat) -> Os<()> {
        const SMALL: usize = 128 << 10;
        let whole = stat.blocks * 512 >= stat.size;
        if stat.size > SMALL as u64 || !whole || Stat::of(to.as_fd())?.dev == stat.dev {
            if !copy::reflink(from.as_fd(), to.as_fd())? {
                copy::file_data_watched(from.as_fd(), to.as_fd(), stat.size, &mut |_| self.cancel.flow())?;
            }
            return Ok(());
        }
        self.buffer.resize(SMALL, 0);
        loop {
            let mut left = match calls::read(from, &mut self.buffer)? {
                0 => return Ok(()),
                n => &self.buffer[..n],
            };
            while !left.is_empty() {
                left = &left[calls::write(to, left)?..];
            }
        }
    }
}
