//! Taking names away: unlink, rmdir, and the whiteouts that take their place.
//!
//! The name goes in one atomic step: by unlinking where nothing lower would show through, else by a whiteout that is
//! renamed over it or made in its place. Whether somebody still has the file open is not known here; the node keeps what
//! it needs (an unnamed descriptor of an upper file; a lower file stays where it is) until the kernel forgets it, which
//! for files that nobody has open is at once.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::{OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use super::copyup::discard;
use super::fds::{Opened, Slot};
use super::node::{Kind, Node, Place};
use super::orphan::Grip;
use super::shell::move_dir;
use super::{Overlay, Result, Upper};
use crate::layer::index::{Key, Links};
use crate::layer::ledger::BaseState;
use crate::layer::marks;
use crate::layer::resolve::Found;
use crate::names::Name;
use crate::sys::calls::Dir as DirStream;
use crate::sys::{At, Stat, Time};

impl Overlay {
    /// Takes a name from a file.
    pub fn unlink(&self, parent: u64, name: &OsStr) -> Result<()> {
        let unlinked = self.unlink_name(parent, name);
        self.touched_name(parent, name);
        unlinked
    }

    fn unlink_name(&self, parent: u64, name: &OsStr) -> Result<()> {
        let name = Name::new(name)?;
        let parent = self.node(parent)?;
        let upper = self.writable()?;
        let _names = self.names.read();
        let (found, below) = self.find_both(&parent, name.as_os_str())?;
        let found = found.ok_or(Errno::NOENT)?;
        if is_dir(&found) {
            return Err(Errno::ISDIR);
        }
        self.note_hidden(upper, below.as_ref())?;
        let dir = self.copy_up_dir_to_remove(&parent)?;
        let _change = parent.dir()?.change.lock();
        let _room = upper.room(&parent, At::object(&*dir.fd))?;
        self.unborrow(&parent)?;
        let leaving = self.before_leaving(upper, &parent, &name, found)?;
        let gone = match below {
            Some(_) => self.cover(upper, &parent, &dir, &name, leaving.physical),
            None => At::new(&*dir.fd, &name).unlink(),
        };
        match gone {
            Ok(()) => self.after_leaving(upper, &parent, &name, leaving),
            Err(e) => return Err(self.stays(upper, leaving, e)),
        }
        self.unlisted(&parent, &name);
        Ok(())
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: u64, name: &OsStr) -> Result<()> {
        let name = Name::new(name)?;
        let parent = self.node(parent)?;
        let upper = self.writable()?;
        let _names = self.names.read();
        let found = self.find(&parent, name.as_os_str())?.ok_or(Errno::NOENT)?;
        let Found::Dir { upper: physical, .. } = &found else { return Err(Errno::NOTDIR) };
        let physical = physical.is_some();
        let (node, attr) = self.enter(&parent, name.clone(), found)?;
        let removed = self.remove_dir(upper, &parent, &name, &node, attr, physical);
        self.forget(node.id, 1);
        self.touched_name(parent.id, name.as_os_str());
        removed
    }

    fn remove_dir(
        &self,
        upper: &Upper,
        parent: &Arc<Node>,
        name: &Name,
        node: &Arc<Node>,
        attr: Stat,
        physical: bool,
    ) -> Result<()> {
        if !self.is_empty(node)? {
            return Err(Errno::NOTEMPTY);
        }
        self.pin(node)?;
        let below = self.find_below(parent, name.as_os_str())?;
        self.note_hidden(upper, below.as_ref())?;
        let dir = self.copy_up_dir_to_remove(parent)?;
        let _change = parent.dir()?.change.lock();
        let _room = upper.room(parent, At::object(&*dir.fd))?;
        self.unborrow(parent)?;
        let at = At::new(&*dir.fd, name);
        let staged = match (below.is_some(), physical) {
            (true, true) => {
                self.allow_whiteouts(upper, parent, &dir)?;
                let staged = upper.staging.staged_whiteout()?;
                move_dir(at, upper.staging.at(&staged), RenameFlags::EXCHANGE)?;
                Some(staged)
            }
            (true, false) => {
                self.cover(upper, parent, &dir, name, false)?;
                None
            }
            (false, _) => {
                let staged = upper.staging.name();
                move_dir(at, upper.staging.at(&staged), RenameFlags::empty())?;
                Some(staged)
            }
        };
        if let Some(staged) = staged {
            self.put_away(upper, node, staged);
        }
        self.mark_removed(node, attr)?;
        self.count_subdirectory(parent, -1);
        self.unlisted(parent, name);
        Ok(())
    }

