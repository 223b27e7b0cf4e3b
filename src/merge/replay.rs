//! Carrying out a plan, all or nothing.
//!
//! Durable steps, in order; between any two stands a fault point:
//! 1. journal `staging`: where the stage will be, and what will be moved there out of the upper;
//! 2. the stage: every new object, whole; synced; then what other forks of the parent must go on seeing is preserved
//!    ([`super::preserve`]);
//! 3. journal `ready`: the steps in the parent, with the identity of every object that moves;
//! 4. the steps: old objects go to the stage, new ones come from it. What is replaced at its own place changes in one
//!    exchange, so that nobody ever finds the name missing. What comes out is compared with what the plan saw: if
//!    somebody changed it meanwhile, everything is undone;
//! 5. times of directories; the parent is synced;
//! 6. journal `landed`: from here on the parent is new; the merged fork's record says whether it stays or goes;
//! 7. our marks are taken off moved files, the stage is removed, the journal closed.
//!
//! A failure or a crash before 6 is undone, by us or by [`recover`]: each step is looked at, taken or not, by where the
//! objects are. After 6 recovery only clears up.

mod slot;
mod undo;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{RenameFlags, Timestamps, XattrFlags};
use rustix::io::Errno;

use super::journal::{Attributes, Bytes, Journal, Op, Phase, Seen, Times};
use super::parent::Parent;
use super::repository::Repository;
use super::stage::is_moving;
use super::{Os, compare};
use crate::durable::{fault, sync_fd};
use crate::error::{Context, Error, Kind, Result};
use crate::layer::marks;
use crate::names::RelPath;
use crate::sys::{At, Stat, calls, open_root};
pub(crate) use slot::Upper;
use slot::Waiting;

/// A merge under way.
pub(crate) struct Replay<'a> {
    pub(crate) parent: &'a Parent,
    /// The repository of the parent, where refs change.
    pub(crate) repository: Option<&'a Repository>,
    pub(crate) stage: OwnedFd,
    /// The fork's upper, unless it is gone.
    pub(crate) upper: Option<Upper>,
    /// The directory that the store keeps for the parent.
    pub(crate) store: &'a Path,
    /// Withdraws what was preserved.
    pub(crate) withdraw: super::apply::Withdraw<'a>,
    pub(crate) journal: Journal,
}

/// How a step stopped.
pub(crate) enum Stop {
    /// Somebody changed this path since the plan was made.
    Changed(RelPath),
    /// It failed.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Failed(error)
    }
}

type Stepped = std::result::Result<(), Stop>;

fn at_path(path: &RelPath) -> impl FnOnce(Errno) -> Stop + '_ {
    move |errno| Stop::Failed(Error::io("cannot change", errno).at(path.as_path()))
}

/// Fails at a fault point, as a system call there would.
fn point(name: &'static str, path: &Path) -> Result<()> {
    fault::point(name).context("cannot change", path)
}

