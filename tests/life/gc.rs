//! What gc decides, and why: each reason to keep, and what becomes of the rest.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::{assert_nothing_left, json, listed, small_base};
use crate::common::{Look, Run, Treefork, assert_same};

/// Makes a fork whose owner ends at once.
pub(super) fn orphan(treefork: &Treefork, base: &Path, label: &str, more: &[&str]) -> String {
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
    treefork.fails(1, ["restore", "nothing of this name"]);
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

/// An entry in a repository that outlived its fork goes; nobody else's does.
#[test]
fn entries_of_our_work_trees_that_are_gone() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let base = env.dir("base");
    env.sh(&base, "git init -q; echo a > a; git add a; git commit -qm one");
    // One that is on a disk that is away, to git's eyes as gone as the other.
    env.sh(&base, "git worktree add -q --detach ../away; mv ../away ../unplugged");
    let before = Look::default().no_mtime().without("worktrees/away").at(&base.join(".git"));
    let make = |label: &str| {
        let mut create = treefork.command(["create", "--strategy", "worktree", "--label", label]);
        PathBuf::from(create.arg(&base).ok().text())
    };
    let (lost, live) = (make("lost"), make("live"));
    std::fs::remove_dir_all(lost.parent().expect("in the store")).expect("ours");
    let entries = || env.git(&base, ["worktree", "list", "--porcelain"]).matches("worktree ").count();
    assert_eq!(entries(), 4);
    let said = treefork.ok(["gc", "--dry-run"]).text();
    assert!(said.contains("a fork that is gone"), "{said}");
    assert_eq!(entries(), 4, "a dry run");
    let said = treefork.ok(["gc"]).text();
    assert!(said.contains(lost.to_str().expect("text")) && said.contains("deleted"), "{said}");
    assert_eq!(entries(), 3);
    env.git(&live, ["status"]);
    treefork.ok(["remove", "live"]);
    assert_eq!(entries(), 2, "the one that is away is none of ours");
    env.sh(&base, "mv ../unplugged ../away; git -C ../away status");
    assert_same(
        &before,
        &Look::default().no_mtime().without("worktrees/away").at(&base.join(".git")),
        "the repository",
    );
}

#[test]
fn what_waits_in_the_trash_is_not_called_kept() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let path = orphan(&treefork, &base, "old", &[]);
    std::fs::write(Path::new(&path).join("work"), "x").expect("writable");
    treefork.ok(["gc", "--min-age", "0s", "--unmerged"]);
    let all = decided(&treefork, &[]);
    assert_decided(&all, "old", "waiting", "in the trash for ");
    assert_decided(&all, "old", "waiting", ", less than 7d");
}
