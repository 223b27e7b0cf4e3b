//! Copy-up: bringing an object into the upper before its first change, complete or not at all.
//!
//! A file is staged in the work area with content, attributes and marks, and renamed into place; readers use the lower
//! until that moment. The lower is checked to have stood still meanwhile. Directories come up by `shell`.
//!
//! Order of a file's copy-up: stage; note the base's state in the ledger; rename (hard links: into the index, then link
//! the name to it); switch the node. Killed at any point, either the lower or the complete copy is what the name means.
//! Content is not synced here, but on its way to the disk right away ([`super::flush`]): after a power cut the fork has what
//! the application itself synced, and of the rest what a plain directory would have.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{FileType, OFlags, Timespec, Timestamps, UTIME_NOW, XattrFlags};
use rustix::io::Errno;

use super::fds::{Opened, Slot};
use super::flush;
use super::large::Begun;
use super::lookup::gone;
use super::node::{Link, Node, Place};
use super::orphan::Grip;
use super::quota::Hold;
use super::{Overlay, Result, Upper};
use crate::copy;
use crate::layer::index::{Key, Links};
use crate::layer::ledger::{self, BaseState, Digest};
use crate::layer::marks::{self, Origin};
use crate::layer::prepared;
use crate::layer::tree::Layer;
use crate::names::RelPath;
use crate::sys::{At, Ident, Stat, Time, calls, open_beneath};

/// How often a copy is begun again because the original changed meanwhile.
const TRIES: u32 = 5;

/// Copying less than this is not worth a thread of its own.
const MUCH: u64 = 1 << 20;

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

/// A copy that is staged.
struct Staged<'a> {
    /// What the original shows.
    shown: Stat,
    /// What the ledger is to say of it.
    state: BaseState,
    /// The copy of a regular file, open.
    copy: Option<Arc<Opened>>,
    /// The room that it takes.
    hold: Option<Hold<'a>>,
}

struct Lower {
    layer: Arc<Layer>,
    path: RelPath,
    shared: Option<Key>,
}

impl Overlay {
    /// Whether a write to the node would first copy much: better run off the thread that answers requests.
    pub fn copies_up(&self, node: u64) -> bool {
        let Ok(node) = self.node(node) else { return false };
        let Ok(file) = node.file() else { return false };
        if !matches!(file.state.read().place, Place::Lower { .. }) {
            return self.is_partial(&node);
        }
        let _names = self.names.read();
        self.on_object(&node, |at| at.stat()).is_ok_and(|stat| stat.size >= MUCH)
    }