impl Replay<'_> {
    /// Steps 4 to 6: the parent becomes new. On any error nothing is undone yet. When `resumed`, steps may have been
    /// taken already.
    pub(crate) fn land(&mut self, resumed: bool) -> Stepped {
        for i in 0..self.journal.ops.len() {
            point("merge.step", &self.parent.path)?;
            let op = self.journal.ops[i].clone();
            // Opened anew for each step: a directory kept open could have been moved out of the parent meanwhile.
            self.parent.forget();
            if !resumed || !self.is_taken(&op)? {
                self.step(&op)?;
            }
        }
        point("merge.times", &self.parent.path)?;
        for times in &self.journal.times {
            self.set_times(times, false).map_err(at_path(&times.after.0))?;
        }
        point("merge.sync", &self.parent.path)?;
        self.sync().context("cannot sync", &self.parent.path)?;
        point("merge.landed", &self.parent.path)?;
        Ok(self.journal.land(self.store)?)
    }

    fn step(&self, op: &Op) -> Stepped {
        match op {
            Op::Detach { path, slot, seen } => {
                let moved = self.parent.with_fresh(path, |at| move_new(at, self.slot(slot)));
                moved.map_err(|errno| if errno == Errno::NOENT { changed(path) } else { at_path(path)(errno) })?;
                self.expect(slot, seen, path)?;
                self.expect_empty(slot, path)
            }
            Op::Swap { path, slot, old, direct, .. } => {
                let waiting = self.waiting(path, slot, *direct);
                let swapped = self.parent.with_fresh(path, |at| waiting.with(|new| self.swap(at, new, slot)));
                let gone_aside = swapped
                    .map_err(|errno| if errno == Errno::NOENT { changed(path) } else { at_path(path)(errno) })?;
                let out = if gone_aside { self.slot(&aside(slot)).stat() } else { waiting.with(|at| at.stat()) };
                if old.is(&out.map_err(at_path(path))?) { Ok(()) } else { Err(changed(path)) }
            }
            Op::Attach { path, slot, direct, .. } => {
                let waiting = self.waiting(path, slot, *direct);
                let put = self.parent.with_fresh(path, |at| waiting.with(|new| move_new(new, at)));
                put.map_err(|errno| if errno == Errno::EXIST { changed(path) } else { at_path(path)(errno) })
            }
            Op::Attributes { path, before, after } => {
                self.parent.with(path, |at| set_attributes(at, before, after)).map_err(at_path(path))
            }
            Op::Ref { name, before, after } => Ok(self.set_ref(name, before.as_deref(), after.as_deref())?),
            Op::Head { before, after } => Ok(self.set_head(before, after)?),
        }
    }

    fn is_taken(&self, op: &Op) -> Result<bool> {
        Ok(match op {
            Op::Detach { path, slot, .. } => {
                self.slot(slot).try_stat().context("cannot look at", path.as_path())?.is_some()
            }
            Op::Swap { path, new, .. } | Op::Attach { path, new, .. } => {
                self.there(path)?.is_some_and(|there| there.ident() == new.ident)
            }
            Op::Attributes { .. } => false,
            Op::Ref { name, after, .. } => match self.repository {
                Some(repository) => repository.read_ref(name)? == *after,
                None => true,
            },
            Op::Head { after, .. } => match self.repository {
                Some(repository) => repository.read_head()? == *after,
                None => true,
            },
        })
    }

    /// What is at a path of the parent; `None` where nothing is.
    fn there(&self, path: &RelPath) -> Result<Option<Stat>> {
        match self.parent.with(path, |at| at.try_stat()) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            other => other.context("cannot look at", path.as_path()),
        }
    }

    fn slot<'s>(&'s self, slot: &'s str) -> At<'s> {
        At::new(&self.stage, slot)
    }

    /// Where the new object of a step waits.
    fn waiting<'s>(&'s self, path: &'s RelPath, slot: &'s str, direct: bool) -> Waiting<'s> {
        match (&self.upper, direct) {
            (Some(upper), true) => Waiting::Upper(upper, path),
            (None, true) => Waiting::Gone,
            _ => Waiting::Stage(self.slot(slot)),
        }
    }

    /// What came out must be what the plan saw.
    fn expect(&self, slot: &str, seen: &Seen, path: &RelPath) -> Stepped {
        let stat = self.slot(slot).stat().map_err(at_path(path))?;
        if seen.is(&stat) { Ok(()) } else { Err(changed(path)) }
    }

    /// A directory that goes has been emptied step by step before; what is in it by now nobody has looked at.
    fn expect_empty(&self, slot: &str, path: &RelPath) -> Stepped {
        let slot = self.slot(slot);
        if is_moving(slot.name) || !slot.stat().map_err(at_path(path))?.is_dir() {
            return Ok(());
        }
        let dir = slot.open(rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY).map_err(at_path(path))?;
        if super::walk::names(&dir).map_err(at_path(path))?.is_empty() { Ok(()) } else { Err(changed(path)) }
    }

    /// Exchanges two names at once; where the file system cannot, the old object goes aside first, into the stage. Whether
    /// it did.
    fn swap(&self, at: At<'_>, new: At<'_>, slot: &str) -> Os<bool> {
        match new.rename_with(at, RenameFlags::EXCHANGE) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                move_new(at, self.slot(&aside(slot)))?;
                move_new(new, at).map(|()| true)
            }
            other => other.map(|()| false),
        }
    }

    /// Notes the present times of the directories that are going to change. Those of the one that holds the stage have
    /// been changed by that already.
    pub(crate) fn note_times(&self, journal: &mut Journal) -> Result<()> {
        self.parent.forget();
        let host = self.host();
        for times in &mut journal.times {
            let Some((path, atime, mtime)) = &mut times.before else { continue };
            if host.as_ref() == Some(path) {
                continue;
            }
            if let Some(stat) = self.parent.look(path).context("cannot look at", path.as_path())?.stat() {
                (*atime, *mtime) = (stat.atime, stat.mtime);
                times.after.2 = times.after.2.max(stat.mtime);
            }
        }
        Ok(())
    }

    fn set_times(&self, times: &Times, back: bool) -> Os<()> {
        let (path, atime, mtime) = match (&times.before, back) {
            (Some(before), true) => before,
            (None, true) => return Ok(()),
            (_, false) => &times.after,
        };
        let stamps = Timestamps { last_access: (*atime).into(), last_modification: (*mtime).into() };
        // Where a directory went with the merge, something else may stand at its place by now.
        let set = |at: crate::sys::At<'_>| if at.stat()?.is_dir() { at.utimens(&stamps) } else { Err(Errno::NOTDIR) };
        match self.parent.with(path, set) {
            // It went with the merge.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if !back => Ok(()),
            other => other,
        }
    }

    /// Every name that changed survives a power cut from here on.
    fn sync(&self) -> std::io::Result<()> {
        const FEW: usize = 16;
        // What git writes has directories and files of its own, and not every file system writes them along with others.
        let git = self.journal.ops.iter().any(|op| matches!(op, Op::Ref { .. } | Op::Head { .. }));
        if git || self.journal.times.len() > FEW {
            return Ok(calls::syncfs(&self.parent.root)?);
        }
        for times in &self.journal.times {
            match self.parent.dir(&times.after.0) {
                Ok(dir) => sync_fd(dir.as_fd())?,
                // It went with the merge, or something else took its place.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(e) => return Err(e.into()),
            }
        }
        sync_fd(self.stage.as_fd())
    }

    /// Step 7: takes our marks off what landed, removes the stage and closes the journal.
    pub(crate) fn finish(&self) -> Result<()> {
        point("merge.strip", &self.parent.path)?;
        let places = self.places();
        let staged = self.journal.taken.iter().filter_map(|taken| landed_at(&places, &taken.stage));
        let direct = self.journal.ops.iter().filter_map(|op| match op {
            Op::Swap { path, direct: true, .. } | Op::Attach { path, direct: true, .. } => Some(path.clone()),
            _ => None,
        });
        self.parent.forget();
        for path in staged.chain(direct) {
            let stripped = self.parent.with(&path, |at| {
                let ours = at.xattrs()?.into_iter().filter(|name| marks::is_ours(name));
                ours.map(|name| at.remove_xattr(&name)).collect::<Os<Vec<()>>>()
            });
            match stripped {
                // Somebody has done something else with it since.
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NODATA | Errno::LOOP) => {}
                Err(e) => return Err(e).context("cannot take our marks off", path.as_path()),
            }
        }
        point("merge.settle", &self.parent.path)?;
        super::settle::settle(&self.journal, self.parent)?;
        self.clear()
    }

    /// Where in the parent the objects of the slots are now.
    fn places(&self) -> HashMap<&str, &RelPath> {
        let mut places = HashMap::new();
        for op in &self.journal.ops {
            if let Op::Swap { path, slot, .. } | Op::Attach { path, slot, .. } = op {
                places.insert(slot.as_str(), path);
            }
        }
        places
    }

    fn clear(&self) -> Result<()> {
        if self.journal.index_lock {
            super::gitstep::unlock_index(&self.journal.parent, &self.journal.fork)?;
        }
        point("merge.clear", &self.parent.path)?;
        remove_stage(&self.journal.stage)?;
        if let Some(times) = self.host_times() {
            self.set_times(times, self.journal.phase != Phase::Landed)
                .context("cannot restore times in", &self.parent.path)?;
        }
        if !has_one_log(&self.parent.root).context("cannot look at the file system of", &self.parent.path)? {
            calls::syncfs(&self.parent.root).context("cannot sync", &self.parent.path)?;
        }
        point("merge.close", &self.parent.path)?;
        Journal::close(self.store)
    }

    /// The times of the directory of the parent that held the stage.
    fn host_times(&self) -> Option<&Times> {
        let host = self.host()?;
        self.journal.times.iter().find(|times| times.after.0 == host)
    }

    fn host(&self) -> Option<RelPath> {
        RelPath::new(self.journal.stage.parent()?.strip_prefix(&self.journal.parent).ok()?)
    }

    fn set_ref(&self, name: &str, before: Option<&str>, after: Option<&str>) -> Result<()> {
        let Some(repository) = self.repository else { return Ok(()) };
        repository.update_ref(name, before, after, &self.journal.name)
    }

    fn set_head(&self, before: &str, after: &str) -> Result<()> {
        let Some(repository) = self.repository else { return Ok(()) };
        if repository.read_head()? != before {
            return Err(Error::new(Kind::Git, "HEAD changed during the merge in").at(&self.parent.path));
        }
        repository.set_head(after, &self.journal.name)
    }
}

