//! Telling git what changed: the log of what was touched in the fork, together with what changed in the base.
//!
//! A fork is *observed* from the first command on that wants it. From then on every name that an operation changes is
//! logged, and a monitor of the base knows what others change there. Git's hook asks by reading an attribute of a
//! directory in the mount itself, whose name carries the token that it was given the last time: so it needs no socket,
//! works in any namespace, and nobody learns of more than of the fork that it stands in. The value is the new token, a
//! word, and names below that directory, all ended by NUL; where they do not fit into one value, the word says so, and
//! the next question goes on from the new token.
//!
//! Of renamed directories the log says no more than that anything may have changed. What is below `.git` is nobody's
//! business.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::fds::Slot;
use super::node::{Kind, Node, Place};
use super::{Overlay, Result};
use crate::layer::monitor::{Heard, Mark, Monitor};
use crate::layer::prepared::{self, Prepared, Since as KnownSince};
use crate::layer::touched::{Since, Touched};
use crate::layer::tree::Layer;
use crate::names::{Name, RelPath};
use crate::sys::calls::Dir as DirStream;
use crate::sys::{At, Stat};

/// The attribute to ask by, without the token at its end. With our marks' prefix, so that nobody can set it.
pub const ASK: &str = "user.overlay.treefork.since.";

/// How long the value of an attribute may be (`XATTR_SIZE_MAX`).
pub const LONGEST: usize = 64 * 1024;

/// How many bytes of names go into one answer; token, word and one more name still fit behind them.
const PAGE: usize = 56 * 1024;

/// The word after the token: these are all the names.
pub const NAMES: &str = "names";
/// The word after the token: there are more names, from this token on.
pub const MORE: &str = "more";
/// The word after the token: anything may have changed.
pub const ANYTHING: &str = "anything";
/// The word after the token: ask again in a moment, with the same token as before.
pub const WAIT: &str = "wait";

/// The token of a prepared index begins with this, and goes on with its number in hexadecimal.
pub const PREPARED: &str = "treefork-base-";
/// The token of an answer begins with this.
const TOKEN: &str = "treefork-fork-";

/// What a fork knows for git.
#[derive(Debug, Default)]
pub(super) struct Touches {
    /// Whether operations are logged; then there is a log, for ever.
    observed: AtomicBool,
    log: Mutex<Touched>,
    /// The log reaches back to when the fork showed nothing but its base.
    whole: AtomicBool,
    monitor: RwLock<Option<Arc<Monitor>>>,
    prepared: RwLock<Option<Arc<Prepared>>>,
}

/// Where an answer leaves off in the fork's log and in the base's.
#[derive(Clone, Copy)]
struct Token {
    fork: Mark,
    base: Mark,
}

impl Overlay {
    /// Observes the fork for git from now on, with a monitor of the whole base. The prepared index is shown where the
    /// fork would show the index that it stands for, if the fork had changed nothing yet when it was first observed.
    pub fn observe(&self, monitor: Arc<Monitor>, prepared: Option<Arc<Prepared>>) -> Result<()> {
        let touches = &self.touches;
        *touches.monitor.write() = Some(monitor);
        // An operation changes first and looks then whether it is observed: what is not logged shows in the upper.
        if !touches.observed.swap(true, Ordering::SeqCst) && self.is_untouched()? {
            touches.whole.store(true, Ordering::SeqCst);
        }
        let plain = self.layers.read().len() == 1 && self.hidden.is_nothing();
        let fits = touches.whole.load(Ordering::SeqCst) && plain;
        if let Some(prepared) = prepared.filter(|_| fits) {
            *touches.prepared.write() = Some(Arc::clone(&prepared));
            self.show_prepared(&prepared);
        }
        Ok(())
    }

