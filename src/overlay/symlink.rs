//! Reading symbolic links, and those that would lead out of the fork into its base.
//!
//! An absolute link of the base that points into the base would, followed in the fork, end in the base itself: a write
//! through it would land there. It is shown with a relative target instead, from the link's place to the same object in
//! the fork, which is right at whatever path the fork is looked at. The link on disk stays as it is, and so does its
//! size. The kernel caches targets; when something that such a link depends on is renamed, the links are told to it anew.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FileType;
use rustix::io::Errno;

use super::node::{Kind, Node};
use super::{Overlay, Result};

impl Overlay {
    /// Says under which absolute paths the base is known, so that links to them lead into the fork. Once, before the
    /// first lookup.
    pub fn retarget(&self, bases: Vec<PathBuf>) {
        // The root directory as a base is no prefix that could be told from any other path.
        drop(self.bases.set(bases.into_iter().filter(|path| path.parent().is_some()).collect()));
    }

    /// The target of a symbolic link, as bytes.
    pub fn readlink(&self, node: u64) -> Result<OsString> {
        let node = self.node(node)?;
        let _names = self.names.read();
        if node.file_type() != FileType::Symlink {
            return Err(Errno::INVAL);
        }
        let target = self.on_object(&node, |at| at.readlink())?;
        match self.inside(Path::new(&target)) {
            Some(inside) => {
                self.retargeted.lock().insert(node.id);
                Ok(relative(depth(&node), inside))
            }
            None => Ok(target),
        }
    }

    /// The part of an absolute target that lies below the base.
    fn inside<'a>(&self, target: &'a Path) -> Option<&'a Path> {
        self.bases.get()?.iter().find_map(|base| target.strip_prefix(base).ok())
    }

    /// Something was renamed: the kernel reads the links anew that are shown with another target than they have. From a
    /// thread of its own, since the kernel must not be told from inside the request that it waits for.
    pub(super) fn links_moved(&self) {
        let nodes: Vec<u64> = self.retargeted.lock().drain().collect();
        let Some(sink) = self.drift.sink().filter(|_| !nodes.is_empty()) else { return };
        let told = std::thread::Builder::new().name("links".into()).spawn(move || {
            for node in nodes {
                sink.node(node, true);
            }
        });
        if let Err(e) = told {
            log::warn!("cannot tell the kernel of moved links: {e}");
        }
    }

    /// A node is forgotten, and its link with it.
    pub(super) fn link_forgotten(&self, node: &Node) {
        if node.file_type() == FileType::Symlink {
            self.retargeted.lock().remove(&node.id);
        }
    }
}

/// How many directories below the root the node is; the caller holds `names`.
fn depth(node: &Arc<Node>) -> usize {
    let mut depth = 0;
    let mut at = match &node.kind {
        Kind::File(file) => file.state.read().links.first().map(|(parent, _)| Arc::clone(parent)),
        Kind::Dir(_) => None,
    };
    while let Some(dir) = at {
        at = dir.dir().ok().and_then(|dir| dir.state.read().link.as_ref().map(|(parent, _)| Arc::clone(parent)));
        depth += usize::from(at.is_some());
    }
    depth
}

/// The way from a directory so many levels below the root to a path from the root.
fn relative(depth: usize, path: &Path) -> OsString {
    let mut way = b"../".repeat(depth);
    way.extend_from_slice(path.as_os_str().as_encoded_bytes());
    match way.is_empty() {
        true => OsStr::new(".").to_os_string(),
        false => OsString::from_vec(way),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways() {
        assert_eq!(relative(0, Path::new("d/f")), "d/f");
        assert_eq!(relative(2, Path::new("d/f")), "../../d/f");
        assert_eq!(relative(0, Path::new("")), ".");
        assert_eq!(relative(1, Path::new("")), "../");
    }
}
