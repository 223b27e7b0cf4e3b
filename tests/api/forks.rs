//! Forking: which kind of fork a host gets, and how it ends.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use treefork::Kind;
use treefork::api::{CancelToken, Environment, EnvironmentForker, Forker, Workspace};

use super::{Host, read, root};
use crate::common::cli::BINARY;
use crate::common::env::USER;
use crate::common::{Run, assert_same};

#[test]
fn a_reader_of_a_git_base_gets_a_linked_work_tree() {
    let host = Host::git();
    host.write("a.txt", "not committed\n");
    let fork = host.fork(host.forker());
    assert!(root(&fork).join(".git").is_file(), "a linked work tree");
    assert_eq!(read(root(&fork), "a.txt"), b"one\n");
    assert_eq!(fork.advisory, "");
    // The contrast to a fork of its own: the repository is shared, and a commit shows in the base.
    host.env.sh(root(&fork), "echo x > x; git add x; git commit -qm 'from the fork'");
    assert!(host.env.git(&host.base, ["log", "--all", "--reflog", "--oneline"]).contains("from the fork"));
    fork.cleanup.run().expect("removed");
    assert!(!host.env.git(&host.base, ["worktree", "list"]).contains("forks"));
}

#[test]
fn force_copy_gives_a_git_directory_of_its_own() {
    let host = Host::git();
    host.write("a.txt", "not committed\n");
    host.write("x.log", "ignored\n");
    let before = host.look();
    let fork = host.fork(host.forker().force_copy());
    assert!(root(&fork).join(".git").is_dir());
    assert_eq!(read(root(&fork), "a.txt"), b"not committed\n");
    assert_eq!(read(root(&fork), "x.log"), b"ignored\n");
    let script = "git commit -qam 'from the fork'; git update-ref refs/heads/other HEAD; git tag t; \
                  git checkout -qb branch; echo more > more; rm -r d; git gc -q";
    host.env.sh(root(&fork), script);
    fs::write(root(&fork).join(".git/file"), "x").expect("writable");
    assert_same(&before, &host.look(), "the base");
    fork.cleanup.run().expect("removed");
    assert_same(&before, &host.look(), "the base after the cleanup");
}

#[test]
fn hooks_of_the_base_do_not_run() {
    let host = Host::git();
    let sentinel = host.env.join("sentinel");
    let hook = host.base.join(".git/hooks/post-checkout");
    fs::create_dir_all(hook.parent().expect("below")).expect("ours");
    fs::write(&hook, format!("#!/bin/sh\ntouch {}\n", sentinel.display())).expect("ours");
    crate::common::temp::chmod(&hook, 0o755);
    let config = format!("[core]\n\tfsmonitor = touch {0}\n\tpager = touch {0}\n", sentinel.display());
    let all = fs::read_to_string(host.base.join(".git/config")).expect("there") + &config;
    fs::write(host.base.join(".git/config"), all).expect("ours");
    drop(host.fork(host.forker().dirty_overlay()));
    drop(host.fork(host.forker().force_copy()));
    assert!(!sentinel.exists());
}

#[test]
fn a_directory_without_git_is_forked_whole() {
    let host = Host::plain();
    let before = host.look();
    let fork = host.fork(host.forker());
    assert_eq!(read(root(&fork), "d/c.txt"), b"three\n");
    fs::write(root(&fork).join("a.txt"), "changed\n").expect("writable");
    assert_same(&before, &host.look(), "the base");
}

#[test]
fn a_repository_without_commits_is_forked_whole() {
    let host = Host::plain();
    host.env.git(&host.base, ["init", "-q"]);
    let fork = host.fork(host.forker());
    assert_eq!(read(root(&fork), "a.txt"), b"one\n");
}

#[test]
fn a_base_below_the_root_of_its_repository() {
    let host = Host::git();
    for forker in [host.forker(), host.forker().force_copy()] {
        let forker = forker.build().expect("a place");
        let fork = forker.fork(&Environment::at(host.base.join("d")), "x", &CancelToken::new()).expect("forked");
        assert_eq!(read(root(&fork), "c.txt"), b"three\n");
        assert_eq!(read(root(&fork), "../a.txt"), b"one\n");
    }
}

#[test]
fn five_at_once_are_five_forks() {
    let host = Host::git();
    for builder in [host.forker(), host.forker().force_copy()] {
        let forker = builder.build().expect("a place");
        let project = host.project();
        let forks: Vec<_> = std::thread::scope(|scope| {
            let fork = |_| scope.spawn(|| forker.fork(&project, "same/label", &CancelToken::new()).expect("forked"));
            (0..5).map(fork).collect::<Vec<_>>().into_iter().map(|t| t.join().expect("no panic")).collect()
        });
        let roots: BTreeSet<_> = forks.iter().map(|fork| root(fork).to_path_buf()).collect();
        assert_eq!(roots.len(), 5);
        for (n, fork) in forks.iter().enumerate() {
            fs::write(root(fork).join("a.txt"), format!("{n}\n")).expect("writable");
        }
        for (n, fork) in forks.iter().enumerate() {
            assert_eq!(read(root(fork), "a.txt"), format!("{n}\n").as_bytes());
        }
        assert_eq!(read(&host.base, "a.txt"), b"one\n");
    }
}

