//! Stand-ins: what a fork gets in the place of something that it must not have as its base has it.
//!
//! A `.git` deep down in a base may lead to a git directory outside, and who works there in the fork would work in that
//! one. Nobody searches a whole tree for such when a fork is made; but nobody gets there without looking the name up
//! either, or listing it. The first time that happens to a `.git` of the base whoever made the overlay is asked
//! ([`StandIns`]); what it makes is placed in the upper, and the request goes on as if that had always been there. It may
//! take long: no lock that others need is held meanwhile, and [`Overlay::may_make_stand_ins`] tells beforehand.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::copyup::quietly;
use super::node::Node;
use super::quota::Hold;
use super::{Overlay, ROOT, Result};
use crate::layer::marks;
use crate::layer::resolve::Found;
use crate::names::{Name, RelPath};
use crate::sys::At;

/// The name that is looked at.
pub const NAME: &str = ".git";

/// Makes stand-ins.
pub trait StandIns: Send + Sync {
    /// Makes all stand-ins that the `.git` in a directory of the base calls for. `room` gives names that are free in the
    /// staging area (`tmp` in the work area) to make them under.
    fn make(&self, top: &RelPath, room: &dyn Fn() -> OsString) -> Result<Vec<StandIn>>;

    /// Stand-ins are at these paths of the upper now.
    fn placed(&self, paths: &[RelPath]) -> Result<()>;
}

/// An object that was made to stand for one of the base.
#[derive(Clone, Debug)]
pub struct StandIn {
    /// Where the base has what it stands for.
    pub path: RelPath,
    /// Its name in the staging area.
    pub staged: OsString,
}

/// Who makes stand-ins, and for what they were made.
#[derive(Default)]
pub(super) struct Made {
    maker: std::sync::OnceLock<Box<dyn StandIns>>,
    /// Directories of the base whose `.git` has been looked at.
    seen: Mutex<HashSet<RelPath>>,
    /// One at a time. Taken before every other lock.
    making: Mutex<()>,
}

impl std::fmt::Debug for Made {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Made").field("seen", &self.seen.lock().len()).finish_non_exhaustive()
    }
}

impl Overlay {
    /// Says who makes stand-ins. Once, before the first lookup.
    pub fn set_stand_ins(&self, maker: Box<dyn StandIns>) {
        drop(self.stand_ins.maker.set(maker));
    }

    /// Whether a lookup of the name, or with `None` a listing, may first have to make a stand-in.
    pub fn may_make_stand_ins(&self, dir: u64, name: Option<&OsStr>) -> bool {
        if self.stand_ins.maker.get().is_none() || name.is_some_and(|name| name != NAME) {
            return false;
        }
        let Some(node) = self.table.get(dir).filter(|node| self.unseen(node).is_some()) else { return false };
        // Most directories have none, and are listed at once.
        name.is_some() || self.is_pointer(&node).unwrap_or(true)
    }

    /// The directory of the base, if nobody has looked at its `.git` yet.
    fn unseen(&self, parent: &Node) -> Option<RelPath> {
        self.stand_ins.maker.get()?;
        let top = parent.dir().ok()?.state.read().lowers.first()?.path.clone();
        (!self.stand_ins.seen.lock().contains(&top)).then_some(top)
    }

    /// Before `.git` in a directory is looked up: puts what has to stand there into the upper.
    pub(super) fn stand_in(&self, parent: &Arc<Node>) -> Result<()> {
        let Some(top) = self.unseen(parent) else { return Ok(()) };
        let (Some(maker), Some(upper)) = (self.stand_ins.maker.get(), &self.upper) else { return Ok(()) };
        let name = Name::new(OsStr::new(NAME))?;
        if self.of_base(parent, &name)?.is_none() {
            return Ok(());
        }
        let _one = self.stand_ins.making.lock();
        if self.stand_ins.seen.lock().contains(&top) {
            return Ok(());
        }
        let room = || upper.staging.name();
        let stand_ins = maker.make(&top, &room)?;
        let mut placed = Vec::new();
        for StandIn { path, staged } in stand_ins {
            let place = self.place_stand_in(parent, &name, &path, &staged);
            match place {
                Ok(Some(at)) => placed.push(at),
                // Something else is there by now: the fork's own.
                Ok(None) => upper.staging.discard(&staged)?,
                Err(e) => {
                    upper.staging.discard(&staged)?;
                    return Err(e);
                }
            }
        }
        if !placed.is_empty() {
            maker.placed(&placed)?;
        }
        self.stand_ins.seen.lock().insert(top);
        Ok(())
    }

