//! The change set: what the upper of a fork says about the base, found in O(changes).
//!
//! Only the upper is walked, never the base. Whether a base object stood at a place when the fork was made is known
//! from the ledger; where a power cut took the ledger's tail, from the mark of origin, and failing that from the base
//! itself, as long as its change time is older than the fork.
//!
//! Each change has two paths: `path`, where the fork shows it, and `lower`, where the base has (or had) the object that
//! it stands for. They differ below a renamed directory.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::Os;
use super::Source;
use super::walk::{names, walk};
use crate::error::{Context, Error, Result};
use crate::layer::hidden::Hidden;
use crate::layer::ledger::{self, BaseState};
use crate::layer::marks::{self, DirMarks};
use crate::names::RelPath;
use crate::sys::{At, Ident, Stat, Time, open_beneath};

/// What happened at a place.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// Something that is no directory stands there: written, replaced or new.
    Put(Put),
    /// A directory stands there that the base did not have there.
    Mkdir(Stat),
    /// A directory of the base: its own attributes may differ now. With `opaque`, none of its old entries are left but
    /// those that are changes of their own.
    Attributes {
        /// The directory in the upper.
        stat: Stat,
        /// Old entries are gone, and `kept` are the names that stand in the upper.
        opaque: Option<HashSet<OsString>>,
        /// It is in the upper only for the sake of what is below it.
        untouched: bool,
    },
    /// A directory of the base stands here now; it was at `lower`.
    Move {
        /// The directory in the upper.
        stat: Stat,
        /// What the base has or had at its new place, by the base's names.
        place: Option<RelPath>,
    },
    /// The base's object is gone.
    Gone,
}

/// An object in the upper that is no directory.
#[derive(Clone, Debug)]
pub(crate) struct Put {
    /// Its attributes.
    pub(crate) stat: Stat,
    /// Where its data is, when not at its path in the upper: the name of an entry of the hard-link index.
    pub(crate) index: Option<OsString>,
    /// The base object it is a copy of.
    pub(crate) origin: Option<Ident>,
}

/// One change.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// Where the fork shows it.
    pub(crate) path: RelPath,
    /// Where the base has or had the object it stands for; `None` where a renamed directory has left the place free.
    pub(crate) lower: Option<RelPath>,
    /// The state of that object when the fork covered it; `None` where there was none.
    pub(crate) was: Option<BaseState>,
    /// What happened.
    pub(crate) what: What,
}

/// The change set of a fork.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// From the top down; a directory comes before what is in it.
    pub(crate) list: Vec<Change>,
    /// What the fork remembers of the base.
    pub(crate) past: Past,
}

/// What a fork remembers of the base.
#[derive(Debug, Default)]
pub(crate) struct Past {
    ledger: HashMap<RelPath, BaseState>,
    /// Beyond what was noted; `None` where that is everything.
    rest: Option<Rest>,
}

/// What a fork was able to see of its base without noting it.
#[derive(Debug)]
struct Rest {
    /// When the fork was made.
    created: Time,
    /// What it was not shown.
    hidden: Hidden,
    /// The root of the base.
    base: OwnedFd,
}

impl Past {
    /// The memory of a fork that noted the state of all that it got.
    pub(crate) fn whole(states: HashMap<RelPath, BaseState>) -> Self {
        Self { ledger: states, rest: None }
    }

    /// The state of a base path when the fork covered it. `present` is what stands there now: it counts where nothing
    /// was noted, it is older than the fork, and the fork was shown it.
    pub(crate) fn was(&self, lower: &RelPath, present: Option<&Stat>) -> Option<BaseState> {
        let old = |stat: &&Stat| {
            self.rest.as_ref().is_some_and(|rest| stat.ctime <= rest.created) && !self.hides(lower, stat)
        };
        self.ledger.get(lower).copied().or_else(|| present.filter(old).map(BaseState::from))
    }

    /// Whether the fork is not shown such an object of the base at this path.
    fn hides(&self, lower: &RelPath, stat: &Stat) -> bool {
        self.rest.as_ref().is_some_and(|rest| rest.hidden.covers(&rest.base, lower, stat.file_type()))
    }

