//! The way back: what a fork changed goes into its parent, whole or not at all.
//!
//! [`changes`] reads the change set from the upper; the planner compares each path with the parent's present state
//! and asks [`table`] for its verdict; the result is a [`Plan`], which can be shown. Carrying it out is journaled
//! ([`replay`]): staged beside the parent, renamed into place, undone or finished by whoever comes after a crash. The
//! git side (objects, refs, index) is a step of the same journal.
//!
//! The order of durable steps, with a fault point between any two, is in the documentation of [`replay`].

mod apply;
mod aside;
mod changes;
mod combine;
mod compare;
mod content;
mod copied;
mod dirs;
mod gitstep;
mod journal;
mod overlap;
mod parent;
mod plan;
mod planner;
mod preserve;
mod replay;
mod repository;
mod scratch;
mod settle;
mod stage;
mod table;
mod text;
mod view;
mod walk;

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

pub use apply::{Ending, Outcome, Recovered, lock_path, merge, recover};
pub use content::{Content, diff};
pub use overlap::{Overlap, overlaps};
pub use plan::{Action, Conflict, Entry, LeftOut, ObjectType, Omission, Plan};
pub use table::{Ours, Reason, Theirs, Verdict, verdict};
pub use text::merge as merge_text;

use crate::durable::CancelToken;
use crate::error::{Context, Result};
use crate::layer::hidden::Hide;
use crate::layer::manifest::Manifest;
use crate::names::RelPath;
use crate::sys::{At, Time, calls, open_beneath, open_root};

/// A system call's result.
type Os<T> = std::result::Result<T, Errno>;

/// A fork, as a merge needs to know it.
#[derive(Debug)]
pub struct Source {
    /// Its id.
    pub id: String,
    /// What a person calls it.
    pub name: String,
    /// Where it shows its files.
    pub path: PathBuf,
    /// Its upper layer; for a copy its whole tree.
    pub upper: OwnedFd,
    /// Where that is.
    pub upper_path: PathBuf,
    /// Its work area.
    pub work: OwnedFd,
    /// The tree it was made from.
    pub base: PathBuf,
    /// When it was made, by the real clock.
    pub created: Time,
    /// The commit that the base was at, if it is a git repository with one.
    pub base_ref: Option<String>,
    /// The preserved layers that the fork reads through, top first.
    pub layers: Vec<PathBuf>,
    /// What of the base it does not show.
    pub hide: Hide,
    /// For a copy: what it was made from.
    pub manifest: Option<Manifest>,
    /// The directory of the upper that was looked into last.
    dirs: dirs::LastDir,
}

impl Source {
    /// Opens a fork whose layers are below `dir` (`upper`, `work`).
    pub fn open(dir: &Path, id: &str, name: &str, path: PathBuf, base: PathBuf, created: Time) -> Result<Self> {
        let upper_path = dir.join("upper");
        let work = dir.join("work");
        Ok(Self {
            id: id.to_owned(),
            name: name.to_owned(),
            path,
            upper: open_root(&upper_path).context("cannot open the upper layer", &upper_path)?,
            upper_path,
            work: open_root(&work).context("cannot open the work area", &work)?,
            base,
            created,
            base_ref: None,
            layers: Vec::new(),
            hide: Hide::default(),
            manifest: None,
            dirs: dirs::LastDir::default(),
        })
    }

    /// Opens a fork that is a copy, with its tree at `path` and its manifest in `dir` (`work`).
    pub fn open_copy(dir: &Path, id: &str, name: &str, path: PathBuf, base: PathBuf, created: Time) -> Result<Self> {
        let work = dir.join("work");
        Ok(Self {
            id: id.to_owned(),
            name: name.to_owned(),
            upper: open_root(&path).context("cannot open the copy", &path)?,
            upper_path: path.clone(),
            path,
            work: open_root(&work).context("cannot open the work area", &work)?,
            base,
            created,
            base_ref: None,
            layers: Vec::new(),
            hide: Hide::default(),
            manifest: Some(Manifest::read(&work)?),
            dirs: dirs::LastDir::default(),
        })
    }
}

