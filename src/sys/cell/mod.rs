//! A cell: one command in namespaces of its own, described beforehand as plain data and built by a forked child.
//!
//! Three processes. The *caller* (any process, with any number of threads) clones the *keeper*: process 1 of a new PID
//! namespace, in a new mount namespace that it arranges step by step. The keeper clones the *command* into a second
//! user and mount namespace: there every mount of the first is locked, so that no privilege that the command has or
//! gains can take a cover away. The keeper then passes signals on, reaps, reports how the command ended, and ends; the
//! kernel kills whatever else is left in the PID namespace with it. It ends as well when the caller does.
//!
//! Between clone and exec a child of a process with threads may neither allocate nor lock. So the whole [`Plan`] is
//! made before, and the code of [`keeper`] and [`command`] is nothing but system calls on it.

mod command;
mod keeper;
mod raw;
mod report;

use std::ffi::{CStr, CString};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketFlags, SocketType,
};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::Mask;
pub use report::{Ended, Part, Report};
use report::{Packet, tell};

/// All that the children need to know. Nothing in it changes once the keeper runs.
#[derive(Debug)]
pub struct Plan {
    /// The namespaces to make; `None` runs the command beside the caller, watched but not kept apart.
    pub spaces: Option<Spaces>,
    /// What is done to the mounts, in order.
    pub steps: Vec<Step>,
    /// Where the command starts.
    pub cwd: Cwd,
    /// What is executed.
    pub program: Program,
    /// What becomes standard input, output and error where they are not the caller's own.
    pub stdio: [Option<OwnedFd>; 3],
    /// Files of the fork that are opened for reading in place of standard input, output or error.
    pub reopen: Vec<Reopen>,
    /// Further descriptors that the command inherits, in ascending order, all above 2.
    pub inherit: Vec<RawFd>,
}

/// The namespaces of a cell, besides mount and PID namespaces.
#[derive(Debug)]
pub struct Spaces {
    /// The keeper needs a user namespace too, for the right to mount: its maps. `None` where the caller has that right.
    pub keeper: Option<IdMaps>,
    /// The maps of the command's user namespace.
    pub command: IdMaps,
    /// A network namespace without any interface but the loopback.
    pub network: bool,
}

/// What is written to `uid_map` and `gid_map` of a new user namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdMaps {
    /// Content of `uid_map`.
    pub users: Vec<u8>,
    /// Content of `gid_map`.
    pub groups: Vec<u8>,
    /// `setgroups` has to be given up first: the rule for who has no privilege outside.
    pub no_setgroups: bool,
}

/// One change of the keeper's mount namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing that is mounted from here on spreads to or comes from elsewhere; and the keeper leaves its directory.
    Private,
    /// Fails with `ESTALE` unless this device and inode are at the path.
    Expect {
        /// Where.
        path: CString,
        /// Device number.
        dev: u64,
        /// Inode number.
        ino: u64,
    },
    /// Keeps a copy of what is mounted at and below the path, for [`Step::Put`]; at most [`SLOTS`].
    Take {
        /// Where.
        path: CString,
        /// Under which number it is kept.
        slot: usize,
    },
    /// Mounts FUSE, hands the connection to the caller, and waits for it to be served; kept like [`Step::Take`].
    Fuse {
        /// Under which number it is kept.
        slot: usize,
        /// The options of the mount, besides the descriptor; a flag has no value.
        options: Vec<(CString, Option<CString>)>,
        /// What shows as the source of the mount.
        source: CString,
    },
    /// Binds what is at one path, without what is mounted below, over another.
    Bind {
        /// What.
        from: CString,
        /// Where.
        to: CString,
    },
    /// Mounts what was taken over the path.
    Put {
        /// Where.
        path: CString,
        /// What.
        slot: usize,
    },
    /// Makes every mount from the root down read-only.
    ReadOnly {
        /// The mount to begin with.
        path: CString,
        /// Also what is mounted below.
        below: bool,
    },
    /// Mounts a `/proc` that knows the cell's processes only.
    Proc,
    /// Covers a directory with an empty one.
    HideDir(CString),
    /// Covers a directory with an empty one that things can be put in.
    Scratch(CString),
    /// Makes a directory.
    MakeDir(CString),
    /// Makes a file.
    MakeFile {
        /// Where.
        path: CString,
        /// What is in it.
        content: Vec<u8>,
    },
    /// Covers anything but a directory with the null device.
    HideFile(CString),
    /// Brings up the loopback interface.
    Loopback,
}

/// How many trees [`Step::Take`] and [`Step::Fuse`] can keep.
pub const SLOTS: usize = 32;

/// Where a command starts: below a root that it must not leave on the way.
#[derive(Debug)]
pub struct Cwd {
    /// The root of the fork, as the cell sees it.
    pub root: CString,
    /// The path below; `.` for the root itself.
    pub below: CString,
}

/// A file below the root of [`Cwd`] that is opened for reading.
#[derive(Debug)]
pub struct Reopen {
    /// As which descriptor.
    pub number: RawFd,
    /// The path below the root.
    pub below: CString,
    /// From where it is read on.
    pub offset: u64,
}

