//! A merge from its lock to its last step, and what is done about one that was broken off.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::journal::{Journal, Phase, Settle, Times};
use super::parent::Parent;
use super::plan::{Conflict, Plan};
use super::preserve::preserve;
use super::replay::{Replay, Stop, Upper, remove_stage};
use super::repository::Repository;
use super::stage::{Layout, nowhere, places};
use super::table::Reason;
use super::{Options, Prepared, Source, prepare};
use crate::durable::{CancelToken, FileLock, Holder, Wait, fault, sweep};
use crate::error::{Context, Error, Kind, Result};
use crate::layer::preserved::{self, Keeper};
use crate::names::RelPath;
use crate::sys::calls::{self, Dir};
use crate::sys::{Stat, Time, mount_id, open_root, reopen};

/// What came of a merge.
#[derive(Debug)]
pub struct Outcome {
    /// What was to be done, with the conflicts that kept it from happening.
    pub plan: Plan,
    /// The parent is new. `None` for conflicts, and where there was nothing to do.
    pub landed: Option<Ending>,
    /// Everything of the fork is in the parent, so that it can go.
    pub complete: bool,
    /// The commit that both sides are at by now, where git was part of it: a fork that goes on counts from there.
    pub base_ref: Option<String>,
}

/// A merge that had been broken off, and what was made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The fork that was being merged.
    pub fork: String,
    /// The parent.
    pub parent: PathBuf,
    /// The parent is entirely new; otherwise entirely old, and the fork has everything.
    pub landed: bool,
    /// The fork was to live on.
    pub keep: bool,
}

/// The directory that a store, whose directories for parents are in `bases`, keeps for this one.
fn directory(bases: &Path, parent: &Parent) -> PathBuf {
    bases.join(preserved::key(&parent.path, &parent.stat.ident()))
}

/// The lock under which a parent is merged into.
pub fn lock_path(directory: &Path) -> PathBuf {
    directory.join("lock")
}

/// Merges a fork into its parent, whole or not at all. `bases` is where the store keeps what it knows of parents.
///
/// The fork must stand still: nobody writes in it from before the call until after it, and where it is not kept it is
/// not written to ever after (its files may have been moved into the parent). `keeper` knows the other forks of the
/// parent, which do not see the merge. `waiting` is told who holds the lock.
///
/// # Errors
/// Conflicts are no error but part of the outcome. On any error the parent is as it was.
pub fn merge(
    source: &Source,
    bases: &Path,
    options: &Options,
    keeper: &dyn Keeper,
    wait: Wait,
    waiting: impl FnOnce(Option<&Holder>),
) -> Result<Outcome> {
    let root = Parent::open(options.into.as_deref().unwrap_or(&source.base))?;
    let store = directory(bases, &root);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&store).context("cannot make", &store)?;
    let what = format!("merge of {}", source.name);
    let _lock = FileLock::acquire_with(&lock_path(&store), &what, wait, &options.cancel, waiting)?;
    let _other = exclude_other_stores(&root)?;
    sweep(&store)?;
    if let Some(journal) = Journal::read(&store)? {
        resume(journal, &store, &|layer| keeper.withdraw(layer))?;
    }
    let prepared = prepare(source, options)?;
    prepared.check_idle()?;
    let Prepared { parent, repository, mut plan, git, elsewhere } = prepared;
    let nothing = |plan: Plan, complete| Ok(Outcome { plan, landed: None, complete, base_ref: None });
    if !plan.conflicts.is_empty() {
        return nothing(plan, false);
    }
    let complete = !plan.partial && plan.left_out.iter().all(|left| left.why.may_be_lost());
    if plan.is_empty() && git.is_none() {
        return nothing(plan, complete);
    }
    let job = Job {
        source,
        stays: options.keep || !complete,
        cancel: &options.cancel,
        keeper,
        parent: &parent,
        repository: repository.as_ref(),
        store: &store,
        git,
        elsewhere,
    };
    match job.run(&plan) {
        Ok(ending) => {
            let common = |git: &super::gitstep::GitStep| repository.as_ref().map(|repository| git.common(repository));
            let base_ref = job.git.as_ref().and_then(common).transpose().unwrap_or_else(|e| {
                log::warn!("which commit both sides are at now cannot be told: {e}");
                None
            });
            Ok(Outcome { plan, landed: Some(ending), complete, base_ref: base_ref.flatten() })
        }
        Err(Stop::Failed(error)) => Err(error),
        Err(Stop::Changed(path)) => {
            let fork = source.path.join(&path);
            plan.conflicts.push(Conflict { path, reason: Reason::ChangedMeanwhile, fork });
            nothing(plan, false)
        }
    }
}

