use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::*;
use crate::sys::open_root;

/// Asks until there is an answer.
fn ask(monitor: &Monitor, mark: Option<Mark>) -> Heard {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match monitor.since(mark) {
            Heard::NotYet => assert!(Instant::now() < until, "never ready"),
            heard => return heard,
        }
        std::thread::yield_now();
    }
}

fn follow(dir: &Path) -> (Monitor, Mark) {
    let monitor = Monitor::new(open_root(dir).expect("ours")).expect("starts");
    match ask(&monitor, None) {
        Heard::Anything(mark) => (monitor, mark),
        other => panic!("{other:?}"),
    }
}

/// The names since a mark, and the mark after them.
fn names(monitor: &Monitor, mark: Mark) -> (BTreeSet<String>, Mark) {
    match ask(monitor, Some(mark)) {
        Heard::Names(names, now) => (names.iter().map(|n| n.as_path().display().to_string()).collect(), now),
        other => panic!("{other:?}"),
    }
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// These names changed, and no other: but one of which it was told before may come again, since the last to close a file may be
/// somebody who just then looks at the descriptors of all processes.
fn assert_told(changed: &BTreeSet<String>, told: &mut BTreeSet<String>, wanted: &[&str]) {
    let wanted = set(wanted);
    assert!(changed.is_superset(&wanted), "{changed:?} without some of {wanted:?}");
    assert!(changed.difference(&wanted).all(|name| told.contains(name)), "{changed:?} instead of {wanted:?}");
    told.extend(wanted);
}

#[test]
fn what_happened_before_the_question_is_in_the_answer() {
    let dir = tempfile::tempdir().expect("room");
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("a/b")).expect("made");
    fs::create_dir_all(at(".git/objects")).expect("made");
    fs::write(at("a/f"), "1").expect("written");
    let (monitor, mark) = follow(dir.path());
    assert_eq!(monitor.directories().len(), 3, "the root, a, a/b");
    fs::write(at("a/f"), "2").expect("written");
    fs::write(at(".git/objects/x"), "2").expect("written");
    let (changed, mark) = names(&monitor, mark);
    let mut told = BTreeSet::new();
    assert_told(&changed, &mut told, &["a/f"]);
    fs::remove_file(at("a/f")).expect("removed");
    fs::write(at("a/b/g"), "1").expect("written");
    let (changed, mark) = names(&monitor, mark);
    assert_told(&changed, &mut told, &["a/f", "a/b/g"]);
    assert_told(&names(&monitor, mark).0, &mut told, &[]);
}

#[test]
fn directories_that_come_and_go_are_named_with_all_that_is_in_them() {
    let dir = tempfile::tempdir().expect("room");
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("a/b")).expect("made");
    fs::write(at("a/b/f"), "1").expect("written");
    let (monitor, mark) = follow(dir.path());
    fs::create_dir_all(at("new/deep")).expect("made");
    fs::write(at("new/deep/f"), "1").expect("written");
    let (changed, mark) = names(&monitor, mark);
    assert!(changed.is_superset(&set(&["new", "new/~", "new/deep/~", "new/deep/f"])), "{changed:?}");
    let mut told = changed;
    fs::write(at("new/deep/g"), "1").expect("written");
    let (changed, mark) = names(&monitor, mark);
    // It is followed itself.
    assert_told(&changed, &mut told, &["new/deep/g"]);
    fs::rename(at("a"), at("c")).expect("renamed");
    let Heard::Anything(mark) = ask(&monitor, Some(mark)) else { panic!("what was in it has no names any more") };
    fs::write(at("c/b/f"), "2").expect("written");
    let (changed, mark) = names(&monitor, mark);
    // By its new name.
    assert_told(&changed, &mut told, &["c/b/f"]);
    fs::remove_dir_all(at("c")).expect("removed");
    fs::create_dir(at("c")).expect("made");
    fs::write(at("c/x"), "1").expect("written");
    let (changed, _) = names(&monitor, mark);
    assert!(changed.is_superset(&set(&["c", "c/b", "c/b/f", "c/x"])), "{changed:?}");
}

#[test]
fn what_cannot_be_told_apart_is_anything() {
    let dir = tempfile::tempdir().expect("room");
    let at = |name: &str| dir.path().join(name);
    fs::write(at("f"), "1").expect("written");
    fs::hard_link(at("f"), at("g")).expect("linked");
    let (monitor, mark) = follow(dir.path());
    assert!(monitor.add(mark, vec![RelPath::from_bytes(b"by hand").expect("relative")]));
    let (changed, mark) = names(&monitor, mark);
    assert!(changed.contains("by hand"), "{changed:?}");
    fs::write(at("f"), "2").expect("written");
    assert!(matches!(ask(&monitor, Some(mark)), Heard::Anything(_)), "a file of two names");
    let other = Mark { log: mark.log ^ 1, ..mark };
    assert!(matches!(ask(&monitor, Some(other)), Heard::Anything(_)), "a mark of somebody else");
    assert!(!monitor.add(other, vec![]));
}

#[test]
fn lost_events_are_a_new_beginning() {
    let dir = tempfile::tempdir().expect("room");
    let (monitor, mark) = follow(dir.path());
    *monitor.shared.state.lock() = State::Lost;
    fs::write(dir.path().join("f"), "1").expect("written");
    let Heard::Anything(now) = ask(&monitor, Some(mark)) else { panic!("the log is another one") };
    assert_ne!(now.log, mark.log);
    fs::write(dir.path().join("g"), "1").expect("written");
    assert!(names(&monitor, now).0.contains("g"));
}
