//! The uncommitted state of a work tree in another one: what comes, what does not, and what happens when it cannot.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use treefork::durable::CancelToken;
use treefork::git::{Git, dirty, worktree};

use super::{in_child, logging_git, path_with, repo_at};
use crate::common::{Env, Look, assert_same};

/// A repository with a commit, and a work tree of it that [`Pair::bring`] fills.
struct Pair {
    env: Env,
    base: PathBuf,
    fork: PathBuf,
}

impl Pair {
    fn new() -> Self {
        let env = Env::new();
        let base = env.dir("base");
        env.git(&base, ["init", "-q"]);
        for (name, text) in [("a.txt", "one\n"), ("b.txt", "two\n"), ("d/c.txt", "three\n"), (".gitignore", "*.log\n")]
        {
            fs::create_dir_all(base.join(name).parent().expect("below")).expect("ours");
            fs::write(base.join(name), text).expect("ours");
        }
        fs::write(base.join("bin.dat"), [0, 1, 2, 255]).expect("ours");
        env.git(&base, ["add", "-A"]);
        env.git(&base, ["commit", "-q", "-m", "one"]);
        let fork = env.dir("fork");
        Self { env, base, fork }
    }

    /// Adds the work tree and brings the dirt over; the advisory. The base must stay as it is, index included.
    #[track_caller]
    fn bring(&self) -> Option<String> {
        let repo = repo_at(&self.base);
        let fork = worktree::add(&repo, &self.fork, &self.env.join("locks"), &CancelToken::new()).expect("added");
        let look = Look::default().ctime().ino().without(".git/worktrees");
        let before = look.at(&self.base);
        let advisory = dirty::bring(&Git::new(&repo).expect("readable"), &fork).expect("brought or reset");
        assert_same(&before, &look.at(&self.base), "the base");
        advisory
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.fork.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }
}

#[test]
fn modified_staged_deleted_and_binary() {
    let pair = Pair::new();
    fs::write(pair.base.join("a.txt"), "changed\n").expect("ours");
    fs::write(pair.base.join("b.txt"), "staged\n").expect("ours");
    fs::write(pair.base.join("new.txt"), "staged new\n").expect("ours");
    pair.env.git(&pair.base, ["add", "b.txt", "new.txt"]);
    fs::write(pair.base.join("b.txt"), "staged, then changed\n").expect("ours");
    fs::remove_file(pair.base.join("d/c.txt")).expect("ours");
    fs::write(pair.base.join("bin.dat"), [9, 0, 254, 10, 0]).expect("ours");
    fs::set_permissions(pair.base.join(".gitignore"), fs::Permissions::from_mode(0o755)).expect("ours");
    assert_eq!(pair.bring(), None);
    assert_eq!(pair.read("a.txt"), b"changed\n");
    assert_eq!(pair.read("b.txt"), b"staged, then changed\n");
    assert_eq!(pair.read("new.txt"), b"staged new\n");
    assert_eq!(pair.read("bin.dat"), [9, 0, 254, 10, 0]);
    assert!(!pair.fork.join("d/c.txt").exists());
    let mode = fs::metadata(pair.fork.join(".gitignore")).expect("there").permissions().mode();
    assert_eq!(mode & 0o100, 0o100);
    let status = |dir: &Path| pair.env.git(dir, ["diff", "HEAD", "--stat"]);
    assert!(status(&pair.fork).contains("a.txt"));
}

#[test]
fn untracked_in_a_new_directory_but_nothing_ignored_and_no_link() {
    let pair = Pair::new();
    fs::create_dir_all(pair.base.join("new/deep \n")).expect("ours");
    fs::write(pair.base.join("new/deep \n/file"), "untracked\n").expect("ours");
    fs::set_permissions(pair.base.join("new/deep \n/file"), fs::Permissions::from_mode(0o700)).expect("ours");
    fs::write(pair.base.join("new/x.log"), "ignored\n").expect("ours");
    symlink("/etc/passwd", pair.base.join("link")).expect("ours");
    symlink("d", pair.base.join("new/dir-link")).expect("ours");
    pair.env.sh(&pair.base, "mkfifo new/fifo && git init -q nested && touch nested/file");
    assert_eq!(pair.bring(), None);
    assert_eq!(pair.read("new/deep \n/file"), b"untracked\n");
    let mode = fs::metadata(pair.fork.join("new/deep \n/file")).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    for absent in ["new/x.log", "link", "new/dir-link", "new/fifo", "nested"] {
        assert!(fs::symlink_metadata(pair.fork.join(absent)).is_err(), "{absent}");
    }
}

#[test]
fn isolated_both_ways() {
    let pair = Pair::new();
    fs::write(pair.base.join("a.txt"), "dirty\n").expect("ours");
    assert_eq!(pair.bring(), None);
    fs::write(pair.fork.join("a.txt"), "fork\n").expect("ours");
    fs::write(pair.base.join("b.txt"), "base\n").expect("ours");
    assert_eq!(fs::read(pair.base.join("a.txt")).expect("there"), b"dirty\n");
    assert_eq!(pair.read("b.txt"), b"two\n");
}