/// What is executed: the first of the candidates that exists.
#[derive(Debug)]
pub struct Program {
    /// Paths, in the order of `PATH`.
    pub candidates: Vec<CString>,
    /// The arguments, the name of the program included.
    pub args: Vec<CString>,
    /// The environment, as `NAME=value`.
    pub env: Vec<CString>,
}

impl Program {
    /// The arguments as they are, and as a script without an interpreter line needs them.
    fn tables(&self) -> [raw::Table; 2] {
        [raw::Table::new(&self.args, &self.env), raw::Table::script(&self.args, &self.env)]
    }
}

/// The one word that is no signal number: the connection is served, or the end.
const PROCEED: u8 = 200;
const END: u8 = 201;

/// The caller's end of a running cell.
#[derive(Debug)]
pub struct Cell {
    /// It has a PID namespace.
    alone: bool,
    pid: Pid,
    keeper: OwnedFd,
    line: OwnedFd,
}

/// Builds a cell and starts the command in it.
///
/// What goes wrong in the children comes as [`Report::Failed`].
///
/// # Errors
/// Where the keeper cannot be cloned: `EPERM`, `ENOSPC`, `EUSERS` where namespaces are not to be had.
pub fn launch(plan: &Plan) -> Result<Cell, Errno> {
    let (line, far) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let caller = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
    let mut pidfd = -1;
    let mut table = plan.program.tables();
    let mask = Mask::block_all().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::INVAL))?;
    // SAFETY: the child runs `keeper::run`, which keeps to system calls on the plan and never returns (see the header).
    let cloned = unsafe { raw::clone(keeper::clone_flags(plan.spaces.as_ref()), &mut pidfd) };
    if cloned == Ok(0) {
        keeper::run(plan, &mut table, far.as_fd(), caller.as_fd(), &mask);
    }
    mask.restore();
    let pid = Pid::from_raw(cloned?).expect("the child's branch is above");
    // SAFETY: the kernel has just made this descriptor for us (CLONE_PIDFD), and nobody else knows it.
    let keeper = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Cell { alone: plan.spaces.is_some(), pid, keeper, line })
}

impl Cell {
    /// The keeper's process number, as the caller sees it.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Becomes readable when there is a report.
    pub fn line(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }

    /// The next report; `None` when there will be no more. Waits.
    pub fn report(&self) -> Result<Option<Report>, Errno> {
        let mut words = [0_u8; Packet::SIZE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let got = rustix::io::retry_on_intr(|| {
            let flags = RecvFlags::CMSG_CLOEXEC;
            rustix::net::recvmsg(&self.line, &mut [IoSliceMut::new(&mut words)], &mut ancillary, flags)
        });
        let got = match got {
            // The keeper was killed with words of ours unread.
            Err(Errno::CONNRESET) => return Ok(None),
            other => other?,
        };
        if got.bytes != Packet::SIZE {
            return Ok(None);
        }
        let rights = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next().zip(fds.next()),
            _ => None,
        });
        Ok(Packet::from_bytes(&words).decode(rights))
    }

    /// Sends the command a signal. Nothing happens where it has ended.
    pub fn signal(&self, signal: Signal) {
        self.say(u8::try_from(signal.as_raw()).unwrap_or(END));
    }

    /// The connection that was handed over is being served.
    pub fn proceed(&self) {
        self.say(PROCEED);
    }

    /// Ends everything in the cell at once.
    pub fn end(&self) {
        self.say(END);
    }

    fn say(&self, word: u8) {
        // A keeper that is gone needs no telling.
        let _ = rustix::net::send(&self.line, &[word], SendFlags::NOSIGNAL);
    }

    /// Kills everything in the cell, whether the keeper listens or not.
    pub fn kill(&self) {
        if self.alone {
            // The end of process 1 is the end of its namespace.
            let _ = rustix::process::pidfd_send_signal(&self.keeper, Signal::KILL);
        } else {
            self.end();
        }
    }

    /// Ends what is still there, and waits until the keeper is gone, and with it everything that was in the cell.
    pub fn finish(&self) {
        self.kill();
        let options = rustix::process::WaitIdOptions::EXITED;
        let wait = || rustix::process::waitid(rustix::process::WaitId::PidFd(self.keeper.as_fd()), options);
        // ECHILD: a host that lets the kernel reap its children. Gone is gone.
        let _ = rustix::io::retry_on_intr(wait);
    }
}

/// Writes a small file of a process's directory in `/proc` in one call, as the kernel wants it.
fn write_proc(process: BorrowedFd<'_>, name: &CStr, content: &[u8]) -> Result<(), Errno> {
    let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::openat(process, name, flags, rustix::fs::Mode::empty())?;
    let written = rustix::io::write(&file, content)?;
    if written == content.len() { Ok(()) } else { Err(Errno::IO) }
}

/// Closes every descriptor above 2 but those of the two lists, each in ascending order.
fn close_others(inherit: &[RawFd], own: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let kept = |fd: &RawFd| inherit.contains(fd) || own.iter().any(|o| o.as_raw_fd() == *fd);
    let mut from = 3;
    loop {
        let next = inherit.iter().copied().chain(own.iter().map(AsRawFd::as_raw_fd)).filter(|&fd| fd >= from).min();
        match next {
            Some(fd) => {
                raw::close_range(from, fd - 1)?;
                debug_assert!(kept(&fd));
                from = fd + 1;
            }
            None => return raw::close_range(from, RawFd::MAX),
        }
    }
}
