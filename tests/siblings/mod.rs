//! Many forks of one base while others are merged into it: who lives on sees nothing, and who merges comes whole or not
//! at all.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::common::{Look, Repo, Run, Shape, Treefork, assert_same, caches, eventually};

/// Forks that look on, and merges that they must not notice.
const READERS: usize = 8;
const MERGES: usize = 50;

fn look() -> Look {
    Look::default().ino().ctime()
}

fn status(treefork: &Treefork, fork: &Path) -> String {
    // Without optional locks, so that looking changes nothing.
    treefork.env().command_in(fork, "git").args(["--no-optional-locks", "status", "--porcelain"]).ok().text()
}

/// S5a: merges made by treefork are invisible to the other forks of the base.
#[test]
fn eight_forks_see_nothing_of_fifty_merges() {
    let treefork = Treefork::new();
    let base = treefork.env().join("base");
    Repo::new(treefork.env(), &base, Shape { files: 120, changed: 4, ignored: 3, submodule: false });
    let forks: Vec<PathBuf> = (0..READERS).map(|n| treefork.create(&base, &format!("reader-{n}"))).collect();
    let before: Vec<_> = forks.iter().map(|fork| (look().at(fork), status(&treefork, fork))).collect();
    let (done, looks) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for (fork, (tree, _)) in forks.iter().zip(&before) {
            let (done, looks) = (&done, &looks);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let now = look().at(fork);
                    assert_same(tree, &now, "a sibling while others merge");
                    looks.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let merging = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for n in 0..MERGES {
                merge_something(&treefork, &base, n);
            }
        }));
        done.store(true, Ordering::Relaxed);
        merging.expect("all merges land");
    });
    eprintln!("{} looks by {READERS} forks during {MERGES} merges", looks.load(Ordering::Relaxed));
    assert!(looks.load(Ordering::Relaxed) >= READERS, "everybody looked at least once");
    for (n, (fork, (tree, said))) in forks.iter().zip(&before).enumerate() {
        assert_eq!(&status(&treefork, fork), said, "git status of reader {n}");
        assert_same(tree, &look().at(fork), "a sibling at the end");
    }
    // After a restart of the server everything comes from disk again.
    treefork.restart("reader-0");
    assert_same(&before[0].0, &look().at(&forks[0]), "a sibling after a restart of the server");
    let drift = treefork.ok(["show", "reader-1", "--json"]).text();
    let drift: serde_json::Value = serde_json::from_str(&drift).expect("JSON");
    assert_eq!(drift["drift"], serde_json::json!([]), "nothing of it counts as drift");
    for n in 0..READERS {
        treefork.ok(["remove", &format!("reader-{n}")]);
    }
    let kept = fs::read_dir(treefork.store().join("bases")).expect("there").flatten();
    for base in kept {
        // The youngest stays while anybody may count from its number.
        let layers = fs::read_dir(base.path().join("preserved")).map_or(0, |layers| layers.count());
        assert!(layers <= 1, "{layers} preserved layers left");
    }
}

/// One merge of some kind: edits, additions, deletions, renamed directories, other types, commits.
fn merge_something(treefork: &Treefork, base: &Path, n: usize) {
    let label = format!("writer-{n}");
    let fork = treefork.create(base, &label);
    let (file, other) = (Repo::file(n), Repo::file(60 + n));
    let script = match n % 5 {
        0 => format!("echo edit-{n} >> {file:?}"),
        1 => format!("mkdir -p new-{n}/sub && echo {n} > new-{n}/sub/f && ln -s f new-{n}/sub/l"),
        2 => format!("echo {n} > {other:?} && git add -A . && git commit -qm commit-{n}"),
        3 => format!("chmod 600 {file:?} && git mv {other:?} moved-{n} 2>/dev/null || echo {n} > moved-{n}"),
        _ => format!(
            "git rm -q --cached {file:?} 2>/dev/null; rm -f {file:?}; mkdir {file:?}; echo {n} > {file:?}/inside"
        ),
    };
    treefork.env().sh(&fork, &script);
    treefork.ok(["merge", &label, "--allow-delete"]);
}

/// Forks that work at once, and merges that each of them tries.
const WRITERS: usize = 20;
const ROUNDS: usize = 10;

