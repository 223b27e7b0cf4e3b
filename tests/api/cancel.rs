//! Cancelling: whatever was asked for ends soon, and nothing is left half-made.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use treefork::Kind;
use treefork::api::{
    CancelToken, EnvironmentForker, EnvironmentMerger, Forker, Merger, PreMerge, SerializingMerger, merge_fork,
};
use treefork::durable::fault::{Action, Rule, scoped};
use treefork::durable::{FileLock, Wait};
use treefork::fork::{Base, Forks, Request, Store};
use treefork::merge::Options;
use treefork::strategy::{Way, Wishes};

use super::{Host, read, root};
use crate::common::{Look, Run, assert_same, temp};

/// What is in a directory of the store.
fn entries(store: &Path, dir: &str) -> usize {
    fs::read_dir(store.join(dir)).map_or(0, Iterator::count)
}

/// Work of every kind: edited, new, in a new directory, deleted, renamed.
const WORK: &str = "echo 2 > a.txt; echo n > new; mkdir -p deep/er; seq 999 > deep/er/f; rm b.txt; mv d/c.txt d/e.txt; \
                    git add -A; git commit -qm Work; echo 3 > a.txt";

#[test]
fn a_merge_that_is_cancelled_anywhere_leaves_the_parent_and_the_child_as_they_were() {
    let host = Host::git();
    let fork = host.fork(host.forker().force_copy());
    host.env.sh(root(&fork), WORK);
    // The lock on the index comes and goes, and moves the times of `.git`; what is in it stays.
    // Objects that nothing refers to may have come over.
    let script =
        "git for-each-ref; git reflog; cat .git/HEAD .git/index | sha256sum; ls -A .git; git fsck --no-dangling";
    let look = |at: &Path| (Look::default().ino().without(".git").at(at), host.env.sh(at, script));
    let (before, child) = (look(&host.base), look(root(&fork)));
    let forks = Forks::open(Store::open(&host.env.join("forks/treefork")).expect("there")).expect("in order");
    let record = forks.find(fork.environment.fork_id().expect("a fork")).expect("there");
    let mut cancelled = 0;
    // Most looks are between paths that are compared, each like the next; the last ones are where it matters.
    for n in (1..10).chain((10..90).step_by(10)).chain(90..) {
        // By turns: what is kept is copied into the stage, and what is not is renamed.
        let options = Options { keep: cancelled % 2 == 0, ..Options::default() };
        let rule = Rule::new("cancel", Action::Fail(libc::ECANCELED), n);
        let (result, _) =
            scoped(vec![rule], || merge_fork(&forks, &record, &options, PreMerge::Skip, Wait::No, |_| {}));
        let Err(error) = result else { break };
        cancelled += 1;
        assert_eq!(error.kind(), Kind::Cancelled, "{error}");
        for (who, at, wanted) in [("parent", &*host.base, &before), ("child", root(&fork), &child)] {
            let (tree, git) = look(at);
            assert_same(&wanted.0, &tree, &format!("the {who}, cancelled at look {n}"));
            assert_eq!(wanted.1, git, "the git of the {who}, cancelled at look {n}");
        }
    }
    assert!(cancelled > 10, "only {cancelled} looks");
    assert_eq!(read(&host.base, "a.txt"), b"3\n");
    fork.cleanup.run().expect("removed");
}

#[test]
fn waiting_for_others_ends() {
    let host = Host::git();
    let fork = host.fork(host.forker().force_copy());
    fs::write(root(&fork).join("a.txt"), "changed\n").expect("writable");
    let store = host.env.join("forks/treefork");
    let base = Base::at(&host.base).expect("there");
    let lock = store.join("bases").join(base.key()).join("lock");
    // Nobody lets go of this: what waits for it ends by being cancelled.
    let _held = FileLock::acquire(&lock, "a long merge", Wait::No).expect("free");
    let cancel = CancelToken::new();
    let forker = host.forker().force_copy().build().expect("a place");
    let kinds = std::thread::scope(|scope| {
        let merging = scope.spawn(|| Merger::default().merge(&fork.environment, &host.project(), &cancel).map(drop));
        let forking = scope.spawn(|| forker.fork(&host.project(), "x", &cancel).map(drop));
        cancel.cancel();
        [merging, forking].map(|thread| thread.join().expect("no panic").expect_err("cancelled").kind())
    });
    assert_eq!(kinds, [Kind::Cancelled; 2]);
    assert_eq!((entries(&store, "forks"), entries(&store, "pending")), (1, 0));
    assert_eq!(read(root(&fork), "a.txt"), b"changed\n");
}

