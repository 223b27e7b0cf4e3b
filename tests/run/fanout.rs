//! One command in many forks.

use std::fs;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{BOTH, Site, Who, await_file};
use crate::common::run::{Done, wait};
use crate::common::{Run, assert_same};

fn fanout(site: &Site, options: &[&str], script: &str) -> std::process::Command {
    let mut command = site.treefork(["fanout", "--json"]);
    command.args(options).args(["--", "bash", "-c", script]);
    command.env("B", &site.base);
    command
}

fn rows(done: &Done) -> Vec<Value> {
    let rows: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    rows.as_array().expect("an array").clone()
}

fn column(rows: &[Value], name: &str) -> Vec<String> {
    rows.iter().map(|row| row[name].to_string().trim_matches('"').to_owned()).collect()
}

#[test]
fn every_fork_is_its_own() {
    for who in BOTH {
        let site = Site::new(who);
        let before = site.look();
        let script = "echo $TREEFORK_N > $B/file; git commit -qam {label}; sleep 0.1; cat file; git log -1 --format=%s";
        let done = fanout(&site, &["-n", "5", "-j", "3", "--label", "f"], script).ok();
        let rows = rows(&done);
        assert_eq!(column(&rows, "label"), ["f-1", "f-2", "f-3", "f-4", "f-5"]);
        for (n, row) in (1..).zip(&rows) {
            assert_eq!(row["output"], format!("{n}\nf-{n}\n"), "{who:?}");
            assert_eq!(row["fork_is"], "kept");
            assert!(row["wall_seconds"].as_f64().expect("a number") >= 0.1 && row["peak_kib"].as_u64() > Some(0));
        }
        assert_eq!(site.forks().len(), 5);
        assert_same(&before, &site.look(), "the base");
    }
}

#[test]
fn a_matrix_gives_each_fork_its_variables() {
    let site = Site::new(Who::Root);
    let matrix = site.env.join("tmp/matrix.json");
    fs::write(&matrix, r#"[{"SEED": 1, "NAME": "a b"}, {"SEED": 2, "NAME": "c"}]"#).expect("writable");
    let options = ["-n", "2", "--matrix", matrix.to_str().expect("text")];
    let done = fanout(&site, &options, "echo $SEED {SEED} \"{NAME}\" {n}").ok();
    let outputs = column(&rows(&done), "output");
    assert_eq!(outputs, ["1 1 a b 1\\n", "1 1 a b 2\\n", "2 2 c 3\\n", "2 2 c 4\\n"]);
    // Nothing was changed, so nothing is kept.
    assert_eq!(site.forks(), [""; 0]);
}

#[test]
fn failed_forks_go_or_stay_as_asked() {
    for who in BOTH {
        let site = Site::new(who);
        let script = "touch new; exit $((TREEFORK_N % 2))";
        let done = fanout(&site, &["-n", "4"], script).fails(1);
        assert_eq!(column(&rows(&done), "fork_is"), ["removed", "kept", "removed", "kept"], "{who:?}");
        let done = fanout(&site, &["-n", "2", "--keep-on-error"], script).fails(1);
        assert_eq!(column(&rows(&done), "fork_is"), ["kept", "kept"]);
        assert_eq!(site.forks().len(), 4);
    }
}

#[test]
fn the_first_success_is_merged_and_the_others_end() {
    for who in BOTH {
        let site = Site::new(who);
        let script = "echo $TREEFORK_N > won; [ $TREEFORK_N = 2 ] || sleep 1000";
        let done = fanout(&site, &["-n", "4", "-j", "4", "--merge", "first"], script).ok();
        let fates = column(&rows(&done), "fork_is");
        // One that had not begun by then never had a fork.
        let fits =
            |(n, fate): (usize, &String)| if n == 1 { fate == "merged" } else { fate == "removed" || fate == "null" };
        assert!(fates.iter().enumerate().all(fits), "{who:?}: {fates:?}");
        assert_eq!(fs::read_to_string(site.base.join("won")).expect("merged"), "2\n");
        assert_eq!(site.forks(), [""; 0]);
    }
}

#[test]
fn the_best_score_is_merged() {
    for who in BOTH {
        let site = Site::new(who);
        let script = "echo $((TREEFORK_N * 7 % 5)) > points; [ $TREEFORK_N != 3 ]";
        let options = ["-n", "6", "--merge", "best", "--score", "echo counted; cat points"];
        let done = fanout(&site, &options, script).ok();
        let rows = rows(&done);
        assert_eq!(column(&rows, "score"), ["2.0", "4.0", "null", "3.0", "0.0", "2.0"], "{who:?}");
        assert_eq!(column(&rows, "fork_is").iter().filter(|fate| *fate == "removed").count(), 5);
        assert_eq!(fs::read_to_string(site.base.join("points")).expect("merged"), "4\n");
        assert_eq!(site.forks(), [""; 0]);
        fanout(&site, &["--merge", "best"], "true").fails(125);
    }
}

#[test]
fn outputs_can_be_files() {
    let site = Site::new(Who::Root);
    let dir = site.env.join("tmp/out");
    let options = ["-n", "2", "--label", "o", "--output", dir.to_str().expect("text")];
    fanout(&site, &options, "echo out; echo err >&2").ok();
    assert_eq!(fs::read_to_string(dir.join("o-2.log")).expect("written"), "out\nerr\n");
}

#[test]
fn an_interrupt_ends_all_and_leaves_nothing() {
    for who in BOTH {
        let site = Site::new(who);
        let flag = site.env.join("tmp/ready");
        let script = format!("touch new; [ $TREEFORK_N = 1 ] || {{ echo > {}; sleep 1000; }}", flag.display());
        let mut command = fanout(&site, &["-n", "6", "-j", "2"], &script);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts");
        await_file(&flag);
        let pid = Pid::from_raw(child.id().try_into().expect("small")).expect("not 0");
        kill_process(pid, Signal::INT).expect("our own child");
        let status = wait(&mut child, "an interrupted fan-out");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(Signal::INT.as_raw()), "{who:?}");
        assert_eq!(site.forks(), [""; 0], "{who:?}");
        assert_eq!(super::ending::strays(&site), 0, "{who:?}");
    }
}

/// Many at work in a repository at once: each has its own commit, whole, and the base nothing of any.
#[test]
fn many_edit_and_commit_at_once() {
    let site = Site::new(Who::Root);
    let base = site.env.join("work/repository");
    crate::common::Repo::new(
        &site.env,
        &base,
        crate::common::Shape { submodule: false, ..crate::common::Shape::full(400) },
    );
    let look = || crate::common::Look::default().ino().ctime().at(&base);
    let before = look();
    let script = "for f in $(git ls-files 'pkg*' | head -n 50); do echo \"edit $TREEFORK_N\" >> $f; done; \
                  git commit -qam \"agent $TREEFORK_N\"; git diff --name-only HEAD^ HEAD | wc -l; git fsck 2>&1 | grep -v dangling; \
                  cat $(git ls-files 'pkg*' | head -n 50) | grep -c '^edit '; git log -1 --format=%s";
    let mut command = fanout(&site, &["-n", "8", "-j", "4", "--label", "f"], script);
    let rows = rows(&command.current_dir(&base).ok());
    for (n, row) in (1..).zip(&rows) {
        assert_eq!(row["output"], format!("50\n50\nagent {n}\n"), "{row}");
        assert_eq!(row["fork_is"], "kept");
    }
    assert_same(&before, &look(), "the base");
}
