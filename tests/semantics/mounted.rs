//! The differential test through a real mount: the kernel in between, its caches, and a server that is killed.

use std::cell::Cell;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use treefork::sys::Time;

use super::differential::{Forks, Site, run, tick};
use super::engine::{Dir, Engine};
use super::ops::Op;
use super::show::Outcome;
use crate::common::env::USER;
use crate::common::temp::chmod;
use crate::common::{Fs, Run, TempTree, Treefork, caches, mounts};

/// No episode takes this long, unless it hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// Forks as the command line makes them. A remount is `kill -9` of the server and a new one.
#[derive(Default)]
pub(super) struct Mounted {
    /// Variables for the server.
    variables: Vec<(&'static str, &'static str)>,
}

impl Mounted {
    /// Makes a fork and has `work` use the engine on it.
    fn on_fork(&self, site: &Site, start: Time, work: &mut dyn FnMut(Dir<'_>)) {
        let mut treefork = Treefork::with_store(site.dir.join("store"));
        self.variables.iter().for_each(|(name, value)| treefork.set(name, *value));
        let fork = treefork.create(&site.base, "x");
        let (alive, given_up) = channel::<()>();
        let watched = fork.clone();
        std::thread::spawn(move || {
            if given_up.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                eprintln!("hangs, cut off: {}", watched.display());
                mounts::abort_below(&watched);
            }
        });
        let dropped = Cell::new(false);
        // All caches of the machine are dropped, which costs everybody: once a fork is enough.
        let forget = || {
            if !dropped.replace(true) {
                caches::drop_all();
            }
        };
        let start = start.max(tick(&site.dir));
        work(Dir::new(&fork, start, || treefork.restart("x")).forgetting(forget));
        drop(alive);
        drop(treefork);
        std::fs::remove_dir_all(site.dir.join("store")).expect("nothing is mounted in it any more");
    }
}

impl Forks for Mounted {
    fn with(&self, site: &Site, start: Time, work: &mut dyn FnMut(&mut dyn Engine)) {
        self.on_fork(site, start, &mut |mut dir| work(&mut dir));
    }
}

/// The same, used by an ordinary user: what it may do and what it may not, and whom new objects belong to.
struct MountedForUser;

/// An engine that works as the ordinary user.
struct AsUser<'a>(Dir<'a>);

/// Sets user and group for file access of this thread alone; root's power over files goes with them.
fn become_for_files(id: u32) {
    // SAFETY: these calls take numbers only, and change nothing but the credentials of this thread (the raw calls:
    // none of the library's wrappers that carry them over to other threads). No groups: an empty list needs no pointer.
    unsafe {
        if id != 0 {
            libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>());
        }
        libc::syscall(libc::SYS_setfsgid, id);
        libc::syscall(libc::SYS_setfsuid, id);
    }
}

impl Engine for AsUser<'_> {
    fn apply(&mut self, op: &Op) -> Outcome {
        // Servers are restarted and caches dropped by root; and root looks at the result.
        let root = matches!(op, Op::Remount | Op::Forget);
        become_for_files(if root { 0 } else { USER });
        let outcome = self.0.apply(op);
        become_for_files(0);
        outcome
    }

    fn ino(&mut self, path: &str) -> u64 {
        self.0.ino(path)
    }
}

impl Forks for MountedForUser {
    fn with(&self, site: &Site, start: Time, work: &mut dyn FnMut(&mut dyn Engine)) {
        Mounted::default().on_fork(site, start, &mut |dir| work(&mut AsUser(dir.by_descriptor())));
    }

    fn plain<'a>(&self, dir: Dir<'a>) -> Box<dyn Engine + 'a> {
        Box::new(AsUser(dir.by_descriptor()))
    }

    /// Gives most of the base to the user.
    fn prepare(&self, base: &Path) {
        let give = "find . -depth -print0 | awk 'BEGIN { RS = ORS = \"\\0\" } NR % 6' | xargs -0 chown -h 1000:1000; chown 1000 .";
        std::process::Command::new("bash").args(["-ec", give]).current_dir(base).ok();
    }
}

#[test]
fn a_mount_agrees_for_an_ordinary_user() {
    let secret = TempTree::new();
    std::fs::write(secret.join("f"), "x").expect("ours");
    chmod(&secret.join("f"), 0o600);
    become_for_files(USER);
    let read = std::fs::read(secret.join("f"));
    become_for_files(0);
    assert!(read.is_err(), "not an ordinary user at all");
    run(Fs::Ext4, 14, &MountedForUser);
}

#[test]
fn a_mount_agrees_on_ext4() {
    run(Fs::Ext4, 11, &Mounted::default());
}

#[test]
fn a_mount_agrees_on_xfs() {
    run(Fs::Xfs, 12, &Mounted::default());
}

#[test]
fn a_mount_agrees_on_btrfs() {
    run(Fs::Btrfs, 13, &Mounted::default());
}

#[test]
fn a_mount_agrees_with_files_that_come_up_block_by_block() {
    run(Fs::Ext4, 15, &Mounted { variables: vec![("TREEFORK_LARGE", "1")] });
}

#[test]
fn a_mount_agrees_with_files_that_do_not_come_up_unasked() {
    let never = ("TREEFORK_FAULT", "blocks background:fail=5@*");
    run(Fs::Ext4, 16, &Mounted { variables: vec![("TREEFORK_LARGE", "1"), never] });
}
