//! Merged directory listings.
//!
//! The offset of an entry is a hash of its name, and entries come in the order of their offsets. So an offset means the
//! same after any change: nothing is listed twice and nothing unchanged is lost, without any handle. A listing is built
//! when a directory is first read, kept for the most recently read directories, and updated in place by the operations
//! that change them, so that emptying a large directory while reading it stays linear.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::ops::Bound;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lru::LruCache;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::node::Node;
use super::{DirEntry, Overlay, Result, Upper};
use crate::layer::marks;
use crate::layer::resolve::{LowerDir, upper_origin};
use crate::names::Name;
use crate::sys::calls::Dir;
use crate::sys::{At, Stat};

/// The offsets of `.` and `..`; names come after.
const DOT: u64 = 1;
pub(super) const DOT_DOT: u64 = 2;

/// How many entries all kept listings of a fork may have together.
const KEPT: usize = 100_000;

#[derive(Clone, Debug)]
struct Item {
    name: Box<OsStr>,
    ino: u64,
    kind: FileType,
}

/// The entries of one directory by offset.
#[derive(Debug, Default)]
struct Listing {
    items: BTreeMap<u64, Item>,
    subdirectories: u32,
}

/// The listings that are kept.
#[derive(Debug)]
pub(super) struct Listings {
    kept: LruCache<u64, Listing>,
    entries: usize,
}

impl Default for Listings {
    fn default() -> Self {
        Self { kept: LruCache::unbounded(), entries: 0 }
    }
}

impl Listing {
    fn insert(&mut self, name: &OsStr, ino: u64, kind: FileType) {
        let mut offset = offset_of(name);
        // Two names with one hash of 63 bits: the later one moves up.
        while self.items.get(&offset).is_some_and(|item| *item.name != *name) {
            offset += 1;
        }
        let old = self.items.insert(offset, Item { name: name.into(), ino, kind });
        self.count(old.map(|item| item.kind), Some(kind));
    }

    fn remove(&mut self, name: &OsStr) {
        let mut offset = offset_of(name);
        while let Some(item) = self.items.get(&offset) {
            if *item.name == *name {
                let old = self.items.remove(&offset);
                self.count(old.map(|item| item.kind), None);
                return;
            }
            offset += 1;
        }
    }

    fn count(&mut self, old: Option<FileType>, new: Option<FileType>) {
        self.subdirectories -= u32::from(old == Some(FileType::Directory));
        self.subdirectories += u32::from(new == Some(FileType::Directory));
    }
}

/// FNV-1a in 63 bits, clear of the offsets of the dot entries and with room above for collisions.
fn offset_of(name: &OsStr) -> u64 {
    let hash = name
        .as_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    ((hash >> 1) & !0xff) + 0x100
}

impl Listings {
    pub(super) fn remove(&mut self, node: u64) {
        if let Some(listing) = self.kept.pop(&node) {
            self.entries -= listing.items.len();
        }
    }

    fn put(&mut self, node: u64, listing: Listing) {
        self.remove(node);
        self.entries += listing.items.len();
        self.kept.put(node, listing);
        while self.entries > KEPT && self.kept.len() > 1 {
            let Some((_, oldest)) = self.kept.pop_lru() else { break };
            self.entries -= oldest.items.len();
        }
    }

    fn change(&mut self, node: u64, change: impl FnOnce(&mut Listing)) {
        if let Some(listing) = self.kept.get_mut(&node) {
            let before = listing.items.len();
            change(listing);
            self.entries = self.entries + listing.items.len() - before;
        }
    }
}

impl Overlay {
    /// Lists a directory from an offset on (0 for the beginning), until `emit` says that it is full.
    pub fn readdir(&self, node: u64, offset: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let node = self.node(node)?;
        let dir = node.dir()?;
        if offset == 0 {
            self.stand_in_for_listing(&node)?;
        }
        let _names = self.names.read();
        let (removed, above) = {
            let state = dir.state.read();
            (state.is_removed(), state.link.as_ref().map_or(node.ino, |(parent, _)| parent.ino))
        };
        let dot = |ino, name, next| DirEntry { ino, kind: FileType::Directory, name: OsStr::new(name), next };
        if offset < DOT && emit(dot(node.ino, ".", DOT)) || offset < DOT_DOT && emit(dot(above, "..", DOT_DOT)) {
            return Ok(());
        }
        if removed {
            return Ok(());
        }
        self.list(&node, offset.max(DOT_DOT), emit)
    }

