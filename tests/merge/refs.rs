//! Branches and tags that are not checked out: what stood still in the parent follows the fork, what moved keeps its place.

use super::kit::Work;

const BASE: &str = "seq 9 > f";
const WORK: &str = "git checkout -q ahead; echo a > a; git add a; git commit -qm ahead; \
                    git checkout -q rewritten; echo r > r; git add r; git commit -q --amend -m rewritten; \
                    git tag -f tag; git branch -D gone; git checkout -q main";

/// A repository with branches, packed where `pack` says so, and a fork that moved them.
fn scene(pack: &str) -> Work {
    let work = Work::repository(BASE);
    work.in_base(&format!("for b in ahead rewritten gone; do git branch $b; done; git tag tag; {pack}"));
    work.fork("w", WORK);
    work
}

fn subjects(work: &Work, refs: &[&str]) -> Vec<String> {
    refs.iter().map(|name| work.in_base(&format!("git log -1 --format=%s {name}"))).collect()
}

fn said(report: &serde_json::Value) -> String {
    report["git"].as_array().expect("notes").iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn branches_that_stood_still_follow_the_fork() {
    for pack in [":", "git pack-refs --all", "git pack-refs --all; git update-ref refs/heads/ahead HEAD"] {
        let work = scene(pack);
        let said = said(&work.merge("w", &[]));
        assert_eq!(subjects(&work, &["ahead", "rewritten", "gone", "main"]), ["ahead", "rewritten", "start", "start"]);
        assert_eq!(work.in_base("git log -1 --format=%s rewritten@{1}"), "start", "the old one is in the reflog");
        // A tag has no reflog, and nothing is deleted.
        assert_eq!(subjects(&work, &["tag"]), ["start"]);
        assert!(said.contains("refs/heads/gone was deleted in the fork, and stays"), "{said}");
        assert!(said.contains("refs/tags/tag: the parent has another of that name"), "{said}");
        let aside = work.in_base("git for-each-ref --format='%(refname)' refs/treefork");
        assert!(aside.ends_with("/tags/tag") && aside.lines().count() == 1, "{aside}");
        assert_eq!(work.in_base("git status --porcelain; git fsck 2>&1"), "");
    }
}

#[test]
fn branches_that_moved_keep_their_place() {
    let moved = "for b in ahead rewritten; do git update-ref refs/heads/$b $(git commit-tree -p HEAD -m moved HEAD^{tree}); done";
    for pack in [":", "git pack-refs --all"] {
        for (after, at) in [(moved, "moved"), ("git pack-refs --all", "start")] {
            let work = scene(pack);
            work.in_base(after);
            let said = said(&work.merge("w", &[]));
            let here = subjects(&work, &["ahead", "rewritten"]);
            let aside = work.in_base("git for-each-ref --format='%(refname) %(subject)' refs/treefork");
            assert!(
                aside.contains("/rewritten rewritten") || here[1] == "rewritten",
                "{pack}, {after}: {aside} {said}"
            );
            if at == "moved" {
                assert_eq!(here, ["moved", "moved"]);
                assert!(aside.contains("/ahead ahead"), "{aside}");
                assert!(said.contains("rewritten: it has moved in the parent"), "{said}");
            } else {
                // Packed only: whatever it is taken for, a plain advance is none.
                assert_eq!(here[0], "ahead");
            }
            assert_eq!(work.in_base("git fsck --no-dangling 2>&1"), "");
        }
    }
}

#[test]
fn a_branch_that_the_parent_deleted_does_not_come_back() {
    let work = scene(":");
    work.in_base("git branch -D ahead");
    let said = said(&work.merge("w", &[]));
    assert!(said.contains("ahead: it was deleted in the parent"), "{said}");
    assert_eq!(work.in_base("git branch --list ahead"), "");
}

#[test]
fn the_branch_that_the_parent_is_on_by_now_is_not_moved_under_it() {
    let work = scene(":");
    work.in_base("echo p > p; git add p; git commit -qm parent; git checkout -q ahead");
    let said = said(&work.merge("w", &[]));
    assert!(said.contains("ahead: it has moved in the parent, or the parent has gone to it"), "{said}");
    assert_eq!(work.in_base("git status --porcelain; git log -1 --format=%s"), "start");
}

#[test]
fn a_kept_fork_goes_on_from_where_its_branches_landed() {
    let work = scene(":");
    work.merge("w", &["--keep"]);
    let fork = std::path::PathBuf::from(work.treefork.ok(["path", "w"]).text());
    work.treefork.env().sh(
        &fork,
        "git checkout -q rewritten; git commit -q --amend --allow-empty -m again; git checkout -q main; \
                                   echo m > m; git add m; git commit -qm main",
    );
    let said = said(&work.merge("w", &["--keep"]));
    assert_eq!(subjects(&work, &["rewritten", "main"]), ["again", "main"], "{said}");
    work.treefork.env().sh(&fork, "echo n > n; git add n; git commit -q --amend -m amended");
    work.merge("w", &[]);
    assert_eq!(
        work.in_base("git log --format=%s; git status --porcelain; git fsck --no-dangling 2>&1"),
        "amended\nstart"
    );
}
