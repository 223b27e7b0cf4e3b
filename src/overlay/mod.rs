//! The file system of a fork, by inode, knowing nothing of FUSE.
//!
//! An [`Overlay`] is made of lower layers and an upper; every method is one operation that a kernel asks for, on nodes
//! named by number. There are no open files here: whoever drives it holds nodes (by looking them up, until it forgets
//! them), and reading, writing and syncing go to the node. That is the shape of a FUSE session in which `OPEN` and
//! `OPENDIR` are answered `ENOSYS`, so that the kernel keeps its caches and asks nothing when files are opened.
//!
//! | file | what it does |
//! |---|---|
//! | `api` | the words in which it is asked and answers |
//! | `node` | the nodes, their places on disk, and the order of locks |
//! | `fds` | descriptors kept open between operations |
//! | `lookup` | from a name to a node, and from a node to descriptors |
//! | `identity` | which number an object goes by |
//! | `attr` | reading and setting attributes; time stamps of directories |
//! | `copyup`, `stage`, `shell` | bringing an object into the upper before its first change, and directories as the way to it |
//! | `large`, `partial` | large files, which come up block by block |
//! | `settle`, `background` | bringing up the rest of them |
//! | `data` | reading and writing content |
//! | `create`, `remove`, `rename` | changing names |
//! | `orphan` | what has no name any more and is in use |
//! | `symlink` | reading links, and keeping them in the fork |
//! | `stand_in` | what takes the place of things that a fork must not have as they are |
//! | `listing` | merged directory listings with offsets that stay valid |
//! | `ahead` | listings that bring their entries with them |
//! | `xattr` | extended attributes |
//! | `quota`, `room`, `count` | what a fork may take on the disk: the account, what an operation needs, what was there before |
//! | `preserve` | staying as it was while a merge changes the base |
//! | `drift` | following changes that others make to the base |
//! | `told`, `later` | in which order the kernel is told of them |
//! | `touched` | telling git what changed |

mod ahead;
mod api;
mod attr;
mod background;
mod copyup;
mod count;
mod create;
mod data;
mod drift;
mod fds;
mod flush;
mod identity;
mod large;
pub(crate) mod later;
mod listing;
mod lookup;
mod node;
mod orphan;
mod partial;
mod preserve;
mod quota;
mod remove;
mod rename;
mod room;
mod settle;
mod shell;
mod stage;
mod stand_in;
mod symlink;
mod told;
pub mod touched;
mod xattr;

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;

use crate::layer::hidden::Hidden;
use crate::layer::index::Index;
use crate::layer::ledger::Ledger;
use crate::layer::origins::Origins;
use crate::layer::resolve::LowerDir;
use crate::layer::staging::Staging;
use crate::layer::tree::Layer;
use crate::names::RelPath;
use crate::sys::{At, Ident, Stat};

pub use api::{Attr, Caller, Config, DirEntry, Entry, Invalidate, Lookup, Lower, SetAttr, SetTime};
pub use count::usage_of;
pub use fds::{FdCache, Leftovers};
pub use large::Large;
use node::{Dir, DirState, Kind, Node, Table};
pub use quota::{Limits, Usage};
pub use stand_in::{NAME as STAND_IN_NAME, StandIn, StandIns};

/// The number of the root node.
pub const ROOT: u64 = 1;

/// What an operation returns: a value, or the errno that the caller gets to see.
pub type Result<T> = std::result::Result<T, Errno>;

/// For how long the kernel may believe what cannot change without us noticing.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// For how long it may believe what is not watched.
const MOMENT: Duration = Duration::from_millis(100);

