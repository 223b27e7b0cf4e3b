//! Many at once: 64 creates and removes from 16 processes, and everybody who starts the server at the same time.

use std::collections::HashSet;

use super::{assert_nothing_left, json, listed, small_base};
use crate::common::{Run, Treefork};

#[test]
fn sixty_four_forks_from_sixteen_processes() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    treefork.env().git(&base, ["init", "-q"]);
    treefork.env().git(&base, ["add", "-A"]);
    treefork.env().git(&base, ["commit", "-qm", "one"]);
    // Each process makes four, works in them, and removes two; the names tell them apart.
    let script = r#"
        for n in 1 2 3 4; do
            fork=$("$BIN" create "$BASE" --label "w$1-$n") || exit 1
            echo "$1-$n" > "$fork/mine" || exit 1
            [ "$(cat "$fork/mine" "$fork/file")" = "$1-$n
one" ] || { echo "wrong content in $fork" >&2; exit 1; }
            echo "$fork"
        done
        "$BIN" remove "w$1-1" "w$1-3""#;
    let workers: Vec<_> = (0..16)
        .map(|n| {
            let mut command = treefork.env().command("bash");
            command.args(["-c", script, "worker", &n.to_string()]);
            command.env("BIN", crate::common::cli::BINARY).env("BASE", &base);
            std::thread::spawn(move || command.ok().text())
        })
        .collect();
    let outputs: Vec<String> = workers.into_iter().map(|w| w.join().expect("a worker succeeds")).collect();
    let paths: HashSet<&str> = outputs.iter().flat_map(|text| text.lines()).collect();
    assert_eq!(paths.len(), 64, "all distinct");
    let left = json(&treefork, &["list"]);
    let left = left.as_array().expect("a list");
    assert_eq!(left.len(), 32);
    assert!(left.iter().all(|fork| fork["mount"] == "alive" && fork["state"] == "live"));
    for fork in left {
        let label = fork["label"].as_str().expect("a label");
        let mine = std::fs::read_to_string(format!("{}/mine", fork["path"].as_str().expect("a path")));
        assert_eq!(format!("w{}", mine.expect("written above").trim()), label, "no cross-talk");
    }
    // The rest from many processes again, each fork from two of them at once.
    let removers: Vec<_> = (0..16)
        .map(|n| {
            let mut command = treefork.env().command("bash");
            let script = r#"for w in $1 $((($1 + 1) % 16)); do
                for n in 2 4; do "$BIN" remove "w$w-$n" 2>>"$2" || :; done
            done"#;
            command.args(["-c", script, "remover", &n.to_string()]).arg(treefork.env().join("complaints"));
            command.env("BIN", crate::common::cli::BINARY);
            std::thread::spawn(move || command.ok())
        })
        .collect();
    removers.into_iter().for_each(|r| drop(r.join().expect("no panic")));
    let complaints = std::fs::read_to_string(treefork.env().join("complaints")).expect("readable");
    let known = |line: &&str| {
        line.starts_with("hint: ") || line.contains("no fork is called") || line.contains("there is no fork")
    };
    let others: Vec<&str> = complaints.lines().filter(|line| !known(line)).collect();
    assert!(others.is_empty(), "{others:#?}");
    assert_nothing_left(&treefork);
    let worktrees = treefork.env().git(&base, ["worktree", "list"]);
    assert_eq!(worktrees.lines().count(), 1, "{worktrees}");
    assert!(!base.join("mine").exists(), "nothing came through to the base");
}

