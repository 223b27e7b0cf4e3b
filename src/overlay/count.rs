//! Counting what an upper takes that was there before the mount.
//!
//! A small one is counted on the spot, a large one by a thread of its own while the fork is in use already; changes wait for
//! it, so that it counts something that stands still. One directory is open at a time, however deep the tree is: up it goes
//! by `..`, which leads back as nothing can be renamed meanwhile.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::quota::{Limits, Quota, Usage};
use super::{Overlay, Result};
use crate::layer::index::{self, Key};
use crate::layer::{ledger, marks};
use crate::sys::{At, Stat, calls, open_root};

/// So many steps are taken before the mount, and between two looks whether the count is still wanted.
const AT_ONCE: usize = 512;

impl Overlay {
    /// Limits what the fork may take. Once, before the first request.
    ///
    /// `EROFS` without an upper.
    pub fn limit(&self, limits: Limits) -> Result<()> {
        if limits.is_nothing() {
            return Ok(());
        }
        let upper = self.writable()?;
        let block = calls::fstatvfs(&upper.root.fd)?.f_bsize.max(512);
        let quota = Arc::new(Quota::new(limits, block));
        let mut count = Count::of(At::object(&*upper.root.fd), upper.index.dir(), upper.ledger.size()?)?;
        if count.go_on(AT_ONCE)? {
            quota.counted(Ok(count.usage));
        } else {
            let counting = Arc::clone(&quota);
            let work = move || counting.counted(count.finish(&counting));
            let thread = std::thread::Builder::new().name("treefork-count".into()).spawn(work);
            thread.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::AGAIN))?;
        }
        drop(upper.quota.set(quota));
        Ok(())
    }

    /// What the fork takes of what it may; `None` where it has no limits, or while that is being counted.
    pub fn usage(&self) -> Option<Usage> {
        self.upper.as_ref()?.quota.get()?.usage()
    }
}

/// A count under way.
struct Count {
    usage: Usage,
    /// Objects with several names that were met already.
    met: HashSet<u64>,
    /// The directory that is open, what is left of its entries, and whether whiteouts in it may have attribute form.
    dir: OwnedFd,
    entries: Option<calls::Dir>,
    attribute_form: bool,
    /// That directory and those above it.
    levels: Vec<Level>,
}

/// A directory on the way to the one that is open.
#[derive(Default)]
struct Level {
    /// Directories in it that are yet to be entered.
    below: Vec<Below>,
    /// The one above it, where it cannot be reached from here.
    above: Option<OwnedFd>,
}

enum Below {
    Name(OsString),
    /// Opened while its name could be looked up (`O_PATH`).
    Open(OwnedFd),
}

