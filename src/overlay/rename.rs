//! Renaming, with `RENAME_NOREPLACE` and `RENAME_EXCHANGE`.
//!
//! A directory of the lower moves in one step whatever is in it: its shell comes up, is marked with where its lower
//! entries are, and is renamed. What the old name would let show through is covered by a whiteout in the same system
//! call. Renames are the one operation that holds `names` exclusively.

use std::ffi::OsStr;
use std::sync::Arc;

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::copyup::{Bring, discard};
use super::fds::Opened;
use super::flush;
use super::node::{Kind, Node, Place};
use super::remove::is_dir;
use super::shell::move_dir;
use super::{Attr, Overlay, Result, Upper};
use crate::layer::marks::{self, DirMarks};
use crate::layer::resolve::Found;
use crate::names::Name;
use crate::sys::At;

/// One end of a rename.
struct End {
    parent: Arc<Node>,
    name: Name,
}

/// `EINVAL` where a directory would come to lie in itself. The kernel has seen to that, but by its own idea of what lies where.
fn into_itself(node: &Arc<Node>, parent: &Arc<Node>) -> Result<()> {
    if node.is_dir() && parent.is_at_or_below(node) { Err(Errno::INVAL) } else { Ok(()) }
}

/// What stands at an end, counted as looked up until the rename is over.
struct Standing {
    node: Arc<Node>,
    attr: Attr,
}

/// What an end means: to the fork, and in its lowers alone.
type Meaning = (Option<Standing>, Option<Found>);

impl Standing {
    /// Whether it is a file that stands in a lower only.
    fn is_the_lowers(&self) -> bool {
        self.node.file().is_ok_and(|file| matches!(file.state.read().place, Place::Lower { .. }))
    }
}

impl Overlay {
    /// Renames an entry, replacing what is there unless the flags say otherwise.
    pub fn rename(
        &self,
        parent: u64,
        name: &OsStr,
        new_parent: u64,
        new_name: &OsStr,
        flags: RenameFlags,
    ) -> Result<()> {
        if !(RenameFlags::NOREPLACE | RenameFlags::EXCHANGE).contains(flags)
            || flags == RenameFlags::NOREPLACE | RenameFlags::EXCHANGE
        {
            return Err(Errno::INVAL);
        }
        let upper = self.writable()?;
        let from = End { parent: self.node(parent)?, name: Name::new(name)? };
        let to = End { parent: self.node(new_parent)?, name: Name::new(new_name)? };
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let (source, below_from) = self.meaning(&from)?;
        let source = source.ok_or(Errno::NOENT)?;
        let (target, below_to) = self.meaning(&to).inspect_err(|_| self.forget(source.node.id, 1))?;
        let below = (below_from.as_ref(), below_to.as_ref());
        let renamed = match &target {
            Some(_) if flags.contains(RenameFlags::NOREPLACE) => Err(Errno::EXIST),
            None if exchange => Err(Errno::NOENT),
            Some(target) if exchange => self.exchange(upper, &from, &source, &to, target, below),
            _ => self.replace(upper, &from, &source, &to, target.as_ref(), below),
        };
        let moved_dir = source.node.is_dir() || exchange && target.as_ref().is_some_and(|target| target.node.is_dir());
        if moved_dir {
            self.touched_anything();
        }
        self.touched_name(parent, name);
        self.touched_name(new_parent, new_name);
        self.forget(source.node.id, 1);
        if let Some(target) = target {
            self.forget(target.node.id, 1);
        }
        self.links_moved();
        renamed
    }

    fn meaning(&self, end: &End) -> Result<Meaning> {
        let _names = self.names.read();
        let (found, below) = self.find_both(&end.parent, end.name.as_os_str())?;
        let Some(found) = found else { return Ok((None, below)) };
        let (node, attr) = self.enter(&end.parent, end.name.clone(), found)?;
        Ok((Some(Standing { node, attr }), below))
    }

