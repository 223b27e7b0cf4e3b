//! What has no name any more and is still in use: files that are open, directories that somebody is in.
//!
//! Each is kept by a descriptor, which the file system takes as a reason to keep the object. There are only so many
//! descriptors in a process, and who keeps files open decides how many are asked for: beyond a share of them, the object gets
//! a name in the staging area instead, where nobody looks, and loses it with the last who holds it here. What a killed
//! server leaves there, the next one clears away.

use std::ffi::OsString;
use std::sync::Arc;

use rustix::fs::OFlags;

use super::fds::{FdCache, Held, Slot};
use super::node::Node;
use super::remove::discard_dir;
use super::{Overlay, Result, Upper};
use crate::layer::staging::Staging;
use crate::sys::At;

/// What keeps an object without a name.
#[derive(Clone, Debug)]
pub(super) enum Grip {
    Open(Arc<Held>),
    Named(Arc<Aside>),
}

/// A name in the staging area that goes with its last holder.
#[derive(Debug)]
pub(super) struct Aside {
    staging: Arc<Staging>,
    name: OsString,
}

impl Aside {
    pub(super) fn new(upper: &Upper, name: OsString) -> Arc<Self> {
        Arc::new(Self { staging: Arc::clone(&upper.staging), name })
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if let Err(e) = self.staging.discard(&self.name) {
            // The next mount clears the staging area.
            log::warn!("cannot remove what nobody has open any more: {e}");
        }
    }
}

impl Grip {
    /// The object.
    pub(super) fn at(&self) -> At<'_> {
        match self {
            Grip::Open(held) => At::object(&**held),
            Grip::Named(aside) => aside.staging.at(&aside.name),
        }
    }

    /// How many names of ours the object has.
    pub(super) fn names(&self) -> u32 {
        u32::from(matches!(self, Grip::Named(_)))
    }

    /// Keeps what stands in the staging area, which has no other name.
    pub(super) fn of_staged(fds: &Arc<FdCache>, upper: &Upper, name: OsString) -> Result<Self> {
        let aside = Aside::new(upper, name);
        let held = fds.hold(|| aside.staging.at(&aside.name).open(OFlags::PATH).map(Arc::new))?;
        Ok(held.map_or(Grip::Named(aside), Grip::Open))
    }
}

impl Overlay {
    /// Keeps the file behind an entry of the upper that is about to lose its name, by the descriptor that is open already if
    /// there is one.
    pub(super) fn grip(&self, upper: &Upper, node: &Node, entry: At<'_>) -> Result<Grip> {
        let open = || match self.fds.get(self.owner, node.id, Slot::Write) {
            Some(opened) => Ok(Arc::clone(&opened.fd)),
            None => entry.open(OFlags::PATH).map(Arc::new),
        };
        if let Some(held) = self.fds.hold(open)? {
            return Ok(Grip::Open(held));
        }
        let name = upper.staging.name();
        entry.link_to(upper.staging.at(&name))?;
        Ok(Grip::Named(Aside::new(upper, name)))
    }

    /// A directory is about to be removed: the number of its object stays taken for as long as the node lives, which may be
    /// until some process leaves it.
    pub(super) fn pin(&self, node: &Arc<Node>) -> Result<()> {
        let dir = node.dir()?;
        if dir.state.read().upper {
            let opened = self.upper_dir(node)?;
            self.writable()?.about_to_lose_its_name(node, At::object(&*opened.fd))?;
            dir.state.write().pinned = self.fds.hold(|| Ok(Arc::clone(&opened.fd)))?.map(Grip::Open);
        }
        Ok(())
    }

    /// Removes a directory that was renamed to the staging area, at once or with its node.
    pub(super) fn put_away(&self, upper: &Upper, node: &Node, staged: OsString) {
        let Ok(dir) = node.dir() else { return };
        let mut state = dir.state.write();
        if state.pinned.is_none() {
            state.pinned = Some(Grip::Named(Aside::new(upper, staged)));
            return;
        }
        drop(state);
        discard_dir(upper, &staged);
    }
}
