//! Cases 76 and 80: a base whose git directory lies elsewhere. Whatever git does in the fork, the repository that the
//! base shares stays as it is, to the byte and to the nanosecond.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::opened_by_git;
use crate::common::{Env, Look, Treefork, assert_same};

/// Everything that agents do with git, and the checks that git itself has.
pub(super) const WORK: &str = "
    git status --porcelain
    echo fork >> a.txt; git commit -qam 'in the fork'
    git checkout -qb topic; echo more > new.txt; git add new.txt; git commit -qm more
    echo again >> a.txt; git stash -q; git stash pop -q; git checkout -q -- a.txt
    git tag mark; git update-ref refs/heads/made HEAD; git config user.note fork
    git switch -q -; git merge -q topic; git repack -adq; git gc -q --prune=now; git fsck --strict
    git reflog expire --expire=now --all; git worktree prune; test -z \"$(git status --porcelain)\"
    git log -1 --format=%s";

/// Makes the tracked files of the repositories in these directories older than their index: git reads younger ones
/// again, in the base as in a fork.
pub(super) fn settle(env: &Env, world: &Path, dirs: &str) {
    let old = "git ls-files -z | xargs -0 touch -hd '1 hour ago'; git update-index -q --refresh";
    env.sh(world, &format!("for dir in {dirs}; do (cd $dir; {old}); done"));
}

/// Makes `dir` a repository with two commits and a branch.
pub(super) fn repo(env: &Env, dir: &Path) {
    std::fs::create_dir_all(dir).expect("ours");
    env.git(dir, ["init", "-q"]);
    env.sh(dir, "echo one > a.txt; mkdir d; echo two > d/b.txt; git add -A; git commit -qm one");
    env.sh(dir, "echo three >> a.txt; git commit -qam two; git branch other");
    settle(env, dir, ".");
}

/// Forks `base` as a copy and as an overlay, works in the forks, and has nothing of `world` changed.
#[track_caller]
fn check(treefork: &Treefork, world: &Path, base: &Path, work_in: &[&str]) -> [PathBuf; 2] {
    ["copy", "overlay"].map(|way| {
        let before = LOOK().at(world);
        let create = [OsStr::new("create"), base.as_os_str(), OsStr::new("--strategy"), OsStr::new(way)];
        let tree = PathBuf::from(treefork.ok(create).text());
        assert_same(&before, &LOOK().at(world), &format!("making the {way}"));
        for dir in work_in {
            let dir = if dir.is_empty() { tree.clone() } else { tree.join(dir) };
            let env = treefork.env();
            assert_eq!(env.git(&dir, ["rev-parse", "--show-toplevel"]), dir.to_str().expect("text"), "{way}");
            assert_eq!(opened_by_git(env, &dir, &["status", "--porcelain"]), Vec::<PathBuf>::new(), "{way}");
            let common = env.git(&dir, ["rev-parse", "--path-format=absolute", "--git-common-dir"]);
            assert!(Path::new(&common).starts_with(&tree), "{way}: {common}");
            env.sh(&dir, WORK);
            assert_same(&before, &LOOK().at(world), &format!("work in the {way}"));
        }
        tree
    })
}

/// Everything about a tree, to the nanosecond.
pub(super) const LOOK: fn() -> Look = || Look::default().ctime().ino();

#[test]
fn case_76_linked_work_tree() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let world = env.dir("world");
    repo(env, &world.join("main"));
    env.sh(
        &world.join("main"),
        "git worktree add -q -b linked ../linked; cd ../linked; echo l > l.txt; git add l.txt; git commit -qm l",
    );
    settle(env, &world, "linked");
    for tree in check(&treefork, &world, &world.join("linked"), &[""]) {
        assert_eq!(
            env.git(&tree, ["for-each-ref", "--format=%(refname:short)", "refs/heads"]),
            "linked\nmade\nmain\nother\ntopic"
        );
        assert_eq!(env.git(&tree, ["log", "-1", "--format=%s", "main"]), "two");
    }
}

