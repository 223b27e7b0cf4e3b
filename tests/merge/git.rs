//! The git side of a merge.

use super::kit::Work;
use crate::common::{Look, Tree, assert_same};

const BASE: &str = "mkdir src; seq 20 > src/a; seq 20 > src/b; echo '*.o' > .gitignore; echo build/ >> .gitignore";

fn commit(work: &Work, label: &str) -> std::path::PathBuf {
    work.fork(label, "echo work >> src/a; echo new > src/new; git add -A; git commit -qm work; echo open >> src/b")
}

#[test]
fn commits_advance_a_branch_that_stood_still() {
    let work = Work::repository(BASE);
    let fork = commit(&work, "w");
    work.in_base("echo mine > staged; git add staged; echo loose > loose");
    let log = work.treefork.env().sh(&fork, "git log --format=%H");
    work.merge("w", &[]);
    assert_eq!(work.in_base("git log --format=%H"), log);
    assert_eq!(work.in_base("git status --porcelain"), " M src/b\nA  staged\n?? loose");
    assert_eq!(
        work.in_base("git fsck --strict 2>&1; git diff --cached --stat | tail -1"),
        " 1 file changed, 1 insertion(+)"
    );
    assert_eq!(work.in_base("git reflog -1 --format=%gs"), "treefork: merge of w");
    assert_eq!(work.leftovers(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_branch_that_moved_keeps_its_place() {
    let work = Work::repository(BASE);
    let fork = commit(&work, "w");
    let head = work.treefork.env().sh(&fork, "git rev-parse HEAD");
    let id = work.treefork.ok(["list", "--json"]).text();
    let list: serde_json::Value = serde_json::from_str(&id).expect("JSON");
    work.in_base("echo other > other; git add other; git commit -qm other");
    let parent = work.in_base("git rev-parse HEAD");
    let report = work.merge("w", &[]);
    let said = report["git"][0].as_str().expect("a note").to_owned();
    assert!(said.contains("has moved"), "{said}");
    assert_eq!(work.in_base("git rev-parse HEAD"), parent);
    let name = work.in_base("git for-each-ref --format='%(refname) %(objectname)' refs/treefork");
    assert!(name.starts_with("refs/treefork/") && name.ends_with(&format!("/main {head}")), "{name} {list}");
    assert_eq!(work.in_base("tail -1 src/a; git fsck 2>&1"), "work");
}

#[test]
fn three_way_with_the_committed_ancestor() {
    let work = Work::repository(BASE);
    work.fork("one", "sed -i 's/^3$/three/' src/a; git commit -qam one");
    work.fork("two", "sed -i 's/^17$/seventeen/' src/a; git commit -qam two");
    work.fork("bad", "sed -i 's/^3$/drei/' src/a");
    work.merge("one", &[]);
    work.merge("two", &[]);
    assert_eq!(work.in_base("sed -n '3p;17p' src/a"), "three\nseventeen");
    assert_eq!(work.conflicts("bad", &[]), [("src/a".to_owned(), "both-changed".to_owned())]);
    assert_eq!(work.in_base("grep -c '<<<' src/a || true"), "0");
}

#[test]
fn a_new_branch_in_the_fork() {
    let work = Work::repository(BASE);
    work.fork("b", "git checkout -qb topic; echo t > t; git add t; git commit -qm t; git tag v1");
    work.merge("b", &[]);
    assert_eq!(
        work.in_base("git symbolic-ref HEAD; git log --format=%s; git tag; git status --porcelain"),
        "refs/heads/topic\nt\nstart\nv1"
    );
}

#[test]
fn amended_and_rewritten() {
    let work = Work::repository(BASE);
    work.fork("a", "echo x > x; git add x; git commit -q --amend -m rewritten");
    work.merge("a", &[]);
    assert_eq!(work.in_base("git log --format=%s; git status --porcelain"), "rewritten");
}

#[test]
fn staged_in_the_fork_is_staged_in_the_parent() {
    let work = Work::repository(BASE);
    work.fork("s", "echo s > s; git add s; echo more >> s; git rm -q --cached src/b");
    work.merge("s", &[]);
    assert_eq!(work.in_base("git status --porcelain"), "AM s\nD  src/b\n?? src/b");
}

#[test]
fn ignored_files_stay_out_unless_asked() {
    let work = Work::repository(&format!("{BASE}; mkdir build; echo old > build/out; git add -f build/out"));
    let script = "echo o > x.o; mkdir -p build/deep t; echo b > build/deep/b; echo t > t/x.tmp; echo '*.tmp' >> .gitignore; echo new > build/out";
    work.fork("i", script);
    let report = work.merge("i", &["--keep"]);
    // What the fork's own rules ignore counts; what is tracked does not.
    assert_eq!(
        work.in_base("ls -A; ls build t; cat build/out"),
        ".git\n.gitignore\nbuild\nsrc\nt\nbuild:\nout\n\nt:\nnew"
    );
    assert_eq!(report["left_out"].as_array().map(Vec::len), Some(4), "{report}");
    work.merge("i", &["--ignored"]);
    assert_eq!(work.in_base("cat x.o build/deep/b t/x.tmp"), "o\nb\nt");
}

#[test]
fn deleting_what_git_does_not_track_has_to_be_allowed() {
    // Case 81.
    let work = Work::repository(BASE);
    work.in_base("echo precious > u; mkdir v; echo w > v/w");
    work.fork("d", "rm u; mv v/w w; rm src/b");
    let mut found = work.conflicts("d", &[]);
    found.sort();
    let why = "untracked-deletion".to_owned();
    assert_eq!(found, [("u".to_owned(), why.clone()), ("v/w".to_owned(), why)]);
    work.merge("d", &["--allow-delete"]);
    assert_eq!(work.in_base("ls"), "src\nv\nw");
}

#[test]
fn hooks_and_settings_come_only_when_named() {
    let work = Work::repository(BASE);
    let script = "git config core.pager evil; for h in pre-commit post-checkout; do printf '#!/bin/sh\\ntouch /tmp/never' > .git/hooks/$h; chmod +x .git/hooks/$h; done; echo x > x; git add x; git commit -qnm x";
    work.fork("h", script);
    let report = work.merge("h", &["--with-git", ".git/hooks/pre-commit"]);
    assert_eq!(
        work.in_base("git config core.pager || echo unset; ls .git/hooks | grep -v sample"),
        "unset\npre-commit"
    );
    let left: Vec<&str> =
        report["left_out"].as_array().expect("list").iter().filter_map(|l| l["path"].as_str()).collect();
    assert_eq!(left, [".git/config", ".git/hooks/post-checkout"]);
}

#[test]
fn a_parent_with_something_under_way_is_refused() {
    let work = Work::repository(BASE);
    commit(&work, "w");
    for (name, word) in [("index.lock", "index.lock"), ("MERGE_HEAD", "merge"), ("CHERRY_PICK_HEAD", "cherry-pick")] {
        let file = work.base.join(".git").join(name);
        std::fs::write(&file, "").expect("writable");
        let before = Tree::at(&work.base);
        let said = work.treefork.fails(1, ["merge", "w"]).complaint();
        assert!(said.contains(word), "{said}");
        assert_same(&before, &Tree::at(&work.base), "the base");
        std::fs::remove_file(&file).expect("still there");
    }
    std::fs::create_dir(work.base.join(".git/rebase-merge")).expect("room");
    assert!(work.treefork.fails(1, ["merge", "w"]).complaint().contains("rebase"));
}

#[test]
fn detached_unborn_packed_and_sha256() {
    let work = Work::repository(BASE);
    work.in_base("git checkout -q --detach; git pack-refs --all");
    commit(&work, "d");
    work.merge("d", &[]);
    assert_eq!(work.in_base("git log --format=%s; git status --porcelain"), "work\nstart\n M src/b");

    let work = Work::plain("git init -q; echo f > f");
    work.fork("u", "git add f; git commit -qm first");
    work.merge("u", &[]);
    assert_eq!(work.in_base("git log --format=%s; git status --porcelain"), "first");

    let work = Work::plain("git init -q --object-format=sha256; echo f > f; git add f; git commit -qm start");
    work.fork("s", "echo g > g; git add g; git commit -qm second; git gc -q");
    work.merge("s", &[]);
    assert_eq!(work.in_base("git log --format=%s; git status --porcelain; git fsck 2>&1"), "second\nstart");
}

#[test]
fn reftable_is_refused_by_name() {
    let work = Work::plain("git init -q --ref-format=reftable; echo f > f; git add f; git commit -qm start");
    work.fork("r", "echo g > g; git add g; git commit -qm second");
    let before = Tree::at(&work.base);
    let said = work.treefork.fails(1, ["merge", "r"]).complaint();
    assert!(said.contains("reftable"), "{said}");
    assert_same(&before, &Tree::at(&work.base), "the base");
}

#[test]
fn gc_in_the_fork_and_in_the_base() {
    let work = Work::repository(BASE);
    work.fork("g", "for i in 1 2 3; do echo $i > src/$i; git add -A; git commit -qm $i; done; git gc -q --prune=now");
    work.in_base("git gc -q --prune=now");
    work.merge("g", &[]);
    assert_eq!(work.in_base("git log --format=%s; git status --porcelain; git fsck 2>&1"), "3\n2\n1\nstart");
}

#[test]
fn nothing_of_the_fork_runs_and_a_nested_repository_is_not_torn() {
    let work = Work::repository(BASE);
    work.fork("n", "git init -q sub; cd sub; echo x > x; git add x; git commit -qm x");
    assert_eq!(work.conflicts("n", &[]), [("sub/.git".to_owned(), "nested-repository".to_owned())]);
    let before = Look::default().at(&work.base);
    assert_same(&before, &Look::default().at(&work.base), "the base");
    work.merge("n", &["--with-git", "sub/.git"]);
    assert_eq!(work.in_base("git -C sub log --format=%s"), "x");
}
