//! The file system of a fork, by inode, knowing nothing of FUSE.
//!
//! An [`Overlay`] is made of lower layers and an upper; every method is one operation that a kernel asks for, on nodes
//! named by number. There are no open files here: whoever drives it holds nodes (by looking them up, until it forgets
//! them), and reading, writing and syncing go to the node. That is the shape of a FUSE session in which `OPEN` and
//! `OPENDIR` are answered `ENOSYS`, so that the kernel keeps its caches and asks nothing when files are opened.
//!
//! | file | what it does |
//! |---|---|
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
//! | `touched` | telling git what changed |

mod ahead;
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
use std::ffi::OsStr;
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
use crate::layer::watch::Watch;
use crate::names::RelPath;
use crate::sys::{At, Ident, Stat, Time};

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

/// On whose behalf an operation runs.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// User, as the file system checks it.
    pub uid: u32,
    /// Group, as the file system checks it.
    pub gid: u32,
}

/// The attributes that a node shows. `ino` is the number for `st_ino`.
pub type Attr = Stat;

/// A node that a lookup or a creation found, with how long the kernel may believe it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The number by which later operations name the node. Each `Entry` handed out counts as one lookup.
    pub node: u64,
    /// Tells apart two objects that had the same number, one after the other.
    pub generation: u64,
    /// The attributes.
    pub attr: Attr,
    /// How long the name may be believed.
    pub entry_ttl: Duration,
    /// How long the attributes may be believed.
    pub attr_ttl: Duration,
}

/// The answer to a lookup.
#[derive(Clone, Copy, Debug)]
pub enum Lookup {
    /// There is such an entry.
    Found(Entry),
    /// There is none, and that may be believed so long.
    Absent(Duration),
}

/// A new value for a time stamp.
#[derive(Clone, Copy, Debug)]
pub enum SetTime {
    /// The current time.
    Now,
    /// This time.
    To(Time),
}

/// What `setattr` is to change; `None` leaves a field alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// Permission bits (with or without the type, which is ignored).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the content.
    pub mtime: Option<SetTime>,
}

impl SetAttr {
    fn is_empty(&self) -> bool {
        let Self { mode, uid, gid, size, atime, mtime } = self;
        let owner = uid.is_none() && gid.is_none();
        owner && mode.is_none() && size.is_none() && atime.is_none() && mtime.is_none()
    }
}

/// One entry of a directory listing.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// The number that `st_ino` of the entry shows.
    pub ino: u64,
    /// The type, as in the type bits of a mode.
    pub kind: rustix::fs::FileType,
    /// The name.
    pub name: &'a OsStr,
    /// The offset to go on from after this entry. It stays valid while the directory changes.
    pub next: u64,
}

/// How the overlay tells the kernel (or whoever caches on top) that something changed without being asked to.
///
/// Called from the thread that noticed the change, never from inside an operation, and with no lock held.
pub trait Invalidate: Send + Sync {
    /// The name `name` in `parent` means something else now, or nothing.
    fn entry(&self, parent: u64, name: &OsStr);
    /// Attributes (and with `data` also the cached content or listing) of `node` are out of date.
    ///
    /// Says nothing to a lookup whose answer is still on its way: [`settle`](Self::settle) first.
    fn node(&self, node: u64, data: bool);
    /// Returns once every answer to a lookup in `dir` that was under way has arrived, so that what it brought can be
    /// taken back.
    fn settle(&self, dir: u64);
}

/// A lower layer to read through.
#[derive(Debug)]
pub struct Lower {
    /// Its root (`O_PATH`), opened before the fork is mounted.
    pub root: OwnedFd,
    /// Whether it is in overlay format; the base of a fork is not.
    pub marked: bool,
    /// Whether it is a layer of a container image, with whiteouts that are files named `.wh.NAME`.
    pub image: bool,
    /// Whether to follow changes from outside.
    pub watch: bool,
}

/// What an overlay is made of.
#[derive(Debug)]
pub struct Config {
    /// The lower layers, top first, the base last; at least one.
    pub lowers: Vec<Lower>,
    /// The root of the upper (`O_PATH`); `None` for a read-only file system.
    pub upper: Option<OwnedFd>,
    /// The work area, on the file system of the upper; needed with an upper.
    pub work: Option<OwnedFd>,
    /// Notices changes from outside; shared by all forks of a process.
    pub watch: Option<Arc<Watch>>,
    /// Descriptors kept open; shared by all forks of a process.
    pub fds: Arc<FdCache>,
    /// When the fork was created (real time). With it the root of a new upper takes over the attributes of the base's
    /// root, and a base object changed since then counts as drift.
    pub created: Option<Time>,
    /// The device number that the base had when the upper was begun, where that may be another one by now. The marks of
    /// origin in the upper speak of the base's device by this number for ever.
    pub made_on: Option<u64>,
    /// Which names of the lowers are not shown.
    pub hidden: Hidden,
    /// What counts as a large file.
    pub large: Large,
}

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
                let layer = Layer::new(lower.root, lower.marked, lower.watch && watch.is_some())?;
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
            absent: Mutex::default(),
        })),
    })
}

#[cfg(test)]
mod tests;
