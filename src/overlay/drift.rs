//! Drift: changes of the base that treefork did not make.
//!
//! The kernel caches for ever what we told it, so every such change has to reach it. The directories that were looked
//! into are watched; a change is recorded under its base path (in memory, and in the work area for after a restart) and
//! the kernel is told from the thread of the watch, with no lock held. What came and went again, as the temporary files
//! of editors do, is forgotten. A file that has other names is watched by itself: those may be anywhere. Where no watch
//! can be had, what a directory says is believed for moments only.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, RwLock};
use rustix::fs::OFlags;

use super::fds::Slot;
use super::node::{self, Dir, Kind, Node, Place};
use super::{Invalidate, Overlay, Result};
use crate::layer::ours::{self, Span};
use crate::layer::resolve::LowerDir;
use crate::layer::watch::{Change, DriftSink, Subscription};
use crate::names::RelPath;
use crate::sys::calls::File;
use crate::sys::{At, Stat, Time, open_beneath};

/// The record of drifted paths in the work area: one path as JSON a line.
const FILE: &str = "drift";

/// More paths than this are one fact: the base changed all over.
const MOST: usize = 10_000;

/// What happened at a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// Something else is or was there than when the fork was made.
    Changed,
    /// Something has come where nothing was.
    Come,
    /// It has gone again: all is as before.
    Gone,
}

/// What a fork knows of drift.
pub(super) struct Drift {
    subscription: OnceLock<Subscription>,
    sink: RwLock<Option<Weak<dyn Invalidate>>>,
    created: Option<Time>,
    /// When treefork itself changed the base.
    ours: Vec<Span>,
    paths: Mutex<BTreeMap<RelPath, What>>,
    record: Option<Mutex<File>>,
    /// A watch was refused for lack of room: said once.
    limited: AtomicBool,
}

impl std::fmt::Debug for Drift {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drift").field("paths", &self.paths.lock().len()).finish_non_exhaustive()
    }
}

impl Drift {
    pub(super) fn open(work: Option<BorrowedFd<'_>>, created: Option<Time>) -> Result<Self> {
        let ours = work.map(|work| ours::read(&work)).transpose()?.unwrap_or_default();
        let mut paths = BTreeMap::new();
        let record = match work {
            Some(work) => {
                let at = At::new(&work, FILE);
                let file = File::from(at.create(OFlags::RDWR | OFlags::APPEND | OFlags::CREATE, 0o600)?);
                // A line cut off by a power loss is one path less to warn of; the comparison at merge is what counts.
                paths.extend(
                    BufReader::new(&file)
                        .split(b'\n')
                        .map_while(std::io::Result::ok)
                        .filter_map(|line| Some((serde_json::from_slice(&line).ok()?, What::Changed))),
                );
                Some(Mutex::new(file))
            }
            None => None,
        };
        Ok(Self {
            subscription: OnceLock::new(),
            sink: RwLock::new(None),
            created,
            ours,
            paths: Mutex::new(paths),
            record,
            limited: AtomicBool::new(false),
        })
    }

    pub(super) fn subscribe(&self, subscription: Subscription) {
        // Once, right after the overlay was made.
        drop(self.subscription.set(subscription));
    }

    /// Watches a directory; false where that is refused.
    pub(super) fn watch(&self, node: u64, dir: BorrowedFd<'_>) -> bool {
        self.watched(|subscription| subscription.add(dir, node))
    }

    /// Watches a file by itself; false where that is refused.
    pub(super) fn watch_file(&self, node: u64, file: BorrowedFd<'_>) -> bool {
        self.watched(|subscription| subscription.add_file(file, node))
    }

    fn watched(&self, add: impl FnOnce(&Subscription) -> Result<()>) -> bool {
        let Some(subscription) = self.subscription.get() else {
            // There is no watch at all, which whoever could not make one has said.
            self.limited.store(true, Ordering::Relaxed);
            return false;
        };
        let Err(e) = add(subscription) else { return true };
        if !self.limited.swap(true, Ordering::Relaxed) {
            log::warn!("cannot watch the base ({e}): caching for moments only; raise fs.inotify.max_user_watches");
        }
        false
    }

    pub(super) fn unwatch(&self, node: u64) {
        if let Some(subscription) = self.subscription.get() {
            subscription.remove(node);
        }
    }

