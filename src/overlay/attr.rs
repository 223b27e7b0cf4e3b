//! Reading and setting attributes.
//!
//! What a node shows is what the file system says of the object behind it, with the node's own number, the fork's count
//! of names, and for a directory that is in the upper only as a way to something else the change time of the lower.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::{FileType, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;

use super::copyup::{Bring, MUCH};
use super::fds::{Opened, Slot};
use super::lookup::gone;
use super::node::{Dir, Kind, Node, Place};
use super::{Attr, Caller, FOREVER, Overlay, Result, SetAttr, SetTime};
use crate::layer::marks::{self, Origin};
use crate::layer::tree::Layer;
use crate::names::RelPath;
use crate::sys::{At, Stat, Time};

/// The lower layer that an object is in, and what it shows there.
type InLower<'a> = Option<(&'a Layer, Stat)>;

impl Overlay {
    /// The attributes of a node, and for how long they may be believed.
    pub fn getattr(&self, node: u64) -> Result<(Attr, Duration)> {
        let node = self.node(node)?;
        let _names = self.names.read();
        self.answer(&node)
    }

    /// What a node shows, and how long that may be believed. The caller holds `names`.
    fn answer(&self, node: &Arc<Node>) -> Result<(Attr, Duration)> {
        Ok(self.tell(node, self.attr(node)?, self.attr_ttl(node)))
    }

    /// Changes attributes; the answer is as of [`getattr`](Self::getattr).
    pub fn setattr(&self, caller: Caller, node: u64, change: &SetAttr) -> Result<(Attr, Duration)> {
        let set = self.set_attributes(caller, node, change);
        let only_times = change.mode.is_none() && change.uid.is_none() && change.gid.is_none();
        // To name a directory is to say that all in it may have changed, which times of its own do not mean.
        if !(only_times && self.node(node).is_ok_and(|node| node.is_dir())) {
            self.touched(node);
        }
        set
    }

    fn set_attributes(&self, caller: Caller, node: u64, change: &SetAttr) -> Result<(Attr, Duration)> {
        let node = self.node(node)?;
        self.writable()?;
        match &node.kind {
            Kind::Dir(dir) => {
                let _names = self.names.read();
                if let Some(last) = &mut dir.state.write().removed {
                    change_removed(last, change);
                    return Ok((**last, FOREVER));
                }
                self.copy_up_dir(&node)?;
                let _change = dir.change.lock();
                self.on_object(&node, |at| apply(at, change))?;
                dir.state.write().inherit = None;
                self.unborrow(&node)?;
                self.answer(&node)
            }
            Kind::File(file) => {
                if change.is_empty() {
                    self.drop_set_id(&node)?;
                    let _names = self.names.read();
                    return self.answer(&node);
                }
                let new = self.copy_up(&node, change.size.map_or(Bring::All, Bring::First))?;
                if let Some(size) = change.size {
                    // Of a copy that was made for this nothing was brought along.
                    let empty = new && size == 0;
                    self.truncate(&node, size, empty, caller.uid != 0)?;
                }
                let _names = self.names.read();
                if change.mode.is_some() && file.file_type == FileType::Symlink {
                    return Err(Errno::OPNOTSUPP);
                }
                self.on_object(&node, |at| apply(at, change))?;
                if change.mode.is_some()
                    && let Some(opened) = self.fds.get(self.owner, node.id, Slot::Write)
                {
                    // Whether a write has to clear set-id bits is worked out again.
                    opened.set_id.store(true, Ordering::Relaxed);
                }
                self.answer(&node)
            }
        }
    }

    /// The attributes of a node. The caller holds `names`.
    pub(super) fn attr(&self, node: &Arc<Node>) -> Result<Attr> {
        match &node.kind {
            Kind::Dir(dir) => {
                let (removed, upper, lowers) = {
                    let state = dir.state.read();
                    (state.removed.clone(), state.upper, Arc::clone(&state.lowers))
                };
                if let Some(last) = removed {
                    return Ok(*last);
                }
                let stat = match (upper, lowers.first()) {
                    (true, _) => At::object(&*self.upper_dir(node)?.fd).stat()?,
                    (false, Some(lower)) => {
                        let (layer, fd) = self.lower_dir(node, lower)?;
                        let at = At::object(&*fd);
                        self.without_our_names(&layer, layer.shown(at, at.stat()?)?)
                    }
                    (false, None) => return Err(Errno::STALE),
                };
                self.dir_attr(node, stat)
            }
            Kind::File(_) => {
                let stat = self.on_object_of(node, |at, lower| match lower {
                    Some((layer, shown)) => Ok(self.without_our_names(layer, shown)),
                    None => at.stat(),
                })?;
                self.file_attr(node, stat)
            }
        }
    }