#[test]
fn a_file_taken_out_of_the_index_stays_a_file() {
    let pair = Pair::new();
    pair.env.git(&pair.base, ["rm", "-q", "--cached", "a.txt"]);
    assert_eq!(pair.bring(), None);
    assert_eq!(pair.read("a.txt"), b"one\n");
}

#[test]
fn line_endings_and_renames() {
    let pair = Pair::new();
    fs::write(pair.base.join(".gitattributes"), "*.txt text eol=crlf\n").expect("ours");
    pair.env.sh(&pair.base, "git add -A; git commit -qm crlf; rm a.txt; git checkout -q a.txt; git mv b.txt moved.txt");
    fs::write(pair.base.join("a.txt"), "one\r\nmore\r\n").expect("ours");
    assert_eq!(pair.bring(), None);
    assert_eq!(pair.read("a.txt"), b"one\r\nmore\r\n");
    assert!(!pair.fork.join("b.txt").exists());
    assert!(pair.fork.join("moved.txt").exists());
}

#[test]
fn failure_gives_an_advisory_and_the_committed_head() {
    let pair = Pair::new();
    fs::write(pair.base.join("a.txt"), "dirty\n").expect("ours");
    fs::write(pair.base.join("untracked"), "u\n").expect("ours");
    let repo = repo_at(&pair.base);
    let fork = worktree::add(&repo, &pair.fork, &pair.env.join("locks"), &CancelToken::new()).expect("added");
    // The patch does not fit what is there.
    fs::write(pair.fork.join("a.txt"), "something else\n").expect("ours");
    let advisory = dirty::bring(&Git::new(&repo).expect("readable"), &fork).expect("reset").expect("an advisory");
    assert!(advisory.contains("committed HEAD only"), "{advisory}");
    assert_eq!(pair.read("a.txt"), b"one\n");
    assert!(!pair.fork.join("untracked").exists());
    assert_eq!(pair.env.git(&pair.fork, ["status", "--porcelain", "--ignored"]), "");
}

#[test]
fn a_file_that_cannot_be_copied_gives_an_advisory_too() {
    let pair = Pair::new();
    fs::write(pair.base.join("a.txt"), "dirty\n").expect("ours");
    fs::create_dir(pair.base.join("blocked")).expect("ours");
    fs::write(pair.base.join("blocked/file"), "u\n").expect("ours");
    let repo = repo_at(&pair.base);
    let fork = worktree::add(&repo, &pair.fork, &pair.env.join("locks"), &CancelToken::new()).expect("added");
    // A link in the way is not followed, not even to where the file would fit.
    symlink(pair.env.dir("outside"), pair.fork.join("blocked")).expect("ours");
    let advisory = dirty::bring(&Git::new(&repo).expect("readable"), &fork).expect("reset").expect("an advisory");
    assert!(advisory.contains("blocked/file"), "{advisory}");
    assert_eq!(pair.read("a.txt"), b"one\n");
    assert_eq!(fs::read_dir(pair.env.join("outside")).expect("there").count(), 0);
}

#[test]
fn a_clean_tree_takes_exactly_one_command() {
    let pair = Pair::new();
    let shim = logging_git(&pair.env);
    let set = |command: &mut std::process::Command| {
        command.env("PATH", path_with(&shim)).env("GIT_DIR", "/nowhere").env("GIT_TRACE", "1");
    };
    if !in_child("git::dirty::a_clean_tree_takes_exactly_one_command", set) {
        return;
    }
    let repo = repo_at(&pair.base);
    let fork = worktree::add(&repo, &pair.fork, &pair.env.join("locks"), &CancelToken::new()).expect("added");
    let git = Git::new(&repo).expect("readable");
    // The shim in front of the path is the parent's; this pair made one of its own behind it.
    let log = std::env::split_paths(&std::env::var_os("PATH").expect("set")).next().expect("the shim").join("log");
    fs::write(&log, "").expect("ours");
    assert_eq!(dirty::bring(&git, &fork).expect("brought"), None);
    let text = fs::read_to_string(&log).expect("the shim wrote it");
    let commands: Vec<&str> = text.lines().filter(|line| line.starts_with("command: ")).collect();
    assert!(commands.len() == 1 && commands[0].contains(" status --porcelain "), "{commands:?}");
    for line in text.lines() {
        let scrubbed = ["GIT_DIR=", "GIT_TRACE=", "GIT_WORK_TREE=", "GIT_INDEX_FILE=", CHILD_MARK];
        assert!(!scrubbed.iter().any(|name| line.starts_with(name)), "{line}");
    }
}

/// A variable of the caller that is none of git's business.
const CHILD_MARK: &str = "TREEFORK_TEST_CHILD=";
