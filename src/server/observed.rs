//! Bases that are observed for git: a monitor of each, and the index that is prepared for its forks.
//!
//! Both live as long as a fork of the base is mounted that wants them: longer, and the base's file system could not be
//! unmounted. The prepared index is kept in the store for the next:
//!
//! ```text
//! bases/<key>/prepared/<n>/
//!   state          for which state of the base's index it was made
//!   directories    the directories of the base, each with its times then
//!   tree/.git/index
//! ```
//!
//! Whoever finds one compares what it says with what the base is like, and what differs counts as changed since.
//! One that does not fit the base's index any more is made anew, in the background, and not more often than it pays.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::durable;
use crate::error::{Context, Error, Kind, Result};
use crate::git::prepare::{self, Looked};
use crate::git::{DotGit, Git, Repo};
use crate::layer::monitor::{Heard, INSIDE, Mark, Monitor};
use crate::layer::prepared::{INDEX, Prepared, Since};
use crate::names::RelPath;
use crate::sys::{self, At, Ident, Stat, Time, open_beneath};

/// Between two looks at something that takes a while.
const PAUSE: Duration = Duration::from_millis(2);

/// How long a monitor may take to be ready.
const READY: Duration = Duration::from_secs(60);

/// Preparing may take this part of the time.
const SHARE: u32 = 10;

/// All bases that are observed.
#[derive(Default)]
pub(super) struct Observed {
    bases: Mutex<HashMap<Ident, Weak<Base>>>,
}

/// One base.
pub(super) struct Base {
    path: PathBuf,
    root: OwnedFd,
    /// Where its prepared indexes are.
    dir: PathBuf,
    monitor: Arc<Monitor>,
    /// The newest last; the others are still shown by some fork.
    prepared: Mutex<Vec<(PathBuf, Arc<Prepared>)>>,
    preparing: AtomicBool,
    /// When preparing ended the last time, and how long it took.
    last: Mutex<Option<(Instant, Duration)>>,
}

#[derive(Serialize, Deserialize)]
struct Record {
    version: u32,
    id: u64,
    of: Stat,
}

const VERSION: u32 = 1;

impl Observed {
    /// The base with this root, observed from now on. `kept` is the directory that the store keeps for it.
    pub(super) fn base(&self, path: &Path, root: OwnedFd, kept: &Path) -> Result<Arc<Base>> {
        let ident = Stat::of(root.as_fd()).context("cannot look at the base", path)?.ident();
        let mut bases = self.bases.lock();
        bases.retain(|_, base| base.strong_count() > 0);
        if let Some(base) = bases.get(&ident).and_then(Weak::upgrade) {
            return Ok(base);
        }
        let again = root.try_clone().context("cannot open", path)?;
        let monitor = Arc::new(Monitor::new(again).context("cannot follow the base", path)?);
        let dir = kept.join("prepared");
        let base = Base {
            path: path.to_path_buf(),
            root,
            dir,
            monitor,
            prepared: Mutex::default(),
            preparing: AtomicBool::new(false),
            last: Mutex::default(),
        };
        let base = Arc::new(base);
        base.load();
        bases.insert(ident, Arc::downgrade(&base));
        Ok(base)
    }
}

impl Base {
    pub(super) fn monitor(&self) -> Arc<Monitor> {
        Arc::clone(&self.monitor)
    }

    /// The prepared index for the present state of the base's. Where there is none it is made in the background, or
    /// with `wait` before this returns.
    pub(super) fn prepared(self: &Arc<Self>, wait: bool) -> Option<Arc<Prepared>> {
        if let Some(prepared) = self.fitting(wait) {
            return Some(prepared);
        }
        if !wait && !self.is_due() || self.preparing.swap(true, Ordering::SeqCst) {
            return None;
        }
        let this = Arc::clone(self);
        let work = move || Self::prepare(&this);
        if wait {
            work();
            return self.fitting(true);
        }
        if let Err(e) = std::thread::Builder::new().name("treefork-prepare".into()).spawn(work) {
            log::warn!("cannot start a thread: {e}");
            self.preparing.store(false, Ordering::SeqCst);
        }
        None
    }

    /// The prepared index for the present state of the base's, if there is one. With `wait` it is known since when.
    fn fitting(&self, wait: bool) -> Option<Arc<Prepared>> {
        let now = self.index_stat()?;
        let found = {
            let all = self.prepared.lock();
            all.iter().map(|(_, prepared)| prepared).find(|prepared| prepared.is_of(&now)).cloned()?
        };
        while wait && found.since() == Since::Unknown {
            std::thread::sleep(PAUSE);
        }
        (found.since() != Since::Lost).then_some(found)
    }

    fn is_due(&self) -> bool {
        self.last.lock().is_none_or(|(ended, took)| ended.elapsed() >= took * SHARE)
    }

