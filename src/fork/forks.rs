//! The forks of a store: making and removing them, safe from many threads and processes.
//!
//! Three kinds of lock files: a base's, held by merges into it and while a fork of it is made; the store's, held while a
//! label is checked and a fork's directory made; and each fork's, held from before a transition is recorded until it is
//! over. Taken in that order, except that a merge holds its fork's lock before it waits for the base's, which no maker of
//! a fork waits for the other way round. Every durable step has a fault point after it, named in the order of the steps.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Mode;
use rustix::io::Errno;

use super::making::Making;
use super::pending::Pending;
use super::{Base, Id, Label, Owner, Record, State, Store, base, find, labels, now, origin, preserved, trash, users};
use crate::durable::{FileLock, Sync, Wait, fault, sync_dir};
use crate::error::{Context, Error, Kind, Result};
use crate::fuse;
use crate::server::Client;
use crate::strategy::{self, Way, Wishes};
use crate::sys::calls;

/// How long to wait for another command that is at the same fork, or that makes one.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// What kind of fork is wanted, and for whom.
#[derive(Clone)]
pub struct Request {
    /// The directory to fork.
    pub base: PathBuf,
    /// The id that the fork is to have, so that the same request can be made again; `None`: a new one. See
    /// [`Forks::create`].
    pub id: Option<Id>,
    /// What to call the fork.
    pub label: Option<Label>,
    /// Who will work in it, in the caller's words.
    pub agent: Option<String>,
    /// The process it belongs to.
    pub owner: Owner,
    /// How to make it; `None`: the first way that works.
    pub strategy: Option<Way>,
    /// The details.
    pub wishes: Wishes,
    /// Shell commands that run in the fork before it is merged, and keep it from being merged where they fail.
    pub pre_merge: Vec<String>,
    /// Made for one command, which decides at its end whether the fork stays ([`Forks::settle_for_good`]).
    pub temporary: bool,
    /// Never to be reaped by gc.
    pub keep: bool,
}

impl Request {
    /// A fork of `base` for the calling process, made the first way that works.
    pub fn new(base: &Path) -> Result<Self> {
        Ok(Self {
            base: base.to_path_buf(),
            id: None,
            label: None,
            agent: None,
            owner: Owner::current()?,
            strategy: None,
            wishes: Wishes::default(),
            pre_merge: vec![],
            temporary: false,
            keep: false,
        })
    }
}

/// The forks of one store.
#[derive(Clone, Debug)]
pub struct Forks {
    store: Store,
}

/// What exactly is forked.
struct Origin {
    base: Base,
    subdir: PathBuf,
    base_ref: Option<String>,
    born: u64,
}

/// A fork whose lock is held.
#[derive(Debug)]
pub struct Locked {
    /// The record, read under the lock.
    pub record: Record,
    /// Its directory.
    pub dir: PathBuf,
    lock: FileLock,
}

impl Forks {
    /// The forks of a store. Finishes or undoes first what killed commands left.
    pub fn open(store: Store) -> Result<Self> {
        let forks = Self { store };
        forks.recover()?;
        Ok(forks)
    }

