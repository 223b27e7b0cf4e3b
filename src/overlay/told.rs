//! What the kernel was told of the content of the base's files, and how it is told something else.
//!
//! The kernel goes by the size that it was told. Where a file ended inside a page when that was read, it fills the page with
//! zeros, and with a larger size they would count as content; where a file ends before the size that it believes, it fills
//! whole pages with them. These zeros were never in any version of the file. So that nobody reads them, when somebody else
//! changes a file:
//!
//! - a larger size is told only after the pages that were read before are dropped, and then a moment later, since readers
//!   may hold on to a page and look for the size after that; who asks for the attributes meanwhile waits;
//! - a read that comes to an end before the size that the kernel may believe is to be tried again (`EINTR`), until a smaller
//!   size is told and the pages are dropped.
//!
//! The watch tells of a change by itself. An answer that comes across one first goes on saying the size that was told, and
//! leaves the rest to another thread: dropping pages waits for reads that are under way, which the threads that
//! answer requests must never do.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::fs::FileType;

use super::node::{Dir, File, Kind, Node, Place};
use super::{Attr, Overlay, later};

/// How long a reader may take from finding a page to looking at the size. That is a few instructions, but it may have to
/// wait for a processor between them.
pub(super) const GRACE: Duration = Duration::from_millis(50);

/// So many reads behind the end of a file that was cut are to be tried again.
const BEHIND: u8 = 8;

/// What the kernel was told of a file in a lower.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    /// The content that it was last told of.
    content: Option<Content>,
    /// It believes no size that is larger than this.
    most: u64,
    /// Another thread has been asked to tell anew.
    asked: bool,
    /// It was cut: so many reads that begin behind the end are to be tried again.
    behind: u8,
    /// The file has grown: what the kernel will be told of, and when.
    growing: Option<(Content, Instant)>,
}

/// Which content a file or a directory had: its size, and when it was last changed (in nanoseconds since the epoch).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Content {
    size: u64,
    changed: i64,
}

impl Content {
    fn of(attr: &Attr) -> Self {
        // Wraps around after centuries, and then still tells two times apart.
        let changed = attr.ctime.sec.wrapping_mul(1_000_000_000).wrapping_add(attr.ctime.nsec.into());
        Self { size: attr.size, changed }
    }
}

impl Told {
    /// The kernel is told this from now on.
    fn settle(&mut self, content: Option<Content>) {
        let most = content.map_or(0, |content| content.size);
        let behind = if most < self.most { BEHIND } else { self.behind };
        *self = Self { content, most, behind, ..Self::default() };
    }

    /// Gets ready for what is there now; what was told before. The pages are dropped after this.
    fn begin(&mut self, now: Option<Content>) -> Option<Content> {
        let before = self.content;
        if let (Some(content), Some(now)) = (&mut self.content, now) {
            // What is cut off needs no dropping, so a smaller size may go first. And it has to: an answer with the larger one
            // that came in later would be believed.
            content.size = content.size.min(now.size);
            // And of what is read from now on nothing may end before the larger size that will be told.
            self.most = self.most.max(now.size);
        }
        before
    }
}

impl File {
    fn is_lower(&self) -> bool {
        matches!(self.state.read().place, Place::Lower { .. })
    }

    /// Whether a read that came to the end of the file must not be answered with what it got.
    pub(super) fn ends_early(&self, offset: u64, got: usize) -> bool {
        let mut told = self.told.lock();
        if told.content.is_none() {
            return false;
        }
        if offset + (got as u64) < told.most {
            return true;
        }
        // Asked for by a size that is no longer told: the kernel would take the offset for the size. Not for ever, since
        // nothing makes it ask for the size first.
        let behind = got == 0 && offset > told.most && told.behind > 0;
        told.behind -= u8::from(behind);
        behind
    }
}

impl Overlay {
    /// An answer about a node that may be believed for so long: this one, or where somebody else has just changed the file,
    /// one with the size that was told before.
    pub(super) fn tell(&self, node: &Node, attr: Attr, ttl: Duration) -> (Attr, Duration) {
        let content = Content::of(&attr);
        let file = match &node.kind {
            Kind::File(file) if file.file_type == FileType::RegularFile && file.is_lower() => file,
            Kind::File(_) => return (attr, ttl),
            Kind::Dir(dir) => {
                self.tell_of_listing(node, dir, content);
                return (attr, ttl);
            }
        };
        let mut told = file.told.lock();
        let before = *told.content.get_or_insert(content);
        told.most = told.most.max(before.size);
        let growing = told.growing.is_some();
        drop(told);
        if before == content {
            return (attr, ttl);
        }
        if !growing {
            self.tell_soon(node, file);
        }
        (Attr { size: before.size, ..attr }, Duration::ZERO)
    }

