//! What an operation gave, in a form that is the same for a fork and for a plain copy.
//!
//! Times older than the start of the run are exact where both trees can have the same (mtime), else only "old"; later
//! ones are "new". Access times, allocated blocks and sizes of directories are nobody's promise.

use std::ffi::OsString;

use rustix::fs::FileType;
use rustix::io::Errno;
use treefork::sys::{Stat, Time};

use crate::common::tree::hash;

/// The result of an operation.
pub(super) type Outcome = Result<Value, Errno>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Done,
    Count(u64),
    Text(String),
    Bytes(Data),
    Names(Vec<(OsString, FileType)>),
}

/// What was read, short enough to print: length, hash, and where it changes from one fill to another.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Data {
    len: usize,
    hash: u64,
    edges: Vec<(usize, u8)>,
}

impl Data {
    pub(super) fn new(bytes: &[u8]) -> Self {
        let mut edges: Vec<(usize, u8)> = Vec::new();
        for (at, &byte) in bytes.iter().enumerate() {
            if edges.len() < 24 && edges.last().is_none_or(|&(_, last)| last != byte) {
                edges.push((at, byte));
            }
        }
        Self { len: bytes.len(), hash: hash(bytes), edges }
    }
}

impl std::fmt::Debug for Data {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes {:x}:", self.len, self.hash)?;
        self.edges.iter().try_for_each(|(at, byte)| write!(f, " {at}:{byte:02x}"))
    }
}

/// An outcome for a person.
pub(super) fn short(outcome: &Outcome) -> String {
    match outcome {
        Ok(Value::Text(text)) => text.clone(),
        Ok(value) => format!("{value:?}"),
        Err(e) => e.to_string(),
    }
}

pub(super) fn bytes(bytes: &[u8]) -> Outcome {
    Ok(Value::Bytes(Data::new(bytes)))
}

pub(super) fn text(text: impl Into<String>) -> Outcome {
    Ok(Value::Text(text.into()))
}

pub(super) fn count(n: usize) -> Outcome {
    Ok(Value::Count(n as u64))
}

pub(super) fn done<T>(_: T) -> Value {
    Value::Done
}

pub(super) fn names(mut names: Vec<(OsString, FileType)>) -> Outcome {
    names.sort_by(|a, b| a.0.cmp(&b.0));
    let len = names.len();
    names.dedup_by(|a, b| a.0 == b.0);
    if names.len() == len { Ok(Value::Names(names)) } else { text(format!("a name twice in {names:?}")) }
}

/// The attributes that have to agree. `start` is when the run began.
pub(super) fn stat(stat: &Stat, start: Time) -> String {
    let Stat { mode, nlink, uid, gid, rdev, .. } = *stat;
    let mtime = if stat.mtime < start { format!("{}.{:09}", stat.mtime.sec, stat.mtime.nsec) } else { "new".into() };
    let ctime = if stat.ctime < start { "old" } else { "new" };
    let size = if stat.is_dir() { 0 } else { stat.size };
    format!("{mode:o} links {nlink} owner {uid}:{gid} rdev {rdev:x} size {size} mtime {mtime} ctime {ctime}")
}

/// Whether a listing that was changed in the middle kept its promises: what stood still all the time is there once, and
/// from the start again it is right.
///
/// `first` came before the change of `changed`, `rest` after it from the same offset (the changed name may be in it or
/// not, see `readdir(3)`), `again` from the start.
pub(super) fn listing(
    first: &[OsString],
    rest: &[OsString],
    again: &[OsString],
    changed: &str,
    there: bool,
) -> Outcome {
    let steady = |names: &mut Vec<OsString>| names.retain(|name| name != changed && name != "." && name != "..");
    let mut seen = [first, rest].concat();
    let mut all = again.to_vec();
    steady(&mut seen);
    steady(&mut all);
    seen.sort();
    all.sort();
    let right = again.iter().filter(|name| *name == changed).count() == usize::from(there);
    if seen == all && right { text(format!("{all:?}")) } else { text(format!("{first:?} {rest:?}, there {again:?}")) }
}