#[test]
fn case_76_work_tree_of_a_bare_repository() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let world = env.dir("world");
    repo(env, &world.join("main"));
    env.sh(&world, "git clone -q --bare main bare.git; git -C bare.git worktree add -q ../wt main");
    settle(env, &world, "wt");
    check(&treefork, &world, &world.join("wt"), &[""]);
}

#[test]
fn case_76_submodule() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let world = env.dir("world");
    repo(env, &world.join("lib"));
    repo(env, &world.join("super"));
    env.sh(&world.join("super"), "git submodule --quiet add ../lib sub; git commit -qm sub");
    settle(env, &world, "super super/sub");
    check(&treefork, &world, &world.join("super/sub"), &[""]);
}

#[test]
fn case_76_a_submodule_inside_the_base() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let world = env.dir("world");
    repo(env, &world.join("lib"));
    repo(env, &world.join("super"));
    env.sh(&world.join("super"), "git submodule --quiet add ../lib sub; git commit -qm sub");
    settle(env, &world, "super super/sub");
    check(&treefork, &world, &world.join("super"), &["sub"]);
}

#[test]
fn case_76_separate_git_dir() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let world = env.dir("world");
    repo(env, &world.join("main"));
    env.sh(&world, "git init -q --separate-git-dir=$PWD/apart.git main");
    check(&treefork, &world, &world.join("main"), &[""]);
}

#[test]
fn case_76_alternates() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let world = env.dir("world");
    repo(env, &world.join("main"));
    env.sh(&world, "git clone -q --shared main middle; git clone -q --shared middle shared");
    settle(env, &world, "shared");
    for tree in check(&treefork, &world, &world.join("shared"), &[""]) {
        assert!(!tree.join(".git/objects/info/alternates").exists());
    }
}

#[test]
fn case_76_linked_git_dir() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let world = env.dir("world");
    repo(env, &world.join("main"));
    env.sh(&world, "mkdir view; mv main/.git real.git; ln -s $PWD/real.git main/.git");
    check(&treefork, &world, &world.join("main"), &[""]);
}

#[test]
fn case_76_core_worktree() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let world = env.dir("world");
    repo(env, &world.join("main"));
    // To the work tree itself, from the root: harmless in the base, and a way back into it from a copy.
    env.sh(&world.join("main"), "git config core.worktree $PWD");
    check(&treefork, &world, &world.join("main"), &[""]);
}

#[test]
fn case_76_core_worktree_that_leads_away_is_refused() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let world = env.dir("world");
    repo(env, &world.join("main"));
    env.sh(&world.join("main"), "mkdir ../other; git config core.worktree ../../other");
    for way in ["copy", "overlay", "auto"] {
        let main = world.join("main");
        let create = [OsStr::new("create"), main.as_os_str(), OsStr::new("--strategy"), OsStr::new(way)];
        let said = treefork.fails(1, create).complaint();
        assert!(said.contains("core.worktree"), "{way}: {said}");
    }
}

#[test]
fn case_76_work_trees_and_repositories_inside_the_base() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let world = env.dir("world");
    repo(env, &world.join("outer"));
    repo(env, &world.join("base"));
    repo(env, &world.join("base/deep/nested"));
    env.sh(
        &world.join("base"),
        "git worktree add -q -b inner wt; git -C ../outer worktree add -q -b away ../base/foreign",
    );
    settle(env, &world.join("base"), "wt foreign");
    for tree in check(&treefork, &world, &world.join("base"), &["wt", "foreign", "deep/nested"]) {
        // The work tree in the fork still belongs to the repository in the fork.
        let list = env.git(&tree, ["worktree", "list", "--porcelain"]);
        assert!(list.contains(tree.join("wt").to_str().expect("text")), "{list}");
        assert_eq!(env.git(&tree, ["log", "-1", "--format=%s", "inner"]), "more");
    }
}

#[test]
fn case_80_housekeeping_in_the_fork() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let world = env.dir("world");
    repo(env, &world.join("origin"));
    env.sh(&world, "git clone -q origin base");
    settle(env, &world, "base");
    for tree in check(&treefork, &world, &world.join("base"), &[""]) {
        env.sh(&tree, "git switch -q --detach; git fetch -q origin; git repack -adq; git gc -q; git fsck --strict");
        env.sh(&world.join("base"), "git fsck --strict");
    }
}