    /// The times of a directory tell of changes in it where no watch does.
    fn tell_of_listing(&self, node: &Node, dir: &Dir, content: Content) {
        if !dir.state.read().unwatched {
            return;
        }
        let before = dir.told.lock().replace(content);
        if before.is_some_and(|before| before != content) {
            self.forget_listing(node);
            self.later(node, Instant::now(), Self::tell_anew);
        }
    }

    /// Until when an answer about the attributes of a node had better wait: from then on it is told another size.
    pub fn growing_until(&self, node: u64) -> Option<Instant> {
        let node = self.table.get(node)?;
        let told = *node.file().ok()?.told.lock();
        told.growing.map(|(_, until)| until)
    }

    /// Has the kernel drop what it knows of a node, and from then on be told what is there now. Waits for requests that are
    /// under way, so this is not for threads that answer them.
    pub(super) fn tell_anew(&self, node: &Arc<Node>) {
        let drop_pages = || {
            if let Some(sink) = self.drift.sink() {
                sink.node(node.id, true);
            }
        };
        let Kind::File(file) = &node.kind else { return drop_pages() };
        // Two at a time could tell a size for which only the other has dropped the pages.
        let _one = self.telling.lock();
        let now = self.content(node, file);
        let before = file.told.lock().begin(now);
        drop_pages();
        let mut told = file.told.lock();
        if before.zip(now).is_none_or(|(before, now)| before.size >= now.size) {
            told.settle(now);
        } else if let (Some(now), None) = (now, told.growing) {
            let until = Instant::now() + GRACE;
            told.growing = Some((now, until));
            self.later(node, until, move |this, node| this.tell_grown(node, until));
        }
    }

    /// Goes on to the larger size that was to be told at this time.
    fn tell_grown(&self, node: &Arc<Node>, time: Instant) {
        let Kind::File(file) = &node.kind else { return };
        {
            let _one = self.telling.lock();
            let mut told = file.told.lock();
            let Some((content, _)) = told.growing.filter(|(_, until)| *until == time) else { return };
            told.settle(Some(content));
        }
        self.tell_if_changed(node);
    }

    /// Tells anew, soon, from another thread, unless that is not needed any more by then.
    pub(super) fn tell_soon(&self, node: &Node, file: &File) {
        if !std::mem::replace(&mut file.told.lock().asked, true) {
            self.later(node, Instant::now(), Self::tell_if_changed);
        }
    }

    fn tell_if_changed(&self, node: &Arc<Node>) {
        let Kind::File(file) = &node.kind else { return };
        file.told.lock().asked = false;
        let now = self.content(node, file);
        let told = *file.told.lock();
        let same = now.is_some_and(|now| told.content == Some(now) && told.most == now.size);
        if !same && told.growing.is_none() {
            self.tell_anew(node);
        }
    }

    fn later(&self, node: &Node, time: Instant, job: impl FnOnce(&Self, &Arc<Node>) + Send + 'static) {
        let (me, node) = (Weak::clone(&self.me), node.id);
        later::at(time, move || {
            if let Some(overlay) = me.upgrade()
                && let Some(node) = overlay.table.get(node)
            {
                job(&overlay, &node);
            }
        });
    }

    /// A copy with these attributes is what the file is from now on.
    pub(super) fn told_of_copy(&self, node: &Node, file: &File, copied: &Attr) {
        let told = std::mem::take(&mut *file.told.lock());
        if told.content.is_some_and(|content| content != Content::of(copied)) {
            self.tell_soon(node, file);
        }
    }

    /// What is in the upper changes through the kernel alone, and of what is gone nothing will be told.
    fn content(&self, node: &Arc<Node>, file: &File) -> Option<Content> {
        let _names = self.names.read();
        if !file.is_lower() {
            return None;
        }
        self.attr(node).as_ref().map(Content::of).ok()
    }
}
