//! New entries: files, directories, links.
//!
//! An entry is made right in the upper directory where the name is free there, so that the file system applies default
//! ACLs and set-group-id itself. Over a whiteout it is made in a staging directory that inherits the same, and renamed.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{FileType, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use super::copyup::{Bring, discard};
use super::fds::{Opened, Slot};
use super::node::{Inherit, Kind, Node, Place};
use super::quota::Hold;
use super::shell::move_dir;
use super::{Caller, Entry, Overlay, Result, Upper};
use crate::layer::marks;
use crate::layer::resolve::Found;
use crate::names::Name;
use crate::sys::{At, Stat};

/// What kind of entry to make.
enum New<'a> {
    /// File type and permissions, device number.
    Node(u32, u64),
    Dir(u32),
    Symlink(&'a OsStr),
}

impl Overlay {
    /// Makes a file of any type but directory and symbolic link.
    pub fn mknod(&self, caller: Caller, parent: u64, name: &OsStr, mode: u32, umask: u32, rdev: u64) -> Result<Entry> {
        let made = self.make(caller, parent, name, umask, &New::Node(mode, rdev));
        self.touched_name(parent, name);
        made
    }

    /// Makes a directory.
    pub fn mkdir(&self, caller: Caller, parent: u64, name: &OsStr, mode: u32, umask: u32) -> Result<Entry> {
        let made = self.make(caller, parent, name, umask, &New::Dir(mode));
        self.touched_name(parent, name);
        made
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, caller: Caller, parent: u64, name: &OsStr, target: &OsStr) -> Result<Entry> {
        let made = self.make(caller, parent, name, 0, &New::Symlink(target));
        self.touched_name(parent, name);
        made
    }

    fn make(&self, caller: Caller, parent: u64, name: &OsStr, umask: u32, new: &New<'_>) -> Result<Entry> {
        let name = Name::new(name)?;
        let parent = self.node(parent)?;
        let upper = self.writable()?;
        let _names = self.names.read();
        let crowded = self.must_be_free(&parent, name.as_os_str())?;
        let mut hold = new.hold(upper)?;
        let dir = self.copy_up_dir(&parent)?;
        let inherit = self.inherit(&parent, &dir)?;
        let _change = parent.dir()?.change.lock();
        let _room = upper.room(&parent, At::object(&*dir.fd))?;
        let to = At::new(&*dir.fd, &name);
        let mask = if inherit.default_acl { 0 } else { umask };
        let owner = Owner { caller, set_gid: inherit.set_gid };
        self.unborrow(&parent)?;
        let (opened, stat) = match make_at(to, new, mask) {
            // A whiteout stands there: make the entry aside and rename it over.
            Err(Errno::EXIST) if crowded => (make_over(upper, &dir, to, new, mask, &owner)?, None),
            Ok(opened) => {
                let stat = finish(to, new, mask, inherit.default_acl, &owner, crowded);
                (opened, Some(stat.inspect_err(|_| undo(to, new))?))
            }
            Err(e) => return Err(e),
        };
        let entered = stat.map_or_else(|| to.stat(), Ok).and_then(|stat| {
            if let Some(hold) = &mut hold {
                hold.fit(&stat);
            }
            let found = match new {
                New::Dir(_) => {
                    Found::Dir { upper: Some((stat, marks::DirMarks::default())), lowers: Vec::new(), top: None }
                }
                _ => Found::Upper { stat, origin: None },
            };
            Ok((stat, self.enter(&parent, name.clone(), found)?))
        });
        let (stat, (node, attr)) = match (entered, hold) {
            (Ok(entered), hold) => {
                if let Some(hold) = hold {
                    hold.charge(&entered.1.0);
                }
                entered
            }
            // It stands: whoever is told of a failure finds it all the same.
            (Err(e), hold) => {
                hold.into_iter().for_each(Hold::keep);
                self.forget_listing(&parent);
                return Err(e);
            }
        };
        if let Kind::Dir(dir) = &node.kind {
            self.count_subdirectory(&parent, 1);
            // As it has inherited it itself.
            dir.state.write().inherit = Some(Inherit { set_gid: stat.mode & 0o2000 != 0, ..inherit });
        }
        if let Some(fd) = opened {
            let opened = Opened::new(fd);
            opened.set_id.store(stat.mode & 0o6000 != 0, Ordering::Relaxed);
            opened.incapable.store(true, Ordering::Relaxed);
            self.fds.put(self.owner, node.id, Slot::Write, opened);
        }
        self.listed(&parent, &name, node.ino, node.file_type());
        Ok(self.entry(&parent, &node, attr))
    }

