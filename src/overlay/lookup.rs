//! From a name to a node, and from a node to descriptors of what is behind it.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::fds::{Opened, Slot};
use super::node::{Dir, DirState, File, FileState, Kind, Link, Node, Numbers, Place};
use super::quota::Charged;
use super::{Attr, Entry, FOREVER, Lookup, MOMENT, Overlay, ROOT, Result};
use crate::layer::index::Key;
use crate::layer::marks::{DirMarks, Origin};
use crate::layer::resolve::{Found, LowerDir, Scope, UpperDir};
use crate::layer::tree::Layer;
use crate::names::{Name, RelPath};
use crate::sys::{At, Ident, Stat, open_beneath};

/// So many names of one directory are remembered that the kernel was told do not exist. Of more, it is told so each time.
const ABSENT: usize = 10_000;

impl Overlay {
    /// What `name` means in `parent`; a node that is found counts as looked up once more.
    pub fn lookup(&self, parent: u64, name: &OsStr) -> Result<Lookup> {
        let name = Name::new(name)?;
        let parent = self.node(parent)?;
        if name.as_os_str() == super::STAND_IN_NAME {
            self.stand_in(&parent)?;
        }
        let _names = self.names.read();
        let Some(found) = self.find(&parent, name.as_os_str())? else {
            let dir = parent.dir()?;
            if !dir.state.read().lowers.is_empty() {
                let mut absent = dir.absent.lock();
                if absent.len() >= ABSENT {
                    return Ok(Lookup::Absent(Duration::ZERO));
                }
                absent.insert(name);
            }
            return Ok(Lookup::Absent(self.ttl(&parent)));
        };
        let (node, attr) = self.enter(&parent, name, found)?;
        Ok(Lookup::Found(self.entry(&parent, &node, attr)))
    }

    /// Takes back lookups of a node.
    pub fn forget(&self, node: u64, count: u64) {
        let Some(node) = self.table.forget(node, count) else { return };
        self.let_go(&node);
        // Parents may have been kept for this node's sake alone, and theirs for theirs.
        let mut parents = node.parents();
        drop(node);
        while let Some(parent) = parents.pop() {
            if self.table.reap(&parent) {
                self.let_go(&parent);
                parents.extend(parent.parents());
            }
        }
    }

    /// Drops everything that is kept under the number of a node.
    fn let_go(&self, node: &Node) {
        self.link_forgotten(node);
        self.drop_partial(node);
        for slot in [Slot::UpperDir, Slot::Read, Slot::Write] {
            self.fds.remove(self.owner, node.id, slot);
        }
        let watched = match &node.kind {
            Kind::Dir(dir) => {
                for lower in dir.state.read().lowers.iter() {
                    self.fds.remove(self.owner, node.id, Slot::LowerDir(lower.layer.id));
                }
                self.listings.lock().remove(node.id);
                &dir.watched
            }
            Kind::File(file) => &file.watched,
        };
        if watched.load(Ordering::Relaxed) {
            self.drift.unwatch(node.id);
        }
        if let Some(upper) = &self.upper {
            upper.let_go(node);
        }
    }

    /// What `name` means in the directory, on disk. The caller holds `names`.
    pub(super) fn find(&self, parent: &Arc<Node>, name: &OsStr) -> Result<Option<Found>> {
        self.in_scope(parent, |scope| scope.find(name))
    }

    /// The same together with what it means in the lowers of the directory.
    pub(super) fn find_both(&self, parent: &Arc<Node>, name: &OsStr) -> Result<(Option<Found>, Option<Found>)> {
        self.in_scope(parent, |scope| scope.find_both(name))
    }

    /// What `name` means in the lowers of the directory alone.
    pub(super) fn find_below(&self, parent: &Arc<Node>, name: &OsStr) -> Result<Option<Found>> {
        self.in_scope(parent, |scope| scope.find_below(name))
    }

    /// Whether an entry that the lowers of the directory have, of this type, is not shown.
    pub(super) fn is_hidden(&self, parent: &Arc<Node>, name: &OsStr, kind: FileType) -> Result<bool> {
        if self.hidden.is_nothing() {
            return Ok(false);
        }
        self.in_scope(parent, |scope| scope.is_hidden(name, kind))
    }

