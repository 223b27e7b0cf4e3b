//! Nodes: what the kernel has looked up and not yet forgotten, and where each of them is on disk.
//!
//! A directory has one name; anything else may have several (hard links) or none (unlinked while open). A node keeps
//! its parents alive, whatever order the kernel forgets them in.
//!
//! Locks, in the order in which they are taken (before all of them `Overlay::telling`, which no request takes):
//! 1. `copying` of a non-directory (one copy-up at a time);
//! 2. `Overlay::names` (shared by whoever uses names, exclusive for a rename; taken recursively after 1, since a
//!    waiting rename must not block a copy-up that somebody inside `names` waits for);
//! 3. `copying` of directories, one at a time, from the root down;
//! 4. `change` of one directory (its entries and time stamps in the upper);
//! 5. `Overlay::relinking`; 6. `state` of a node; 7. the node table, the descriptor cache, the listings: leaves, held for
//!    moments; with limits also what a node was charged with, and after it the account.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dashmap::{DashMap, Entry as Slot};
use parking_lot::{Mutex, RwLock};
use rustix::fs::FileType;

use super::orphan::Grip;
use super::quota::Charged;
use super::told::{Content, Told};
use super::{Attr, ROOT, Result};
use crate::layer::index::Key;
use crate::layer::resolve::LowerDir;
use crate::layer::tree::Layer;
use crate::names::{Name, RelPath};
use crate::sys::{Ident, Time};

/// One object of the file system.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: u64,
    /// The number for `st_ino`.
    pub(super) ino: u64,
    /// The identity behind number and generation, and the device that it holds on.
    pub(super) ident: Ident,
    pub(super) dev: u64,
    pub(super) lookups: AtomicU64,
    /// Serialises copy-ups of this node.
    pub(super) copying: Mutex<()>,
    pub(super) charged: Charged,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    Dir(Box<Dir>),
    File(File),
}

/// A name of a node.
pub(super) type Link = (Arc<Node>, Name);

/// A directory.
#[derive(Debug)]
pub(super) struct Dir {
    pub(super) state: RwLock<DirState>,
    /// Held while entries or time stamps of the directory in the upper change.
    pub(super) change: Mutex<()>,
    /// The lower directories are watched (or the watch was refused once and not tried again).
    pub(super) watched: AtomicBool,
    /// Counts changes from outside, so that a listing begun before one is not kept.
    pub(super) epoch: AtomicU64,
    /// What the kernel was last told of it, while no watch can be had.
    pub(super) told: Mutex<Option<Content>>,
    /// Names that the kernel was told do not exist: nothing else knows them when everything has to be looked up again.
    pub(super) absent: Mutex<HashSet<Name>>,
}

#[derive(Clone, Debug)]
pub(super) struct DirState {
    /// Its name; `None` for the root.
    pub(super) link: Option<Link>,
    /// It stands in the upper.
    pub(super) upper: bool,
    /// Whiteouts in attribute form may stand in the upper directory.
    pub(super) attribute_whiteouts: bool,
    /// The lower directories that show through, top first.
    pub(super) lowers: Arc<[LowerDir]>,
    /// In the upper only as the way to something below it: its change time is still this.
    pub(super) borrowed_ctime: Option<Time>,
    /// How many subdirectories it shows, of one that stands in the upper and in lowers; counted when first needed.
    pub(super) subdirectories: Option<u32>,
    /// What new entries inherit; worked out when first needed.
    pub(super) inherit: Option<Inherit>,
    /// It was removed; these were its last attributes.
    pub(super) removed: Option<Box<Attr>>,
    /// Its object in the upper, from before it is removed: as long as that is kept, nothing new gets its number.
    pub(super) pinned: Option<Grip>,
    /// The kernel may believe what this directory says only for moments: no watch could be had.
    pub(super) unwatched: bool,
}

/// What new entries of a directory inherit from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inherit {
    pub(super) set_gid: bool,
    pub(super) default_acl: bool,
}

/// Anything but a directory.
#[derive(Debug)]
pub(super) struct File {
    pub(super) file_type: FileType,
    /// It has other names in the base and is watched by itself.
    pub(super) watched: AtomicBool,
    /// It was so large when it was last looked at that copying it is a matter for a thread of its own.
    pub(super) much: AtomicBool,
    pub(super) told: Mutex<Told>,
    pub(super) state: RwLock<FileState>,
}

#[derive(Debug)]
pub(super) struct FileState {
    /// Its known names; none once it is unlinked.
    pub(super) links: Vec<Link>,
    pub(super) place: Place,
}

