//! How much room an operation needs, and holding it, where the fork has limits. Where it has none, each of these is one look.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FallocateFlags, FileType, StatVfs};

use super::copyup::{Bring, Original};
use super::node::Node;
use super::quota::{self, Hold, Quota, Room, Usage};
use super::{Result, Upper, count};
use crate::copy;
use crate::layer::ledger::BaseState;
use crate::names::RelPath;
use crate::sys::{At, Stat, calls};

/// Beyond so many ranges of data a sparse file is taken to need what it takes in the lower.
const RANGES: usize = 1024;

/// Shorter targets of symbolic links are kept in the inode itself, on file systems that do so.
const SHORT: usize = 60;

impl Upper {
    fn quota(&self) -> Option<&Quota> {
        self.quota.get().map(|quota| &**quota)
    }

    /// Ends the count of what was there before, if that is still under way.
    pub(super) fn end_count(&self) {
        self.quota().into_iter().for_each(Quota::end);
    }

    /// What a file system shows that has only the room that the fork may take.
    pub(super) fn limited(&self, mut all: StatVfs) -> StatVfs {
        let Some(quota) = self.quota() else { return all };
        let (limits, used) = (quota.limits(), quota.usage().unwrap_or_default());
        if let Some(most) = limits.max_size {
            let left = most.saturating_sub(used.size) / all.f_frsize;
            all.f_blocks = most / all.f_frsize;
            (all.f_bfree, all.f_bavail) = (all.f_bfree.min(left), all.f_bavail.min(left));
        }
        if let Some(most) = limits.max_files {
            let left = most.saturating_sub(used.files);
            // A file system that makes objects as they are wanted says that it has none at all.
            all.f_ffree = if all.f_files == 0 { left } else { all.f_ffree.min(left) };
            all.f_files = most;
            all.f_favail = all.f_ffree;
        }
        all
    }