impl Source {
    /// What was in the upper from the beginning, if anything.
    fn prepared(&self) -> Result<Option<Manifest>> {
        Manifest::prepared(&self.upper_path.with_file_name("work"))
    }
}

/// Whose side to take where both changed a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The fork's.
    Ours,
    /// The parent's.
    Theirs,
}

/// What a merge is asked for.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Only what is at or below these paths; all where empty.
    pub only: Vec<RelPath>,
    /// How conflicts at or below these paths are decided; the last one that fits counts.
    pub resolve: Vec<(RelPath, Side)>,
    /// What git ignores comes along.
    pub ignored: bool,
    /// What git does not track may be deleted.
    pub allow_delete: bool,
    /// Settings in the git directory that come along, by path (`.git/hooks/pre-commit`).
    pub git_paths: Vec<RelPath>,
    /// The fork goes on afterwards: nothing is taken out of it.
    pub keep: bool,
    /// The tree that receives, where it is not the base.
    pub into: Option<PathBuf>,
    /// Cancelling this ends the merge as long as the parent is as it was; afterwards it is finished.
    pub cancel: CancelToken,
}

/// Works out what a merge would do. Writes nothing.
pub fn plan(source: &Source, options: &Options) -> Result<Plan> {
    let prepared = prepare(source, options)?;
    prepared.check_idle()?;
    Ok(prepared.plan)
}

/// A plan with what it was made from.
struct Prepared {
    parent: parent::Parent,
    repository: Option<repository::Repository>,
    plan: Plan,
    git: Option<gitstep::GitStep>,
    /// The parent is not the base.
    elsewhere: bool,
}

impl Prepared {
    /// Refuses a parent whose repository has something under way.
    fn check_idle(&self) -> Result<()> {
        self.repository.as_ref().map_or(Ok(()), repository::Repository::check_idle)
    }
}

fn prepare(source: &Source, options: &Options) -> Result<Prepared> {
    let other = options.into.as_deref().map(parent::Parent::open).transpose()?;
    // Where the base is gone, nothing stands in for it: the work can still be brought to another tree.
    let nothing;
    let base = match parent::Parent::open(&source.base) {
        Err(_) if other.is_some() && calls::exists(&source.base) == Ok(false) => {
            nothing = scratch::Scratch::new("nothing")?;
            parent::Parent::open(&nothing.0)?
        }
        other => other?,
    };
    let changes = changes::read(source, &base.root)?;
    let (parent, elsewhere) = match other {
        Some(other) if (other.stat.dev, other.stat.ino) != (base.stat.dev, base.stat.ino) => (other, Some(base)),
        _ => (base, None),
    };
    let repository = repository::Repository::open(&parent)?;
    if repository.is_some() {
        repository::Repository::check_objects(source, &changes)?;
    }
    let planner = planner::Planner::new(source, &parent, elsewhere.as_ref(), &changes, options, repository.as_ref());
    let mut plan = planner.plan()?;
    // Commits go where the fork's own repository came from, and only with everything else.
    let git = match (&repository, &elsewhere) {
        (Some(repository), None) if options.only.is_empty() => {
            gitstep::GitStep::plan(repository, source, &changes, &parent, &mut plan.git)?
        }
        _ => None,
    };
    let elsewhere = elsewhere.is_some();
    Ok(Prepared { parent, repository, plan, git, elsewhere })
}

/// Calls `body` with the fork's object of a path: in the upper, or an entry of the hard-link index.
fn upper_object<T>(
    source: &Source,
    index: Option<&OsStr>,
    path: &RelPath,
    body: impl FnOnce(At<'_>) -> Os<T>,
) -> Os<T> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    match (index, path.parent(), path.file_name()) {
        (Some(name), ..) => body(At::new(&At::new(&source.work, changes::INDEX).open(flags)?, name)),
        (None, Some(parent), Some(name)) => {
            let dir = source.dirs.get(&parent, || open_beneath(&source.upper, &parent, flags))?;
            body(At::new(&*dir, name))
        }
        (None, ..) => body(At::new(&source.upper, ".")),
    }
}
