//! What becomes of a fork's memory when its changes have become the parent's.
//!
//! A directory that the fork had renamed stands at its new place in the parent too: the redirect goes, for any fork,
//! since it would lead to nothing. A fork that lives on goes on from the merged state: what landed leaves its upper, so
//! that the parent's shows through, and the ledger is written anew, so that later changes count against what has just
//! landed. Such a fork must not be mounted meanwhile. Doing it twice does no harm. Where the parent is another tree than
//! the base all of this is left out.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, Timestamps};
use rustix::io::Errno;

use super::Os;
use super::journal::{Journal, Op};
use super::parent::Parent;
use super::stage::is_moving;
use crate::error::{Context, Result};
use crate::layer::ledger::{self, BaseState, Ledger};
use crate::layer::manifest;
use crate::layer::marks;
use crate::names::RelPath;
use crate::sys::{At, Stat, calls, open_beneath, open_root};

pub(crate) fn settle(journal: &Journal, parent: &Parent) -> Result<()> {
    if journal.elsewhere {
        // To its base the fork is what it was.
        return Ok(());
    }
    let cannot = "cannot settle the fork at";
    let upper = match open_root(&journal.upper) {
        Ok(upper) => upper,
        // The fork was removed meanwhile.
        Err(Errno::NOENT) => return Ok(()),
        Err(e) => return Err(e).context(cannot, &journal.upper),
    };
    for (_, to) in &journal.settle.moves {
        let dropped = open_beneath(&upper, to, OFlags::PATH | OFlags::DIRECTORY)
            .and_then(|dir| At::new(&dir, ".").remove_xattr(OsStr::new(marks::REDIRECT)));
        match dropped {
            Ok(()) | Err(Errno::NODATA | Errno::NOENT) => {}
            Err(e) => return Err(e).context(cannot, to.as_path()),
        }
    }
    if !journal.keep {
        return Ok(());
    }
    let work = journal.upper.with_file_name("work");
    let list = work.join(manifest::FILE);
    if calls::exists(&list).context(cannot, &list)? {
        return super::copied::settle(&journal.upper, &work, parent);
    }
    for path in &journal.settle.trim {
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { continue };
        let gone =
            open_beneath(&upper, &dir, OFlags::PATH | OFlags::DIRECTORY).and_then(|dir| At::new(&dir, name).unlink());
        match gone {
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::ISDIR) => {}
            Err(e) => return Err(e).context(cannot, path.as_path()),
        }
    }
    // From the bottom up: a directory with nothing left in it goes, so that the parent's own shows.
    let mut dirs = journal.settle.open.clone();
    dirs.sort_by_key(|path| std::cmp::Reverse(path.as_path().components().count()));
    for path in &dirs {
        match open_up(&upper, path) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(e) => return Err(e).context(cannot, path.as_path()),
        }
    }
    for path in &dirs {
        show_times(&upper, parent, path).context(cannot, path.as_path())?;
    }
    rewrite_ledger(journal, parent, &upper)
}