impl Count {
    /// Of an upper: begins with what is not below its root.
    fn of(root: At<'_>, index: &OwnedFd, ledger: u64) -> Result<Self> {
        let mut count = Self::below(root)?;
        count.usage.size = root.stat()?.blocks * 512 + ledger;
        for entry in calls::Dir::read_from(index)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if Key::parse(name).is_some() {
                count.add(&At::new(index, name).stat()?);
            }
        }
        Ok(count)
    }

    fn below(root: At<'_>) -> Result<Self> {
        let dir = root.open(OFlags::PATH | OFlags::DIRECTORY)?;
        let (usage, met) = (Usage::default(), HashSet::new());
        let mut count = Self { usage, met, dir, entries: None, attribute_form: false, levels: Vec::new() };
        count.enter(root)?;
        Ok(count)
    }

    /// Goes on by so many steps; whether all is counted.
    fn go_on(&mut self, steps: usize) -> Result<bool> {
        for _ in 0..steps {
            match self.entries.as_mut().map(Iterator::next) {
                Some(Some(entry)) => self.look_at(OsStr::from_bytes(entry?.file_name().to_bytes()))?,
                Some(None) => self.entries = None,
                None if self.levels.is_empty() => return Ok(true),
                None => self.leave()?,
            }
        }
        Ok(false)
    }

    /// All entries of the directory are counted: on to the next one, in it or above it.
    fn leave(&mut self) -> Result<()> {
        match self.levels.last_mut().and_then(|level| level.below.pop()) {
            Some(Below::Name(name)) => {
                let here = At::object(&self.dir).open(OFlags::PATH | OFlags::DIRECTORY)?;
                self.enter(At::new(&here, &name))
            }
            Some(Below::Open(dir)) => self.enter(At::object(&dir)),
            None => {
                let above = self.levels.pop().and_then(|level| level.above);
                if !self.levels.is_empty() {
                    let up = || At::new(&self.dir, "..").open(OFlags::PATH | OFlags::DIRECTORY);
                    self.dir = above.map_or_else(up, Ok)?;
                }
                Ok(())
            }
        }
    }

    /// Goes into a directory.
    fn enter(&mut self, at: At<'_>) -> Result<()> {
        let mode = at.stat()?.mode;
        if mode & 0o500 == 0o500 || rustix::process::geteuid().is_root() {
            return self.open(at).map(drop);
        }
        // An ordinary user may have closed it to himself: all of it is looked at in a moment in which it is not.
        at.chmod(mode | 0o700)?;
        let looked = self.look_into(at);
        at.chmod(mode)?;
        looked
    }

    /// Begins with a directory; the one that was open.
    fn open(&mut self, at: At<'_>) -> Result<OwnedFd> {
        let dir = at.open(OFlags::RDONLY | OFlags::DIRECTORY)?;
        self.attribute_form = At::object(&dir).xattr(OsStr::new(marks::OPAQUE))?.as_deref() == Some(b"x");
        self.entries = Some(calls::Dir::read_from(&dir)?);
        self.levels.push(Level::default());
        Ok(std::mem::replace(&mut self.dir, dir))
    }

    /// Begins with a directory that is closed again in a moment.
    fn look_into(&mut self, at: At<'_>) -> Result<()> {
        let above = self.open(at)?;
        for entry in self.entries.take().into_iter().flatten() {
            self.look_at(OsStr::from_bytes(entry?.file_name().to_bytes()))?;
        }
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        level.above = Some(above);
        for below in &mut level.below {
            if let Below::Name(name) = below {
                *below = Below::Open(At::new(&self.dir, name).open(OFlags::PATH | OFlags::DIRECTORY)?);
            }
        }
        Ok(())
    }

    fn look_at(&mut self, name: &OsStr) -> Result<()> {
        if name == "." || name == ".." {
            return Ok(());
        }
        let at = At::new(&self.dir, name);
        let stat = at.stat()?;
        if marks::is_whiteout(at, &stat, self.attribute_form)? {
            return Ok(());
        }
        if stat.is_dir()
            && let Some(level) = self.levels.last_mut()
        {
            level.below.push(Below::Name(name.to_os_string()));
        }
        self.add(&stat);
        Ok(())
    }

    fn all(mut self) -> Result<Usage> {
        while !self.go_on(AT_ONCE)? {}
        Ok(self.usage)
    }

    fn finish(mut self, quota: &Quota) -> Result<Usage> {
        loop {
            match self.go_on(AT_ONCE) {
                Ok(true) => return Ok(self.usage),
                Ok(false) if !quota.has_ended() => {}
                Ok(false) => return Err(Errno::CANCELED),
                Err(e) => {
                    log::error!("what a fork takes cannot be counted, so that it cannot be changed: {e}");
                    return Err(e);
                }
            }
        }
    }

    fn add(&mut self, stat: &Stat) {
        if stat.is_dir() || stat.nlink == 1 || self.met.insert(stat.ino) {
            self.usage.size += stat.blocks * 512;
            self.usage.files += 1;
        }
    }
}

/// What a fork takes that is not mounted, by its upper and its work area.
pub fn usage_of(upper: &Path, work: &Path) -> Result<Usage> {
    let (upper, work) = (open_root(upper)?, open_root(work)?);
    let index = At::new(&work, index::DIR).open(OFlags::RDONLY | OFlags::DIRECTORY)?;
    let ledger = At::new(&work, ledger::FILE).try_stat()?.map_or(0, |stat| stat.size);
    Count::of(At::object(&upper), &index, ledger)?.all()
}

/// What an object takes, with all that is in it.
pub(super) fn tree(at: At<'_>) -> Result<Usage> {
    let stat = at.stat()?;
    let own = Usage { size: stat.blocks * 512, files: 1 };
    if !stat.is_dir() {
        return Ok(own);
    }
    let below = Count::below(at)?.all()?;
    Ok(Usage { size: own.size + below.size, files: own.files + below.files })
}
