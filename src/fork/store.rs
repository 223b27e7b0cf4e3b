//! The state directory: where it is, what is in it, and which format it has.
//!
//! ```text
//! store/               0700, outside every base and every git work tree
//!   version            "treefork store 1"
//!   lock               held while a label is checked and its fork's directory made
//!   server.*           the server's own files, see `crate::server`
//!   bases/<key>/       one per base, see `crate::merge`
//!   forks/<id>/        fork.json, lock, and what the strategy keeps
//!   pending/<id>       forks between two states, see `pending`
//!   labels/<label>     which fork has it, see `labels`
//!   trash/<name>/      what is being deleted, or waits to be restored
//!   trash.lock         held by whoever deletes it
//! ```

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::Id;
use crate::durable::write_atomic;
use crate::error::{Context, Error, Kind, Result};
use crate::sys::{Stat, calls};

const VERSION: &str = "version";
const FORMAT: &str = "treefork store ";
const CURRENT: u32 = 1;
const TRASH_LOCK: &str = "trash.lock";

/// An open store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    root: PathBuf,
}

impl Store {
    /// Where the store is: `explicit` (`--store`), else `$TREEFORK_STORE`, else `$XDG_STATE_HOME/treefork`, else
    /// `~/.local/state/treefork`. Relative paths count from the current directory.
    pub fn locate(explicit: Option<&Path>) -> Result<PathBuf> {
        let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
        let path = locate(explicit, variable)?;
        std::path::absolute(&path).context("cannot resolve the store", path)
    }

    /// Opens the store at `path`, making it first where there is none.
    ///
    /// # Errors
    /// `Usage` where something else is at that path, `Corrupt` for a newer format or a damaged version file.
    pub fn open(path: &Path) -> Result<Self> {
        match Self::open_existing(path)? {
            Some(store) => Ok(store),
            None => Self::make(path),
        }
    }

    /// Opens the store at `path`; `None` where there is none yet. Writes nothing.
    pub fn open_existing(path: &Path) -> Result<Option<Self>> {
        let root = match fs::canonicalize(path) {
            Ok(root) => root,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).context("cannot open the store", path),
        };
        let stat = Stat::of(open(&root).context("cannot open the store", path)?.as_fd());
        let stat = stat.context("cannot open the store", path)?;
        if !stat.is_dir() {
            return Err(Error::new(Kind::Usage, "the store is not a directory:").at(path));
        }
        let version = root.join(VERSION);
        match calls::File::read(&version) {
            Ok(text) => check_version(&text, &version)?,
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(e).context("cannot read", version),
        }
        let me = rustix::process::geteuid().as_raw();
        if stat.uid != me {
            let what = format!("the store belongs to user {}, not to user {me}:", stat.uid);
            return Err(Error::new(Kind::Usage, what).at(path));
        }
        Ok(Some(Self { root }))
    }

    fn make(path: &Path) -> Result<Self> {
        let cannot = "cannot make the store";
        calls::make_dirs(path, Mode::RWXU).context(cannot, path)?;
        let root = fs::canonicalize(path).context(cannot, path)?;
        for name in calls::names(&root).context(cannot, path)? {
            // Another process that makes the same store may be at any of its steps.
            if !is_ours(&name) {
                let what = format!("not a store, and not empty (it holds {name:?}):");
                return Err(Error::new(Kind::Usage, what).at(path));
            }
        }
        calls::chmod(&root, Mode::RWXU).context(cannot, path)?;
        for name in ["bases", "forks", "labels", "pending", "trash"] {
            calls::make_dirs(&root.join(name), Mode::RWXU).context(cannot, path)?;
        }
        // Made now, since the trash has to be emptied when there is no room for one more file.
        let lock = root.join(TRASH_LOCK);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        calls::open(&lock, flags, Mode::from_raw_mode(0o600)).context(cannot, &lock)?;
        // Last: a store without it is not a store yet.
        write_atomic(&root.join(VERSION), format!("{FORMAT}{CURRENT}\n").as_bytes(), 0o600)?;
        Ok(Self { root })
    }

    /// Its path: absolute, without symbolic links.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where the forks are.
    pub fn forks(&self) -> PathBuf {
        self.root.join("forks")
    }

    /// The directory of a fork, whether it exists or not.
    pub fn fork(&self, id: &Id) -> PathBuf {
        self.forks().join(id.as_str())
    }

    /// Whether there is a directory of this fork, whatever state the fork is in.
    pub(super) fn exists(&self, id: &Id) -> Result<bool> {
        let path = self.fork(id);
        calls::exists(&path).context("cannot look for", path)
    }

    /// Where things wait for their deletion.
    pub fn trash(&self) -> PathBuf {
        self.root.join("trash")
    }

    /// The lock of whoever empties the trash.
    pub(super) fn trash_lock(&self) -> PathBuf {
        self.root.join(TRASH_LOCK)
    }

    /// The marks of forks between two states.
    pub(super) fn pending(&self) -> PathBuf {
        self.root.join("pending")
    }

    /// Which fork has which label.
    pub(super) fn labels(&self) -> PathBuf {
        self.root.join("labels")
    }

    /// Where the directories for bases are.
    pub fn bases(&self) -> PathBuf {
        self.root.join("bases")
    }

    /// The directory that is kept for a base, by the base's key.
    pub fn base(&self, key: &str) -> PathBuf {
        self.root.join("bases").join(key)
    }

    /// The lock under which labels are checked and forks come into being.
    pub fn lock_path(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// The ids of all directories that may be forks.
    pub fn ids(&self) -> Result<Vec<Id>> {
        let forks = self.forks();
        let names = calls::names(&forks).context("cannot list the forks", &forks)?;
        let mut ids: Vec<Id> = names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect();
        ids.sort();
        Ok(ids)
    }
}

