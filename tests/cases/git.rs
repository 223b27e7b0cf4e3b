//! Git bases.

use crate::common::{Fork, Look, Repo, Run, Shape, Treefork, assert_same, run::Done};

/// A fork of a generated repository.
pub(super) fn repository(shape: Shape) -> Fork {
    let treefork = Treefork::new();
    let base = treefork.env().join("base");
    Repo::new(treefork.env(), &base, shape);
    Fork::of(treefork, base)
}

#[test]
fn case_60_the_first_status_opens_no_tracked_file() {
    let fork = repository(Shape::full(1000));
    for _ in 0..2 {
        let trace = fork.env().join("trace");
        let mut status = fork.env().command_in(&fork.path, "strace");
        status.args(["-f", "-e", "trace=openat,open", "-o"]).arg(&trace).args(["git", "status", "--porcelain"]);
        assert_eq!(status.ok().text(), "?? notes.txt");
        let trace = std::fs::read_to_string(&trace).expect("strace wrote it");
        let read: Vec<&str> =
            trace.lines().filter(|line| line.contains(".txt\"") || line.contains("lib0.c\"")).collect();
        assert_eq!(read, Vec::<&str>::new());
        fork.restart();
    }
    assert_eq!(fork.env().git(&fork.path.join("vendor/lib"), ["status", "--porcelain"]), "");
}

#[test]
fn case_80_switching_packing_and_fetching_leave_both_sound() {
    let fork = repository(Shape { submodule: false, ..Shape::full(500) });
    let upstream = fork.env().join("upstream");
    fork.env().git(fork.env().tree().path(), ["clone", "-q", "--no-hardlinks", "base", "upstream"]);
    fork.env().sh(&upstream, "echo more > more; git add more; git commit -qm more");
    let git = |args: &[&str]| fork.env().git(&fork.path, args);
    git(&["switch", "-q", "other"]);
    git(&["switch", "-q", "-c", "topic", "main"]);
    fork.sh("echo topic > topic; git add topic; git commit -qm topic");
    git(&["fetch", "-q", "../../../../upstream", "main:refs/remotes/up/main"]);
    git(&["merge", "-q", "-m", "merge", "up/main"]);
    git(&["repack", "-adq"]);
    git(&["gc", "-q", "--prune=now"]);
    git(&["fsck", "--strict"]);
    assert_eq!(git(&["status", "--porcelain"]), "?? notes.txt");
    fork.restart();
    git(&["fsck", "--strict"]);
    fork.env().git(&fork.base, ["fsck", "--strict"]);
    assert_eq!(fork.env().git(&fork.base, ["rev-parse", "--abbrev-ref", "HEAD"]), "main");
}

/// Ways in which the git directory of a base lies elsewhere: a script in an empty directory that makes `base`.
const ELSEWHERE: &[(&str, &str)] = &[
    ("linked worktree", "$MAKE main; git -C main worktree add -q ../base"),
    ("separate git dir", "$MAKE main; git clone -q --separate-git-dir=elsewhere main base"),
    (
        "submodule",
        "$MAKE sub; $MAKE main; git -C main submodule --quiet add ../sub base; git -C main commit -qm sub; ln -s main/base base",
    ),
    ("alternates", "$MAKE main; git clone -q --shared main base"),
    (
        "core.worktree",
        "$MAKE main; mkdir base; mv main/.git repo; mv main/f base; git -C repo config core.bare false; git -C repo config core.worktree $PWD/base; echo gitdir: $PWD/repo > base/.git",
    ),
];

#[test]
fn case_76_a_git_directory_that_lies_elsewhere_is_never_written() {
    for (what, script) in ELSEWHERE {
        let treefork = Treefork::new();
        let env = treefork.env();
        let home = env.dir("git");
        let make = "make() { git init -q $1; (cd $1; echo 1 > f; git add f; git commit -qm 1); }";
        env.sh(&home, &format!("{make}; {}", script.replace("$MAKE", "make")));
        let base = std::fs::canonicalize(home.join("base")).expect("the script made it");
        env.git(&base, ["status", "--porcelain"]);
        let look = Look::default().ino();
        let before = look.at(&home);
        let args = ["create".as_ref(), base.as_os_str(), "--label".as_ref(), "fork".as_ref()];
        let made: Done = treefork.command(args).done();
        if !made.status.success() {
            assert!(made.complaint().contains("git"), "{what}: refused, but not with the reason: {}", made.complaint());
            assert_same(&before, &look.at(&home), what);
            eprintln!("{what}: refused: {}", made.complaint().trim());
            continue;
        }
        let fork = std::path::PathBuf::from(made.text());
        assert_eq!(env.git(&fork, ["status", "--porcelain"]), "", "{what}");
        env.sh(
            &fork,
            "echo 2 > f; git commit -qam 2; git checkout -qb topic; git stash -q || true; git gc -q; git fsck --strict",
        );
        assert_eq!(env.git(&fork, ["log", "--format=%s"]), "2\n1", "{what}");
        assert_same(&before, &look.at(&home), what);
    }
}
