//! Going back: what was taken of the steps is undone, and the fork gets back what was moved out of it.

use rustix::fs::{RenameFlags, Timestamps};
use rustix::io::Errno;

use super::super::journal::{Op, Phase, Seen};
use super::super::stage::entry;
use super::super::walk::open_dir;
use super::{Replay, aside, move_new, point, set_attributes};
use crate::error::{Context, Error, Result};
use crate::names::RelPath;
use crate::sys::{At, Stat, calls, open_root};

impl Replay<'_> {
    /// Undoes what was taken of the steps and gives the fork back what was moved out of it; the journal is closed.
    pub(crate) fn undo(&self) -> Result<()> {
        self.parent.forget();
        if self.journal.phase == Phase::Ready {
            for op in self.journal.ops.iter().rev() {
                point("merge.undo.step", &self.parent.path)?;
                self.unstep(op)?;
            }
        }
        point("merge.undo.times", &self.parent.path)?;
        // While staging nothing was changed but the directory that holds the stage, and that is dealt with at the end.
        let changed = if self.journal.phase == Phase::Ready { &self.journal.times[..] } else { &[] };
        for times in changed {
            let path = times.before.as_ref().map_or(&times.after.0, |before| &before.0);
            self.set_times(times, true).context("cannot restore the times of", path.as_path())?;
        }
        self.sync().context("cannot sync", &self.parent.path)?;
        point("merge.undo.taken", &self.parent.path)?;
        self.give_back()?;
        point("merge.undo.preserved", &self.parent.path)?;
        if !self.journal.layer.as_os_str().is_empty() {
            (self.withdraw)(&self.journal.layer)?;
        }
        self.clear()
    }

    fn give_back(&self) -> Result<()> {
        let upper = open_root(&self.journal.upper).context("cannot open the upper layer", &self.journal.upper)?;
        for taken in &self.journal.taken {
            let (Some(parent), Some(name)) = (taken.upper.parent(), taken.upper.file_name()) else { continue };
            let moved = crate::sys::open_beneath(&upper, &parent, rustix::fs::OFlags::PATH)
                .and_then(|dir| entry(&self.stage, &taken.stage, |from| move_new(from, At::new(&dir, name))));
            match moved {
                // Never taken, or given back already.
                Ok(()) | Err(Errno::NOENT | Errno::EXIST) => {}
                Err(e) => return Err(e).context("cannot give back to the fork", taken.upper.as_path()),
            }
        }
        for (path, atime, mtime) in &self.journal.left {
            let stamps = Timestamps { last_access: (*atime).into(), last_modification: (*mtime).into() };
            let restored = crate::sys::open_beneath(&upper, path, rustix::fs::OFlags::PATH)
                .and_then(|dir| At::new(&dir, ".").utimens(&stamps));
            restored.context("cannot restore times in the fork's", path.as_path())?;
        }
        calls::syncfs(&open_dir(&upper).context("cannot open", &self.journal.upper)?)
            .context("cannot sync the upper layer", &self.journal.upper)
    }

    fn unstep(&self, op: &Op) -> Result<()> {
        let cannot = "cannot undo the change of";
        match op {
            Op::Detach { path, slot, seen } => {
                let Some(held) = self.slot(slot).try_stat().context(cannot, path.as_path())? else { return Ok(()) };
                debug_assert!(held.ident() == seen.ident || !held.is_dir(), "a slot holds what was put there");
                let back = self.parent.with_fresh(path, |at| move_new(self.slot(slot), at));
                self.parent.forget();
                back.map_err(|e| self.stuck(e, path))
            }
            Op::Swap { path, slot, new, direct, .. } => self.unswap(path, slot, new, *direct),
            Op::Attach { path, slot, new, direct } => {
                let there = self.there(path)?;
                if there.is_none_or(|stat| stat.ident() != new.ident) {
                    return Ok(());
                }
                let waiting = self.waiting(path, slot, *direct);
                let back = self.parent.with_fresh(path, |at| waiting.with(|slot| move_new(at, slot)));
                self.parent.forget();
                back.map_err(|e| self.stuck(e, path))
            }
            Op::Attributes { path, before, after } => {
                match self.parent.with(path, |at| set_attributes(at, after, before)) {
                    Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
                    Err(e) => Err(e).context(cannot, path.as_path()),
                }
            }
            Op::Ref { name, before, after } => self.unset_ref(name, before.as_deref(), after.as_deref()),
            Op::Head { before, after } => self.unset_head(before, after),
        }
    }

    fn unswap(&self, path: &RelPath, slot: &str, new: &Seen, direct: bool) -> Result<()> {
        let cannot = "cannot undo the change of";
        let waiting = self.waiting(path, slot, direct);
        let aside = aside(slot);
        let ours = |stat: &Stat| stat.ident() == new.ident;
        let there = self.there(path)?;
        let is_new = there.as_ref().is_some_and(ours);
        if self.slot(&aside).try_stat().context(cannot, path.as_path())?.is_some() {
            if is_new {
                let out = self.parent.with_fresh(path, |at| waiting.with(|slot| move_new(at, slot)));
                out.map_err(|e| self.stuck(e, path))?;
            }
            let back = self.parent.with_fresh(path, |at| move_new(self.slot(&aside), at));
            return back.map_err(|e| self.stuck(e, path));
        }
        if !is_new {
            return Ok(());
        }
        let back = self.parent.with_fresh(path, |at| waiting.with(|slot| slot.rename_with(at, RenameFlags::EXCHANGE)));
        back.map_err(|e| self.stuck(e, path))
    }

    /// An undo that cannot go on: nothing is lost, the old object is in the stage and the journal stays open.
    fn stuck(&self, errno: Errno, path: &RelPath) -> Error {
        let what = format!(
            "a merge was broken off and cannot be undone yet (the old objects are in {:?}); make way for",
            self.journal.stage
        );
        Error::io(what, errno).at(path.as_path())
    }

    /// Whether somebody changed what was already renamed into the parent: undoing would throw that away.
    pub(crate) fn touched(&self) -> Result<bool> {
        for op in &self.journal.ops {
            if let Op::Swap { path, new, .. } | Op::Attach { path, new, .. } = op
                && self.there(path)?.is_some_and(|there| there.ident() == new.ident && !new.is(&there))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn unset_ref(&self, name: &str, before: Option<&str>, after: Option<&str>) -> Result<()> {
        let Some(repository) = self.repository else { return Ok(()) };
        if repository.read_ref(name)?.as_deref() == after {
            repository.update_ref(name, after, before, &self.journal.name)?;
        }
        Ok(())
    }

    fn unset_head(&self, before: &str, after: &str) -> Result<()> {
        let Some(repository) = self.repository else { return Ok(()) };
        if repository.read_head()? == after { repository.set_head(before, &self.journal.name) } else { Ok(()) }
    }
}