fn locate(explicit: Option<&Path>, variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    if let Some(path) = explicit {
        return if path.as_os_str().is_empty() {
            Err(Error::new(Kind::Usage, "the path of the store is empty"))
        } else {
            Ok(path.to_path_buf())
        };
    }
    if let Some(path) = variable("TREEFORK_STORE") {
        return Ok(path.into());
    }
    // The XDG specification: a relative path there is to be ignored.
    let state = variable("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let state = state.or_else(|| variable("HOME").map(|home| PathBuf::from(home).join(".local/state")));
    state.map(|state| state.join("treefork")).ok_or_else(|| {
        Error::new(Kind::Usage, "no store: none of --store, TREEFORK_STORE, XDG_STATE_HOME and HOME is set")
    })
}

fn is_ours(name: &std::ffi::OsStr) -> bool {
    let name = name.as_encoded_bytes();
    [&b"bases"[..], b"forks", b"labels", b"pending", b"trash", b"version", b"lock", TRASH_LOCK.as_bytes()]
        .contains(&name)
        || name.starts_with(b"server.")
        || name.starts_with(b".tmp.")
}

/// Whatever a path leads to, links followed.
fn open(path: &Path) -> std::result::Result<OwnedFd, Errno> {
    calls::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

fn check_version(text: &[u8], path: &Path) -> Result<()> {
    let text = std::str::from_utf8(text).unwrap_or_default();
    let version = text.strip_prefix(FORMAT).and_then(|rest| rest.trim_end().parse::<u32>().ok());
    match version {
        Some(CURRENT) => Ok(()),
        Some(newer) if newer > CURRENT => {
            let what = format!("the store has format {newer}, this treefork knows only {CURRENT}:");
            Err(Error::new(Kind::Corrupt, what).at(path))
        }
        _ => Err(Error::new(Kind::Corrupt, "not the version file of a store:").at(path)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_first_that_is_set_wins() {
        let all = |name: &str| Some(OsString::from(format!("/{name}")));
        let only = |which: &'static str| move |name: &str| (name == which).then(|| OsString::from("/v"));
        assert_eq!(locate(Some(Path::new("s")), all).expect("given"), Path::new("s"));
        assert_eq!(locate(None, all).expect("set"), Path::new("/TREEFORK_STORE"));
        assert_eq!(locate(None, only("XDG_STATE_HOME")).expect("set"), Path::new("/v/treefork"));
        assert_eq!(locate(None, only("HOME")).expect("set"), Path::new("/v/.local/state/treefork"));
        assert_eq!(locate(None, only("NONE")).expect_err("none").kind(), Kind::Usage);
        let relative = |name: &str| (name != "TREEFORK_STORE").then(|| OsString::from("r"));
        assert_eq!(locate(None, relative).expect("HOME"), Path::new("r/.local/state/treefork"));
    }

    #[test]
    fn made_private_once_and_opened_again() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("a/store");
        assert_eq!(Store::open_existing(&path).expect("absent is fine"), None);
        let store = Store::open(&path).expect("made");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o7777, 0o700);
        assert_eq!(Store::open(&path).expect("opened"), store);
        assert_eq!(store.ids().expect("listed"), []);
    }

    #[test]
    fn what_is_no_store_is_left_alone() {
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::write(dir.path().join("letter"), "dear").expect("writable");
        let mode = fs::metadata(dir.path()).expect("there").permissions().mode();
        assert_eq!(Store::open(dir.path()).expect_err("not empty").kind(), Kind::Usage);
        assert_eq!(fs::metadata(dir.path()).expect("there").permissions().mode(), mode);
        assert_eq!(fs::read_dir(dir.path()).expect("listable").count(), 1);
        assert_eq!(Store::open(&dir.path().join("letter")).expect_err("a file").kind(), Kind::Usage);
    }

    #[test]
    fn newer_and_damaged_formats_are_refused() {
        let dir = tempfile::tempdir().expect("temporary directory");
        for (text, says) in [("treefork store 2\n", "format 2"), ("", "not the version"), ("hello", "not the version")]
        {
            fs::write(dir.path().join(VERSION), text).expect("writable");
            let error = Store::open(dir.path()).expect_err(text);
            assert_eq!(error.kind(), Kind::Corrupt);
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
