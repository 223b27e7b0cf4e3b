//! A listing of a whole tree that can be compared: two trees are the same when their listings are.
//!
//! It holds path, type, content, mode, owner, mtime to the nanosecond, extended attributes (ACLs among them), link
//! targets, device numbers and which names are one file. Access times are left out; inode numbers and change times are
//! in it where asked for.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{File, Metadata};
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// What goes into a listing.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    ino: bool,
    ctime: bool,
    mtime: bool,
    without: Vec<PathBuf>,
}

impl Default for Look {
    fn default() -> Self {
        Self { ino: false, ctime: false, mtime: true, without: Vec::new() }
    }
}

impl Look {
    /// With inode numbers.
    pub(crate) fn ino(mut self) -> Self {
        self.ino = true;
        self
    }

    /// With change times.
    pub(crate) fn ctime(mut self) -> Self {
        self.ctime = true;
        self
    }

    /// Without modification times.
    pub(crate) fn no_mtime(mut self) -> Self {
        self.mtime = false;
        self
    }

    /// Without what is at and below this path (relative to the root).
    pub(crate) fn without(mut self, path: impl Into<PathBuf>) -> Self {
        self.without.push(path.into());
        self
    }

    /// Reads the tree at `root`.
    #[track_caller]
    pub(crate) fn at(&self, root: &Path) -> Tree {
        let mut reader = Reader { look: self, root, names: HashMap::new(), entries: BTreeMap::new() };
        reader.entry(Path::new(""));
        Tree { entries: reader.entries }
    }
}

/// A listing. Compare with `==`, or with [`assert_same`] to see what differs.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Tree {
    entries: BTreeMap<PathBuf, Entry>,
}

type Entry = BTreeMap<&'static str, String>;

impl Tree {
    /// The whole tree at `root`, the usual way.
    #[track_caller]
    pub(crate) fn at(root: &Path) -> Self {
        Look::default().at(root)
    }

    /// One number for all of it.
    pub(crate) fn hash(&self) -> u64 {
        hash(self.to_string().as_bytes())
    }

    /// All paths, the root (empty) first.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.entries.keys().map(PathBuf::as_path)
    }

    /// What differs, a line each; empty where nothing does.
    pub(crate) fn diff(&self, other: &Self) -> Vec<String> {
        let mut out = Vec::new();
        for (path, entry) in &self.entries {
            match other.entries.get(path) {
                None => out.push(format!("- {path:?} {}", line(entry))),
                Some(theirs) if theirs != entry => out.push(format!("! {path:?} {}", fields(entry, theirs))),
                Some(_) => {}
            }
        }
        let new = other.entries.iter().filter(|(path, _)| !self.entries.contains_key(*path));
        out.extend(new.map(|(path, entry)| format!("+ {path:?} {}", line(entry))));
        out
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.entries.iter().try_for_each(|(path, entry)| writeln!(f, "{path:?} {}", line(entry)))
    }
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Fails with what differs between two listings.
#[track_caller]
pub(crate) fn assert_same(expected: &Tree, got: &Tree, what: &str) {
    let diff = expected.diff(got);
    let some = diff.iter().take(40).cloned().collect::<Vec<_>>().join("\n");
    assert!(diff.is_empty(), "{what}: {} differences (- missing, + too many, ! expected -> got)\n{some}", diff.len());
}

fn line(entry: &Entry) -> String {
    entry.iter().map(|(field, value)| format!("{field}={value}")).collect::<Vec<_>>().join(" ")
}

fn fields(ours: &Entry, theirs: &Entry) -> String {
    let all: std::collections::BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    let none = String::from("none");
    let pair = |field| (ours.get(field).unwrap_or(&none), theirs.get(field).unwrap_or(&none));
    let changed = all.into_iter().map(|field| (field, pair(*field))).filter(|(_, (a, b))| a != b);
    changed.map(|(field, (a, b))| format!("{field}={a} -> {b}")).collect::<Vec<_>>().join(" ")
}

struct Reader<'a> {
    look: &'a Look,
    root: &'a Path,
    /// The first name of each file that has several.
    names: HashMap<(u64, u64), PathBuf>,
    entries: BTreeMap<PathBuf, Entry>,
}

