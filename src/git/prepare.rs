//! An index that is prepared for forks: the repository's own, with two extensions by which git looks at next to nothing.
//!
//! `FSMN` says of each entry whether its file is known to be as the entry says, and with which token to ask what has
//! changed since. It is made here: an entry counts as known where what the index says of the file is what the file is
//! like, to the nanosecond, and git would not want to read the file all the same. `UNTR` knows what is untracked; it is
//! made by git itself, on a copy of the index, with nothing written into the repository. The entries and all other
//! extensions stay as they are, byte by byte.
//!
//! Left alone: split indexes, and sparse ones. The format is in gitformat-index(5).

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::fs::OFlags;

use super::command::Git;
use super::index::{Entry, Hash, extension_of, flags_of, parse, stands_exactly, tail_of, word};
use crate::error::{Context, Error, Kind, Result};
use crate::names::RelPath;
use crate::sys::{At, Stat, Time, open_beneath};

/// Fewer entries than this are looked at in no time.
const FEW: usize = 1000;

/// The entries of an index with what is known about the files.
pub struct Looked {
    entries: Vec<Entry>,
    /// Whether each is known to be as the index says.
    known: Vec<bool>,
}

impl Looked {
    /// Looks at the files below `root` that this index is about; `None` where it is not one to prepare anything for.
    /// `modified` is when the index was: of what is younger, git does not trust its own entries.
    pub fn at(root: &OwnedFd, index: &[u8], modified: Time) -> Option<Self> {
        let (hash, _) = Hash::of(index)?;
        let entries = parse(index, hash.len())?;
        let sparse = extension_of(index, b"sdir").is_some();
        if entries.len() < FEW || sparse || tail_of(index, &entries, hash, &[]).is_none() {
            return None;
        }
        let mut files = Files::new(root);
        let mut known = Vec::with_capacity(entries.len());
        for entry in &entries {
            let mode = word(index, entry.start + 24)?;
            // Files and links at stage 0, with no flag of meaning: not submodules, not what is only intended.
            let plain = matches!(mode >> 12, 0o10 | 0o12) && flags_of(index, entry, hash)? & 0xf000 == 0;
            let old = i64::from(word(index, entry.start + 8)?) < i64::from(modified.sec as u32);
            let exact = |stat: Stat| stands_exactly(&index[entry.start..], &stat) && has_mode(&stat, mode);
            known.push(plain && old && files.stat(&entry.path).is_some_and(exact));
        }
        Some(Self { entries, known })
    }

    /// The paths of the files that are not known to be as the index says.
    pub fn unknown(&self) -> impl Iterator<Item = RelPath> {
        let all = self.entries.iter().zip(&self.known);
        all.filter(|(_, known)| !**known).filter_map(|(entry, _)| RelPath::from_bytes(&entry.path))
    }

    /// The index with both extensions. `None` where it cannot be understood.
    pub fn index(&self, index: &[u8], token: &str, untracked: Option<&[u8]>) -> Option<Vec<u8>> {
        let (hash, trailer_is_zero) = Hash::of(index)?;
        let end = self.entries.last().map_or(12, |entry| entry.end);
        let mut bytes = index[..end].to_vec();
        bytes.extend_from_slice(&tail_of(index, &self.entries, hash, &[b"FSMN", b"UNTR", b"EOIE", b"IEOT"])?);
        bytes.extend_from_slice(untracked.unwrap_or_default());
        bytes.extend_from_slice(&monitored(token, &self.known)?);
        let trailer = if trailer_is_zero { vec![0; hash.len()] } else { hash.digest(&bytes) };
        bytes.extend_from_slice(&trailer);
        Some(bytes)
    }
}

