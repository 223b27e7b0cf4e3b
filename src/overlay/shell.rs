//! Shells: directories of the base that are in the upper as the way to something in them.
//!
//! A shell has the attributes of the lower directory, shows its entries, and its times until it is changed itself. It is
//! staged and renamed into place like every copy; those above it come first.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{OFlags, RenameFlags, Timestamps, XattrFlags};
use rustix::io::Errno;

use super::copyup::{discard, quietly};
use super::fds::{Opened, Slot};
use super::node::Node;
use super::quota::Hold;
use super::stage::{metadata, stage_attributes};
use super::{Overlay, Result, Upper};
use crate::layer::ledger::BaseState;
use crate::layer::marks::{self, DirMarks, Origin};
use crate::layer::tree::Layer;
use crate::names::Name;
use crate::sys::{At, Stat, calls};

impl Overlay {
    /// Brings a directory into the upper as an empty shell, and those above it first; its upper directory. The caller holds
    /// `names`.
    pub(super) fn copy_up_dir(&self, node: &Arc<Node>) -> Result<Arc<Opened>> {
        self.copy_up_dirs(node, false)
    }

    /// The same for something to be removed from it, which no limit keeps from it.
    pub(super) fn copy_up_dir_to_remove(&self, node: &Arc<Node>) -> Result<Arc<Opened>> {
        self.copy_up_dirs(node, true)
    }

    fn copy_up_dirs(&self, node: &Arc<Node>, anyway: bool) -> Result<Arc<Opened>> {
        let mut missing = Vec::new();
        let mut at = Arc::clone(node);
        loop {
            let link = {
                let state = at.dir()?.state.read();
                if state.upper {
                    break;
                }
                if state.is_removed() {
                    return Err(Errno::NOENT);
                }
                state.link.clone()
            };
            let upper = self.writable()?;
            let (parent, name) = link.ok_or(Errno::STALE)?;
            missing.push((upper, at, name));
            at = parent;
        }
        while let Some((upper, dir, name)) = missing.pop() {
            let hold = upper.hold_dir(anyway)?;
            self.copy_up_shell(upper, (&at, &name), &dir, hold)?;
            at = dir;
        }
        self.upper_dir(node)
    }

    /// Brings one directory into the upper, the parent of which stands there.
    fn copy_up_shell(
        &self,
        upper: &Upper,
        (parent, name): (&Arc<Node>, &Name),
        node: &Arc<Node>,
        mut hold: Option<Hold<'_>>,
    ) -> Result<()> {
        let dir = node.dir()?;
        let _one = node.copying.lock();
        let lower = {
            let state = dir.state.read();
            if state.upper {
                return Ok(());
            }
            state.lowers.first().cloned().ok_or(Errno::STALE)?
        };
        let above = self.upper_dir(parent)?;
        let epoch = dir.epoch.load(Ordering::Acquire);
        let (layer, from) = self.lower_dir(node, &lower)?;
        let stat = layer.shown(At::object(&*from), Stat::of(from.as_fd())?)?;
        let staged = upper.staging.name();
        let to = upper.staging.at(&staged);
        let made = upper.staging.made()?;
        let mode = made.mode_of(&stat, 0o700);
        to.mkdir(mode)?;
        let placed = (|| {
            let fd = to.open(OFlags::RDONLY | OFlags::DIRECTORY)?;
            let origin =
                Origin { ident: node.ident, dev: self.written_dev(stat.dev), indexed: false, ctime: Some(stat.ctime) };
            calls::fsetxattr(&fd, marks::ORIGIN, &origin.encode(), XattrFlags::empty())?;
            let original = At::object(&*from);
            stage_attributes((original, &stat, original.xattrs()?.is_empty()), &fd, mode, made)?;
            let times = Timestamps { last_access: stat.atime.into(), last_modification: stat.mtime.into() };
            calls::futimens(&fd, &times)?;
            upper.note(&lower.path, BaseState::from(&stat))?;
            if let Some(hold) = &mut hold {
                hold.fit(&to.stat()?);
            }
            let _change = parent.dir()?.change.lock();
            let _room = upper.room(parent, At::object(&*above.fd))?;
            quietly(&above.fd, || move_dir(to, At::new(&*above.fd, name), RenameFlags::empty()))?;
            Ok(Opened::new(fd))
        })();
        let opened = placed.inspect_err(|_| discard(upper, &staged))?;
        self.fds.put(self.owner, node.id, Slot::UpperDir, opened);
        if let Some(hold) = hold {
            hold.charge(node);
        }
        let subdirectories = self.subdirectories_below(node, &stat);
        let mut state = dir.state.write();
        state.upper = true;
        state.borrowed_ctime = Some(stat.ctime);
        // Empty as it is, it shows those of the lower, unless somebody has changed that meanwhile.
        state.subdirectories = subdirectories.filter(|_| dir.epoch.load(Ordering::Acquire) == epoch);
        Ok(())
    }
}

impl Upper {
    /// Gives the root of a new upper the attributes of the base's root.
    pub(super) fn adopt_root(&self, base: &Layer) -> Result<()> {
        let to = At::object(&*self.root.fd);
        if marks::of_upper(to, marks::read_origin)?.is_some() {
            return Ok(());
        }
        let from = At::object(&base.root);
        let stat = from.stat()?;
        marks::set_origin(to, &Origin { ident: stat.ident(), dev: stat.dev, indexed: false, ctime: Some(stat.ctime) })?;
        metadata(from, to, &stat)
    }
}

/// The marks of the root of the upper.
pub(super) fn root_marks(upper: &Upper) -> Result<DirMarks> {
    marks::of_upper(At::object(&*upper.root.fd), DirMarks::read)
}

/// Moves a directory between the staging area and its place, whatever its permissions: the kernel lets an ordinary user change
/// the parent only of a directory that he may write to. That takes a moment with other permissions.
pub(super) fn move_dir(dir: At<'_>, to: At<'_>, flags: RenameFlags) -> Result<()> {
    match dir.rename_with(to, flags) {
        Err(Errno::ACCESS) if !rustix::process::geteuid().is_root() => {
            let mode = dir.stat()?.mode;
            dir.chmod(mode | 0o200).map_err(|_| Errno::ACCESS)?;
            let moved = dir.rename_with(to, flags);
            if moved.is_ok() { to } else { dir }.chmod(mode)?;
            moved
        }
        other => other,
    }
}
