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