    fn index_stat(&self) -> Option<Stat> {
        let git = open_beneath(&self.root, &RelPath::from_bytes(b".git")?, OFlags::PATH | OFlags::DIRECTORY).ok()?;
        At::new(&git, "index").stat().ok().filter(|stat| stat.is_file() && stat.nlink == 1)
    }

    /// Takes up what an earlier server left, where it fits, and finds out what has changed since.
    fn load(self: &Arc<Self>) {
        let (now, mut found) = (self.index_stat(), None);
        for dir in fs::read_dir(&self.dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
            match read(&dir) {
                Ok(prepared) if found.is_none() && now.is_some_and(|now| prepared.is_of(&now)) => {
                    found = Some((dir, Arc::new(prepared)));
                }
                _ => discard(&dir),
            }
        }
        let Some((dir, prepared)) = found else { return };
        self.prepared.lock().push((dir.clone(), Arc::clone(&prepared)));
        let (this, unverified) = (Arc::clone(self), Arc::clone(&prepared));
        let verify = move || {
            let since = this.verify(&dir).unwrap_or_else(|e| {
                log::info!("a prepared index is of no use any more: {e}");
                None
            });
            prepared.set_since(since.map_or(Since::Lost, Since::Mark));
        };
        if let Err(e) = std::thread::Builder::new().name("treefork-verify".into()).spawn(verify) {
            log::warn!("cannot start a thread: {e}");
            // Or whoever waits for it would wait for ever.
            unverified.set_since(Since::Lost);
        }
    }

    /// Tells the monitor what differs from what was recorded; since when it knows all.
    fn verify(self: &Arc<Self>, dir: &Path) -> Result<Option<Mark>> {
        let Some(mark) = self.ready() else { return Ok(None) };
        let index = fs::read(dir.join("tree").join(INDEX)).context("cannot read", dir)?;
        let modified = self.index_stat().map_or(Time::default(), |stat| stat.mtime);
        let Some(looked) = Looked::at(&self.root, &index, modified) else { return Ok(None) };
        let mut changed: Vec<RelPath> = looked.unknown().collect();
        let recorded = read_directories(&dir.join("directories"))?;
        for (path, state) in self.directories(Time { sec: i64::MAX, nsec: 0 }) {
            if recorded.get(&path) != Some(&state) {
                changed.push(path.join(INSIDE.as_ref()));
            }
        }
        Ok(self.monitor.add(mark, changed).then_some(mark))
    }

    /// Whether anybody but the calling thread has the base: else its file system may be about to be unmounted.
    fn is_wanted(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1
    }

    /// Waits for the monitor; where it stands.
    fn ready(self: &Arc<Self>) -> Option<Mark> {
        let until = Instant::now() + READY;
        loop {
            match self.monitor.since(None) {
                Heard::Names(_, mark) | Heard::Anything(mark) => return Some(mark),
                Heard::Blind => return None,
                Heard::NotYet if Instant::now() > until || !self.is_wanted() => return None,
                Heard::NotYet => std::thread::sleep(PAUSE),
            }
        }
    }

    /// The directories of the base with what tells whether their entries changed, but for those that were changed after
    /// `settled`: another change would not show in their times.
    fn directories(&self, settled: Time) -> Vec<(RelPath, Stamp)> {
        let stamp = |path: &RelPath| {
            let dir = open_beneath(&self.root, path, OFlags::PATH | OFlags::DIRECTORY).ok()?;
            Stat::of(dir.as_fd()).ok().filter(|stat| stat.ctime < settled).map(|stat| Stamp::from(&stat))
        };
        let paths = self.monitor.directories();
        paths.into_iter().filter_map(|path| stamp(&path).map(|stamp| (path, stamp))).collect()
    }

    fn prepare(self: &Arc<Self>) {
        let begun = Instant::now();
        match self.make() {
            Ok(Some((dir, prepared))) => {
                log::info!("prepared an index for {:?} in {:?}", self.path, begun.elapsed());
                let mut all = self.prepared.lock();
                // Those that nobody but this list holds are shown by no fork.
                all.retain(|(dir, old)| {
                    let used = Arc::strong_count(old) > 1;
                    if !used {
                        discard(dir);
                    }
                    used
                });
                all.push((dir, Arc::new(prepared)));
            }
            Ok(None) => {}
            Err(e) => log::info!("cannot prepare an index for {:?}: {e}", self.path),
        }
        *self.last.lock() = Some((Instant::now(), begun.elapsed()));
        self.preparing.store(false, Ordering::SeqCst);
    }

