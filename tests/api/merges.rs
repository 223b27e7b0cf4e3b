//! The way back.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use treefork::api::{CancelToken, Environment, EnvironmentMerger, Fork, Merged, Merger, SerializingMerger};
use treefork::{Kind, Result};

use super::{Host, read, root};
use crate::common::assert_same;

fn merge(host: &Host, fork: &Fork) -> Result<Merged> {
    Merger::default().merge(&fork.environment, &host.project(), &CancelToken::new())
}

#[test]
fn edits_new_files_deletions_and_bytes_land() {
    let host = Host::git();
    let fork = host.fork(host.forker().force_copy());
    fs::write(root(&fork).join("a.txt"), "changed\n").expect("writable");
    fs::write(root(&fork).join("b.txt"), "staged\n").expect("writable");
    host.env.git(root(&fork), ["add", "b.txt"]);
    fs::create_dir(root(&fork).join("new")).expect("writable");
    fs::write(root(&fork).join("new/file"), "untracked\n").expect("writable");
    fs::write(root(&fork).join("new/x.log"), "ignored\n").expect("writable");
    fs::remove_file(root(&fork).join("d/c.txt")).expect("writable");
    fs::write(root(&fork).join("bin.dat"), [7, 0, 255]).expect("writable");
    let merged = merge(&host, &fork).expect("merged");
    assert!(merged.changed.iter().any(|path| path.ends_with("new/file")), "{merged:?}");
    assert_eq!(read(&host.base, "a.txt"), b"changed\n");
    assert_eq!(read(&host.base, "b.txt"), b"staged\n");
    assert_eq!(read(&host.base, "bin.dat"), [7, 0, 255]);
    assert_eq!(read(&host.base, "new/file"), b"untracked\n");
    assert!(!host.base.join("d/c.txt").exists() && !host.base.join("new/x.log").exists());
    // The child stays, and goes on from the merged state.
    assert_eq!(read(root(&fork), "new/x.log"), b"ignored\n");
    fs::write(root(&fork).join("a.txt"), "again\n").expect("writable");
    merge(&host, &fork).expect("merged again");
    assert_eq!(read(&host.base, "a.txt"), b"again\n");
    fork.cleanup.run().expect("removed");
    assert_eq!(read(&host.base, "a.txt"), b"again\n");
}

#[test]
fn a_clean_child_does_not_touch_the_parent() {
    let host = Host::git();
    let fork = host.fork(host.forker().force_copy());
    let before = host.look();
    assert!(merge(&host, &fork).expect("nothing to do").is_empty());
    assert_same(&before, &host.look(), "the parent");
}

#[test]
fn a_conflict_leaves_the_parent_as_it_was_and_the_child_alive() {
    let host = Host::git();
    let fork = host.fork(host.forker().force_copy());
    fs::write(root(&fork).join("a.txt"), "fork\n").expect("writable");
    fs::write(root(&fork).join("b.txt"), "fork, without conflict\n").expect("writable");
    host.write("a.txt", "base\n");
    let before = host.look();
    let error = merge(&host, &fork).expect_err("both changed it");
    assert_eq!(error.kind(), Kind::Conflict);
    let text = error.to_string();
    assert!(text.contains("a.txt") && text.contains(root(&fork).to_str().expect("plain")), "{text}");
    assert_same(&before, &host.look(), "the parent");
    assert_eq!(read(root(&fork), "a.txt"), b"fork\n");
}

#[test]
fn a_fork_of_a_subdirectory_lands_there() {
    let host = Host::git();
    let project = Environment::at(host.base.join("d"));
    let forker = host.forker().force_copy().build().expect("a place");
    let fork = treefork::api::EnvironmentForker::fork(&forker, &project, "x", &CancelToken::new()).expect("forked");
    fs::write(root(&fork).join("c.txt"), "changed\n").expect("writable");
    let merge = |parent: &Environment| Merger::default().merge(&fork.environment, parent, &CancelToken::new());
    assert_eq!(merge(&host.project()).expect_err("not the place it came from").kind(), Kind::Usage);
    merge(&project).expect("merged");
    assert_eq!(read(&host.base, "d/c.txt"), b"changed\n");
}

