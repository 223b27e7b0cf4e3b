//! Directory listings.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Instant;

use crate::common::{Fork, eventually};

fn names(dir: &Path) -> Vec<OsString> {
    dir.read_dir().expect("it is a directory").map(|entry| entry.expect("it can be listed").file_name()).collect()
}

#[test]
fn case_42_a_listing_that_is_changed_underneath_loses_nothing_else() {
    let fork = Fork::new("mkdir d; for n in $(seq 2000); do : > d/base$n; done");
    let dir = fork.join("d");
    let mut listing = dir.read_dir().expect("it is a directory");
    let mut seen: Vec<OsString> = listing.by_ref().take(500).map(|e| e.expect("listed").file_name()).collect();
    for n in 1..=100 {
        fs::write(dir.join(format!("new{n}")), "").expect("there is room");
        fs::remove_file(dir.join(format!("base{n}"))).expect("it is there");
    }
    seen.extend(listing.map(|e| e.expect("listed").file_name()));
    let distinct: BTreeSet<_> = seen.iter().collect();
    assert_eq!(distinct.len(), seen.len(), "a name twice");
    for n in 101..=2000 {
        assert!(distinct.contains(&OsString::from(format!("base{n}"))), "base{n} is lost");
    }
    assert_eq!(names(&dir).len(), 2000);
}

#[test]
fn case_44_eight_listings_in_parallel_are_identical() {
    let fork = Fork::new("mkdir d; for n in $(seq 10000); do : > d/base$n; done");
    fork.sh("cd d; for n in $(seq 1000); do : > new$n; done; rm base1 base77 base9999");
    let dir = fork.join("d");
    let sets: Vec<Vec<OsString>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| names(&dir))).collect();
        threads.into_iter().map(|t| t.join().expect("a listing does not panic")).collect()
    });
    let first: BTreeSet<_> = sets[0].iter().collect();
    assert_eq!(first.len(), 10_997);
    for set in &sets {
        assert_eq!(set.len(), 10_997);
        assert_eq!(first, set.iter().collect());
    }
}

#[test]
fn case_45_listing_and_creating_stay_linear() {
    let fork = Fork::new("mkdir small large");
    fork.let_base_change();
    let fill = |dir: &str, count: usize| {
        (0..count).for_each(|n| fs::write(fork.base.join(dir).join(format!("f{n}")), "").expect("there is room"));
    };
    fill("small", 10_000);
    fill("large", 100_000);
    let work = |dir: &str| {
        let dir = fork.join(dir);
        let started = Instant::now();
        let count = names(&dir).len();
        for n in 0..500 {
            fs::write(dir.join(format!("new{n}")), "").expect("there is room");
        }
        assert_eq!(names(&dir).len(), count + 500);
        started.elapsed().as_secs_f64()
    };
    eventually("all of it is seen", || names(&fork.join("large")).len() == 100_000);
    let (small, large) = (work("small"), work("large"));
    // Ten times as many entries; quadratic would be a hundred times as long.
    assert!(large < small * 40.0 + 1.0, "{small:.3} s for 10,000, {large:.3} s for 100,000");
}

#[test]
fn case_47_what_others_change_in_the_base_is_seen_all_ways() {
    let fork = Fork::new("mkdir d; touch d/old d/gone");
    fork.let_base_change();
    let dir = fork.join("d");
    let sees = |name: &str| {
        let listed = names(&dir).contains(&OsString::from(name));
        let found = dir.join(name).exists();
        (listed, found)
    };
    assert_eq!((sees("old"), sees("gone"), sees("new")), ((true, true), (true, true), (false, false)));
    fs::write(fork.base.join("d/new"), "x").expect("the base is ours");
    fs::remove_file(fork.base.join("d/gone")).expect("it is there");
    eventually("the new name is listed and found", || sees("new") == (true, true));
    eventually("the old name is neither", || sees("gone") == (false, false));
    assert_eq!(sees("old"), (true, true));
    assert_eq!(fs::read(dir.join("new")).expect("it is found"), b"x");
}
