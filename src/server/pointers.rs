//! Git directories of a fork's own, made where a `.git` of its base leads to one outside.
//!
//! Those at the top of a base and right below are found and dealt with when a fork is made. This is for all others, at the first look
//! at them ([`StandIns`]): a complete git directory stands in for the pointer, or where that cannot be had a pointer that
//! leads nowhere and says why. Never one that still leads to the shared directory.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::protocol::MountSpec;
use crate::copy;
use crate::error::{Context, Error, Kind, Result};
use crate::git::own::{self, Fix};
use crate::layer::manifest::{self, Manifest, PREPARED, Pair};
use crate::layer::{ledger::BaseState, marks, staging};
use crate::names::RelPath;
use crate::overlay::{STAND_IN_NAME, StandIn, StandIns};
use crate::sys::{At, mounts, open_beneath, open_root};

/// Makes them for one fork.
#[derive(Debug)]
pub(super) struct Pointers {
    base: PathBuf,
    tree: PathBuf,
    upper: PathBuf,
    work: PathBuf,
}

impl Pointers {
    pub(super) fn new(spec: &MountSpec) -> Self {
        let MountSpec { base, point, upper, work, .. } = spec.clone();
        Self { base, tree: point, upper, work }
    }

    fn make_all(&self, top: &RelPath, room: &dyn Fn() -> OsString) -> Result<Vec<StandIn>> {
        let fixes = match self.refuse_forks(top).and_then(|()| own::fixes_at(&self.base, &self.tree, top)) {
            Ok(fixes) => fixes,
            Err(e) if e.kind() == Kind::Git => vec![nowhere(top, &e)],
            Err(e) => return Err(e),
        };
        let mut made = Vec::new();
        for fix in fixes {
            let staged = room();
            let path = self.work.join(staging::DIR).join(&staged);
            match &fix {
                Fix::Own { at, repo } => {
                    log::info!(
                        "making a git directory for {:?}, copied whole from {:?}",
                        at.as_path(),
                        repo.common_dir
                    );
                    own::build(repo, &path, true)?;
                }
                Fix::Write { at, content } => {
                    fs::write(&path, content).context("cannot write", &path)?;
                    self.like_the_base(at, &path).context("cannot set the attributes of", &path)?;
                }
            }
            made.push(StandIn { path: fix.at().clone(), staged });
        }
        Ok(made)
    }

    /// A repository in a fork is none that this process may look at: it would wait for itself.
    fn refuse_forks(&self, top: &RelPath) -> Result<()> {
        let entry = self.base.join(top).join(STAND_IN_NAME);
        let target = match fs::read_link(&entry) {
            Ok(target) => target.into_os_string(),
            Err(_) => match fs::read(&entry) {
                Ok(text) => match text.strip_prefix(b"gitdir: ") {
                    Some(target) => OsStr::from_bytes(target.trim_ascii_end()).to_os_string(),
                    None => return Ok(()),
                },
                Err(_) => return Ok(()),
            },
        };
        let forks: Vec<PathBuf> = mounts()
            .context("cannot read", "/proc/self/mountinfo")?
            .into_iter()
            .filter(|mount| mount.kind == super::MOUNT_KIND)
            .map(|mount| mount.point)
            .collect();
        let all = Path::new("/");
        let Some(link) = entry.strip_prefix(all).ok().and_then(RelPath::new) else { return Ok(()) };
        let step = |path: &RelPath| {
            let path = all.join(path);
            if forks.iter().any(|fork| path.starts_with(fork)) {
                return Err(Errno::XDEV);
            }
            Ok(fs::read_link(path).ok().map(PathBuf::into_os_string))
        };
        match copy::leads_outside_of(all, &link, &target, &step) {
            Err(_) => Err(Error::new(Kind::Git, "a fork has none of its own here: the repository is in another fork")),
            Ok(_) => Ok(()),
        }
    }

    fn like_the_base(&self, at: &RelPath, path: &Path) -> std::result::Result<(), Errno> {
        let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else { return Err(Errno::INVAL) };
        let dir = open_beneath(&open_root(&self.base)?, &parent, OFlags::PATH | OFlags::DIRECTORY)?;
        let (from, to) = (At::new(&dir, name), open_root(path.parent().unwrap_or(path))?);
        let stat = from.stat()?;
        if !stat.is_file() {
            return Ok(());
        }
        copy::metadata(from, At::new(&to, path.file_name().unwrap_or_default()), &stat, marks::is_ours)
    }

    /// Notes that these are none of the fork's changes.
    fn note(&self, paths: &[RelPath]) -> Result<()> {
        let known = self.work.join(PREPARED).exists();
        let mut prepared = if known { Manifest::read_as(&self.work, PREPARED)? } else { Manifest::default() };
        for path in paths {
            let place = self.upper.join(path);
            let found = if place.is_dir() { manifest::look(&place)? } else { Default::default() };
            let single = fs::symlink_metadata(&place).is_ok_and(|meta| !meta.is_dir());
            let own = single.then(|| manifest::look_at(&place)).transpose()?;
            for (below, stat) in found.into_iter().chain(own.map(|stat| (RelPath::root(), stat))) {
                let at = RelPath::new(&path.as_path().join(&below)).unwrap_or_default();
                let state = BaseState::from(&stat);
                prepared.entries.insert(at, Pair { base: state, fork: state });
            }
        }
        prepared.write_as(&self.work, PREPARED)
    }
}

impl StandIns for Pointers {
    fn make(&self, top: &RelPath, room: &dyn Fn() -> OsString) -> std::result::Result<Vec<StandIn>, Errno> {
        self.make_all(top, room).map_err(|e| errno("cannot give a fork a git directory of its own", &e))
    }

    fn placed(&self, paths: &[RelPath]) -> std::result::Result<(), Errno> {
        self.note(paths).map_err(|e| errno("cannot note a git directory that was made for a fork", &e))
    }
}

fn errno(what: &str, error: &Error) -> Errno {
    log::error!("{what}: {error}");
    error.errno().map_or(Errno::IO, Errno::from_raw_os_error)
}

/// A pointer to nothing, which git shows in its complaint.
fn nowhere(top: &RelPath, why: &Error) -> Fix {
    log::warn!("{why}");
    let why = why.to_string().replace('\n', " ");
    Fix::Write { at: top.join(OsStr::new(STAND_IN_NAME)), content: format!("gitdir: (treefork: {why})\n").into_bytes() }
}