/// Gives a directory that stays in the upper the times of the parent's.
fn show_times(upper: &OwnedFd, parent: &Parent, path: &RelPath) -> Os<()> {
    let Some(stat) = parent.look(path)?.stat().filter(Stat::is_dir) else { return Ok(()) };
    let times = Timestamps { last_access: stat.atime.into(), last_modification: stat.mtime.into() };
    match open_beneath(upper, path, OFlags::PATH | OFlags::DIRECTORY) {
        Ok(dir) => At::new(&dir, ".").utimens(&times),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Lets the parent's entries show through a directory of the upper; `ENOTEMPTY` where it has some of its own.
fn open_up(upper: &OwnedFd, path: &RelPath) -> Os<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let dir = open_beneath(upper, &parent, OFlags::PATH | OFlags::DIRECTORY)?;
    let at = At::new(&dir, name);
    if at.stat()?.is_dir() && at.xattr(OsStr::new(marks::OPAQUE))?.as_deref() == Some(b"y") {
        at.remove_xattr(OsStr::new(marks::OPAQUE))?;
    }
    at.rmdir()
}

/// Takes out what was noted of a path and of all below it.
fn take_below(states: &mut HashMap<RelPath, BaseState>, path: &RelPath) -> Vec<(RelPath, BaseState)> {
    states.extract_if(|noted, _| noted.as_path().starts_with(path)).collect()
}

fn rewrite_ledger(journal: &Journal, parent: &Parent, upper: &OwnedFd) -> Result<()> {
    let cannot = "cannot rewrite the ledger at";
    let work_path = journal.upper.with_file_name("work");
    let work = open_root(&work_path).context(cannot, &work_path)?;
    let mut states = ledger::read(&work).context(cannot, &work_path)?;
    // All old places are left before anything arrives: directories may have changed places. The innermost goes first.
    // What went for good the fork never saw in the parent as it is now.
    let gone = journal.ops.iter().filter_map(|op| match op {
        Op::Detach { path, slot, .. } if !is_moving(OsStr::new(slot)) => Some((path, None)),
        _ => None,
    });
    let mut left: Vec<(&RelPath, Option<&RelPath>)> =
        journal.settle.moves.iter().map(|(from, to)| (from, Some(to))).chain(gone).collect();
    left.sort_by_key(|(from, _)| std::cmp::Reverse(from.as_path().components().count()));
    let mut moved = Vec::new();
    for (from, to) in left {
        for (path, state) in take_below(&mut states, from) {
            let rest = path.as_path().strip_prefix(from).ok().zip(to);
            let path = rest.and_then(|(rest, to)| RelPath::new(&to.as_path().join(rest)));
            moved.extend(path.map(|path| (path, state)));
        }
    }
    states.extend(moved);
    for path in &journal.settle.trim {
        states.remove(path);
    }
    for path in &journal.settle.stay {
        match parent.look(path).context(cannot, path.as_path())?.stat() {
            Some(stat) => drop(states.insert(path.clone(), BaseState::from(&stat))),
            None => drop(states.remove(path)),
        }
    }
    // A ref that landed is what the fork has by now.
    let refs = journal.ops.iter().filter_map(|op| match op {
        Op::Ref { name, .. } => Some(super::gitstep::file_of(name)),
        Op::Head { .. } => Some(super::gitstep::file_of("HEAD")),
        _ => None,
    });
    for path in refs {
        let there = parent.look(&path).context(cannot, path.as_path())?.stat();
        states.extend(there.map(|stat| (path, BaseState::from(&stat))));
    }
    for path in &journal.settle.open {
        let kept = open_beneath(upper, path, OFlags::PATH | OFlags::DIRECTORY).is_ok();
        match parent.look(path).context(cannot, path.as_path())?.stat().filter(|_| kept) {
            Some(stat) => drop(states.insert(path.clone(), BaseState::from(&stat))),
            None => drop(states.remove(path)),
        }
    }
    let fresh = work_path.join("ledger.new");
    crate::durable::sync_dir(&work_path)?;
    match calls::mkdir(&fresh, Mode::from_raw_mode(0o777)) {
        Err(e) if e != Errno::EXIST => return Err(e).context(cannot, &fresh),
        _ => {}
    }
    let dir = open_root(&fresh).context(cannot, &fresh)?;
    let _ = calls::unlink(&fresh.join(ledger::FILE));
    let out = Ledger::open(&dir).context(cannot, &fresh)?;
    for (path, state) in &states {
        out.note(path, *state).context(cannot, &fresh)?;
    }
    out.sync().context(cannot, &fresh)?;
    calls::rename(&fresh.join(ledger::FILE), &work_path.join(ledger::FILE)).context(cannot, &work_path)?;
    calls::rmdir(&fresh).context(cannot, &fresh)?;
    crate::durable::sync_dir(&work_path)
}
