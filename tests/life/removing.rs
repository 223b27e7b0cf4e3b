//! Removing a fork: gone for everybody when the command returns, though the kernel still forgets it behind its back.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::server::Sitter;
use super::{assert_nothing_left, exists, kill_server, listed, server_pid, small_base};
use crate::common::{Treefork, eventually, mounts};

/// Work that leaves the kernel something to forget.
const WORK: &str = "mkdir new; for n in $(seq 200); do echo $n > new/$n; done; echo changed > file; rm sub/deep";

/// Where the server closes the root of a mount that has ended.
const HELD_BACK: &str = "server.reap:hang@*";

fn count(treefork: &Treefork, what: &str) -> usize {
    fs::read_dir(format!("/proc/{}/{what}", server_pid(treefork).as_raw_nonzero())).expect("it runs").count()
}

/// Held back for ever, so that all that is seen here holds without it; and killed in the middle of it.
#[test]
fn it_is_gone_while_the_kernel_still_forgets() {
    let treefork = Treefork::new().with("TREEFORK_FAULT", HELD_BACK);
    let base = small_base(&treefork, "base");
    let other = treefork.create(&base, "other");
    let fork = treefork.create(&base, "a");
    treefork.env().sh(&fork, WORK);
    // Somebody is inside, and has a file open for writing, and one that he read.
    let script = "exec 3>> new/1; echo ready; read go; echo late >&3 2>/dev/null && echo writes || echo fails; \
                  mkdir late 2>/dev/null && echo makes || echo fails; read end";
    let mut sitter = treefork.env().command_in(&fork, "bash");
    sitter.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut sitter = Sitter::new(sitter.spawn().expect("bash"));
    assert_eq!(sitter.line(), "ready");
    treefork.ok(["remove", "--force", "a"]);
    assert_eq!(mounts::below(treefork.env().tree().path()).len(), 1, "only the other is mounted");
    assert!(!exists(fork.parent().expect("its directory")));
    assert_eq!(listed(&treefork, "pending"), Vec::<String>::new());
    sitter.say("go");
    assert_eq!([sitter.line(), sitter.line()], ["fails", "fails"]);
    // The files go, whoever holds the mount.
    eventually("the trash is empty", || listed(&treefork, "trash").is_empty());
    // The label is free, and what has it now shows nothing of the old one.
    for _ in 0..3 {
        let again = treefork.create(&base, "a");
        assert_eq!(treefork.env().sh(&again, "ls; cat file sub/deep; echo work > file"), "file\nsub\none\ntwo");
        treefork.ok(["remove", "a"]);
    }
    kill_server(&treefork);
    assert_eq!(treefork.ok(["path", "other"]).text(), other.to_str().expect("UTF-8"));
    assert_eq!(treefork.env().sh(&other, "cat file"), "one");
    assert_eq!(mounts::below(treefork.env().tree().path()).len(), 1);
    drop(sitter);
    treefork.ok(["remove", "other"]);
    assert_nothing_left(&treefork);
}

/// Whoever ends the server has waited for that, too.
#[test]
fn the_server_ends_when_all_is_forgotten() {
    let log = |treefork: &Treefork| treefork.env().join("points");
    let mut treefork = Treefork::new();
    let path = log(&treefork);
    treefork.set("TREEFORK_FAULT_LOG", path.to_str().expect("UTF-8"));
    let base = small_base(&treefork, "base");
    for label in ["a", "b", "c"] {
        let fork = treefork.create(&base, label);
        treefork.env().sh(&fork, WORK);
    }
    treefork.ok(["remove", "a", "b"]);
    treefork.ok(["serve", "--stop"]);
    let points = fs::read_to_string(log(&treefork)).expect("logged");
    assert_eq!(points.lines().filter(|point| *point == "server.reap").count(), 2);
    treefork.ok(["remove", "c"]);
    assert_nothing_left(&treefork);
}

/// One fork after the other comes and goes, while somebody works in another.
#[test]
fn beside_a_busy_sibling_nothing_piles_up() {
    const LINES: usize = 2000;
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let busy = treefork.create(&base, "busy");
    let mut worker = treefork.env().command_in(&busy, "bash");
    let script =
        "for n in $(seq $COUNT); do echo $n >> log; echo $n > f.$((n % 50)); mv f.$((n % 50)) g; done; cat log | wc -l";
    worker.args(["-c", script]).env("COUNT", LINES.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut worker = Sitter::new(worker.spawn().expect("bash"));
    let round = || {
        let fork = treefork.create(&base, "comes and goes");
        treefork.env().sh(&fork, WORK);
        treefork.ok(["remove", "comes and goes"]);
        assert_eq!(mounts::below(treefork.env().tree().path()).len(), 1);
    };
    (0..3).for_each(|_| round());
    eventually("it rests", || count(&treefork, "fd") < 40);
    let (descriptors, threads) = (count(&treefork, "fd"), count(&treefork, "task"));
    (0..30).for_each(|_| round());
    // A few are of the requests that come just now, and of the pool.
    eventually("descriptors are what they were", || count(&treefork, "fd") <= descriptors + 8);
    eventually("threads are what they were", || count(&treefork, "task") <= threads + 8);
    assert_eq!(worker.line(), LINES.to_string());
    treefork.ok(["remove", "--force", "busy"]);
    assert_nothing_left(&treefork);
}

/// Between the end of the mount and the move into the trash somebody has the fork mounted once more.
#[test]
fn a_mount_that_comes_in_the_middle_goes_as_well() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    treefork.create(&base, "a");
    treefork.create(&base, "other");
    let mut remove = treefork.command(["remove", "a"]);
    let mut remove = remove.env("TREEFORK_FAULT", "fork.destroyed:pause@1").spawn().expect("treefork");
    let pid = Pid::from_child(&remove);
    let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).expect("a child").expect("it stops");
    assert!(status.stopped());
    let fork = treefork.ok(["path", "a"]).text();
    assert_eq!(treefork.env().sh(Path::new(&fork), "cat file"), "one");
    kill_process(pid, Signal::CONT).expect("ours");
    assert!(remove.wait().expect("ours").success());
    assert_eq!(mounts::below(treefork.env().tree().path()).len(), 1);
    eventually("the trash is empty", || listed(&treefork, "trash").is_empty());
    treefork.create(&base, "a");
    treefork.ok(["remove", "a", "other"]);
    assert_nothing_left(&treefork);
}

/// Whoever stops all that is at work in a store may go on to take it away.
#[test]
fn a_store_that_is_stopped_has_nothing_left_to_delete() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let fork = treefork.create(&base, "a");
    treefork.env().sh(&fork, "mkdir new; for n in $(seq 3000); do : > new/$n; done");
    treefork.ok(["remove", "a"]);
    treefork.ok(["serve", "--stop"]);
    let left: Vec<_> = fs::read_dir(treefork.env().store().join("trash")).expect("there").collect();
    assert!(left.is_empty(), "{left:?}");
}