    /// A base object seen in a lookup: changed since the fork was made?
    pub(super) fn notice(&self, path: &RelPath, stat: &Stat) {
        let is_younger = self.created.is_some_and(|created| stat.ctime > created);
        if is_younger && !self.ours.iter().any(|span| span.holds(stat.ctime)) {
            self.note(path);
        }
    }

    /// Notes that something else is at a path, or was.
    pub(super) fn note(&self, path: &RelPath) {
        self.hear(path, What::Changed);
    }

    /// Notes what happened at a path. What is first heard of it counts.
    fn hear(&self, path: &RelPath, what: What) {
        let mut paths = self.paths.lock();
        if paths.contains_key(path) {
            return;
        }
        if paths.len() >= MOST {
            paths.retain(|_, known| *known != What::Gone);
        }
        if paths.len() >= MOST {
            return;
        }
        paths.insert(path.clone(), what);
        drop(paths);
        // After a restart what has come shows by its age when it is looked at.
        if let Some(record) = self.record.as_ref().filter(|_| what == What::Changed) {
            let text = serde_json::to_vec(path).expect("a path always serialises");
            // A line of its own, also behind one that a killed writer or a full disk left torn.
            if let Err(e) = record.lock().put(&[b"\n", &text[..], b"\n"].concat()) {
                log::warn!("cannot record that {path:?} changed in the base: {e}");
            }
        }
    }

    /// What has come is there at the moment, or not.
    fn is_there(&self, path: &RelPath, there: bool) {
        if let Some(what @ (What::Come | What::Gone)) = self.paths.lock().get_mut(path) {
            *what = if there { What::Come } else { What::Gone };
        }
    }

    pub(super) fn sink(&self) -> Option<Arc<dyn Invalidate>> {
        self.sink.read().as_ref().and_then(Weak::upgrade)
    }
}

impl Overlay {
    /// Where to tell that something changed without being asked to; set once the file system is mounted.
    pub fn set_invalidate(&self, sink: Weak<dyn Invalidate>) {
        *self.drift.sink.write() = Some(sink);
    }

    /// The base paths that changed under the fork, as noticed so far. The root stands for changes that could not be told
    /// apart.
    pub fn drift(&self) -> Vec<RelPath> {
        let paths = self.drift.paths.lock();
        paths.iter().filter(|(_, what)| **what != What::Gone).map(|(path, _)| path.clone()).collect()
    }

    /// Whether a watch was refused, so that changes show after a moment instead of at once.
    pub fn watch_limited(&self) -> bool {
        self.drift.limited.load(Ordering::Relaxed)
    }

    fn name_changed(&self, node: &Arc<Node>, dir: &Dir, lower: &LowerDir, name: &OsStr, new: bool) {
        let path = lower.path.join(name);
        if self.is_preserved(&path) || self.leaves_out(lower, name) {
            return;
        }
        let stat = self.lower_dir(node, lower).and_then(|(_, fd)| At::new(&*fd, name).try_stat());
        if stat.is_ok_and(|stat| self.is_restored(&lower.layer, &path, stat)) {
            return;
        }
        let was_there = !new && !dir.absent.lock().contains(name);
        self.drift.hear(&path, if was_there { What::Changed } else { What::Come });
        let now = self.lower_dir(node, lower).and_then(|(_, fd)| At::new(&*fd, name).try_stat());
        self.drift.is_there(&path, !matches!(now, Ok(None)));
        self.forget_listing(node);
        self.forget_stand_in(&lower.path, name);
        if let Some(sink) = self.drift.sink() {
            dir.absent.lock().remove(name);
            sink.entry(node.id, name);
            // A name without a cached entry is invalidated by nothing but this: the listing, and the time stamps.
            self.out_of_date(&*sink, node);
        }
    }

    fn content_changed(&self, node: &Arc<Node>, lower: &LowerDir, name: &OsStr) {
        if self.is_preserved(&lower.path.join(name)) || self.leaves_out(lower, name) {
            return;
        }
        if let Some(sink) = self.drift.sink() {
            // A lookup that read the attributes before the change may not have brought its node yet, neither into the
            // table nor to the kernel; and what it brings would be believed for ever.
            sink.settle(node.id);
        }
        let stat = self.lower_dir(node, lower).and_then(|(_, fd)| At::new(&*fd, name).try_stat());
        if let Ok(Some(stat)) = stat
            && self.without_our_names(&lower.layer, stat) != stat
        {
            // A merge gave it a name in a preserved layer, and that is all.
            return;
        }
        self.drift.note(&lower.path.join(name));
        let Ok(Some(stat)) = stat else { return };
        let child = self.table.of_object(self.lower_id(&stat), stat.dev, stat.ident());
        let Some(child) = child.filter(|child| !child.stands_alone()) else { return };
        self.without_prepared(&child);
        self.tell_anew(&child);
    }

