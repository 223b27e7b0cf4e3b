//! What happened to a fork, in its own words: `log` in its directory, one JSON line an event, bounded.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::now;
use crate::error::{Context, Result};
use crate::sys::{Stat, Time, calls};

const LOG: &str = "log";
/// Past this many bytes the log becomes `log.1` and a new one is begun.
const LIMIT: u64 = 64 * 1024;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, by the real clock.
    pub at: Time,
    /// What, in one or two words: a state, `run`, `merge`.
    pub what: String,
    /// More about it.
    pub detail: String,
}

/// Writes down that something happened to the fork in `dir`. Not durable, and no reason for a command to fail: what goes
/// wrong is logged.
pub fn note(dir: &Path, what: &str, detail: &str) {
    let event = Event { at: now(), what: what.to_owned(), detail: detail.to_owned() };
    if let Err(e) = append(dir, &event) {
        log::debug!("cannot write to the log of {dir:?}: {e}");
    }
}

fn append(dir: &Path, event: &Event) -> io::Result<()> {
    let path = dir.join(LOG);
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    let open = || calls::open(&path, flags, Mode::RUSR | Mode::WUSR);
    let mut file = open()?;
    if Stat::of(file.as_fd())?.size > LIMIT {
        calls::rename(&path, &dir.join("log.1"))?;
        file = open()?;
    }
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    // One write, appended: lines of two writers do not mix.
    Ok(calls::File::from(file).put(&line)?)
}

/// What happened to the fork in `dir`, oldest first, as far back as it is kept.
pub fn events(dir: &Path) -> Result<Vec<Event>> {
    let mut events = Vec::new();
    for name in ["log.1", LOG] {
        let path = dir.join(name);
        let text = match calls::File::read(&path) {
            Err(Errno::NOENT) => continue,
            other => other.context("cannot read", &path)?,
        };
        // A line that was cut short by a full disk or a crash is left out.
        events.extend(text.split(|&b| b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()));
    }
    events.sort_by_key(|event: &Event| event.at);
    Ok(events)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn keeps_the_latest_within_bounds() {
        let dir = tempfile::tempdir().expect("temporary directory");
        for n in 0..3000 {
            note(dir.path(), "run", &format!("{n}: {}", "x".repeat(40)));
        }
        let size: u64 = ["log", "log.1"].iter().map(|n| fs::metadata(dir.path().join(n)).expect("there").len()).sum();
        assert!(size < 2 * LIMIT + 1024, "{size}");
        let events = events(dir.path()).expect("reads");
        assert!(events.len() > 500 && events.last().is_some_and(|e| e.detail.starts_with("2999")));
    }
}
