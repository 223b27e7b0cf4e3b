//! The life of forks: wrong use, making and removing by many at once, asking again, killed commands, killed servers, gc.

mod again;
mod concurrency;
mod everywhere;
mod faults;
mod format;
mod gc;
mod killed;
mod labels;
mod reboot;
mod refusals;
mod removing;
mod scale;
mod server;
mod store;
pub(crate) mod user;

use std::path::Path;

use crate::common::Treefork;

/// What is in the store's directory `name`.
fn listed(treefork: &Treefork, name: &str) -> Vec<String> {
    let entries = std::fs::read_dir(treefork.store().join(name)).into_iter().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("listable").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Fails where anything half-made or mounted is left in the store.
#[track_caller]
fn assert_nothing_left(treefork: &Treefork) {
    for dir in ["forks", "pending"] {
        assert_eq!(listed(treefork, dir), Vec::<String>::new(), "left in {dir}/");
    }
    let mounts = crate::common::mounts::below(treefork.env().tree().path());
    assert!(mounts.is_empty(), "left mounted: {mounts:?}");
}

/// A base with a few files.
fn small_base(treefork: &Treefork, name: &str) -> std::path::PathBuf {
    let base = treefork.env().dir(name);
    std::fs::create_dir(base.join("sub")).expect("made");
    std::fs::write(base.join("file"), "one\n").expect("written");
    std::fs::write(base.join("sub/deep"), "two\n").expect("written");
    base
}

/// The JSON that a command prints.
#[track_caller]
fn json(treefork: &Treefork, args: &[&str]) -> serde_json::Value {
    let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
    serde_json::from_slice(&treefork.ok(args).stdout).expect("JSON")
}

/// Process number of the running server.
#[track_caller]
fn server_pid(treefork: &Treefork) -> rustix::process::Pid {
    let holder = std::fs::read(treefork.env().store().join("server.lock")).expect("a server has run");
    let holder: serde_json::Value = serde_json::from_slice(&holder).expect("a holder");
    let pid = holder["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    rustix::process::Pid::from_raw(pid.expect("a process number")).expect("not 0")
}

/// Kills the running server the hard way and waits for its end.
#[track_caller]
fn kill_server(treefork: &Treefork) {
    let pid = server_pid(treefork);
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).expect("it runs");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is ours");
    let mut fds = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
    let limit = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut fds, Some(&limit)).expect("polls"), 1, "a killed server ends");
}

/// Whether there is such an entry; nothing is followed.
fn exists(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}
