//! Where the store may be, and what is done with one that is not as it should be.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::{json, listed, small_base};
use crate::common::{Image, Run, Treefork};

#[test]
fn it_is_private_and_versioned() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    treefork.create(&base, "a");
    let store = treefork.env().store();
    for path in [store.clone(), store.join("forks"), store.join("server.sock")] {
        let mode = fs::metadata(&path).expect("there").permissions().mode() & 0o7777;
        assert_eq!(mode, 0o700, "{path:?}");
    }
    fs::write(store.join("version"), "treefork store 999\n").expect("writable");
    let done = treefork.fails(1, ["list"]);
    assert!(done.complaint().contains("format 999"), "{}", done.complaint());
    assert_eq!(listed(&treefork, "forks").len(), 1, "nothing is touched");
    fs::write(store.join("version"), "treefork store 1\n").expect("writable");
    treefork.ok(["remove", "a"]);
}

#[test]
fn it_lies_in_no_git_work_tree() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let tree = treefork.env().dir("tree");
    treefork.env().git(&tree, ["init", "-q"]);
    let store = tree.join("below/store");
    let (store, base) = (store.to_str().expect("UTF-8"), base.to_str().expect("UTF-8"));
    let done = treefork.fails(2, ["--store", store, "create", base]);
    assert!(done.complaint().contains("git work tree"), "{}", done.complaint());
    assert!(!super::exists(&tree.join("below/store/forks/x")), "nothing made");
}

/// A record of a newer treefork, a damaged one, one that was cut short: named, kept, nothing deleted.
#[test]
fn records_that_cannot_be_read_are_kept() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let mut originals = Vec::new();
    for label in ["newer", "cut", "empty", "good"] {
        treefork.create(&base, label);
        let id = json(&treefork, &["show", label])["id"].as_str().expect("an id").to_owned();
        let path = treefork.env().store().join("forks").join(&id).join("fork.json");
        let text = fs::read_to_string(&path).expect("readable");
        match label {
            "newer" => fs::write(&path, text.replace("\"version\": 1", "\"version\": 99")).expect("writable"),
            "cut" => fs::write(&path, &text[..text.len() / 2]).expect("writable"),
            "empty" => fs::write(&path, "").expect("writable"),
            _ => {}
        }
        originals.push((id, path, text));
    }
    let done = treefork.fails(1, ["list"]);
    for (id, ..) in &originals[..3] {
        assert!(done.complaint().contains(id.as_str()), "{id} is not named:\n{}", done.complaint());
    }
    assert!(done.complaint().contains("version 99"), "{}", done.complaint());
    assert!(done.text().contains("good"), "{}", done.text());
    treefork.fails(1, ["show", &originals[1].0]);
    treefork.fails(1, ["doctor"]);
    treefork.ok(["gc", "--min-age", "0s", "--unmerged"]);
    treefork.ok(["show", "good"]);
    assert_eq!(listed(&treefork, "forks").len(), 4, "nothing is deleted");
    // Only on the express wish, by the whole id.
    treefork.fails(1, ["remove", &originals[2].0]);
    treefork.fails(1, ["remove", "--force", &originals[2].0[..6]]);
    treefork.ok(["remove", "--force", &originals[2].0]);
    assert_eq!(listed(&treefork, "forks").len(), 3);
    for (_, path, text) in originals.iter().filter(|(id, ..)| *id != originals[2].0) {
        fs::write(path, text).expect("writable");
    }
    treefork.ok(["remove", "newer", "cut", "good"]);
    super::assert_nothing_left(&treefork);
}

/// A base that vanishes, or is replaced, while forks live.
#[test]
fn a_base_that_is_not_there_any_more() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    treefork.create(&base, "a");
    treefork.ok(["serve", "--stop"]);
    let aside = treefork.env().join("aside");
    fs::rename(&base, &aside).expect("moved");
    let says = |wanted: &str| {
        let done = treefork.fails(1, ["path", "a"]);
        assert!(done.complaint().contains(wanted), "{}", done.complaint());
        assert!(treefork.ok(["list"]).text().contains("no base"));
        let problem = json(&treefork, &["show", "a"])["base_problem"].as_str().expect("a problem").to_owned();
        assert!(problem.contains(wanted), "{problem}");
        assert!(!treefork.ok(["gc", "--min-age", "0s"]).text().contains("removed"));
        assert_eq!(listed(&treefork, "forks").len(), 1, "kept");
    };
    says("is gone");
    fs::write(&base, "a file").expect("written");
    says("not a directory");
    fs::remove_file(&base).expect("removed");
    fs::create_dir(&base).expect("made");
    says("another directory");
    fs::remove_dir(&base).expect("removed");
    std::os::unix::fs::symlink(&aside, &base).expect("made");
    says("not a directory");
    fs::remove_file(&base).expect("removed");
    fs::rename(&aside, &base).expect("back");
    treefork.ok(["path", "a"]);
    treefork.ok(["remove", "a"]);
    super::assert_nothing_left(&treefork);
}

