//! The stage: a directory of ours on the parent's file system where new objects are made, whole, before any of them is
//! renamed into the parent, and where old ones wait until the merge is over.
//!
//! `rename(2)` does not cross mounts, so the place is the first of these that is on the parent's own mount:
//! 1. the directory that the store keeps for the parent;
//! 2. beside the parent's root, as a hidden directory;
//! 3. in the parent's git directory, where git does not look;
//! 4. in the parent's root, as a hidden directory.
//!
//! The last two are inside the parent while the merge lasts (forks that read through it may see the name); the
//! times of the directory that holds it are put back.

mod build;

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::compare::{attributes, skip};
use super::journal::{Attributes, Bytes, Op, Seen, Taken, Times};
use super::parent::Parent;
use super::plan::{Make, Step};
use super::{Os, Source};
use crate::copy;
use crate::durable::{CancelToken, fault};
use crate::error::{Context, Error, Kind, Result};
use crate::names::RelPath;
use crate::sys::{At, Stat, Time, calls, mount_id, open_beneath, open_root};

/// Where a stage may be, best first.
pub(crate) fn places(parent: &Parent, store: &Path, key: &str) -> Vec<PathBuf> {
    let hidden = format!(".treefork-merge-{key}");
    let mut places = vec![store.join("stage")];
    places.extend(parent.path.parent().map(|above| above.join(&hidden)));
    if parent.with(&git_dir(), |at| at.stat()).is_ok_and(|stat| stat.is_dir()) {
        places.push(parent.path.join(".git").join("treefork-merge"));
    }
    places.push(parent.path.join(hidden));
    let fits = |place: &PathBuf| {
        let holder = place.parent().and_then(|above| open_root(above).ok());
        holder.is_some_and(|holder| {
            let dev = Stat::of(holder.as_fd()).map(|stat| stat.dev);
            dev == Ok(parent.stat.dev) && mount_id(holder.as_fd()) == Ok(parent.mount)
        })
    };
    places.into_iter().filter(fits).collect()
}

fn git_dir() -> RelPath {
    RelPath::root().join(OsStr::new(".git"))
}

/// An object to make: its path in the stage, what, and its path in the fork.
type Object = (RelPath, Make, RelPath);

/// What is to be made where, decided before anything is written.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// Directories to make, parents first: path in the stage, path in the fork, attributes there.
    dirs: Vec<(RelPath, RelPath, Option<Stat>)>,
    /// Directories of the upper that objects leave, with the times they have.
    pub(crate) left: Vec<(RelPath, Time, Time)>,
    /// Objects to make.
    objects: Vec<Object>,
    /// What leaves the upper for the stage instead of being copied.
    pub(crate) taken: Vec<Taken>,
    /// What goes from the upper to the parent at once.
    direct: Vec<RelPath>,
    /// The steps in the parent; identities are filled in once the objects exist.
    ops: Vec<Draft>,
}

#[derive(Debug)]
enum Draft {
    Detach {
        path: RelPath,
        slot: String,
        seen: Seen,
    },
    /// With `direct` the new object stands in the upper, and this is what it is.
    Swap {
        path: RelPath,
        slot: String,
        old: Seen,
        direct: Option<Seen>,
    },
    Attach {
        path: RelPath,
        slot: String,
        direct: Option<Seen>,
    },
    /// A directory that moves: the slot holds it only once its `Detach` was taken.
    AttachMoved {
        path: RelPath,
        slot: String,
        seen: Seen,
    },
    Attributes {
        path: RelPath,
        present: RelPath,
    },
}

/// Whether a slot holds a directory that moves, with everything in it, rather than one that goes.
pub(crate) fn is_moving(slot: &OsStr) -> bool {
    slot.as_encoded_bytes().starts_with(MOVING.as_bytes())
}

/// The beginning of the slots of directories that move.
const MOVING: &str = "m";

/// A number of components, to bring deep paths before shallow ones or the other way round.
fn depth(path: &RelPath) -> usize {
    path.as_path().components().count()
}

