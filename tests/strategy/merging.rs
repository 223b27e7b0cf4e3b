//! The way back from a copy: its changes are found by its manifest, and land as an overlay's do.

use std::path::{Path, PathBuf};

use crate::common::{Env, Image, Look, Run, Treefork, assert_same};

/// A repository to fork, with a bit of everything.
fn base(env: &Env, at: &Path) -> PathBuf {
    std::fs::create_dir_all(at).expect("ours");
    env.sh(
        at,
        "git init -q; seq 20 > text; mkdir -p d/e old was-dir; echo b > d/b; echo gone > d/gone; echo e > d/e/f
         echo o > old/o; echo x > was-dir/x; echo y > was-file; echo '*.o' > .gitignore; ln text linked
         ln -s $PWD/d into; git add -A; git commit -qm one; touch a.o",
    );
    at.to_path_buf()
}

/// Everything one can do to a tree.
const CHANGES: &str = "sed -i 's/^3$/three/' text; echo new > d/new; rm d/gone; chmod 700 d/e; chmod 755 d/b
    mv old renamed; rm -r was-dir; echo file > was-dir; rm was-file; mkdir was-file; echo in > was-file/in
    ln -s b d/link; mkfifo pipe; ln d/new d/again; touch b.o; setfattr -n user.note -v kept d/b";

fn check(treefork: &Treefork, root: &Path, strategy: &str) {
    let env = treefork.env();
    let base = base(env, &root.join("base"));
    let fork = |label: &str| {
        let mut create = treefork.command(["create", "--strategy", strategy, "--label", label]);
        PathBuf::from(create.arg(&base).ok().text())
    };
    let (clean, tree, late) = (fork("clean"), fork("work"), fork("late"));
    let look = Look::default().without(".git");
    let before = look.clone().ctime().ino().at(&base);
    assert_eq!(treefork.ok(["diff", "clean", "--name-status"]).text(), "");
    env.sh(&clean, "git status");
    treefork.ok(["merge", "clean"]);
    assert_same(&before, &look.clone().ctime().ino().at(&base), "merging a clean fork");

    env.sh(&tree, CHANGES);
    env.sh(&base, "sed -i 's/^18$/eighteen/' text");
    let diff = treefork.ok(["diff", "work", "--name-status"]).text();
    for line in ["M text", "A d/new", "D d/gone", "A renamed/o", "D old/o", "A d/link"] {
        assert!(diff.lines().any(|l| l.contains(line)), "{line}: {diff}");
    }
    treefork.ok(["merge", "work", "--keep", "--allow-delete"]);
    env.sh(&tree, "sed -i 's/^18$/eighteen/' text");
    let shared = look.clone().no_mtime().without("into").without("b.o");
    assert_same(&shared.at(&tree), &shared.at(&base), "the merged base");
    assert_eq!(std::fs::read_link(base.join("into")).expect("a link"), base.join("d"), "as it was");

    // It goes on from there, and commits come over.
    env.sh(&tree, "echo again >> d/new; git add -A; git commit -qm 'in the fork'");
    treefork.ok(["merge", "work"]);
    assert!(!tree.exists(), "a merged fork is gone");
    assert_eq!(env.git(&base, ["log", "-1", "--format=%s"]), "in the fork");
    assert_eq!(std::fs::read_to_string(base.join("d/new")).expect("there"), "new\nagain\n");
    env.git(&base, ["fsck", "--strict"]);

    // A conflict changes nothing.
    env.sh(&late, "sed -i 's/^3$/drei/' text; echo fine > fine");
    let before = Look::default().ctime().ino().at(&base);
    let said = treefork.fails(1, ["merge", "late"]);
    assert!(format!("{}{}", said.text(), said.complaint()).contains("text"), "the conflict is named");
    assert_same(&before, &Look::default().ctime().ino().at(&base), "after a conflict");
    assert_eq!(std::fs::read_to_string(late.join("fine")).expect("the fork lives"), "fine\n");
}

#[test]
fn changes_of_a_copy_land() {
    let treefork = Treefork::new();
    let root = treefork.env().dir("root");
    check(&treefork, &root, "copy");
}

#[test]
fn changes_of_a_reflink_land() {
    let image = Image::xfs(300);
    let treefork = Treefork::with_store(image.path().join("store"));
    check(&treefork, &image.path(), "reflink");
}

#[test]
fn a_work_tree_is_told_what_to_do_instead() {
    let treefork = Treefork::new();
    let base = base(treefork.env(), &treefork.env().join("base"));
    treefork.command(["create", "--strategy", "worktree", "--label", "w"]).arg(&base).ok();
    let said = treefork.fails(1, ["merge", "w"]).complaint();
    assert!(said.contains("work tree of the base's own repository") && said.contains("commit in it"), "{said}");
}

#[test]
fn commits_in_the_fork_of_a_linked_work_tree_are_not_lost() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let main = base(env, &env.join("main"));
    env.sh(&main, "git worktree add -q -b side ../side");
    let side = env.join("side");
    for strategy in ["copy", "overlay"] {
        let label = format!("by-{strategy}");
        let mut create = treefork.command(["create", "--strategy", strategy, "--label", &label]);
        let fork = PathBuf::from(create.arg(&side).ok().text());
        assert_eq!(treefork.ok(["diff", &label, "--name-status"]).text(), "", "{strategy}: its own git is no change");
        env.sh(
            &fork,
            "sed -i s/^3$/three/ text; git commit -qam work; git tag mine-$(basename $PWD)-$RANDOM; echo u > u",
        );
        let commit = env.git(&fork, ["rev-parse", "HEAD"]);
        let merged = treefork.ok(["merge", &label]);
        let said = format!("{}{}", merged.text(), merged.complaint());
        assert!(said.contains("refs/treefork/") && !said.contains("hooks"), "{strategy}: {said}");
        let there = env.git(&main, ["for-each-ref", "--points-at", &commit, "--format=%(refname)"]);
        assert!(there.contains("refs/treefork/") && there.contains("refs/tags/mine-"), "{strategy}: {there}");
        assert_eq!(env.git(&side, ["log", "-1", "--format=%s"]), "one", "{strategy}");
        assert_eq!(env.git(&side, ["status", "--porcelain"]), " M text\n?? u", "{strategy}");
        env.sh(&side, "git reset -q --hard; rm u");
    }
    env.git(&main, ["fsck", "--strict"]);
}

#[test]
fn a_work_tree_of_another_repository_in_the_base_is_no_change() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let other = base(env, &env.join("other"));
    let base = env.dir("base");
    std::fs::write(base.join("file"), "x").expect("ours");
    env.sh(&other, "git worktree add -q -b side ../base/side");
    for strategy in ["copy", "overlay"] {
        let mut create = treefork.command(["create", "--strategy", strategy, "--label", strategy]);
        let fork = PathBuf::from(create.arg(&base).ok().text());
        env.sh(&fork, "echo y > file; git -C side status");
        assert_eq!(treefork.ok(["diff", strategy, "--name-status"]).text(), "M file", "{strategy}");
        treefork.ok(["merge", strategy]);
        env.sh(&base, "echo x > file");
    }
}
