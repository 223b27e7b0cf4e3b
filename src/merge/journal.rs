//! The journal of a merge: everything that whoever comes after a crash needs in order to undo or finish it.
//!
//! One file per parent in the store, written twice: before anything is made, and before the first rename into the parent.
//! When the last one is done it gets another name. Each step names the objects it moves by number and birth time, so that looking
//! at where they are tells whether it was taken.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::durable;
use crate::error::{Context, Result};
use crate::fork::JOURNALS;
use crate::layer::ours::{self, Span};
use crate::names::RelPath;
use crate::sys::{At, Ident, Stat, Time, calls, open_root};

/// The name of the journal in the directory that the store keeps for the parent, and its name once the parent is new.
const FILE: &str = JOURNALS[0];
const LANDED: &str = JOURNALS[1];

/// How far the merge is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
    /// Objects are made in the stage; the parent is as it was. Recovery undoes.
    Staging,
    /// Objects are renamed into the parent. Recovery undoes.
    Ready,
    /// The parent is new. Recovery clears up.
    Landed,
}

/// An object as it was seen, to tell whether it is still the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) ident: Ident,
    pub(crate) mode: u32,
    pub(crate) size: u64,
    pub(crate) mtime: Time,
}

impl From<&Stat> for Seen {
    fn from(stat: &Stat) -> Self {
        Self { ident: stat.ident(), mode: stat.mode, size: stat.size, mtime: stat.mtime }
    }
}

impl Seen {
    /// Whether this is the same object, unchanged. Size and times of a directory change with its entries.
    pub(crate) fn is(&self, stat: &Stat) -> bool {
        let now = Self::from(stat);
        if stat.is_dir() { now.ident == self.ident } else { now == *self }
    }
}

/// Owner, permissions and extended attributes of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attributes {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) xattrs: Vec<(Bytes, Vec<u8>)>,
}

/// A name in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bytes(#[serde(with = "crate::names::json")] pub(crate) OsString);

/// One step in the parent. A slot is the name of an object in the stage. What is `direct` stands at the same path in the
/// fork's upper instead, and what it replaces goes there.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Op {
    /// The object at `path` goes to the slot.
    Detach { path: RelPath, slot: String, seen: Seen },
    /// The object in the slot changes places with the one at `path`.
    Swap {
        path: RelPath,
        slot: String,
        old: Seen,
        new: Seen,
        #[serde(default)]
        direct: bool,
    },
    /// The object in the slot goes to `path`, where nothing is.
    Attach {
        path: RelPath,
        slot: String,
        new: Seen,
        #[serde(default)]
        direct: bool,
    },
    /// The directory at `path` gets other attributes.
    Attributes { path: RelPath, before: Attributes, after: Attributes },
    /// A ref of the parent's repository changes; `None` is "there is none".
    Ref { name: String, before: Option<String>, after: Option<String> },
    /// `HEAD` of the parent's repository changes, to `ref: NAME` or to a commit.
    Head { before: String, after: String },
}

/// Access and modification time of a directory whose entries change.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Times {
    /// Its path before the merge, where it existed then, and the times it had.
    pub(crate) before: Option<(RelPath, Time, Time)>,
    /// Its path after the merge, and the times it gets.
    pub(crate) after: (RelPath, Time, Time),
}

/// An object that was moved out of the fork's upper, into the stage.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Taken {
    pub(crate) upper: RelPath,
    /// Its path in the stage; its first component is a slot.
    pub(crate) stage: RelPath,
}