    /// A file was changed through any of its names.
    fn file_changed(&self, node: &Arc<Node>, file: &node::File) {
        let Place::Lower { layer, path, .. } = file.state.read().place.clone() else { return };
        if self.is_preserved(&path) {
            return;
        }
        let stat =
            open_beneath(&layer.root, &path, OFlags::PATH | OFlags::NOFOLLOW).and_then(|fd| Stat::of(fd.as_fd()));
        if stat.is_ok_and(|stat| self.without_our_names(&layer, stat) != stat) {
            return;
        }
        self.drift.note(&path);
        if let Some(sink) = self.drift.sink() {
            self.out_of_date(&*sink, node);
        }
    }

    /// Whether the fork shows nothing of that name, whatever comes to stand there.
    fn leaves_out(&self, lower: &LowerDir, name: &OsStr) -> bool {
        let path = lower.path.join(name);
        self.hidden.excludes(&path, true) && self.hidden.excludes(&path, false)
    }

    /// Has everything that is cached of a node asked for again, and what a lookup of it is about to bring as well.
    fn out_of_date(&self, sink: &dyn Invalidate, node: &Arc<Node>) {
        for parent in node.parents() {
            sink.settle(parent.id);
        }
        self.tell_anew(node);
    }

    /// The directory itself was moved, removed or given other attributes.
    fn dir_changed(&self, node: &Arc<Node>, lower: &LowerDir) {
        let stat = open_beneath(&lower.layer.root, &lower.path, OFlags::PATH | OFlags::DIRECTORY)
            .and_then(|fd| Stat::of(fd.as_fd()));
        if self.is_preserved(&lower.path)
            || stat.is_ok_and(|stat| self.is_restored(&lower.layer, &lower.path, Some(stat)))
        {
            return;
        }
        self.drift.note(&lower.path);
        self.fds.remove(self.owner, node.id, Slot::LowerDir(lower.layer.id));
        if let Ok(dir) = node.dir() {
            dir.watched.store(false, Ordering::Relaxed);
        }
        self.forget_listing(node);
        if let Some(sink) = self.drift.sink() {
            self.out_of_date(&*sink, node);
        }
    }
}

impl DriftSink for Overlay {
    fn changed(&self, token: u64, change: Change) {
        let Some(node) = self.table.get(token) else { return };
        let dir = match &node.kind {
            Kind::Dir(dir) => dir,
            Kind::File(file) => return self.file_changed(&node, file),
        };
        let lowers = Arc::clone(&dir.state.read().lowers);
        let Some(lower) = lowers.iter().find(|lower| lower.layer.watch) else { return };
        match change {
            Change::New(name) => self.name_changed(&node, dir, lower, &name, true),
            Change::Name(name) => self.name_changed(&node, dir, lower, &name, false),
            Change::Content(name) => self.content_changed(&node, lower, &name),
            Change::Itself => self.dir_changed(&node, lower),
        }
    }

    fn overflow(&self) {
        log::warn!("changes of the base were lost: everything is looked up again");
        self.drift.note(&RelPath::root());
        let Some(sink) = self.drift.sink() else { return };
        for dir in self.table.all().iter().filter(|node| node.is_dir()) {
            sink.settle(dir.id);
        }
        for node in self.table.all() {
            match &node.kind {
                Kind::Dir(dir) => {
                    self.forget_listing(&node);
                    let (link, absent) = {
                        let state = dir.state.read();
                        (state.link.clone(), std::mem::take(&mut *dir.absent.lock()))
                    };
                    if let Some((parent, name)) = link {
                        sink.entry(parent.id, name.as_os_str());
                    }
                    for name in &absent {
                        sink.entry(node.id, name.as_os_str());
                    }
                    sink.node(node.id, true);
                }
                Kind::File(file) => {
                    let (links, lower) = {
                        let state = file.state.read();
                        (state.links.clone(), matches!(state.place, Place::Lower { .. }))
                    };
                    for (parent, name) in &links {
                        sink.entry(parent.id, name.as_os_str());
                    }
                    if lower {
                        self.tell_anew(&node);
                    }
                }
            }
        }
    }
}
