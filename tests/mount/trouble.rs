//! Panics, servers that hang or die, mounts that somebody still holds.

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use super::raw::{RawMount, soon};
use crate::common::run::ends_within;
use crate::common::{Run, mounts};

#[test]
fn case_29_a_panic_fails_one_request_and_nothing_else() {
    let fill = |base: &std::path::Path| {
        fs::write(base.join("f"), "text").expect("write");
        fs::write(base.join("g"), "text").expect("write");
    };
    // A failure to read ahead is none: the kernel asks again.
    let rules = "fuse.read:panic@1;fuse.read:panic@2;fuse.write:panic@1;fuse.fsync:panic@1";
    let mut mount = RawMount::with(fill, |command| {
        command.env("TREEFORK_FAULT", rules).env("RUST_BACKTRACE", "0");
    });
    let failed = mount.env().command_in(&mount.path(), "cat").arg("f").fails(1);
    assert!(failed.complaint().contains("Input/output error"), "{}", failed.complaint());
    assert_eq!(mount.sh("cat f g"), "texttext");
    mount.sh("! (echo 1 > new) 2> /dev/null; echo 2 > new; ! sync new 2> /dev/null; sync new");
    assert_eq!(mount.sh("cat new"), "2");
    // The panics themselves are on standard error, before the counters.
    mount.signal(Signal::USR1);
    let counters = loop {
        let line = mount.line();
        if line.contains("requests: ") {
            break line;
        }
    };
    assert!(counters.contains("panic 4"), "{counters}");
}

#[test]
fn a_server_that_hangs_can_be_cut_off_from_outside() {
    let mut mount = RawMount::new(|base| fs::write(base.join("f"), "text").expect("write"));
    mount.signal(Signal::STOP);
    let mut waiting = mount.env().command_in(&mount.env().join("base"), "cat");
    let mut waiting = waiting.arg(mount.path().join("f")).stderr(Stdio::piped()).spawn().expect("cat");
    treefork::fuse::abort(mount.connection()).expect("there is such a connection");
    assert!(ends_within(&waiting, Duration::from_secs(60)), "still waits");
    assert!(!waiting.wait().expect("our own child").success());
    mount.signal(Signal::CONT);
    assert_eq!(mount.ended(), Some(0));
}

#[test]
fn the_end_does_not_wait_for_those_inside() {
    let mut mount = RawMount::new(|base| fs::write(base.join("f"), "text").expect("write"));
    // One sits in it with an open file, another holds a copy of the mount in a namespace of its own.
    let script = "exec 3< f; echo; read; ! read <&3; ! touch x";
    let mut inside = mount.env().command_in(&mount.path(), "bash");
    let mut inside = inside
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("bash");
    inside.stdout.take().expect("piped").read_exact(&mut [0]).expect("started");
    let mut copy = mount.env().command("unshare");
    copy.args(["-m", "--propagation", "private", "sh", "-c", "echo; read x; ! ls mnt"]);
    let mut copy = copy.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("unshare");
    copy.stdout.take().expect("piped").read_exact(&mut [0]).expect("started");

    mount.signal(Signal::TERM);
    assert_eq!(mount.ended(), Some(0));
    assert!(mounts::below(&mount.path()).is_empty());
    for mut child in [inside, copy] {
        drop(child.stdin.take());
        assert!(child.wait().expect("our own child").success());
    }
}

#[test]
fn a_killed_server_leaves_errors_and_no_one_waiting() {
    let mut mount = RawMount::new(|base| fs::write(base.join("f"), "text").expect("write"));
    mount.sh("cat f; echo kept > g");
    mount.signal(Signal::KILL);
    mount.ended();
    let failed = mount.env().command("ls").arg(mount.path()).fails(2);
    assert!(failed.complaint().contains("not connected"), "{}", failed.complaint());
    treefork::fuse::detach(&mount.path()).expect("root may");
    assert_eq!(fs::read_to_string(mount.upper().join("g")).expect("in the upper"), "kept\n");
}

#[test]
fn somebody_elses_mount_at_the_same_place_is_left_alone() {
    let mut mount = RawMount::new(|_| {});
    Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(mount.path()).ok();
    mount.signal(Signal::TERM);
    assert_eq!(mount.ended(), Some(0));
    let left = mounts::below(&mount.path());
    assert!(left.iter().any(|mount| mount.fstype == "tmpfs"), "{left:?}");
}

#[test]
fn slow_requests_leave_the_mount_free() {
    let mount = RawMount::new(|base| fs::write(base.join("f"), "text").expect("write"));
    // Eight at once, each with many; what is asked meanwhile is answered.
    let writers = "for i in 1 2 3 4 5 6 7 8; do dd if=/dev/zero of=w$i bs=64k count=40 oflag=dsync status=none & done";
    let script = format!("{writers}; cat f; ls > /dev/null; wait");
    assert_eq!(mount.sh(&script), "text");
    soon("all written", || mount.sh("cat w* | wc -c") == (8 * 40 * 65536).to_string());
}
