//! Git repositories as forks meet them: hostile ones, dirty ones, those whose parts lie elsewhere.

mod dirty;
mod fsmonitor;
mod hostile;

use std::path::{Path, PathBuf};
use std::process::Command;

use treefork::git::Repo;

use crate::common::{Env, Run};

/// Tells a test that it is the child that [`in_child`] started.
const CHILD: &str = "TREEFORK_TEST_CHILD";

/// Runs the calling test again in a process of its own, whose environment `set` may change: what a library does with
/// its environment cannot be tested in a process that other tests share. True in the child, which then does the test.
#[track_caller]
fn in_child(test: &str, set: impl FnOnce(&mut Command)) -> bool {
    if std::env::var_os(CHILD).is_some_and(|name| name == test) {
        return true;
    }
    let binary = std::env::current_exe().expect("a running binary has a path");
    let mut command = Command::new(binary);
    command.args(["--exact", test, "--nocapture"]).env(CHILD, test);
    set(&mut command);
    let done = command.ok();
    assert!(done.text().contains("1 passed"), "no test is called {test}: {}", done.text());
    false
}

/// A directory with a `git` that writes each of its commands and its environment to the file `log` in it.
fn logging_git(env: &Env) -> PathBuf {
    let dir = env.dir("shim");
    let real = env.sh(env.tree().path(), "command -v git");
    let log = dir.join("log");
    let script = format!("#!/bin/sh\n{{ echo \"command: $*\"; env; }} >> {log:?}\nexec {real} \"$@\"\n");
    std::fs::write(dir.join("git"), script).expect("the new directory is ours");
    crate::common::temp::chmod(&dir.join("git"), 0o755);
    dir
}

/// Puts a directory in front of the search path.
fn path_with(dir: &Path) -> std::ffi::OsString {
    let mut path = dir.as_os_str().to_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    path
}

/// The repository at `top`.
#[track_caller]
fn repo_at(top: &Path) -> Repo {
    Repo::at(top).expect("readable").expect("a repository")
}

/// Everything here once more with the other git of this machine, where there is one.
#[test]
fn the_system_git_agrees() {
    const OTHER: &str = "/usr/bin/git";
    if std::env::var_os(CHILD).is_some() {
        return;
    }
    let first = std::env::var_os("PATH")
        .and_then(|path| std::env::split_paths(&path).map(|dir| dir.join("git")).find(|git| git.exists()));
    if !Path::new(OTHER).exists() || first.as_deref() == Some(Path::new(OTHER)) {
        eprintln!("the_system_git_agrees: NOT RUN, there is only one git here");
        return;
    }
    let binary = std::env::current_exe().expect("a running binary has a path");
    let done = Command::new(binary)
        // That git has never heard of reftables.
        .args(["git::", "--test-threads", "2", "--skip", "reftable"])
        .env(CHILD, "")
        .env("PATH", path_with(Path::new("/usr/bin")))
        .ok();
    assert!(!done.text().contains(" 0 passed"), "{}", done.text());
}