    /// The forks of a store as they are, for whoever brings them in order.
    pub fn unrecovered(store: Store) -> Self {
        Self { store }
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Makes a fork. When it returns the fork is complete and its record says so. `None` where the id that the request
    /// names is taken.
    pub(super) fn make(&self, request: &Request) -> Result<Option<Record>> {
        base::check_store(self.store.root())?;
        let (base, subdir, base_ref) = origin::of(&request.base, self.store.root())?;
        // No merge changes the base until the fork is complete, and so one of those that the next merge preserves for.
        let _base = self.lock_base(&base, "create", Wait::For(PATIENCE), &request.wishes.cancel)?;
        let origin = Origin { born: preserved::youngest(&self.store.base(&base.key()))?, base, subdir, base_ref };
        let Some((mut record, lock, pending)) = self.claim(request, origin)? else { return Ok(None) };
        let dir = self.store.fork(&record.id);
        match self.fill(&mut record, &dir, request) {
            Ok(()) => Ok(Some(record)),
            Err(e) => {
                // Undone at once where possible; else the mark stays for the next command.
                match self.undo(&mut record, &dir) {
                    Ok(()) => drop(pending),
                    Err(undo) => {
                        log::warn!("cannot undo the half-made fork {}: {undo}", record.id);
                        pending.keep();
                    }
                }
                drop(lock);
                Err(e)
            }
        }
    }

    /// Gives the fork a name and a directory, under the store's lock; `None` where the wanted id is taken.
    fn claim(&self, request: &Request, origin: Origin) -> Result<Option<(Record, FileLock, Pending<'_>)>> {
        let _store = FileLock::acquire(&self.store.lock_path(), "create", Wait::For(PATIENCE))?;
        if let Some(id) = &request.id {
            // Nobody else makes it while the store is locked.
            if self.store.exists(id)? {
                return Ok(None);
            }
            self.check_id(id)?;
        }
        if let Some(label) = &request.label {
            self.check_label(label)?;
        }
        let (id, pending) = loop {
            let id = request.id.clone().map_or_else(Id::random, Ok)?;
            let pending = Pending::new(&self.store, &id)?;
            let dir = self.store.fork(&id);
            match calls::mkdir(&dir, Mode::RWXU) {
                // Taken; its own mark, if it had one, is found again by reading all records.
                Err(Errno::EXIST) => continue,
                other => other.context("cannot make the fork's directory", &dir)?,
            }
            break (id, pending);
        };
        match self.record_claim(request, id.clone(), origin) {
            Ok((record, lock)) => Ok(Some((record, lock, pending))),
            Err(e) => {
                // Nothing was made yet but this directory. Where it cannot be taken away the mark stays for the next command.
                let gone = trash::discard(&self.store, &id, false);
                if let Err(undo) = gone.and_then(|()| trash::delete_discarded(&self.store, &id)) {
                    log::warn!("cannot take the directory of {id} away: {undo}");
                    pending.keep();
                }
                Err(e)
            }
        }
    }

    fn record_claim(&self, request: &Request, id: Id, origin: Origin) -> Result<(Record, FileLock)> {
        fault_point("fork.claimed")?;
        if let Some(label) = &request.label {
            // Before the record: a fork with a label is never without an entry.
            labels::claim(&self.store, label, &id)?;
            fault_point("fork.labelled")?;
        }
        let at = now();
        let record = Record {
            id,
            label: request.label.clone(),
            agent: request.agent.clone(),
            base: origin.base,
            born: origin.born,
            subdir: origin.subdir,
            base_ref: origin.base_ref,
            strategy: request.strategy.unwrap_or(Way::Overlay),
            wanted: request.strategy,
            dirty: request.wishes.dirty,
            refusals: vec![],
            hide: request.wishes.hide.clone(),
            limits: request.wishes.limits,
            private_mount: request.wishes.private_mount,
            post_create: vec![],
            pre_merge: request.pre_merge.clone(),
            owner: request.owner.clone(),
            created_at: at,
            state: State::Creating,
            state_since: at,
            temporary: request.temporary,
            keep: request.keep,
            advisories: vec![],
        };
        let dir = self.store.fork(&record.id);
        // A recovery may have seen the mark, and look whether there is a record yet.
        let lock = FileLock::acquire(&dir.join(super::LOCK), "create", Wait::For(PATIENCE))?;
        record.write(&dir)?;
        if record.sync() == Sync::First {
            sync_dir(&self.store.forks())?;
        }
        Ok((record, lock))
    }

    /// Whether a label is free. A fork that is on its way out still has its. The caller holds the store's lock.
    pub(super) fn check_label(&self, label: &Label) -> Result<()> {
        let id = match labels::holder(&self.store, label)? {
            Some(id) => id,
            None => match label.as_str().parse::<Id>() {
                Ok(id) if self.store.exists(&id)? => id,
                _ => return Ok(()),
            },
        };
        let what = format!("the label {:?} belongs to the fork {id}", label.as_str());
        Err(Error::new(Kind::Exists, what).remedy("choose another label, or remove that fork"))
    }

    fn fill(&self, record: &mut Record, dir: &Path, request: &Request) -> Result<()> {
        fault_point("fork.recorded")?;
        let tree = dir.join("mnt");
        calls::mkdir(&tree, Mode::RWXU).context("cannot make the directory", &tree)?;
        let site = record.site(self.store.root(), dir)?;
        request.wishes.cancel.check()?;
        strategy::make(request.strategy, &site, &request.wishes, &mut Making { record, dir })?;
        fault_point("fork.live")
    }

    /// Takes a half-made fork away.
    fn undo(&self, record: &mut Record, dir: &Path) -> Result<()> {
        record.state = State::Creating;
        record.enter(State::Removing, dir)?;
        self.destroy_any(record, dir)?;
        trash::discard(&self.store, &record.id, true)?;
        trash::empty(&self.store)
    }

    /// Ends what any strategy may have left: before it is recorded which one worked, each may have begun.
    pub(super) fn destroy_any(&self, record: &Record, dir: &Path) -> Result<()> {
        let site = record.site(self.store.root(), dir)?;
        let ways = [Way::Overlay, Way::Reflink, Way::Copy, Way::Worktree];
        ways.into_iter().map(strategy::strategy).try_for_each(|strategy| strategy.destroy(&site))
    }

    /// Makes a fork that was made for one command one that stays: durable, like any other.
    pub fn settle_for_good(&self, record: &Record) -> Result<()> {
        if !record.temporary {
            return Ok(());
        }
        let Some(mut locked) = self.lock(&record.id, "keep")? else { return Ok(()) };
        self.settle_locked(&mut locked)
    }

    /// The same for a fork whose lock is held.
    pub fn settle_locked(&self, locked: &mut Locked) -> Result<()> {
        if !locked.record.temporary {
            return Ok(());
        }
        locked.record.temporary = false;
        locked.record.write(&locked.dir)?;
        sync_dir(&self.store.forks())
    }

    /// Whether anything in a fork differs from its base as it was; `None` where that is not known cheaply.
    pub fn is_changed(&self, record: &Record) -> Result<Option<bool>> {
        let site = record.site(self.store.root(), &self.store.fork(&record.id))?;
        strategy::strategy(record.strategy).is_changed(&site)
    }

    /// The root of the tree that a fork of this directory would be made of.
    pub fn root_of(&self, dir: &Path) -> Result<PathBuf> {
        origin::root(dir, self.store.root())
    }

    /// The fork that `name` means.
    pub fn find(&self, name: &str) -> Result<Record> {
        find::find(&self.store, name)
    }

    /// The directory of a fork that `name` means, ready for use: mounted again where its mount was lost.
    ///
    /// # Errors
    /// As [`find`](Self::find); `NotFound` where the base is gone, `Usage` for a fork that is on its way out.
    pub fn ready(&self, name: &str) -> Result<(Record, PathBuf)> {
        let record = self.find(name)?;
        // One that is being merged stands still: mounted, it would not.
        if record.state != State::Live {
            let what = format!("the fork {} is {}", record.name(), record.state.as_str());
            return Err(
                Error::new(Kind::Locked, what).remedy("wait until that is over; `treefork list` shows the forks")
            );
        }
        let dir = self.store.fork(&record.id);
        strategy::strategy(record.strategy).revive(&record.site(self.store.root(), &dir)?)?;
        let path = record.path(&dir);
        Ok((record, path))
    }

    /// Locks a fork and reads its record again. `None` where it is gone by then.
    pub fn lock(&self, id: &Id, what: &str) -> Result<Option<Locked>> {
        self.lock_with(id, what, Wait::For(PATIENCE))
    }

    pub(super) fn lock_with(&self, id: &Id, what: &str, wait: Wait) -> Result<Option<Locked>> {
        let dir = self.store.fork(id);
        let lock = match FileLock::acquire(&dir.join(super::LOCK), what, wait) {
            Err(e) if e.errno() == Some(libc::ENOENT) => return Ok(None),
            other => other?,
        };
        Ok(Record::read(&dir)?.map(|record| Locked { record, dir, lock }))
    }

    /// Removes a fork: returns once it is out of sight and its files wait in the trash to be deleted.
    ///
    /// Removing what is gone already is success where `name` is a whole id; false then.
    ///
    /// # Errors
    /// `InUse`, naming the processes, unless `force`.
    pub fn remove(&self, name: &str, force: bool) -> Result<bool> {
        let record = match (self.find(name), name.parse::<Id>()) {
            (Err(e), Ok(_)) if e.kind() == Kind::NotFound => return Ok(false),
            (Err(e), Ok(id)) if e.kind() == Kind::Corrupt && force => {
                return self.remove_unreadable(&id).map(|()| true);
            }
            (found, _) => found.map_err(|e| match e.kind() {
                Kind::Corrupt => {
                    e.remedy("save what you need of its files; `remove --force` with its whole id deletes it")
                }
                _ => e,
            })?,
        };
        let Some(locked) = self.lock(&record.id, "remove")? else { return Ok(false) };
        if !force {
            users::refuse_if_used(&locked.record, &locked.dir)?;
        }
        self.finish_removal(locked)?;
        Ok(true)
    }

    /// Removes a fork whose record cannot be read, and with it what may be known of it only there: an entry in a
    /// repository stays behind.
    fn remove_unreadable(&self, id: &Id) -> Result<()> {
        let dir = self.store.fork(id);
        let _lock = FileLock::acquire(&dir.join(super::LOCK), "remove", Wait::For(PATIENCE))?;
        Client::new(self.store.root()).discard(id.as_str())?;
        fuse::clear(&dir.join("mnt"))?;
        trash::discard(&self.store, id, true)
    }

    /// Takes a locked fork away, whatever step an earlier removal got to.
    pub fn finish_removal(&self, mut locked: Locked) -> Result<()> {
        let pending = match Pending::new(&self.store, &locked.record.id) {
            // Removing is the way out of a full disk, and must need no room.
            Err(e) if is_full(&e) => None,
            pending => Some(pending?),
        };
        let done = self.removal_steps(&mut locked);
        drop(locked.lock);
        if done.is_err() {
            pending.into_iter().for_each(Pending::keep);
        }
        done
    }

    fn removal_steps(&self, locked: &mut Locked) -> Result<()> {
        if !is_decided_by_the_move(&locked.record) {
            match locked.record.enter(State::Removing, &locked.dir) {
                // The same here.
                Err(e) if is_full(&e) && locked.record.strategy != Way::Worktree => log::warn!("{e}"),
                entered => entered?,
            }
        }
        fault_point("fork.removing")?;
        let site = locked.record.site(self.store.root(), &locked.dir)?;
        strategy::strategy(locked.record.strategy).destroy(&site)?;
        fault_point("fork.destroyed")?;
        let nothing_in = |dir: &Path| calls::names(dir).is_ok_and(|names| names.is_empty());
        let empty = locked.record.temporary && nothing_in(&site.upper());
        trash::discard(&self.store, &locked.record.id, !locked.record.temporary)?;
        fault_point("fork.trashed")?;
        if empty {
            // Quicker done than handed to somebody else.
            if let Some(label) = &locked.record.label {
                labels::release(&self.store, label, &locked.record.id, Wait::No);
            }
            trash::delete_discarded(&self.store, &locked.record.id)?;
        }
        self.drop_layers(&locked.record.base)
    }
}

/// Whether nothing has to be recorded before a fork is removed. Killed before its directory is in the trash, most are as they
/// were, at most without their mount: that one step decides, and waits for the disk once. But a work tree has lost its
/// files by then, and one that was merged must not come back.
fn is_decided_by_the_move(record: &Record) -> bool {
    match record.state {
        State::Removing => true,
        State::Creating | State::Live => record.strategy != Way::Worktree,
        State::Merging | State::Trashed | State::Restoring => false,
    }
}

/// Whether there was no room for something.
fn is_full(e: &Error) -> bool {
    matches!(e.errno(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// A place where tests may fail, pause or kill.
pub(super) fn fault_point(name: &'static str) -> Result<()> {
    fault::point(name).map_err(|e| Error::io("cannot go on", e))
}