/// The server is killed again and again under many who make, use and remove forks: each command either works or says why
/// it did not, and nothing is left behind.
#[test]
fn a_server_that_is_killed_all_the_time() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    treefork.create(&base, "steady");
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (treefork, base, tell) = (&treefork, &base, tell.clone());
            scope.spawn(move || {
                for n in 0..6 {
                    let label = format!("w{worker}-{n}");
                    let made = treefork.create(base, &label);
                    tell.send(()).expect("heard until all are done");
                    // Fails where the server is killed just now.
                    let _ = treefork.env().command("touch").arg(made.join("new")).done();
                    treefork.ok(["remove", "--force", &label]);
                }
            });
        }
        drop(tell);
        // One kill for every four forks.
        for _ in told.iter().step_by(4) {
            kill_server_if_any(&treefork);
        }
    });
    let path = treefork.ok(["path", "steady"]).text();
    assert_eq!(treefork.env().sh(std::path::Path::new(&path), "cat file"), "one");
    treefork.ok(["remove", "steady"]);
    assert_nothing_left(&treefork);
}

/// The same label from many at once, while others come and go: one gets it, each time.
#[test]
fn one_label_is_given_once() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    for round in 0..2 {
        // Sixteen processes that try four times each.
        let script = r#"for n in 1 2 3 4; do "$BIN" create "$BASE" --label same 2>> "$COMPLAINTS"; done
            "$BIN" create "$BASE" --label "own$1" > "$COMPLAINTS.$1" && "$BIN" remove "own$1""#;
        let complaints = treefork.env().join("complaints");
        let tries: Vec<_> = (0..16)
            .map(|n| {
                let mut command = treefork.env().command("bash");
                command.args(["-c", script, "maker", &n.to_string()]);
                command.env("BIN", crate::common::cli::BINARY).env("BASE", &base).env("COMPLAINTS", &complaints);
                std::thread::spawn(move || command.ok().text())
            })
            .collect();
        let made: Vec<String> = tries.into_iter().map(|t| t.join().expect("no panic")).collect();
        let won: Vec<&str> = made.iter().flat_map(|text| text.lines()).collect();
        assert_eq!(won.len(), 1, "round {round}: {won:?}");
        let text = std::fs::read_to_string(&complaints).expect("there");
        let lost = text.lines().filter(|line| !line.starts_with("hint: "));
        assert_eq!(lost.clone().count(), 63, "{text}");
        assert!(lost.into_iter().all(|line| line.contains("\"same\"")), "{text}");
        std::fs::remove_file(&complaints).expect("there");
        assert_eq!(listed(&treefork, "forks").len(), 1);
        treefork.ok(["remove", "same"]);
    }
    assert_nothing_left(&treefork);
}

/// Many find no server and want one: one is started, and all are served.
#[test]
fn one_server_however_many_start_it() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    for round in 0..3 {
        let starters: Vec<_> = (0..8)
            .map(|n| {
                let label = format!("r{round}-{n}");
                let mut command = treefork.command(["create", base.to_str().expect("UTF-8"), "--label", &label]);
                std::thread::spawn(move || command.ok())
            })
            .collect();
        starters.into_iter().for_each(|s| drop(s.join().expect("no panic")));
        let forks = json(&treefork, &["list"]);
        let alive = forks.as_array().expect("a list").iter().filter(|fork| fork["mount"] == "alive").count();
        assert_eq!(alive, 8 * (round + 1));
        super::kill_server(&treefork);
    }
    let all: Vec<String> = (0..24).map(|n| format!("r{}-{}", n / 8, n % 8)).collect();
    treefork.ok(["remove"].into_iter().chain(all.iter().map(String::as_str)));
    assert_nothing_left(&treefork);
}

/// Kills the server whose number stands in the lock, if it is still that.
fn kill_server_if_any(treefork: &Treefork) {
    let store = treefork.env().store();
    let holder = std::fs::read(store.join("server.lock")).unwrap_or_default();
    let holder: serde_json::Value = serde_json::from_slice(&holder).unwrap_or_default();
    let Some(pid) = holder["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()) else { return };
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    if String::from_utf8_lossy(&command).contains(store.to_str().expect("UTF-8"))
        && let Some(pid) = rustix::process::Pid::from_raw(pid)
    {
        // Gone already where the kill before it was just now.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}