/// Whether bringing the end of the journal to the disk brings every change there that was made before it. On btrfs, and whatever
/// nobody has looked at, a power cut may leave the journal closed and our marks on what landed.
fn has_one_log(fd: &OwnedFd) -> Os<bool> {
    const EXT4: i64 = 0xef53;
    const XFS: i64 = 0x5846_5342;
    const TMPFS: i64 = 0x0102_1994;
    Ok([EXT4, XFS, TMPFS].contains(&(calls::fstatfs(fd)?.f_type as i64)))
}

/// Where in the parent a staged object is now.
fn landed_at(places: &HashMap<&str, &RelPath>, stage: &RelPath) -> Option<RelPath> {
    let mut parts = stage.as_path().components();
    let place = places.get(parts.next()?.as_os_str().to_str()?)?;
    RelPath::new(&place.as_path().join(parts.as_path()))
}

/// The slot that holds the old object where two names could not be exchanged at once.
fn aside(slot: &str) -> String {
    format!("{slot}-old")
}

fn changed(path: &RelPath) -> Stop {
    Stop::Changed(path.clone())
}

/// Renames to a name that must be free.
fn move_new(from: At<'_>, to: At<'_>) -> Os<()> {
    match from.rename_with(to, RenameFlags::NOREPLACE) {
        // A file system without the flag: look first. Nobody else knows the names in the stage; in the parent this
        // leaves a moment in which a new object of somebody else's would be replaced.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => match to.try_stat()? {
            Some(_) => Err(Errno::EXIST),
            None => from.rename(to),
        },
        other => other,
    }
}

