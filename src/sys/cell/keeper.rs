//! The keeper: arranges the mounts, starts the command, and stays as process 1 of the cell until the command has ended.
//!
//! Everything here runs between clone and exit of a process that may have had threads: system calls only.

use std::ffi::CStr;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::path::DecInt;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::raw::{self, Table};
use super::{
    END, IdMaps, Mask, PROCEED, Packet, Part, Plan, SLOTS, Spaces, Step, close_others, command, tell, write_proc,
};

type Failed = (Part, Errno);

/// The namespaces that the keeper is cloned into.
pub(super) fn clone_flags(spaces: Option<&Spaces>) -> libc::c_int {
    let Some(spaces) = spaces else { return 0 };
    let user = if spaces.keeper.is_some() { libc::CLONE_NEWUSER } else { 0 };
    let network = if spaces.network { libc::CLONE_NEWNET } else { 0 };
    libc::CLONE_NEWNS | libc::CLONE_NEWPID | user | network
}

/// Ends the process where a panic would otherwise unwind into the caller's code.
pub(super) struct NoWayBack;

impl Drop for NoWayBack {
    fn drop(&mut self) {
        raw::exit(125);
    }
}

/// The life of the keeper. `caller` is a pidfd of the process that wants the cell.
pub(super) fn run(plan: &Plan, table: &mut [Table; 2], line: BorrowedFd<'_>, caller: BorrowedFd<'_>, mask: &Mask) -> ! {
    let _guard = NoWayBack;
    // What `ps` in the cell shows as process 1.
    let _ = rustix::thread::set_name(c"treefork-keeper");
    let worked = prepare(plan, line, caller).and_then(|()| {
        let pid = start(plan, table, line, mask)?;
        watch(pid, plan.spaces.is_some(), line, caller).map_err(|e| (Part::Plumbing, e))
    });
    if let Err((part, errno)) = worked {
        tell(line, &Packet::failed(part, errno));
    }
    raw::exit(0)
}

/// Descriptors, maps and mounts.
fn prepare(plan: &Plan, line: BorrowedFd<'_>, caller: BorrowedFd<'_>) -> Result<(), Failed> {
    let plumbing = |e| (Part::Plumbing, e);
    for (number, fd) in (0..).zip(&plan.stdio) {
        if let Some(fd) = fd {
            raw::duplicate(fd.as_fd(), number).map_err(plumbing)?;
        }
    }
    close_others(&plan.inherit, &[line, caller]).map_err(plumbing)?;
    let Some(spaces) = &plan.spaces else {
        return rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(plumbing);
    };
    if let Some(maps) = &spaces.keeper {
        write_maps(c"self", maps).map_err(|e| (Part::Spaces, e))?;
    }
    let mut slots = [const { None::<OwnedFd> }; SLOTS];
    for (number, step) in plan.steps.iter().enumerate() {
        take_step(step, &mut slots, line).map_err(|e| (Part::Step(number), e))?;
    }
    Ok(())
}

