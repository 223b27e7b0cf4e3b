//! One piece of work in many forks of a repository, a few at a time: made, edited, committed, checked.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::place::Place;
use super::subject::{Fork, Subject};
use super::tree;

/// How many files each changes.
const EDITS: usize = 50;

/// What each is to do, as its shell reads it; `n` stands for its number.
fn work(files: usize, n: &str) -> String {
    let edited: Vec<String> = (0..EDITS).map(|edit| tree::file(edit * files / EDITS)).collect();
    format!("for f in {}; do echo \"edit {n}\" >> $f; done; git commit -qam 'agent {n}'", edited.join(" "))
}

/// Does it by `treefork fanout`; the forks.
pub(crate) fn ours(place: &Place, base: &Path, files: usize, count: usize, jobs: usize) -> Vec<String> {
    let (base, work) = (base.to_str().expect("plain names"), work(files, "{n}"));
    let (count_text, jobs) = (count.to_string(), jobs.to_string());
    let fanout = ["fanout", base, "-n", &count_text, "-j", &jobs, "--label", "fan", "--", "sh", "-ec", &work];
    place.treefork(fanout);
    (1..=count).map(|n| format!("fan-{n}")).collect()
}

/// Does it by another way to get a fork: as many at once.
pub(crate) fn theirs(
    place: &Place,
    subject: &dyn Subject,
    base: &Path,
    (files, count, jobs): (usize, usize, usize),
) -> Vec<Fork> {
    let next = AtomicUsize::new(1);
    let worker = || {
        let mut forks = Vec::new();
        loop {
            let n = next.fetch_add(1, Ordering::SeqCst);
            if n > count {
                return forks;
            }
            let fork = subject.create(place, base, &format!("fan-{n}"));
            place.sh(&fork.path, &work(files, &n.to_string()));
            forks.push((n, fork));
        }
    };
    let mut forks = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect::<Vec<_>>()
    });
    forks.sort_by_key(|(n, _)| *n);
    forks.into_iter().map(|(_, fork)| fork).collect()
}

/// Makes sure that the fork with this number has its own work, whole, committed, and nobody else's.
pub(crate) fn check(place: &Place, fork: &Path, files: usize, n: usize) {
    let script = format!(
        "test \"$(git log -1 --format=%s)\" = 'agent {n}'; test -z \"$(git status --porcelain)\"; \
         test $(git diff --name-only HEAD^ HEAD | wc -l) = {EDITS}; \
         test \"$(tail -qn 1 {0} {1})\" = \"$(printf 'edit {n}\\nedit {n}')\"",
        tree::file(0),
        tree::file((EDITS - 1) * files / EDITS),
    );
    place.sh(fork, &script);
}