/// Another store knows nothing of our lock: its merges and ours exclude each other by a lock on the root itself.
fn exclude_other_stores(parent: &Parent) -> Result<std::os::fd::OwnedFd> {
    let root = super::walk::open_dir(&parent.root).context("cannot open the parent", &parent.path)?;
    match calls::flock(&root, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(root),
        Err(Errno::WOULDBLOCK) => {
            let what = "locked by a merge from another store:";
            Err(Error::new(Kind::Locked, what).at(&parent.path))
        }
        // A file system without locks: the store's own has to do.
        Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::INVAL | Errno::BADF) => Ok(root),
        Err(e) => Err(e).context("cannot lock the parent", &parent.path),
    }
}

/// How far a merge that has landed came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// To its end.
    Over,
    /// Its journal is left, for the next command to go on from. Until then the fork has to stand still.
    Unfinished,
}

struct Job<'a> {
    source: &'a Source,
    /// The fork lives on afterwards: it is to be kept, or not everything of it lands.
    stays: bool,
    cancel: &'a CancelToken,
    keeper: &'a dyn Keeper,
    parent: &'a Parent,
    repository: Option<&'a Repository>,
    store: &'a Path,
    git: Option<super::gitstep::GitStep>,
    /// The parent is not the fork's base.
    elsewhere: bool,
}