    /// Brings a non-directory into the upper. Must be called without `names`.
    pub(super) fn copy_up(&self, node: &Arc<Node>, bring: Bring) -> Result<()> {
        let file = node.file()?;
        if !matches!(file.state.read().place, Place::Lower { .. }) {
            return if bring == Bring::All { self.settle_node(node) } else { Ok(()) };
        }
        let upper = self.writable()?;
        let _one = node.copying.lock();
        for _ in 0..TRIES {
            let lower = match file.state.read().place.clone() {
                Place::Lower { layer, path, shared } => Lower { layer, path, shared },
                _ => return Ok(()),
            };
            let staged = upper.staging.name();
            match self.stage(upper, node, &lower, &staged, bring) {
                Ok(Some(copied)) => {
                    let placed = self.place(upper, node, &lower, &staged, copied);
                    if placed.is_err() {
                        discard(upper, &staged);
                    }
                    return placed;
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

    /// Copies the lower object to the staging area: its attributes, and the copy of a regular file, open; `None` where it
    /// changed meanwhile.
    fn stage<'a>(
        &self,
        upper: &'a Upper,
        node: &Arc<Node>,
        lower: &Lower,
        staged: &OsString,
        bring: Bring,
    ) -> Result<Option<Staged<'a>>> {
        let to = upper.staging.at(staged);
        let regular = node.file_type() == FileType::RegularFile;
        let flags = if regular { OFlags::RDONLY | OFlags::NONBLOCK } else { OFlags::PATH | OFlags::NOFOLLOW };
        let original = self.open_lower(node, &lower.layer, &lower.path, flags)?;
        let (from, shown) = (&original.fd, original.shown);
        let mut hold = upper.hold_copy(node.file_type(), &original, bring)?;
        let mut begun = None;
        let origin = Origin {
            ident: node.ident,
            dev: self.written_dev(shown.dev),
            indexed: lower.shared.is_some(),
            ctime: None,
        };
        let copy = match node.file_type() {
            FileType::RegularFile => {
                let copy = to.create(OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, 0o600)?;
                begun = self.stage_content(upper, &original, &lower.path, &copy, bring)?;
                stage_attributes(&original, &copy, &origin, bring)?;
                Some(Arc::new(copy))
            }
            FileType::Symlink => {
                let target = calls::readlinkat(from, "")?;
                to.symlink(std::os::unix::ffi::OsStrExt::from_bytes(target.as_bytes()))?;
                metadata(At::object(from), to, &shown)?;
                None
            }
            _ => {
                to.mknod(shown.mode, shown.rdev)?;
                metadata(At::object(from), to, &shown)?;
                None
            }
        };
        let content = if regular { digest(&original)? } else { None };
        let (before, after) = (original.stat, Stat::of(from.as_fd())?);
        if (after.size, after.mtime, after.ctime) != (before.size, before.mtime, before.ctime) {
            return Ok(None);
        }
        if !regular {
            upper.origins.set(to.stat()?.ident(), origin)?;
        }
        if let Some(hold) = &mut hold {
            hold.fit(&to.stat()?);
        }
        let state = BaseState { content, ..BaseState::from(&shown) };
        let copy = match (copy, begun) {
            (Some(fd), Some(begun)) => {
                let partial = self.begun(node.id, begun, Arc::clone(&fd), Arc::clone(&lower.layer), original)?;
                Some(Opened::of(fd, Some(partial)))
            }
            (copy, _) => copy.map(|fd| Opened::of(fd, None)),
        };
        Ok(Some(Staged { state, shown, copy, hold }))
    }

    /// Brings over the content, or begins to.
    fn stage_content(
        &self,
        upper: &Upper,
        original: &Original,
        path: &RelPath,
        copy: &OwnedFd,
        bring: Bring,
    ) -> Result<Option<Begun>> {
        let size = match bring {
            Bring::First(0) => return Ok(None),
            Bring::First(most) => original.stat.size.min(most),
            Bring::All | Bring::Blocks => original.stat.size,
        };
        // A prepared index may be gone from its layer by the time that the rest of it is wanted.
        let stays = path.as_bytes() != prepared::INDEX.as_bytes();
        if bring == Bring::Blocks && stays && original.stat.size >= self.large.from {
            if copy::reflink(original.fd.as_fd(), copy.as_fd())? {
                return Ok(None);
            }
            if let Some(begun) = self.begin(upper, original, path, copy)? {
                return Ok(Some(begun));
            }
        }
        copy::file_data(original.fd.as_fd(), copy.as_fd(), size).map(|_| None)
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
        let Staged { shown: stat, state, copy, hold } = copied;
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
        self.fds.remove(self.owner, node.id, Slot::Read);
        if let Some(opened) = copy {
            // The write that asked for the copy comes next.
            opened.set_id.store(stat.mode & 0o6000 != 0, Ordering::Relaxed);
            if partial.is_none() {
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

/// Mark, owner, attributes, permissions and times of a staged file. By its descriptor all along: this is where rewriting
/// a tree spends its time.
fn stage_attributes(original: &Original, copy: &OwnedFd, origin: &Origin, bring: Bring) -> Result<()> {
    let (from, shown) = (&original.fd, &original.shown);
    // Before the permissions: an ordinary user cannot mark a read-only file.
    calls::fsetxattr(copy, marks::ORIGIN, &origin.encode(), XattrFlags::empty())?;
    let mut mode = shown.mode & 0o7777;
    let ours = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if (shown.uid, shown.gid) != ours {
        let (uid, gid) = (rustix::fs::Uid::from_raw(shown.uid), rustix::fs::Gid::from_raw(shown.gid));
        match calls::fchown(copy, Some(uid), Some(gid)) {
            Err(Errno::PERM) if ours.0 != 0 => mode &= !0o6000,
            other => other?,
        }
    }
    let mut names = [0_u8; 1024];
    match calls::flistxattr(from, &mut names) {
        Ok(0) | Err(Errno::NOTSUP) => {}
        _ => copy::xattrs(At::object(from), At::object(copy), marks::is_ours)?,
    }
    calls::fchmod(copy, rustix::fs::Mode::from_raw_mode(mode))?;
    // Cut short it is changed already, whatever becomes of the call that asked for it.
    let cut = matches!(bring, Bring::First(most) if most < original.stat.size);
    let mtime = if cut { Timespec { tv_sec: 0, tv_nsec: UTIME_NOW } } else { shown.mtime.into() };
    calls::futimens(copy, &Timestamps { last_access: shown.atime.into(), last_modification: mtime })
}

/// What a small file holds, whether it is copied or about to be overwritten.
fn digest(original: &Original) -> Result<Option<Digest>> {
    if original.stat.size > ledger::NOTED {
        return Ok(None);
    }
    let mut content = vec![0; usize::try_from(original.stat.size).map_err(|_| Errno::FBIG)?];
    let mut done = 0;
    while done < content.len() {
        match calls::pread(&original.fd, &mut content[done..], done as u64) {
            // Shorter by now: the check whether it stood still comes next.
            Ok(0) => return Ok(None),
            Ok(n) => done += n,
            Err(e) => return Err(e),
        }
    }
    Ok(Some(Digest::of(&content)))
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

/// Owner, attributes, permissions and times, without our marks.
///
/// An ordinary user cannot give files away: what somebody else owns in the base becomes the user's own copy, without
/// set-id bits.
pub(super) fn metadata(from: At<'_>, to: At<'_>, stat: &Stat) -> Result<()> {
    let mut wanted = *stat;
    match copy::owner(to, stat) {
        Err(Errno::PERM) if !rustix::process::geteuid().is_root() => wanted.mode &= !0o6000,
        other => other?,
    }
    copy::xattrs(from, to, marks::is_ours)?;
    copy::permissions(to, &wanted)?;
    copy::times(to, stat)
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
