//! What the cases of the other files say about merging.

use super::git::repository;
use crate::common::{Fork, Look, Shape, assert_same};

const DIR: &str = "mkdir dir; for n in 1 2 3; do echo $n > dir/f$n; done";
const ODD: &str =
    "mkdir $'d\\xff'; echo 1 > $'d\\xff/\\xff\\xfe'; echo 2 > $'sp ace\\n'; ln -s $'t\\xfe\\xff' link; echo 3 > plain";

#[test]
fn case_01_the_renamed_directory_merges() {
    let fork = Fork::new(DIR);
    fork.sh("echo new > dir/f2; mv dir other");
    let tree = Look::default().at(&fork.path);
    fork.merge();
    assert_same(&tree, &Look::default().at(&fork.base), "the base after the merge");
}

#[test]
fn case_01_new_directories_keep_their_times() {
    let fork = Fork::new("echo base > f");
    fork.sh("mkdir -p new/deep; echo x > new/deep/file; touch -d @5 new/deep new");
    let tree = Look::default().at(&fork.path);
    fork.merge();
    assert_same(&tree, &Look::default().at(&fork.base), "the base after the merge");
}

#[test]
fn case_03_and_the_merge_removes_what_was_in_it() {
    let fork = Fork::new("mkdir d; echo x > d/old");
    fork.sh("rm -rf d; mkdir d; echo n > d/new");
    fork.treefork.ok(["merge", "fork", "--allow-delete"]);
    fork.let_base_change();
    assert_eq!(fork.env().sh(&fork.base, "ls d"), "new");
}

#[test]
fn case_49_names_merge_byte_exact() {
    let fork = Fork::new(ODD);
    fork.sh("echo c > $'d\\xff/\\xff\\xfe'; echo n > $'new\\x80'; ln -s $'\\xc0\\x80' link2; echo p >> plain");
    let tree = Look::default().at(&fork.path);
    fork.merge();
    assert_same(&tree, &Look::default().at(&fork.base), "the base after the merge");
}

#[test]
fn case_52_symbolic_links_merge_as_links() {
    let fork = Fork::new("echo x > f; ln -s f good; ln -s nowhere dangling");
    fork.sh("ln -sfn elsewhere dangling; ln -s dangling new; chown -h 7:8 good; touch -hd @77.000000005 good");
    let tree = Look::default().at(&fork.path);
    fork.merge();
    assert_same(&tree, &Look::default().at(&fork.base), "the base after the merge");
}

#[test]
fn case_81_deleting_what_git_does_not_track_is_refused() {
    for change in ["rm notes.txt", "mv notes.txt moved.txt"] {
        let fork = repository(Shape::small());
        fork.sh(change);
        let refused = fork.merge_refused();
        assert!(refused.complaint().contains("notes.txt") || refused.text().contains("notes.txt"), "{refused:?}");
        assert!(fork.base.join("notes.txt").exists());
        let diff = fork.treefork.ok(["diff", "fork", "--name-status"]).text();
        assert!(
            diff.lines().any(|line| line.starts_with('D') && line.contains("notes.txt") || line.starts_with('R')),
            "{diff}"
        );
    }
}

#[test]
fn case_31_names_of_one_file_merge_as_one_file() {
    let fork = Fork::new("mkdir d; echo base > a; ln a b; ln a d/c; echo other > x; ln x y");
    fork.sh("echo more >> a; rm y; echo new > n; ln n m");
    let tree = Look::default().at(&fork.path);
    fork.merge();
    assert_same(&tree, &Look::default().at(&fork.base), "the base after the merge");
}

#[test]
fn case_27_special_files_are_made_anew_by_the_merge() {
    let fork = Fork::new("mkfifo p; mknod c c 1 3; touch f");
    fork.sh("mkfifo q; mknod d c 1 5; mknod b b 7 200; chmod 600 p; mv c e");
    let tree = Look::default().at(&fork.path);
    fork.treefork.ok(["merge", "fork", "--allow-delete"]);
    fork.let_base_change();
    assert_same(&tree, &Look::default().at(&fork.base), "the base after the merge");
}