/// Where the bytes of a non-directory are.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// In a lower layer, untouched. `shared`: it has several names there.
    Lower { layer: Arc<Layer>, path: RelPath, shared: Option<Key> },
    /// In the upper, under any of its names.
    Upper,
    /// A hard link of the base that was copied up: in the index, whatever its names.
    Index(Key),
    /// In the upper without a name.
    Orphan(Grip),
}

impl Node {
    pub(super) fn dir(&self) -> Result<&Dir> {
        match &self.kind {
            Kind::Dir(dir) => Ok(dir),
            Kind::File(_) => Err(rustix::io::Errno::NOTDIR),
        }
    }

    pub(super) fn file(&self) -> Result<&File> {
        match &self.kind {
            Kind::File(file) => Ok(file),
            Kind::Dir(_) => Err(rustix::io::Errno::ISDIR),
        }
    }

    pub(super) fn is_dir(&self) -> bool {
        matches!(self.kind, Kind::Dir(_))
    }

    pub(super) fn file_type(&self) -> FileType {
        match &self.kind {
            Kind::Dir(_) => FileType::Directory,
            Kind::File(file) => file.file_type,
        }
    }

    /// Tells apart two objects that have one number after each other, for file handles.
    pub(super) fn generation(&self) -> u64 {
        if self.ident.btime == Time::default() {
            return 0;
        }
        let mut hasher = DefaultHasher::new();
        self.ident.btime.hash(&mut hasher);
        hasher.finish()
    }

    /// Whether the node is a directory, or anywhere below it.
    pub(super) fn is_at_or_below(self: &Arc<Self>, top: &Arc<Self>) -> bool {
        let mut at = Arc::clone(self);
        loop {
            if Arc::ptr_eq(&at, top) {
                return true;
            }
            let above = at.parents().into_iter().next();
            let Some(above) = above else { return false };
            at = above;
        }
    }

    /// Whether what the node shows no longer depends on a lower object of its number.
    pub(super) fn stands_alone(&self) -> bool {
        match &self.kind {
            Kind::Dir(dir) => dir.state.read().upper,
            Kind::File(file) => !matches!(file.state.read().place, Place::Lower { .. }),
        }
    }
}

impl Node {
    /// The directories in which it has a name.
    pub(super) fn parents(&self) -> Vec<Arc<Node>> {
        match &self.kind {
            Kind::Dir(dir) => dir.state.read().link.iter().map(|(parent, _)| Arc::clone(parent)).collect(),
            Kind::File(file) => file.state.read().links.iter().map(|(parent, _)| Arc::clone(parent)).collect(),
        }
    }
}

impl Drop for Node {
    /// A node may be the last to hold its parent, that one its own, and so on: they go one after the other, since no stack
    /// is as deep as a tree can be.
    fn drop(&mut self) {
        let mut above = self.take_links();
        while let Some((parent, _)) = above.pop() {
            if let Some(mut last) = Arc::into_inner(parent) {
                above.append(&mut last.take_links());
            }
        }
    }
}

impl Node {
    fn take_links(&mut self) -> Vec<Link> {
        match &mut self.kind {
            Kind::Dir(dir) => dir.state.get_mut().link.take().into_iter().collect(),
            Kind::File(file) => std::mem::take(&mut file.state.get_mut().links),
        }
    }
}

impl DirState {
    pub(super) fn is_removed(&self) -> bool {
        self.removed.is_some()
    }
}

/// All nodes by number.
///
/// A number belongs to one object for as long as the kernel may know a node by it, whatever becomes of the object: requests
/// name nothing but the number, and one that was sent for what had it before must not reach what has it now.
#[derive(Debug)]
pub(super) struct Table {
    nodes: DashMap<u64, Arc<Node>>,
    /// Numbers for objects whose own number is taken or means something else here (several devices in one base). Locked
    /// before `nodes`.
    aliases: Mutex<Aliases>,
}

/// The numbers of one node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    /// By which the kernel knows it.
    pub(super) node: u64,
    /// For `st_ino`.
    pub(super) shown: u64,
}

#[derive(Debug, Default)]
struct Aliases {
    by_object: HashMap<(u64, Ident), Numbers>,
    used: u64,
}

/// Set in every number that stands in for one that could not be used.
const ALIAS: u64 = 1 << 62;

impl Table {
    pub(super) fn new(root: Arc<Node>) -> Self {
        // Four shards: there are a thousand tables in a process, and two threads on each.
        let nodes = DashMap::with_shard_amount(4);
        nodes.insert(ROOT, root);
        Self { nodes, aliases: Mutex::default() }
    }

    pub(super) fn get(&self, id: u64) -> Option<Arc<Node>> {
        self.nodes.get(&id).map(|node| Arc::clone(&node))
    }

