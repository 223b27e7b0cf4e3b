//! The view of a dispatcher: tasks, markers, gc.

use std::fs;
use std::time::Duration;

use treefork::Kind;
use treefork::api::{CancelToken, Manager};
use treefork::fork::gc::Fate;

use super::Host;

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
