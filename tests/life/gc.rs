//! What gc decides, and why: each reason to keep, and what becomes of the rest.

use std::path::Path;
use std::process::Stdio;

use super::{assert_nothing_left, json, listed, small_base};
use crate::common::{Run, Treefork};

/// Makes a fork whose owner ends at once.
fn orphan(treefork: &Treefork, base: &Path, label: &str, more: &[&str]) -> String {
    let script = r#""$0" create "$@"; exit"#;
    let mut command = treefork.env().command("bash");
    command.args(["-c", script, crate::common::cli::BINARY]).arg(base).args(["--label", label]).args(more);
    command.ok().text()
}

/// The fate and the reason of each fork, by label.
fn decided(treefork: &Treefork, args: &[&str]) -> Vec<(String, String, String)> {
    let args: Vec<&str> = ["gc"].into_iter().chain(args.iter().copied()).collect();
    let list = json(treefork, &args);
    let text = |value: &serde_json::Value| value.as_str().unwrap_or("-").to_owned();
    let decision = |d: &serde_json::Value| (text(&d["label"]), text(&d["fate"]), text(&d["reason"]));
    list.as_array().expect("a list").iter().map(decision).collect()
}

#[track_caller]
fn assert_decided(all: &[(String, String, String)], label: &str, fate: &str, why: &str) {
    let (_, is, reason) = all.iter().find(|(l, ..)| l == label).unwrap_or_else(|| panic!("{label} is not in {all:?}"));
    assert!(is == fate && reason.contains(why), "{label}: {is}, {reason}");
}

/// Cases 72 and 75, and the rest of the reasons.
#[test]
fn every_reason_to_keep() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let me = std::process::id().to_string();
    orphan(&treefork, &base, "clean", &[]);
    orphan(&treefork, &base, "kept", &["--keep"]);
    orphan(&treefork, &base, "owned", &["--owner", &me]);
    let changed = orphan(&treefork, &base, "changed", &[]);
    treefork.env().sh(Path::new(&changed), "echo work > work");
    let used = orphan(&treefork, &base, "used", &[]);
    let mut user = treefork.env().command_in(Path::new(&used), "cat");
    let mut user = user.stdin(Stdio::piped()).spawn().expect("cat");
    let file = orphan(&treefork, &base, "open", &[]);
    let opened = std::fs::File::open(Path::new(&file).join("file")).expect("readable");
    // In one go: the command would keep the file open in this process, too.
    let mut holder = treefork.env().command("sleep").arg("1000").stdin(opened).spawn().expect("sleep");

    let all = decided(&treefork, &["--dry-run", "--min-age", "0s"]);
    let young = decided(&treefork, &["--min-age", "1h"]);
    // Only looked at so far.
    assert_eq!(listed(&treefork, "forks").len(), 6);
    assert_decided(&young, "clean", "kept", "less than 1h");
    assert_decided(&all, "clean", "removed", "no changes");
    assert_decided(&all, "kept", "kept", "to be kept");
    assert_decided(&all, "owned", "kept", &format!("process {me}, is alive"));
    assert_decided(&all, "changed", "kept", "never merged");
    assert_decided(&all, "used", "kept", "in use by cat");
    assert_decided(&all, "open", "kept", "in use by sleep");
    decided(&treefork, &["--min-age", "0s"]);
    assert_eq!(listed(&treefork, "forks").len(), 5, "the clean one is gone");
    for child in [&mut user, &mut holder] {
        child.kill().expect("our child");
        child.wait().expect("our child");
    }
    let all = decided(&treefork, &["--min-age", "0s", "--unmerged"]);
    assert_decided(&all, "used", "removed", "no changes");
    assert_decided(&all, "changed", "trashed", "never merged");
    treefork.ok(["remove", "kept", "owned"]);
    assert_nothing_left(&treefork);
}

#[test]
fn what_was_trashed_can_be_restored_for_a_while() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let fork = orphan(&treefork, &base, "a", &[]);
    treefork.env().sh(Path::new(&fork), "echo work > work; rm file");
    let id = json(&treefork, &["show", "a"])["id"].as_str().expect("an id").to_owned();
    decided(&treefork, &["--min-age", "0s", "--unmerged"]);
    treefork.fails(1, ["show", "a"]);
    assert_eq!(listed(&treefork, "trash"), [id.as_str()]);
    assert_nothing_left(&treefork);
    // Its label is free meanwhile; a fork that has it now is in the way of the old one.
    treefork.create(&base, "a");
    let done = treefork.fails(1, ["restore", &id]);
    assert!(done.complaint().contains("\"a\""), "{}", done.complaint());
    treefork.ok(["remove", "a"]);
    treefork.fails(1, ["restore", "b"]);
    assert_eq!(treefork.ok(["restore", "a"]).text(), fork);
    assert_eq!(treefork.env().sh(Path::new(&fork), "ls; cat work"), "sub\nwork\nwork");
    assert_eq!(json(&treefork, &["show", "a"])["state"], "live");
    decided(&treefork, &["--min-age", "0s", "--unmerged"]);
    decided(&treefork, &["--trash-age", "1h"]);
    assert_eq!(listed(&treefork, "trash"), [id.as_str()], "not old enough");
    let all = decided(&treefork, &["--trash-age", "0s"]);
    assert_decided(&all, "a", "deleted", "in the trash");
    assert_eq!(listed(&treefork, "trash"), Vec::<String>::new());
}

/// Case 75: the owner's number belongs to another process by now.
#[test]
fn a_number_that_was_used_again_is_no_owner() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let me = std::process::id().to_string();
    treefork.ok(["create", base.to_str().expect("UTF-8"), "--label", "a", "--owner", &me]);
    assert_eq!(json(&treefork, &["show", "a"])["owner_alive"], true);
    let path = treefork.env().store().join("forks").join(&listed(&treefork, "forks")[0]).join("fork.json");
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).expect("there")).expect("JSON");
    let start = record["record"]["owner"]["start"].as_u64().expect("a number");
    record["record"]["owner"]["start"] = (start + 1).into();
    std::fs::write(&path, record.to_string()).expect("writable");
    assert_eq!(json(&treefork, &["show", "a"])["owner_alive"], false);
    let all = decided(&treefork, &["--min-age", "0s"]);
    assert_decided(&all, "a", "removed", "its owner is gone");
    assert_nothing_left(&treefork);
}

/// Case 73: nothing of ours shows in the fork.
#[test]
fn our_marks_are_not_in_the_fork() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    treefork.env().git(&base, ["init", "-q"]);
    treefork.env().git(&base, ["add", "-A"]);
    treefork.env().git(&base, ["commit", "-qm", "one"]);
    let fork = treefork.create(&base, "a");
    assert_eq!(treefork.env().git(&fork, ["status", "--porcelain", "--ignored"]), "");
    assert_eq!(treefork.env().sh(&fork, "ls -A"), treefork.env().sh(&base, "ls -A"));
    treefork.ok(["remove", "a"]);
}
