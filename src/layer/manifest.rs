//! The manifest of a copied fork: what each object was like in the base and in the fork when the fork was made.
//!
//! An overlay knows what changed in it from its upper layer; a copy has to be compared with what it was. The manifest
//! is a file of lines of JSON in the work area: a header, then `[path, base, fork]` for each object, a state being
//! `[ino, btime, mode, size, mtime, ctime]` with times as `[sec, nsec]`. What the base had and the fork was not to have
//! (links left out) is not in it, and thus does not count as deleted.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::ledger::BaseState;
use crate::durable;
use crate::error::{Context, Error, Kind, Result};

use crate::names::RelPath;
use crate::sys::calls::{Dir, File};
use crate::sys::{At, Ident, Stat, Time, calls, open_beneath, open_root};

/// The name of the manifest in the work area.
pub const FILE: &str = "manifest";

/// The name of the manifest of an upper that had something in it from the beginning: a git directory of the fork's own.
/// Both states of a pair are then that of the upper.
pub const PREPARED: &str = "prepared";

const VERSION: u32 = 1;

/// An object as it was when the fork was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// In the base.
    pub base: BaseState,
    /// In the fork.
    pub fork: BaseState,
}

/// What a copied fork was made from and into.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Mount points in the base, whose content came over as ordinary files (or not at all).
    pub mounts: Vec<RelPath>,
    /// Every object, by its path; the root is the empty path.
    pub entries: BTreeMap<RelPath, Pair>,
}

/// A path at which a copied fork is not what it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The path.
    pub path: RelPath,
    /// What was there; `None` for something new.
    pub was: Option<Pair>,
    /// What is there; `None` where it is gone.
    pub now: Option<Stat>,
}

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    version: u32,
    mounts: Vec<Name>,
}