    /// Lists the entries after an offset, without the dot entries. The caller holds `names`.
    pub(super) fn list(&self, node: &Arc<Node>, after: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.with_listing(node, |listing| {
            for (&next, item) in listing.items.range((Bound::Excluded(after), Bound::Unbounded)) {
                if emit(DirEntry { ino: item.ino, kind: item.kind, name: &item.name, next }) {
                    break;
                }
            }
        })
    }

    /// How many subdirectories a directory has that stands in the upper, with so many there, and in lowers, the first of which
    /// has these attributes.
    pub(super) fn subdirectories(&self, node: &Arc<Node>, own: u32, below: Option<&Stat>) -> Result<u32> {
        let dir = node.dir()?;
        if let Some(count) = dir.state.read().subdirectories {
            return Ok(count);
        }
        let epoch = dir.epoch.load(Ordering::Acquire);
        let count = match below.and_then(|below| self.subdirectories_below(node, below)) {
            Some(0) => own,
            Some(more) => (own + more).saturating_sub(self.covered(node)?),
            None => self.with_listing(node, |listing| listing.subdirectories)?,
        };
        let mut state = dir.state.write();
        if dir.epoch.load(Ordering::Acquire) == epoch {
            state.subdirectories = Some(count);
        }
        Ok(count)
    }

    /// How many subdirectories a directory shows in its lowers, whose first has these attributes, if it can be told from those.
    pub(super) fn subdirectories_below(&self, node: &Node, below: &Stat) -> Option<u32> {
        let state = node.dir().ok()?.state.read();
        let plain = state.lowers.len() == 1 && !state.lowers[0].layer.image && self.hidden.is_nothing();
        // 1 is what a file system says that does not count them.
        if plain { below.nlink.checked_sub(2) } else { None }
    }

    /// How many subdirectories of the lower are covered by what stands in the upper, be it a directory as well.
    fn covered(&self, node: &Arc<Node>) -> Result<u32> {
        let lower = node.dir()?.state.read().lowers.first().cloned().ok_or(Errno::STALE)?;
        let (_, below) = self.lower_dir(node, &lower)?;
        let opened = self.upper_dir(node)?;
        marks::of_upper(At::object(&*opened.fd), |dir| {
            let mut covered = 0;
            for entry in Dir::of(dir.open_quiet(OFlags::RDONLY | OFlags::DIRECTORY)?)? {
                let entry = entry?;
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                if name != "." && name != ".." {
                    covered += u32::from(At::new(&*below, name).try_stat()?.is_some_and(|stat| stat.is_dir()));
                }
            }
            Ok(covered)
        })
    }

    /// A subdirectory came (1) or went (-1).
    pub(super) fn count_subdirectory(&self, parent: &Node, change: i32) {
        if let Ok(dir) = parent.dir() {
            let mut state = dir.state.write();
            state.subdirectories = state.subdirectories.and_then(|count| count.checked_add_signed(change));
        }
    }

    /// An entry came or was replaced.
    pub(super) fn listed(&self, parent: &Node, name: &Name, ino: u64, kind: FileType) {
        self.listings.lock().change(parent.id, |listing| listing.insert(name.as_os_str(), ino, kind));
    }

    /// An entry went.
    pub(super) fn unlisted(&self, parent: &Node, name: &Name) {
        self.listings.lock().change(parent.id, |listing| listing.remove(name.as_os_str()));
    }

    /// What is kept of a directory is out of date.
    pub(super) fn forget_listing(&self, node: &Node) {
        if let Ok(dir) = node.dir() {
            dir.epoch.fetch_add(1, Ordering::AcqRel);
            dir.state.write().subdirectories = None;
        }
        self.listings.lock().remove(node.id);
    }