    /// Room for a new object of about so many bytes; `EDQUOT` where there is none.
    pub(super) fn hold(&self, size: u64) -> Result<Option<Hold<'_>>> {
        self.quota().map(|quota| quota.hold(Usage { size, files: 1 })).transpose()
    }

    /// Room for the shell of a directory. `anyway`: for something to be removed from it, which is never refused.
    pub(super) fn hold_dir(&self, anyway: bool) -> Result<Option<Hold<'_>>> {
        let Some(quota) = self.quota() else { return Ok(None) };
        let need = Usage { size: quota.block, files: 1 };
        if anyway { quota.hold_anyway(need) } else { quota.hold(need) }.map(Some)
    }

    /// Room for a new entry that is made here: a directory, a symbolic link to `target`, or a file that is still empty.
    pub(super) fn hold_new(&self, kind: FileType, target: Option<&OsStr>) -> Result<Option<Hold<'_>>> {
        let Some(quota) = self.quota() else { return Ok(None) };
        let takes_a_block = kind == FileType::Directory || target.is_some_and(|target| target.len() >= SHORT);
        self.hold(if takes_a_block { quota.block } else { 0 })
    }

    /// Room for one more name, which takes nothing: refused only where the fork is beyond its limit.
    pub(super) fn hold_name(&self) -> Result<()> {
        self.quota().map_or(Ok(()), |quota| quota.hold(Usage::default()).map(drop))
    }

    /// Room for the copy of a lower object.
    pub(super) fn hold_copy(&self, kind: FileType, original: &Original, bring: Bring) -> Result<Option<Hold<'_>>> {
        let Some(quota) = self.quota() else { return Ok(None) };
        let Stat { size, blocks, .. } = original.stat;
        self.hold(match kind {
            FileType::RegularFile => {
                let size = if let Bring::First(most) = bring { size.min(most) } else { size };
                content(&original.fd, size, blocks * 512, quota.block)?
            }
            FileType::Symlink if size >= SHORT as u64 => quota.block,
            _ => 0,
        })
    }

    /// An object is about to change by something that is not refused, or to lose a name.
    pub(super) fn room<'a>(&'a self, node: &'a Node, at: At<'a>) -> Result<Option<Room<'a>>> {
        self.quota().map(|quota| Room::new(quota, node, at, 0)).transpose()
    }

    /// Room for an attribute that grows by so many bytes.
    pub(super) fn room_for_attribute<'a>(
        &'a self,
        node: &'a Node,
        at: At<'a>,
        more: usize,
    ) -> Result<Option<Room<'a>>> {
        let room = |quota: &'a Quota| Room::new(quota, node, at, (more as u64).next_multiple_of(quota.block));
        self.quota().map(room).transpose()
    }

    /// Room for what a write to these bytes of a file adds to it.
    pub(super) fn room_to_write<'a>(
        &'a self,
        node: &'a Node,
        fd: &'a OwnedFd,
        offset: u64,
        len: u64,
    ) -> Result<Option<Room<'a>>> {
        let Some(quota) = self.quota() else { return Ok(None) };
        let at = At::object(fd);
        quota::take_over(quota, node, at)?;
        let end = offset.saturating_add(len).checked_next_multiple_of(quota.block).unwrap_or(u64::MAX);
        let span = offset / quota.block * quota.block..end;
        let more = span.end - span.start;
        let more = if quota.is_roomy(more)? { more } else { missing(quota, node, fd, span)? };
        Room::new(quota, node, at, more).map(Some)
    }

    /// The same for `fallocate(2)`.
    pub(super) fn room_to_allocate<'a>(
        &'a self,
        node: &'a Node,
        fd: &'a OwnedFd,
        flags: FallocateFlags,
        (offset, len): (u64, u64),
    ) -> Result<Option<Room<'a>>> {
        if self.quota().is_none() || flags.contains(FallocateFlags::PUNCH_HOLE) {
            return self.room(node, At::object(fd));
        }
        let room = self.room_to_write(node, fd, offset, len)?;
        if flags.contains(FallocateFlags::KEEP_SIZE) && offset.saturating_add(len) > Stat::of(fd.as_fd())?.size {
            node.charged.set_whole();
        }
        Ok(room)
    }

    /// Notes what an object takes that is about to lose a name, before it may be the last.
    pub(super) fn about_to_lose_its_name(&self, node: &Node, at: At<'_>) -> Result<()> {
        self.quota().map_or(Ok(()), |quota| quota::take_over(quota, node, at))
    }

    /// The last name of an object is gone.
    pub(super) fn lost_its_name(&self, node: &Node) {
        if let Some(quota) = self.quota() {
            quota::leave(quota, node);
        }
    }

    /// The kernel has let go of a node.
    pub(super) fn let_go(&self, node: &Node) {
        if let Some(quota) = self.quota() {
            quota::let_go(quota, node);
        }
    }

    /// Charges what treefork itself has made in the upper.
    pub(super) fn hold_tree(&self, at: At<'_>) -> Result<Option<Hold<'_>>> {
        self.quota().map(|quota| quota.hold_anyway(count::tree(at)?)).transpose()
    }

    /// Notes the state of a base object in the ledger, before it is covered.
    pub(super) fn note(&self, path: &RelPath, state: BaseState) -> Result<()> {
        let size = self.ledger.note(path, state)?;
        if let Some(quota) = self.quota() {
            quota.hold_anyway(Usage { size, files: 0 })?.keep();
        }
        Ok(())
    }
}

/// What the first bytes of a file need elsewhere, of which so many are on its own disk.
fn content(fd: &OwnedFd, size: u64, taken: u64, block: u64) -> Result<u64> {
    let full = size.next_multiple_of(block);
    if taken >= size {
        return Ok(full);
    }
    let round = |range: &Range<u64>| range.end.next_multiple_of(block) - range.start / block * block;
    let ranges = copy::data_ranges(fd.as_fd(), size, RANGES)?;
    Ok(ranges.map_or(taken, |ranges| ranges.iter().map(round).sum()).min(full))
}

/// How much of a range of whole blocks has no room on the disk yet.
fn missing(quota: &Quota, node: &Node, fd: &OwnedFd, span: Range<u64>) -> Result<u64> {
    let stat = Stat::of(fd.as_fd())?;
    // What lies beyond the end is not charged, though the file system may have set it aside.
    let whole = node.charged.is_whole();
    let end = if whole { span.end } else { span.end.min(stat.size.next_multiple_of(quota.block)) };
    let within = span.start.min(end)..end;
    let there = match calls::allocated(fd, within.clone())? {
        Some(there) => there,
        // A file system of memory, where nothing but content takes room: whoever has it all has no holes.
        None if !whole && stat.blocks * 512 >= stat.size => within.end - within.start,
        None => {
            let mut ranges = copy::data_ranges(fd.as_fd(), within.end, usize::MAX)?.unwrap_or_default();
            ranges.retain(|range| range.end > within.start);
            ranges.iter().map(|range| range.end - range.start.max(within.start)).sum()
        }
    };
    Ok((span.end - span.start).saturating_sub(there))
}
