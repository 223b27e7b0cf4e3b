//! What a background process does to itself, and how one is started so that nothing of its parent clings to it.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::{DumpableBehavior, Pid, Resource, Rlimit};

/// Makes `command` start a process that outlives its parent: in a session of its own, without a controlling terminal,
/// with no descriptor but the standard three, and no child of ours: what `spawn` returns is a go-between that ends at
/// once and is to be waited for.
pub fn detach(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec only async-signal-safe calls are made: setsid, fork, _exit, close_range. Nothing is
    // allocated, locked or dropped; the second fork runs in a process of one thread.
    #[expect(unsafe_code)]
    unsafe {
        command.pre_exec(|| {
            if libc::setsid() < 0 {
                return Err(io::Error::last_os_error());
            }
            match libc::fork() {
                0 => {}
                pid if pid < 0 => return Err(io::Error::last_os_error()),
                _ => libc::_exit(0),
            }
            // Closed by exec, not here: the standard library still has to report a failing exec through one of them.
            // Not every C library has a function for it.
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
            Ok(())
        })
    }
}

/// Starts a process that goes on when its parent ends, which it soon does, and that has no descriptor of it but the
/// standard three. Faster than [`detach`]; the child has to call [`leave_session`] first thing.
pub fn spawn_behind(command: &mut Command) -> io::Result<()> {
    // SAFETY: no descriptor is closed, only marked: what this process executes from now on does not get it.
    #[expect(unsafe_code)]
    unsafe {
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
    // Whoever takes over the children of this process waits for it.
    command.spawn().map(drop)
}

/// Leaves the session of whoever started this process, and with it the terminal.
pub fn leave_session() {
    // The first of a process group cannot, and need not: a shell has started it like that.
    let _ = rustix::process::setsid();
}

/// The process group this process is in. None where its number means nothing here: the leader is outside of this PID
/// namespace, as for the first process of a container that did not become a leader itself.
#[must_use]
pub fn process_group() -> Option<Pid> {
    // rustix's own takes 0 for impossible. SAFETY: the call has no arguments and cannot fail.
    #[expect(unsafe_code)]
    let group = unsafe { libc::getpgrp() };
    Pid::from_raw(group)
}

/// Lets no other process of the same user look into this one: not by ptrace, nor through `/proc/PID/fd` and `root`.
pub fn set_undumpable() -> io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// The kernel's random name of this boot: 36 characters.
pub fn boot_id() -> io::Result<&'static str> {
    static BOOT: OnceLock<String> = OnceLock::new();
    if let Some(id) = BOOT.get() {
        return Ok(id);
    }
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(BOOT.get_or_init(|| text.trim().to_owned()))
}

/// How many directories this user may watch by inotify, where the kernel says so.
pub fn watch_limit() -> Option<usize> {
    std::fs::read_to_string("/proc/sys/fs/inotify/max_user_watches").ok()?.trim().parse().ok()
}

/// Allows as many open descriptors as the hard limit does; returns how many that is.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    Ok(limit.maximum.unwrap_or(u64::MAX))
}