/// Changes a directory's attributes where they are as they were; what somebody else set meanwhile stays.
fn set_attributes(at: At<'_>, from: &Attributes, to: &Attributes) -> Os<()> {
    let now = at.stat()?;
    if (now.uid, now.gid) == (from.uid, from.gid) && (from.uid, from.gid) != (to.uid, to.gid) {
        at.chown(Some(to.uid), Some(to.gid))?;
    }
    let present = compare::attributes(at)?;
    for (Bytes(name), value) in &to.xattrs {
        if !present.iter().any(|(n, v)| n == name && v == value) {
            at.set_xattr(name, value, XattrFlags::empty())?;
        }
    }
    for (name, _) in &present {
        let is_in = |list: &[(Bytes, Vec<u8>)]| list.iter().any(|(n, _)| n.0 == *name);
        if is_in(&from.xattrs) && !is_in(&to.xattrs) {
            at.remove_xattr(name)?;
        }
    }
    if at.stat()?.mode & 0o7777 != to.mode { at.chmod(to.mode) } else { Ok(()) }
}

/// Removes the stage with all that is in it.
pub(crate) fn remove_stage(stage: &Path) -> Result<()> {
    let cannot = "cannot remove the stage";
    let (Some(parent), Some(name)) = (stage.parent(), stage.file_name()) else { return Ok(()) };
    let dir = open_root(parent).context(cannot, stage)?;
    match crate::layer::staging::remove_tree(At::new(&dir, name)) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e).context(cannot, stage),
    }
}
