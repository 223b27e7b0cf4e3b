//! A run at a terminal, in an interactive shell: keys that interrupt and stop, job control on both sides.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{BOTH, Site};
use crate::common::Run;

/// What the shell at the terminal prompts with, at the start of a line. A shell in a fork puts something in front: what it
/// prompts with is no sign that the outer one reads what is typed.
const PROMPT: &str = "\nOUT> ";

/// A shell at a terminal.
struct Terminal {
    keys: File,
    shell: Child,
    seen: String,
}

impl Terminal {
    fn new(site: &Site) -> Self {
        let (mut master, mut slave) = (-1, -1);
        let (none, window) = (std::ptr::null_mut(), std::ptr::null());
        // SAFETY: both numbers are valid for writing, and neither name, settings nor size is asked for or given.
        let made = unsafe { libc::openpty(&mut master, &mut slave, none, window, std::ptr::null()) };
        assert_eq!(made, 0, "no terminal: {}", std::io::Error::last_os_error());
        // SAFETY: openpty has just made both for us.
        let (keys, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        rustix::io::fcntl_setfd(&keys, rustix::io::FdFlags::CLOEXEC).expect("open");
        let mut shell = site.command("env");
        shell.args(["PS1=OUT> ", "TERM=dumb", "INPUTRC=/dev/null", "SHELL=/bin/bash"]);
        shell.args(["bash", "--norc", "--noprofile", "-i"]);
        let copy = || slave.try_clone().expect("open");
        shell.stdin(copy()).stdout(copy()).stderr(copy());
        // SAFETY: setsid and ioctl may be called between fork and exec; 0 is the terminal there.
        unsafe {
            shell.pre_exec(|| {
                if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let shell = shell.spawn().expect("starts");
        let mut terminal = Self { keys, shell, seen: String::new() };
        // The first one of the terminal has no line before it.
        terminal.until(PROMPT.trim_start());
        terminal
    }

    fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("a terminal takes keys");
    }

    /// Waits until the screen shows this; what it showed up to and with it.
    #[track_caller]
    fn until(&mut self, text: &str) -> String {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(at) = self.seen.find(text) {
                let rest = self.seen.split_off(at + text.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
            let ready = poll(&mut [PollFd::new(&self.keys, PollFlags::IN)], Some(&left)).expect("polls");
            assert!(ready > 0, "{text:?} does not come; the screen shows {:?}", self.seen);
            let mut some = [0; 4096];
            let n = self.keys.read(&mut some).unwrap_or(0);
            assert!(n > 0, "the terminal is gone before {text:?}; it showed {:?}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&some[..n]));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Hangs up on everybody in the session.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

#[test]
fn keys_reach_the_command() {
    for who in BOTH {
        let site = Site::new(who);
        let binary = site.binary();
        let run = format!("{} run -- bash -c", binary.display());
        let mut terminal = Terminal::new(&site);
        // The marks are put together by the shell, so that the echo of what is typed is not taken for them.
        terminal.types(&format!("{run} 'echo be\"\"gun; sleep 1000'\n"));
        terminal.until("begun");
        terminal.types("\x03");
        terminal.until(PROMPT);
        terminal.types("echo status $?\n");
        terminal.until("status 130");
        terminal.until(PROMPT);
        terminal.types(&format!("{run} 'echo be\"\"gun; read line; echo \"got $line\"'\n"));
        terminal.until("begun");
        terminal.types("\x1a");
        terminal.until("Stopped");
        terminal.until(PROMPT);
        terminal.types("fg\n");
        terminal.until("got $line");
        terminal.types("a line\n");
        terminal.until("got a line");
        terminal.until(PROMPT);
    }
}

/// What is pushed into the input of a terminal is read by whoever reads next: the caller's shell, outside of the fork.
#[test]
fn a_command_cannot_type_for_its_caller() {
    for who in BOTH {
        let site = Site::new(who);
        let mut terminal = Terminal::new(&site);
        let script = "my $key = \"x\"; print ioctl(STDIN, 0x5412, $key) ? \"ty\" : $! + 0 == 1 ? \"re\" : \"un\", \"ped fused known\\n\"";
        terminal.types(&format!("{} run -- perl -e '{script}'\n", site.binary().display()));
        terminal.until("\nreped fused known");
        terminal.until(PROMPT);
    }
}

#[test]
fn a_shell_in_a_fork_has_job_control_of_its_own() {
    let site = Site::new(super::Who::Root);
    site.treefork(["create", "--label", "inner"]).ok();
    let mut terminal = Terminal::new(&site);
    terminal.types(&format!("{} shell inner\n", site.binary().display()));
    terminal.until("(inner) ");
    terminal.types("bash -c 'echo be\"\"gun; sleep 1000'\n");
    terminal.until("begun");
    terminal.types("\x1a");
    terminal.until("Stopped");
    terminal.until("(inner) ");
    terminal.types("kill -9 %1; wait; suspend\n");
    terminal.until(PROMPT);
    terminal.types("fg\n");
    terminal.until("(inner) ");
    terminal.types("echo $TREEFORK_LABEL-$((40 + 2)); exit 3\n");
    terminal.until("inner-42");
    terminal.until(PROMPT);
    // The outer shell has its terminal back.
    terminal.types("echo status $?\n");
    terminal.until("status 3");
}