impl Layout {
    /// Lays out the steps. With `take`, regular files of the upper with one name are moved rather than copied: to their
    /// place in the parent at once, or into the directory in the stage that they arrive with.
    pub(crate) fn new(source: &Source, steps: &[Step], take: bool) -> Result<Self> {
        let mut layout = Self::default();
        let mut detach = Vec::new();
        let mut arrive = Vec::new();
        let mut attributes = Vec::new();
        for (n, step) in steps.iter().enumerate() {
            match step {
                Step::Detach { path, seen } => {
                    detach.push(Draft::Detach { path: path.clone(), slot: format!("o{n}"), seen: seen.into() });
                }
                Step::Move { from, seen, path } => {
                    let (slot, seen) = (format!("{MOVING}{n}"), Seen::from(seen));
                    detach.push(Draft::Detach { path: from.clone(), slot: slot.clone(), seen });
                    arrive.push(Draft::AttachMoved { path: path.clone(), slot, seen });
                }
                Step::Attributes { path, present } => {
                    attributes.push(Draft::Attributes { path: path.clone(), present: present.clone() });
                }
                Step::Mkdir { .. } | Step::Put { .. } => {}
            }
        }
        layout.arrivals(steps, take, &mut arrive);
        // Before anything leaves the upper: that changes the times of its directories.
        for (_, shown, stat) in &mut layout.dirs {
            *stat = Some(upper_dir(source, shown).context("cannot read the fork's", shown.as_path())?);
        }
        layout.leave(source)?;
        let key = |draft: &Draft| match draft {
            Draft::Detach { path, .. } => (usize::MAX - depth(path), path.clone()),
            Draft::Swap { path, .. }
            | Draft::Attach { path, .. }
            | Draft::AttachMoved { path, .. }
            | Draft::Attributes { path, .. } => (depth(path), path.clone()),
        };
        // What is inside leaves first, and what holds others arrives first.
        detach.sort_by_key(key);
        arrive.sort_by_key(key);
        layout.ops.extend(detach);
        layout.ops.extend(arrive);
        layout.ops.extend(attributes);
        Ok(layout)
    }

    fn arrivals(&mut self, steps: &[Step], take: bool, arrive: &mut Vec<Draft>) {
        let mut staged: HashMap<&RelPath, RelPath> = HashMap::new();
        let mut new: Vec<(usize, &Step)> = steps.iter().enumerate().collect();
        new.retain(|(_, step)| matches!(step, Step::Mkdir { .. } | Step::Put { .. }));
        for (n, step) in new {
            let (Step::Mkdir { path } | Step::Put { path, .. }) = step else { continue };
            let inside = path.parent().and_then(|parent| staged.get(&parent).cloned()).zip(path.file_name());
            let slot = format!("n{n}");
            let stage = match inside {
                Some((dir, name)) => dir.join(name),
                None => RelPath::root().join(OsStr::new(&slot)),
            };
            let top = depth(&stage) == 1;
            match step {
                Step::Put { over, make, .. } => {
                    let taken = taken(make).filter(|_| take);
                    match taken {
                        Some(_) if top => self.direct.push(path.clone()),
                        Some(_) => self.taken.push(Taken { upper: path.clone(), stage: stage.clone() }),
                        None => {}
                    }
                    if !top || taken.is_none() {
                        self.objects.push((stage, make.clone(), path.clone()));
                    }
                    let (path, direct) = (path.clone(), taken.map(Seen::from));
                    match over {
                        Some(old) if top => arrive.push(Draft::Swap { path, slot, old: old.into(), direct }),
                        _ if top => arrive.push(Draft::Attach { path, slot, direct }),
                        _ => {}
                    }
                }
                _ => {
                    staged.insert(path, stage.clone());
                    self.dirs.push((stage, path.clone(), None));
                    if top {
                        arrive.push(Draft::Attach { path: path.clone(), slot, direct: None });
                    }
                }
            }
        }
    }

    /// Notes the times of the directories of the upper that something will leave.
    fn leave(&mut self, source: &Source) -> Result<()> {
        let leaving: HashSet<RelPath> =
            self.taken.iter().map(|taken| &taken.upper).chain(&self.direct).filter_map(RelPath::parent).collect();
        for dir in leaving {
            let stat = upper_dir(source, &dir).context("cannot read the fork's", dir.as_path())?;
            self.left.push((dir, stat.atime, stat.mtime));
        }
        Ok(())
    }

