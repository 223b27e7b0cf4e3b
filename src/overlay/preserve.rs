//! Staying as it was while a merge changes the base.
//!
//! Before a merge changes anything it makes a preserved layer ([`crate::layer::preserved`]), complete, and has every live
//! fork of the base put it above the base ([`Overlay::preserve`]). The layer holds the very objects (hard links of them,
//! so nothing is copied) that the merge is about to replace or remove, so nodes, cached names and cached content stay
//! what they are and the kernel need not be told. A link changes the change time and the count of names of an object, so
//! the forks are given the old attributes before the first is made ([`Overlay::expect`]). A node that finds something else at its place in the base follows its
//! object into the layer.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use super::fds::Slot;
use super::node::{Kind, Node, Place};
use super::{Overlay, ROOT, Result};
use crate::layer::preserved;
use crate::layer::resolve::{LowerDir, see};
use crate::layer::tree::{self, Layer};
use crate::names::RelPath;
use crate::sys::{At, Ident, Stat};

impl Overlay {
    /// A layer is being made in this directory, and its attributes are complete: objects of the base are about to get one
    /// more name, and go on being shown without it.
    pub fn expect(&self, dir: &OwnedFd) -> Result<()> {
        let mut expected = preserved::read_overrides(dir)?;
        self.on_the_base(&mut expected);
        *self.expected.write() = expected;
        Ok(())
    }

    /// Merges cross no file system: whatever number the base's device had at the time, the objects are on it.
    fn on_the_base(&self, overrides: &mut HashMap<Ident, Stat>) {
        overrides.values_mut().for_each(|stat| stat.dev = self.base_dev);
    }

    /// What an object of the base shows, which may have got a name in a preserved layer: as it was before, as long as
    /// nothing but that has changed. One that was preserved may have got a name before, for a merge that was undone.
    pub(super) fn without_our_names(&self, layer: &Layer, stat: Stat) -> Stat {
        if layer.marked && !layer.is_preserved() {
            return stat;
        }
        let same = |old: &Stat| (old.mode, old.size, old.mtime) == (stat.mode, stat.size, stat.mtime);
        let ident = stat.ident();
        let layers = self.layers.read();
        let preserved = layers.iter().find_map(|layer| layer.overrides.get(&ident).copied());
        let old = preserved.or_else(|| self.expected.read().get(&ident).copied());
        old.filter(same).unwrap_or(stat)
    }

    /// Puts a preserved layer, by its directory, right above the base.
    pub fn preserve(&self, dir: &OwnedFd) -> Result<()> {
        let mut layer = preserved::open(dir)?;
        self.on_the_base(&mut layer.overrides);
        let layer = Arc::new(layer);
        let _names = self.names.write();
        {
            let mut layers = self.layers.write();
            let base = layers.len() - 1;
            layers.insert(base, Arc::clone(&layer));
        }
        let spread = everywhere(|path| self.spread(&layer, path));
        if spread.is_err() {
            self.layers.write().retain(|other| other.id != layer.id);
        }
        spread
    }

    /// The live node of what the base shows at a path.
    fn shown_at(&self, path: &RelPath, shown: &Stat) -> Option<Arc<Node>> {
        let id = if path.is_root() { ROOT } else { self.lower_id(shown) };
        self.table.of_object(id, shown.dev, shown.ident())
    }

    /// Gives the live node of a path its part of a new preserved layer; the paths below.
    fn spread(&self, layer: &Arc<Layer>, path: &RelPath) -> Result<Vec<RelPath>> {
        let Some(seen) = see(layer, path)?.filter(|seen| !seen.whiteout) else { return Ok(Vec::new()) };
        let node = self.shown_at(path, &seen.shown);
        if !seen.stat.is_dir() {
            if let Some(node) = node {
                self.follow(&node, layer);
            }
            return Ok(Vec::new());
        }
        if let Some(node) = node {
            let part = LowerDir { layer: Arc::clone(layer), path: path.clone(), ident: seen.stat.ident() };
            insert(&node, part, seen.marks.opaque);
            self.forget_listing(&node);
        }
        tree::below(&layer.root, path)
    }

