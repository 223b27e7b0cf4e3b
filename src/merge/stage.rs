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

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::compare::{attributes, skip};
use super::journal::{Attributes, Bytes, Op, Seen, Taken, Times};
use super::parent::Parent;
use super::plan::{Make, Step};
use super::{Os, Source, upper_object};
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

/// What is to be made where, decided before anything is written.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// Directories to make, parents first: path in the stage, path in the fork, attributes there.
    dirs: Vec<(RelPath, RelPath, Option<Stat>)>,
    /// Directories of the upper that objects leave, with the times they have.
    pub(crate) left: Vec<(RelPath, Time, Time)>,
    /// Objects to make: path in the stage, what, path in the fork.
    objects: Vec<(RelPath, Make, RelPath)>,
    /// What leaves the upper instead of being copied.
    pub(crate) taken: Vec<Taken>,
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
    Swap {
        path: RelPath,
        slot: String,
        old: Seen,
    },
    Attach {
        path: RelPath,
        slot: String,
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
    /// Lays out the steps. With `take`, regular files of the upper with one name are moved rather than copied.
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
        layout.arrivals(steps, &mut arrive);
        // Before anything leaves the upper: that changes the times of its directories.
        for (_, shown, stat) in &mut layout.dirs {
            *stat = Some(upper_dir(source, shown).context("cannot read the fork's", shown.as_path())?);
        }
        if take {
            layout.take(source)?;
        }
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

    fn arrivals(&mut self, steps: &[Step], arrive: &mut Vec<Draft>) {
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
                    self.objects.push((stage, make.clone(), path.clone()));
                    match over {
                        Some(old) if top => arrive.push(Draft::Swap { path: path.clone(), slot, old: old.into() }),
                        _ if top => arrive.push(Draft::Attach { path: path.clone(), slot }),
                        _ => {}
                    }
                }
                _ => {
                    staged.insert(path, stage.clone());
                    self.dirs.push((stage, path.clone(), None));
                    if top {
                        arrive.push(Draft::Attach { path: path.clone(), slot });
                    }
                }
            }
        }
    }

    fn take(&mut self, source: &Source) -> Result<()> {
        for (stage, make, _) in &self.objects {
            let Make::Upper { path, mode: None } = make else { continue };
            let stat = upper_object(source, None, path, |at| at.stat()).context("cannot read the fork's", path)?;
            if stat.is_file() && stat.nlink == 1 {
                let dir = path.parent().unwrap_or_default();
                if self.left.last().is_none_or(|(last, ..)| *last != dir) {
                    let stat = upper_dir(source, &dir).context("cannot read the fork's", dir.as_path())?;
                    self.left.push((dir, stat.atime, stat.mtime));
                }
                self.taken.push(Taken { upper: path.clone(), stage: stage.clone() });
            }
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
        let taken: HashSet<&RelPath> = self.taken.iter().map(|taken| &taken.stage).collect();
        for (path, ..) in &self.dirs {
            fault::point("merge.stage.dir").context("cannot stage", path.as_path())?;
            entry(stage, path, |at| at.mkdir(0o700)).context("cannot stage", path.as_path())?;
        }
        let mut names: HashMap<(u64, u64), RelPath> = HashMap::new();
        for (path, make, shown) in &self.objects {
            let take = taken.contains(path);
            let builder = Builder { source, parent, stage, cancel };
            cancel.check()?;
            fault::point("merge.stage.object").context("cannot stage", shown.as_path())?;
            builder.object(path, make, take, &mut names).context("cannot stage", shown.as_path())?;
        }
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
        self.sync(stage).context("cannot sync the stage of", &parent.path)?;
        self.ops.iter().map(|draft| draft.resolve(source, parent, stage)).collect()
    }

    /// Every staged object survives a power cut from here on.
    fn sync(&self, stage: &OwnedFd) -> std::io::Result<()> {
        // One sync of the file system is cheaper than many of files, and dearer than a few.
        const FEW: usize = 16;
        if self.objects.len() + self.dirs.len() > FEW {
            return Ok(calls::syncfs(&super::changes::open_dir(stage)?)?);
        }
        let all = self.objects.iter().map(|(path, ..)| path).chain(self.dirs.iter().map(|(path, ..)| path));
        for path in all {
            let fd = open_beneath(stage, path, OFlags::PATH | OFlags::NOFOLLOW)?;
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
            let present = before.and_then(|dir| Some((parent.look(&dir).ok()?.stat()?, dir)));
            let upper = open_beneath(&source.upper, &after, OFlags::PATH | OFlags::DIRECTORY);
            let upper = upper.ok().and_then(|fd| Stat::of(fd.as_fd()).ok());
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
        let staged = |slot: &str| At::new(stage, slot).stat().map(|stat| Seen::from(&stat));
        Ok(match self {
            Draft::Detach { path, slot, seen } => Op::Detach { path: path.clone(), slot: slot.clone(), seen: *seen },
            Draft::Swap { path, slot, old } => {
                let new = staged(slot).context("cannot look at the staged", path.as_path())?;
                Op::Swap { path: path.clone(), slot: slot.clone(), old: *old, new }
            }
            Draft::Attach { path, slot } => {
                let new = staged(slot).context("cannot look at the staged", path.as_path())?;
                Op::Attach { path: path.clone(), slot: slot.clone(), new }
            }
            Draft::AttachMoved { path, slot, seen } => {
                Op::Attach { path: path.clone(), slot: slot.clone(), new: *seen }
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

/// Calls `body` with the entry of a path in the stage.
pub(crate) fn entry<T>(stage: &OwnedFd, path: &RelPath, body: impl FnOnce(At<'_>) -> Os<T>) -> Os<T> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::INVAL) };
    let dir = open_beneath(stage, &parent, OFlags::PATH | OFlags::DIRECTORY)?;
    body(At::new(&dir, name))
}

struct Builder<'a> {
    source: &'a Source,
    parent: &'a Parent,
    stage: &'a OwnedFd,
    cancel: &'a CancelToken,
}

impl Builder<'_> {
    fn object(&self, path: &RelPath, make: &Make, take: bool, names: &mut HashMap<(u64, u64), RelPath>) -> Os<()> {
        let (index, shown, mode): (Option<&OsString>, &RelPath, Option<u32>) = match make {
            Make::Content { bytes, mode, mtime, like } => return self.content(path, bytes, *mode, *mtime, like),
            Make::Index { name, mode } => (Some(name), path, *mode),
            Make::Upper { path, mode } => (None, path, *mode),
        };
        upper_object(self.source, index.map(OsString::as_os_str), shown, |from| {
            let stat = from.stat()?;
            let linked = (stat.nlink > 1 && mode.is_none()).then_some((stat.dev, stat.ino));
            if let Some(first) = linked.and_then(|key| names.get(&key)) {
                return entry(self.stage, first, |first| entry(self.stage, path, |to| first.link_to(to)));
            }
            entry(self.stage, path, |to| match take {
                true => from.rename(to),
                false => copy_object(from, to, &stat, mode, self.cancel),
            })?;
            names.extend(linked.map(|key| (key, path.clone())));
            Ok(())
        })
    }

    /// A file of this content, otherwise like one of the parent's.
    fn content(&self, path: &RelPath, bytes: &[u8], mode: u32, mtime: Option<Time>, like: &RelPath) -> Os<()> {
        entry(self.stage, path, |to| {
            calls::File::from(to.create(OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, 0o600)?).put(bytes)?;
            let fresh = to.stat()?;
            self.parent.with(like, |like| {
                let mut stat = like.stat()?;
                stat.mode = mode;
                stat.mtime = mtime.unwrap_or(fresh.mtime);
                copy::metadata(like, to, &stat, skip)
            })
        })
    }
}

/// Copies an object that is no directory, with everything but its number and our marks.
fn copy_object(from: At<'_>, to: At<'_>, stat: &Stat, mode: Option<u32>, cancel: &CancelToken) -> Os<()> {
    match stat.file_type() {
        FileType::RegularFile => {
            let source = from.open_quiet(OFlags::RDONLY | OFlags::NONBLOCK)?;
            let target = to.create(OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, 0o600)?;
            if !copy::reflink(source.as_fd(), target.as_fd())? {
                copy::file_data_watched(source.as_fd(), target.as_fd(), stat.size, &mut |_| cancel.flow())?;
            }
        }
        FileType::Symlink => to.symlink(&from.readlink()?)?,
        _ => to.mknod(stat.mode & !0o7777 | 0o600, stat.rdev)?,
    }
    let mut stat = *stat;
    stat.mode = mode.unwrap_or(stat.mode);
    copy::metadata(from, to, &stat, skip)
}

/// An error for a stage that could not be made anywhere.
pub(crate) fn nowhere(parent: &Parent) -> Error {
    let what = "no place to stage a merge: neither the store nor a directory beside or in the parent is writable on the \
                file system of";
    Error::new(Kind::Io, what).at(&parent.path)
}