#[test]
fn waiting_for_ones_turn_ends() {
    let host = Host::plain();
    let fork = host.fork(host.forker());
    /// Holds the lock until the other one has been cancelled.
    struct Slow(crossbeam_channel::Sender<()>, crossbeam_channel::Receiver<()>);
    impl EnvironmentMerger for Slow {
        fn merge(
            &self,
            _: &treefork::api::Environment,
            _: &treefork::api::Environment,
            _: &CancelToken,
        ) -> treefork::Result<treefork::api::Merged> {
            self.0.send(()).expect("heard");
            self.1.recv().expect("told");
            Ok(treefork::api::Merged::default())
        }
    }
    let ((inside, entered), (go, told)) = (crossbeam_channel::bounded(1), crossbeam_channel::bounded(1));
    let merger = SerializingMerger::new(Slow(inside, told));
    let merge = |cancel: &CancelToken| merger.merge(&fork.environment, &host.project(), cancel);
    let cancel = CancelToken::new();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| merge(&CancelToken::new()));
        entered.recv().expect("it is in");
        let second = scope.spawn(|| merge(&cancel));
        cancel.cancel();
        assert_eq!(second.join().expect("no panic").expect_err("cancelled").kind(), Kind::Cancelled);
        go.send(()).expect("it waits");
        first.join().expect("no panic").expect("nobody cancelled this one");
    });
}

#[test]
fn a_copy_that_is_cancelled_in_the_middle_is_gone() {
    let host = Host::git();
    treefork::api::host::server_program(crate::common::cli::BINARY);
    let store = host.env.join("copies");
    let forks = Forks::open(Store::open(&store).expect("made")).expect("in order");
    let cancel = CancelToken::new();
    let token = cancel.clone();
    let progress = move |entries, _| {
        if entries >= 3 {
            token.cancel();
        }
        std::ops::ControlFlow::Continue(())
    };
    let wishes = Wishes { progress: Some(Arc::new(progress)), cancel, ..Wishes::default() };
    let request = Request { strategy: Some(Way::Copy), wishes, ..Request::new(&host.base).expect("a request") };
    assert_eq!(forks.create(&request).expect_err("cancelled").kind(), Kind::Cancelled);
    for dir in ["forks", "pending", "trash"] {
        assert_eq!(entries(&store, dir), 0, "left in {dir}/");
    }
}

/// Names the base for the process that this test starts, whose git is not the usual one.
const BASE: &str = "TREEFORK_TEST_CANCELLED_BASE";
const READY: &str = "TREEFORK_TEST_CANCELLED_READY";

#[test]
fn a_git_that_takes_for_ever_is_ended() {
    if let (Some(base), Some(ready)) = (std::env::var_os(BASE), std::env::var_os(READY)) {
        cancel_a_slow_git(base.into(), ready.into());
        return;
    }
    let host = Host::git();
    let ready = host.env.join("ready");
    let git = host.env.dir("bin").join("git");
    let real = host.env.sh(&host.base, "command -v git");
    let script = format!(
        "#!/bin/sh\ncase \" $* \" in *' reset '*) touch '{}'; exec sleep 1000;; esac\nexec '{real}' \"$@\"\n",
        ready.display()
    );
    fs::write(&git, script).expect("ours");
    temp::chmod(&git, 0o755);
    let path = format!("{}:{}", host.env.join("bin").display(), std::env::var("PATH").expect("set"));
    let mut other = host.env.command(std::env::current_exe().expect("a running program has a path"));
    other.args(["--exact", "api::cancel::a_git_that_takes_for_ever_is_ended"]);
    let done = other.env("PATH", path).env(BASE, &host.base).env(READY, &ready).ok();
    assert!(done.text().contains("1 passed"), "{}", done.text());
    assert_eq!(host.env.git(&host.base, ["worktree", "list"]).lines().count(), 1, "no work tree is left");
    for dir in ["forks", "pending"] {
        assert_eq!(entries(&host.env.store(), dir), 0, "left in {dir}/");
    }
}

fn cancel_a_slow_git(base: PathBuf, ready: PathBuf) {
    let forker = Forker::builder().build().expect("a place");
    let cancel = CancelToken::new();
    std::thread::scope(|scope| {
        let forking = scope.spawn(|| forker.fork(&treefork::api::Environment::at(base), "x", &cancel).map(drop));
        while !ready.exists() {
            assert!(!forking.is_finished(), "it ended by itself");
            std::thread::yield_now();
        }
        cancel.cancel();
        assert_eq!(forking.join().expect("no panic").expect_err("cancelled").kind(), Kind::Cancelled);
    });
}
