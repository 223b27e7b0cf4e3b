//! The stat data in a git index, carried over to copies of the files.
//!
//! Git believes a file unchanged when size, times, number and owner are those in the index; a copy has another number
//! and change time, so that git would read every file again. Here each entry that was right for the original gets the
//! stat data of the copy. Entries that were not (changed files, and those that git marked as too young to tell) stay as
//! they are, and git looks at them as it would have in the original. The index keeps its modification time, which git
//! measures young files by.
//!
//! Understood: versions 2 to 4, SHA-1 and SHA-256. Left alone: split indexes. The format is in gitformat-index(5).

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{OFlags, Timestamps};
use rustix::io::Errno;
use sha1::{Digest, Sha1};
use sha2::Sha256;

use crate::sys::{At, Stat};

/// What an entry says of its file: change and modification time with nanoseconds, device, number, mode, owner, group,
/// size; ten numbers of 32 bits.
const STAT_DATA: usize = 40;
/// Extensions that describe the directory the index lies in, or where things are in it: git's own file system monitor,
/// and the two that index extensions and entries. All may be left out.
const DROPPED: [&[u8; 4]; 3] = [b"FSMN", b"EOIE", b"IEOT"];

/// Extensions that git can work out again: trees, and what is untracked.
const CACHES: [&[u8; 4]; 2] = [b"TREE", b"UNTR"];

/// What came of [`carry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// So many of all entries have the stat data of their copies.
    Done {
        /// Entries with new stat data.
        fresh: usize,
        /// Entries of files.
        all: usize,
    },
    /// Not an index that this understands, or a split one; it is as it was.
    Untouched,
}

/// Rewrites the index at `index` in place, its times kept. `copies` knows, for a path from the top of the work tree, what
/// the original and the copy are like.
pub fn carry(index: At<'_>, copies: impl Fn(&[u8]) -> Option<(Stat, Stat)>) -> Result<Carried, Errno> {
    let file = File::from(index.open(OFlags::RDWR)?);
    let stat = Stat::of(file.as_fd())?;
    let io = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
    let mut bytes = vec![0; usize::try_from(stat.size).map_err(|_| Errno::FBIG)?];
    file.read_exact_at(&mut bytes, 0).map_err(io)?;
    let Some(carried) = rewrite(&mut bytes, copies) else { return Ok(Carried::Untouched) };
    file.write_all_at(&bytes, 0).map_err(io)?;
    file.set_len(bytes.len() as u64).map_err(io)?;
    index.utimens(&Timestamps { last_access: stat.atime.into(), last_modification: stat.mtime.into() })?;
    Ok(carried)
}

/// Rewrites an index in memory; `None` where it cannot be understood, and then nothing is changed.
fn rewrite(bytes: &mut Vec<u8>, copies: impl Fn(&[u8]) -> Option<(Stat, Stat)>) -> Option<Carried> {
    let (hash, trailer_is_zero) = Hash::of(bytes)?;
    let entries = parse(bytes, hash.len())?;
    let end = entries.last().map_or(12, |entry| entry.end);
    let tail = tail_of(bytes, &entries, hash, &DROPPED)?;
    let (mut fresh, mut all) = (0, 0);
    for entry in &entries {
        // Regular files and links; not submodules, not the directories of a sparse index.
        if !matches!(word(bytes, entry.start + 24)? >> 12, 0o10 | 0o12) {
            continue;
        }
        all += 1;
        let Some((original, copy)) = copies(&entry.path) else { continue };
        let data = &mut bytes[entry.start..entry.start + STAT_DATA];
        if is_right(data, &original) {
            set(data, &copy);
            fresh += 1;
        }
    }
    bytes.truncate(end);
    bytes.extend_from_slice(&tail);
    let trailer = if trailer_is_zero { vec![0; hash.len()] } else { hash.digest(bytes) };
    bytes.extend_from_slice(&trailer);
    Some(Carried::Done { fresh, all })
}

/// Whether two indexes record the same: they may differ in what git believes of the files on disk and in caches, as
/// after a `git status`. What is not understood is not the same.
pub fn records_the_same(one: &[u8], other: &[u8]) -> bool {
    let records = |bytes| recorded(bytes).filter(|(_, extensions)| extensions.iter().all(|e| !e.starts_with(b"link")));
    one == other || records(one).is_some_and(|first| Some(first) == records(other))
}

