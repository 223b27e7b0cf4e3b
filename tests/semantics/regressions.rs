//! What the differential test once found, each as the shortest sequence that showed it; and sequences that were
//! suspected once. Each runs on a base that its first list makes.

use super::core::InProcess;
use super::differential::{Copies, check};
use super::ops::{Alloc, How, Move, Op, Put};
use crate::common::Fs;

const READ_WRITE: How = How::ReadWrite;

fn open(slot: usize, path: &'static str) -> Op {
    Op::Open { slot, path, how: READ_WRITE, create: false, excl: false, trunc: false }
}

fn file(path: &'static str) -> Op {
    Op::WriteAll { path, len: 5000, fill: 1 }
}

fn dir(path: &'static str) -> Op {
    Op::Mkdir { path, mode: 0o755 }
}

fn rename(from: &'static str, to: &'static str) -> Op {
    Op::Rename { from, to, how: Move::Plain }
}

/// Agrees with a plain copy on every file system.
fn agrees(base: &[Op], ops: &[Op]) {
    for fs in Fs::DISKS {
        check(fs, &InProcess::default(), base, ops);
    }
}

#[test]
fn a_named_sequence_runs_on_plain_copies() {
    check(Fs::Ext4, &Copies, &[file("a")], &[Op::Unlink { path: "a" }, Op::Stat { path: "a", follow: true }]);
}

#[test]
fn a_failing_xattr_change_leaves_no_trace() {
    let set = |name, put| Op::SetXattr { path: "a", name, len: 1, fill: 1, put };
    let remove = |name| Op::RemoveXattr { path: "a", name };
    let stat = Op::Stat { path: "a", follow: true };
    let base = [file("a"), Op::SetXattr { path: "a", name: "user.a", len: 3, fill: 7, put: Put::Any }];
    for change in [
        remove("user.b"),
        remove("odd.e"),
        set("odd.e", Put::Any),
        set("user.a", Put::Create),
        set("user.b", Put::Replace),
    ] {
        agrees(&base, &[change, stat]);
    }
    agrees(&base, &[Op::GetXattr { path: "a", name: "odd.e" }]);
}

#[test]
fn unlink_changes_ctime_of_the_other_name() {
    agrees(
        &[file("a"), Op::Link { from: "a", to: "b" }],
        &[Op::Unlink { path: "a" }, Op::Stat { path: "b", follow: true }],
    );
}

#[test]
fn a_directory_keeps_its_mtime_over_a_whiteout() {
    let base = [dir("d"), dir("d/b"), file("d/b/x"), file("c")];
    agrees(&base, &[Op::Unlink { path: "c" }, rename("d/b", "c")]);
}

#[test]
fn a_name_in_a_forgotten_directory_does_not_lead_a_write_astray() {
    let base = [dir("c"), dir("d"), file("c/f"), Op::Link { from: "c/f", to: "d/f" }];
    let stat = |path| Op::Stat { path, follow: true };
    let write = Op::Pwrite { slot: 0, off: 10, len: 100, fill: 9 };
    agrees(&base, &[stat("d/f"), open(0, "c/f"), Op::Forget, stat("d"), write, stat("d"), stat("c"), stat("d/f")]);
}

#[test]
fn a_name_in_a_forgotten_directory_does_not_lead_an_open_astray() {
    let base = [dir("c"), dir("d"), file("c/f")];
    let ops = [
        Op::Link { from: "c/f", to: "d/f" },
        open(0, "d/f"),
        Op::Forget,
        rename("c", "e"),
        Op::Forget,
        open(1, "d/f"),
        Op::ReadAll { path: "e/f" },
        Op::Pwrite { slot: 0, off: 10, len: 100, fill: 9 },
        Op::ReadAll { path: "e/f" },
    ];
    agrees(&base, &ops);
}

#[test]
fn an_open_file_is_its_other_name_after_unlink() {
    let base = [file("a"), Op::Link { from: "a", to: "b" }];
    for change in [
        Op::Fchmod { slot: 0, mode: 0 },
        Op::Pwrite { slot: 0, off: 7, len: 9000, fill: 5 },
        Op::Allocate { slot: 0, mode: Alloc::Punch, off: 0, len: 4096 },
    ] {
        agrees(
            &base,
            &[open(0, "a"), Op::Unlink { path: "a" }, change, Op::Fstat { slot: 0 }, Op::ReadAll { path: "b" }],
        );
    }
}

#[test]
fn an_open_directory_that_was_removed() {
    for removed in [Op::Rmdir { path: "d" }, rename("e", "d")] {
        let changes =
            [Op::Fchown { slot: 0, uid: 7, gid: 8 }, Op::Fchmod { slot: 0, mode: 0o700 }, Op::Fstat { slot: 0 }];
        let before = [dir("e"), Op::OpenDir { slot: 0, path: "d" }, removed];
        let ops: Vec<Op> = before.into_iter().chain(changes).collect();
        agrees(&[dir("d")], &ops);
        agrees(&[], &[&[dir("d")], &ops[..]].concat());
    }
}