    /// Whether the fork might not be shown such an object of the base at this path.
    pub(crate) fn may_hide(&self, path: &RelPath, stat: &Stat) -> bool {
        self.rest.as_ref().is_some_and(|rest| rest.hidden.may_cover(path, stat.file_type()))
    }
}

/// Reads the change set of a fork. `base` is the root of its base.
pub(crate) fn read(source: &Source, base: &OwnedFd) -> Result<Changes> {
    if let Some(manifest) = &source.manifest {
        return super::copied::read(source, manifest);
    }
    let ledger = ledger::read(&source.work).context("cannot read the ledger of the fork", &source.path)?;
    let hidden = source.hide.of(&source.base)?;
    let base_root = base.try_clone().context("cannot hold on to", &source.base)?;
    let past = Past { ledger, rest: Some(Rest { created: source.created, hidden, base: base_root }) };
    let mut walk = Walk { base, past, list: Vec::new(), moved: HashSet::new() };
    walk.everything(source).map_err(|e| match e {
        Errno::NAMETOOLONG => Error::io("there are directories nested too deeply in the fork", e)
            .at(&source.path)
            .remedy("move what lies in them further up, or remove them"),
        Errno::ACCESS => Error::io("there are directories that you may not look into in the fork", e)
            .at(&source.path)
            .remedy("`chmod -R u+rwX` there gives you the permissions"),
        e => Error::io("cannot read the changes of the fork", e).at(&source.path),
    })?;
    if let Some(prepared) = source.prepared()? {
        // What was put into the upper when the fork was made is none of its changes.
        walk.list.retain(|change| match &change.what {
            What::Put(Put { stat, .. }) | What::Mkdir(stat) => !prepared.is_as_made(&change.path, stat),
            _ => true,
        });
    }
    Ok(Changes { list: walk.list, past: walk.past })
}

struct Walk<'a> {
    base: &'a OwnedFd,
    past: Past,
    list: Vec<Change>,
    /// The old places of renamed directories.
    moved: HashSet<RelPath>,
}

/// A directory that is being read.
struct Level {
    dir: OwnedFd,
    marks: DirMarks,
    path: RelPath,
    /// Where the base has it.
    lower: Option<RelPath>,
    /// What is left of it.
    names: std::vec::IntoIter<OsString>,
}

impl Level {
    fn open(dir: OwnedFd, marks: DirMarks, path: RelPath, lower: Option<RelPath>) -> Os<Self> {
        let names = names(&dir)?.into_iter();
        Ok(Self { dir, marks, path, lower, names })
    }
}