    /// The node of an object whose own number is `id`.
    pub(super) fn of_object(&self, id: u64, dev: u64, ident: Ident) -> Option<Arc<Node>> {
        let alias = self.aliases.lock().by_object.get(&(dev, ident)).map(|numbers| numbers.node);
        self.get(alias.unwrap_or(id)).filter(|node| node.ident == ident)
    }

    /// Whether the kernel may know a node of this number.
    pub(super) fn holds(&self, id: u64) -> bool {
        self.nodes.contains_key(&id)
    }

    /// The node of this object, counted as looked up once more; `make` builds it where there is none. It goes by `id`, or
    /// where that is not to be had (0 never is) by an alias.
    pub(super) fn enter(&self, id: u64, dev: u64, ident: Ident, make: impl FnOnce(Numbers) -> Node) -> Arc<Node> {
        loop {
            let older = self.get(id).filter(|older| older.ident != ident);
            let older_lives = older.as_ref().map(|older| older.stands_alone());
            let mut aliases = self.aliases.lock();
            let numbers = aliases.numbers(id, dev, ident, older_lives);
            match self.nodes.entry(numbers.node) {
                Slot::Occupied(slot) if slot.get().ident == ident => {
                    slot.get().lookups.fetch_add(1, Ordering::Relaxed);
                    return Arc::clone(slot.get());
                }
                // Another object has come by its number since we looked.
                Slot::Occupied(_) => {}
                Slot::Vacant(slot) => {
                    let node = Arc::new(make(numbers));
                    node.lookups.store(1, Ordering::Relaxed);
                    slot.insert(Arc::clone(&node));
                    return node;
                }
            }
        }
    }

    /// Takes back `count` lookups; the node, if it is gone with that.
    ///
    /// A directory that some node still has a name in stays, whatever the kernel forgets: there must never be two nodes
    /// for one directory. It goes with [`reap`](Self::reap).
    pub(super) fn forget(&self, id: u64, count: u64) -> Option<Arc<Node>> {
        if id == ROOT {
            return None;
        }
        let (_, node) = self.nodes.remove_if(&id, |_, node| {
            let before = node.lookups.load(Ordering::Relaxed);
            debug_assert!(before >= count, "node {id} forgotten {count} times but looked up {before} times");
            node.lookups.store(before.saturating_sub(count), Ordering::Relaxed);
            before <= count && (!node.is_dir() || Arc::strong_count(node) == 1)
        })?;
        self.unalias(&node);
        Some(node)
    }

    /// Lets go of the alias of a node that is gone, unless it was shown: that stays the same as long as the file system
    /// lives.
    fn unalias(&self, node: &Node) {
        if node.id == node.ino {
            return;
        }
        let mut aliases = self.aliases.lock();
        // It may have been entered again meanwhile.
        if !self.holds(node.id) {
            aliases.by_object.remove(&(node.dev, node.ident));
        }
    }

    /// Removes a directory that the kernel has forgotten and that nothing but the caller refers to any more.
    pub(super) fn reap(&self, node: &Arc<Node>) -> bool {
        let unused = |_: &u64, kept: &Arc<Node>| {
            Arc::ptr_eq(kept, node) && kept.lookups.load(Ordering::Relaxed) == 0 && Arc::strong_count(kept) == 2
        };
        let reaped = node.id != ROOT && self.nodes.remove_if(&node.id, unused).is_some();
        if reaped {
            self.unalias(node);
        }
        reaped
    }

    /// Every node there is now.
    pub(super) fn all(&self) -> Vec<Arc<Node>> {
        self.nodes.iter().map(|entry| Arc::clone(entry.value())).collect()
    }

    /// Gives back the room of many more nodes than there are.
    pub(super) fn shrink(&self) {
        if self.nodes.capacity() > 4 * self.nodes.len() + 4096 {
            self.nodes.shrink_to_fit();
        }
    }

    /// How many nodes there are.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }
}

impl Aliases {
    /// The numbers of an object whose own number is `id`. Where an older object has that here: whether it lives on.
    fn numbers(&mut self, id: u64, dev: u64, ident: Ident, older_lives: Option<bool>) -> Numbers {
        if let Some(known) = self.by_object.get(&(dev, ident)) {
            return *known;
        }
        if older_lives.is_none() && id > ROOT && id & ALIAS == 0 {
            return Numbers { node: id, shown: id };
        }
        self.used += 1;
        let node = ALIAS | self.used;
        let shown = match older_lives {
            // So that no two files look like one.
            Some(true) => node,
            Some(false) => id,
            None => ident.ino,
        };
        *self.by_object.entry((dev, ident)).or_insert(Numbers { node, shown })
    }
}
