//! Work trees deep down in a base, where nobody looks when a fork is made: an overlay gives them a git directory of their
//! own when somebody gets there.

use std::path::{Path, PathBuf};

use treefork::fork::Record;
use treefork::strategy::{Overlay, Strategy};

use super::elsewhere::{LOOK, WORK, repo, settle};
use super::opened_by_git;
use crate::common::{Treefork, assert_same};

/// Deeper than any search at the top reaches.
const DEEP: &str = "l1/l2/l3/l4/l5/l6/l7/l8/l9/l10/l11/l12/l13/l14/l15/l16/l17/l18/l19/l20";

/// A base with a linked work tree of an outer repository far below; the fork of it, just made, and the outer world.
fn deep(treefork: &Treefork) -> (PathBuf, PathBuf) {
    let env = treefork.env();
    let world = env.dir("world");
    repo(env, &world.join("outer"));
    env.sh(&world, &format!("mkdir -p base/{DEEP}; git -C outer worktree add -q -b away $PWD/base/{DEEP}/wt"));
    settle(env, &world, &format!("base/{DEEP}/wt"));
    let fork = treefork.create(&world.join("base"), "deep");
    (world, fork)
}

#[test]
fn case_76_a_work_tree_of_an_outer_repository_deep_down() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let (world, fork) = deep(&treefork);
    let before = LOOK().at(&world);
    let tree = fork.join(DEEP).join("wt");
    // The very first thing that is done there.
    env.sh(&tree, "git commit -q --allow-empty -m first; git log -1 --format=%s");
    assert_same(&before, &LOOK().at(&world), "a commit");
    assert_eq!(opened_by_git(env, &tree, &["status", "--porcelain"]), Vec::<PathBuf>::new());
    let common = env.git(&tree, ["rev-parse", "--path-format=absolute", "--git-common-dir"]);
    assert_eq!(Path::new(&common), tree.join(".git"));
    env.sh(&tree, WORK);
    assert_same(&before, &LOOK().at(&world), "all kinds of work");
    treefork.restart("deep");
    assert_eq!(env.git(&tree, ["log", "-1", "--format=%s", "topic"]), "more");
    assert_same(&before, &LOOK().at(&world), "a restart");
}

#[test]
fn a_git_directory_that_is_made_later_is_no_change() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let (world, fork) = deep(&treefork);
    let tree = fork.join(DEEP).join("wt");
    // Whoever only lists finds what whoever looks finds.
    assert_eq!(env.sh(&fork, "find . -name .git -type d | wc -l; find . -name .git -type f | wc -l"), "1\n0");
    env.sh(&tree, "git log -1");
    assert_eq!(treefork.ok(["diff", "deep", "--name-status"]).text(), "");
    let dir = fork.parent().expect("in the store");
    let record = Record::read(dir).expect("readable").expect("there");
    let changed = || Overlay.is_changed(&record.site(treefork.store(), dir).expect("readable")).expect("readable");
    std::fs::read(tree.join(".git/HEAD")).expect("there");
    assert_eq!(changed(), Some(false));
    env.sh(&tree, "echo work > a.txt");
    assert_eq!(changed(), Some(true));
    assert!(treefork.ok(["diff", "deep", "--name-status"]).text().ends_with("wt/a.txt"));
    treefork.ok(["merge", "deep"]);
    assert_eq!(std::fs::read_to_string(world.join("base").join(DEEP).join("wt/a.txt")).expect("merged"), "work\n");
    env.sh(&world.join("base").join(DEEP).join("wt"), "git status --porcelain; git worktree list");
}

#[test]
fn it_goes_with_its_directory_and_moves_with_it() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let (world, fork) = deep(&treefork);
    let before = LOOK().at(&world);
    env.sh(
        &fork,
        "mv l1/l2 moved; git -C moved/l3/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/wt commit -q --allow-empty -m moved",
    );
    env.sh(&fork, "rm -rf moved l1; test -z \"$(ls -A)\"");
    assert_same(&before, &LOOK().at(&world), "a move and a removal");
}

#[test]
fn a_repository_deep_down_with_work_trees_beside_it() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let world = env.dir("world");
    let dir = world.join("base").join(DEEP);
    repo(env, &dir.join("main"));
    env.sh(&dir.join("main"), "git worktree add -q -b beside ../beside");
    settle(env, &dir, "beside");
    let before = LOOK().at(&world);
    let fork = treefork.create(&world.join("base"), "deep");
    let tree = fork.join(DEEP);
    env.sh(&tree, "echo x >> beside/a.txt; git -C beside commit -qam work; git -C main worktree remove beside");
    assert!(!tree.join("beside").exists());
    assert_eq!(env.git(&tree.join("main"), ["log", "-1", "--format=%s", "beside"]), "work");
    assert_same(&before, &LOOK().at(&world), "work in a linked work tree");
}

#[test]
fn where_none_can_be_had_git_is_told_why() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let world = env.dir("world");
    repo(env, &world.join("outer"));
    let tree = world.join("base").join(DEEP).join("wt");
    std::fs::create_dir_all(&tree).expect("ours");
    // A repository whose work tree is somewhere else again.
    env.sh(
        &tree,
        "git init -q --separate-git-dir=../../apart.git; mkdir ../other; git config core.worktree $PWD/../other",
    );
    let before = LOOK().at(&world);
    let fork = treefork.create(&world.join("base"), "deep");
    let done = env.sh(&fork.join(DEEP).join("wt"), "git status 2>&1 || true");
    assert!(done.contains("treefork: ") && done.contains("core.worktree"), "{done}");
    assert_same(&before, &LOOK().at(&world), "a refusal");
}
