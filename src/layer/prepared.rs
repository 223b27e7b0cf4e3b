//! A git index that was prepared for the forks of a base: the base's own, entry by entry, with what git has to know to
//! look at next to nothing.
//!
//! It stands in a layer of its own, at the place of the index and with the base's attributes but for the size, and is
//! shown where a fork would show that very state of the base's index. What it says about the files of the base holds as
//! of a mark of the base's monitor; what changed since has to be told to git along with it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::monitor::Mark;
use super::tree::Layer;
use crate::names::RelPath;
use crate::sys::{At, Stat};

/// Where an index is, from the root of a work tree and from the root of the layer.
pub const INDEX: &str = ".git/index";

/// A prepared index.
#[derive(Debug)]
pub struct Prepared {
    /// What the index calls itself, for git to ask with.
    pub id: u64,
    /// The layer that it stands in.
    pub layer: Arc<Layer>,
    /// The state of the base's index that it stands for.
    of: Stat,
    since: Mutex<Since>,
}

/// Since when changes of the base have to be told along with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// It is being found out.
    Unknown,
    /// Since this mark.
    Mark(Mark),
    /// Nobody can tell any more.
    Lost,
}

impl Prepared {
    /// The prepared index at [`INDEX`] below a directory, for a base's index in this state.
    pub fn open(root: OwnedFd, id: u64, of: Stat, since: Since) -> Result<Self, Errno> {
        let index = crate::sys::open_beneath(&root, &path(), OFlags::PATH)?;
        let own = At::object(&index).stat()?;
        let mut layer = Layer::new(root, true, false)?;
        layer.overrides.insert(own.ident(), Stat { size: own.size, blocks: own.blocks, ..of });
        Ok(Self { id, layer: Arc::new(layer), of, since: Mutex::new(since) })
    }

    /// Whether it stands for an index with these attributes.
    pub fn is_of(&self, stat: &Stat) -> bool {
        let state = |stat: &Stat| (stat.ident(), stat.dev, stat.mode, stat.size, stat.mtime, stat.ctime);
        state(&self.of) == state(stat)
    }

    /// What it shows.
    pub fn shown(&self) -> Stat {
        self.layer.overrides.values().next().copied().unwrap_or(self.of)
    }

    /// Since when changes have to be told.
    pub fn since(&self) -> Since {
        *self.since.lock()
    }

    /// Says since when, once that is known.
    pub fn set_since(&self, since: Since) {
        *self.since.lock() = since;
    }
}

/// [`INDEX`] as a path.
pub fn path() -> RelPath {
    RelPath::from_bytes(INDEX.as_bytes()).expect("it is relative")
}