    /// Another object may have the name in a directory of the base now.
    pub(super) fn forget_stand_in(&self, dir: &RelPath, name: &OsStr) {
        if name == NAME {
            self.stand_ins.seen.lock().remove(dir);
        }
    }

    /// Before a directory is listed: the entry called `.git` may have to be a directory instead of what the base has.
    pub(super) fn stand_in_for_listing(&self, node: &Arc<Node>) -> Result<()> {
        if self.unseen(node).is_some() && self.is_pointer(node)? { self.stand_in(node) } else { Ok(()) }
    }

    /// Whether a directory shows a `.git` of the base that is none.
    fn is_pointer(&self, node: &Arc<Node>) -> Result<bool> {
        let _names = self.names.read();
        match self.find(node, OsStr::new(NAME)) {
            Ok(found) => Ok(matches!(found, Some(Found::Lower { .. }))),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// The path in the base of what an entry shows, where it shows nothing else.
    fn of_base(&self, parent: &Arc<Node>, name: &Name) -> Result<Option<RelPath>> {
        let _names = self.names.read();
        self.of_base_locked(parent, name)
    }

    fn of_base_locked(&self, parent: &Arc<Node>, name: &Name) -> Result<Option<RelPath>> {
        Ok(match self.find(parent, name.as_os_str())? {
            Some(Found::Lower { path, .. }) => Some(path),
            Some(Found::Dir { upper: None, lowers, .. }) => lowers.first().map(|lower| lower.path.clone()),
            _ => None,
        })
    }

    /// Puts a stand-in where the fork shows the object of the base that it stands for; its path in the upper. That is the
    /// entry that was looked up, or one at the path that it has in the base.
    fn place_stand_in(
        &self,
        parent: &Arc<Node>,
        name: &Name,
        path: &RelPath,
        staged: &OsStr,
    ) -> Result<Option<RelPath>> {
        if self.of_base(parent, name)?.as_ref() == Some(path) {
            return self.place_at(parent, name, path, staged);
        }
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
        let Some(dir) = self.walk(&above)? else { return Ok(None) };
        let placed = self.place_at(&dir, &Name::new(name)?, path, staged);
        self.forget(dir.id, 1);
        placed
    }

    fn place_at(&self, parent: &Arc<Node>, name: &Name, path: &RelPath, staged: &OsStr) -> Result<Option<RelPath>> {
        let upper = self.writable()?;
        let _names = self.names.read();
        if self.of_base_locked(parent, name)?.as_ref() != Some(path) {
            return Ok(None);
        }
        let below = self.find_below(parent, name.as_os_str())?;
        self.note_hidden(upper, below.as_ref())?;
        let dir = self.copy_up_dir_to_remove(parent)?;
        let _change = parent.dir()?.change.lock();
        let from = upper.staging.at(staged);
        if from.stat()?.is_dir() {
            marks::set_opaque(from)?;
        }
        // No limit keeps it from standing there: without it, work would be done outside of the fork.
        let hold = upper.hold_tree(from)?;
        let _room = upper.room(parent, At::object(&*dir.fd))?;
        quietly(&dir.fd, || from.rename(At::new(&*dir.fd, name)))?;
        hold.into_iter().for_each(Hold::keep);
        self.forget_listing(parent);
        Ok(self.path_of(parent).map(|dir| dir.join(name.as_os_str())))
    }

    /// The path of a directory in the fork, which is that in the upper. The caller holds `names`.
    fn path_of(&self, dir: &Node) -> Option<RelPath> {
        let mut names = Vec::new();
        let mut link = dir.dir().ok()?.state.read().link.clone();
        while let Some((parent, name)) = link {
            names.push(name);
            link = parent.dir().ok()?.state.read().link.clone();
        }
        Some(names.iter().rev().fold(RelPath::root(), |path, name| path.join(name.as_os_str())))
    }

    /// The directory that stands at a path of the fork, counted as looked up once.
    fn walk(&self, path: &RelPath) -> Result<Option<Arc<Node>>> {
        let mut at = self.node(ROOT)?;
        at.lookups.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        for name in path.as_path().iter() {
            let name = Name::new(name)?;
            let next = {
                let _names = self.names.read();
                match self.find(&at, name.as_os_str()) {
                    Ok(Some(found @ Found::Dir { .. })) => Some(self.enter(&at, name, found)?.0),
                    Ok(_) | Err(Errno::NOENT) => None,
                    Err(e) => return Err(e),
                }
            };
            self.forget(at.id, 1);
            let Some(next) = next else { return Ok(None) };
            at = next;
        }
        Ok(Some(at))
    }
}