    /// Makes a prepared index; `None` where there is nothing to prepare.
    fn make(self: &Arc<Self>) -> Result<Option<(PathBuf, Prepared)>> {
        let Some(repo) = Repo::at(&self.path)?.filter(|repo| repo.dot_git == DotGit::Dir) else { return Ok(None) };
        let (Some(mark), Some(of)) = (self.ready(), self.index_stat()) else { return Ok(None) };
        let index = fs::read(repo.git_dir.join("index")).context("cannot read the index of", &self.path)?;
        let now = Time::now();
        let directories = self.directories(Time { sec: now.sec - 1, ..now });
        let Some(looked) = Looked::at(&self.root, &index, of.mtime) else { return Ok(None) };
        make_dir(&self.dir)?;
        let git = Git::new(&repo)?;
        let excludes = if git.config("core.excludesFile")?.is_none() { excludes() } else { None };
        let untracked =
            prepare::untracked(&git, &index, &self.dir.join("index"), excludes.as_deref(), &|| self.is_wanted())?;
        let id = new_id(&self.dir);
        let token = format!("{}{id:x}", crate::overlay::touched::PREPARED);
        let Some(bytes) = looked.index(&index, &token, untracked.as_deref()) else { return Ok(None) };
        let dir = self.dir.join(format!("{id:x}"));
        write(&dir, &bytes, &directories, &Record { version: VERSION, id, of })?;
        let root = sys::open_root(&dir.join("tree")).context("cannot open", &dir)?;
        let prepared = Prepared::open(root, id, of, Since::Mark(mark)).context("cannot use", &dir)?;
        if self.index_stat().is_none_or(|now| !prepared.is_of(&now)) {
            // Somebody was quicker: the next time.
            discard(&dir);
            return Ok(None);
        }
        Ok(Some((dir, prepared)))
    }
}

/// What tells whether the entries of a directory changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    ino: u64,
    mtime: Time,
    ctime: Time,
}

impl From<&Stat> for Stamp {
    fn from(stat: &Stat) -> Self {
        Self { ino: stat.ino, mtime: stat.mtime, ctime: stat.ctime }
    }
}

/// A number that no prepared index here has had: by the clock, and not one that is still there.
fn new_id(dir: &Path) -> u64 {
    let now = Time::now();
    let mut id = now.sec.cast_unsigned() << 30 | u64::from(now.nsec);
    while dir.join(format!("{id:x}")).exists() {
        id += 1;
    }
    id
}

fn read(dir: &Path) -> Result<Prepared> {
    let text = fs::read(dir.join("state")).context("cannot read", dir)?;
    let record: Record =
        serde_json::from_slice(&text).map_err(|e| Error::new(Kind::Corrupt, "cannot understand").at(dir).because(e))?;
    if record.version != VERSION {
        return Err(Error::new(Kind::Corrupt, "of another version:").at(dir));
    }
    let root = sys::open_root(&dir.join("tree")).context("cannot open", dir)?;
    Prepared::open(root, record.id, record.of, Since::Unknown).context("cannot use", dir)
}

/// Writes all of it, `state` last: without it, it is nothing.
fn write(dir: &Path, index: &[u8], directories: &[(RelPath, Stamp)], record: &Record) -> Result<()> {
    make_dir(dir)?;
    make_dir(&dir.join("tree"))?;
    make_dir(&dir.join("tree/.git"))?;
    let synced = |path: PathBuf, bytes: &[u8]| {
        let written = File::create(&path).and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
        written.context("cannot write", path)
    };
    let mut lines = Vec::new();
    for line in directories {
        serde_json::to_writer(&mut lines, line).map_err(|e| Error::io("cannot write", e).at(dir))?;
        lines.push(b'\n');
    }
    synced(dir.join("tree").join(INDEX), index)?;
    synced(dir.join("directories"), &lines)?;
    let text = serde_json::to_vec(record).map_err(|e| Error::io("cannot write", e).at(dir))?;
    durable::write_atomic(&dir.join("state"), &text, 0o600)
}

fn read_directories(path: &Path) -> Result<HashMap<RelPath, Stamp>> {
    let file = File::open(path).context("cannot read", path)?;
    let lines = BufReader::new(file).split(b'\n').map_while(std::io::Result::ok);
    Ok(lines.filter_map(|line| serde_json::from_slice(&line).ok()).collect())
}

fn make_dir(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).context("cannot make the directory", dir)
}

fn discard(dir: &Path) {
    if let Err(e) = fs::remove_dir_all(dir) {
        log::debug!("cannot remove {dir:?}: {e}");
    }
}

/// The user's own file of patterns for what is not tracked anywhere.
fn excludes() -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    let mut command = Command::new("git");
    command.args(["config", "--type=path", "-z", "--get", "core.excludesFile"]).current_dir("/").stdin(Stdio::null());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GIT_")) {
        if !name.to_string_lossy().starts_with("GIT_CONFIG_") {
            command.env_remove(name);
        }
    }
    let mut said = command.output().ok().filter(|output| output.status.success()).map(|output| output.stdout);
    if let Some(path) = said.as_mut() {
        path.pop_if(|byte| *byte == 0);
    }
    let named = said.map(|path| PathBuf::from(std::ffi::OsString::from_vec(path)));
    named.or_else(|| {
        let config = std::env::var_os("XDG_CONFIG_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
        let config = config.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".config")));
        config.map(|config| config.join("git/ignore"))
    })
}