/// The journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Journal {
    /// The fork that is merged.
    pub(crate) fork: String,
    /// What a person calls it.
    pub(crate) name: String,
    /// Whether it lives on afterwards.
    pub(crate) keep: bool,
    /// The parent is another tree than the fork's base: nothing of the fork shows through from there.
    #[serde(default)]
    pub(crate) elsewhere: bool,
    /// The parent.
    #[serde(with = "crate::names::json")]
    pub(crate) parent: PathBuf,
    /// Its root.
    pub(crate) root: Ident,
    /// The fork's upper.
    #[serde(with = "crate::names::json")]
    pub(crate) upper: PathBuf,
    /// Where objects wait; ours alone.
    #[serde(with = "crate::names::json")]
    pub(crate) stage: PathBuf,
    /// We hold the repository's `index.lock`.
    pub(crate) index_lock: bool,
    /// No change that the merge makes is older.
    #[serde(default)]
    pub(crate) since: Time,
    /// Where the layer is, or will be, in which it preserves what other forks must go on seeing; empty without any.
    #[serde(default, with = "crate::names::json")]
    pub(crate) layer: PathBuf,
    pub(crate) phase: Phase,
    pub(crate) taken: Vec<Taken>,
    /// Directories of the upper that something was moved out of, with the access and modification times they had.
    pub(crate) left: Vec<(RelPath, Time, Time)>,
    pub(crate) ops: Vec<Op>,
    pub(crate) times: Vec<Times>,
    /// What the fork has to know of the result where it lives on.
    pub(crate) settle: Settle,
}

/// What changes for a fork when its changes have become the parent's.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Settle {
    /// Directories of the base that have moved: from, to.
    pub(crate) moves: Vec<(RelPath, RelPath)>,
    /// Objects and whiteouts of the upper that the parent has by now, or something that holds both sides.
    pub(crate) trim: Vec<RelPath>,
    /// Objects of the upper that the parent has by now, but that the fork would not be shown there.
    #[serde(default)]
    pub(crate) stay: Vec<RelPath>,
    /// Directories of the upper through which the parent's may show again.
    pub(crate) open: Vec<RelPath>,
}

impl durable::Record for Journal {
    const KIND: &'static str = "treefork merge journal";
    const VERSION: u32 = 2;

    fn upgrade(version: u32, fields: serde_json::Value) -> Option<serde_json::Value> {
        // Everything went through the stage.
        (version == 1).then_some(fields)
    }
}

impl Journal {
    /// Reads the journal of a parent; `None` where no merge is under way.
    pub(crate) fn read(dir: &Path) -> Result<Option<Self>> {
        let landed: Option<Self> = durable::read_record(&dir.join(LANDED))?;
        match landed {
            Some(journal) => Ok(Some(Self { phase: Phase::Landed, ..journal })),
            None => durable::read_record(&dir.join(FILE)),
        }
    }

    /// Whether a merge is under way: cheap, to be asked by every command.
    pub(crate) fn exists(dir: &Path) -> Result<bool> {
        for name in [FILE, LANDED] {
            let path = dir.join(name);
            if At::new(&CWD, &path).try_stat().context("cannot look at", &path)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Says that the parent is new, durably. Not by writing it all anew: it may be large.
    pub(crate) fn land(&mut self, dir: &Path) -> Result<()> {
        let landed = dir.join(LANDED);
        calls::rename(&dir.join(FILE), &landed).context("cannot write", &landed)?;
        if let Err(e) = durable::sync_dir(dir) {
            // It may not be on the disk, so that it has not landed: what undoes it must not be taken for the end of it.
            calls::rename(&landed, &dir.join(FILE)).context("cannot write", &landed)?;
            return Err(e);
        }
        self.phase = Phase::Landed;
        Ok(())
    }

    /// Writes it, durably.
    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        durable::write_record(&dir.join(FILE), self)
    }

    /// Notes for the fork, which outlives the merge, that what changed in its base until now is no drift.
    pub(crate) fn note_span(&self) {
        let work = self.upper.with_file_name("work");
        if self.elsewhere {
            return;
        }
        match open_root(&work).and_then(|work| ours::note(&work, Span { from: self.since, to: Time::now() })) {
            Ok(()) | Err(Errno::NOENT) => {}
            // What is listed as drift then is none; nothing else comes of it.
            Err(e) => log::warn!("cannot note the merge in {work:?}: {e}"),
        }
    }

    /// Closes it: the merge is over.
    pub(crate) fn close(dir: &Path) -> Result<()> {
        for path in [dir.join(FILE), dir.join(LANDED)] {
            match calls::unlink(&path) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(e).context("cannot close the journal", &path),
            }
        }
        durable::sync_dir(dir)
    }
}
