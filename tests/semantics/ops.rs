//! File operations as values: what a program can ask of a directory tree.
//!
//! Their debug form is Rust, so that a failure can be pasted into `regressions.rs`. A slot holds an open file;
//! operations on an empty slot are `EBADF` for everybody.

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Read,
    Write,
    ReadWrite,
    Append,
}

/// What `fallocate` does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Alloc {
    Extend,
    Keep,
    Punch,
    Zero,
    ZeroKeep,
}

/// What `renameat2` is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    Plain,
    NoReplace,
    Exchange,
}

/// A time for `utimensat`.
#[derive(Clone, Copy, Debug)]
pub(super) enum When {
    Now,
    Omit,
    At(i64, u32),
}

/// What `setxattr` is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Put {
    Any,
    Create,
    Replace,
}

pub(super) type Slot = usize;
pub(super) type Path = &'static str;

#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Open {
        slot: Slot,
        path: Path,
        how: How,
        create: bool,
        excl: bool,
        trunc: bool,
    },
    OpenDir {
        slot: Slot,
        path: Path,
    },
    Close {
        slot: Slot,
    },
    Read {
        slot: Slot,
        len: usize,
    },
    Pread {
        slot: Slot,
        off: u64,
        len: usize,
    },
    Write {
        slot: Slot,
        len: usize,
        fill: u8,
    },
    Pwrite {
        slot: Slot,
        off: u64,
        len: usize,
        fill: u8,
    },
    MapRead {
        slot: Slot,
        off: u64,
        len: usize,
    },
    MapWrite {
        slot: Slot,
        off: u64,
        len: usize,
        fill: u8,
    },
    Ftruncate {
        slot: Slot,
        len: u64,
    },
    Truncate {
        path: Path,
        len: u64,
    },
    Allocate {
        slot: Slot,
        mode: Alloc,
        off: u64,
        len: u64,
    },
    /// Every stretch that the map of the file calls a hole has to read as zeros.
    Holes {
        slot: Slot,
        off: u64,
    },
    CopyRange {
        from: Slot,
        from_off: u64,
        to: Slot,
        to_off: u64,
        len: usize,
    },
    Fsync {
        slot: Slot,
        data: bool,
    },
    Fstat {
        slot: Slot,
    },
    Fchmod {
        slot: Slot,
        mode: u32,
    },
    Fchown {
        slot: Slot,
        uid: u32,
        gid: u32,
    },
    Futimens {
        slot: Slot,
        atime: When,
        mtime: When,
    },
    /// Whether the open file is what the path names.
    Same {
        slot: Slot,
        path: Path,
    },
    ListSlot {
        slot: Slot,
    },
    ReadAll {
        path: Path,
    },
    /// As a shell writes a file: `O_CREAT | O_TRUNC`, one write.
    WriteAll {
        path: Path,
        len: usize,
        fill: u8,
    },
    Mkdir {
        path: Path,
        mode: u32,
    },
    Mkfifo {
        path: Path,
        mode: u32,
    },
    /// A character device; never 0:0, which the format of the upper reserves.
    Mkchar {
        path: Path,
        mode: u32,
    },
    Symlink {
        path: Path,
        target: &'static str,
    },
    Link {
        from: Path,
        to: Path,
    },
    Unlink {
        path: Path,
    },
    Rmdir {
        path: Path,
    },
    Rename {
        from: Path,
        to: Path,
        how: Move,
    },
    Readlink {
        path: Path,
    },
    Chmod {
        path: Path,
        mode: u32,
    },
    Chown {
        path: Path,
        uid: u32,
        gid: u32,
        follow: bool,
    },
    Utimens {
        path: Path,
        atime: When,
        mtime: When,
        follow: bool,
    },
    SetXattr {
        path: Path,
        name: &'static str,
        len: usize,
        fill: u8,
        put: Put,
    },
    GetXattr {
        path: Path,
        name: &'static str,
    },
    ListXattr {
        path: Path,
    },
    RemoveXattr {
        path: Path,
        name: &'static str,
    },
    Stat {
        path: Path,
        follow: bool,
    },
    List {
        path: Path,
    },
    /// Lists a directory, but after `after` entries makes (or, where it exists, removes) a file in it, goes on from
    /// the same offset, and then from the start.
    ListWhile {
        path: Path,
        after: usize,
        name: &'static str,
    },
    /// Restarts the server. Open files are gone.
    Remount,
    /// Lets go of everything that is only cached.
    Forget,
    /// The whole tree is compared.
    Snapshot,
}

pub(super) const SLOTS: usize = 5;

/// The bytes that a write of `fill` at `off` puts there: they tell where they belong.
pub(super) fn pattern(off: u64, len: usize, fill: u8) -> Vec<u8> {
    (off..off + len as u64).map(|n| (n / 512 % 251) as u8 ^ fill).collect()
}
