//! Merging many small files, against `cp -a` of the same files into the same tree: how long it takes until all of it is on
//! the disk. The fork's store is on the file system of the base, and on another one.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::place::{Place, run};
use super::report::{Metric, ms};
use super::subject::Subject;
use super::tree;

/// What a changed file holds.
const CONTENT: &[u8] = &[b'm'; 2048];

/// The workload; the plain directory gets the files copied.
pub(crate) fn measure(place: &Place, subject: &dyn Subject) -> Vec<Metric> {
    let counts: &[usize] = if place.smoke { &[10, 500] } else { &[10, 1_000, 10_000] };
    let base = place.path("bases/parent");
    let mut measured = Vec::new();
    for &count in counts {
        let mut add = |what: &str, took| measured.push(ms(format!("merge {count} changed files{what}"), took));
        if subject.is_treefork() {
            add("", merged(place, &base, count, &place.store()));
            add(", store elsewhere", merged(place, &base, count, &place.elsewhere().join("store")));
        } else {
            let took = copied(place, &base, count);
            add("", took);
            add(", store elsewhere", took);
        }
    }
    measured
}

fn merged(place: &Place, base: &Path, count: usize, store: &Path) -> Duration {
    let treefork = |args: &[&str]| {
        let store = store.to_str().expect("text");
        place.treefork([&["--store", store], args].concat())
    };
    tree::repository(place, base, place.files.max(count));
    let fork = treefork(&["create", base.to_str().expect("text"), "--label", "bench"]);
    change(fork.as_ref(), count);
    let took = landed(place, || drop(treefork(&["merge", "bench"])));
    for i in [0, count - 1] {
        assert_eq!(std::fs::read(base.join(tree::file(i))).expect("there"), CONTENT, "it was not merged");
    }
    treefork(&["serve", "--stop"]);
    std::fs::remove_dir_all(base).expect("remove");
    took
}

fn copied(place: &Place, base: &Path, count: usize) -> Duration {
    tree::repository(place, base, place.files.max(count));
    let changed = place.path("changed");
    for i in 0..count {
        std::fs::create_dir_all(changed.join(tree::file(i)).parent().expect("below")).expect("mkdir");
    }
    change(&changed, count);
    let took = landed(place, || run(Command::new("cp").arg("-a").arg(changed.join("src")).arg(base)));
    std::fs::remove_dir_all(&changed).expect("remove");
    std::fs::remove_dir_all(base).expect("remove");
    took
}

/// Gives the first tracked files new content.
fn change(root: &Path, count: usize) {
    for i in 0..count {
        std::fs::write(root.join(tree::file(i)), CONTENT).expect("write");
    }
}

/// How long something takes, everything brought to the disk included.
fn landed(place: &Place, act: impl FnOnce()) -> Duration {
    place.settle();
    let start = Instant::now();
    act();
    place.settle();
    start.elapsed()
}