/// The file system of one fork.
#[derive(Debug)]
pub struct Overlay {
    /// Itself, for what goes on in the background.
    me: Weak<Overlay>,
    layers: RwLock<Vec<Arc<Layer>>>,
    /// Paths that merges which were undone had meant to add.
    withdrawn: Mutex<HashSet<RelPath>>,
    upper: Option<Upper>,
    table: Table,
    /// Shared by whoever goes by names, exclusive while a rename changes them. See `node` for the order of locks.
    names: RwLock<()>,
    /// Held while a directory that was found elsewhere gets another parent.
    relinking: Mutex<()>,
    fds: Arc<FdCache>,
    /// Our number in the descriptor cache.
    owner: u32,
    /// Descriptors of the upper are [left](Overlay::leave) to somebody else.
    leaves: AtomicBool,
    /// Device of the base: objects on it keep their numbers.
    base_dev: u64,
    /// What marks of origin call it.
    made_on: u64,
    listings: Mutex<listing::Listings>,
    drift: drift::Drift,
    /// Held while the kernel is told of changed content. The first in the order of locks.
    telling: Mutex<()>,
    hidden: Hidden,
    stand_ins: stand_in::Made,
    large: Large,
    touches: touched::Touches,
    /// Attributes of objects that a merge is about to preserve.
    expected: RwLock<HashMap<Ident, Stat>>,
    /// Absolute paths of the base.
    bases: OnceLock<Vec<PathBuf>>,
    /// The directory around the upper, until it is synced. A leaf in the order of locks.
    anchor: Mutex<Option<OwnedFd>>,
    /// Links that the kernel was told another target of than they have.
    retargeted: Mutex<HashSet<u64>>,
}

/// The upper and everything that belongs to it.
#[derive(Debug)]
struct Upper {
    root: Arc<fds::Opened>,
    dev: u64,
    work: OwnedFd,
    staging: Arc<Staging>,
    index: Index,
    origins: Origins,
    ledger: Ledger,
    partials: settle::Partials,
    unshared: stage::Unshared,
    /// What the fork may take, where that is limited.
    quota: OnceLock<Arc<quota::Quota>>,
}

impl Overlay {
    /// Puts the layers together; prepares the work area and clears what a crash left in it.
    ///
    /// `EINVAL` without a lower, or with an upper but no work area; `EXDEV` where the two are on different file systems.
    pub fn new(config: Config) -> Result<Arc<Self>> {
        let Config { lowers, upper, work, watch, fds, created, made_on, hidden, large } = config;
        let layers = lowers
            .into_iter()
            .map(|lower| {
                let layer = Layer::new(lower.root, lower.marked, lower.watch)?;
                Ok(Arc::new(Layer { image: lower.image, ..layer }))
            })
            .collect::<Result<Vec<_>>>()?;
        let base = layers.last().ok_or(Errno::INVAL)?;
        let (base_dev, owner) = (base.dev, fds.owner());
        let upper = match (upper, work) {
            (Some(root), Some(work)) => Some(Upper::open(root, work)?),
            (Some(_), None) => return Err(Errno::INVAL),
            (None, _) => None,
        };
        if let (Some(upper), Some(_)) = (&upper, created) {
            upper.adopt_root(&layers[0])?;
        }
        let root = Arc::new(root_node(&layers, upper.as_ref())?);
        let work = upper.as_ref().map(|upper| upper.work.as_fd());
        let drift = drift::Drift::open(work, created)?;
        let overlay = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            large,
            layers: RwLock::new(layers),
            withdrawn: Mutex::default(),
            upper,
            table: Table::new(root),
            names: RwLock::new(()),
            relinking: Mutex::default(),
            owner,
            leaves: AtomicBool::new(false),
            fds,
            base_dev,
            made_on: made_on.unwrap_or(base_dev),
            listings: Mutex::default(),
            drift,
            telling: Mutex::default(),
            hidden,
            stand_ins: stand_in::Made::default(),
            touches: touched::Touches::default(),
            expected: RwLock::default(),
            bases: OnceLock::new(),
            anchor: Mutex::default(),
            retargeted: Mutex::default(),
        });
        if let Some(watch) = watch {
            let sink: Weak<Overlay> = Arc::downgrade(&overlay);
            overlay.drift.subscribe(watch.subscribe(sink));
        }
        Ok(overlay)
    }

    /// How many nodes the kernel holds, the root among them.
    pub fn nodes(&self) -> usize {
        self.table.len()
    }

    /// Gives back room that is kept for more nodes than the kernel holds. For moments in which nobody waits.
    pub fn shrink(&self) {
        self.table.shrink();
    }

    /// Free and total space: of the upper, or of the top lower in a read-only file system.
    pub fn statfs(&self) -> Result<rustix::fs::StatVfs> {
        match &self.upper {
            Some(upper) => crate::sys::calls::fstatvfs(&upper.root.fd).map(|all| upper.limited(all)),
            None => crate::sys::calls::fstatvfs(&self.layers.read()[0].root),
        }
    }

    /// The flags of the mount that the base is on.
    pub fn base_flags(&self) -> Result<rustix::fs::StatVfsMountFlags> {
        let layers = self.layers.read();
        Ok(crate::sys::calls::fstatvfs(&layers[layers.len() - 1].root)?.f_flag)
    }

    /// The root of the base, once more.
    pub fn base(&self) -> Result<OwnedFd> {
        let layers = self.layers.read();
        At::object(&layers[layers.len() - 1].root).open(rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY)
    }

    /// Makes everything written so far survive a power cut, in a form that needs nothing of a lower: large files are
    /// copied to their end first. `EIO` where one of them cannot be, since the base has changed meanwhile.
    pub fn sync_all(&self) -> Result<()> {
        let Some(upper) = &self.upper else { return Ok(()) };
        self.settle_all()?;
        let root = crate::sys::reopen(upper.root.fd.as_fd(), rustix::fs::OFlags::RDONLY)?;
        crate::sys::calls::syncfs(&root)
    }

    /// The upper, or `EROFS`.
    fn writable(&self) -> Result<&Upper> {
        self.upper.as_ref().ok_or(Errno::ROFS)
    }

    fn node(&self, id: u64) -> Result<Arc<Node>> {
        // A number that the kernel holds but we do not: it outlived the object behind it.
        self.table.get(id).ok_or(Errno::STALE)
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let leaves = self.leaves.load(Ordering::Relaxed);
        let open = if leaves { self.fds.remove_lowers(self.owner) } else { self.fds.remove_owner(self.owner) };
        // What the kernel forgets takes its descriptors along, whoever is in the middle of something.
        let kept: Vec<u64> = open.into_iter().filter(|&node| self.table.get(node).is_none()).collect();
        debug_assert!(kept.is_empty() || std::thread::panicking(), "descriptors of forgotten nodes: {kept:?}");
        self.upper.iter().for_each(Upper::end_count);
    }
}

