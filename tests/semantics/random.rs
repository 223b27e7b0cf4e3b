//! Random operations that mostly make sense: on what is there, with names few enough that they meet each other.
//!
//! The generator is told what the plain copy holds by and by; what it made is a list of plain values afterwards, which
//! can be played again and shortened.

use std::collections::BTreeSet;
use std::sync::Mutex;

use super::ops::{Alloc, How, Move, Op, Path, Put, SLOTS, Slot, When};
use super::rng::Rng;

const NAMES: &[&str] = &["a", "b", "c", "d", "-e \n"];
/// One byte too long for a name; all but the last is the longest there is.
const LONG: &str = match std::str::from_utf8(&[b'n'; 256]) {
    Ok(name) => name,
    Err(_) => unreachable!(),
};
const TARGETS: &[&str] = &["a", "b", "c/a", "d", "a/b/c", "nowhere", "/nonexistent/x", "-e \n"];
const ATTRIBUTES: &[&str] = &["user.a", "user.b", "trusted.c", "security.d", "user.overlayed", "odd.e"];
const SIZES: &[u64] = &[0, 1, 10, 4095, 4096, 4097, 8192, 20_000, 65_536, 70_001, 140_000];
const MODES: &[u32] = &[0o644, 0o755, 0o600, 0o777, 0o444, 0o000, 0o2755, 0o4755, 0o6777, 0o1777];

/// What there is to work on.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) dirs: Vec<Path>,
    pub(super) files: Vec<Path>,
    pub(super) others: Vec<Path>,
    pub(super) open: Vec<Slot>,
}

/// Makes operations.
pub(super) struct Maker<'a> {
    pub(super) rng: &'a mut Rng,
    pub(super) known: Known,
}

