//! What a merge would do, as a value: shown by `--dry-run` and `diff`, carried out by [`super::replay`].

use std::ffi::OsString;
use std::path::PathBuf;

use rustix::fs::FileType;
use serde::Serialize;

use super::journal::Settle;
use super::table::Reason;
use crate::names::RelPath;
use crate::sys::{Stat, Time};

/// What happens to a path of the parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// It is new.
    Add,
    /// Its content is replaced by the fork's.
    Edit,
    /// Both sides changed it; the result holds both.
    Combine,
    /// Only its mode, owner or extended attributes change.
    Attributes,
    /// Only its modification time changes.
    Touch,
    /// Something of another type takes its place.
    Retype,
    /// It goes.
    Delete,
    /// It comes from another place.
    Rename,
}

impl Action {
    /// The letter of `--name-status`, as git has them; of a time alone, which git ignores, a small one.
    pub fn letter(self) -> char {
        match self {
            Action::Add => 'A',
            Action::Edit | Action::Combine | Action::Attributes => 'M',
            Action::Touch => 't',
            Action::Retype => 'T',
            Action::Delete => 'D',
            Action::Rename => 'R',
        }
    }
}

/// The type of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// FIFO, socket or device node.
    Special,
}

impl From<FileType> for ObjectType {
    fn from(kind: FileType) -> Self {
        match kind {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            _ => Self::Special,
        }
    }
}

/// One path that changes.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// The path in the result (of a deletion: in the parent).
    pub path: RelPath,
    /// Where it comes from, of a rename.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<RelPath>,
    /// Where the parent has it now, when that is another path.
    #[serde(skip)]
    pub(crate) present: Option<RelPath>,
    /// What happens.
    pub action: Action,
    /// The type of the result (of a deletion: of what goes).
    pub kind: ObjectType,
    /// Permission bits before, where there was something of this type, and after.
    pub mode: (Option<u32>, Option<u32>),
    /// Its size in bytes.
    pub size: u64,
    /// Modification times before and after, where only these change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtime: Option<(Time, Time)>,
    /// Things that deserve a look.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A path that keeps the merge from happening.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Conflict {
    /// The path in the parent.
    pub path: RelPath,
    /// Why.
    pub reason: Reason,
    /// Where the fork's side of it can be looked at; nothing is there where the fork deleted it.
    #[serde(with = "crate::names::json")]
    pub fork: PathBuf,
}

/// Why a changed path is not part of the merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Omission {
    /// git ignores it.
    Ignored,
    /// It is in the git directory and was not named: hooks and settings can run programs.
    GitSetting,
    /// The operator decided for the parent's side.
    Resolved,
}

impl Omission {
    /// Whether a fork that has nothing else left may be removed.
    pub(crate) fn may_be_lost(self) -> bool {
        match self {
            // What git ignores can be made again, settings were left out for a reason, and the operator has decided.
            Omission::Ignored | Omission::GitSetting | Omission::Resolved => true,
        }
    }
}

/// A changed path that is not part of the merge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// The path in the fork.
    pub path: RelPath,
    /// Why.
    pub why: Omission,
}

/// What a merge would do.
#[derive(Debug, Default, Serialize)]
pub struct Plan {
    /// What changes, in the order of the paths.
    pub entries: Vec<Entry>,
    /// What keeps it from happening: with any of these nothing is written.
    pub conflicts: Vec<Conflict>,
    /// What is changed in the fork but stays there.
    pub left_out: Vec<LeftOut>,
    /// Sentences about the git side.
    pub git: Vec<String>,
    /// How it is done.
    #[serde(skip)]
    pub(crate) steps: Vec<Step>,
    /// What the fork has to know of the result where it lives on.
    #[serde(skip)]
    pub(crate) settle: Settle,
    /// Some changed paths were not asked for and remain in the fork.
    #[serde(skip)]
    pub(crate) partial: bool,
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

/// Where the new object of a step comes from.
#[derive(Clone, Debug)]
pub(crate) enum Make {
    /// The object at this path in the upper, which has these attributes; with other permission bits where given.
    Upper { path: RelPath, stat: Stat, mode: Option<u32> },
    /// An entry of the hard-link index; with other permission bits where given.
    Index { name: OsString, mode: Option<u32> },
    /// A regular file of this content; everything else is like the parent's object at `like`.
    Content { bytes: Vec<u8>, mode: u32, mtime: Option<Time>, like: RelPath },
}

/// One step, in terms of paths.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Takes an object away from its present place; directories with all that is in them.
    Detach { path: RelPath, seen: Stat },
    /// Puts an object at a place of the result: free, or taken by `over`, which it replaces at once.
    Put { path: RelPath, over: Option<Stat>, make: Make },
    /// Makes a directory at a place of the result, like the upper's.
    Mkdir { path: RelPath },
    /// Brings the directory `from` (present place) to a place of the result.
    Move { from: RelPath, seen: Stat, path: RelPath },
    /// Gives the directory the attributes of the upper's.
    Attributes { path: RelPath, present: RelPath },
}