    /// The merge that a preserved layer was made for was undone: the base has everything again that stands in the layer, in
    /// the directory given, and the fork reads there from now on, before the layer is emptied. What the layer says of
    /// attributes stays true: the objects have been changed by nobody but us.
    pub fn withdraw(&self, dir: &OwnedFd) -> Result<()> {
        let root = At::new(dir, preserved::TREE).stat()?.ident();
        let _names = self.names.write();
        let layers = self.layers.read();
        let is_it = |layer: &&Arc<Layer>| {
            layer.is_preserved() && Stat::of(layer.root.as_fd()).is_ok_and(|stat| stat.ident() == root)
        };
        let Some(layer) = layers.iter().find(is_it) else { return Ok(()) };
        let Some(base) = layers.iter().find(|layer| !layer.marked) else { return Ok(()) };
        everywhere(|path| self.gather(layer, base, path))
    }

    /// Gives the live node of a path its part of the base back, for that of a layer; the paths below.
    fn gather(&self, layer: &Arc<Layer>, base: &Arc<Layer>, path: &RelPath) -> Result<Vec<RelPath>> {
        let Some(seen) = see(layer, path)? else { return Ok(Vec::new()) };
        if seen.whiteout {
            self.withdrawn.lock().insert(path.clone());
            return Ok(Vec::new());
        }
        let node = self.shown_at(path, &seen.shown);
        if !seen.stat.is_dir() {
            if let Some(file) = node.as_ref().and_then(|node| node.file().ok())
                && let Place::Lower { layer: old, .. } = &mut file.state.write().place
                && old.id == layer.id
            {
                *old = Arc::clone(base);
            }
            node.inspect(|node| self.fds.remove(self.owner, node.id, Slot::Read));
            return Ok(Vec::new());
        }
        if let Some(node) = node {
            let part = LowerDir { layer: Arc::clone(base), path: path.clone(), ident: node.ident };
            take_out(&node, layer.id, part);
            self.fds.remove(self.owner, node.id, Slot::LowerDir(layer.id));
            self.forget_listing(&node);
        }
        tree::below(&layer.root, path)
    }

    /// Whether a path of the base is as it was, and has only been away, or there, for a merge that was undone.
    pub(super) fn is_restored(&self, layer: &Layer, path: &RelPath, stat: Option<Stat>) -> bool {
        match stat {
            Some(stat) => self.without_our_names(layer, stat) != stat,
            None => self.withdrawn.lock().contains(path),
        }
    }

    /// A live file reads from the layer from now on, where it stands under the path that it had in the base: the base's
    /// object may go, or may be written to where it is.
    fn follow(&self, node: &Node, layer: &Arc<Layer>) {
        let Ok(file) = node.file() else { return };
        let mut state = file.state.write();
        if let Place::Lower { layer: old, .. } = &mut state.place
            && !old.is_preserved()
        {
            *old = Arc::clone(layer);
            self.fds.remove(self.owner, node.id, Slot::Read);
        }
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

    /// The same for a directory that is gone from the base.
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

/// Visits the root and all that each visit says is below. No recursion: the tree may be deeper than a stack.
fn everywhere(mut visit: impl FnMut(&RelPath) -> Result<Vec<RelPath>>) -> Result<()> {
    let mut todo = vec![RelPath::root()];
    while let Some(path) = todo.pop() {
        todo.extend(visit(&path)?);
    }
    Ok(())
}

/// Takes the part of a preserved layer out of a directory; where it hid the base's, that takes its place.
fn take_out(node: &Node, layer: u32, base: LowerDir) {
    let Kind::Dir(dir) = &node.kind else { return };
    let mut state = dir.state.write();
    let mut lowers = state.lowers.to_vec();
    let before = lowers.len();
    lowers.retain(|lower| lower.layer.id != layer);
    if lowers.len() < before && lowers.iter().all(|lower| lower.layer.marked) {
        lowers.push(base);
    }
    state.lowers = lowers.into();
}

/// Puts a part of a preserved layer right above the base's part of a directory, or in its place where it is opaque.
fn insert(node: &Node, part: LowerDir, opaque: bool) {
    let Kind::Dir(dir) = &node.kind else { return };
    let mut state = dir.state.write();
    let mut lowers = state.lowers.to_vec();
    let Some(base) = lowers.iter().position(|lower| !lower.layer.marked) else { return };
    if opaque {
        lowers.truncate(base);
    }
    lowers.insert(base, part);
    state.lowers = lowers.into();
}