    /// Makes everything in the stage, and says what is to be done in the parent. Syncs what it made.
    pub(crate) fn build(
        &self,
        source: &Source,
        parent: &Parent,
        stage: &OwnedFd,
        cancel: &CancelToken,
    ) -> Result<Vec<Op>> {
        for (path, ..) in &self.dirs {
            fault::point("merge.stage.dir").context("cannot stage", path.as_path())?;
            entry(stage, path, |at| at.mkdir(0o700)).context("cannot stage", path.as_path())?;
        }
        build::Builder { source, parent, stage, cancel }.objects(&self.objects, &self.taken)?;
        // Times of a directory last, when nothing more is made in it.
        for (path, shown, stat) in self.dirs.iter().rev() {
            let from = open_beneath(&source.upper, shown, OFlags::RDONLY | OFlags::DIRECTORY);
            let made = from.and_then(|from| {
                let stat = stat.map_or_else(|| Stat::of(from.as_fd()), Ok)?;
                entry(stage, path, |to| copy::metadata(At::new(&from, "."), to, &stat, skip))
            });
            made.context("cannot stage", shown.as_path())?;
        }
        fault::point("merge.stage.sync").context("cannot sync the stage of", &parent.path)?;
        self.sync(source, stage).context("cannot sync the stage of", &parent.path)?;
        self.ops.iter().map(|draft| draft.resolve(source, parent, stage)).collect()
    }

    /// Every object that is to arrive in the parent survives a power cut from here on.
    fn sync(&self, source: &Source, stage: &OwnedFd) -> std::io::Result<()> {
        // One sync of the file system is cheaper than many of files, and dearer than a few.
        const FEW: usize = 16;
        if self.objects.len() + self.dirs.len() + self.direct.len() > FEW {
            // What goes there directly is on the same one.
            return Ok(calls::syncfs(&super::walk::open_dir(stage)?)?);
        }
        let staged = self.objects.iter().map(|(path, ..)| path).chain(self.dirs.iter().map(|(path, ..)| path));
        let staged = staged.map(|path| (stage, path));
        for (root, path) in staged.chain(self.direct.iter().map(|path| (&source.upper, path))) {
            let fd = open_beneath(root, path, OFlags::PATH | OFlags::NOFOLLOW)?;
            let kind = Stat::of(fd.as_fd())?.file_type();
            if matches!(kind, FileType::RegularFile | FileType::Directory) {
                crate::durable::sync_fd(fd.as_fd())?;
            }
        }
        crate::durable::sync_fd(stage.as_fd())
    }

    /// The directories whose entries change, with the times they have and the times they are to get.
    pub(crate) fn times(&self, source: &Source, parent: &Parent, steps: &[Step]) -> Result<Vec<Times>> {
        let moves: Vec<(&RelPath, &RelPath)> = steps
            .iter()
            .filter_map(|step| match step {
                Step::Move { from, path, .. } => Some((from, path)),
                _ => None,
            })
            .collect();
        let mut seen = HashSet::new();
        let mut all = Vec::new();
        for draft in &self.ops {
            // A path of the parent as it is, or of the result.
            let pair = match draft {
                Draft::Detach { path, .. } => path.parent().map(|dir| (Some(dir.clone()), shift(&dir, &moves, false))),
                Draft::Swap { path, .. } | Draft::Attach { path, .. } | Draft::AttachMoved { path, .. } => {
                    path.parent().map(|dir| (Some(shift(&dir, &moves, true)), dir))
                }
                Draft::Attributes { .. } => None,
            };
            let Some((before, after)) = pair.filter(|(_, after)| seen.insert(after.clone())) else { continue };
            let look = |dir: RelPath| match parent.look(&dir).context("cannot look at", dir.as_path())?.stat() {
                Some(stat) => Ok::<_, Error>(Some((stat, dir))),
                None => Ok(None),
            };
            let present = before.map_or(Ok(None), look)?;
            let upper = match upper_dir(source, &after) {
                Ok(stat) => Some(stat),
                // Nothing in it changed.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => None,
                Err(e) => return Err(e).context("cannot look at the fork's", after.as_path()),
            };
            let old = present.as_ref().map(|(stat, _)| stat.mtime);
            let Some(mtime) = upper.map(|stat| stat.mtime).max(old) else { continue };
            let atime = present.as_ref().map_or(mtime, |(stat, _)| stat.atime);
            let before = present.map(|(stat, dir)| (dir, stat.atime, stat.mtime));
            all.push(Times { before, after: (after, atime, mtime) });
        }
        Ok(all)
    }
}

