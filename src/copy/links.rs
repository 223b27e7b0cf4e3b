//! Where symbolic links lead, decided by reading links and never by following one.
//!
//! A link target is resolved by hand, from directory to directory below the root of the tree, so that a link which
//! leads outside is never touched on the way. An absolute target inside the tree's own path counts as inside: a copy of
//! the tree gets it re-targeted into the copy.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::names::RelPath;
use crate::sys::{At, Stat, open_beneath};

/// What becomes of the symbolic links of a base in a fork.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Symlinks {
    /// All are there; an absolute one into the base leads into the fork instead.
    #[default]
    Keep,
    /// Those that lead outside the base are left out.
    Confine,
    /// None is there.
    Skip,
}

/// So many links in one resolution end it, as in the kernel (`MAXSYMLINKS`).
const MAX_LINKS: usize = 40;

/// A target for a link at `link` in a copy of the tree that lives at `root`, where the present target is an absolute
/// path into the tree; `None` where it is anything else.
///
/// The new target is relative, so that it holds wherever the copy is seen.
pub fn retarget(root: &Path, link: &RelPath, target: &OsStr) -> Option<OsString> {
    let inside = into_tree(root, Path::new(target))?;
    let up = link.as_path().components().count().saturating_sub(1);
    let ups = std::iter::repeat_n(OsStr::new(".."), up);
    let relative: PathBuf = ups.chain(inside.as_path().iter()).collect();
    Some(if relative.as_os_str().is_empty() { OsString::from(".") } else { relative.into_os_string() })
}

/// The place in the tree at `root` that an absolute path names, if it does. A path with `..` in it is not judged.
fn into_tree(root: &Path, target: &Path) -> Option<RelPath> {
    if !target.is_absolute() {
        return None;
    }
    RelPath::new(target.strip_prefix(root).ok()?)
}

/// Whether the link at `link` with this target leads out of the tree below `root_fd`, which lives at `root`.
///
/// A link that leads nowhere is judged by its text from the place on where nothing is any more; a loop stays inside.
pub fn leads_outside(root_fd: &impl AsFd, root: &Path, link: &RelPath, target: &OsStr) -> bool {
    let look = |path: &RelPath| Ok(read_link(root_fd, path));
    leads_outside_of(root, link, target, &look).unwrap_or(true)
}

/// As [`leads_outside`], of a tree in which `read_link` gives the target of the link at a path, and `None` for anything
/// else, or nothing. Fails as that does.
pub fn leads_outside_of(
    root: &Path,
    link: &RelPath,
    target: &OsStr,
    read_link: &dyn Fn(&RelPath) -> Result<Option<OsString>, Errno>,
) -> Result<bool, Errno> {
    let mut here: Vec<OsString> = link.parent().unwrap_or_default().as_path().iter().map(OsStr::to_os_string).collect();
    let mut todo = VecDeque::new();
    if !enqueue(root, target, &mut here, &mut todo) {
        return Ok(true);
    }
    let mut links = 0;
    while let Some(name) = todo.pop_front() {
        if name == ".." {
            if here.pop().is_none() {
                return Ok(true);
            }
            continue;
        }
        here.push(name);
        let Some(path) = RelPath::new(&here.iter().collect::<PathBuf>()) else { return Ok(true) };
        let Some(next) = read_link(&path)? else { continue };
        links += 1;
        if links > MAX_LINKS {
            return Ok(false);
        }
        here.pop();
        if !enqueue(root, &next, &mut here, &mut todo) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Puts the components of a link target in front of what is still to be resolved. False where it is absolute and
/// leads outside.
fn enqueue(root: &Path, target: &OsStr, here: &mut Vec<OsString>, todo: &mut VecDeque<OsString>) -> bool {
    let mut path = Path::new(target);
    let inside;
    if path.is_absolute() {
        let Some(place) = into_tree(root, path) else { return false };
        here.clear();
        inside = place;
        path = inside.as_path();
    }
    for component in path.components().rev() {
        match component {
            Component::Normal(name) => todo.push_front(name.to_os_string()),
            Component::ParentDir => todo.push_front("..".into()),
            _ => {}
        }
    }
    true
}

/// The target of the object at `path` if it is a link; `None` for anything else, or nothing.
fn read_link(root: &impl AsFd, path: &RelPath) -> Option<OsString> {
    let fd = open_beneath(root, &path.parent()?, OFlags::PATH | OFlags::DIRECTORY).ok()?;
    let entry = At::new(&fd, path.file_name()?);
    if entry.stat().is_ok_and(|s: Stat| s.is_symlink()) { entry.readlink().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::sys::open_root;

    fn rel(path: &str) -> RelPath {
        RelPath::new(Path::new(path)).unwrap()
    }

    #[test]
    fn absolute_links_into_the_tree_become_relative() {
        let root = Path::new("/abs/b");
        let new = |link: &str, target: &str| retarget(root, &rel(link), OsStr::new(target));
        assert_eq!(new("l", "/abs/b/x/y").as_deref(), Some(OsStr::new("x/y")));
        assert_eq!(new("d/e/l", "/abs/b/x").as_deref(), Some(OsStr::new("../../x")));
        assert_eq!(new("l", "/abs/b").as_deref(), Some(OsStr::new(".")));
        assert_eq!(new("d/l", "/abs/b/").as_deref(), Some(OsStr::new("..")));
        for other in ["x", "../x", "/abs/bb/x", "/abs", "/abs/b/../c"] {
            assert_eq!(new("l", other), None, "{other}");
        }
    }

    #[test]
    fn outside_is_found_through_other_links() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("b");
        fs::create_dir_all(root.join("d/e")).unwrap();
        symlink("..", root.join("d/up")).unwrap();
        symlink(root.join("d"), root.join("own")).unwrap();
        symlink("/etc", root.join("etc")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let fd = open_root(&root).unwrap();
        let outside = |link: &str, target: &str| leads_outside(&fd, &root, &rel(link), OsStr::new(target));
        for target in ["..", "d/../../x", "d/up/../x", "etc/passwd", "/etc", "gone/../../x", "own/../../x"] {
            assert!(outside("l", target), "{target}");
        }
        for target in ["d", "gone", "d/up/d", "own/e", "loop", "d/gone/..", root.to_str().unwrap()] {
            assert!(!outside("l", target), "{target}");
        }
        assert!(!outside("d/l", "../x"));
        assert!(outside("d/l", "../../x"));
    }
}
