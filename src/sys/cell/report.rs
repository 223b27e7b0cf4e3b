//! What the children tell the caller, and how it travels: fixed numbers in one packet, made without allocating.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SendFlags;

/// Which part of the children's work failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Making the keeper's namespaces or its maps.
    Spaces,
    /// The step of this number.
    Step(usize),
    /// Making the command's namespaces or its maps.
    Inner,
    /// Entering the working directory.
    Cwd,
    /// Opening standard input in the fork.
    Input,
    /// Executing the program.
    Exec,
    /// Anything else: descriptors, signals, processes.
    Plumbing,
}

impl Part {
    fn encode(self) -> (i64, i64) {
        match self {
            Part::Spaces => (0, 0),
            Part::Step(n) => (1, n as i64),
            Part::Inner => (2, 0),
            Part::Cwd => (3, 0),
            Part::Exec => (4, 0),
            Part::Plumbing => (5, 0),
            Part::Input => (6, 0),
        }
    }

    fn decode(part: i64, detail: i64) -> Self {
        match part {
            0 => Part::Spaces,
            1 => Part::Step(usize::try_from(detail).unwrap_or(usize::MAX)),
            2 => Part::Inner,
            3 => Part::Cwd,
            4 => Part::Exec,
            6 => Part::Input,
            _ => Part::Plumbing,
        }
    }
}

/// What the children tell the caller.
#[derive(Debug)]
pub enum Report {
    /// A FUSE connection to serve; answered by [`Cell::proceed`](super::Cell::proceed) once it is.
    Connection {
        /// What the server reads requests from.
        device: OwnedFd,
        /// The root of the mount.
        root: OwnedFd,
    },
    /// It did not come to the command.
    Failed(Part, Errno),
    /// The command was stopped by this signal.
    Stopped(i32),
    /// The command went on.
    Continued,
    /// The command ended.
    Ended(Ended),
}

/// How the command ended and what it took, its waited-for children included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// The status as `waitpid` gives it.
    pub status: i32,
    /// Time in user mode.
    pub user: Duration,
    /// Time in the kernel.
    pub system: Duration,
    /// Peak resident memory of the largest process, in KiB.
    pub peak_kib: u64,
}

/// A report on its way: fixed numbers, made without allocating.
pub(super) struct Packet(pub(super) [i64; 6]);

impl Packet {
    pub(super) const SIZE: usize = size_of::<[i64; 6]>();
    pub(super) const CONNECTION: i64 = 1;
    const FAILED: i64 = 2;
    pub(super) const STOPPED: i64 = 3;
    pub(super) const CONTINUED: i64 = 4;
    const ENDED: i64 = 5;

    pub(super) fn failed(part: Part, errno: Errno) -> Self {
        let (part, detail) = part.encode();
        Self([Self::FAILED, part, detail, errno.raw_os_error().into(), 0, 0])
    }

    pub(super) fn ended(ended: &Ended) -> Self {
        let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        let peak = i64::try_from(ended.peak_kib).unwrap_or(i64::MAX);
        Self([Self::ENDED, ended.status.into(), micros(ended.user), micros(ended.system), peak, 0])
    }

    pub(super) fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let mut words = [0; 6];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = i64::from_ne_bytes(chunk.try_into().expect("chunks of eight"));
        }
        Self(words)
    }

    pub(super) fn decode(self, rights: Option<(OwnedFd, OwnedFd)>) -> Option<Report> {
        let [tag, a, b, c, d, _] = self.0;
        let micros = |n: i64| Duration::from_micros(u64::try_from(n).unwrap_or(0));
        Some(match tag {
            Self::CONNECTION => rights.map(|(device, root)| Report::Connection { device, root })?,
            Self::FAILED => Report::Failed(Part::decode(a, b), Errno::from_raw_os_error(i32::try_from(c).ok()?)),
            Self::STOPPED => Report::Stopped(i32::try_from(a).ok()?),
            Self::CONTINUED => Report::Continued,
            Self::ENDED => Report::Ended(Ended {
                status: i32::try_from(a).ok()?,
                user: micros(b),
                system: micros(c),
                peak_kib: u64::try_from(d).unwrap_or(0),
            }),
            _ => return None,
        })
    }
}

/// Tells the caller; there is nobody else to tell where that fails.
pub(super) fn tell(line: BorrowedFd<'_>, packet: &Packet) {
    let _ = rustix::net::send(line, &packet.to_bytes(), SendFlags::NOSIGNAL);
}
