//! The work tree strategy: HEAD or more, registered and unregistered without a trace, by many at once.

use std::fs;
use std::os::unix::fs::symlink;

use treefork::git::Repo as Found;
use treefork::strategy::{Hide, Site, Strategy, Symlinks, Wishes, Worktree};

use super::site;
use crate::common::{Env, Look, Repo, Shape, assert_same};

fn base(env: &Env) -> std::path::PathBuf {
    let base = env.join("base");
    Repo::new(env, &base, Shape::small());
    base
}

#[test]
fn head_only_and_gone_without_a_trace() {
    let env = Env::new();
    let base = base(&env);
    fs::write(base.join("README"), "changed\n").expect("ours");
    let look = Look::default().ctime().ino();
    let before = look.at(&base);
    let site = site(&base, &env.dir("store"), "f");
    Worktree.probe(&site).expect("possible");
    let made = Worktree.create(&site, &Wishes::default()).expect("made");
    assert_eq!(made.advisories, Vec::<String>::new());
    assert_ne!(fs::read_to_string(site.tree().join("README")).expect("there"), "changed\n");
    assert!(!site.tree().join("notes.txt").exists(), "untracked");
    assert_eq!(env.git(&site.tree(), ["status", "--porcelain"]), "");
    assert_eq!(env.git(&site.tree(), ["branch", "--show-current"]), "", "detached");
    assert_eq!(Worktree.is_changed(&site).expect("known"), Some(false));
    assert!(Found::at(&site.tree()).expect("readable").expect("a repository").is_linked());
    Worktree.destroy(&site).expect("destroyed");
    Worktree.destroy(&site).expect("nothing to do is success");
    assert_eq!(env.git(&base, ["worktree", "list", "--porcelain"]).matches("worktree ").count(), 1);
    assert!(!base.join(".git/worktrees").exists());
    // Making and removing an entry moves the times of the git directory, and nothing else.
    assert_same(&Look::default().no_mtime().at(&base), &Look::default().no_mtime().at(&base), "the base");
    let rest = |look: Look| look.without(".git");
    assert_same(&rest(look.clone()).at(&base), &rest(look).at(&base), "the base's files");
    drop(before);
}

#[test]
fn dirty_brings_the_changes() {
    let env = Env::new();
    let base = base(&env);
    fs::write(base.join("README"), "changed\n").expect("ours");
    let site = site(&base, &env.dir("store"), "f");
    let made = Worktree.create(&site, &Wishes { dirty: true, ..Wishes::default() }).expect("made");
    assert_eq!(made.advisories, Vec::<String>::new());
    assert_eq!(fs::read_to_string(site.tree().join("README")).expect("there"), "changed\n");
    assert_eq!(fs::read_to_string(site.tree().join("notes.txt")).expect("there"), "not tracked\n");
    assert!(!site.tree().join("build").exists(), "ignored");
    assert_eq!(Worktree.is_changed(&site).expect("known"), Some(true));
    Worktree.destroy(&site).expect("destroyed");
}

#[test]
fn links_as_asked_and_git_overlooks_it() {
    let env = Env::new();
    let base = base(&env);
    symlink("/etc/passwd", base.join("link/out")).expect("ours");
    env.git(&base, ["add", "link/out"]);
    env.git(&base, ["commit", "-q", "-m", "a link that leads out"]);
    for (symlinks, left) in [(Symlinks::Keep, 4), (Symlinks::Confine, 3), (Symlinks::Skip, 0)] {
        let site = Site {
            hide: Hide { symlinks, ..Hide::default() },
            ..site(&base, &env.dir("store"), &format!("{symlinks:?}"))
        };
        Worktree.create(&site, &Wishes::default()).expect("made");
        let links = fs::read_dir(site.tree().join("link")).map_or(0, Iterator::count);
        assert_eq!(links, left, "{symlinks:?}");
        assert_eq!(env.git(&site.tree(), ["status", "--porcelain"]), "", "{symlinks:?}");
        Worktree.destroy(&site).expect("destroyed");
    }
}

#[test]
fn refused_without_a_commit_or_a_repository() {
    let env = Env::new();
    let plain = env.dir("plain");
    let refused = |base: &std::path::Path| Worktree.probe(&site(base, &env.dir("store"), "f")).expect_err("cannot");
    assert!(refused(&plain).to_string().contains("no git work tree"));
    env.git(&plain, ["init", "-q"]);
    assert!(refused(&plain).to_string().contains("no commit yet"));
}

#[test]
fn many_at_once_and_all_gone() {
    let env = Env::new();
    let base = base(&env);
    let store = env.dir("store");
    std::thread::scope(|scope| {
        for n in 0..16 {
            let (base, store) = (&base, &store);
            scope.spawn(move || {
                let site = site(base, store, &format!("f{n}"));
                Worktree.create(&site, &Wishes::default()).expect("made");
                assert!(site.tree().join("README").exists());
                if n % 2 == 0 {
                    // Whatever became of the directory: the entry goes.
                    fs::remove_dir_all(site.tree()).expect("ours");
                }
                Worktree.destroy(&site).expect("destroyed");
            });
        }
    });
    assert_eq!(env.git(&base, ["worktree", "list", "--porcelain"]).matches("worktree ").count(), 1);
    env.git(&base, ["fsck", "--strict"]);
}

#[test]
fn a_damaged_work_tree_is_taken_away_too() {
    let env = Env::new();
    let base = base(&env);
    let site = site(&base, &env.dir("store"), "f");
    Worktree.create(&site, &Wishes::default()).expect("made");
    fs::write(site.tree().join(".git"), "nonsense").expect("ours");
    env.sh(&base, "rm .git/worktrees/*/HEAD; echo because > .git/worktrees/mnt/locked");
    Worktree.destroy(&site).expect("destroyed");
    assert_eq!(fs::read_dir(base.join(".git/worktrees")).map_or(0, Iterator::count), 0);
}
