//! Commands that are killed at each recorded transition: what the next command finds is a fork or none, nothing between.

use std::fs;
use std::os::unix::process::ExitStatusExt;

use super::{assert_nothing_left, json, listed, small_base};
use crate::common::{Run, Treefork};

/// The names of the points that a command passes, in order.
fn points(treefork: &Treefork, args: &[&str]) -> Vec<String> {
    let log = treefork.env().join("points");
    let _ = fs::remove_file(&log);
    treefork.command(args).env("TREEFORK_FAULT_LOG", &log).ok();
    let text = fs::read_to_string(&log).expect("the points are logged");
    text.lines().filter(|line| line.starts_with("fork.") || line.starts_with("durable.")).map(str::to_owned).collect()
}

/// Kills the command at its `n`-th point (from 1) of those in the log.
#[track_caller]
fn kill_at(treefork: &Treefork, args: &[&str], name: &str, n: usize) {
    let rule = format!("{name}:kill@{n}");
    let done = treefork.command(args).env("TREEFORK_FAULT", &rule).done();
    assert_eq!(done.status.signal(), Some(9), "not killed at {rule}: {}", done.complaint());
}

/// Each point of the list with its count among those of the same name.
fn numbered(points: &[String]) -> Vec<(String, usize)> {
    let count = |at: usize| points[..=at].iter().filter(|name| **name == points[at]).count();
    points.iter().enumerate().map(|(at, name)| (name.clone(), count(at))).collect()
}

#[test]
fn create_killed_at_every_step() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let base = base.to_str().expect("UTF-8").to_owned();
    // A fork whose server runs throughout, so that the steps are those of the command alone.
    treefork.ok(["create", &base, "--label", "other"]);
    let create = ["create", base.as_str(), "--label", "a"];
    let points = points(&treefork, &create);
    assert!(points.iter().filter(|name| name.starts_with("fork.")).count() >= 4, "{points:?}");
    treefork.ok(["remove", "a"]);
    println!("create is killed at {} points", points.len());
    for (name, n) in numbered(&points) {
        kill_at(&treefork, &create, &name, n);
        let complete = name == "fork.live" || last_of(&points, &name, n, "durable.sync_dir");
        // Any next command brings order.
        treefork.ok(["gc", "--min-age", "1h"]);
        let labels: Vec<String> = labels(&treefork);
        if labels.contains(&"a".to_owned()) {
            assert_eq!(json(&treefork, &["show", "a"])["state"], "live", "killed at {name} {n}");
            assert_eq!(json(&treefork, &["show", "a"])["mount"], "alive", "killed at {name} {n}");
            treefork.ok(["remove", "a"]);
        } else {
            assert!(!complete, "killed at {name} {n}: it was complete");
        }
        assert_eq!(listed(&treefork, "forks").len(), 1, "killed at {name} {n}");
        assert_eq!(listed(&treefork, "pending"), Vec::<String>::new(), "killed at {name} {n}");
        assert_eq!(crate::common::mounts::below(treefork.env().tree().path()).len(), 1, "killed at {name} {n}");
        // The label is free again.
        treefork.ok(create);
        treefork.ok(["remove", "a"]);
    }
    treefork.ok(["remove", "other"]);
    assert_nothing_left(&treefork);
}

/// Whether this is the last point of that name and it is of the kind after which the last record is in place.
fn last_of(points: &[String], name: &str, n: usize, kind: &str) -> bool {
    name == kind && points.iter().filter(|point| *point == name).count() == n
}

#[test]
fn remove_killed_at_every_step() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let base = base.to_str().expect("UTF-8").to_owned();
    treefork.ok(["create", &base, "--label", "other"]);
    let create = ["create", base.as_str(), "--label", "a"];
    treefork.ok(create);
    let points = points(&treefork, &["remove", "a"]);
    assert!(points.iter().filter(|name| name.starts_with("fork.")).count() >= 3, "{points:?}");
    println!("remove is killed at {} points", points.len());
    for (name, n) in numbered(&points) {
        let fork = treefork.ok(create).text();
        treefork.env().sh(std::path::Path::new(&fork), "echo work > work");
        kill_at(&treefork, &["remove", "a"], &name, n);
        treefork.ok(["gc", "--min-age", "1h"]);
        // Before it is in the trash it stays, with its work; after that it is gone.
        if labels(&treefork).contains(&"a".to_owned()) {
            let path = treefork.ok(["path", "a"]).text();
            assert_eq!(treefork.env().sh(std::path::Path::new(&path), "cat work"), "work", "killed at {name} {n}");
            treefork.ok(["remove", "a"]);
        }
        assert_eq!(listed(&treefork, "forks").len(), 1, "killed at {name} {n}");
        assert_eq!(listed(&treefork, "pending"), Vec::<String>::new(), "killed at {name} {n}");
        assert_trash_empties(&treefork);
        assert_eq!(crate::common::mounts::below(treefork.env().tree().path()).len(), 1, "killed at {name} {n}");
    }
    treefork.ok(["remove", "other"]);
    assert_nothing_left(&treefork);
}

/// Makes a fork with work in it, whose owner ends at once.
fn orphan(treefork: &Treefork, base: &str) {
    let create = r#""$0" create "$1" --label a; exit"#;
    let fork = treefork.env().command("bash").args(["-c", create, crate::common::cli::BINARY, base]).ok().text();
    treefork.env().sh(std::path::Path::new(&fork), "echo work > work");
}

