//! How many requests of each kind a session was asked: exact, where times are noisy.

use std::sync::atomic::{AtomicU64, Ordering};

/// Writes the list of kinds once: the enum, its members in order, their names, and their fault points.
macro_rules! ops {
    ($($op:ident $name:literal $doc:literal)*) => {
        /// The kinds of request, named as in the kernel's protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum Op {
            $(#[doc = $doc] $op,)*
        }

        impl Op {
            /// All kinds, in the order of their numbers.
            pub const ALL: &[Op] = &[$(Op::$op),*];

            /// The name: `lookup`, `copy_file_range`.
            pub fn name(self) -> &'static str {
                match self { $(Op::$op => $name,)* }
            }

            /// The name of the fault point that a request of this kind passes.
            pub(super) fn fault(self) -> &'static str {
                match self { $(Op::$op => concat!("fuse.", $name),)* }
            }
        }
    };
}

ops! {
    Lookup "lookup" "`LOOKUP`"
    Forget "forget" "`FORGET`, also inside `BATCH_FORGET`: one for each node"
    GetAttr "getattr" "`GETATTR`"
    SetAttr "setattr" "`SETATTR`"
    ReadLink "readlink" "`READLINK`"
    MkNod "mknod" "`MKNOD`: every new file, since `CREATE` is refused"
    MkDir "mkdir" "`MKDIR`"
    SymLink "symlink" "`SYMLINK`"
    Link "link" "`LINK`"
    Unlink "unlink" "`UNLINK`"
    RmDir "rmdir" "`RMDIR`"
    Rename "rename" "`RENAME` and `RENAME2`"
    Open "open" "`OPEN`: refused once; more than a handful means that the mode without it does not work"
    OpenDir "opendir" "`OPENDIR`: refused once"
    Create "create" "`CREATE`: refused once"
    Flush "flush" "`FLUSH`: refused once"
    Read "read" "`READ`"
    Write "write" "`WRITE`"
    Fsync "fsync" "`FSYNC`"
    FsyncDir "fsyncdir" "`FSYNCDIR`"
    ReadDir "readdir" "`READDIR`"
    ReadDirPlus "readdirplus" "`READDIRPLUS`"
    StatFs "statfs" "`STATFS`"
    GetXattr "getxattr" "`GETXATTR`"
    SetXattr "setxattr" "`SETXATTR`"
    ListXattr "listxattr" "`LISTXATTR`"
    RemoveXattr "removexattr" "`REMOVEXATTR`"
    Fallocate "fallocate" "`FALLOCATE`"
    Lseek "lseek" "`LSEEK`"
    CopyFileRange "copy_file_range" "`COPY_FILE_RANGE`"
    Other "other" "What is refused each time: `ACCESS`, locks, `IOCTL`, `POLL`, `BMAP`"
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
    pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
        let counts = Op::ALL.iter().map(|op| (op.name(), self.of(*op)));
        counts.chain([("panic", self.panics())]).filter(|(_, count)| *count > 0).collect()
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
