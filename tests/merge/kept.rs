//! Forks that outlive a merge: what the merge did to the base is no drift for them.

use serde_json::Value;

use super::kit::Work;
use crate::common::{Run, eventually};

const BASE: &str = "mkdir d e; seq 9 > f; seq 99 > d/x; echo e > e/f; echo z > z";
const WORK: &str = "echo more >> f; echo in >> d/x; mkdir n; echo n > n/n; rm -r e; echo z2 > z";

/// The drifted paths, after everything was looked at.
fn drift(work: &Work, label: &str) -> Value {
    let path = work.treefork.ok(["path", label]).text();
    work.treefork.env().sh(path.as_ref(), "ls -laR > /dev/null; find . -type f -exec cat {} + > /dev/null");
    let report: Value = serde_json::from_str(&work.treefork.ok(["show", label, "--json"]).text()).expect("JSON");
    report["drift"].clone()
}

#[test]
fn its_own_merge_is_no_drift_for_a_kept_fork() {
    for work in [Work::plain(BASE), Work::repository(BASE)] {
        work.fork("w", WORK);
        work.merge("w", &["--keep", "--allow-delete"]);
        assert_eq!(drift(&work, "w"), serde_json::json!([]));
        work.treefork.restart("w");
        assert_eq!(drift(&work, "w"), serde_json::json!([]), "after a restart of the server");
        work.in_base("echo theirs > z");
        eventually("what others do is", || drift(&work, "w") == serde_json::json!(["z"]));
    }
}

#[test]
fn a_merge_that_was_undone_is_no_drift() {
    let work = Work::plain(BASE);
    work.fork("w", WORK);
    let failing = format!("merge.sync:fail={}", libc::ENOSPC);
    let done = work.treefork.command(["merge", "w"]).env("TREEFORK_FAULT", failing).done();
    assert!(done.complaint().contains("No space left"), "{}", done.complaint());
    assert_eq!(drift(&work, "w"), serde_json::json!([]), "failed");
    let done = work.treefork.command(["merge", "w"]).env("TREEFORK_FAULT", "merge.sync:kill").done();
    assert!(!done.status.success());
    work.treefork.ok(["list"]);
    assert_eq!(drift(&work, "w"), serde_json::json!([]), "killed");
    work.in_base("echo theirs > z");
    eventually("what others do is", || drift(&work, "w") == serde_json::json!(["z"]));
}
