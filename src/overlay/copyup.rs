//! Copy-up: bringing an object into the upper before its first change, complete or not at all.
//!
//! A file is staged in the work area with content, attributes and marks (`stage`), and renamed into place; readers use the
//! lower until that moment. Directories come up by `shell`.
//!
//! Order of a file's copy-up: stage; note the base's state in the ledger; rename (hard links: into the index, then link
//! the name to it); switch the node. Killed at any point, either the lower or the complete copy is what the name means.
//! Content is not synced here, but on its way to the disk right away ([`super::flush`]): after a power cut the fork has what
//! the application itself synced, and of the rest what a plain directory would have.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{OFlags, Timestamps};
use rustix::io::Errno;

use super::fds::Slot;
use super::flush;
use super::lookup::gone;
use super::node::{Link, Node, Place};
use super::orphan::Grip;
use super::stage::Staged;
use super::{Overlay, Result, Upper};
use crate::layer::index::{Key, Links};
use crate::layer::tree::Layer;
use crate::names::RelPath;
use crate::sys::{At, Ident, Stat, Time, open_beneath};

/// How often a copy is begun again because the original changed meanwhile.
const TRIES: u32 = 5;

/// Copying less than this is not worth a thread of its own.
pub(super) const MUCH: u64 = 1 << 20;

/// How much of a file a change needs in the upper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bring {
    /// All of it.
    All,
    /// At most so many bytes at its beginning.
    First(u64),
    /// Nothing right now: the rest of a large file may come up later, block by block.
    Blocks,
}

/// Where the original is.
pub(super) struct Lower {
    pub(super) layer: Arc<Layer>,
    pub(super) path: RelPath,
    /// It has several names there.
    pub(super) shared: Option<Key>,
}

impl Overlay {
    /// Whether a write to the node would first copy much: better run off the thread that answers requests.
    pub fn copies_up(&self, node: u64) -> bool {
        let Ok(node) = self.node(node) else { return false };
        let Ok(file) = node.file() else { return false };
        let lower = matches!(file.state.read().place, Place::Lower { .. });
        if lower { file.much.load(Ordering::Relaxed) } else { self.is_partial(&node) }
    }

    /// Brings a non-directory into the upper; whether it was not there before. Must be called without `names`.
    pub(super) fn copy_up(&self, node: &Arc<Node>, bring: Bring) -> Result<bool> {
        let file = node.file()?;
        if !matches!(file.state.read().place, Place::Lower { .. }) {
            if bring == Bring::All {
                self.settle_node(node)?;
            }
            return Ok(false);
        }
        let upper = self.writable()?;
        let _one = node.copying.lock();
        for _ in 0..TRIES {
            let lower = match file.state.read().place.clone() {
                Place::Lower { layer, path, shared } => Lower { layer, path, shared },
                _ => return Ok(false),
            };
            let staged = upper.staging.name();
            match self.stage(upper, node, &lower, &staged, bring) {
                Ok(Some(copied)) => {
                    let placed = self.place(upper, node, &lower, &staged, copied);
                    if placed.is_err() {
                        discard(upper, &staged);
                    }
                    return placed.map(|()| true);
                }
                Ok(None) => discard(upper, &staged),
                Err(e) => {
                    discard(upper, &staged);
                    return Err(e);
                }
            }
        }
        log::warn!("{:?} keeps changing in the base: cannot be copied up in one piece", node.ident.ino);
        Err(Errno::BUSY)
    }

    /// Moves a staged copy to where the node's name is, and switches the node over.
    fn place(
        &self,
        upper: &Upper,
        node: &Arc<Node>,
        lower: &Lower,
        staged: &OsString,
        copied: Staged<'_>,
    ) -> Result<()> {
        let Staged { shown: stat, state, copy, filled, hold } = copied;
        let _names = self.names.read_recursive();
        let file = node.file()?;
        let link = file.state.read().links.first().cloned();
        let shared = lower.shared.filter(|&key| link.is_some() || upper.index.links(key).is_none_or(|l| l.count > 0));
        // What is linked once the node is switched over: from then on a failure leaves nothing half-done.
        let mut unlinked = None;
        let place = match (link, shared) {
            // Unlinked while open, and no other name is left: the copy has no name either. The old state was noted when the
            // name went.
            (None, None) => Place::Orphan(Grip::of_staged(&self.fds, upper, staged.clone())?),
            (Some((parent, name)), None) => {
                let dir = self.copy_up_dir(&parent)?;
                upper.note(&lower.path, state)?;
                let _change = parent.dir()?.change.lock();
                let _room = upper.room(&parent, At::object(&*dir.fd))?;
                quietly(&dir.fd, || upper.staging.at(staged).rename(At::new(&*dir.fd, &name)))?;
                Place::Upper
            }
            (link, Some(key)) => {
                if upper.index.links(key).is_none() {
                    upper.index.set_links(&upper.staging, key, Links { count: stat.nlink, since: Time::default() })?;
                }
                upper.staging.at(staged).rename(At::new(upper.index.dir(), &key.file_name()))?;
                upper.index.set_copied(key);
                // Without a link the file has other names that nobody has looked up: they lead to the index.
                unlinked = link.map(|link| (key, link));
                Place::Index(key)
            }
        };
        let partial = copy.as_ref().and_then(|opened| opened.partial().cloned());
        if let Some(partial) = &partial {
            // Before anybody looks for the file in the upper.
            upper.partials.insert(Arc::clone(partial));
        }
        let orphan = matches!(place, Place::Orphan(_));
        let mut state = file.state.write();
        state.place = place;
        if let Some(hold) = hold {
            hold.charge(node);
        }
        if orphan {
            upper.lost_its_name(node);
        }
        self.told_of_copy(node, file, &stat);
        self.fds.remove(self.owner, node.id, Slot::Read);
        if let Some(opened) = copy {
            // The write that asked for the copy comes next.
            opened.set_id.store(stat.mode & 0o6000 != 0, Ordering::Relaxed);
            if filled && partial.is_none() {
                flush::soon(Arc::clone(&opened));
            }
            self.fds.put(self.owner, node.id, Slot::Write, opened);
        }
        drop(state);
        if let Some(partial) = partial {
            self.bring_up(partial.ident);
        }
        unlinked.map_or(Ok(()), |(key, link)| self.link_name(upper, key, &link))
    }

