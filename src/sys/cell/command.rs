//! The command's side of a cell, from its clone to its exec: system calls only, like the keeper.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::Signal;

use super::keeper::NoWayBack;
use super::raw::{self, Table};
use super::{Cwd, Mask, Packet, Part, Plan, Reopen, tell};

/// Waits until the keeper has completed the namespaces, enters the working directory and executes the program.
pub(super) fn run(plan: &Plan, tables: &mut [Table; 2], line: BorrowedFd<'_>, go: BorrowedFd<'_>, mask: &Mask) -> ! {
    let _guard = NoWayBack;
    if plan.spaces.is_none() {
        // No PID namespace whose end would take the command along. The keeper has one thread, so "parent" is exact.
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    }
    let mut word = [0_u8];
    if rustix::io::retry_on_intr(|| rustix::io::read(go, &mut word)) != Ok(1) {
        // The keeper failed, and has told.
        raw::exit(125);
    }
    if let Err(errno) = enter(&plan.cwd) {
        tell(line, &Packet::failed(Part::Cwd, errno));
        raw::exit(125);
    }
    for reopen in &plan.reopen {
        if let Err(errno) = open_in_fork(&plan.cwd, reopen) {
            tell(line, &Packet::failed(Part::Input, errno));
            raw::exit(125);
        }
    }
    if plan.spaces.is_some() {
        match raw::refuse_typing() {
            // A kernel without filters, or one that lets nobody have more of them.
            Ok(()) | Err(Errno::NOSYS | Errno::INVAL) => {}
            Err(errno) => {
                tell(line, &Packet::failed(Part::Inner, errno));
                raw::exit(125);
            }
        }
    }
    raw::default_sigpipe();
    mask.restore();
    let errno = exec(plan, tables);
    tell(line, &Packet::failed(Part::Exec, errno));
    raw::exit(125)
}

/// Goes to the working directory. A symbolic link on the way may not lead out of the root.
fn enter(cwd: &Cwd) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, cwd.root.as_c_str(), flags, Mode::empty())?;
    loop {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(&root, cwd.below.as_c_str(), flags, Mode::empty(), resolve) {
            Ok(dir) => return rustix::process::fchdir(dir),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Opens a file of the fork for reading; no component of its path may be a link.
fn open_in_fork(cwd: &Cwd, reopen: &Reopen) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, cwd.root.as_c_str(), flags, Mode::empty())?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    // Without O_NONBLOCK a FIFO that took the file's place would wait for a writer here.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat2(&root, reopen.below.as_c_str(), flags, Mode::empty(), resolve)?;
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(reopen.offset))?;
    rustix::fs::fcntl_setfl(&file, OFlags::RDONLY)?;
    raw::duplicate(file.as_fd(), reopen.number)
}

/// Tries the candidates as `execvp(3)` does; the errno of the one that says most.
fn exec(plan: &Plan, tables: &mut [Table; 2]) -> Errno {
    let [plain, script] = tables;
    let mut worst = Errno::NOENT;
    for path in &plan.program.candidates {
        match raw::exec(path, plain) {
            Errno::NOENT | Errno::NOTDIR => {}
            // Found but not for us: another one may do, else this is what is said.
            Errno::ACCESS => worst = Errno::ACCESS,
            Errno::NOEXEC => {
                script.name_script(path);
                return raw::exec(c"/bin/sh", script);
            }
            other => return other,
        }
    }
    worst
}
