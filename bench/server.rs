//! The server of the store: what it has to itself, and whether anything is still being done behind the commands' backs.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::place::Place;

/// What a server has.
pub(crate) struct Server {
    /// Memory that is no file's.
    pub(crate) kib: u64,
    pub(crate) threads: u64,
    pub(crate) descriptors: u64,
}

impl Server {
    /// What the one of the store has now.
    pub(crate) fn of(place: &Place) -> Self {
        let process = process(place).expect("a server runs");
        let count = |what| std::fs::read_dir(process.join(what)).expect("procfs").count() as u64;
        let status = std::fs::read_to_string(process.join("status")).expect("procfs");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a number");
        let kib = line.trim().trim_end_matches(" kB").parse().expect("a number");
        Self { kib, threads: count("task"), descriptors: count("fd") }
    }
}

/// Waits until what was removed is deleted, and forgotten by the kernel: a removal returns before that.
pub(crate) fn await_rest(place: &Place) {
    let start = Instant::now();
    while !rests(place) {
        assert!(start.elapsed() < Duration::from_secs(600), "what was removed is never deleted");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn rests(place: &Place) -> bool {
    let nothing_in = |dir| std::fs::read_dir(dir).into_iter().flatten().count() == 0;
    let threads = process(place).map(|process| std::fs::read_dir(process.join("task")));
    let mut threads = threads.into_iter().flatten().flatten().flatten();
    let reaps = |thread: &std::fs::DirEntry| {
        std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim() == "treefork-reaper")
    };
    nothing_in(place.store().join("trash")) && !threads.any(|thread| reaps(&thread))
}

/// The process that serves the store; `None` where none has yet.
fn process(place: &Place) -> Option<PathBuf> {
    let holder = std::fs::read(place.store().join("server.lock")).ok()?;
    let holder: serde_json::Value = serde_json::from_slice(&holder).ok()?;
    Some(PathBuf::from(format!("/proc/{}", holder["pid"])))
}
