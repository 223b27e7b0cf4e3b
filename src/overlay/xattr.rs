//! Extended attributes, without our own marks: those are neither seen nor set from inside.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::copyup::Bring;
use super::fds::Slot;
use super::node::Kind;
use super::touched::ASK;
use super::{Caller, Overlay, Result};
use crate::layer::marks;
use crate::sys::{At, xattr_of};

/// What a program may do though its user may not.
const CAPABILITY: &str = "security.capability";

impl Overlay {
    /// The value of an attribute; `ENODATA` where it is not set.
    pub fn getxattr(&self, node: u64, name: &OsStr) -> Result<Vec<u8>> {
        if let Some(token) = name.as_bytes().strip_prefix(ASK.as_bytes()) {
            return self.changed_since(node, token);
        }
        if marks::is_ours(name) {
            return Err(Errno::NODATA);
        }
        let node = self.node(node)?;
        // Asked by the kernel before the first write to a file, for its capabilities: by descriptor that is half the work.
        if let Some(opened) = self.fds.get(self.owner, node.id, Slot::Write) {
            let known = name == CAPABILITY && opened.incapable.load(Ordering::Relaxed);
            return if known { Err(Errno::NODATA) } else { xattr_of(&opened.fd, name) };
        }
        let _names = self.names.read();
        self.on_object(&node, |at| at.get_xattr(name))
    }

    /// The names of all attributes.
    pub fn listxattr(&self, node: u64) -> Result<Vec<OsString>> {
        let node = self.node(node)?;
        let _names = self.names.read();
        let mut names = self.on_object(&node, |at| at.xattrs())?;
        names.retain(|name| !marks::is_ours(name));
        Ok(names)
    }

    /// Sets an attribute.
    pub fn setxattr(&self, _caller: Caller, node: u64, name: &OsStr, value: &[u8], flags: XattrFlags) -> Result<()> {
        let fits = |set| match set {
            true if flags.contains(XattrFlags::CREATE) => Err(Errno::EXIST),
            false if flags.contains(XattrFlags::REPLACE) => Err(Errno::NODATA),
            _ => Ok(()),
        };
        let takes = name.len() + value.len();
        let set = self.change_xattr(node, name, takes, fits, |at| at.set_xattr(name, value, flags));
        self.touched(node);
        set
    }

    /// Removes an attribute; `ENODATA` where it is not set.
    pub fn removexattr(&self, _caller: Caller, node: u64, name: &OsStr) -> Result<()> {
        let fits = |set| if set { Ok(()) } else { Err(Errno::NODATA) };
        let removed = self.change_xattr(node, name, 0, fits, |at| at.remove_xattr(name));
        self.touched(node);
        removed
    }

    /// Changes an attribute, unless what is there does not fit: a change that must fail leaves no copy behind.
    fn change_xattr(
        &self,
        node: u64,
        name: &OsStr,
        takes: usize,
        fits: impl FnOnce(bool) -> Result<()>,
        change: impl FnOnce(At<'_>) -> Result<()>,
    ) -> Result<()> {
        if marks::is_ours(name) {
            return Err(Errno::PERM);
        }
        let node = self.node(node)?;
        let upper = self.writable()?;
        let now = {
            let _names = self.names.read();
            self.on_object(&node, |at| at.get_xattr(name))
        };
        let had = match now {
            Ok(value) => Some(name.len() + value.len()),
            Err(Errno::NODATA) => None,
            Err(e) => return Err(e),
        };
        fits(had.is_some())?;
        let more = if had.is_some_and(|had| had >= takes) { 0 } else { takes };
        let change = |at: At<'_>| {
            let _room = upper.room_for_attribute(&node, at, more)?;
            change(at)
        };
        if !node.is_dir() {
            self.copy_up(&node, Bring::All)?;
        }
        let _names = self.names.read();
        match &node.kind {
            Kind::File(_) => {
                if let Some(opened) = self.fds.get(self.owner, node.id, Slot::Write) {
                    opened.incapable.store(false, Ordering::Relaxed);
                }
                self.on_object(&node, change)
            }
            Kind::Dir(dir) => {
                self.copy_up_dir(&node)?;
                let _change = dir.change.lock();
                self.on_object(&node, change)?;
                dir.state.write().inherit = None;
                self.unborrow(&node)
            }
        }
    }
}
