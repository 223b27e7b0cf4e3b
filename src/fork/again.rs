//! Asking for a fork, and asking again: a request that names its id is answered by the fork that was made for it.
//!
//! So that a caller who does not know whether its request was heard (a lost answer, a restart) can just repeat it, at the
//! same time from several places too: one makes the fork, the others wait for that and get the same one.

use super::{Forks, Id, Record, Request, State, Store, labels, origin};
use crate::error::{Context, Error, Kind, Result};
use crate::sys::calls;

/// How often a fork may come and go under a request before that gives up.
const TRIES: usize = 8;

/// The fork that a request is answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// Its record.
    pub record: Record,
    /// It was there already, made for the same request.
    pub existed: bool,
}

impl Forks {
    /// Makes a fork; where the request names an id, answers with the fork that was made for the same request before. Where
    /// the process that that one belonged to is gone, it belongs to the owner of this request from then on.
    ///
    /// # Errors
    /// `Exists` where the id belongs to a fork of another base or with other options, or the label to another fork;
    /// `Locked` where the fork is being made, merged or removed, and that takes long.
    pub fn create(&self, request: &Request) -> Result<Created> {
        for _ in 0..TRIES {
            if let Some(record) = self.answer(request)? {
                return Ok(Created { record, existed: true });
            }
            if let Some(record) = self.make(request)? {
                return Ok(Created { record, existed: false });
            }
        }
        Err(Error::new(Kind::Locked, "forks of the same id are being made and removed all the time"))
    }

    /// The fork that was made for this request before. `None` where there is none, or only what is left of one.
    fn answer(&self, request: &Request) -> Result<Option<Record>> {
        let Some(id) = &request.id else { return Ok(None) };
        if !self.store().exists(id)? {
            return Ok(None);
        }
        // Waits for whoever makes, merges or removes it.
        let Some(mut locked) = self.lock(id, "create")? else {
            self.settle(id)?;
            return Ok(None);
        };
        match locked.record.state {
            State::Live => {}
            State::Merging => {
                let what = format!("a merge of the fork {id} was broken off");
                let how = "any other command brings it in order, such as `treefork list`; then try again";
                return Err(Error::new(Kind::Locked, what).remedy(how));
            }
            State::Creating | State::Removing | State::Trashed | State::Restoring => {
                drop(locked);
                self.settle(id)?;
                return Ok(None);
            }
        }
        self.check_same(&locked.record, request)?;
        if !locked.record.owner.is_alive().unwrap_or(true) {
            locked.record.owner = request.owner.clone();
            locked.record.write(&locked.dir)?;
        }
        drop(locked);
        self.ready(id.as_str()).map(|(record, _)| Some(record))
    }

    fn check_same(&self, record: &Record, request: &Request) -> Result<()> {
        let (base, subdir, _) = origin::of(&request.base, self.store().root())?;
        let same_base = (&record.base.path, &record.base.ident, &record.subdir) == (&base.path, &base.ident, &subdir);
        let different = [
            ("base", same_base),
            ("label", record.label == request.label),
            ("agent", record.agent == request.agent),
            ("strategy", record.wanted == request.strategy && record.private_mount == request.wishes.private_mount),
            ("choice of symbolic links or other paths to leave out", record.hide == request.wishes.hide),
            ("limit of size or files", record.limits == request.wishes.limits),
            ("wish for uncommitted changes", record.dirty == request.wishes.dirty),
            ("protection from gc", record.keep == request.keep),
        ];
        match different.iter().find(|(_, same)| !same) {
            None => Ok(()),
            Some((what, _)) => {
                let what = format!("the fork {} was made with another {what}", record.id);
                Err(Error::new(Kind::Exists, what).remedy("ask with another id; `treefork show` says how it was made"))
            }
        }
    }

    /// Whether an id that somebody wants can be given: no label is called so, and the trash does not hold it. The caller
    /// holds the store's lock.
    pub(super) fn check_id(&self, id: &Id) -> Result<()> {
        let label = id.as_str().parse().expect("an id is short and has no slash");
        if let Some(other) = labels::holder(self.store(), &label)? {
            let what = format!("{:?} is the label of the fork {other}", id.as_str());
            return Err(Error::new(Kind::Exists, what).remedy("choose another id"));
        }
        if waits(self.store(), id)? {
            let what = format!("the fork {id} is in the trash");
            let how = format!("`treefork restore {id}` brings it back; or ask with another id");
            return Err(Error::new(Kind::Exists, what).remedy(how));
        }
        Ok(())
    }
}

fn waits(store: &Store, id: &Id) -> Result<bool> {
    let path = store.trash().join(id.as_str());
    calls::exists(&path).context("cannot look for", path)
}
