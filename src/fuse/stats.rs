//! How many requests of each kind a session was asked: exact, where times are noisy.

use std::sync::atomic::{AtomicU64, Ordering};

/// The kinds of request, named as in the kernel's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Op {
    /// `LOOKUP`
    Lookup,
    /// `FORGET`, also inside `BATCH_FORGET`: one for each node
    Forget,
    /// `GETATTR`
    GetAttr,
    /// `SETATTR`
    SetAttr,
    /// `READLINK`
    ReadLink,
    /// `MKNOD`
    MkNod,
    /// `MKDIR`
    MkDir,
    /// `SYMLINK`
    SymLink,
    /// `LINK`
    Link,
    /// `UNLINK`
    Unlink,
    /// `RMDIR`
    RmDir,
    /// `RENAME` and `RENAME2`
    Rename,
    /// `OPEN`: answered once with `ENOSYS`, so more than a handful means that the mode does not work
    Open,
    /// `OPENDIR`: the same
    OpenDir,
    /// `CREATE`: the same
    Create,
    /// `FLUSH`: the same
    Flush,
    /// `READ`
    Read,
    /// `WRITE`
    Write,
    /// `FSYNC`
    Fsync,
    /// `FSYNCDIR`
    FsyncDir,
    /// `READDIR`
    ReadDir,
    /// `STATFS`
    StatFs,
    /// `GETXATTR`
    GetXattr,
    /// `SETXATTR`
    SetXattr,
    /// `LISTXATTR`
    ListXattr,
    /// `REMOVEXATTR`
    RemoveXattr,
    /// `FALLOCATE`
    Fallocate,
    /// `LSEEK`
    Lseek,
    /// `COPY_FILE_RANGE`
    CopyFileRange,
    /// Everything that is refused: `ACCESS`, locks, `IOCTL`, `POLL`, `BMAP`
    Other,
}

impl Op {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Op; 30] = [
        Op::Lookup,
        Op::Forget,
        Op::GetAttr,
        Op::SetAttr,
        Op::ReadLink,
        Op::MkNod,
        Op::MkDir,
        Op::SymLink,
        Op::Link,
        Op::Unlink,
        Op::RmDir,
        Op::Rename,
        Op::Open,
        Op::OpenDir,
        Op::Create,
        Op::Flush,
        Op::Read,
        Op::Write,
        Op::Fsync,
        Op::FsyncDir,
        Op::ReadDir,
        Op::StatFs,
        Op::GetXattr,
        Op::SetXattr,
        Op::ListXattr,
        Op::RemoveXattr,
        Op::Fallocate,
        Op::Lseek,
        Op::CopyFileRange,
        Op::Other,
    ];

    /// The name, in lower case: `lookup`, `copyfilerange`.
    pub fn name(self) -> String {
        format!("{self:?}").to_ascii_lowercase()
    }
}

/// The counters of one session.
#[derive(Debug, Default)]
pub struct Stats {
    counts: [AtomicU64; Op::ALL.len()],
    panics: AtomicU64,
}

impl Stats {
    /// One more request of this kind.
    pub(super) fn count(&self, op: Op) {
        self.counts[op as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// One more request that panicked.
    pub(super) fn panicked(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    /// Requests of this kind so far.
    pub fn of(&self, op: Op) -> u64 {
        self.counts[op as usize].load(Ordering::Relaxed)
    }

    /// Requests that panicked and were answered `EIO`.
    pub fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Requests that somebody waited for: all but `FORGET`, to which there is no answer.
    pub fn requests(&self) -> u64 {
        Op::ALL.iter().filter(|op| **op != Op::Forget).map(|op| self.of(*op)).sum()
    }

    /// The kinds that occurred, with their numbers, by name as in [`Op::name`]; `panic` among them if there was one.
    pub fn snapshot(&self) -> Vec<(String, u64)> {
        let counts = Op::ALL.iter().map(|op| (op.name(), self.of(*op)));
        counts.chain([("panic".to_owned(), self.panics())]).filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_counter() {
        let stats = Stats::default();
        for (number, op) in Op::ALL.iter().enumerate() {
            assert_eq!(*op as usize, number, "{op:?} is out of order");
            stats.count(*op);
        }
        assert_eq!(stats.requests(), Op::ALL.len() as u64 - 1);
        assert_eq!(stats.snapshot().len(), Op::ALL.len());
    }
}
