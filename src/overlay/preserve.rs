//! Staying as it was while a merge changes the base.
//!
//! Before a merge moves anything it makes a preserved layer ([`crate::layer::preserved`]) with the attributes, the
//! shells and the whiteouts complete, and has every live fork of the base put it above the base
//! ([`Overlay::preserve`]). Then it moves objects aside, each into the layer before its successor takes its place, and
//! at last says that it is done ([`Overlay::preserved`]). The kernel's caches need no word of it: nothing they hold has
//! changed.
//!
//! In between, a look at a name may pass the layer just before the object gets there and reach the base just after. But
//! an object moves once, so a second look is right: while a merge is under way, every look is repeated until two agree.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{Dir, FileType, OFlags};
use rustix::io::Errno;

use super::fds::Slot;
use super::node::{Kind, Node, Place};
use super::{Overlay, ROOT, Result};
use crate::layer::preserved;
use crate::layer::resolve::{LowerDir, see};
use crate::layer::tree::Layer;
use crate::names::RelPath;
use crate::sys::{Ident, open_beneath};

impl Overlay {
    /// Puts a preserved layer, by its directory, right above the base. Until [`preserved`](Self::preserved) is called
    /// objects may still be moving into it.
    pub fn preserve(&self, dir: &OwnedFd) -> Result<()> {
        let layer = Arc::new(preserved::open(dir)?);
        let _names = self.names.write();
        self.merging.fetch_add(1, Ordering::AcqRel);
        {
            let mut layers = self.layers.write();
            let base = layers.len() - 1;
            layers.insert(base, Arc::clone(&layer));
        }
        let spread = self.spread(&layer, &RelPath::root());
        if spread.is_err() {
            self.layers.write().retain(|other| other.id != layer.id);
            self.merging.fetch_sub(1, Ordering::AcqRel);
        }
        spread
    }

    /// Nothing moves into the last preserved layer any more.
    pub fn preserved(&self) {
        self.merging.fetch_sub(1, Ordering::AcqRel);
    }

    /// Gives the live nodes of directories their part of a new preserved layer.
    fn spread(&self, layer: &Arc<Layer>, path: &RelPath) -> Result<()> {
        let Some(seen) = see(layer, path)? else { return Ok(()) };
        if seen.whiteout || !seen.stat.is_dir() {
            return Ok(());
        }
        let node = if path.is_root() { self.table.get(ROOT) } else { self.table.get(seen.shown.ino) };
        if let Some(node) = node.filter(|node| node.ident == seen.shown.ident()) {
            let part = LowerDir { layer: Arc::clone(layer), path: path.clone(), ident: seen.stat.ident() };
            insert(&node, part);
            self.forget_listing(&node);
        }
        let dir = open_beneath(&layer.root, path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." || !matches!(entry.file_type(), FileType::Directory | FileType::Unknown) {
                continue;
            }
            self.spread(layer, &path.join(name))?;
        }
        Ok(())
    }

    /// Repeats a look while a merge is under way until two in a row agree.
    pub(super) fn steady<T>(&self, look: impl Fn() -> Result<T>, same: impl Fn(&T, &T) -> bool) -> Result<T> {
        let mut last = look()?;
        while self.merging.load(Ordering::Acquire) > 0 {
            let next = look()?;
            if same(&last, &next) {
                return Ok(next);
            }
            last = next;
        }
        Ok(last)
    }

    /// Where a lower file that is no longer at its path was preserved; the node follows.
    pub(super) fn relocate(&self, node: &Arc<Node>, path: &RelPath) -> Result<Option<Arc<Layer>>> {
        let Some((layer, _)) = self.preserved_at(node, path)? else { return Ok(None) };
        if let Ok(file) = node.file() {
            // Whoever holds the lock is in the middle of opening: the move is found again next time.
            if let Some(mut state) = file.state.try_write()
                && let Place::Lower { layer: old, .. } = &mut state.place
            {
                *old = Arc::clone(&layer);
            }
        }
        Ok(Some(layer))
    }

    /// The same for a directory that was moved aside whole.
    pub(super) fn relocate_dir(&self, node: &Arc<Node>, lower: &LowerDir) -> Result<Option<LowerDir>> {
        let Some((layer, ident)) = self.preserved_at(node, &lower.path)? else { return Ok(None) };
        let moved = LowerDir { layer, path: lower.path.clone(), ident };
        let mut state = node.dir()?.state.write();
        let mut lowers = state.lowers.to_vec();
        lowers.retain(|part| part.layer.id != moved.layer.id);
        for part in lowers.iter_mut().filter(|part| part.layer.id == lower.layer.id) {
            *part = moved.clone();
        }
        state.lowers = lowers.into();
        drop(state);
        self.fds.remove(self.owner, node.id, Slot::LowerDir(lower.layer.id));
        Ok(Some(moved))
    }

    fn preserved_at(&self, node: &Node, path: &RelPath) -> Result<Option<(Arc<Layer>, Ident)>> {
        for layer in self.layers.read().iter().filter(|layer| layer.is_preserved()) {
            match see(layer, path) {
                Ok(Some(seen)) if seen.shown.ident() == node.ident => {
                    return Ok(Some((Arc::clone(layer), seen.stat.ident())));
                }
                Ok(_) | Err(Errno::NOENT | Errno::STALE) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    /// Whether a base path no longer matters to this fork, since a merge preserved what was there.
    pub(super) fn is_preserved(&self, path: &RelPath) -> bool {
        // An error here is one of our own files: then the change counts as drift, which is only ever too careful.
        self.layers
            .read()
            .iter()
            .filter(|layer| layer.is_preserved())
            .any(|layer| matches!(see(layer, path), Ok(Some(_))))
    }
}

/// Puts a part of a preserved layer right above the base's part of a directory.
fn insert(node: &Node, part: LowerDir) {
    let Kind::Dir(dir) = &node.kind else { return };
    let mut state = dir.state.write();
    let mut lowers = state.lowers.to_vec();
    let Some(base) = lowers.iter().position(|lower| !lower.layer.marked) else { return };
    lowers.insert(base, part);
    state.lowers = lowers.into();
}
