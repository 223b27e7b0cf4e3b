//! What is written down about a fork: `fork.json`, the marker that makes a directory of the store a fork.
//!
//! A state is recorded before what it names begins and again when it is over, so that whoever finds a record knows what
//! a killed process was about: [`State`] has the table of what recovery does with each.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::{Id, Label, Owner, journal, preserved};
use crate::durable::{self, Sync, read_record, sync_dir, write_record_as};
use crate::error::{Context, Error, Kind, Result};
use crate::names::RelPath;
use crate::strategy::{Hide, Limits, Refusal, Site, Way};
use crate::sys::{Ident, Stat, Time, calls, open_root};

/// The name of the record in a fork's directory.
pub const RECORD: &str = "fork.json";

/// Where a fork is in its life.
///
/// | state | recorded | found by recovery while nobody holds the fork's lock |
/// |---|---|---|
/// | `creating` | before the strategy makes anything, not synced | destroyed and deleted: nobody was given it yet |
/// | `live` | when the fork is complete, before an overlay is mounted | mounted where it is not |
/// | `merging` | by a merge, before its first step | the merge's journal is finished or undone, then live or removing |
/// | `removing` | before a fork goes that must not come back: merged, half made, a work tree | destroyed, moved to the trash, deleted |
/// | `trashed` | by gc, before the mount goes | destroyed and moved to the trash, where `restore` finds it |
/// | `restoring` | before it leaves the trash | live again |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Being made.
    Creating,
    /// In use, or ready for it.
    Live,
    /// Being merged.
    Merging,
    /// On its way out for good.
    Removing,
    /// In the trash, whole, for a while.
    Trashed,
    /// On its way back from the trash.
    Restoring,
}

impl State {
    /// The word for it in records and tables.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Creating => "creating",
            State::Live => "live",
            State::Merging => "merging",
            State::Removing => "removing",
            State::Trashed => "trashed",
            State::Restoring => "restoring",
        }
    }

    /// Whether a fork may go from this state to `next`.
    pub fn may_become(self, next: State) -> bool {
        match self {
            State::Creating => matches!(next, State::Live | State::Removing),
            State::Live => matches!(next, State::Merging | State::Removing | State::Trashed),
            State::Merging => matches!(next, State::Live | State::Removing),
            State::Removing => next == State::Removing,
            State::Trashed => matches!(next, State::Restoring | State::Removing | State::Trashed),
            State::Restoring => matches!(next, State::Live | State::Trashed),
        }
    }
}

/// The directory that is forked, so that another one at the same path is not taken for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// Where its root is: absolute, without symbolic links.
    #[serde(with = "crate::names::json")]
    pub path: PathBuf,
    /// Its device when the fork was made. The number may be another since, after a reboot for one; what the fork has
    /// written down speaks of this one.
    pub dev: u64,
    /// Its root's inode number and birth time.
    pub ident: Ident,
}

impl Base {
    /// The base with this root.
    pub fn new(path: PathBuf, root: &Stat) -> Self {
        Self { path, dev: root.dev, ident: root.ident() }
    }

    /// The directory at a path, links followed, as a base.
    pub fn at(path: &Path) -> Result<Self> {
        let cannot = "cannot open the base";
        let root = std::fs::canonicalize(path).context(cannot, path)?;
        let fd = open_root(&root).context(cannot, path)?;
        let stat = Stat::of(fd.as_fd()).context(cannot, path)?;
        Ok(Self::new(root, &stat))
    }

    /// The name of the base's directory in the store.
    pub fn key(&self) -> String {
        crate::layer::preserved::key(&self.path, &self.ident)
    }
}