impl Upper {
    fn open(root: OwnedFd, work: OwnedFd) -> Result<Self> {
        let dev = Stat::of(root.as_fd())?.dev;
        if Stat::of(work.as_fd())?.dev != dev {
            return Err(Errno::XDEV);
        }
        Ok(Self {
            root: fds::Opened::new(root),
            dev,
            staging: Arc::new(Staging::open(&work)?),
            index: Index::open(&work)?,
            origins: Origins::open(&work)?,
            ledger: Ledger::open(&work)?,
            partials: settle::Partials::default(),
            unshared: stage::Unshared::default(),
            quota: OnceLock::new(),
            work,
        })
    }
}

fn root_node(layers: &[Arc<Layer>], upper: Option<&Upper>) -> Result<Node> {
    let mut lowers = Vec::new();
    // The number of the root is the base's, as everywhere: preserved layers come and go above it.
    let mut base = Err(Errno::INVAL);
    for layer in layers {
        let stat = Stat::of(layer.root.as_fd())?;
        lowers.push(LowerDir { layer: Arc::clone(layer), path: RelPath::root(), ident: stat.ident() });
        base = Ok(stat);
    }
    let (ident, dev) = base.map(|base| (base.ident(), base.dev))?;
    let marks = match upper {
        Some(upper) => shell::root_marks(upper)?,
        None => Default::default(),
    };
    let state = DirState {
        link: None,
        upper: upper.is_some(),
        attribute_whiteouts: marks.attribute_whiteouts,
        lowers: lowers.into(),
        borrowed_ctime: marks.origin.and_then(|origin| origin.ctime),
        subdirectories: None,
        inherit: None,
        removed: None,
        pinned: None,
        unwatched: false,
    };
    Ok(Node {
        id: ROOT,
        ino: ident.ino,
        ident,
        dev,
        lookups: AtomicU64::new(1),
        copying: Mutex::new(()),
        charged: quota::Charged::default(),
        kind: Kind::Dir(Box::new(Dir {
            state: RwLock::new(state),
            change: Mutex::new(()),
            watched: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            told: Mutex::default(),
            absent: Mutex::default(),
        })),
    })
}

#[cfg(test)]
mod tests;
