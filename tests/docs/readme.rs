//! Every command of the README runs, in the order in which it stands there, and does what the text says.

use std::path::Path;

use super::{blocks, read, sources};
use crate::common::cli::BINARY;
use crate::common::{Env, Run, Treefork};

/// The search path of a user who has installed treefork.
fn path_with_treefork() -> std::ffi::OsString {
    let own = std::env::var_os("PATH").unwrap_or_default();
    let bin = Path::new(BINARY).parent().expect("a program is in a directory");
    std::env::join_paths([bin.to_path_buf()].into_iter().chain(std::env::split_paths(&own))).expect("plain paths")
}

#[test]
fn the_commands_of_the_readme_work() {
    let script = blocks(&read(&sources().join("README.md")), "sh").concat();
    assert!(script.lines().count() > 10, "these are the commands:\n{script}");
    let treefork = Treefork::new();
    let env = treefork.env();
    let base = env.dir("project");
    env.sh(&base, "git init -q; echo 'a line' > a.txt; git add a.txt; git commit -qm Begin");
    let script = format!("set -euo pipefail\n{script}");
    let done = env.command_in(&base, "bash").env("PATH", path_with_treefork()).args(["-c", &script]).ok();
    let (text, said) = (done.text(), done.complaint());
    // `diff` shows the line; the base's status has nothing to show; the commit has come along.
    assert!(text.contains("\n+a better line\n"), "{text}");
    assert!(!text.contains("?? NOTES"), "{text}");
    assert!(text.contains("Say it better"), "{text}");
    assert!(said.contains("is kept: `treefork diff"), "{said}");
    assert!(text.contains("On branch main"), "git works at the fork's own path, too: {text}");
    let read = |name: &str| std::fs::read_to_string(base.join(name)).expect("merged");
    assert_eq!(read("NOTES"), "a better line\n");
    assert_eq!(read("done.txt"), "done\n");
    assert_eq!(read("winner.txt"), "by number 3\n");
    assert!(!base.join("it.txt").exists(), "that fork was kept, not merged");
}

#[test]
fn the_two_commands_are_two_and_the_first_does_the_main_job() {
    let setup = blocks(&read(&sources().join("README.md")), "sh setup").concat();
    let commands: Vec<&str> = setup.lines().map(|line| line.split('#').next().unwrap_or_default().trim()).collect();
    assert_eq!(commands, ["sh examples/tour.sh", "cargo test"]);
    let env = Env::new();
    // As the README says it, with the treefork that is built already.
    let mut tour = env.command_in(sources(), "sh");
    let done = tour.arg("examples/tour.sh").env("TREEFORK", BINARY).env_remove("TREEFORK_STORE").ok();
    assert!(done.text().contains("Take the tour") && done.text().ends_with("$ treefork list"), "{}", done.text());
    assert!(done.complaint().contains("1 conflict; nothing was written"), "{}", done.complaint());
    let left: Vec<_> = env.join("tmp").read_dir().expect("there").collect();
    assert!(left.is_empty(), "the tour leaves {left:?}");
}

#[test]
fn the_tour_of_somebodys_checkout_leaves_it_alone() {
    let env = Env::new();
    let base = env.dir("mine");
    env.sh(&base, "git init -q; echo x > x; git add x; git commit -qm x; echo y > x; git status --short");
    let look = crate::common::Look::default().ctime().ino();
    let before = look.at(&base);
    let mut tour = env.command_in(sources(), "sh");
    tour.arg("examples/tour.sh").arg(&base).env("TREEFORK", BINARY).env_remove("TREEFORK_STORE").ok();
    crate::common::assert_same(&before, &look.at(&base), "the checkout");
}
