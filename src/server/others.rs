//! Forks that are mounted inside a base: the server would come to them when it reads the base, and might wait for itself.
//!
//! Looked for before each mount, among the mounts that came since the last look: a store with a thousand forks has as many
//! mounts. Those of the store itself are not kept in mind, since no store lies inside a base that is forked into it.

use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::MOUNT_KIND;
use crate::error::{Context, Error, Kind, Result};
use crate::sys::{Mounted, Newer, about, mounts};

/// The forks that were seen mounted outside of one store.
#[derive(Debug, Default)]
pub(super) struct Others(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    newer: Newer,
    forks: Vec<(u64, PathBuf)>,
    /// How many may be kept in mind before those that are gone are forgotten.
    most: usize,
}

impl Others {
    /// An error where a fork is mounted inside `base`. `own` is where the store's forks are.
    pub(super) fn refuse_inside(&self, base: &Path, own: &Path) -> Result<()> {
        let mut seen = self.0.lock();
        let Some(new) = seen.newer.look() else { return refuse_any_inside(base) };
        let forks = new.into_iter().filter(|(_, mounted)| is_fork(mounted) && !mounted.point.starts_with(own));
        seen.forks.extend(forks.map(|(number, mounted)| (number, mounted.point)));
        let too_many = seen.forks.len() > seen.most;
        // Asked again where it matters: it may be gone by now, or elsewhere.
        seen.forks.retain_mut(|(number, point)| {
            let matters = too_many || point.starts_with(base);
            !matters || about(*number).map(|now| *point = now.point).is_ok()
        });
        if too_many {
            seen.most = 2 * seen.forks.len() + 64;
        }
        match seen.forks.iter().find(|(_, point)| point.starts_with(base)) {
            Some((_, point)) => Err(refused(base, point)),
            None => Ok(()),
        }
    }
}

/// The same for whoever looks once.
pub fn refuse_any_inside(base: &Path) -> Result<()> {
    let all = mounts().context("cannot read", "/proc/self/mountinfo")?.into_iter().map(Mounted::from);
    match all.into_iter().find(|mounted| is_fork(mounted) && mounted.point.starts_with(base)) {
        Some(mounted) => Err(refused(base, &mounted.point)),
        None => Ok(()),
    }
}

fn is_fork(mounted: &Mounted) -> bool {
    mounted.kind == MOUNT_KIND
}

fn refused(base: &Path, point: &Path) -> Error {
    let error = Error::new(Kind::Usage, format!("the fork at {point:?} is mounted inside the base")).at(base);
    error.remedy("remove that fork first, or fork a directory that does not hold it")
}
