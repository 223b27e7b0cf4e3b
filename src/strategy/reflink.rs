//! Forks whose files share their blocks with the base's (btrfs, XFS, bcachefs...).
//!
//! Where single files cannot share (another file system mounted in the base), they are copied, and how many is said.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::{Guarantees, Made, Site, Strategy, Way, Wishes, copied, elsewhere};
use crate::copy;
use crate::error::{Context, Error, Kind, Result};
use crate::git::own;

/// The strategy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reflink;

/// So many entries of the base are looked at in search of a file to try with.
const LOOKED_AT: usize = 4096;

impl Strategy for Reflink {
    fn way(&self) -> Way {
        Way::Reflink
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            frozen_against_merges: true,
            frozen_against_drift: true,
            own_git: true,
            same_identity: false,
            cost: "O(files)",
        }
    }

    /// Tries with a file of the base: nothing else tells for sure.
    fn probe(&self, site: &Site) -> Result<()> {
        let dir = existing(&site.dir);
        let scratch = scratch(dir).context("cannot write in", dir)?;
        let shares = match a_file(&site.base) {
            Some(file) => {
                copy::reflink(file.as_fd(), scratch.as_fd()).context("cannot share blocks with", &site.base)?
            }
            // No file to share anything with: what matters is whether there could be.
            None => elsewhere::same_device(&site.base, dir),
        };
        if !shares {
            let why = if elsewhere::same_device(&site.base, dir) {
                "the file system of base and store cannot share blocks between files (reflink):"
            } else {
                "the store is on another file system than the base, or one without reflink:"
            };
            return Err(Error::new(Kind::Unavailable, why).at(dir));
        }
        own::fixes(&site.base, &site.tree(), &own::likely_tops(&site.base)).map(drop)
    }

    fn create(&self, site: &Site, wishes: &Wishes) -> Result<Made> {
        copied::create(site, wishes, true)
    }

    fn destroy(&self, _site: &Site) -> Result<()> {
        Ok(())
    }

    fn is_changed(&self, site: &Site) -> Result<Option<bool>> {
        copied::is_changed(site)
    }
}

/// The nearest directory upwards that is there: a fork's own may not have been made yet.
fn existing(dir: &Path) -> &Path {
    dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(dir)
}

/// A file without a name.
fn scratch(dir: &Path) -> std::result::Result<File, rustix::io::Errno> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(dir, flags, Mode::from_raw_mode(0o600)).map(File::from)
}

/// Some regular file below a directory that holds something and can be read.
fn a_file(base: &Path) -> Option<File> {
    let mut dirs: Vec<PathBuf> = vec![base.to_path_buf()];
    let mut left = LOOKED_AT;
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).ok()?.flatten() {
            left = left.checked_sub(1)?;
            let Ok(stat) = entry.metadata() else { continue };
            if stat.is_dir() {
                dirs.push(entry.path());
            } else if stat.is_file() && stat.len() > 0 {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                if let Ok(fd) = rustix::fs::open(entry.path(), flags, Mode::empty()) {
                    return Some(File::from(fd));
                }
            }
        }
    }
    None
}
