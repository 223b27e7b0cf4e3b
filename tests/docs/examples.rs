//! Every example runs, and does what it says.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::sources;
use crate::common::cli::BINARY;
use crate::common::{Env, Look, Run, assert_same};

/// A program of `examples/`, which cargo builds beside the tests.
fn example(name: &str) -> PathBuf {
    let path = Path::new(BINARY).parent().expect("a program is in a directory").join("examples").join(name);
    assert!(path.exists(), "{} is not built: run all targets, as `cargo test` does", path.display());
    path
}

struct Project {
    env: Env,
    base: PathBuf,
}

impl Project {
    fn new() -> Self {
        let env = Env::new();
        let base = env.dir("project");
        env.sh(&base, "git init -q; echo one > a.txt; git add -A; git commit -qm one; git status");
        Self { env, base }
    }

    fn command(&self, program: impl AsRef<Path>, args: &[&str]) -> Command {
        let mut command = self.env.command(program.as_ref());
        command.env("TREEFORK", BINARY).args(args);
        command
    }

    /// The forks that are left.
    fn forks(&self) -> usize {
        self.env.store().join("forks").read_dir().map_or(0, Iterator::count)
    }
}

/// The second helper is the only one that succeeds.
const TASK: &str = r#"test -d .git; [ "${HELPER-1}" = 1 ] && echo "by $HELPER" > new.txt"#;

#[test]
fn fanout_merges_the_first_success() {
    let project = Project::new();
    let base = project.base.to_str().expect("plain");
    let done = project.command(example("fanout"), &[base, "3", "sh", "-c", TASK]).ok();
    assert_eq!(done.text(), "helper 1 is merged");
    assert_eq!(std::fs::read_to_string(project.base.join("new.txt")).expect("merged"), "by 1\n");
    assert_eq!(project.forks(), 0);
    let failed = project.command(example("fanout"), &[base, "2", "false"]).fails(1);
    assert!(failed.complaint().contains("no helper succeeded"), "{}", failed.complaint());
    assert_eq!(project.forks(), 0);
}

#[test]
fn a_reviewer_sees_uncommitted_work_and_leaves_no_trace() {
    let project = Project::new();
    std::fs::write(project.base.join("a.txt"), "two\n").expect("ours");
    std::fs::write(project.base.join("untracked"), "u\n").expect("ours");
    let look = Look::default().ctime().ino().without(".git");
    let before = look.at(&project.base);
    let base = project.base.to_str().expect("plain");
    let done = project.command(example("reviewer"), &[base]).ok();
    assert!(done.text().contains("a.txt | 2 +-"), "{}", done.text());
    let done = project.command(example("reviewer"), &[base, "sh", "-c", "cat untracked; echo x > a.txt"]).ok();
    assert_eq!(done.text(), "u");
    assert_same(&before, &look.at(&project.base), "the base");
    assert_eq!(project.env.git(&project.base, ["worktree", "list"]).lines().count(), 1);
    assert_eq!(project.forks(), 0);
}

#[test]
fn the_parallel_benchmark_compares_with_copies() {
    let project = Project::new();
    let base = project.base.to_str().expect("plain");
    let done =
        project.command(example("parallel"), &[base, "3", "sh", "-c", "git status --porcelain; echo x > x"]).ok();
    assert!(done.text().contains("3 forks:") && done.text().contains("3 copies:"), "{}", done.text());
    assert_eq!(project.forks(), 0);
    assert!(!project.base.join("x").exists());
}

#[test]
fn async_hosts_call_it_where_blocking_is_allowed() {
    let project = Project::new();
    let base = project.base.to_str().expect("plain");
    let done = project.command(example("tokio"), &[base, "3", "sh", "-c", "echo x >> a.txt; cat a.txt"]).ok();
    assert_eq!(done.text(), "one\nx\none\nx\none\nx");
    assert_eq!(project.forks(), 0);
}

#[test]
fn other_languages_drive_the_command_line() {
    for (interpreter, script) in [("python3", "fanout.py"), ("node", "fanout.mjs")] {
        let mut version = Command::new(interpreter);
        if version.arg("--version").output().is_err() {
            eprintln!("other_languages_drive_the_command_line: {script} NOT RUN, there is no {interpreter} here");
            continue;
        }
        let project = Project::new();
        let base = project.base.to_str().expect("plain");
        let script = sources().join("examples").join(script);
        let script = script.to_str().expect("plain");
        let task = "mkdir taken && echo ours > taken/by";
        let done = project.command(interpreter, &[script, base, "3", "sh", "-c", task]).ok();
        assert!(done.text().lines().last().is_some_and(|line| line.starts_with("merged ")), "{}", done.text());
        assert_eq!(std::fs::read_to_string(project.base.join("taken/by")).expect("merged"), "ours\n");
        assert_eq!(project.forks(), 0);
        let usage = project.command(interpreter, &[script]).fails(2);
        assert!(usage.complaint().trim_start().lines().count() < 5 && usage.complaint().contains("usage: "));
        let failed = project.command(interpreter, &[script, base, "2", "false"]).fails(1);
        assert!(failed.text().contains("no helper succeeded"), "{}", failed.text());
        assert_eq!(project.forks(), 0);
    }
}