    fn replace(
        &self,
        upper: &Upper,
        from: &End,
        source: &Standing,
        to: &End,
        target: Option<&Standing>,
        (below_from, below_to): (Option<&Found>, Option<&Found>),
    ) -> Result<()> {
        match target {
            Some(target) if source.node.id == target.node.id => return Ok(()),
            Some(target) if source.node.is_dir() && !target.node.is_dir() => return Err(Errno::NOTDIR),
            Some(target) if !source.node.is_dir() && target.node.is_dir() => return Err(Errno::ISDIR),
            _ => {}
        }
        if !source.node.is_dir() {
            self.copy_up(&source.node, Bring::Blocks)?;
            if target.is_some_and(|target| target.is_the_lowers())
                && let Ok(file) = self.opened(&source.node)
                && file.partial().is_none()
            {
                flush::begin(&*file.fd);
            }
        }
        let _names = self.names.write();
        self.still(from, &source.node)?;
        into_itself(&source.node, &to.parent)?;
        if let Some(target) = target.filter(|target| target.node.is_dir())
            && !self.is_empty(&target.node)?
        {
            return Err(Errno::NOTEMPTY);
        }
        let (from_dir, to_dir) = (self.copy_up_dir(&from.parent)?, self.copy_up_dir(&to.parent)?);
        let _rooms =
            (upper.room(&from.parent, At::object(&*from_dir.fd))?, upper.room(&to.parent, At::object(&*to_dir.fd))?);
        self.prepare(upper, from, &source.node, to)?;
        self.own_times(&[from, to], &[&source.node])?;
        self.note_hidden(upper, below_from)?;
        self.note_hidden(upper, below_to)?;
        let leaving = match target {
            Some(target) if !target.node.is_dir() => {
                let found = self.find(&to.parent, to.name.as_os_str())?.ok_or(Errno::STALE)?;
                Some(self.before_leaving(upper, &to.parent, &to.name, found)?)
            }
            _ => None,
        };
        if let Some(target) = target.as_ref().filter(|target| target.node.is_dir()) {
            self.pin(&target.node)?;
        }
        let (directory, cover, replaced) = (source.node.is_dir(), below_from.is_some(), target.map(|it| &*it.node));
        let moved = self.move_entry(upper, from, &from_dir, to, &to_dir, directory, cover, replaced);
        match (leaving, moved) {
            (Some(leaving), Ok(())) => self.after_leaving(upper, &to.parent, &to.name, leaving),
            (Some(leaving), Err(e)) => return Err(self.stays(upper, leaving, e)),
            (None, moved) => moved?,
        }
        if let Some(target) = target.filter(|target| target.node.is_dir()) {
            self.mark_removed(&target.node, target.attr)?;
            self.count_subdirectory(&to.parent, -1);
        }
        self.unlisted(&from.parent, &from.name);
        self.moved(&source.node, from, to);
        Ok(())
    }

    /// Moves the entry on disk, where `replaced` stands, if anything.
    #[allow(clippy::too_many_arguments)]
    fn move_entry(
        &self,
        upper: &Upper,
        from: &End,
        from_dir: &Opened,
        to: &End,
        to_dir: &Opened,
        directory: bool,
        cover: bool,
        replaced: Option<&Node>,
    ) -> Result<()> {
        let (source, target) = (At::new(&*from_dir.fd, &from.name), At::new(&*to_dir.fd, &to.name));
        let standing = if directory { target.try_stat()? } else { None };
        let mut aside = None;
        if let Some(replaced) = replaced.filter(|_| standing.is_some_and(|stat| stat.is_dir())) {
            // An empty directory may hold whiteouts, and then cannot be renamed over: it makes way first.
            self.allow_whiteouts(upper, &to.parent, to_dir)?;
            let staged = upper.staging.staged_whiteout()?;
            move_dir(target, upper.staging.at(&staged), RenameFlags::EXCHANGE)?;
            aside = Some((replaced, staged));
        }
        let moved = if directory && standing.is_some() {
            self.change_places(upper, from, (source, from_dir), target, cover)
        } else {
            self.move_there(upper, from, (source, from_dir), target, cover)
        };
        match (&moved, aside) {
            (Ok(()), Some((target, staged))) => self.put_away(upper, target, staged),
            (Err(_), Some((_, staged))) => {
                if let Err(e) = move_dir(upper.staging.at(&staged), target, RenameFlags::EXCHANGE) {
                    log::error!("an empty directory that made way cannot be put back: {e}");
                }
            }
            (_, None) => {}
        }
        moved
    }

