//! The view of a dispatcher: tasks, markers, gc.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use treefork::Kind;
use treefork::api::{CancelToken, Manager};
use treefork::fork::gc::Fate;

use super::Host;
use crate::common::Run;
use crate::common::cli::BINARY;

#[test]
fn one_fork_for_each_task() {
    let host = Host::git();
    let store = host.env.join("tasks");
    let manager = Manager::new(Some(&store)).expect("a place");
    let create = |task: &str| manager.create(&host.base, task, "agent-7", &CancelToken::new());
    let task = create("TASK-1").expect("made");
    fs::write(task.workdir.join("a.txt"), "work\n").expect("writable");
    assert!(task.workdir.join(".git").is_dir());

    assert_eq!(create("").expect_err("no id").kind(), Kind::Usage);
    assert_eq!(create(" ").expect_err("no id").kind(), Kind::Usage);
    assert_eq!(create("a/b").expect_err("a slash").kind(), Kind::Usage);
    assert_eq!(create("TASK-1").expect_err("taken").kind(), Kind::Exists);

    let marker = manager.marker("TASK-1").expect("readable");
    assert_eq!(marker.agent.as_deref(), Some("agent-7"));
    assert_eq!(marker.base.path, fs::canonicalize(&host.base).expect("there"));
    assert_eq!(marker.base_ref, Some(host.env.git(&host.base, ["rev-parse", "HEAD"])));
    assert_eq!(marker.owner.pid, std::process::id());

    let decisions = manager.gc(Duration::ZERO).expect("decided");
    assert!(decisions.iter().all(|d| d.fate == Fate::Kept && d.reason.contains("alive")), "{decisions:?}");
    task.cleanup.run().expect("removed");
    assert!(!task.workdir.exists());
    create("TASK-1").expect("free again");
}

/// Names the repository for the dispatcher that this test starts, and that dies without cleaning up.
const REPO: &str = "TREEFORK_TEST_MANAGED_REPO";

#[test]
fn what_a_dead_dispatcher_left_is_reaped_by_its_age() {
    if let Some(repo) = std::env::var_os(REPO).map(PathBuf::from) {
        let manager = Manager::new(None).expect("a place");
        let create = |task| manager.create(&repo, task, "agent-7", &CancelToken::new()).expect("made");
        let (clean, changed) = (create("clean"), create("changed"));
        fs::write(changed.workdir.join("a.txt"), "work\n").expect("writable");
        clean.cleanup.release();
        changed.cleanup.release();
        return;
    }
    let host = Host::git();
    let mut dispatcher = host.env.command(std::env::current_exe().expect("a running program has a path"));
    dispatcher.args(["--exact", "api::manager::what_a_dead_dispatcher_left_is_reaped_by_its_age"]);
    let done = dispatcher.env(REPO, &host.base).env("TREEFORK_BIN", BINARY).ok();
    assert!(done.text().contains("1 passed"), "{}", done.text());
    let manager = Manager::new(Some(&host.env.store())).expect("a place");
    let gc = |min_age: u64| -> Vec<(Option<String>, Fate, String)> {
        let decisions = manager.gc(Duration::from_secs(min_age)).expect("decided");
        decisions.into_iter().map(|d| (d.label, d.fate, d.reason)).collect()
    };
    let young = gc(3600);
    assert!(young.len() == 2 && young.iter().all(|d| d.1 == Fate::Kept && d.2.contains("less than 1h")), "{young:?}");
    let old = gc(0);
    let fate = |task: &str| old.iter().find(|d| d.0.as_deref() == Some(task)).expect("decided on");
    assert_eq!(fate("clean").1, Fate::Removed);
    assert!(fate("changed").1 == Fate::Kept && fate("changed").2.contains("never merged"), "{old:?}");
    assert_eq!(manager.marker("clean").expect_err("gone").kind(), Kind::NotFound);
    let left = manager.marker("changed").expect("kept");
    let path = host.env.store().join(Path::new("forks")).join(left.id.as_str()).join("mnt/a.txt");
    assert_eq!(fs::read(path).expect("there"), b"work\n");
}