#[test]
fn a_clock_that_was_set_back_keeps() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    treefork.ok(["create", base.to_str().expect("UTF-8"), "--label", "a"]);
    let path = treefork.env().store().join("forks").join(&listed(&treefork, "forks")[0]).join("fork.json");
    let mut record: serde_json::Value = serde_json::from_slice(&fs::read(&path).expect("readable")).expect("JSON");
    record["record"]["created_at"]["sec"] = 9_999_999_999_i64.into();
    record["record"]["owner"]["start"] = 1.into();
    fs::write(&path, record.to_string()).expect("writable");
    let shown = json(&treefork, &["show", "a"]);
    assert_eq!((shown["age_seconds"].as_u64(), shown["owner_alive"].as_bool()), (Some(0), Some(false)));
    assert!(treefork.ok(["gc", "--min-age", "1s"]).text().contains("less than 1s"));
    treefork.ok(["remove", "a"]);
}

#[test]
fn one_that_is_read_only_can_be_looked_at() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let image = Image::ext4(16);
    let mnt = image.path();
    let store = mnt.join("store");
    let store = store.to_str().expect("UTF-8");
    treefork.ok(["--store", store, "create", base.to_str().expect("UTF-8"), "--label", "a"]);
    treefork.ok(["--store", store, "serve", "--stop"]);
    treefork.env().command("mount").args(["-o", "remount,ro"]).arg(&mnt).ok();
    assert!(treefork.ok(["--store", store, "list"]).text().contains("stale"));
    treefork.ok(["--store", store, "show", "a"]);
    for args in [&["create", "."][..], &["remove", "a"], &["path", "a"], &["gc"]] {
        let args: Vec<&str> = ["--store", store].into_iter().chain(args.iter().copied()).collect();
        let done = treefork.command(&args).done();
        assert!(!done.status.success(), "{args:?}");
        assert_eq!(done.complaint().matches("treefork: ").count(), 1, "{}", done.complaint());
    }
    treefork.env().command("mount").args(["-o", "remount,rw"]).arg(&mnt).ok();
    treefork.ok(["--store", store, "remove", "a"]);
    treefork.ok(["--store", store, "serve", "--stop"]);
}

/// A socket's address has room for 108 bytes, a store's path for 4,096.
#[test]
fn at_the_end_of_a_long_path() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let store = treefork.env().join(["x".repeat(200), "y".repeat(200), "sto re\\040".to_owned()].join("/"));
    let text = store.to_str().expect("UTF-8");
    let fork = treefork.ok(["--store", text, "create", base.to_str().expect("UTF-8"), "--label", "a"]).text();
    assert_eq!(treefork.env().sh(std::path::Path::new(&fork), "cat file"), "one");
    assert!(treefork.ok(["--store", text, "list"]).text().contains("live"));
    treefork.ok(["--store", text, "remove", "a"]);
    treefork.ok(["--store", text, "serve", "--stop"]);
}

/// Case 69: what is mounted in the base shows in the fork, and a write there stays in the fork.
#[test]
fn a_mount_in_the_base_shows() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let within = base.join("within");
    fs::create_dir(&within).expect("made");
    treefork.env().command("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&within).ok();
    fs::write(within.join("there"), "x\n").expect("written");
    let fork = treefork.create(&base, "a");
    assert_eq!(treefork.env().sh(&fork, "cat within/there"), "x");
    treefork
        .env()
        .sh(&fork, "echo changed > within/there; echo new > within/new; mv within/new within/other; ls within");
    assert_eq!(treefork.env().sh(&fork, "cat within/there within/other"), "changed\nnew");
    assert_eq!(treefork.env().sh(&within, "cat there; ls"), "x\nthere");
    treefork.ok(["remove", "a"]);
    treefork.env().command("umount").arg(&within).ok();
}

/// Times of a clock that was wrong, or of a disk that failed: no command fails for them.
#[test]
fn times_that_cannot_be_are_shown_as_what_can() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let fork = treefork.create(&base, "a");
    let path = fork.parent().expect("the fork's directory").join("fork.json");
    for (sec, nsec) in [(i64::MAX, u32::MAX), (i64::MIN, 0), (253_402_300_800, 0)] {
        let mut record: serde_json::Value =
            serde_json::from_slice(&fs::read(&path).expect("there")).expect("a record is JSON");
        for field in ["created_at", "state_since"] {
            record["record"][field] = serde_json::json!({ "sec": sec, "nsec": nsec });
        }
        fs::write(&path, record.to_string()).expect("writable");
        for args in [["list", "--json"].as_slice(), &["list"], &["show", "a"], &["gc", "--dry-run"], &["doctor"]] {
            let done = treefork.command(args).done();
            assert!(done.status.success() && !done.complaint().contains("panicked"), "{args:?}: {}", done.complaint());
        }
        let shown = treefork.ok(["show", "a"]).text();
        assert!(shown.contains("9999-12-31") || shown.contains("1970-01-01"), "{shown}");
    }
    treefork.ok(["remove", "--force", "a"]);
}