impl Walk<'_> {
    fn everything(&mut self, source: &Source) -> Os<()> {
        let root = RelPath::root();
        let dir = open_beneath(&source.upper, &root, OFlags::RDONLY | OFlags::DIRECTORY)?;
        self.find_moved(&dir)?;
        let stat = Stat::of(dir.as_fd())?;
        let was = self.was(Some(&root));
        let marks = marks::of_upper(At::new(&dir, "."), DirMarks::read)?;
        let untouched = marks.origin.is_none_or(|origin| origin.ctime.is_some());
        let what = What::Attributes { stat, opaque: None, untouched };
        self.list.push(Change { path: root.clone(), lower: Some(root.clone()), was, what });
        self.directory(Level::open(dir, marks, root.clone(), Some(root))?)?;
        self.other_names(source)
    }

    /// Collects the old places of renamed directories: what stands there now is none of the base's.
    fn find_moved(&mut self, dir: &OwnedFd) -> Os<()> {
        walk(dir, |name, kind, above, path| {
            let at = At::new(above, name);
            let is_dir = match kind {
                FileType::Unknown => at.stat()?.is_dir(),
                kind => kind == FileType::Directory,
            };
            if !is_dir {
                return Ok(None);
            }
            self.moved.extend(moved_from(&marks::of_upper(at, DirMarks::read)?));
            at.open(OFlags::RDONLY | OFlags::DIRECTORY).map(|dir| Some((dir, path)))
        })
    }

    /// Reads a directory and all that is below it.
    fn directory(&mut self, top: Level) -> Os<()> {
        let mut way = vec![top];
        while let Some(level) = way.last_mut() {
            let Some(name) = level.names.next() else {
                way.pop();
                continue;
            };
            if let Some(below) = self.entry(level, &name)? {
                way.push(below);
            }
        }
        Ok(())
    }

    /// Reads one entry; what is to be read next where it is a directory.
    fn entry(&mut self, level: &Level, name: &OsStr) -> Os<Option<Level>> {
        let at = At::new(&level.dir, name);
        let stat = at.stat()?;
        let path = level.path.deeper(name)?;
        // A place that a renamed directory has left is free, whatever the base still has there.
        let below = level.lower.as_ref().map(|lower| lower.join(name)).filter(|below| !self.left(below, at, &stat));
        if marks::of_upper(at, |at| marks::is_whiteout(at, &stat, level.marks.attribute_whiteouts))? {
            let was = self.was(below.as_ref());
            if was.is_some() {
                self.list.push(Change { path, lower: below, was, what: What::Gone });
            }
        } else if stat.is_dir() {
            return self.subdirectory(at, stat, path, below).map(Some);
        } else {
            let origin = if stat.is_file() { marks::of_upper(at, marks::read_origin)? } else { None };
            let was = self.was(below.as_ref());
            let what = What::Put(Put { stat, index: None, origin: origin.map(|origin| origin.ident) });
            self.list.push(Change { path, lower: below, was, what });
        }
        Ok(None)
    }

    /// Whether the base's directory of this place is elsewhere in the fork (and not back at its place).
    fn left(&self, below: &RelPath, at: At<'_>, stat: &Stat) -> bool {
        let back = || {
            stat.is_dir()
                && marks::of_upper(at, DirMarks::read).is_ok_and(|marks| moved_from(&marks).as_ref() == Some(below))
        };
        self.moved.contains(below) && !back()
    }

    fn subdirectory(&mut self, at: At<'_>, stat: Stat, path: RelPath, below: Option<RelPath>) -> Os<Level> {
        let dir = at.open(OFlags::RDONLY | OFlags::DIRECTORY)?;
        let marks = marks::of_upper(at, DirMarks::read)?;
        let mut was = self.was(below.as_ref());
        if was.is_none() && marks.origin.is_some() && marks.redirect.is_none() {
            // Noted by its mark alone: the ledger's line was lost, and the base has changed the directory since.
            let present = below.as_ref().and_then(|below| self.present(below));
            was = present.filter(Stat::is_dir).map(|stat| BaseState::from(&stat));
        }
        let moved = moved_from(&marks).filter(|from| Some(from) != below.as_ref());
        let lower = moved.clone().or_else(|| below.clone());
        if let Some(from) = moved {
            if was.is_some() {
                self.list.push(Change { path: path.clone(), lower: below.clone(), was, what: What::Gone });
            }
            let was = self.was(Some(&from));
            let what = What::Move { stat, place: below };
            self.list.push(Change { path: path.clone(), lower: Some(from), was, what });
        } else if was.is_some_and(|was| is_dir(was.mode)) {
            let opaque = if marks.opaque { Some(self.standing(&dir, &marks)?) } else { None };
            let untouched = marks.origin.is_some_and(|origin| origin.ctime.is_some());
            let what = What::Attributes { stat, opaque, untouched };
            self.list.push(Change { path: path.clone(), lower: below, was, what });
        } else {
            self.list.push(Change { path: path.clone(), lower: below, was, what: What::Mkdir(stat) });
        }
        Level::open(dir, marks, path, lower)
    }

    /// The names in an upper directory that are not whiteouts.
    fn standing(&self, dir: &OwnedFd, marks: &DirMarks) -> Os<HashSet<OsString>> {
        let mut standing = HashSet::new();
        for name in names(dir)? {
            let at = At::new(dir, &name);
            if !marks::is_whiteout(at, &at.stat()?, marks.attribute_whiteouts)? {
                standing.insert(name);
            }
        }
        Ok(standing)
    }

    fn was(&self, lower: Option<&RelPath>) -> Option<BaseState> {
        let lower = lower?;
        match self.past.ledger.get(lower) {
            Some(state) => Some(*state),
            None => self.past.was(lower, self.present(lower).as_ref()),
        }
    }

    fn present(&self, lower: &RelPath) -> Option<Stat> {
        let fd = open_beneath(self.base, lower, OFlags::PATH | OFlags::NOFOLLOW).ok()?;
        Stat::of(fd.as_fd()).ok()
    }

    /// Adds the names of written hard links that are not in the upper: the fork shows the new data under them too.
    ///
    /// Only here the base may have to be walked: when it has more names of such a file than the fork has covered.
    fn other_names(&mut self, source: &Source) -> Os<()> {
        let index = match At::new(&source.work, INDEX).open(OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(()),
            Err(e) => return Err(e),
        };
        let mut wanted: HashMap<u64, (Ident, OsString, Stat)> = HashMap::new();
        for name in names(&index)? {
            let Some(key) = index_key(&name) else { continue };
            let stat = At::new(&index, &name).stat()?;
            let covered: Vec<&RelPath> =
                self.past.ledger.iter().filter(|(_, state)| state.ident == key).map(|(path, _)| path).collect();
            let links = covered.iter().filter_map(|path| self.present(path)).find(|stat| stat.ident() == key);
            if links.is_some_and(|stat| stat.nlink as usize <= covered.len()) {
                continue;
            }
            wanted.insert(key.ino, (key, name, stat));
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let device = Stat::of(self.base.as_fd())?.dev;
        let (mut found, past) = (Vec::new(), &self.past);
        scan(self.base, device, &mut |path, stat| {
            if let Some((ident, name, data)) = wanted.get(&stat.ino)
                && *ident == stat.ident()
                && !past.hides(&path, stat)
            {
                found.push((path, BaseState::from(stat), name.clone(), *data));
            }
        })?;
        for (lower, was, name, stat) in found {
            let shown = self.shown_at(&lower);
            let listed = self.list.iter().any(|change| change.path == shown);
            if !listed && !self.past.ledger.contains_key(&lower) {
                let origin = Some(was.ident);
                let what = What::Put(Put { stat, index: Some(name), origin });
                self.list.push(Change { path: shown, lower: Some(lower), was: Some(was), what });
            }
        }
        Ok(())
    }

    /// Where the fork shows a base path that it has not covered.
    fn shown_at(&self, lower: &RelPath) -> RelPath {
        let moves = self.list.iter().filter_map(|change| match (&change.what, &change.lower) {
            (What::Move { .. }, Some(from)) => Some((from, &change.path)),
            _ => None,
        });
        let nearest = moves
            .filter(|(from, _)| lower.as_path().starts_with(from.as_path()))
            .max_by_key(|(from, _)| from.as_bytes().len());
        let moved = nearest.and_then(|(from, to)| {
            let rest = lower.as_path().strip_prefix(from.as_path()).ok()?;
            RelPath::new(&to.as_path().join(rest))
        });
        moved.unwrap_or_else(|| lower.clone())
    }
}