/// Has git find out what is untracked: the extension, from a copy of the index that is made at `copy` and taken away
/// again. `excludes` is the caller's own file of patterns, which git notes to have used. Git is ended where it is no
/// longer `wanted`.
pub fn untracked(
    git: &Git,
    index: &[u8],
    copy: &Path,
    excludes: Option<&Path>,
    wanted: &dyn Fn() -> bool,
) -> Result<Option<Vec<u8>>> {
    fs::write(copy, index).context("cannot write", copy)?;
    let mut command = git.command(["status", "--porcelain", "--ignore-submodules=all"]);
    command.env("GIT_INDEX_FILE", copy).env("GIT_OPTIONAL_LOCKS", "1");
    let mut count =
        command.get_envs().filter(|(name, _)| name.to_string_lossy().starts_with("GIT_CONFIG_KEY_")).count();
    let settings = [("core.untrackedCache", Some(Path::new("true"))), ("core.splitIndex", Some(Path::new("false")))];
    let settings = settings.into_iter().chain([("core.excludesFile", excludes)]);
    for (key, value) in settings.filter_map(|(key, value)| Some((key, value?))) {
        command.env(format!("GIT_CONFIG_KEY_{count}"), key).env(format!("GIT_CONFIG_VALUE_{count}"), value);
        count += 1;
    }
    command.env("GIT_CONFIG_COUNT", count.to_string()).stdout(Stdio::null());
    command.stderr(Stdio::null());
    let ended = run_while(&mut command, wanted).map_err(|e| Error::io("cannot run git in", e).at(git.top()));
    let made = fs::read(copy).context("cannot read", copy);
    for path in [copy.to_path_buf(), copy.with_extension("lock")] {
        let _ = fs::remove_file(path);
    }
    if !ended?.success() {
        return Err(Error::new(Kind::Git, "git status failed in").at(git.top()));
    }
    Ok(extension_of(&made?, b"UNTR"))
}

/// Runs a command as long as it is wanted.
fn run_while(command: &mut Command, wanted: &dyn Fn() -> bool) -> std::io::Result<ExitStatus> {
    let mut child = command.spawn()?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if !wanted() {
            child.kill()?;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Stats files of a tree by their paths, directory by directory as they come in an index, through no link.
struct Files<'a> {
    root: &'a OwnedFd,
    dir: Option<(Vec<u8>, Option<OwnedFd>)>,
}

impl<'a> Files<'a> {
    fn new(root: &'a OwnedFd) -> Self {
        Self { root, dir: None }
    }

    fn stat(&mut self, path: &[u8]) -> Option<Stat> {
        let path = RelPath::from_bytes(path)?;
        let (parent, name) = (path.parent()?, path.file_name()?);
        if self.dir.as_ref().is_none_or(|(known, _)| known != parent.as_bytes()) {
            let dir = open_beneath(self.root, &parent, OFlags::PATH | OFlags::DIRECTORY).ok();
            self.dir = Some((parent.as_bytes().to_vec(), dir));
        }
        let dir = self.dir.as_ref()?.1.as_ref()?;
        At { dir: dir.as_fd(), name }.stat().ok()
    }
}

/// Whether a file has the type and, of its permissions, the one bit that an entry speaks of.
fn has_mode(stat: &Stat, mode: u32) -> bool {
    let executable = |mode: u32| mode & 0o100;
    if stat.is_symlink() {
        mode >> 12 == 0o12
    } else {
        mode >> 12 == 0o10 && stat.is_file() && executable(stat.mode) == executable(mode)
    }
}

/// The extension `FSMN`, version 2: a token, and a compressed bitmap of the entries that are *not* known.
fn monitored(token: &str, known: &[bool]) -> Option<Vec<u8>> {
    let words: Vec<u64> = known
        .chunks(64)
        .map(|chunk| chunk.iter().enumerate().fold(0, |word, (bit, known)| word | u64::from(!known) << bit))
        .collect();
    // One run of no equal words, and as many literal ones as there are: bit 0 the value of the run, 32 bits its length,
    // 31 bits the number of literals.
    let literals = u64::try_from(words.len()).ok()?;
    let mut bitmap = Vec::new();
    bitmap.extend_from_slice(&u32::try_from(known.len()).ok()?.to_be_bytes());
    bitmap.extend_from_slice(&u32::try_from(words.len() + 1).ok()?.to_be_bytes());
    bitmap.extend_from_slice(&(literals << 33).to_be_bytes());
    words.iter().for_each(|word| bitmap.extend_from_slice(&word.to_be_bytes()));
    // Where the last run begins.
    bitmap.extend_from_slice(&0_u32.to_be_bytes());
    let mut body = Vec::new();
    body.extend_from_slice(&2_u32.to_be_bytes());
    body.extend_from_slice(token.as_bytes());
    body.push(0);
    body.extend_from_slice(&u32::try_from(bitmap.len()).ok()?.to_be_bytes());
    body.extend_from_slice(&bitmap);
    let mut extension = b"FSMN".to_vec();
    extension.extend_from_slice(&u32::try_from(body.len()).ok()?.to_be_bytes());
    extension.extend_from_slice(&body);
    Some(extension)
}