/// Wherever gc was killed, the work of the fork is in the fork or in the trash, and comes back.
#[test]
fn gc_and_restore_killed_at_every_step() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let base = base.to_str().expect("UTF-8").to_owned();
    let reap = ["gc", "--min-age", "0s", "--unmerged"];
    // One whose server runs throughout, and that gc keeps.
    treefork.ok(["create", &base, "--label", "other", "--keep"]);
    orphan(&treefork, &base);
    let there = numbered(&points(&treefork, &reap));
    let back = numbered(&points(&treefork, &["restore", "a"]));
    assert!(there.len() >= 3 && back.len() >= 3, "{there:?} {back:?}");
    println!("gc is killed at {} points, restore at {}", there.len(), back.len());
    let settled = |at: &str| {
        treefork.ok(["gc", "--min-age", "1h"]);
        if !labels(&treefork).contains(&"a".to_owned()) {
            treefork.ok(["restore", "a"]);
        }
        let path = treefork.ok(["path", "a"]).text();
        assert_eq!(treefork.env().sh(std::path::Path::new(&path), "cat work"), "work", "killed at {at}");
        assert_eq!(listed(&treefork, "forks").len(), 2, "killed at {at}");
        assert_eq!(listed(&treefork, "pending"), Vec::<String>::new(), "killed at {at}");
        assert_eq!(crate::common::mounts::below(treefork.env().tree().path()).len(), 2, "killed at {at}");
    };
    for (name, n) in there {
        kill_at(&treefork, &reap, &name, n);
        settled(&format!("{name} {n} of gc"));
    }
    for (name, n) in back {
        treefork.ok(reap);
        kill_at(&treefork, &["restore", "a"], &name, n);
        settled(&format!("{name} {n} of restore"));
    }
    treefork.ok(["remove", "a", "other"]);
    assert_nothing_left(&treefork);
}

/// A power cut may take the marks of what is pending; the records say it too.
#[test]
fn marks_that_are_lost() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let base = base.to_str().expect("UTF-8").to_owned();
    let stop_and_forget = || {
        treefork.ok(["serve", "--stop"]);
        for mark in listed(&treefork, "pending") {
            fs::remove_file(treefork.env().store().join("pending").join(mark)).expect("ours");
        }
    };
    let create = ["create", base.as_str(), "--label", "a"];
    kill_at(&treefork, &create, "fork.made", 1);
    stop_and_forget();
    treefork.ok(create);
    treefork.env().sh(treefork.ok(["path", "a"]).text().as_ref(), "echo work > work");
    kill_at(&treefork, &["remove", "a"], "fork.destroyed", 1);
    stop_and_forget();
    assert_eq!(treefork.env().sh(treefork.ok(["path", "a"]).text().as_ref(), "cat work"), "work");
    kill_at(&treefork, &["remove", "a"], "fork.trashed", 1);
    stop_and_forget();
    treefork.ok(create);
    treefork.ok(["remove", "a"]);
    orphan(&treefork, &base);
    treefork.ok(["gc", "--min-age", "0s", "--unmerged"]);
    kill_at(&treefork, &["restore", "a"], "durable.sync_dir", 2);
    stop_and_forget();
    treefork.ok(["gc", "--min-age", "1h"]);
    let path = treefork.command(["path", "a"]).done();
    let path = if path.code() == 0 { path.text() } else { treefork.ok(["restore", "a"]).text() };
    assert_eq!(treefork.env().sh(path.as_ref(), "cat work"), "work");
    treefork.ok(["remove", "a"]);
    assert_nothing_left(&treefork);
}

/// A step that fails undoes what came before it.
#[test]
fn create_that_fails_at_every_step() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let base = base.to_str().expect("UTF-8").to_owned();
    treefork.ok(["create", &base, "--label", "other"]);
    let create = ["create", base.as_str(), "--label", "a"];
    let points = points(&treefork, &create);
    treefork.ok(["remove", "a"]);
    for (name, n) in numbered(&points) {
        let rule = format!("{name}:fail=28@{n}");
        let done = treefork.command(create).env("TREEFORK_FAULT", &rule).done();
        assert_eq!(done.code(), 1, "{rule}: {}", done.complaint());
        assert!(done.complaint().contains("No space left"), "{rule}: {}", done.complaint());
        assert_eq!(listed(&treefork, "forks").len(), 1, "{rule}");
        assert_eq!(listed(&treefork, "pending"), Vec::<String>::new(), "{rule}");
        assert_eq!(crate::common::mounts::below(treefork.env().tree().path()).len(), 1, "{rule}");
    }
    treefork.ok(["remove", "other"]);
    assert_nothing_left(&treefork);
}

/// What waits to be deleted is deleted: by the process that `remove` left behind, or by this one.
fn assert_trash_empties(treefork: &Treefork) {
    let start = std::time::Instant::now();
    while !listed(treefork, "trash").is_empty() {
        treefork.ok(["empty-trash"]);
        assert!(start.elapsed().as_secs() < 60, "left in the trash: {:?}", listed(treefork, "trash"));
    }
}

fn labels(treefork: &Treefork) -> Vec<String> {
    let list = json(treefork, &["list"]);
    list.as_array().expect("a list").iter().filter_map(|fork| fork["label"].as_str().map(str::to_owned)).collect()
}