    /// What a file shows whose object has these attributes.
    pub(super) fn file_attr(&self, node: &Node, mut stat: Stat) -> Result<Attr> {
        let file = node.file()?;
        file.much.store(stat.size >= MUCH, Ordering::Relaxed);
        if let Some(partial) = self.upper.as_ref().and_then(|upper| upper.partials.get(stat.ident())) {
            stat = partial.shown(stat);
        }
        stat.ino = node.ino;
        let state = file.state.read();
        let key = match &state.place {
            Place::Index(key) => Some(*key),
            Place::Lower { shared, .. } => *shared,
            Place::Upper | Place::Orphan(_) => None,
        };
        let links = key.zip(self.upper.as_ref()).and_then(|(key, upper)| upper.index.links(key));
        if let Some(links) = links {
            stat.nlink = links.count;
            stat.ctime = stat.ctime.max(links.since);
        } else if state.links.is_empty() && matches!(state.place, Place::Lower { .. }) {
            // The object goes on having its names in the base; an upper one without a name says 0 itself.
            stat.nlink = 0;
        } else if let Place::Orphan(grip) = &state.place {
            stat.nlink = stat.nlink.saturating_sub(grip.names());
        }
        Ok(stat)
    }

    /// What a directory shows whose object has these attributes.
    pub(super) fn dir_attr(&self, node: &Arc<Node>, mut stat: Stat) -> Result<Attr> {
        stat.ino = node.ino;
        let (upper, merged, borrowed) = {
            let state = node.dir()?.state.read();
            (state.upper, !state.lowers.is_empty(), state.borrowed_ctime)
        };
        if let Some(ctime) = borrowed {
            stat.ctime = ctime;
        }
        if !upper || !merged {
            return Ok(stat);
        }
        let below = self.lower_stat(node).ok();
        // What others add to or take from the lower directory changes the entries of this one, too.
        stat.ctime = below.map_or(stat.ctime, |below| stat.ctime.max(below.ctime));
        // A file system that does not count subdirectories says 1; so do we, as on the base.
        if stat.nlink > 1 {
            stat.nlink = 2 + self.subdirectories(node, stat.nlink - 2, below.as_ref())?;
        }
        Ok(stat)
    }

    /// What the lower directory shows that shows through a directory in the upper.
    fn lower_stat(&self, node: &Arc<Node>) -> Result<Stat> {
        let lower = node.dir()?.state.read().lowers.first().cloned().ok_or(Errno::NOENT)?;
        let (layer, fd) = self.lower_dir(node, &lower)?;
        let at = At::object(&*fd);
        Ok(self.without_our_names(&layer, layer.shown(at, at.stat()?)?))
    }