/// What a writer does in one of its rounds: to files that others fight for, and to what is its own.
fn work_of(writer: usize, round: usize) -> String {
    let (tag, own) = (format!("w{writer}-r{round}"), format!("private/w{writer}"));
    let shared = shared_by(writer, round);
    let more = match round % 4 {
        0 => format!("echo {tag} >> {own}/log; chmod 6{}0 {own}/mode", round % 8),
        1 => format!("for d in {own}/sub*; do mv $d {own}/sub-{tag}; echo {tag} > {own}/sub-{tag}/f; done"),
        2 => format!("ln -sfn {tag} {own}/link; mkdir -p {own}/new/{tag}; echo {tag} > {own}/new/{tag}/f"),
        _ => format!("rm -rf {own}/new {own}/x*; ln {own}/log {own}/x-{tag}; mkfifo {own}/x-fifo-{tag}"),
    };
    format!("echo {tag} > own/{tag}; echo {tag} > shared/{shared}.a; echo {tag} > shared/{shared}.b; {more}")
}

fn shared_by(writer: usize, round: usize) -> usize {
    (writer * 3 + round) % 8
}

/// Cases 82 and 92: of merges that touch the same files one lands and the others are refused, each whole; and the base is
/// what the work of those that landed makes of it, one after the other.
#[test]
fn two_hundred_merges_at_once_land_whole_or_not_at_all() {
    let treefork = Treefork::new();
    let base = treefork.env().join("base");
    Repo::new(treefork.env(), &base, Shape { files: 40, changed: 2, ignored: 3, submodule: false });
    treefork.env().sh(
        &base,
        "mkdir shared own; for i in 0 1 2 3 4 5 6 7; do echo none > shared/$i.a; echo none > shared/$i.b; done",
    );
    let dirs = format!("for w in $(seq 0 {}); do mkdir -p private/w$w/sub; ", WRITERS - 1);
    treefork
        .env()
        .sh(&base, &(dirs + "echo > private/w$w/log; echo > private/w$w/mode; echo > private/w$w/sub/f; done"));
    treefork.env().sh(&base, "git add -A; git commit -qm shared; cp -a . ../serial");
    let landed: Mutex<BTreeMap<String, (usize, usize)>> = Mutex::default();
    let refused = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (treefork, base, landed, refused) = (&treefork, &base, &landed, &refused);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let tag = format!("w{writer}-r{round}");
                    let fork = treefork.create(base, &tag);
                    treefork.env().sh(&fork, &work_of(writer, round));
                    let merge = treefork.command(["merge", &tag, "--allow-delete", "--wait", "120"]).done();
                    match merge.code() {
                        0 => drop(landed.lock().expect("whole").insert(tag, (writer, round))),
                        1 => {
                            refused.fetch_add(1, Ordering::Relaxed);
                            assert!(fork.join("own").join(&tag).exists(), "a refused fork lives");
                            treefork.ok(["remove", &tag]);
                        }
                        code => panic!("merge of {tag} ended with {code}: {}", merge.complaint()),
                    }
                }
            });
        }
    });
    let landed = landed.into_inner().expect("whole");
    let refused = refused.into_inner();
    eprintln!("{} merges landed, {refused} were refused", landed.len());
    assert_eq!(landed.len() + refused, WRITERS * ROUNDS);
    assert!(landed.len() >= 8 && refused > 0, "{} landed, {refused} refused: no contention", landed.len());
    // What each landed merge brought is there, and nothing of a refused one.
    let own: Vec<String> = names(&base.join("own"));
    assert_eq!(own, landed.keys().cloned().collect::<Vec<_>>());
    for shared in 0..8 {
        let read = |half: &str| fs::read_to_string(base.join(format!("shared/{shared}.{half}"))).expect("there");
        let (a, b) = (read("a"), read("b"));
        assert_eq!(a, b, "the halves of one merge");
        let writer = landed.get(a.trim()).map(|&(writer, round)| shared_by(writer, round));
        assert!(a == "none\n" || writer == Some(shared), "{a:?} is of a merge that landed");
    }
    // One after the other: each brought a file of its own, whose change time is that of its landing.
    let mut order: Vec<(i64, i64, &(usize, usize))> = landed
        .iter()
        .map(|(tag, work)| {
            let stat = fs::symlink_metadata(base.join("own").join(tag)).expect("landed");
            (stat.ctime(), stat.ctime_nsec(), work)
        })
        .collect();
    order.sort_unstable();
    let serial = treefork.env().join("serial");
    for (.., &(writer, round)) in order {
        treefork.env().sh(&serial, &work_of(writer, round));
    }
    let look = Look::default().no_mtime().without(".git");
    assert_same(&look.at(&serial), &look.at(&base), "the base and the serial replay");
    treefork.env().git(&base, ["fsck"]);
    let said = status(&treefork, &base);
    assert_eq!(said.lines().filter(|line| line.contains("own/")).count(), 1, "{said}");
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .expect("there")
        .map(|entry| entry.expect("read").file_name().into_string().expect("plain"))
        .collect();
    names.sort();
    names
}