/// What an entry records: path, mode, and everything from the object id to the end of the flags.
type Recorded = (Vec<u8>, [u8; 4], Vec<u8>);

/// What an index records: its entries, and the extensions that are no caches.
fn recorded(bytes: &[u8]) -> Option<(Vec<Recorded>, Vec<&[u8]>)> {
    /// Where the mode stands among the stat data.
    const MODE: usize = 24;
    let (hash, _) = Hash::of(bytes)?;
    let entries = parse(bytes, hash.len())?;
    let extensions = extensions(bytes, &entries, hash)?;
    let of = |entry: &Entry| {
        let mode = bytes.get(entry.start + MODE..entry.start + MODE + 4)?.try_into().ok()?;
        let from = entry.start + STAT_DATA;
        let extended = bytes.get(from + hash.len())? & 0x40 != 0;
        let object_and_flags = bytes.get(from..from + hash.len() + if extended { 4 } else { 2 })?;
        Some((entry.path.clone(), mode, object_and_flags.to_vec()))
    };
    let entries = entries.iter().map(of).collect::<Option<_>>()?;
    let is_cache = |e: &&[u8]| DROPPED.iter().chain(&CACHES).any(|name| e.starts_with(*name));
    Some((entries, extensions.into_iter().filter(|e| !is_cache(e)).collect()))
}

/// Which hash the repository uses, told by the checksum at the end, and whether that is switched off (all zero).
#[derive(Clone, Copy)]
pub(super) enum Hash {
    Sha1,
    Sha256,
}

impl Hash {
    pub(super) fn of(bytes: &[u8]) -> Option<(Self, bool)> {
        for hash in [Self::Sha1, Self::Sha256] {
            let (body, trailer) = bytes.split_at_checked(bytes.len().checked_sub(hash.len())?)?;
            let zero = trailer.iter().all(|&b| b == 0);
            if (zero && parse(bytes, hash.len()).is_some()) || (!zero && hash.digest(body) == trailer) {
                return Some((hash, zero));
            }
        }
        None
    }

    pub(super) fn len(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    pub(super) fn digest(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha1 => Sha1::digest(bytes).to_vec(),
            Self::Sha256 => Sha256::digest(bytes).to_vec(),
        }
    }
}

/// Where an entry is, and of which file.
pub(super) struct Entry {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) path: Vec<u8>,
}

/// Where the entries are. `hash` is the length of an object id.
pub(super) fn parse(bytes: &[u8], hash: usize) -> Option<Vec<Entry>> {
    if bytes.get(..4)? != b"DIRC" {
        return None;
    }
    let version = word(bytes, 4)?;
    if !(2..=4).contains(&version) {
        return None;
    }
    let body = &bytes[..bytes.len().checked_sub(hash)?];
    let mut entries: Vec<Entry> = Vec::new();
    let mut at = 12;
    for _ in 0..word(bytes, 8)? {
        let flags = at + STAT_DATA + hash;
        // The second flag says that two more bytes of flags follow.
        let extended = body.get(flags)? & 0x40 != 0;
        let name = flags + if extended { 4 } else { 2 };
        let (path, end) = if version == 4 {
            let (strip, from) = offset(body, name)?;
            let previous = entries.last().map_or(&[][..], |entry| &entry.path);
            let len = zero_after(body, from)?;
            let path = [previous.get(..previous.len().checked_sub(strip)?)?, &body[from..from + len]].concat();
            (path, from + len + 1)
        } else {
            let len = zero_after(body, name)?;
            // One to eight zero bytes, up to a multiple of eight.
            (body[name..name + len].to_vec(), at + ((name + len - at) / 8 + 1) * 8)
        };
        if end > body.len() {
            return None;
        }
        entries.push(Entry { start: at, end, path });
        at = end;
    }
    Some(entries)
}