    fn in_scope<T>(&self, parent: &Arc<Node>, look: impl FnOnce(&Scope<'_>) -> Result<T>) -> Result<T> {
        let dir = parent.dir()?;
        let (upper, attribute_whiteouts, lowers) = {
            let state = dir.state.read();
            if state.is_removed() {
                return Err(Errno::NOENT);
            }
            (state.upper, state.attribute_whiteouts, Arc::clone(&state.lowers))
        };
        let upper = if upper { Some(self.upper_dir(parent)?) } else { None };
        let layers = self.layers.read();
        look(&Scope {
            upper: upper.as_ref().map(|opened| UpperDir { fd: opened.fd.as_fd(), attribute_whiteouts }),
            lowers: &lowers,
            layers: &layers,
            open: &|lower| Ok(self.lower_dir(parent, lower)?.1),
            origin: &|at, stat| self.origin_of(at, stat),
            hidden: &self.hidden,
        })
    }

    /// The node of what was found under a name, made or brought up to date, and what it shows.
    pub(super) fn enter(&self, parent: &Arc<Node>, name: Name, found: Found) -> Result<(Arc<Node>, Attr)> {
        let link = (Arc::clone(parent), name);
        match found {
            Found::Upper { stat, origin } => self.enter_upper(link, &stat, origin),
            Found::Lower { layer, path, stat } => self.enter_lower(link, layer, path, &stat),
            Found::Dir { upper, lowers, top } => self.enter_dir(link, upper, lowers, top),
        }
    }

    fn enter_upper(&self, link: Link, stat: &Stat, origin: Option<Origin>) -> Result<(Arc<Node>, Attr)> {
        let (id, dev, ident) = self.identity(stat, origin);
        let place = match origin {
            Some(Origin { indexed: true, ident, .. }) => Place::Index(Key(ident)),
            _ => Place::Upper,
        };
        self.enter_file(link, (id, dev, ident), stat, place)
    }

    fn enter_lower(&self, link: Link, layer: Arc<Layer>, path: RelPath, stat: &Stat) -> Result<(Arc<Node>, Attr)> {
        let stat = &self.without_our_names(&layer, *stat);
        self.drift.notice(&path, stat);
        let ident = stat.ident();
        let shared = (stat.nlink > 1).then_some(Key(ident));
        if let (Some(key), Some(upper)) = (shared, &self.upper)
            && upper.index.is_copied(key)
        {
            let data = At::new(upper.index.dir(), &key.file_name()).stat()?;
            let origin = Origin { ident, dev: self.written_dev(stat.dev), indexed: true, ctime: None };
            return self.enter_upper(link, &data, Some(origin));
        }
        let (layer, stat) = &self.with_prepared(layer, &path, *stat);
        let place = Place::Lower { layer: Arc::clone(layer), path: path.clone(), shared };
        let (node, attr) = self.enter_file(link, (self.lower_id(stat), stat.dev, ident), stat, place)?;
        if shared.is_none() {
            return Ok((node, attr));
        }
        self.watch_file(&node, layer, &path)?;
        // What was read before the watch stood may be old.
        let attr = self.attr(&node)?;
        Ok((node, attr))
    }

    fn enter_file(
        &self,
        link: Link,
        (id, dev, ident): (u64, u64, Ident),
        stat: &Stat,
        place: Place,
    ) -> Result<(Arc<Node>, Attr)> {
        let make = |numbers| file_node(numbers, (dev, ident), stat, &link, place.clone());
        let node = self.table.enter(id, dev, ident, make);
        self.refresh_file(&node, link, place)?;
        let attr = self.file_attr(&node, *stat)?;
        Ok((node, attr))
    }

    /// Adds the name a file was found under, and follows it where it moved in the base.
    fn refresh_file(&self, node: &Arc<Node>, link: Link, place: Place) -> Result<()> {
        let mut state = match node.file() {
            Ok(file) => file.state.write(),
            // A file where the table has a directory: the number was reused on a file system without birth times.
            Err(_) => return Err(Errno::STALE),
        };
        if !state.links.iter().any(|(parent, name)| parent.id == link.0.id && *name == link.1) {
            // Renamed by somebody else in the base: the old name is gone there.
            let moved = |place: &Place| matches!(place, Place::Lower { shared: None, .. });
            if moved(&state.place) && moved(&place) {
                state.links.clear();
            }
            state.links.push(link);
        }
        match (&state.place, &place) {
            (Place::Lower { .. }, Place::Lower { .. }) | (Place::Orphan(_), _) => state.place = place,
            _ => {}
        }
        Ok(())
    }

    fn enter_dir(
        &self,
        link: Link,
        upper: Option<(Stat, DirMarks)>,
        lowers: Vec<LowerDir>,
        top: Option<Stat>,
    ) -> Result<(Arc<Node>, Attr)> {
        let (id, dev, ident) = match (&upper, &top) {
            (Some((stat, marks)), _) => self.identity(stat, marks.origin),
            (None, Some(stat)) => (self.lower_id(stat), stat.dev, stat.ident()),
            (None, None) => return Err(Errno::IO),
        };
        if let (Some(stat), Some(lower)) = (&top, lowers.first()) {
            self.drift.notice(&lower.path, &self.without_our_names(&lower.layer, *stat));
        }
        let lowers: Arc<[LowerDir]> = lowers.into();
        let marks = upper.as_ref().map(|(_, marks)| marks.clone()).unwrap_or_default();
        let make = |numbers| {
            let state = DirState {
                link: Some(link.clone()),
                upper: upper.is_some(),
                attribute_whiteouts: marks.attribute_whiteouts,
                lowers: Arc::clone(&lowers),
                borrowed_ctime: marks.origin.and_then(|origin| origin.ctime),
                subdirectories: None,
                inherit: None,
                removed: None,
                pinned: None,
                unwatched: false,
            };
            let dir = Dir {
                state: RwLock::new(state),
                change: Mutex::new(()),
                watched: AtomicBool::new(false),
                epoch: AtomicU64::new(0),
                told: Mutex::default(),
                absent: Mutex::default(),
            };
            node_of(numbers, (dev, ident), Kind::Dir(Box::new(dir)))
        };
        let node = self.table.enter(id, dev, ident, make);
        self.refresh_dir(&node, link, &lowers)?;
        let attr = match upper {
            Some((stat, _)) => self.dir_attr(&node, stat)?,
            // Watched from now on: entries that come and go change its attributes, and nothing else tells of them. What
            // was read before the watch stood may be old.
            None => self.attr(&node)?,
        };
        Ok((node, attr))
    }

    /// Follows a directory that somebody else renamed or replaced in the base.
    fn refresh_dir(&self, node: &Arc<Node>, link: Link, lowers: &Arc<[LowerDir]>) -> Result<()> {
        let dir = node.dir().map_err(|_| Errno::STALE)?;
        let same = {
            let state = dir.state.read();
            state.link.as_ref().is_some_and(|(parent, name)| parent.id == link.0.id && *name == link.1)
                && same_dirs(&state.lowers, lowers)
        };
        if same {
            return Ok(());
        }
        let old = {
            // One at a time: two could make a circle together.
            let _one = self.relinking.lock();
            if link.0.is_at_or_below(node) {
                // Marks of origin that say of a directory that it is one above it; or the way here has changed.
                return Err(Errno::STALE);
            }
            let mut state = dir.state.write();
            state.link = Some(link);
            std::mem::replace(&mut state.lowers, Arc::clone(lowers))
        };
        for lower in old.iter() {
            self.fds.remove(self.owner, node.id, Slot::LowerDir(lower.layer.id));
        }
        dir.watched.store(false, Ordering::Relaxed);
        self.forget_listing(node);
        Ok(())
    }

    /// An answer about a node; its lookup has been counted already.
    pub(super) fn entry(&self, parent: &Arc<Node>, node: &Arc<Node>, attr: Attr) -> Entry {
        let ttl = self.ttl(parent);
        let (attr, attr_ttl) = self.tell(node, attr, self.attr_ttl(node));
        Entry {
            node: node.id,
            generation: node.generation(),
            attr,
            entry_ttl: ttl,
            // FUSE takes the node's number for st_ino from this reply; where the two differ, it has to ask again.
            attr_ttl: if attr.ino == node.id { ttl.min(attr_ttl) } else { Duration::ZERO },
        }
    }

    /// How long names in a directory may be believed.
    pub(super) fn ttl(&self, parent: &Node) -> Duration {
        match &parent.kind {
            Kind::Dir(dir) if dir.state.read().unwatched => MOMENT,
            _ => FOREVER,
        }
    }

    /// How long the attributes of a node may be believed: its changes show in the watch of its directory.
    pub(super) fn attr_ttl(&self, node: &Node) -> Duration {
        match &node.kind {
            Kind::Dir(dir) => {
                let state = dir.state.read();
                let outside = state.link.as_ref().is_some_and(|(parent, _)| self.ttl(parent) == MOMENT);
                if state.unwatched || outside { MOMENT } else { FOREVER }
            }
            Kind::File(file) => {
                let state = file.state.read();
                match (&state.place, state.links.first()) {
                    (Place::Lower { shared: Some(_), .. }, _) if !file.watched.load(Ordering::Relaxed) => MOMENT,
                    (Place::Lower { .. }, Some((parent, _))) => self.ttl(parent),
                    _ => FOREVER,
                }
            }
        }
    }

    /// The upper directory of a node that stands in the upper (`O_PATH`). The caller holds `names`.
    pub(super) fn upper_dir(&self, node: &Arc<Node>) -> Result<Arc<Opened>> {
        // Up to the first one that is open, and down again: no stack is as deep as a tree can be.
        let mut closed = Vec::new();
        let mut at = Arc::clone(node);
        let mut opened = loop {
            if at.id == ROOT {
                break Arc::clone(&self.writable()?.root);
            }
            if let Some(opened) = self.fds.get(self.owner, at.id, Slot::UpperDir) {
                break opened;
            }
            let (parent, name) = at.dir()?.state.read().link.clone().ok_or(Errno::NOENT)?;
            closed.push((at.id, name));
            at = parent;
        };
        while let Some((id, name)) = closed.pop() {
            opened = Opened::new(At::new(&*opened.fd, &name).open(OFlags::PATH | OFlags::DIRECTORY)?);
            self.fds.put(self.owner, id, Slot::UpperDir, Arc::clone(&opened));
        }
        Ok(opened)
    }

    /// A lower directory of a node (`O_PATH`), checked to be the one that was found, and watched from before the
    /// first look into it. `ESTALE` where something else is there now: the kernel then looks the name up again.
    pub(super) fn lower_dir(&self, node: &Arc<Node>, lower: &LowerDir) -> Result<(Arc<Layer>, Arc<OwnedFd>)> {
        let slot = Slot::LowerDir(lower.layer.id);
        if let Some(opened) = self.fds.get(self.owner, node.id, slot) {
            return Ok((Arc::clone(&lower.layer), Arc::clone(&opened.fd)));
        }
        let fd = match open_lower_dir(lower) {
            Err(Errno::STALE) => {
                let moved = self.relocate_dir(node, lower)?.ok_or(Errno::STALE)?;
                return Ok((Arc::clone(&moved.layer), Arc::new(open_lower_dir(&moved)?)));
            }
            other => other?,
        };
        self.watch(node, lower, &fd);
        let opened = Opened::new(fd);
        let fd = Arc::clone(&opened.fd);
        self.fds.put(self.owner, node.id, slot, opened);
        Ok((Arc::clone(&lower.layer), fd))
    }

    fn watch(&self, node: &Arc<Node>, lower: &LowerDir, fd: &OwnedFd) {
        let Kind::Dir(dir) = &node.kind else { return };
        if lower.layer.watch && !dir.watched.swap(true, Ordering::Relaxed) && !self.drift.watch(node.id, fd.as_fd()) {
            dir.state.write().unwatched = true;
        }
    }

    /// Watches a file of the base that has other names, which may lie in directories that nobody looks at, or outside of
    /// the base. `ESTALE` where something else is there now.
    pub(super) fn watch_file(&self, node: &Node, layer: &Layer, path: &RelPath) -> Result<()> {
        let file = node.file()?;
        if !layer.watch || file.file_type == FileType::Symlink || file.watched.load(Ordering::Relaxed) {
            return Ok(());
        }
        let fd = open_beneath(&layer.root, path, OFlags::PATH | OFlags::NOFOLLOW).map_err(gone)?;
        if Stat::of(fd.as_fd())?.ident() != node.ident {
            return Err(Errno::STALE);
        }
        file.watched.store(self.drift.watch_file(node.id, fd.as_fd()), Ordering::Relaxed);
        Ok(())
    }
}

fn open_lower_dir(lower: &LowerDir) -> Result<OwnedFd> {
    let fd = open_beneath(&lower.layer.root, &lower.path, OFlags::PATH | OFlags::DIRECTORY).map_err(gone)?;
    if Stat::of(fd.as_fd())?.ident() == lower.ident { Ok(fd) } else { Err(Errno::STALE) }
}

/// A lower object that is not where it was found: the name has to be looked up again.
pub(super) fn gone(error: Errno) -> Errno {
    match error {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Errno::STALE,
        other => other,
    }
}

fn same_dirs(a: &[LowerDir], b: &[LowerDir]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| a.layer.id == b.layer.id && a.ident == b.ident && a.path == b.path)
}

fn node_of(numbers: Numbers, (dev, ident): (u64, Ident), kind: Kind) -> Node {
    Node {
        id: numbers.node,
        ino: numbers.shown,
        ident,
        dev,
        lookups: AtomicU64::new(0),
        copying: Mutex::new(()),
        charged: Charged::default(),
        kind,
    }
}

pub(super) fn file_node(numbers: Numbers, object: (u64, Ident), stat: &Stat, link: &Link, place: Place) -> Node {
    let state = RwLock::new(FileState { links: vec![link.clone()], place });
    let file = File {
        file_type: stat.file_type(),
        watched: AtomicBool::new(false),
        much: AtomicBool::new(false),
        told: Mutex::default(),
        state,
    };
    node_of(numbers, object, Kind::File(file))
}
