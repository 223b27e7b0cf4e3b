//! The differential test through a real mount: the kernel in between, its caches, and a server that is killed.

use std::cell::Cell;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use treefork::sys::Time;

use super::differential::{Forks, Site, run, tick};
use super::engine::{Dir, Engine};
use crate::common::{Fs, Treefork, mounts};

/// No episode takes this long, unless it hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// Forks as the command line makes them. A remount is `kill -9` of the server and a new one.
pub(super) struct Mounted;

impl Forks for Mounted {
    fn with(&self, site: &Site, start: Time, work: &mut dyn FnMut(&mut dyn Engine)) {
        let treefork = Treefork::with_store(site.dir.join("store"));
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
                std::fs::write("/proc/sys/vm/drop_caches", "2").expect("root may drop caches");
            }
        };
        let start = start.max(tick(&site.dir));
        work(&mut Dir::new(&fork, start, || treefork.restart("x")).forgetting(forget));
        drop(alive);
        drop(treefork);
        std::fs::remove_dir_all(site.dir.join("store")).expect("nothing is mounted in it any more");
    }
}

#[test]
fn a_mount_agrees_on_ext4() {
    run(Fs::Ext4, 11, &Mounted);
}

#[test]
fn a_mount_agrees_on_xfs() {
    run(Fs::Xfs, 12, &Mounted);
}

#[test]
fn a_mount_agrees_on_btrfs() {
    run(Fs::Btrfs, 13, &Mounted);
}