fn take_step(step: &Step, slots: &mut [Option<OwnedFd>; SLOTS], line: BorrowedFd<'_>) -> Result<(), Errno> {
    match step {
        Step::Private => {
            let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            rustix::mount::mount_change(c"/", flags)?;
            rustix::process::chdir(c"/")
        }
        Step::Expect { path, dev, ino } => {
            let stat = crate::sys::stat::statx(CWD, path.as_c_str(), AtFlags::empty())?;
            if (stat.dev, stat.ino) == (*dev, *ino) { Ok(()) } else { Err(Errno::STALE) }
        }
        Step::Take { path, slot } => {
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
            let tree = rustix::mount::open_tree(CWD, path.as_c_str(), flags)?;
            *slots.get_mut(*slot).ok_or(Errno::NFILE)? = Some(tree);
            Ok(())
        }
        Step::Fuse { slot, options, source } => {
            let (device, mount) = mount_fuse(options, source)?;
            hand_over(line, device.as_fd(), mount.as_fd())?;
            *slots.get_mut(*slot).ok_or(Errno::NFILE)? = Some(mount);
            drop(device);
            await_proceed(line)
        }
        Step::Bind { from, to } => rustix::mount::mount_bind(from.as_c_str(), to.as_c_str()),
        Step::Put { path, slot } => {
            let tree = slots.get_mut(*slot).and_then(Option::take).ok_or(Errno::BADF)?;
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            rustix::mount::move_mount(&tree, c"", CWD, path.as_c_str(), flags)
        }
        Step::ReadOnly { path, below } => raw::mount_read_only(path, *below),
        Step::Proc => {
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            rustix::mount::mount(c"proc", c"/proc", c"proc", flags, None::<&CStr>)
        }
        Step::HideDir(path) => {
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
            let size = c"size=4k,nr_inodes=2,mode=555";
            rustix::mount::mount(c"hidden", path.as_c_str(), c"tmpfs", flags, Some(size))
        }
        Step::Scratch(path) => {
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            rustix::mount::mount(c"hidden", path.as_c_str(), c"tmpfs", flags, Some(c"size=64k,nr_inodes=16,mode=755"))
        }
        Step::MakeDir(path) => rustix::fs::mkdir(path.as_c_str(), Mode::from_raw_mode(0o755)),
        Step::MakeFile { path, content } => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let file = rustix::fs::open(path.as_c_str(), flags, Mode::from_raw_mode(0o644))?;
            let written = rustix::io::write(&file, content)?;
            if written == content.len() { Ok(()) } else { Err(Errno::NOSPC) }
        }
        Step::HideFile(path) => rustix::mount::mount_bind(c"/dev/null", path.as_c_str()),
        Step::Loopback => raw::loopback_up(),
    }
}

/// A FUSE mount that nothing serves yet, attached nowhere, and its device. In a user namespace the device must be
/// opened there, so this cannot be done from outside.
fn mount_fuse(
    options: &[(std::ffi::CString, Option<std::ffi::CString>)],
    source: &CStr,
) -> Result<(OwnedFd, OwnedFd), Errno> {
    let device = rustix::fs::open(c"/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let fs = rustix::mount::fsopen(c"fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(&fs, c"source", source)?;
    rustix::mount::fsconfig_set_string(&fs, c"fd", DecInt::from_fd(&device).as_c_str())?;
    for (name, value) in options {
        match value {
            Some(value) => rustix::mount::fsconfig_set_string(&fs, name.as_c_str(), value.as_c_str())?,
            None => rustix::mount::fsconfig_set_flag(&fs, name.as_c_str())?,
        }
    }
    rustix::mount::fsconfig_create(&fs)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mount = rustix::mount::fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    Ok((device, mount))
}

/// Sends the connection and the root of the mount to the caller.
fn hand_over(line: BorrowedFd<'_>, device: BorrowedFd<'_>, root: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [device, root];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::NOBUFS);
    }
    let bytes = Packet([Packet::CONNECTION, 0, 0, 0, 0, 0]).to_bytes();
    rustix::net::sendmsg(line, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL).map(|_| ())
}

fn await_proceed(line: BorrowedFd<'_>) -> Result<(), Errno> {
    loop {
        match hear(line)? {
            Some(PROCEED) => return Ok(()),
            // Signals meant for a command that is not there yet.
            Some(word) if word != END => {}
            _ => raw::exit(0),
        }
    }
}