/// The extensions without those of these names; `None` for a split index or anything malformed.
pub(super) fn tail_of(bytes: &[u8], entries: &[Entry], hash: Hash, dropped: &[&[u8; 4]]) -> Option<Vec<u8>> {
    let all = extensions(bytes, entries, hash)?;
    if all.iter().any(|extension| extension.starts_with(b"link")) {
        return None;
    }
    let kept = all.into_iter().filter(|extension| !dropped.iter().any(|name| extension.starts_with(*name)));
    Some(kept.flatten().copied().collect())
}

/// The extension of this name, its head included.
pub(super) fn extension_of(bytes: &[u8], name: &[u8; 4]) -> Option<Vec<u8>> {
    let (hash, _) = Hash::of(bytes)?;
    let entries = parse(bytes, hash.len())?;
    extensions(bytes, &entries, hash)?.into_iter().find(|extension| extension.starts_with(name)).map(<[u8]>::to_vec)
}

fn extensions<'a>(bytes: &'a [u8], entries: &[Entry], hash: Hash) -> Option<Vec<&'a [u8]>> {
    let end = entries.last().map_or(12, |entry| entry.end);
    let mut rest = bytes.get(end..bytes.len().checked_sub(hash.len())?)?;
    let mut all = Vec::new();
    while !rest.is_empty() {
        let length = usize::try_from(word(rest, 4)?).ok()?;
        let (extension, after) = rest.split_at_checked(8 + length)?;
        all.push(extension);
        rest = after;
    }
    Some(all)
}