    /// Runs a call on the object behind a node, wherever it is. The caller holds `names`.
    pub(super) fn on_object<T>(&self, node: &Arc<Node>, call: impl FnOnce(At<'_>) -> Result<T>) -> Result<T> {
        match &node.kind {
            Kind::Dir(dir) => self.on_dir(node, dir, call),
            Kind::File(_) => self.on_object_of(node, |at, _| call(at)),
        }
    }

    fn on_dir<T>(&self, node: &Arc<Node>, dir: &Dir, call: impl FnOnce(At<'_>) -> Result<T>) -> Result<T> {
        let (upper, lowers) = {
            let state = dir.state.read();
            if state.is_removed() {
                return Err(Errno::NOENT);
            }
            (state.upper, Arc::clone(&state.lowers))
        };
        match lowers.first() {
            Some(lower) if !upper => call(At::object(&*self.lower_dir(node, lower)?.1)),
            _ => call(At::object(&*self.upper_dir(node)?.fd)),
        }
    }

    /// The same for a non-directory; the call is told the lower layer it is in, if it is in one, and what it shows there.
    fn on_object_of<T>(&self, node: &Arc<Node>, call: impl FnOnce(At<'_>, InLower<'_>) -> Result<T>) -> Result<T> {
        let file = node.file()?;
        let (place, link) = {
            let state = file.state.read();
            (state.place.clone(), state.links.first().cloned())
        };
        match place {
            Place::Lower { layer, path, .. } => self.on_lower(node, &layer, &path, call),
            Place::Upper => {
                let (parent, name) = link.ok_or(Errno::STALE)?;
                let dir = self.upper_dir(&parent)?;
                call(At::new(&*dir.fd, &name), None)
            }
            Place::Index(key) => call(At::new(self.writable()?.index.dir(), &key.file_name()), None),
            Place::Orphan(grip) => call(grip.at(), None),
        }
    }

    /// Runs a call on a lower object, once it is sure that it is the one we mean.
    fn on_lower<T>(
        &self,
        node: &Arc<Node>,
        layer: &Layer,
        path: &RelPath,
        call: impl FnOnce(At<'_>, InLower<'_>) -> Result<T>,
    ) -> Result<T> {
        let at = At { dir: layer.root.as_fd(), name: path.as_path().as_os_str() };
        match at.stat().and_then(|stat| layer.shown(at, stat)).map_err(gone) {
            Ok(shown) if shown.ident() == node.ident => return call(at, Some((layer, shown))),
            Ok(_) | Err(Errno::STALE) => {}
            Err(e) => return Err(e),
        }
        if let Some(layer) = self.relocate(node, path)? {
            let at = At { dir: layer.root.as_fd(), name: path.as_path().as_os_str() };
            let shown = layer.shown(at, at.stat()?)?;
            return call(at, Some((&layer, shown)));
        }
        // Replaced or deleted in the base by somebody else, but still open here.
        match self.fds.get(self.owner, node.id, Slot::Read) {
            Some(opened) => call(At::object(&*opened.fd), None),
            None => Err(Errno::STALE),
        }
    }

    /// The directory itself was changed: its change time is its own from now on.
    pub(super) fn unborrow(&self, node: &Arc<Node>) -> Result<()> {
        let dir = node.dir()?;
        if dir.state.read().borrowed_ctime.is_none() {
            return Ok(());
        }
        let opened: Arc<Opened> = self.upper_dir(node)?;
        let at = At::object(&*opened.fd);
        if let Some(origin) = marks::of_upper(at, marks::read_origin)? {
            marks::set_origin(at, &Origin { ctime: None, ..origin })?;
        }
        dir.state.write().borrowed_ctime = None;
        Ok(())
    }

    /// A change of nothing is what the kernel makes of clearing set-id bits before a write (or of `chown(-1, -1)`, which
    /// clears them as well), and it keeps the attributes that we answer.
    fn drop_set_id(&self, node: &Arc<Node>) -> Result<()> {
        let mode = {
            let _names = self.names.read();
            self.attr(node)?.mode
        };
        let cleared = without_set_id(mode);
        if node.file_type() != FileType::RegularFile || cleared == mode {
            return Ok(());
        }
        self.copy_up(node, Bring::All)?;
        let _names = self.names.read();
        self.fds.remove(self.owner, node.id, Slot::Write);
        self.on_object(node, |at| at.chmod(cleared))
    }

    /// Whether the file may have set-id bits that a write has to clear.
    pub(super) fn clear_set_id(&self, opened: &Opened) -> Result<()> {
        if !opened.set_id.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let at = At::object(&*opened.fd);
        let mode = at.stat()?.mode;
        match without_set_id(mode) {
            same if same == mode => Ok(()),
            cleared => at.chmod(cleared),
        }
    }
}

/// A mode after a write by somebody without `CAP_FSETID`: set-user-id goes, set-group-id goes where the group may
/// execute (without that it means mandatory locking, see `chmod(2)`).
pub(super) fn without_set_id(mode: u32) -> u32 {
    let group = if mode & 0o010 != 0 { 0o2000 } else { 0 };
    mode & !(0o4000 | group)
}

fn apply(at: At<'_>, change: &SetAttr) -> Result<()> {
    if change.uid.is_some() || change.gid.is_some() {
        at.chown(change.uid, change.gid)?;
    }
    if let Some(mode) = change.mode {
        at.chmod(mode)?;
    }
    if change.atime.is_some() || change.mtime.is_some() {
        at.utimens(&Timestamps { last_access: time(change.atime), last_modification: time(change.mtime) })?;
    }
    Ok(())
}

/// A directory that is gone has nothing on disk to change, but whoever has it open may go on.
fn change_removed(last: &mut Attr, change: &SetAttr) {
    let now = Time::now();
    let to = |change: Option<SetTime>, old: Time| match change {
        None => old,
        Some(SetTime::Now) => now,
        Some(SetTime::To(time)) => time,
    };
    last.uid = change.uid.unwrap_or(last.uid);
    last.gid = change.gid.unwrap_or(last.gid);
    last.mode = change.mode.map_or(last.mode, |mode| last.mode & !0o7777 | mode & 0o7777);
    last.atime = to(change.atime, last.atime);
    last.mtime = to(change.mtime, last.mtime);
    last.ctime = now;
}

fn time(change: Option<SetTime>) -> Timespec {
    match change {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::To(time)) => time.into(),
    }
}