/// All that is kept about a fork.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its id.
    pub id: Id,
    /// The name it was given.
    pub label: Option<Label>,
    /// Who works in it, in the caller's words.
    pub agent: Option<String>,
    /// The root of the tree that is forked.
    pub base: Base,
    /// How many merges into the base had preserved layers when the fork was made: it reads through the younger ones.
    #[serde(default)]
    pub born: u64,
    /// Where below the root the caller's own directory is; the root itself unless the base lies inside a repository.
    #[serde(with = "crate::names::json")]
    pub subdir: PathBuf,
    /// The commit that `HEAD` of the base's repository named when the fork was made.
    pub base_ref: Option<String>,
    /// How it was made.
    pub strategy: Way,
    /// The one way that was asked for; `None`: the first that works.
    #[serde(default)]
    pub wanted: Option<Way>,
    /// Whether the uncommitted changes were asked for (worktree only).
    #[serde(default)]
    pub dirty: bool,
    /// Which better ways were passed over, and why.
    pub refusals: Vec<Refusal>,
    /// What it leaves out of the base.
    #[serde(flatten)]
    pub hide: Hide,
    /// What it may take on the disk.
    #[serde(flatten)]
    pub limits: Limits,
    /// Nothing is mounted in the store: whoever uses the fork mounts it in a namespace of its own.
    #[serde(default)]
    pub private_mount: bool,
    /// Shell commands that ran in it when it was made.
    #[serde(default)]
    pub post_create: Vec<String>,
    /// Shell commands that run in it before it is merged, and keep it from being merged where they fail.
    #[serde(default)]
    pub pre_merge: Vec<String>,
    /// The process it belongs to.
    pub owner: Owner,
    /// When it was made, by the real clock.
    pub created_at: Time,
    /// Where it is in its life.
    pub state: State,
    /// Since when, by the real clock.
    pub state_since: Time,
    /// Made for one command, which may still decide that nothing of it stays: until then nothing waits for a disk, and
    /// what a power cut leaves of it is as good as what it leaves of the command. See [`Forks::settle_for_good`](super::Forks::settle_for_good).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub temporary: bool,
    /// Never reaped by gc.
    pub keep: bool,
    /// Sentences for the caller about whatever is weaker than asked.
    pub advisories: Vec<String>,
}

impl durable::Record for Record {
    const KIND: &'static str = "treefork fork";
    const VERSION: u32 = 1;
}

impl Record {
    /// Reads the record in a fork's directory; `None` where there is none.
    pub fn read(dir: &Path) -> Result<Option<Self>> {
        read_record(&dir.join(RECORD))
    }

    /// Writes it, whole or not at all; durably, where somebody [waits for that](Self::sync).
    pub fn write(&self, dir: &Path) -> Result<()> {
        write_record_as(&dir.join(RECORD), self, self.sync())
    }

    /// When it has to be on the disk. Nobody waits for that of a temporary fork, nor for that of an overlay that nobody was given
    /// yet: a power cut may take such a one along, or leave its record empty ([`is_lost`]). (The other ways have
    /// entries in a repository to undo, or take long anyhow.)
    pub(super) fn sync(&self) -> Sync {
        if self.temporary {
            Sync::Never
        } else if self.state == State::Creating && self.strategy == Way::Overlay {
            Sync::Begun
        } else {
            Sync::First
        }
    }

    /// Records that a fork that was being made is complete; durably, its name included, unless it is temporary.
    pub(super) fn complete(&mut self, dir: &Path) -> Result<()> {
        if self.temporary {
            return self.enter(State::Live, dir);
        }
        (self.state, self.state_since) = (State::Live, now());
        write_record_as(&dir.join(RECORD), self, Sync::Last)?;
        dir.parent().map_or(Ok(()), sync_dir)?;
        journal::note(dir, self.state.as_str(), "");
        Ok(())
    }

    /// Records that the fork enters a state.
    ///
    /// # Errors
    /// `Usage` where it cannot be entered from the present one.
    pub fn enter(&mut self, state: State, dir: &Path) -> Result<()> {
        if !self.state.may_become(state) {
            let (id, from, to) = (&self.id, self.state.as_str(), state.as_str());
            return Err(Error::new(Kind::Usage, format!("the fork {id} is {from} and cannot become {to}")));
        }
        let before = (self.state, self.state_since);
        (self.state, self.state_since) = (state, now());
        self.write(dir).inspect_err(|_| (self.state, self.state_since) = before)?;
        journal::note(dir, state.as_str(), "");
        Ok(())
    }

