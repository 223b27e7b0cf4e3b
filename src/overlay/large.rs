//! Large files on their way into the upper: beginning block by block, and going on after a restart.
//!
//! Order of beginning: the staged file gets its size and all the room that it will need (a disk without that room says so
//! before anything is acknowledged), its mark, and its map; then it is placed as any other copy. Killed in between, a
//! map without a file is removed at the next start, when all files that have one are looked for in the upper.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FileType, OFlags};
use rustix::io::Errno;

use super::copyup::{Original, open_quietly};
use super::data::open_ours;
use super::fds::Slot;
use super::node::{Kind, Node, Place};
use super::partial::{self, Partial, Parts};
use super::{Overlay, Result, Upper, background};
use crate::copy;
use crate::durable::fault;
use crate::layer::blocks::{self, Bits, Map, Source};
use crate::layer::tree::Layer;
use crate::names::RelPath;
use crate::sys::{At, Ident, Stat, calls};

/// Copied as a whole if there are more holes: noting them one by one would take long, too.
const RANGES: usize = 1024;

/// When a large file is brought up block by block instead of being copied before its first change.
#[derive(Clone, Copy, Debug)]
pub struct Large {
    /// With at least so many bytes on the disk.
    pub from: u64,
    /// The rest comes up at once, in the background; otherwise only when the whole file is needed.
    pub background: bool,
}

/// The environment variable with another [`Large::from`], in bytes, so that tests need no large files.
const VARIABLE: &str = "TREEFORK_LARGE";

impl Default for Large {
    /// From 16 MiB on, which is what can be copied in a few milliseconds.
    fn default() -> Self {
        let from = std::env::var(VARIABLE).ok().and_then(|bytes| bytes.parse().ok());
        Self { from: from.unwrap_or(16 << 20), background: true }
    }
}

/// A file that is staged to be brought up block by block.
pub(super) struct Begun {
    source: Source,
    area: OwnedFd,
    map: Map,
    /// Where the lower has data.
    data: Vec<std::ops::Range<u64>>,
}