/// What another merge preserved is the ancestor of both sides, in a base without git, too.
#[test]
fn two_forks_that_edit_one_text_both_land() {
    let treefork = Treefork::new();
    let base = treefork.env().dir("base");
    let text: String = (1..=20).map(|n| format!("line {n}\n")).collect();
    fs::write(base.join("text"), &text).expect("room");
    let [a, b] = ["a", "b"].map(|label| treefork.create(&base, label));
    treefork.env().sh(&a, "sed -i 's/line 2$/two/' text");
    treefork.env().sh(&b, "sed -i 's/line 18$/eighteen/' text");
    treefork.ok(["merge", "a"]);
    treefork.ok(["merge", "b"]);
    let merged = fs::read_to_string(base.join("text")).expect("there");
    assert_eq!(merged, text.replace("line 2\n", "two\n").replace("line 18\n", "eighteen\n"));
}

/// A commit is no proof of what an uncommitted file held: where only that is left of the ancestor, it is a conflict.
#[test]
fn a_commit_is_no_ancestor_of_a_file_that_was_edited_before_the_fork() {
    let treefork = Treefork::new();
    let base = treefork.env().join("base");
    Repo::new(treefork.env(), &base, Shape::small());
    let file = base.join(Repo::file(0));
    let committed = fs::read_to_string(&file).expect("there");
    // As long as the committed text, so that nothing but the content tells.
    fs::write(&file, committed.to_uppercase()).expect("room");
    let fork = treefork.create(&base, "a");
    fs::write(fork.join(Repo::file(0)), &committed).expect("room");
    treefork.env().git(&fork, ["commit", "-q", "--allow-empty", "-am", "back to what it was"]);
    fs::write(&file, format!("{}one more line\n", committed.to_uppercase())).expect("room");
    let done = treefork.fails(1, ["merge", "a"]);
    assert!(done.text().contains("changed on both sides"), "{}", done.text());
    assert_eq!(fs::read_to_string(&file).expect("there"), format!("{}one more line\n", committed.to_uppercase()));
}

/// A merge that is undone leaves nothing in the way of the forks that it was to be hidden from: what somebody then changes
/// in the base is drift like any other, and nothing of the undone merge is.
#[test]
fn an_undone_merge_leaves_nothing_preserved() {
    let _kept = caches::kept();
    for (fault, restart) in [("fail=28", false), ("kill", false), ("fail=28", true)] {
        let treefork = Treefork::new();
        let base = treefork.env().dir("base");
        treefork.env().sh(&base, "mkdir -p d/sub gone; echo f > f; echo x > d/sub/x; echo g > gone/g; echo o > other");
        let [reader, writer] = ["reader", "writer"].map(|label| treefork.create(&base, label));
        let before = look().at(&reader);
        treefork.env().sh(&writer, "echo more >> f; echo more >> d/sub/x; rm -r gone; mkdir new; echo n > new/n");
        treefork.command(["merge", "writer"]).env("TREEFORK_FAULT", format!("merge.sync:{fault}")).done();
        treefork.ok(["list"]);
        if restart {
            treefork.restart("reader");
        }
        assert_same(&before, &look().at(&reader), "the reader after a merge that was undone");
        let links = treefork.env().sh(&base, "stat -c '%h %n' f d/sub/x gone/g; ls new 2>&1 || true");
        assert_eq!(links.matches("1 ").count(), 3, "{fault}: {links}");
        let drift = || {
            let shown = treefork.ok(["show", "reader", "--json"]).text();
            serde_json::from_str::<serde_json::Value>(&shown).expect("JSON")["drift"].clone()
        };
        assert_eq!(drift(), serde_json::json!([]), "{fault}");
        // In place, so that it is the same object.
        treefork.env().sh(&base, "echo theirs >> f; echo theirs > gone/h");
        eventually("the change shows", || fs::read(reader.join("f")).is_ok_and(|text| text == b"f\ntheirs\n"));
        eventually("it counts as drift", || drift().as_array().is_some_and(|paths| paths.len() >= 2));
        assert_eq!(drift(), serde_json::json!(["f", "gone/h"]), "{fault}");
        // And the next merge is hidden as ever.
        treefork.env().sh(&base, "sed -i '/theirs/d' f; rm gone/h");
        treefork.ok(["merge", "writer", "--resolve", "ours", "."]);
        assert_eq!(fs::read_to_string(reader.join("d/sub/x")).expect("there"), "x\n");
        assert!(reader.join("gone/g").exists() && !reader.join("new").exists(), "{fault}");
    }
}