/// The next word of the caller; `None` where there will be no more.
fn hear(line: BorrowedFd<'_>) -> Result<Option<u8>, Errno> {
    let mut word = [0_u8];
    let (got, _) = rustix::io::retry_on_intr(|| rustix::net::recv(line, &mut word, RecvFlags::empty()))?;
    Ok((got == 1).then_some(word[0]))
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Writes the maps of the user namespace of a process, named as `/proc` does.
fn write_maps(process: &CStr, maps: &IdMaps) -> Result<(), Errno> {
    let proc = rustix::fs::open(c"/proc", DIRECTORY, Mode::empty())?;
    let process = rustix::fs::openat(&proc, process, DIRECTORY, Mode::empty())?;
    if maps.no_setgroups {
        write_proc(process.as_fd(), c"setgroups", b"deny")?;
    }
    write_proc(process.as_fd(), c"uid_map", &maps.users)?;
    write_proc(process.as_fd(), c"gid_map", &maps.groups)
}

/// Clones the command and lets it go once its namespaces are complete.
fn start(plan: &Plan, table: &mut [Table; 2], line: BorrowedFd<'_>, mask: &Mask) -> Result<Pid, Failed> {
    let inner = |e| (Part::Inner, e);
    let (wait, go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(inner)?;
    let flags = if plan.spaces.is_some() { libc::CLONE_NEWUSER | libc::CLONE_NEWNS } else { 0 };
    let mut pidfd = -1;
    // SAFETY: the child runs `command::run`, system calls that end in exec or exit. This process has one thread anyway.
    let cloned = unsafe { raw::clone(flags, &mut pidfd) };
    if cloned == Ok(0) {
        drop(go);
        command::run(plan, table, line, wait.as_fd(), mask);
    }
    let pid = Pid::from_raw(cloned.map_err(inner)?).ok_or((Part::Inner, Errno::CHILD))?;
    drop(wait);
    if let Some(spaces) = &plan.spaces {
        let number = DecInt::new(pid.as_raw_nonzero().get());
        write_maps(number.as_c_str(), &spaces.command).map_err(inner)?;
    }
    rustix::io::write(&go, &[1]).map_err(inner)?;
    Ok(pid)
}

/// Passes signals on and reaps, until the command has ended or nobody wants it any more.
fn watch(command: Pid, alone: bool, line: BorrowedFd<'_>, caller: BorrowedFd<'_>) -> Result<(), Errno> {
    let children = raw::children_fd()?;
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(children.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(line, PollFlags::IN),
            PollFd::from_borrowed_fd(caller, PollFlags::IN),
        ];
        rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
        let [news, words, gone] = fds.map(|fd| !fd.revents().is_empty());
        let mut over = gone;
        if words {
            match hear(line).unwrap_or(None) {
                None | Some(END) => over = true,
                Some(number) => {
                    if let Some(signal) = Signal::from_named_raw(number.into()) {
                        let _ = rustix::process::kill_process(command, signal);
                    }
                }
            }
        }
        if news {
            let mut seen = [0_u8; 128];
            // Several signals come as one; the loop in `reap` finds all children either way.
            let _ = rustix::io::read(&children, &mut seen);
            over |= reap(command, line)?;
        }
        if over {
            if !alone {
                end_descendants();
            }
            return Ok(());
        }
    }
}

/// Takes in all news of children; true when the command has ended.
fn reap(command: Pid, line: BorrowedFd<'_>) -> Result<bool, Errno> {
    let options = WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED;
    loop {
        let (pid, status) = match rustix::process::wait(options) {
            Ok(Some(news)) => news,
            Ok(None) | Err(Errno::CHILD) => return Ok(false),
            Err(Errno::INTR) => continue,
            Err(e) => return Err(e),
        };
        if pid == command && report(status, line) {
            return Ok(true);
        }
    }
}

/// Tells the caller what became of the command; true when it has ended.
fn report(status: WaitStatus, line: BorrowedFd<'_>) -> bool {
    if let Some(signal) = status.stopping_signal() {
        tell(line, &Packet([Packet::STOPPED, signal.into(), 0, 0, 0, 0]));
        return false;
    }
    if status.continued() {
        tell(line, &Packet([Packet::CONTINUED, 0, 0, 0, 0, 0]));
        return false;
    }
    tell(line, &Packet::ended(&raw::children_usage(status.as_raw())));
    true
}

/// Without a PID namespace: kills all descendants. Whoever loses its parent becomes a child of this subreaper, so the
/// list of children is read again until there are none.
fn end_descendants() {
    loop {
        let mut list = [0_u8; 4096];
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::open(c"/proc/thread-self/children", flags, Mode::empty());
        let length = file.and_then(|file| rustix::io::read(file, &mut list)).unwrap_or(0);
        for word in list.get(..length).unwrap_or_default().split(|b| !b.is_ascii_digit()) {
            let number = word.iter().fold(0_i32, |n, digit| n.wrapping_mul(10).wrapping_add(i32::from(digit - b'0')));
            if let Some(pid) = Pid::from_raw(number) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        if length == 0 || matches!(rustix::process::wait(WaitOptions::empty()), Err(Errno::CHILD)) {
            return;
        }
    }
}