impl Overlay {
    /// Prepares a staged, empty file to be brought up block by block; `None` where it is better copied.
    pub(super) fn begin(
        &self,
        upper: &Upper,
        original: &Original,
        path: &RelPath,
        to: &OwnedFd,
    ) -> Result<Option<Begun>> {
        let stat = original.stat;
        let staged = Stat::of(to.as_fd())?;
        // Without birth times a map could come to mean another file.
        let worth_it = stat.blocks * 512 >= self.large.from && staged.btime != Default::default();
        if !worth_it || !partial::may_begin() {
            return Ok(None);
        }
        let Some(data) = copy::data_ranges(original.fd.as_fd(), stat.size, RANGES)? else { return Ok(None) };
        calls::ftruncate(to, stat.size)?;
        for range in &data {
            match calls::fallocate(to, FallocateFlags::empty(), range.start, range.end - range.start) {
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    calls::ftruncate(to, 0)?;
                    return Ok(None);
                }
                other => other?,
            }
        }
        let source = Source::new(path.clone(), &original.shown);
        match source.mark(to) {
            // The path is too long for the mark.
            Err(Errno::NOSPC | Errno::TOOBIG | Errno::RANGE) => {
                calls::ftruncate(to, 0)?;
                return Ok(None);
            }
            other => other?,
        }
        let area = blocks::area(&upper.work)?;
        let map = Map::create(&area, staged.ident(), source.blocks())?;
        fault::point("blocks begun").map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        Ok(Some(Begun { source, area, map, data }))
    }

    /// The partial file that was begun.
    pub(super) fn begun(
        &self,
        node: u64,
        begun: Begun,
        fd: Arc<OwnedFd>,
        layer: Arc<Layer>,
        original: Original,
    ) -> Result<Arc<Partial>> {
        let Begun { source, area, map, data } = begun;
        let (seen, shown) = (self.without_our_names(&layer, original.stat), original.shown);
        let written = Bits::none(source.blocks());
        let times = (shown.mtime, Stat::of(fd.as_fd())?.ctime);
        let lower = Some((layer, original.fd));
        let partial =
            Partial::new(Parts { node, fd, lower, seen, source, area, map, written, complete: false, times })?;
        partial.leave_holes(&data);
        Ok(partial)
    }

    /// Has the rest of a partial file brought up in the background.
    pub(super) fn bring_up(&self, file: Ident) {
        if self.large.background {
            background::bring_up(self.me.clone(), file);
        }
    }

    /// Goes on with the files that an earlier server left half brought up. To be called once all layers are there.
    pub fn resume(&self) -> Result<()> {
        let Some(upper) = &self.upper else { return Ok(()) };
        let mut pending = blocks::pending(&upper.work)?;
        if pending.is_empty() {
            return Ok(());
        }
        for top in [upper.index.dir(), &*upper.root.fd] {
            self.resume_below(upper, At::object(top).open_quiet(OFlags::RDONLY | OFlags::DIRECTORY)?, &mut pending)?;
        }
        // Removed meanwhile, or never placed.
        let area = blocks::area(&upper.work)?;
        pending.into_iter().try_for_each(|ident| blocks::remove(&area, ident))
    }

    /// Looks through a whole tree, of which only one directory is open at a time: it may be deeper than there are
    /// descriptors, or room on a stack.
    fn resume_below(&self, upper: &Upper, top: OwnedFd, pending: &mut Vec<Ident>) -> Result<()> {
        let mut dir = top;
        // What is left to be entered, of each directory on the way.
        let mut way = vec![self.resume_in(upper, &dir, pending)?];
        while let Some(names) = way.last_mut().filter(|_| !pending.is_empty()) {
            let next = names.pop();
            let name = next.as_deref().unwrap_or(OsStr::new(".."));
            if next.is_none() {
                way.pop();
                if way.is_empty() {
                    break;
                }
            }
            dir = At::new(&dir, name).open_quiet(OFlags::RDONLY | OFlags::DIRECTORY)?;
            if next.is_some() {
                way.push(self.resume_in(upper, &dir, pending)?);
            }
        }
        Ok(())
    }

    /// Goes on with the files of one directory; the directories in it.
    fn resume_in(&self, upper: &Upper, dir: &OwnedFd, pending: &mut Vec<Ident>) -> Result<Vec<OsString>> {
        let mut below = Vec::new();
        for entry in calls::Dir::read_from(dir)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let at = At::new(dir, name);
            match entry.file_type() {
                FileType::Directory => below.push(name.to_os_string()),
                FileType::RegularFile if pending.iter().any(|ident| ident.ino == entry.ino()) => {
                    let ident = at.stat()?.ident();
                    if let Some(index) = pending.iter().position(|other| *other == ident) {
                        pending.swap_remove(index);
                        self.resume_file(upper, at, ident)?;
                    }
                }
                _ => {}
            }
        }
        Ok(below)
    }

    fn resume_file(&self, upper: &Upper, at: At<'_>, ident: Ident) -> Result<()> {
        let fd = Arc::new(open_ours(at, OFlags::RDWR)?);
        let area = blocks::area(&upper.work)?;
        // Without its mark it is complete.
        let Some(source) = Source::of(&fd)? else { return blocks::remove(&area, ident) };
        let (map, written, complete) = Map::open(&area, ident, source.blocks())?;
        let lower = self.find_source(&source);
        let lost = lower.is_none() && !complete;
        let data = match &lower {
            Some((_, fd, _)) => copy::data_ranges(fd.as_fd(), source.size, RANGES)?,
            None => None,
        };
        let stat = Stat::of(fd.as_fd())?;
        let (node, seen) = (source.ident.ino, lower.as_ref().map_or(stat, |(_, _, seen)| *seen));
        let lower = lower.map(|(layer, fd, _)| (layer, fd));
        let times = (stat.mtime, stat.ctime);
        let partial = Partial::new(Parts { node, fd, lower, seen, source, area, map, written, complete, times })?;
        data.inspect(|data| partial.leave_holes(data));
        if lost {
            partial.lost(self);
        }
        upper.partials.insert(partial);
        self.bring_up(ident);
        Ok(())
    }

    /// The lower file that the rest is in, if it is still what it was.
    fn find_source(&self, source: &Source) -> Option<(Arc<Layer>, OwnedFd, Stat)> {
        let layers = self.layers.read().clone();
        layers.into_iter().find_map(|layer| {
            let fd = open_quietly(&layer, &source.path, OFlags::RDONLY | OFlags::NONBLOCK).ok()?;
            let stat = Stat::of(fd.as_fd()).ok()?;
            let shown = self.without_our_names(&layer, layer.shown(At::object(&fd), stat).ok()?);
            let seen = self.without_our_names(&layer, stat);
            source.is_in(&shown).then_some((layer, fd, seen))
        })
    }

    /// Makes a file an ordinary one, if it is still being brought up. Must be called without `names`.
    pub(super) fn settle_node(&self, node: &Arc<Node>) -> Result<()> {
        match self.partial_of(node)? {
            Some(partial) => self.settle(&partial),
            None => Ok(()),
        }
    }

    /// Whether a file is still being brought up, so that what needs it whole takes time.
    pub(super) fn is_partial(&self, node: &Arc<Node>) -> bool {
        matches!(self.partial_of(node), Ok(Some(_)))
    }

    fn partial_of(&self, node: &Arc<Node>) -> Result<Option<Arc<Partial>>> {
        let Some(upper) = self.upper.as_ref().filter(|upper| !upper.partials.is_empty()) else { return Ok(None) };
        if node.file_type() != FileType::RegularFile {
            return Ok(None);
        }
        if let Some(opened) = self.fds.get(self.owner, node.id, Slot::Write) {
            return Ok(opened.partial().cloned());
        }
        let _names = self.names.read();
        let ident = self.on_object(node, |at| at.stat())?.ident();
        Ok(upper.partials.get(ident))
    }

    /// Nobody can see an unlinked file any more: there is nothing to bring up.
    pub(super) fn drop_partial(&self, node: &Node) {
        let Some(upper) = self.upper.as_ref().filter(|upper| !upper.partials.is_empty()) else { return };
        let Kind::File(file) = &node.kind else { return };
        let Place::Orphan(grip) = file.state.read().place.clone() else { return };
        let Some(partial) = grip.at().stat().ok().and_then(|stat| upper.partials.remove(stat.ident())) else {
            return;
        };
        partial.drop_now();
        if let Err(e) = partial.remove_map() {
            // The next mount removes it.
            log::warn!("cannot remove the map of a file that is gone: {e}");
        }
    }

    /// Ends all work in the background, so that another overlay may take the layers over.
    pub fn quiesce(&self) {
        if let Some(upper) = &self.upper {
            upper.partials.all().iter().for_each(|partial| partial.stop());
            upper.end_count();
        }
    }
}
