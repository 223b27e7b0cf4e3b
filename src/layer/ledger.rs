//! The ledger of a fork: in what state each base object was when the fork first changed or hid it.
//!
//! An append-only file of lines of JSON in the work area, one per object, written before the change itself, so that it
//! survives a killed server (a power cut may lose its tail: the merge then falls back to comparing change times with
//! the fork's creation). The first line of a path wins: once a fork has covered a path it never sees the base's object
//! there again. Paths are those of the lower, which do not move when the fork renames a directory.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};

use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::Digest as _;

use crate::names::RelPath;
use crate::sys::calls::File;
use crate::sys::{At, Ident, Stat, Time, calls};

/// The name of the ledger in the work area.
pub const FILE: &str = "ledger";

/// The state of a base object, as far as telling "unchanged" needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseState {
    /// Number and birth time.
    pub ident: Ident,
    /// Type and permission bits.
    pub mode: u32,
    /// Size in bytes.
    pub size: u64,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of content or attributes.
    pub ctime: Time,
    /// What a small file held, where the fork changed its content: it proves what both sides of a merge came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Digest>,
}

/// Files up to this size, in bytes, have their content noted.
pub const NOTED: u64 = 1 << 20;

/// The SHA-256 of a content, as text in hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of these bytes.
    pub fn of(content: &[u8]) -> Self {
        Self(sha2::Sha256::digest(content).into())
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digit = |half: u8| char::from(DIGITS[usize::from(half)]);
        let digits: String = self.0.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect();
        serializer.serialize_str(&digits)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let digits = String::deserialize(deserializer)?;
        let byte = |at: usize| digits.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
        let bytes: Option<Vec<u8>> = (0..64).step_by(2).map(byte).collect();
        let bytes = bytes.filter(|_| digits.len() == 64).and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(|| serde::de::Error::custom("not the SHA-256 of a content"))
    }
}

impl From<&Stat> for BaseState {
    fn from(s: &Stat) -> Self {
        Self { ident: s.ident(), mode: s.mode, size: s.size, mtime: s.mtime, ctime: s.ctime, content: None }
    }
}

#[derive(Serialize, Deserialize)]
struct Line {
    path: RelPath,
    state: BaseState,
}

/// The writing end, held by the server of the fork.
#[derive(Debug)]
pub struct Ledger(Mutex<Tail>);

#[derive(Debug)]
struct Tail {
    file: File,
    /// The file may end in a part of a line: of a writer that was killed, or of a write for which there was no room.
    torn: bool,
    /// The path that was noted last: an operation may note one twice, when it copies an object up and when it moves it.
    last: Option<RelPath>,
}

impl Ledger {
    /// Opens the ledger in a work area for appending; made when missing.
    pub fn open(work: &OwnedFd) -> Result<Self, Errno> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        let file = File::from(At::new(work, FILE).create(flags, 0o600)?);
        Ok(Self(Mutex::new(Tail { file, torn: true, last: None })))
    }

    /// Notes the state of the base object at `path`, before it is covered, if that was not the last that was noted; the bytes
    /// that this takes.
    pub fn note(&self, path: &RelPath, state: BaseState) -> Result<u64, Errno> {
        let mut tail = self.0.lock();
        if tail.last.as_ref() == Some(path) {
            return Ok(0);
        }
        let line = Line { path: path.clone(), state };
        let text = serde_json::to_vec(&line).expect("numbers and strings always serialise");
        // A line of its own whatever the file ends in; readers skip what is empty or torn.
        let start: &[u8] = if tail.torn { b"\n" } else { b"" };
        let text = [start, &text, b"\n"].concat();
        let done = tail.file.put(&text);
        tail.torn = done.is_err();
        tail.last = done.is_ok().then_some(line.path);
        done.map(|()| text.len() as u64)
    }

    /// How long the ledger is, in bytes.
    pub fn size(&self) -> Result<u64, Errno> {
        Ok(Stat::of(self.0.lock().file.as_fd())?.size)
    }

    /// Makes what was noted so far survive a power cut.
    pub fn sync(&self) -> Result<(), Errno> {
        calls::fdatasync(self.0.lock().file.as_fd())
    }
}

/// Reads the ledger of a work area: the first state noted for each path. Empty where there is none.
///
/// A line that cannot be read (cut off by a power loss) ends the reading of nothing else: it is skipped, and its path
/// counts as never noted.
pub fn read(work: &OwnedFd) -> Result<HashMap<RelPath, BaseState>, Errno> {
    let file = match At::new(work, OsStr::new(FILE)).open(OFlags::RDONLY) {
        Ok(fd) => File::from(fd),
        Err(Errno::NOENT) => return Ok(HashMap::new()),
        Err(e) => return Err(e),
    };
    let mut states = HashMap::new();
    for line in BufReader::new(file).split(b'\n') {
        let line = line.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        let Ok(line) = serde_json::from_slice::<Line>(&line) else { continue };
        states.entry(line.path).or_insert(line.state);
    }
    Ok(states)
}