    /// Gives a file one more name.
    pub fn link(&self, node: u64, parent: u64, name: &OsStr) -> Result<Entry> {
        let linked = self.link_node(node, parent, name);
        self.touched_name(parent, name);
        linked
    }

    fn link_node(&self, node: u64, parent: u64, name: &OsStr) -> Result<Entry> {
        let name = Name::new(name)?;
        let (node, parent) = (self.node(node)?, self.node(parent)?);
        let upper = self.writable()?;
        let file = node.file().map_err(|_| Errno::PERM)?;
        upper.hold_name()?;
        self.copy_up(&node, Bring::All)?;
        let _names = self.names.read();
        let crowded = self.must_be_free(&parent, name.as_os_str())?;
        let dir = self.copy_up_dir(&parent)?;
        let _change = parent.dir()?.change.lock();
        let _room = upper.room(&parent, At::object(&*dir.fd))?;
        let to = At::new(&*dir.fd, &name);
        let place = file.state.read().place.clone();
        if let Place::Orphan(_) = place {
            return Err(Errno::NOENT);
        }
        self.unborrow(&parent)?;
        // Counted first: what fails from here on is taken back.
        let counted = match place {
            Place::Index(key) => Some(upper.count_name(key, |count| count + 1)?),
            _ => None,
        };
        let linked = self.on_object(&node, |from| match from.link_to(to) {
            Err(Errno::EXIST) if crowded => {
                let staged = upper.staging.name();
                from.link_to(upper.staging.at(&staged))?;
                upper.staging.at(&staged).rename(to).inspect_err(|_| discard(upper, &staged))
            }
            other => other,
        });
        if let (Err(_), Some(counted)) = (&linked, counted) {
            upper.count_back(counted);
        }
        linked?;
        file.state.write().links.push((Arc::clone(&parent), name.clone()));
        node.lookups.fetch_add(1, Ordering::Relaxed);
        self.listed(&parent, &name, node.ino, node.file_type());
        let attr = self.attr(&node).inspect_err(|_| self.forget(node.id, 1))?;
        Ok(self.entry(&parent, &node, attr))
    }

    /// `EEXIST` where the name is taken; whether the directory has lowers, which a new directory in it has to hide (also
    /// from what somebody may put there later).
    fn must_be_free(&self, parent: &Arc<Node>, name: &OsStr) -> Result<bool> {
        let crowded = {
            let state = parent.dir()?.state.read();
            if state.is_removed() {
                return Err(Errno::NOENT);
            }
            !state.lowers.is_empty()
        };
        // Where only the upper counts, making the entry there finds out.
        if crowded && self.find(parent, name)?.is_some() { Err(Errno::EXIST) } else { Ok(crowded) }
    }

    /// What new entries inherit from a directory that stands in the upper.
    fn inherit(&self, node: &Arc<Node>, opened: &Opened) -> Result<Inherit> {
        let dir = node.dir()?;
        if let Some(inherit) = dir.state.read().inherit {
            return Ok(inherit);
        }
        let at = At::object(&*opened.fd);
        let default_acl = at.xattr(OsStr::new(marks::DEFAULT_ACL))?.is_some();
        let inherit = Inherit { set_gid: at.stat()?.mode & 0o2000 != 0, default_acl };
        dir.state.write().inherit = Some(inherit);
        Ok(inherit)
    }
}

impl New<'_> {
    /// Room for it, where the fork has limits.
    fn hold<'a>(&self, upper: &'a Upper) -> Result<Option<Hold<'a>>> {
        match *self {
            New::Node(..) => upper.hold_new(FileType::RegularFile, None),
            New::Dir(_) => upper.hold_new(FileType::Directory, None),
            New::Symlink(target) => upper.hold_new(FileType::Symlink, Some(target)),
        }
    }
}

/// Who a new entry belongs to.
struct Owner {
    caller: Caller,
    /// The group comes from the directory.
    set_gid: bool,
}