impl Reader<'_> {
    fn entry(&mut self, rel: &Path) {
        if self.look.without.iter().any(|path| path == rel) {
            return;
        }
        let path = if rel.as_os_str().is_empty() { self.root.to_path_buf() } else { self.root.join(rel) };
        let meta = path.symlink_metadata().unwrap_or_else(|e| panic!("stat {}: {e}", path.display()));
        let mut entry = self.attributes(rel, &meta);
        entry.insert("xattrs", format!("{:?}", xattrs(&path)));
        if meta.is_symlink() {
            let target = path.read_link().unwrap_or_else(|e| panic!("readlink {}: {e}", path.display()));
            entry.insert("target", format!("{target:?}"));
        } else if meta.is_file() {
            entry.insert("size", meta.len().to_string());
            entry.insert("content", content(&path));
        }
        self.entries.insert(rel.to_path_buf(), entry);
        if meta.is_dir() {
            let listing = path.read_dir().unwrap_or_else(|e| panic!("list {}: {e}", path.display()));
            let entries = listing.map(|e| e.unwrap_or_else(|e| panic!("list {}: {e}", path.display())).file_name());
            let mut names: Vec<OsString> = entries.collect();
            names.sort();
            let count = names.len();
            names.dedup();
            assert_eq!(count, names.len(), "a name twice in {}", path.display());
            names.iter().for_each(|name| self.entry(&rel.join(name)));
        }
    }

    fn attributes(&mut self, rel: &Path, meta: &Metadata) -> Entry {
        let mut entry = Entry::new();
        entry.insert("type", kind(meta).into());
        entry.insert("mode", format!("{:o}", meta.mode() & 0o7777));
        entry.insert("owner", format!("{}:{}", meta.uid(), meta.gid()));
        if self.look.mtime {
            entry.insert("mtime", format!("{}.{:09}", meta.mtime(), meta.mtime_nsec()));
        }
        if self.look.ctime {
            entry.insert("ctime", format!("{}.{:09}", meta.ctime(), meta.ctime_nsec()));
        }
        if self.look.ino {
            entry.insert("ino", meta.ino().to_string());
        }
        if meta.rdev() != 0 {
            entry.insert("rdev", meta.rdev().to_string());
        }
        if !meta.is_dir() && meta.nlink() > 1 {
            let first = self.names.entry((meta.dev(), meta.ino())).or_insert_with(|| rel.to_path_buf());
            entry.insert("links", format!("{} of {first:?}", meta.nlink()));
        }
        entry
    }
}

fn kind(meta: &Metadata) -> &'static str {
    let t = meta.file_type();
    match () {
        () if t.is_dir() => "dir",
        () if t.is_file() => "file",
        () if t.is_symlink() => "symlink",
        () if t.is_fifo() => "fifo",
        () if t.is_socket() => "socket",
        () if t.is_char_device() => "char",
        () => "block",
    }
}

fn content(path: &Path) -> String {
    let quiet = i32::try_from(rustix::fs::OFlags::NOATIME.bits()).expect("a flag fits");
    let open = |flags| File::options().read(true).custom_flags(flags).open(path);
    let file = open(quiet).or_else(|_| open(0)).unwrap_or_else(|e| panic!("open {}: {e}", path.display()));
    // Zeros are left out, in holes or not: they are told by the offsets of the rest and the size.
    let mut hasher = DefaultHasher::new();
    let mut buffer = [0; 65_536];
    let mut at = 0;
    loop {
        at = match rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => data / buffer.len() as u64 * buffer.len() as u64,
            Err(Errno::NXIO) => return format!("{:016x}", hasher.finish()),
            Err(Errno::INVAL) => at,
            Err(e) => panic!("lseek {}: {e}", path.display()),
        };
        let n = match file.read_at(&mut buffer, at) {
            Ok(0) => return format!("{:016x}", hasher.finish()),
            Ok(n) => n,
            Err(e) => panic!("read {}: {e}", path.display()),
        };
        for (block, bytes) in (at / 4096..).zip(buffer[..n].chunks(4096)) {
            if bytes.iter().any(|&byte| byte != 0) {
                hasher.write_u64(block);
                hasher.write(bytes);
            }
        }
        at += n as u64;
    }
}

/// All extended attributes of an object, never through a link.
pub(crate) fn xattrs(path: &Path) -> BTreeMap<OsString, String> {
    let mut list = vec![0_u8; 65_536];
    let n = match rustix::fs::llistxattr(path, list.as_mut_slice()) {
        Ok(n) => n,
        Err(Errno::NOTSUP) => 0,
        Err(e) => panic!("listxattr {}: {e}", path.display()),
    };
    let names = list[..n].split(|&b| b == 0).filter(|name| !name.is_empty());
    let value = |name: &OsStr| {
        let mut value = vec![0; 65_536];
        match rustix::fs::lgetxattr(path, name, value.as_mut_slice()) {
            Ok(n) => value[..n].escape_ascii().to_string(),
            Err(e) => panic!("getxattr {name:?} {}: {e}", path.display()),
        }
    };
    names.map(OsStr::from_bytes).map(|name| (name.to_os_string(), value(name))).collect()
}

/// A number for these bytes, the same in every run.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}