    fn is_untouched(&self) -> Result<bool> {
        let dir = At::object(&*self.writable()?.root.fd).open(OFlags::RDONLY | OFlags::DIRECTORY)?;
        for entry in DirStream::read_from(&dir)? {
            if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The kernel may know the base's index already: it goes on with the prepared one.
    fn show_prepared(&self, prepared: &Prepared) {
        let shown = prepared.shown();
        let node = self.table.of_object(self.lower_id(&shown), shown.dev, shown.ident());
        let Some(node) = node.filter(|node| self.move_lower(node, &prepared.layer)) else { return };
        self.tell_anew(&node);
    }

    /// Reads an untouched file at the path of the index from this layer from now on; whether that was another one.
    fn move_lower(&self, node: &Node, to: &Arc<Layer>) -> bool {
        let Ok(file) = node.file() else { return false };
        let mut state = file.state.write();
        match &mut state.place {
            Place::Lower { layer, path, .. } if path.as_bytes() == prepared::INDEX.as_bytes() && layer.id != to.id => {
                *layer = Arc::clone(to);
                self.fds.remove(self.owner, node.id, Slot::Read);
                true
            }
            _ => false,
        }
    }

    /// The layer to read a base object from, and what it shows there: the prepared index in place of the base's.
    pub(super) fn with_prepared(&self, layer: Arc<Layer>, path: &RelPath, stat: Stat) -> (Arc<Layer>, Stat) {
        if path.as_bytes() == prepared::INDEX.as_bytes()
            && let Some(prepared) = self.touches.prepared.read().as_ref().filter(|prepared| prepared.is_of(&stat))
        {
            return (Arc::clone(&prepared.layer), prepared.shown());
        }
        (layer, stat)
    }

    /// The base's object behind this node changed where it is: if a prepared index stood for it, that is over.
    pub(super) fn without_prepared(&self, node: &Node) {
        let prepared = self.touches.prepared.read().clone();
        let shown = prepared.is_some_and(|prepared| prepared.shown().ident() == node.ident);
        let base = self.layers.read().last().map(Arc::clone);
        if let Some(base) = base.filter(|_| shown) {
            self.move_lower(node, &base);
        }
    }

    /// An operation changed a name, whether it succeeded or not.
    pub(super) fn touched_name(&self, parent: u64, name: &OsStr) {
        if !self.touches.observed.load(Ordering::SeqCst) {
            return;
        }
        let (Ok(parent), Ok(name)) = (self.node(parent), Name::new(name)) else { return };
        if let Some(path) = path_of(Some((parent, name))) {
            self.touches.log.lock().note(path);
        }
    }

    /// An operation changed an object, under whatever names, whether it succeeded or not.
    pub(super) fn touched(&self, node: u64) {
        if !self.touches.observed.load(Ordering::SeqCst) {
            return;
        }
        let Ok(node) = self.node(node) else { return };
        let links = match &node.kind {
            Kind::Dir(dir) => dir.state.read().link.iter().cloned().collect(),
            Kind::File(file) => file.state.read().links.clone(),
        };
        let known = links.len();
        let mut news = false;
        for path in links.into_iter().filter_map(|link| path_of(Some(link))).filter(|path| !path.is_root()) {
            news |= self.touches.log.lock().note(path);
        }
        // Names that the kernel has not looked up are names all the same.
        if news && !node.is_dir() && known < self.count_names(&node) {
            self.touches.log.lock().note_anything();
        }
    }

    fn count_names(&self, node: &Arc<Node>) -> usize {
        let _names = self.names.read();
        self.attr(node).map_or(usize::MAX, |attr| attr.nlink as usize)
    }

    /// A directory moved, or something changed that concerns all that is below it.
    pub(super) fn touched_anything(&self) {
        if self.touches.observed.load(Ordering::SeqCst) {
            self.touches.log.lock().note_anything();
        }
    }

    /// The answer to git's hook: what changed below a directory since a token. `ENODATA` where the fork is not observed.
    pub(super) fn changed_since(&self, node: u64, token: &[u8]) -> Result<Vec<u8>> {
        let node = self.node(node)?;
        let top = {
            let link = node.dir()?.state.read().link.clone();
            path_of(link).ok_or(Errno::NODATA)?
        };
        let monitor = self.touches.monitor.read().clone().ok_or(Errno::NODATA)?;
        let asked = match self.understand(token) {
            Ok(asked) => asked,
            Err(wait) => return Ok(wait),
        };
        let (base_names, base) = match monitor.since(asked.map(|token| token.base)) {
            Heard::Names(names, now) => (Some(names), now),
            Heard::Anything(now) => (None, now),
            Heard::NotYet => return Ok(answer(token, WAIT, &[])),
            Heard::Blind => return Err(Errno::NODATA),
        };
        let mut log = self.touches.log.lock();
        let fork = Mark { log: log.id(), position: log.give() };
        let since =
            asked.filter(|asked| asked.fork.log == fork.log).map(|asked| (asked, log.since(asked.fork.position)));
        let (Some((asked, Since::Names(fork_names))), Some(base_names)) = (since, base_names) else {
            return Ok(answer(Token { fork, base }.to_string().as_bytes(), ANYTHING, &[]));
        };
        Ok(page(&top, asked, fork_names, &base_names))
    }

    /// What a token says; nothing where it is not one of ours, or of another time. An error is the answer to wait.
    fn understand(&self, token: &[u8]) -> std::result::Result<Option<Token>, Vec<u8>> {
        let text = std::str::from_utf8(token).unwrap_or_default();
        let Some(id) = text.strip_prefix(PREPARED) else { return Ok(Token::parse(text)) };
        let id = u64::from_str_radix(id, 16).ok();
        let prepared = self.touches.prepared.read().clone().filter(|prepared| Some(prepared.id) == id);
        let fork = Mark { log: self.touches.log.lock().id(), position: 0 };
        match prepared.map(|prepared| prepared.since()) {
            Some(KnownSince::Mark(base)) => Ok(Some(Token { fork, base })),
            Some(KnownSince::Unknown) => Err(answer(token, WAIT, &[])),
            Some(KnownSince::Lost) | None => Ok(None),
        }
    }
}

impl Token {
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.strip_prefix(TOKEN)?.split('-').map(|number| u64::from_str_radix(number, 16).ok());
        let mut mark = || Some(Mark { log: numbers.next()??, position: numbers.next()?? });
        let token = Token { fork: mark()?, base: mark()? };
        numbers.next().is_none().then_some(token)
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Token { fork, base } = self;
        write!(f, "{TOKEN}{:x}-{:x}-{:x}-{:x}", fork.log, fork.position, base.log, base.position)
    }
}

/// As many names as fit, first those of the fork.
fn page(top: &RelPath, asked: Token, fork: &[RelPath], base: &[RelPath]) -> Vec<u8> {
    let mut upto = asked;
    let mut names: Vec<&[u8]> = Vec::new();
    let mut room = PAGE;
    let all = fork.iter().map(|name| (name, true)).chain(base.iter().map(|name| (name, false)));
    for (name, is_fork) in all {
        let Ok(below) = name.as_path().strip_prefix(top.as_path()) else {
            if top.as_path().starts_with(name.as_path()) {
                // Something about a directory above: what that means below it is anybody's guess.
                return answer(upto.to_string().as_bytes(), ANYTHING, &[]);
            }
            upto.pass(is_fork);
            continue;
        };
        let below = below.as_os_str().as_bytes();
        if below.len() + 1 > room {
            return answer(upto.to_string().as_bytes(), MORE, &names);
        }
        room -= below.len() + 1;
        upto.pass(is_fork);
        if !below.is_empty() {
            names.push(below);
        }
    }
    answer(upto.to_string().as_bytes(), NAMES, &names)
}

impl Token {
    /// One more name was dealt with.
    fn pass(&mut self, is_fork: bool) {
        let mark = if is_fork { &mut self.fork } else { &mut self.base };
        mark.position += 1;
    }
}

fn answer(token: &[u8], word: &str, names: &[&[u8]]) -> Vec<u8> {
    [token, word.as_bytes()].iter().chain(names).fold(Vec::new(), |mut all, field| {
        all.extend_from_slice(field);
        all.push(0);
        all
    })
}

/// The path of a name from the root of the fork; `None` for what git does not ask about. No link is the root.
fn path_of(link: Option<(Arc<Node>, Name)>) -> Option<RelPath> {
    let mut names = Vec::new();
    let mut link = link;
    while let Some((parent, name)) = link {
        if name.as_os_str() == ".git" && !names.is_empty() {
            return None;
        }
        names.push(name);
        link = match &parent.kind {
            Kind::Dir(dir) => dir.state.read().link.clone(),
            Kind::File(_) => None,
        };
    }
    let path: std::path::PathBuf = names.iter().rev().map(|name| Path::new(name.as_os_str())).collect();
    RelPath::new(&path)
}
