//! The main job: fork a real repository, work in it, bring the work back.

use std::fs;
use std::path::Path;

use crate::common::{Fork, Look, Repo, Run, Shape, Tree, Treefork, assert_same};

const FILES: usize = 20_000;

/// What of a tree a merge brings over: all but the git directory and what git ignores.
fn work(root: &Path) -> Tree {
    Look::default().without(".git").without("build").at(root)
}

#[test]
fn a_repository_is_forked_worked_in_and_merged() {
    let treefork = Treefork::new();
    let base = treefork.env().join("repo");
    Repo::new(treefork.env(), &base, Shape::full(FILES));
    let before = Look::default().ino().ctime().at(&base);
    let fork = Fork::of(treefork, base);
    let git = |args: &[&str]| fork.env().git(&fork.path, args);

    // Not one tracked file is opened to see that nothing changed.
    let trace = fork.env().join("trace");
    let mut status = fork.env().command_in(&fork.path, "strace");
    status.args(["-f", "-qq", "-e", "trace=open,openat,openat2", "-o"]).arg(&trace).args([
        "git",
        "status",
        "--porcelain",
    ]);
    assert_eq!(status.ok().text(), "?? notes.txt");
    let trace = fs::read_to_string(&trace).expect("strace wrote it");
    let tracked = |line: &&str| line.contains("\"pkg") && line.contains(".txt\"") || line.contains("\"hard/a\"");
    assert_eq!(trace.lines().filter(tracked).collect::<Vec<_>>(), Vec::<&str>::new(), "tracked files opened");
    assert!(trace.lines().any(|line| line.contains("index")), "the trace saw git");

    // Edits of all kinds, a commit, housekeeping.
    for n in (0..FILES).step_by(401) {
        let path = fork.path.join(Repo::file(n));
        let text = fs::read_to_string(&path).expect("it is tracked");
        fs::write(&path, text + "one more line\n").expect("it can be written");
    }
    fork.sh("git mv pkg01 moved; git rm -q -r pkg02/mod081; chmod +x README; mkdir -p new/deep; echo new > new/deep/file; echo more >> hard/a
        ln -sfn pkg03 link/dir; printf 'x\\0y' > binary");
    git(&["add", "-A", ":!notes.txt"]);
    git(&["commit", "-q", "-m", "work of the fork"]);
    fork.sh("echo uncommitted >> README; echo untracked > left-over");
    git(&["gc", "-q"]);
    git(&["fsck", "--strict", "--no-dangling"]);
    assert_eq!(git(&["status", "--porcelain"]), " M README\n?? left-over\n?? notes.txt");
    assert_same(&before, &Look::default().ino().ctime().at(&fork.base), "the base, before the merge");

    // And back.
    let wanted = work(&fork.path);
    fork.merge();
    assert_same(&wanted, &work(&fork.base), "the base, after the merge");
    let git = |args: &[&str]| fork.env().git(&fork.base, args);
    assert_eq!(git(&["log", "-1", "--format=%s"]), "work of the fork");
    assert_eq!(git(&["status", "--porcelain"]), " M README\n?? left-over\n?? notes.txt");
    git(&["fsck", "--strict", "--no-dangling"]);
    assert!(!fork.path.join("README").exists(), "a merged fork is gone");
}