    /// Moves a directory to where a whiteout is, which is no directory: the two change places, and that covers the old
    /// name at the same time.
    fn change_places(
        &self,
        upper: &Upper,
        from: &End,
        (source, from_dir): (At<'_>, &Opened),
        target: At<'_>,
        cover: bool,
    ) -> Result<()> {
        self.allow_whiteouts(upper, &from.parent, from_dir)?;
        let stat = source.stat()?;
        source.rename_with(target, RenameFlags::EXCHANGE)?;
        // It is done: what follows only makes it pretty. XFS gives a directory that changes its parent in an exchange a new
        // modification time, but not in a rename.
        let pretty = crate::copy::times(target, &stat).and_then(|()| if cover { Ok(()) } else { source.unlink() });
        if let Err(e) = pretty {
            log::warn!("a renamed directory shows a time of ours, or left a whiteout: {e}");
        }
        Ok(())
    }

    /// Moves an entry to where nothing, or nothing that counts, is.
    fn move_there(
        &self,
        upper: &Upper,
        from: &End,
        (source, from_dir): (At<'_>, &Opened),
        target: At<'_>,
        cover: bool,
    ) -> Result<()> {
        if !cover {
            return source.rename(target);
        }
        if upper.staging.whiteouts_are_devices() {
            match source.rename_with(target, RenameFlags::WHITEOUT) {
                // Not a file system that can do both at once.
                Err(Errno::INVAL | Errno::PERM | Errno::NOSYS) => {}
                other => return other,
            }
        }
        self.allow_whiteouts(upper, &from.parent, from_dir)?;
        let staged = upper.staging.staged_whiteout()?;
        // Killed between the two, the object has both names; the other order could lose it.
        source.rename(target).inspect_err(|_| discard(upper, &staged))?;
        upper.staging.at(&staged).rename(source).inspect_err(|_| {
            if let Err(e) = target.rename(source) {
                log::error!("what was renamed cannot be put back: {e}");
            }
        })
    }

    fn exchange(
        &self,
        upper: &Upper,
        from: &End,
        source: &Standing,
        to: &End,
        target: &Standing,
        (below_from, below_to): (Option<&Found>, Option<&Found>),
    ) -> Result<()> {
        for standing in [source, target] {
            if !standing.node.is_dir() {
                self.copy_up(&standing.node, Bring::Blocks)?;
            }
        }
        let _names = self.names.write();
        self.still(from, &source.node)?;
        self.still(to, &target.node)?;
        into_itself(&source.node, &to.parent)?;
        into_itself(&target.node, &from.parent)?;
        let (from_dir, to_dir) = (self.copy_up_dir(&from.parent)?, self.copy_up_dir(&to.parent)?);
        self.note_hidden(upper, below_from)?;
        self.note_hidden(upper, below_to)?;
        self.prepare(upper, from, &source.node, to)?;
        self.prepare(upper, to, &target.node, from)?;
        let (at, other) = (At::new(&*from_dir.fd, &from.name), At::new(&*to_dir.fd, &to.name));
        self.own_times(&[from, to], &[&source.node, &target.node])?;
        at.rename_with(other, RenameFlags::EXCHANGE)?;
        self.moved(&source.node, from, to);
        self.moved(&target.node, to, from);
        Ok(())
    }

    /// The name still means the node. Somebody else may have changed the base meanwhile, which a file that was copied up does
    /// not mind.
    fn still(&self, end: &End, node: &Arc<Node>) -> Result<()> {
        if !node.is_dir() {
            return if node.known_as(&end.parent, &end.name) { Ok(()) } else { Err(Errno::STALE) };
        }
        let found = self.find(&end.parent, end.name.as_os_str())?.ok_or(Errno::STALE)?;
        if is_dir(&found) == node.is_dir() && node.known_as(&end.parent, &end.name) {
            Ok(())
        } else {
            Err(Errno::STALE)
        }
    }

    /// Makes a node ready to stand at another name: in the upper under this one, and with the marks that it needs there.
    fn prepare(&self, upper: &Upper, from: &End, node: &Arc<Node>, to: &End) -> Result<()> {
        match &node.kind {
            Kind::File(file) => {
                let place = file.state.read().place.clone();
                match place {
                    Place::Index(key) => self.link_name(upper, key, &(Arc::clone(&from.parent), from.name.clone())),
                    _ => Ok(()),
                }
            }
            Kind::Dir(dir) => {
                let opened = self.copy_up_dir(node)?;
                let at = At::object(&*opened.fd);
                let _room = upper.room(node, at)?;
                let lower = dir.state.read().lowers.first().map(|lower| lower.path.clone());
                let crowded = !to.parent.dir()?.state.read().lowers.is_empty();
                match lower {
                    Some(path) if marks::of_upper(at, DirMarks::read)?.redirect.is_none() => {
                        marks::set_redirect(at, &path)
                    }
                    None if crowded => marks::set_opaque(at),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Brings a node that moved up to date.
    fn moved(&self, node: &Arc<Node>, from: &End, to: &End) {
        match &node.kind {
            Kind::Dir(dir) => {
                dir.state.write().link = Some((Arc::clone(&to.parent), to.name.clone()));
                self.count_subdirectory(&from.parent, -1);
                self.count_subdirectory(&to.parent, 1);
            }
            Kind::File(file) => {
                let mut state = file.state.write();
                state.links.retain(|(parent, name)| parent.id != from.parent.id || *name != from.name);
                state.links.push((Arc::clone(&to.parent), to.name.clone()));
            }
        }
        self.listed(&to.parent, &to.name, node.ino, node.file_type());
    }

    /// Time stamps of everything that takes part are its own from now on.
    fn own_times(&self, ends: &[&End], nodes: &[&Arc<Node>]) -> Result<()> {
        for end in ends {
            self.unborrow(&end.parent)?;
        }
        for node in nodes.iter().filter(|node| node.is_dir()) {
            self.unborrow(node)?;
        }
        Ok(())
    }
}