impl Job<'_> {
    fn run(&self, plan: &Plan) -> std::result::Result<Ending, Stop> {
        let key = self.store.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let key = format!("{key}-{}", std::process::id());
        let mut journal = self.journal();
        let mut failed = None;
        for place in places(self.parent, self.store, &key) {
            match self.stage(&mut journal, plan, &place) {
                Ok(Some(stage)) => return self.carry_out(journal, stage),
                Ok(None) => {}
                Err(e) => failed = Some(e),
            }
            Journal::close(self.store)?;
            if failed.is_some() {
                break;
            }
        }
        Err(failed.unwrap_or_else(|| nowhere(self.parent)).into())
    }

    fn journal(&self) -> Journal {
        Journal {
            fork: self.source.id.clone(),
            name: self.source.name.clone(),
            keep: self.stays,
            elsewhere: self.elsewhere,
            parent: self.parent.path.clone(),
            root: self.parent.stat.ident(),
            upper: self.source.upper_path.clone(),
            stage: PathBuf::new(),
            index_lock: false,
            since: Time::of_changes(),
            layer: PathBuf::new(),
            phase: Phase::Staging,
            taken: Vec::new(),
            left: Vec::new(),
            ops: Vec::new(),
            times: Vec::new(),
            settle: Settle::default(),
        }
    }

    /// Writes the journal and makes the stage; `None` where this is no place for one.
    fn stage(
        &self,
        journal: &mut Journal,
        plan: &Plan,
        place: &Path,
    ) -> Result<Option<(Layout, std::os::fd::OwnedFd)>> {
        // A copy stays whole until it is removed: no merged state shows through where something was taken out of it.
        let take = !self.stays && !self.elsewhere && self.source.manifest.is_none() && self.same_mount(place);
        let layout = Layout::new(self.source, &plan.steps, take)?;
        journal.stage = place.to_path_buf();
        journal.layer = self.keeper.next(self.store)?.unwrap_or_default();
        journal.taken.clone_from(&layout.taken);
        journal.left.clone_from(&layout.left);
        journal.times = layout.times(self.source, self.parent, &plan.steps)?;
        journal.times.extend(self.host_times(place, &journal.times)?);
        journal.settle = plan.settle.clone();
        journal.index_lock = self.git.as_ref().is_some_and(super::gitstep::GitStep::locks_index);
        journal.write(self.store)?;
        fault::point("merge.stage").context("cannot stage in", place)?;
        match calls::mkdir(place, Mode::from_raw_mode(0o700)) {
            Ok(()) => {}
            Err(Errno::EXIST | Errno::ACCESS | Errno::PERM | Errno::ROFS) => return Ok(None),
            Err(e) => return Err(e).context("cannot stage in", place),
        }
        match open_root(place) {
            Ok(stage) => Ok(Some((layout, stage))),
            Err(e) => {
                remove_stage(place)?;
                Err(e).context("cannot stage in", place)
            }
        }
    }

    fn carry_out(
        &self,
        journal: Journal,
        (layout, stage): (Layout, std::os::fd::OwnedFd),
    ) -> std::result::Result<Ending, Stop> {
        let (parent, repository, store) = (self.parent, self.repository, self.store);
        let upper = Upper::open(&journal.upper).context("cannot open the upper layer", &journal.upper)?;
        let withdraw = |layer: &Path| self.keeper.withdraw(layer);
        let mut replay = Replay { parent, repository, stage, upper, store, withdraw: &withdraw, journal };
        let done = self.prepare_and_land(&mut replay, &layout);
        match done {
            Ok(()) => {
                if let Err(e) = self.clear_up(&replay) {
                    // The parent is new, and the journal says so: the next command goes on from here.
                    log::warn!("the merge has landed; the next command clears up after it: {e}");
                    return Ok(Ending::Unfinished);
                }
                if let (Some(_), Some(repository)) = (&self.git, repository) {
                    repository.refresh();
                }
                if self.stays {
                    replay.journal.note_span();
                }
                Ok(Ending::Over)
            }
            Err(stop) => {
                replay.undo()?;
                replay.journal.note_span();
                Err(stop)
            }
        }
    }

    fn clear_up(&self, replay: &Replay<'_>) -> Result<()> {
        self.keeper.landed(self.store, self.stays)?;
        fault::point("merge.recorded").context("cannot record the merge of", &self.source.path)?;
        replay.finish()
    }

    fn prepare_and_land(&self, replay: &mut Replay<'_>, layout: &Layout) -> std::result::Result<(), Stop> {
        let mut ops = layout.build(self.source, self.parent, &replay.stage, self.cancel)?;
        let touches = self.git.as_ref().map(|git| git.touches()).unwrap_or_default();
        preserve(self.parent, self.store, self.keeper, &ops, &touches)?;
        fault::point("merge.preserved").context("cannot preserve in", self.store)?;
        if let (Some(git), Some(repository)) = (&self.git, self.repository) {
            ops.extend(git.prepare(repository, self.source, &replay.stage)?);
        }
        let mut journal = replay.journal.clone();
        journal.ops = ops;
        journal.phase = Phase::Ready;
        fault::point("merge.ready").context("cannot write the journal of", &self.parent.path)?;
        // The last moment at which nothing of the parent has changed.
        self.cancel.check()?;
        // As late as possible: what others do to these directories until then is not to be undone.
        replay.note_times(&mut journal)?;
        journal.write(self.store)?;
        replay.journal = journal;
        replay.land(false)
    }

    /// Whether files can be renamed from the upper to this place.
    fn same_mount(&self, place: &Path) -> bool {
        let upper = &self.source.upper;
        place.parent().and_then(|holder| open_root(holder).ok()).is_some_and(|holder| {
            let dev = |fd: &std::os::fd::OwnedFd| Stat::of(fd.as_fd()).map(|stat| stat.dev).ok();
            let mount = |fd: &std::os::fd::OwnedFd| mount_id(fd.as_fd()).ok();
            dev(upper).is_some() && dev(upper) == dev(&holder) && mount(upper) == mount(&holder)
        })
    }

    /// The times of a directory of the parent that would hold the stage.
    fn host_times(&self, place: &Path, known: &[Times]) -> Result<Option<Times>> {
        let below = place.parent().and_then(|host| host.strip_prefix(&self.parent.path).ok());
        let Some(host) = below.and_then(RelPath::new) else { return Ok(None) };
        if known.iter().any(|times| times.after.0 == host) {
            return Ok(None);
        }
        let found = self.parent.look(&host).context("cannot look at", host.as_path())?;
        let times = found.stat().map(|stat| (host, stat.atime, stat.mtime));
        Ok(times.map(|times| Times { before: Some(times.clone()), after: times }))
    }
}