    /// Makes sure that a name of an indexed file stands in the upper, as a hard link of its data.
    pub(super) fn link_name(&self, upper: &Upper, key: Key, (parent, name): &Link) -> Result<()> {
        let dir = self.copy_up_dir(parent)?;
        let _change = parent.dir()?.change.lock();
        let to = At::new(&*dir.fd, name);
        if to.try_stat()?.is_some() {
            return Ok(());
        }
        // This name is covered from now on; the others go on being the base's.
        let below = self.find_below(parent, name.as_os_str())?;
        self.note_hidden(upper, below.as_ref())?;
        let _room = upper.room(parent, At::object(&*dir.fd))?;
        quietly(&dir.fd, || At::new(upper.index.dir(), &key.file_name()).link_to(to))
    }

    /// Opens a lower object, checked to be the one that the node means.
    pub(super) fn open_lower(
        &self,
        node: &Arc<Node>,
        layer: &Layer,
        path: &RelPath,
        flags: OFlags,
    ) -> Result<Original> {
        match open_checked(node, layer, path, flags) {
            Err(Errno::STALE) => {
                let layer = self.relocate(node, path)?.ok_or(Errno::STALE)?;
                open_checked(node, &layer, path, flags)
            }
            other => other,
        }
    }
}

impl Upper {
    /// The identity of what an upper object shows, for taking its origin out of the table when it is gone.
    pub(super) fn drop_origin(&self, upper: Ident) {
        if let Err(e) = self.origins.remove(upper) {
            // A stale entry is harmless: it is replaced when the number comes up again.
            log::warn!("cannot remove the origin of upper object {}: {e}", upper.ino);
        }
    }
}

/// A lower object, open.
pub(super) struct Original {
    pub(super) fd: OwnedFd,
    /// Its attributes on disk.
    pub(super) stat: Stat,
    /// What it shows.
    pub(super) shown: Stat,
}

/// Opens a lower object without bumping its access time where that is allowed (owner or root).
pub(super) fn open_quietly(layer: &Layer, path: &RelPath, flags: OFlags) -> Result<OwnedFd> {
    let quiet = if flags.contains(OFlags::PATH) { flags } else { flags | OFlags::NOATIME };
    match open_beneath(&layer.root, path, quiet) {
        Err(Errno::PERM) => open_beneath(&layer.root, path, flags),
        other => other,
    }
}

fn open_checked(node: &Node, layer: &Layer, path: &RelPath, flags: OFlags) -> Result<Original> {
    let fd = open_quietly(layer, path, flags).map_err(gone)?;
    let stat = Stat::of(fd.as_fd())?;
    let shown = layer.shown(At::object(&fd), stat)?;
    if shown.ident() == node.ident { Ok(Original { fd, stat, shown }) } else { Err(Errno::STALE) }
}

/// Changes entries of an upper directory without a trace in its time stamps: nothing that the fork's user did.
pub(super) fn quietly(dir: &OwnedFd, change: impl FnOnce() -> Result<()>) -> Result<()> {
    let at = At::object(dir);
    let stat = at.stat()?;
    change()?;
    let times = Timestamps { last_access: stat.atime.into(), last_modification: stat.mtime.into() };
    if let Err(e) = at.utimens(&times) {
        // The change stands: it is not undone for the sake of a time.
        log::warn!("a directory shows a time of ours: {e}");
    }
    Ok(())
}

pub(super) fn discard(upper: &Upper, staged: &OsString) {
    match upper.staging.discard(staged) {
        Ok(()) | Err(Errno::NOENT) => {}
        // Left over until the next mount clears the staging area; the error that led here matters more.
        Err(e) => log::warn!("cannot remove a staged copy: {e}"),
    }
}