#[test]
fn cleanup_is_idempotent_and_thread_safe() {
    let host = Host::git();
    for forker in [host.forker(), host.forker().force_copy()] {
        let fork = host.fork(forker);
        let path = root(&fork).to_path_buf();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| fork.cleanup.clone().run().expect("gone is what is wanted"));
            }
        });
        assert!(!path.exists());
        fork.cleanup.run().expect("once more");
    }
}

#[test]
fn cleanup_happens_on_drop_unless_it_is_released() {
    let host = Host::plain();
    let fork = host.fork(host.forker());
    let path = root(&fork).to_path_buf();
    drop(fork);
    assert!(!path.exists());

    let fork = host.fork(host.forker());
    let path = root(&fork).to_path_buf();
    fork.cleanup.release();
    drop(fork);
    assert_eq!(read(&path, "a.txt"), b"one\n");
}

#[test]
fn cleanup_tolerates_a_fork_that_is_gone_and_a_caller_that_cancelled() {
    let host = Host::plain();
    let (first, second) = (host.fork(host.forker()), host.fork(host.forker()));
    let store = host.env.join("forks/treefork");
    let id = first.environment.fork_id().expect("a fork");
    let command = [Path::new("--store"), &store, Path::new("remove"), Path::new(id)];
    host.env.command(BINARY).args(command).ok();
    first.cleanup.run().expect("somebody else did it");
    let cancel = CancelToken::new();
    cancel.cancel();
    second.cleanup.run().expect("whatever the caller's token says");
}

#[test]
fn what_cannot_be_forked_is_an_error_and_leaves_nothing() {
    struct Nowhere;
    impl Workspace for Nowhere {
        fn root(&self) -> Option<&Path> {
            None
        }
    }
    let host = Host::plain();
    let forker = host.forker().build().expect("a place");
    let cancel = CancelToken::new();
    let kind = |base: &Environment, cancel| forker.fork(base, "x", cancel).expect_err("impossible").kind();
    assert_eq!(kind(&Environment::new(Arc::new(Nowhere), None), &cancel), Kind::Usage);
    assert_eq!(kind(&Environment::at(host.base.join("none")), &cancel), Kind::NotFound);
    assert_eq!(kind(&Environment::at(host.base.join("a.txt")), &cancel), Kind::Usage);
    cancel.cancel();
    assert_eq!(kind(&host.project(), &cancel), Kind::Cancelled);
    let forks = fs::read_dir(host.env.join("forks/treefork/forks")).map_or(0, Iterator::count);
    assert_eq!(forks, 0);
}

#[test]
fn the_host_opens_the_root_its_own_way() {
    struct Opened(std::path::PathBuf);
    impl Workspace for Opened {
        fn root(&self) -> Option<&Path> {
            Some(&self.0)
        }
    }
    let host = Host::plain();
    let fork = host.fork(host.forker().workspace(|root| Ok(Arc::new(Opened(root.join("d"))))));
    assert_eq!(read(root(&fork), "c.txt"), b"three\n");
}

/// Names the base for the host that this test starts: an ordinary user, where nothing helps to mount.
const BASE: &str = "TREEFORK_TEST_UNPRIVILEGED_BASE";

#[test]
fn where_nothing_can_be_mounted_the_fork_is_a_copy_and_the_advisory_says_so() {
    if let Some(base) = std::env::var_os(BASE).map(std::path::PathBuf::from) {
        let forker = Forker::builder().force_copy().build().expect("a place");
        let fork = forker.fork(&Environment::at(&base), "x", &CancelToken::new()).expect("copied");
        // Which of the two it is depends on the mode of the device.
        let why =
            ["fusermount3", "/dev/fuse is closed to this user"].into_iter().find(|why| fork.advisory.contains(why));
        assert!(fork.advisory.contains("overlay is not possible here") && why.is_some(), "{}", fork.advisory);
        assert!(root(&fork).join(".git").is_dir());
        fs::write(root(&fork).join("a.txt"), "fork\n").expect("writable");
        assert_eq!(read(&base, "a.txt"), b"one\n");
        fork.cleanup.run().expect("removed");
        return;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("where_nothing_can_be_mounted...: NOT RUN, turning into an ordinary user takes root");
        return;
    }
    let host = Host::git();
    // A search path with git, the shell that it wants and what turns into a user, but no fusermount3.
    let home = host.env.dir("user");
    let script = "mkdir bin; for p in git sh setpriv; do ln -s \"$(command -v $p)\" bin/; done; cp -r ../project base";
    host.env.sh(&home, &format!("{script}; chown -R {USER}:{USER} ."));
    let mut other = host.env.user_command(std::env::current_exe().expect("a running program has a path"));
    other.args(["--exact", "api::forks::where_nothing_can_be_mounted_the_fork_is_a_copy_and_the_advisory_says_so"]);
    other.env("PATH", home.join("bin")).env("TREEFORK_STORE", home.join("store")).env("TMPDIR", &home);
    let done = other.env("TREEFORK_BIN", BINARY).env(BASE, home.join("base")).ok();
    assert!(done.text().contains("1 passed"), "{}", done.text());
    assert_eq!(fs::read_dir(home.join("store/forks")).expect("made").count(), 0);
}