/// The attributes of a directory of the upper.
fn upper_dir(source: &Source, path: &RelPath) -> Os<Stat> {
    Stat::of(open_beneath(&source.upper, path, OFlags::PATH | OFlags::DIRECTORY)?.as_fd())
}

/// The path of a directory of the parent in the result, or the other way round.
fn shift(dir: &RelPath, moves: &[(&RelPath, &RelPath)], back: bool) -> RelPath {
    let pairs = moves.iter().map(|(from, to)| if back { (*to, *from) } else { (*from, *to) });
    let nearest = pairs.filter(|(from, _)| dir.as_path().starts_with(from)).max_by_key(|(from, _)| depth(from));
    let shifted = nearest.and_then(|(from, to)| {
        let rest = dir.as_path().strip_prefix(from).ok()?;
        RelPath::new(&to.as_path().join(rest))
    });
    shifted.unwrap_or_else(|| dir.clone())
}

impl Draft {
    fn resolve(&self, source: &Source, parent: &Parent, stage: &OwnedFd) -> Result<Op> {
        let new = |path: &RelPath, slot: &str, direct: &Option<Seen>| match direct {
            Some(seen) => Ok(*seen),
            None => At::new(stage, slot)
                .stat()
                .map(|stat| Seen::from(&stat))
                .context("cannot look at the staged", path.as_path()),
        };
        Ok(match self {
            Draft::Detach { path, slot, seen } => Op::Detach { path: path.clone(), slot: slot.clone(), seen: *seen },
            Draft::Swap { path, slot, old, direct } => {
                let (new, direct) = (new(path, slot, direct)?, direct.is_some());
                Op::Swap { path: path.clone(), slot: slot.clone(), old: *old, new, direct }
            }
            Draft::Attach { path, slot, direct } => {
                let (new, direct) = (new(path, slot, direct)?, direct.is_some());
                Op::Attach { path: path.clone(), slot: slot.clone(), new, direct }
            }
            Draft::AttachMoved { path, slot, seen } => {
                Op::Attach { path: path.clone(), slot: slot.clone(), new: *seen, direct: false }
            }
            Draft::Attributes { path, present } => {
                let cannot = "cannot read the attributes of";
                let before = parent.with(present, directory_attributes).context(cannot, present.as_path())?;
                let upper = open_beneath(&source.upper, path, OFlags::PATH | OFlags::DIRECTORY);
                let after = upper.and_then(|dir| directory_attributes(At::new(&dir, ".")));
                Op::Attributes { path: path.clone(), before, after: after.context(cannot, path.as_path())? }
            }
        })
    }
}

/// Owner, permissions and extended attributes of a directory.
fn directory_attributes(at: At<'_>) -> Os<Attributes> {
    let stat = at.stat()?;
    let xattrs = attributes(at)?.into_iter().map(|(name, value)| (Bytes(name), value)).collect();
    Ok(Attributes { mode: stat.mode & 0o7777, uid: stat.uid, gid: stat.gid, xattrs })
}

/// The attributes of an object of the upper that can be moved instead of copied: a regular file with one name, which
/// arrives as it is.
fn taken(make: &Make) -> Option<&Stat> {
    match make {
        Make::Upper { stat, mode: None, .. } if stat.is_file() && stat.nlink == 1 => Some(stat),
        _ => None,
    }
}

/// Calls `body` with the entry of a path in the stage.
pub(crate) fn entry<T>(stage: &OwnedFd, path: &RelPath, body: impl FnOnce(At<'_>) -> Os<T>) -> Os<T> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) if parent.is_root() => body(At::new(stage, name)),
        (Some(parent), Some(name)) => {
            body(At::new(&open_beneath(stage, &parent, OFlags::PATH | OFlags::DIRECTORY)?, name))
        }
        _ => Err(Errno::INVAL),
    }
}

/// An error for a stage that could not be made anywhere.
pub(crate) fn nowhere(parent: &Parent) -> Error {
    let what = "no place to stage a merge: neither the store nor a directory beside or in the parent is writable on the \
                file system of";
    Error::new(Kind::Io, what).at(&parent.path)
}