/// The old place of a renamed directory.
fn moved_from(marks: &DirMarks) -> Option<RelPath> {
    marks.redirect.clone().filter(|_| !marks.opaque)
}

/// The directory of written hard links in the work area.
pub(crate) const INDEX: &str = "index";

/// Which base object an entry of the hard-link index stands for: `<ino>-<sec>.<nsec>`.
fn index_key(name: &OsStr) -> Option<Ident> {
    let (ino, rest) = name.to_str()?.split_once('-')?;
    let (sec, nsec) = rest.split_once('.')?;
    let btime = Time { sec: sec.parse().ok()?, nsec: nsec.parse().ok()? };
    Some(Ident { ino: ino.parse().ok()?, btime })
}

/// Whether a mode is that of a directory.
pub(crate) fn is_dir(mode: u32) -> bool {
    rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::Directory
}

/// Visits everything with several names below a directory, on its own file system.
fn scan(dir: &OwnedFd, device: u64, visit: &mut dyn FnMut(RelPath, &Stat)) -> Os<()> {
    walk(dir, |name, _, above, path| {
        let at = At::new(above, name);
        let Some(stat) = at.try_stat()? else { return Ok(None) };
        if !stat.is_dir() {
            if stat.nlink > 1 {
                visit(path, &stat);
            }
            return Ok(None);
        }
        let here = stat.dev == device && !stat.mount_root;
        here.then(|| at.open(OFlags::RDONLY | OFlags::DIRECTORY).map(|dir| (dir, path))).transpose()
    })
}