/// Makes the entry; a regular file stays open.
fn make_at(at: At<'_>, new: &New<'_>, mask: u32) -> Result<Option<OwnedFd>> {
    match *new {
        New::Node(mode, rdev) => match FileType::from_raw_mode(mode) {
            FileType::RegularFile | FileType::Unknown => {
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
                at.create(flags, mode & !mask & 0o7777).map(Some)
            }
            // To the kernel's overlay this very device is a whiteout: nobody can have one inside.
            FileType::CharacterDevice if rdev == 0 => Err(Errno::PERM),
            _ => at.mknod(mode & !mask, rdev).map(|()| None),
        },
        New::Dir(mode) => at.mkdir(mode & !mask & 0o7777).map(|()| None),
        New::Symlink(target) => at.symlink(target).map(|()| None),
    }
}

/// Owner, and what that or our own umask took away; the mark of a directory that hides lower entries. The attributes
/// that the entry has then.
fn finish(at: At<'_>, new: &New<'_>, mask: u32, default_acl: bool, owner: &Owner, opaque: bool) -> Result<Stat> {
    if opaque && matches!(new, New::Dir(_)) {
        // Before it is looked at, since it changes a time.
        marks::set_opaque(at)?;
    }
    let mut stat = at.stat()?;
    if chown_to(at, &stat, owner)? {
        stat = at.stat()?;
    }
    let wanted = match *new {
        New::Node(mode, _) => mode & !mask & 0o7777,
        // A new directory keeps the set-group-id bit that it inherited.
        New::Dir(mode) => (mode & !mask & 0o7777) | (stat.mode & 0o2000),
        New::Symlink(_) => return Ok(stat),
    };
    if default_acl || stat.mode & 0o7777 == wanted {
        return Ok(stat);
    }
    at.chmod(wanted)?;
    at.stat()
}

/// Gives the entry its owner; whether anything had to change.
fn chown_to(at: At<'_>, stat: &Stat, owner: &Owner) -> Result<bool> {
    let uid = (stat.uid != owner.caller.uid).then_some(owner.caller.uid);
    let gid = (!owner.set_gid && stat.gid != owner.caller.gid).then_some(owner.caller.gid);
    if uid.is_none() && gid.is_none() {
        return Ok(false);
    }
    match at.chown(uid, gid) {
        // An ordinary user's server serves that user alone; a group it is not in cannot be given.
        Err(Errno::PERM) if !rustix::process::geteuid().is_root() => Ok(false),
        other => other.map(|()| true),
    }
}

/// Makes the entry aside, in a directory that passes on the same group and ACL, and renames it over a whiteout.
fn make_over(
    upper: &Upper,
    dir: &Opened,
    to: At<'_>,
    new: &New<'_>,
    mask: u32,
    owner: &Owner,
) -> Result<Option<OwnedFd>> {
    let nest = upper.staging.name();
    let at = upper.staging.at(&nest);
    at.mkdir(0o700)?;
    let made = (|| {
        let model = At::object(&*dir.fd);
        let stat = model.stat()?;
        let acl = model.xattr(OsStr::new(marks::DEFAULT_ACL))?;
        if stat.mode & 0o2000 != 0 {
            at.chown(None, Some(stat.gid))?;
            at.chmod(0o2700)?;
        }
        if let Some(acl) = &acl {
            at.set_xattr(OsStr::new(marks::DEFAULT_ACL), acl, XattrFlags::empty())?;
        }
        let nest = at.open(OFlags::PATH | OFlags::DIRECTORY)?;
        let staged = At::new(&nest, "new");
        let opened = make_at(staged, new, mask)?;
        finish(staged, new, mask, acl.is_some(), owner, true)?;
        match new {
            // A directory cannot be renamed over a whiteout, which is none: change places.
            New::Dir(_) => move_dir(staged, to, RenameFlags::EXCHANGE)?,
            _ => staged.rename(to)?,
        }
        Ok(opened)
    })();
    if let Err(e) = upper.staging.discard(&nest) {
        log::warn!("cannot clear a staging directory: {e}");
    }
    made
}

fn undo(at: At<'_>, new: &New<'_>) {
    let undone = match new {
        New::Dir(_) => at.rmdir(),
        _ => at.unlink(),
    };
    if let Err(e) = undone {
        log::warn!("cannot take back a half-made entry: {e}");
    }
}