/// Has forks read past the layer that was preserved for them by a merge which is undone, and empties it.
pub(super) type Withdraw<'a> = &'a dyn Fn(&Path) -> Result<()>;

/// Undoes or finishes every merge that was broken off. A parent that somebody is merging into right now is left alone.
pub fn recover(bases: &Path, withdraw: Withdraw<'_>) -> Result<Vec<Recovered>> {
    let mut recovered = Vec::new();
    let dir = match open_root(bases).and_then(|root| reopen(root.as_fd(), OFlags::RDONLY)) {
        Err(Errno::NOENT) => return Ok(recovered),
        other => other.context("cannot list", bases)?,
    };
    for entry in Dir::read_from(&dir).context("cannot list", bases)? {
        let entry = entry.context("cannot list", bases)?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let store = bases.join(name);
        // One base that cannot be brought in order must not stop work on the others; whoever merges into it is told.
        match recover_base(&store, withdraw) {
            Ok(one) => recovered.extend(one),
            Err(e) => log::warn!("a merge was broken off and can be neither undone nor finished: {e}"),
        }
    }
    Ok(recovered)
}

fn recover_base(store: &Path, withdraw: Withdraw<'_>) -> Result<Option<Recovered>> {
    // Cheap when there is nothing to do, which is nearly always.
    if !Journal::exists(store)? {
        return Ok(None);
    }
    let _lock = match FileLock::acquire(&lock_path(store), "recovery of a merge", Wait::No) {
        Err(e) if e.kind() == Kind::Locked => return Ok(None),
        other => other?,
    };
    Journal::read(store)?.map(|journal| resume(journal, store, withdraw)).transpose()
}

/// Undoes or finishes a merge that was broken off; under the lock.
fn resume(mut journal: Journal, store: &Path, withdraw: Withdraw<'_>) -> Result<Recovered> {
    // What others did since it was broken off is theirs.
    journal.since = Time::of_changes();
    let parent = Parent::open(&journal.parent)?;
    if parent.stat.ident() != journal.root {
        let what = "a merge was broken off, and another directory is now at";
        return Err(Error::new(Kind::Corrupt, what).at(&journal.parent));
    }
    let repository = Repository::open(&parent)?;
    let mut recovered = Recovered {
        fork: journal.fork.clone(),
        parent: journal.parent.clone(),
        landed: journal.phase == Phase::Landed,
        keep: journal.keep,
    };
    let stage = match open_root(&journal.stage) {
        Ok(stage) => stage,
        // Not yet made, or removed already: all that is left is the journal (and the lock of the index).
        Err(Errno::NOENT | Errno::NOTDIR) => {
            if journal.index_lock {
                super::gitstep::unlock_index(&journal.parent, &journal.fork)?;
            }
            Journal::close(store)?;
            return Ok(recovered);
        }
        Err(e) => return Err(e).context("cannot open the stage", &journal.stage),
    };
    let upper = Upper::open(&journal.upper).context("cannot open the upper layer", &journal.upper)?;
    let repository = repository.as_ref();
    let mut replay = Replay { parent: &parent, repository, stage, upper, store, withdraw, journal };
    match replay.journal.phase {
        Phase::Landed => replay.finish()?,
        Phase::Ready if replay.touched()? => {
            // Somebody has worked on with what had already landed: going back would throw that away.
            if let Err(stop) = replay.land(true) {
                return Err(match stop {
                    Stop::Failed(error) => error,
                    Stop::Changed(path) => broken_off(&replay.journal.stage).at(path.as_path()),
                });
            }
            recovered.landed = true;
            replay.finish()?;
        }
        Phase::Staging | Phase::Ready => replay.undo()?,
    }
    replay.journal.note_span();
    Ok(recovered)
}

fn broken_off(stage: &Path) -> Error {
    let what = format!(
        "a merge was broken off, and the parent was changed since on both sides of the break; old and new objects are in \
         {stage:?}; the first that differs is"
    );
    Error::new(Kind::Conflict, what)
}