/// The flags of an entry but for the length of its name: assumed valid, extended, stage.
pub(super) fn flags_of(bytes: &[u8], entry: &Entry, hash: Hash) -> Option<u16> {
    let at = entry.start + STAT_DATA + hash.len();
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Whether an entry says of its file exactly what the file is like, but for the device, which counts for nothing.
pub(super) fn stands_exactly(data: &[u8], stat: &Stat) -> bool {
    let words = words(stat).into_iter().enumerate();
    words
        .filter(|(at, _)| *at != 4)
        .filter_map(|(at, expected)| Some((at, expected?)))
        .all(|(at, expected)| word(data, at * 4) == Some(expected))
}

pub(super) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn zero_after(bytes: &[u8], at: usize) -> Option<usize> {
    bytes.get(at..)?.iter().position(|&b| b == 0)
}

/// A number as in version 4: seven bits a byte, the high bit says that more follow, each adding one.
fn offset(bytes: &[u8], mut at: usize) -> Option<(usize, usize)> {
    let mut value = 0_usize;
    loop {
        let byte = *bytes.get(at)?;
        at += 1;
        value = value.checked_mul(128)?.checked_add(usize::from(byte & 0x7f))?;
        if byte & 0x80 == 0 {
            return Some((value, at));
        }
        value = value.checked_add(1)?;
    }
}

/// The words of the stat data, as git keeps them: the low 32 bits of each; `None` for the mode, which is git's own.
fn words(stat: &Stat) -> [Option<u32>; 10] {
    let low = |n: u64| Some(n as u32);
    [
        Some(stat.ctime.sec as u32),
        Some(stat.ctime.nsec),
        Some(stat.mtime.sec as u32),
        Some(stat.mtime.nsec),
        low(stat.dev),
        low(stat.ino),
        None,
        Some(stat.uid),
        Some(stat.gid),
        low(stat.size),
    ]
}

/// Whether an entry says of its file what the file is like. The device counts for nothing, as for git. Of the change
/// time neither do the nanoseconds: git as it is commonly built goes by the seconds of both times, and leaves an entry
/// alone when an attribute was changed within one. Of the modification time, which tells content, they do count.
fn is_right(data: &[u8], stat: &Stat) -> bool {
    let checks = |at: usize, word: u32, kept: u32| match at {
        3 => kept == word || kept == 0,
        1 | 4 => true,
        _ => kept == word,
    };
    let words = words(stat).into_iter().enumerate();
    words.filter_map(|(at, word)| Some((at, word?))).all(|(at, expected)| {
        let kept = word(data, at * 4).expect("stat data has ten words");
        checks(at, expected, kept)
    })
}

fn set(data: &mut [u8], stat: &Stat) {
    for (slot, value) in data.chunks_exact_mut(4).zip(words(stat)) {
        if let Some(value) = value {
            slot.copy_from_slice(&value.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::sys::open_root;

    fn git(dir: &Path, args: &[&str]) -> String {
        let mut command = Command::new("git");
        command.current_dir(dir).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        let output = command.args(["-c", "user.name=T", "-c", "user.email=t@e"]).args(args).output().unwrap();
        assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Copies a repository file by file, carries the index over, and has git say what it thinks of the copy.
    fn check(format: &str, version: &str, zero: bool) {
        let dir = tempfile::tempdir().unwrap();
        let (base, copy) = (dir.path().join("base"), dir.path().join("copy"));
        fs::create_dir(&base).unwrap();
        git(&base, &["init", "-q", &format!("--object-format={format}")]);
        git(&base, &["config", "index.version", version]);
        git(&base, &["config", "index.skipHash", if zero { "true" } else { "false" }]);
        let names = ["a", "ab/c", "ab/cd", "ab/c d/e", "changed"];
        for name in names {
            fs::create_dir_all(base.join(name).parent().unwrap()).unwrap();
            fs::write(base.join(name), name).unwrap();
            // Older than the index, or git would have reason to read them again.
            filetime::set_file_mtime(base.join(name), filetime::FileTime::from_unix_time(1_000_000_000, 5)).unwrap();
        }
        git(&base, &["add", "-A"]);
        git(&base, &["commit", "-q", "-m", "x"]);
        git(&base, &["update-index", "--index-version", version]);
        fs::write(base.join("changed"), "CHANGED").unwrap();
        assert!(Command::new("cp").arg("-a").args([&base, &copy]).status().unwrap().success());
        let (from, to) = (open_root(&base).unwrap(), open_root(&copy).unwrap());
        let look = |root: &std::os::fd::OwnedFd, path: &[u8]| {
            let path = crate::names::RelPath::from_bytes(path)?;
            let dir = crate::sys::open_beneath(root, &path.parent()?, OFlags::PATH).ok()?;
            At::new(&dir, path.file_name()?).stat().ok()
        };
        let index = open_root(&copy.join(".git")).unwrap();
        let carried = carry(At::new(&index, "index"), |path| Some((look(&from, path)?, look(&to, path)?))).unwrap();
        assert_eq!(carried, Carried::Done { fresh: 4, all: 5 }, "{format} {version}");
        // What git thinks of each file without reading any: only the changed one is not up to date.
        assert_eq!(git(&copy, &["diff-files", "--name-only"]), "changed\n");
        git(&copy, &["fsck", "--strict"]);
        assert_eq!(git(&copy, &["status", "--porcelain"]), " M changed\n");
    }

    #[test]
    fn looking_records_nothing_and_staging_does() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path();
        git(base, &["init", "-q"]);
        fs::write(base.join("file"), "one").unwrap();
        git(base, &["add", "file"]);
        git(base, &["commit", "-q", "-m", "x"]);
        let index = || fs::read(base.join(".git/index")).unwrap();
        let before = index();
        filetime::set_file_mtime(base.join("file"), filetime::FileTime::from_unix_time(1_000_000_000, 5)).unwrap();
        git(base, &["update-index", "--untracked-cache"]);
        git(base, &["status"]);
        assert_ne!(before, index(), "git wrote down what it saw");
        assert!(records_the_same(&before, &index()));
        for stage in ["update-index --chmod=+x file", "update-index --assume-unchanged file", "rm -q --cached file"] {
            git(base, &stage.split(' ').collect::<Vec<_>>());
            assert!(!records_the_same(&before, &index()), "{stage}");
            fs::write(base.join(".git/index"), &before).unwrap();
        }
        assert!(!records_the_same(&before, b"nothing"));
    }

    #[test]
    fn every_version_and_hash() {
        for format in ["sha1", "sha256"] {
            for version in ["2", "4"] {
                check(format, version, false);
            }
        }
        check("sha1", "2", true);
    }

    #[test]
    fn what_is_no_index_is_left_alone() {
        for bad in
            [&b""[..], b"DIRC", b"DIRC\0\0\0\x02\0\0\0\x01", &[0; 64], b"garbage that is long enough to hold one"]
        {
            let mut bytes = bad.to_vec();
            assert_eq!(rewrite(&mut bytes, |_| None), None);
            assert_eq!(bytes, bad);
        }
    }
}