    /// The directory is gone; whoever still has it open sees its last attributes.
    pub(super) fn mark_removed(&self, node: &Arc<Node>, mut attr: Stat) -> Result<()> {
        attr.nlink = 0;
        node.dir()?.state.write().removed = Some(Box::new(attr));
        self.writable()?.lost_its_name(node);
        self.fds.remove(self.owner, node.id, Slot::UpperDir);
        self.forget_listing(node);
        Ok(())
    }

    /// Whether a directory shows no entry.
    pub(super) fn is_empty(&self, node: &Arc<Node>) -> Result<bool> {
        let mut empty = true;
        self.list(node, 2, &mut |_| {
            empty = false;
            true
        })?;
        Ok(empty)
    }

    /// Notes the state of a base object that is about to be hidden.
    pub(super) fn note_hidden(&self, upper: &Upper, below: Option<&Found>) -> Result<()> {
        match below {
            Some(Found::Lower { path, stat, .. }) => upper.note(path, BaseState::from(stat)),
            Some(Found::Dir { lowers, top: Some(stat), .. }) => match lowers.first() {
                Some(lower) => upper.note(&lower.path, BaseState::from(stat)),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Puts a whiteout where the name is, replacing an upper file in one step: `physical`, if one stands there.
    fn cover(&self, upper: &Upper, parent: &Arc<Node>, dir: &Opened, name: &Name, physical: bool) -> Result<()> {
        self.allow_whiteouts(upper, parent, dir)?;
        let at = At::new(&*dir.fd, name);
        if !physical {
            match upper.staging.whiteout(at) {
                // A whiteout that is there already.
                Err(Errno::EXIST) => {}
                other => return other,
            }
        }
        let staged = upper.staging.staged_whiteout()?;
        upper.staging.at(&staged).rename(at).inspect_err(|_| discard(upper, &staged))
    }

    /// Marks a directory to hold whiteouts in attribute form, where they have that form.
    pub(super) fn allow_whiteouts(&self, upper: &Upper, node: &Arc<Node>, dir: &Opened) -> Result<()> {
        if upper.staging.whiteouts_are_devices() || node.dir()?.state.read().attribute_whiteouts {
            return Ok(());
        }
        let at = At::object(&*dir.fd);
        // An opaque directory has nothing to white out, and its mark must not be lost.
        marks::of_upper(at, |at| match at.xattr(OsStr::new(marks::OPAQUE))?.as_deref() {
            Some(b"y") => Ok(()),
            _ => at.set_xattr(OsStr::new(marks::OPAQUE), b"x", XattrFlags::empty()),
        })?;
        node.dir()?.state.write().attribute_whiteouts = true;
        Ok(())
    }

    /// Takes hold of what a file that loses a name needs afterwards.
    pub(super) fn before_leaving(
        &self,
        upper: &Upper,
        parent: &Arc<Node>,
        name: &Name,
        found: Found,
    ) -> Result<Leaving> {
        let stat = match &found {
            Found::Upper { stat, .. } | Found::Lower { stat, .. } => *stat,
            Found::Dir { .. } => return Err(Errno::ISDIR),
        };
        let physical = matches!(found, Found::Upper { .. });
        let (node, attr) = self.enter(parent, name.clone(), found)?;
        let last = attr.nlink <= 1;
        let (place, unreachable) = {
            let state = node.file()?.state.read();
            (state.place.clone(), state.links.len() <= 1)
        };
        // Other names in the upper may be left, but where none is known the node could not be opened by one.
        let orphan = match (&place, last || unreachable) {
            (Place::Upper, true) => {
                let dir = self.upper_dir(parent)?;
                Some(self.grip(upper, &node, At::new(&*dir.fd, name)))
            }
            (Place::Index(key), true) if last => {
                Some(self.grip(upper, &node, At::new(upper.index.dir(), &key.file_name())))
            }
            _ => None,
        };
        // The count goes down before the name goes: what fails here is an answer, later it could be none.
        let key = match &place {
            Place::Index(key) => Some(*key),
            Place::Lower { shared, .. } => *shared,
            _ => None,
        };
        let held = orphan.transpose().and_then(|orphan| {
            if let Some(grip) = &orphan {
                upper.about_to_lose_its_name(&node, grip.at())?;
            }
            let counted = key.map(|key| upper.count_name(key, |_| attr.nlink.saturating_sub(1))).transpose()?;
            Ok((orphan, counted))
        });
        let (orphan, counted) = held.inspect_err(|_| self.forget(node.id, 1))?;
        Ok(Leaving { node, nlink: attr.nlink, stat, physical, orphan, counted })
    }

    /// The name could not be taken away: everything as it was.
    pub(super) fn stays(&self, upper: &Upper, leaving: Leaving, error: Errno) -> Errno {
        if let Some(counted) = leaving.counted {
            upper.count_back(counted);
        }
        self.forget(leaving.node.id, 1);
        error
    }

    /// The name is gone: brings the node up to date.
    pub(super) fn after_leaving(&self, upper: &Upper, parent: &Arc<Node>, name: &Name, leaving: Leaving) {
        let Leaving { node, nlink, stat, physical, orphan, .. } = leaving;
        let Kind::File(file) = &node.kind else { return };
        let mut state = file.state.write();
        state.links.retain(|(dir, link)| dir.id != parent.id || link != name);
        let indexed = match state.place {
            Place::Index(key) => Some(key),
            _ => None,
        };
        let last = nlink <= 1;
        if last {
            // Names that we never heard of cannot be left: the count says so.
            state.links.clear();
        }
        if let Some(grip) = orphan {
            state.place = Place::Orphan(grip);
            if last {
                upper.lost_its_name(&node);
            }
        }
        drop(state);
        if let (Some(key), true) = (indexed, last)
            && let Err(e) = upper.index.drop_data(key)
        {
            // Nothing leads to it any more; it costs its space until the fork goes.
            log::warn!("cannot drop the data of a file that has no name any more: {e}");
        }
        if physical && last && !stat.is_file() {
            upper.drop_origin(stat.ident());
        }
        self.forget(node.id, 1);
    }
}

/// A number of names as it was before it was changed.
pub(super) struct Counted(Key, Option<Links>);

impl Upper {
    /// Changes how many names a file of the index has.
    pub(super) fn count_name(&self, key: Key, change: impl FnOnce(u32) -> u32) -> Result<Counted> {
        let before = self.index.links(key);
        let count = change(before.map_or(1, |links| links.count));
        self.index.set_links(&self.staging, key, Links { count, since: Time::now() })?;
        Ok(Counted(key, before))
    }

    /// Takes that back.
    pub(super) fn count_back(&self, Counted(key, before): Counted) {
        if let Err(e) = self.index.restore_links(&self.staging, key, before) {
            log::warn!("a file shows a wrong number of names: {e}");
        }
    }
}

/// A file that is about to lose a name.
pub(super) struct Leaving {
    pub(super) node: Arc<Node>,
    nlink: u32,
    stat: Stat,
    physical: bool,
    orphan: Option<Grip>,
    counted: Option<Counted>,
}

/// Removes a directory that was renamed to the staging area: only whiteouts can be in it.
pub(super) fn discard_dir(upper: &Upper, staged: &OsString) {
    if let Err(e) = discard_whiteouts(upper.staging.at(staged)) {
        // The next mount clears the staging area.
        log::warn!("cannot clear a removed directory: {e}");
    }
}

fn discard_whiteouts(at: At<'_>) -> Result<()> {
    match at.rmdir() {
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        other => return other,
    }
    // An ordinary user may have taken the permission to write away.
    at.chmod(0o700)?;
    let dir = at.open(OFlags::RDONLY | OFlags::DIRECTORY)?;
    for entry in DirStream::read_from(&dir)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            At::new(&dir, name).unlink()?;
        }
    }
    at.rmdir()
}

/// Whether the node is a directory; for what has to be told apart before a rename.
pub(super) fn is_dir(found: &Found) -> bool {
    matches!(found, Found::Dir { .. })
}

impl Node {
    /// The node as a parent of entries.
    pub(super) fn known_as(&self, parent: &Node, name: &Name) -> bool {
        match &self.kind {
            Kind::Dir(dir) => {
                dir.state.read().link.as_ref().is_some_and(|(above, link)| above.id == parent.id && link == name)
            }
            Kind::File(file) => {
                file.state.read().links.iter().any(|(above, link)| above.id == parent.id && link == name)
            }
        }
    }
}
