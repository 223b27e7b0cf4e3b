//! When treefork itself changed the base under a fork: merges of that very fork which it outlived, and merges that were
//! undone. What changed just then is no drift.
//!
//! `ours` in the work area of the fork has a line for each, `FROM TO`, times as `sec.nsec`. A merge holds a lock meanwhile,
//! so that only somebody who knows nothing of treefork changes anything in such a moment.

use std::os::fd::AsFd;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::sys::calls::File;
use crate::sys::{At, Time};

const FILE: &str = "ours";

/// A time from which to which a merge was at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// No change of the merge is older.
    pub from: Time,
    /// And none is younger.
    pub to: Time,
}

impl Span {
    /// Whether a change at this time falls into it.
    pub fn holds(&self, time: Time) -> bool {
        (self.from..=self.to).contains(&time)
    }
}

/// Notes a span in a work area.
pub fn note(work: &impl AsFd, span: Span) -> Result<(), Errno> {
    let file = At::new(work, FILE).create(OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE, 0o600)?;
    let Span { from, to } = span;
    // Led by a line of its own, should the one before be torn.
    let line = format!("\n{}.{} {}.{}\n", from.sec, from.nsec, to.sec, to.nsec);
    File::from(file).put(line.as_bytes())
}

/// The spans noted in a work area. What cannot be read is left out: then what changed there counts as drift.
pub fn read(work: &impl AsFd) -> Result<Vec<Span>, Errno> {
    let bytes = match At::new(work, FILE).open(OFlags::RDONLY) {
        Ok(fd) => File::from(fd).rest()?,
        Err(Errno::NOENT) => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    Ok(String::from_utf8_lossy(&bytes).lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Span> {
    let time = |text: &str| {
        let (sec, nsec) = text.split_once('.')?;
        Some(Time { sec: sec.parse().ok()?, nsec: nsec.parse().ok()? })
    };
    let (from, to) = line.split_once(' ')?;
    Some(Span { from: time(from)?, to: time(to)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_survive_the_disk() {
        let dir = tempfile::tempdir().expect("room");
        let work = crate::sys::open_root(dir.path()).expect("there");
        assert_eq!(read(&work), Ok(Vec::new()));
        let time = |sec| Time { sec, nsec: 999_999_999 };
        let span = Span { from: time(-1), to: time(7) };
        note(&work, span).expect("room");
        std::fs::write(
            dir.path().join(FILE),
            [&std::fs::read(dir.path().join(FILE)).expect("there")[..], b"9.1 "].concat(),
        )
        .expect("room");
        note(&work, span).expect("room");
        assert_eq!(read(&work), Ok(vec![span, span]), "a torn line spoils no other");
        assert!(span.holds(time(-1)) && span.holds(Time { sec: 3, nsec: 0 }) && !span.holds(time(8)));
    }
}