    /// What a person calls it: the label, else the id.
    pub fn name(&self) -> &str {
        self.label.as_ref().map_or(self.id.as_str(), Label::as_str)
    }

    /// How long ago it was made; zero where the clock was set back since.
    pub fn age(&self) -> Duration {
        since(self.created_at)
    }

    /// How long it has been in its state; zero where the clock was set back since.
    pub fn time_in_state(&self) -> Duration {
        since(self.state_since)
    }

    /// Where a strategy makes it, in the store at `store`.
    pub fn site(&self, store: &Path, dir: &Path) -> Result<Site> {
        Ok(Site {
            base: self.base.path.clone(),
            base_ident: self.base.ident,
            base_dev: self.base.dev,
            store: store.to_path_buf(),
            layers: preserved::layers(store, &self.base, self.born)?,
            dir: dir.to_path_buf(),
            id: self.id.to_string(),
            created: self.created_at,
            hide: self.hide.clone(),
            limits: self.limits,
            private_mount: self.private_mount,
        })
    }

    /// The caller's own directory in the fork.
    pub fn path(&self, dir: &Path) -> PathBuf {
        let tree = dir.join("mnt");
        match RelPath::new(&self.subdir) {
            Some(below) if !below.is_root() => tree.join(below),
            _ => tree,
        }
    }
}

/// Whether there is no more in a fork's directory than an empty record: a power cut came while it was being made. As good as
/// none at all.
pub(super) fn is_lost(dir: &Path) -> bool {
    let nothing_in = |name: &str| calls::names_if_any(&dir.join(name)).is_ok_and(|names| names.is_empty());
    let record = calls::File::read(&dir.join(RECORD));
    record.is_ok_and(|bytes| bytes.iter().all(|&byte| byte == 0)) && nothing_in("upper") && nothing_in("mnt")
}

/// How long ago that was; zero for a time that is still to come, however far off.
pub(super) fn since(time: Time) -> Duration {
    let then = UNIX_EPOCH.checked_add(Duration::new(time.sec.try_into().unwrap_or(0), time.nsec));
    then.and_then(|then| SystemTime::now().duration_since(then).ok()).unwrap_or_default()
}

/// The present by the real clock.
pub fn now() -> Time {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { sec: now.as_secs().try_into().unwrap_or(i64::MAX), nsec: now.subsec_nanos() }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::fork) fn sample() -> Record {
        Record {
            id: Id::random().expect("random"),
            label: Some("idea-a".parse().expect("valid")),
            agent: None,
            base: Base { path: "/b".into(), dev: 2, ident: Ident::default() },
            born: 0,
            subdir: PathBuf::new(),
            base_ref: None,
            strategy: Way::Overlay,
            wanted: None,
            dirty: false,
            refusals: vec![],
            hide: Hide::default(),
            limits: Limits::default(),
            private_mount: false,
            post_create: vec![],
            pre_merge: vec![],
            owner: Owner::current().expect("own stat"),
            created_at: now(),
            state: State::Creating,
            state_since: now(),
            temporary: false,
            keep: false,
            advisories: vec![],
        }
    }

    #[test]
    fn reads_back_and_walks_the_states() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut record = sample();
        assert_eq!(Record::read(dir.path()).expect("absent is fine"), None);
        record.write(dir.path()).expect("writes");
        record.enter(State::Live, dir.path()).expect("allowed");
        assert_eq!(Record::read(dir.path()).expect("reads"), Some(record.clone()));
        assert_eq!(record.enter(State::Creating, dir.path()).expect_err("never back").kind(), Kind::Usage);
        assert_eq!(record.state, State::Live);
    }

    #[test]
    fn a_clock_set_back_makes_it_new() {
        let mut record = sample();
        record.created_at.sec += 10_000;
        assert_eq!(record.age(), Duration::ZERO);
        record.created_at = Time { sec: i64::MAX, nsec: u32::MAX };
        assert_eq!(record.age(), Duration::ZERO, "nor does one that no clock can show");
    }
}