impl Maker<'_> {
    /// One random operation.
    pub(super) fn next(&mut self) -> Op {
        match self.rng.below(100) {
            0..16 => self.open(),
            16..48 => self.on_slot(),
            48..74 => self.on_names(),
            74..86 => self.on_attributes(),
            86..98 => self.look(),
            98 => self.rng.pick(&[Op::Forget, Op::Forget, Op::Snapshot]),
            _ => self.rng.pick(&[Op::Remount, Op::Forget, Op::Forget]),
        }
    }

    /// Any path at all, there or not.
    fn wild(&mut self) -> Path {
        if self.rng.once_in(100) {
            return &LONG[..self.rng.pick(&[255, 256])];
        }
        let depth = self.rng.pick(&[1, 2, 2, 3, 3]);
        let names: Vec<&str> = (0..depth).map(|_| self.rng.pick(NAMES)).collect();
        intern(&names.join("/"))
    }

    fn one_of(&mut self, what: fn(&Known) -> &Vec<Path>) -> Path {
        let there = what(&self.known);
        if there.is_empty() || self.rng.once_in(8) { self.wild() } else { self.rng.pick(there) }
    }

    fn file(&mut self) -> Path {
        self.one_of(|known| &known.files)
    }

    fn dir(&mut self) -> Path {
        self.one_of(|known| &known.dirs)
    }

    /// Something that is there, mostly.
    fn some(&mut self) -> Path {
        match self.rng.below(5) {
            0..2 => self.file(),
            2 => self.dir(),
            3 => self.one_of(|known| &known.others),
            _ => self.wild(),
        }
    }

    /// A name in a directory that is there, mostly.
    fn place(&mut self) -> Path {
        let dir = if self.rng.once_in(4) { "" } else { self.dir() };
        let name = self.rng.pick(NAMES);
        // Not deeper and deeper.
        if dir.is_empty() || dir.matches('/').count() > 3 { name } else { intern(&format!("{dir}/{name}")) }
    }

    fn slot(&mut self) -> Slot {
        if self.known.open.is_empty() || self.rng.once_in(12) {
            return usize::try_from(self.rng.below(SLOTS as u64)).expect("small");
        }
        self.rng.pick(&self.known.open)
    }

    fn size(&mut self) -> u64 {
        if self.rng.once_in(2) { self.rng.pick(SIZES) } else { self.rng.below(100_000) }
    }

    fn len(&mut self) -> usize {
        usize::try_from(self.size()).expect("small")
    }

    fn fill(&mut self) -> u8 {
        u8::try_from(1 + self.rng.below(255)).expect("small")
    }

    fn when(&mut self) -> When {
        let sec = i64::try_from(1_000_000_000 + self.rng.below(1_000_000)).expect("small");
        self.rng.pick(&[When::Now, When::Omit, When::At(sec, 123_456_789), When::At(-5, 1)])
    }

    fn open(&mut self) -> Op {
        let slot = usize::try_from(self.rng.below(SLOTS as u64)).expect("small");
        let path = if self.rng.once_in(4) { self.place() } else { self.file() };
        match self.rng.below(12) {
            0 => Op::Close { slot: self.slot() },
            1 => Op::OpenDir { slot, path: self.dir() },
            2..4 => Op::WriteAll { path, len: self.len(), fill: self.fill() },
            4..6 => Op::Open { slot, path, how: How::Read, create: self.rng.once_in(4), excl: false, trunc: false },
            _ => {
                let how = self.rng.pick(&[How::Write, How::ReadWrite, How::ReadWrite, How::ReadWrite, How::Append]);
                let [create, excl, trunc] = [2, 8, 8].map(|n| self.rng.once_in(n));
                Op::Open { slot, path, how, create, excl, trunc }
            }
        }
    }

    fn on_slot(&mut self) -> Op {
        let slot = self.slot();
        let (off, len, fill) = (self.size(), self.len(), self.fill());
        let (atime, mtime) = (self.when(), self.when());
        let alloc = [Alloc::Extend, Alloc::Keep, Alloc::Punch, Alloc::Punch, Alloc::Zero, Alloc::ZeroKeep];
        match self.rng.below(25) {
            0..2 => Op::Read { slot, len },
            2..4 => Op::Pread { slot, off, len },
            4..7 => Op::Write { slot, len, fill },
            7..10 => Op::Pwrite { slot, off, len, fill },
            10 => Op::MapRead { slot, off: off / 4, len },
            11..13 => Op::MapWrite { slot, off: off / 4, len, fill },
            13 => Op::Ftruncate { slot, len: off },
            14..16 => Op::Allocate { slot, mode: self.rng.pick(&alloc), off, len: len as u64 },
            16 => Op::Holes { slot, off: off / 2 },
            17 => Op::CopyRange { from: slot, from_off: off / 4, to: self.slot(), to_off: self.size(), len },
            18 => Op::Fsync { slot, data: self.rng.once_in(2) },
            19 => Op::Fstat { slot },
            20 => Op::Fchmod { slot, mode: self.rng.pick(MODES) },
            21 => Op::Fchown { slot, uid: self.rng.pick(&[0, 7]), gid: self.rng.pick(&[0, 8]) },
            22 => Op::Futimens { slot, atime, mtime },
            23 => Op::ListSlot { slot },
            _ => Op::Same { slot, path: self.file() },
        }
    }

    fn on_names(&mut self) -> Op {
        let (path, place) = (self.some(), self.place());
        let mode = self.rng.pick(MODES);
        match self.rng.below(26) {
            0..4 => Op::Mkdir { path: place, mode },
            4 => Op::Mkfifo { path: place, mode },
            5 => Op::Mkchar { path: place, mode },
            6..8 => Op::Symlink { path: place, target: self.rng.pick(TARGETS) },
            8..11 => Op::Link { from: path, to: place },
            11..14 => Op::Unlink { path },
            14..16 => Op::Rmdir { path: self.dir() },
            16..20 => Op::Rename { from: path, to: place, how: Move::Plain },
            20..22 => Op::Rename { from: self.dir(), to: self.rng.pick(&[path, place]), how: Move::Plain },
            22..24 => Op::Rename { from: path, to: self.some(), how: Move::Exchange },
            24 => Op::Rename { from: path, to: place, how: Move::NoReplace },
            _ => Op::Truncate { path, len: self.size() },
        }
    }

    fn on_attributes(&mut self) -> Op {
        let (path, name) = (self.some(), self.rng.pick(ATTRIBUTES));
        let (atime, mtime, follow) = (self.when(), self.when(), self.rng.once_in(2));
        match self.rng.below(11) {
            0..3 => Op::Chmod { path, mode: self.rng.pick(MODES) },
            3..5 => Op::Chown { path, uid: self.rng.pick(&[0, 7]), gid: self.rng.pick(&[0, 8]), follow },
            5..7 => Op::Utimens { path, atime, mtime, follow },
            7..10 => {
                let put = self.rng.pick(&[Put::Any, Put::Any, Put::Create, Put::Replace]);
                Op::SetXattr { path, name, len: self.rng.pick(&[0, 1, 10, 300]), fill: self.fill(), put }
            }
            _ => Op::RemoveXattr { path, name },
        }
    }

    fn look(&mut self) -> Op {
        let path = self.some();
        match self.rng.below(16) {
            0..5 => Op::Stat { path, follow: self.rng.once_in(2) },
            5..9 => Op::ReadAll { path: self.file() },
            9..11 => Op::List { path: self.dir() },
            11..13 => {
                let after = usize::try_from(self.rng.below(5)).expect("small");
                Op::ListWhile { path: self.dir(), after, name: self.rng.pick(NAMES) }
            }
            13 => Op::Readlink { path: self.one_of(|known| &known.others) },
            14 => Op::ListXattr { path },
            _ => Op::GetXattr { path, name: self.rng.pick(ATTRIBUTES) },
        }
    }
}

/// There are few paths, so keeping each for ever costs nothing and makes operations plain values.
pub(super) fn intern(path: &str) -> Path {
    static ALL: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut all = ALL.lock().expect("nothing panics while it is held");
    if let Some(known) = all.get(path) {
        return known;
    }
    let path: Path = Box::leak(path.to_owned().into_boxed_str());
    all.insert(path);
    path
}
