//! The table of verdicts: (what happened in the fork) x (what happened in the parent since).
//!
//! Exhaustive by construction: a pair without a verdict does not compile. `docs/merging.md` has it in words, and a test
//! compares the two.

use std::fmt;

use serde::Serialize;

/// What the fork did with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ours {
    /// Changed content or attributes of something that is no directory; the type is the same.
    Edit,
    /// Put something of another type in its place.
    Replace,
    /// Added something that is no directory.
    Add,
    /// Deleted something that is no directory.
    Delete,
    /// Deleted a directory.
    DeleteDir,
    /// Added a directory.
    AddDir,
    /// Changed the attributes of a directory.
    DirAttributes,
    /// Renamed a directory.
    MoveDir,
}

/// What the parent has at that path now, measured against what the fork saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Theirs {
    /// What the fork saw.
    Same,
    /// The same object with the same size, times and mode, but its change time moved: its names, its owner or its
    /// extended attributes changed, or nothing at all (a merge that was undone).
    Touched,
    /// The same object with the same size and times; its mode changed.
    Attributes,
    /// The same type, other content.
    Content,
    /// Another type.
    Retyped,
    /// It is gone.
    Gone,
    /// There was nothing, and there is nothing.
    Nothing,
    /// There was nothing; now something stands there that is no directory.
    Appeared,
    /// There was nothing; now a directory stands there.
    AppearedDir,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The fork's side lands.
    Take,
    /// There is nothing to do.
    Nothing,
    /// Content and attributes are merged three-way, one by one; what both changed differently is a conflict.
    Combine,
    /// It cannot be decided here.
    Conflict(Reason),
}

/// Why a path is a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Both sides changed the content, and it does not merge.
    BothChanged,
    /// Both sides changed mode, owner or extended attributes differently.
    BothChangedAttributes,
    /// Changed in the fork, deleted in the parent.
    DeletedInParent,
    /// Deleted in the fork, changed in the parent.
    DeletedInFork,
    /// Added on both sides, differently.
    BothAdded,
    /// One side made something of another type of it.
    TypeChanged,
    /// Deleted in the fork, but the parent has new entries in it.
    NewInDeleted,
    /// Deleted in the fork, and git does not track it, so that nobody could bring it back.
    UntrackedDeletion,
    /// A directory on the way to it is gone in the parent, or is a link or a file there.
    NoDirectory,
    /// It lies on another file system in the parent; a merge does not cross mounts.
    OtherFileSystem,
    /// It belongs to a nested git repository, whose history a merge of files would break.
    NestedRepository,
    /// Somebody changed it while the merge was under way.
    ChangedMeanwhile,
}

impl Reason {
    /// Whether it is about something that the fork has deleted, so that nothing of it can be looked at there.
    pub fn is_deletion(self) -> bool {
        matches!(self, Reason::DeletedInFork | Reason::NewInDeleted | Reason::UntrackedDeletion)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::BothChanged => "changed on both sides",
            Reason::BothChangedAttributes => "mode, owner or attributes changed on both sides",
            Reason::DeletedInParent => "changed in the fork, deleted in the parent",
            Reason::DeletedInFork => "deleted in the fork, changed in the parent",
            Reason::BothAdded => "added on both sides, differently",
            Reason::TypeChanged => "one side made something of another type of it",
            Reason::NewInDeleted => "new in the parent, in a directory that the fork deleted",
            Reason::UntrackedDeletion => "deleted in the fork, and not tracked by git",
            Reason::NoDirectory => "its directory is gone in the parent, or is a link or a file there",
            Reason::OtherFileSystem => "lies on another file system in the parent",
            Reason::NestedRepository => "belongs to a nested git repository",
            Reason::ChangedMeanwhile => "changed in the parent during the merge",
        })
    }
}

/// The verdict on a pair. Where both sides made the very same of it, there is nothing to do: that is looked at first,
/// and is no matter of this table.
pub fn verdict(ours: Ours, theirs: Theirs) -> Verdict {
    use Reason::{BothAdded, BothChangedAttributes, DeletedInFork, DeletedInParent, TypeChanged};
    use Verdict::{Combine, Conflict, Nothing, Take};
    match (ours, theirs) {
        // Nobody else touched it.
        (_, Theirs::Same) => Take,
        // The base had it, so that "there never was anything" cannot come together with these; and the other way round.
        (Ours::Edit | Ours::Replace, Theirs::Nothing) => Take,
        (Ours::Delete | Ours::DeleteDir, Theirs::Nothing | Theirs::Appeared | Theirs::AppearedDir) => Nothing,
        (Ours::Edit | Ours::Replace, Theirs::Appeared | Theirs::AppearedDir) => Conflict(BothAdded),

        (Ours::Edit, Theirs::Touched | Theirs::Attributes | Theirs::Content) => Combine,
        // Nothing that could be lost is known to have changed.
        (Ours::Replace | Ours::Delete | Ours::DeleteDir | Ours::DirAttributes | Ours::MoveDir, Theirs::Touched) => Take,
        (Ours::Add | Ours::AddDir, Theirs::Touched) => Conflict(BothAdded),
        (Ours::Edit, Theirs::Retyped) => Conflict(TypeChanged),
        (Ours::Edit | Ours::Replace, Theirs::Gone) => Conflict(DeletedInParent),
        (Ours::Replace, Theirs::Attributes | Theirs::Content | Theirs::Retyped) => Conflict(TypeChanged),

        (Ours::Add | Ours::AddDir, Theirs::Nothing) => Take,
        (
            Ours::Add,
            Theirs::Appeared | Theirs::AppearedDir | Theirs::Attributes | Theirs::Content | Theirs::Retyped,
        ) => Conflict(BothAdded),
        // What was there is gone on both sides, and this is new.
        (Ours::Add | Ours::AddDir, Theirs::Gone) => Take,
        (Ours::AddDir, Theirs::AppearedDir) => Nothing,
        (Ours::AddDir, Theirs::Appeared | Theirs::Attributes | Theirs::Content | Theirs::Retyped) => {
            Conflict(BothAdded)
        }

        (Ours::Delete, Theirs::Attributes | Theirs::Content) => Conflict(DeletedInFork),
        (Ours::Delete | Ours::DeleteDir, Theirs::Retyped) => Conflict(DeletedInFork),
        (Ours::Delete | Ours::DeleteDir, Theirs::Gone) => Nothing,
        // What is in it is looked at entry by entry.
        (Ours::DeleteDir, Theirs::Attributes | Theirs::Content) => Conflict(DeletedInFork),

        (Ours::DirAttributes, Theirs::Attributes | Theirs::Content) => Conflict(BothChangedAttributes),
        (Ours::DirAttributes | Ours::MoveDir, Theirs::Retyped | Theirs::Appeared) => Conflict(TypeChanged),
        (Ours::DirAttributes | Ours::MoveDir, Theirs::Gone) => Conflict(DeletedInParent),
        (Ours::DirAttributes, Theirs::Nothing | Theirs::AppearedDir) => Nothing,
        // The directory moves with whatever the parent did in it.
        (Ours::MoveDir, Theirs::Attributes | Theirs::Content | Theirs::AppearedDir) => Take,
        (Ours::MoveDir, Theirs::Nothing) => Conflict(DeletedInParent),
    }
}
