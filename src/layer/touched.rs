//! What was touched: a log of names that only grows, with positions to go on from.
//!
//! Whoever asks gets a position along with the names, and the next time only what came after it. A name is logged again
//! only once somebody was given a position since, so a file that is written a thousand times is one entry. A log that
//! grows too long begins anew: positions from before that get the answer that anything may have changed.
//!
//! A change has to be made before it is noted, and noted before it is acknowledged: then whoever asks afterwards, and
//! looks at what is named, sees it. Noting too much does no harm; it costs whoever asks a look.
//!
//! Positions mean something only together with the log's number, which no two logs share: nothing of this is on disk,
//! and after a restart every position is one of an unknown log.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::names::RelPath;
use crate::sys::Time;

/// More names than this are one fact: look at everything.
const MOST: usize = 50_000;
/// And so are more bytes of names than this: whoever works in a fork decides how long they are.
const MOST_BYTES: usize = 16 << 20;

/// A log of names.
#[derive(Debug)]
pub struct Touched {
    id: u64,
    /// The names, in the order in which they were noted.
    names: Vec<RelPath>,
    /// How long they are together.
    bytes: usize,
    /// The position of the first of them.
    first: u64,
    /// Where each name was noted last.
    last: HashMap<RelPath, u64>,
    /// The last position that somebody was given.
    given: u64,
}

/// The names after a position.
#[derive(Debug, PartialEq, Eq)]
pub enum Since<'a> {
    /// These, the oldest first; they go up to the end of the log.
    Names(&'a [RelPath]),
    /// The position is from before the log began, or never was one: anything may have changed.
    Anything,
}

impl Default for Touched {
    fn default() -> Self {
        Self { id: number(), names: Vec::new(), bytes: 0, first: 0, last: HashMap::new(), given: 0 }
    }
}

impl Touched {
    /// The number of this log, which no other has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Notes a name; whether that was news. Of one that no call takes, git could not make anything.
    pub fn note(&mut self, path: RelPath) -> bool {
        if path.is_too_long() {
            self.note_anything();
            return true;
        }
        if self.last.get(&path).is_some_and(|&last| last >= self.given) {
            return false;
        }
        self.bytes += path.as_bytes().len();
        if self.names.len() >= MOST || self.bytes > MOST_BYTES {
            self.note_anything();
            return true;
        }
        self.last.insert(path.clone(), self.end());
        self.names.push(path);
        true
    }

    /// Notes that anything may have changed.
    pub fn note_anything(&mut self) {
        self.first = self.end() + 1;
        self.names.clear();
        self.bytes = 0;
        self.last.clear();
    }

    /// The position after the last name.
    pub fn end(&self) -> u64 {
        self.first + self.names.len() as u64
    }

    /// The position after the last name, given to somebody who will come back with it.
    pub fn give(&mut self) -> u64 {
        self.given = self.end();
        self.given
    }

    /// What was noted after a position.
    pub fn since(&self, position: u64) -> Since<'_> {
        let skip = position.checked_sub(self.first).and_then(|skip| usize::try_from(skip).ok());
        skip.and_then(|skip| self.names.get(skip..)).map_or(Since::Anything, Since::Names)
    }
}

/// A number that no log of this or of another process has had: random, or where that cannot be had, by the clock.
fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_ne_bytes(bytes),
        _ => {
            let now = Time::now();
            (now.sec.cast_unsigned() << 30 | u64::from(now.nsec)) ^ NEXT.fetch_add(1, Ordering::Relaxed) << 56
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::from_bytes(text.as_bytes()).expect("relative")
    }

    fn names(log: &Touched, position: u64) -> Option<Vec<String>> {
        match log.since(position) {
            Since::Names(names) => Some(names.iter().map(|n| n.as_path().display().to_string()).collect()),
            Since::Anything => None,
        }
    }

    #[test]
    fn what_is_noted_is_told_to_whoever_asks_from_before() {
        let mut log = Touched::default();
        let begin = log.give();
        log.note(path("a"));
        log.note(path("b"));
        log.note(path("a"));
        assert_eq!(names(&log, begin).expect("known"), ["a", "b"], "once is enough");
        let middle = log.give();
        log.note(path("a"));
        assert_eq!(names(&log, middle).expect("known"), ["a"], "but again after somebody was told");
        assert_eq!(names(&log, begin).expect("known"), ["a", "b", "a"]);
        assert_eq!(names(&log, log.end() + 1), None, "a position that never was");
    }

    #[test]
    fn a_log_that_begins_anew_knows_nothing_of_earlier_positions() {
        let mut log = Touched::default();
        let begin = log.give();
        for n in 0..=MOST {
            log.note(path(&n.to_string()));
        }
        assert_eq!(names(&log, begin), None);
        let now = log.give();
        log.note(path("x"));
        assert_eq!(names(&log, now).expect("known"), ["x"]);
        log.note_anything();
        assert_eq!(names(&log, now), None);
    }

    #[test]
    fn a_path_that_no_call_takes_is_anything() {
        let mut log = Touched::default();
        let begin = log.give();
        log.note(path(&"d/".repeat(10_000)));
        assert_eq!((names(&log, begin), log.names.len()), (None, 0));
    }

    #[test]
    fn long_names_are_not_kept_without_end() {
        let mut log = Touched::default();
        let begin = log.give();
        let long = "d/".repeat(2_000);
        for n in 0..MOST_BYTES / 4_000 {
            log.note(path(&format!("{long}{n}")));
        }
        assert_eq!(names(&log, begin), None);
        assert!(log.names.len() < 100);
    }

    #[test]
    fn no_two_logs_have_one_number() {
        assert_ne!(Touched::default().id(), Touched::default().id());
    }
}