    fn with_listing<T>(&self, node: &Arc<Node>, look: impl FnOnce(&Listing) -> T) -> Result<T> {
        if let Some(listing) = self.listings.lock().kept.get(&node.id) {
            return Ok(look(listing));
        }
        let epoch = node.dir()?.epoch.load(Ordering::Acquire);
        let listing = self.build(node)?;
        let result = look(&listing);
        let mut listings = self.listings.lock();
        if node.dir()?.epoch.load(Ordering::Acquire) == epoch {
            listings.put(node.id, listing);
        }
        Ok(result)
    }

    fn build(&self, node: &Arc<Node>) -> Result<Listing> {
        let (upper, attribute_whiteouts, lowers) = {
            let state = node.dir()?.state.read();
            (state.upper, state.attribute_whiteouts, Arc::clone(&state.lowers))
        };
        let mut listing = Listing::default();
        let mut hidden = HashSet::new();
        if upper {
            self.list_upper(node, self.writable()?, attribute_whiteouts, &mut listing, &mut hidden)?;
        }
        let merged = upper || lowers.len() > 1;
        for lower in lowers.iter() {
            self.list_lower(node, lower, merged, &mut listing, &mut hidden)?;
        }
        Ok(listing)
    }

    fn list_upper(
        &self,
        node: &Arc<Node>,
        upper: &Upper,
        attribute_whiteouts: bool,
        listing: &mut Listing,
        hidden: &mut HashSet<OsString>,
    ) -> Result<()> {
        let opened = self.upper_dir(node)?;
        marks::of_upper(At::object(&*opened.fd), |dir| {
            self.list_upper_dir(upper, dir, attribute_whiteouts, listing, hidden)
        })
    }

    fn list_upper_dir(
        &self,
        upper: &Upper,
        dir: At<'_>,
        attribute_whiteouts: bool,
        listing: &mut Listing,
        hidden: &mut HashSet<OsString>,
    ) -> Result<()> {
        for entry in Dir::of(dir.open_quiet(OFlags::RDONLY | OFlags::DIRECTORY)?)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            hidden.insert(name.to_os_string());
            let at = At { name, ..dir };
            let kind = entry.file_type();
            let suspect = attribute_whiteouts && kind == FileType::RegularFile;
            let stat = match kind {
                FileType::RegularFile | FileType::Directory if !suspect => None,
                _ => Some(at.stat()?),
            };
            if let Some(stat) = &stat
                && marks::of_upper(at, |at| marks::is_whiteout(at, stat, attribute_whiteouts))?
            {
                continue;
            }
            let kind = stat.map_or(kind, |stat| stat.file_type());
            let origin = match &stat {
                Some(stat) if !stat.is_dir() => upper_origin(at, stat, Some(&upper.origins))?,
                _ => marks::of_upper(at, marks::read_origin)?,
            };
            listing.insert(name, self.shown_ino(upper, entry.ino(), origin), kind);
        }
        Ok(())
    }

    fn list_lower(
        &self,
        node: &Arc<Node>,
        lower: &LowerDir,
        merged: bool,
        listing: &mut Listing,
        hidden: &mut HashSet<OsString>,
    ) -> Result<()> {
        let (_, fd) = self.lower_dir(node, lower)?;
        let mut hidden_below = Vec::new();
        for entry in Dir::of(At::object(&*fd).open_quiet(OFlags::RDONLY | OFlags::DIRECTORY)?)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if let Some(hides) = marks::image_mark(name).filter(|_| lower.layer.image) {
                hidden_below.push(hides.to_os_string());
                continue;
            }
            if name == "." || name == ".." || merged && !hidden.insert(name.to_os_string()) {
                continue;
            }
            let mut kind = entry.file_type();
            if kind == FileType::Unknown || lower.layer.marked && kind != FileType::Directory {
                let at = At { dir: fd.as_fd(), name };
                let Some(stat): Option<Stat> = at.try_stat()? else { continue };
                if lower.layer.marked && marks::is_whiteout(at, &stat, true)? {
                    continue;
                }
                kind = stat.file_type();
            }
            if !self.is_hidden(node, name, kind)? {
                listing.insert(name, entry.ino(), kind);
            }
        }
        hidden.extend(hidden_below);
        Ok(())
    }
}