/// A path in JSON: text, or hexadecimal bytes.
#[derive(Serialize, Deserialize)]
struct Name(#[serde(with = "crate::names::json")] PathBuf);

type Moment = (i64, u32);
type Numbers = (u64, Moment, u32, u64, Moment, Moment);

fn numbers(state: &BaseState) -> Numbers {
    let moment = |t: Time| (t.sec, t.nsec);
    (state.ident.ino, moment(state.ident.btime), state.mode, state.size, moment(state.mtime), moment(state.ctime))
}

fn state((ino, btime, mode, size, mtime, ctime): Numbers) -> BaseState {
    let time = |(sec, nsec): Moment| Time { sec, nsec };
    BaseState {
        ident: Ident { ino, btime: time(btime) },
        mode,
        size,
        mtime: time(mtime),
        ctime: time(ctime),
        content: None,
    }
}

impl Manifest {
    /// The manifest of a tree that is what it was made from.
    pub fn of(tree: &Path) -> Result<Self> {
        let pair = |stat: &Stat| Pair { base: BaseState::from(stat), fork: BaseState::from(stat) };
        let entries = look(tree)?.iter().map(|(path, stat)| (path.clone(), pair(stat))).collect();
        Ok(Self { mounts: vec![], entries })
    }

    /// Whether the object at this path is still what it was.
    pub fn is_as_made(&self, path: &RelPath, stat: &Stat) -> bool {
        self.entries.get(path).is_some_and(|pair| pair.fork == BaseState::from(stat))
    }

    /// Writes it to a work area, durably. Only a whole one ever has the name.
    pub fn write(&self, work: &Path) -> Result<()> {
        self.write_as(work, FILE)
    }

    /// The same under another name.
    pub fn write_as(&self, work: &Path, name: &str) -> Result<()> {
        let dir = open_root(work).context("cannot open", work)?;
        let part = At::new(&dir, "manifest.part");
        self.write_to(part).context("cannot write", work.join(part.name))?;
        part.rename(At::new(&dir, name)).context("cannot rename to", work.join(name))?;
        durable::sync_dir(work)
    }

    fn write_to(&self, part: At<'_>) -> std::io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let mut out = BufWriter::new(File::from(part.create(flags, 0o600)?));
        let mounts = self.mounts.iter().map(|path| Name(path.as_path().to_path_buf())).collect();
        let header = Header { format: "treefork manifest".into(), version: VERSION, mounts };
        serde_json::to_writer(&mut out, &header)?;
        out.write_all(b"\n")?;
        for (path, pair) in &self.entries {
            let line = (Name(path.as_path().to_path_buf()), numbers(&pair.base), numbers(&pair.fork));
            serde_json::to_writer(&mut out, &line)?;
            out.write_all(b"\n")?;
        }
        let file = out.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        Ok(calls::fsync(file.as_fd())?)
    }

    /// Reads the manifest of a work area. [`Kind::Corrupt`] where it cannot be understood whole: guessing at a part of it
    /// would turn files into additions and deletions.
    pub fn read(work: &Path) -> Result<Self> {
        Self::read_as(work, FILE)
    }

    /// What an upper had in it from the beginning; `None` where that was nothing.
    pub fn prepared(work: &Path) -> Result<Option<Self>> {
        let path = work.join(PREPARED);
        let there = calls::exists(&path).context("cannot look for", path)?;
        there.then(|| Self::read_as(work, PREPARED)).transpose()
    }

    /// The same under another name.
    pub fn read_as(work: &Path, name: &str) -> Result<Self> {
        let path = work.join(name);
        let corrupt = |what: &str| Error::new(Kind::Corrupt, format!("the manifest {what}:")).at(&path);
        let dir = open_root(work).context("cannot open", work)?;
        let file = At::new(&dir, name).open(OFlags::RDONLY).context("cannot open", &path)?;
        let mut lines = BufReader::new(File::from(file)).split(b'\n');
        let first = lines.next().ok_or_else(|| corrupt("is empty"))?.context("cannot read", &path)?;
        let header: Header = serde_json::from_slice(&first).map_err(|e| corrupt("has no header").because(e))?;
        if header.version > VERSION {
            return Err(corrupt("is of a newer format; a newer treefork can read it"));
        }
        let relative = |name: Name| RelPath::new(&name.0).ok_or_else(|| corrupt("names an impossible path"));
        let mounts = header.mounts.into_iter().map(relative).collect::<Result<_>>()?;
        let mut entries = BTreeMap::new();
        for line in lines {
            let line = line.context("cannot read", &path)?;
            let (name, base, fork): (Name, Numbers, Numbers) =
                serde_json::from_slice(&line).map_err(|e| corrupt("has a line that cannot be read").because(e))?;
            entries.insert(relative(name)?, Pair { base: state(base), fork: state(fork) });
        }
        Ok(Self { mounts, entries })
    }

    /// Every path at which the tree is not what the manifest says, in order of paths.
    ///
    /// The times of a directory move with its entries, so one that is named here may differ in nothing else. Nothing is
    /// opened but directories, and nothing followed.
    pub fn compare(&self, tree: &Path) -> Result<Vec<Difference>> {
        let mut found = look(tree)?;
        let mut differences = Vec::new();
        for (path, pair) in &self.entries {
            let now = found.remove(path);
            if now.as_ref().map(BaseState::from) != Some(pair.fork) {
                differences.push(Difference { path: path.clone(), was: Some(*pair), now });
            }
        }
        let new = found.into_iter().map(|(path, stat)| Difference { path, was: None, now: Some(stat) });
        differences.extend(new);
        differences.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(differences)
    }
}

/// The object at a path, itself.
pub fn look_at(path: &Path) -> Result<Stat> {
    let (parent, name) = (path.parent().unwrap_or(path), path.file_name().unwrap_or_default());
    let dir = open_root(parent).context("cannot open", parent)?;
    At::new(&dir, name).stat().context("cannot look at", path)
}

/// Everything at and below a directory, by its path from there. Nothing is followed.
pub fn look(tree: &Path) -> Result<BTreeMap<RelPath, Stat>> {
    let root = open_root(tree).context("cannot open", tree)?;
    let mut found = BTreeMap::new();
    found.insert(RelPath::root(), At::new(&root, ".").stat().context("cannot look at", tree)?);
    collect(&root, &mut found).map_err(|(e, path)| Error::io("cannot look at", e).at(tree.join(path)))?;
    Ok(found)
}

/// Looks at everything below a directory. No recursion: the tree may be deeper than the caller's stack.
fn collect(top: &OwnedFd, found: &mut BTreeMap<RelPath, Stat>) -> std::result::Result<(), (Errno, RelPath)> {
    let mut todo = vec![RelPath::root()];
    while let Some(path) = todo.pop() {
        let failed = |e: Errno| (e, path.clone());
        let dir = match open_beneath(top, &path, OFlags::PATH | OFlags::DIRECTORY) {
            // Gone since it was seen.
            Err(Errno::NOENT | Errno::NOTDIR) => continue,
            other => other.map_err(failed)?,
        };
        let list = At::new(&dir, ".").open_quiet(OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed)?;
        for entry in Dir::read_from(&list).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let (at, below) = (At::new(&dir, name), path.deeper(name).map_err(failed)?);
            // Gone since it was listed.
            let Some(stat) = at.try_stat().map_err(|e| (e, below.clone()))? else { continue };
            if stat.is_dir() {
                todo.push(below.clone());
            }
            found.insert(below, stat);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn differences_are_what_was_done() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, work) = (dir.path().join("tree"), dir.path().join("work"));
        fs::create_dir_all(tree.join("d/e")).unwrap();
        fs::create_dir(&work).unwrap();
        for name in ["a", "b", "d/c", "d/e/\n"] {
            fs::write(tree.join(name), name).unwrap();
        }
        fs::write(tree.join(OsStr::from_bytes(b"\xff")), "").unwrap();
        let manifest = Manifest::of(&tree).unwrap();
        manifest.write(&work).unwrap();
        assert_eq!(Manifest::read(&work).unwrap(), manifest);
        assert_eq!(manifest.compare(&tree).unwrap(), []);
        fs::write(tree.join("a"), "changed").unwrap();
        fs::remove_file(tree.join("d/c")).unwrap();
        fs::write(tree.join("new"), "").unwrap();
        let differences = manifest.compare(&tree).unwrap();
        let short = |d: &Difference| (d.path.as_path().to_path_buf(), d.was.is_some(), d.now.is_some());
        let expected =
            [("", true, true), ("a", true, true), ("d", true, true), ("d/c", true, false), ("new", false, true)];
        let expected: Vec<_> = expected.map(|(path, was, now)| (PathBuf::from(path), was, now)).into();
        assert_eq!(differences.iter().map(short).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_part_of_a_manifest_is_none() {
        let dir = tempfile::tempdir().unwrap();
        for bad in [
            "",
            "{}\n",
            "{\"format\":\"x\",\"version\":2,\"mounts\":[]}\n",
            "{\"format\":\"x\",\"version\":1,\"mounts\":[]}\n[\"a\"",
        ] {
            fs::write(dir.path().join(FILE), bad).unwrap();
            assert_eq!(Manifest::read(dir.path()).unwrap_err().kind(), Kind::Corrupt, "{bad}");
        }
    }
}