#[test]
fn into_another_checkout() {
    let host = Host::git();
    host.env.git(host.env.tree().path(), ["clone", "-q", "project", "other"]);
    let fork = host.fork(host.forker().force_copy());
    fs::write(root(&fork).join("a.txt"), "changed\n").expect("writable");
    let other = Environment::at(host.env.join("other"));
    Merger::default().merge(&fork.environment, &other, &CancelToken::new()).expect("merged");
    assert_eq!(read(&host.env.join("other"), "a.txt"), b"changed\n");
    assert_eq!(read(&host.base, "a.txt"), b"one\n");
}

#[test]
fn what_is_no_fork_or_is_cancelled_is_refused() {
    let host = Host::plain();
    let merger = Merger::default();
    let error = merger.merge(&host.project(), &host.project(), &CancelToken::new()).expect_err("no fork");
    assert_eq!(error.kind(), Kind::Usage);
    let (fork, cancel) = (host.fork(host.forker()), CancelToken::new());
    cancel.cancel();
    let error = merger.merge(&fork.environment, &host.project(), &cancel).expect_err("cancelled");
    assert_eq!(error.kind(), Kind::Cancelled);
}

#[test]
fn sixteen_threads_merge_one_at_a_time() {
    /// Counts how many are in it at once; fails for every fourth.
    #[derive(Default)]
    struct Probe {
        inside: AtomicUsize,
        calls: AtomicUsize,
    }
    impl EnvironmentMerger for Probe {
        fn merge(&self, _: &Environment, _: &Environment, _: &CancelToken) -> Result<Merged> {
            assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
            let call = self.calls.fetch_add(1, Ordering::SeqCst);
            std::thread::yield_now();
            self.inside.fetch_sub(1, Ordering::SeqCst);
            let note = call.to_string();
            if call % 4 == 3 {
                return Err(treefork::Error::new(Kind::Conflict, note));
            }
            Ok(Merged { changed: vec![], notes: vec![note] })
        }
    }
    let (merger, any) = (SerializingMerger::new(Probe::default()), Environment::at("/"));
    let results: Vec<_> = std::thread::scope(|scope| {
        let one = |_| scope.spawn(|| merger.merge(&any, &any, &CancelToken::new()));
        (0..16).map(one).collect::<Vec<_>>().into_iter().map(|t| t.join().expect("no overlap")).collect()
    });
    let (fine, failed): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!((fine.len(), failed.len()), (12, 4));
    assert!(failed.into_iter().all(|e| e.is_err_and(|e| e.kind() == Kind::Conflict)));
}

#[test]
fn real_merges_from_many_threads_all_land() {
    let host = Host::git();
    let merger = SerializingMerger::new(Merger::default());
    let forks: Vec<Fork> = (0..8).map(|_| host.fork(host.forker().force_copy())).collect();
    std::thread::scope(|scope| {
        for (n, fork) in forks.iter().enumerate() {
            let (merger, host) = (&merger, &host);
            scope.spawn(move || {
                fs::write(root(fork).join(format!("file{n}")), format!("{n}\n")).expect("writable");
                merger.merge(&fork.environment, &host.project(), &CancelToken::new()).expect("merged");
            });
        }
    });
    for n in 0..8 {
        assert_eq!(read(&host.base, &format!("file{n}")), format!("{n}\n").as_bytes());
    }
}

/// Between being made and beginning its program, a child has copies of all that its parent had open just then.
#[test]
fn a_child_that_is_only_just_starting_is_no_user() {
    let host = Host::git();
    let fork = host.fork(host.forker().force_copy());
    fs::write(root(&fork).join("a.txt"), "changed\n").expect("writable");
    let open = fs::File::open(root(&fork).join("a.txt")).expect("there");
    let (mut ready, made) = std::io::pipe().expect("a pipe");
    std::thread::scope(|scope| {
        let child = scope.spawn(move || {
            let start = move || {
                (&made).write_all(b".")?;
                // Longer than it takes to look at all processes.
                std::thread::sleep(Duration::from_millis(300));
                Ok(())
            };
            let mut child = std::process::Command::new("true");
            // SAFETY: nothing but system calls is made there.
            unsafe { child.pre_exec(start) }.status().expect("true")
        });
        ready.read_exact(&mut [0]).expect("the child says so");
        drop(open);
        merge(&host, &fork).expect("nobody is in the fork");
        assert!(child.join().expect("no panic").success());
    });
    assert_eq!(read(&host.base, "a.txt"), b"changed\n");
}
