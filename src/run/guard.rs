//! The guard: for hosts that run tools themselves, without a namespace that would make mistakes impossible.
//!
//! It answers where a path leads (inside the fork, inside the base instead, or outside of both), what a command line
//! would do behind the fork's back as far as that can be read from it, and whether the fork is still there. Each is an
//! answer of its own, so that a host can combine it with its own rule for directories outside.
//!
//! It is no isolation: a program may open any path that its arguments do not name.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use serde::Serialize;

use super::place::Base;
use super::plan::reach;
use super::scan::{self, Scan};
use super::watchdog;
use super::{Root, Target};
use crate::error::{Context, Error, Kind, Result};
use crate::names::RelPath;

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "place", content = "below")]
pub enum Place {
    /// Into the fork: what it is below the fork's root.
    Inside(RelPath),
    /// Into the base, where the fork was meant: what it is below the base's root, and so would be in the fork.
    Base(RelPath),
    /// Neither.
    Outside,
}

/// Whether a fork can be worked in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// Its root answers.
    Alive,
    /// It is gone, for this reason.
    Gone(String),
}

/// The guard of one fork.
#[derive(Debug)]
pub struct Guard {
    base: Base,
    root: Root,
    path: PathBuf,
}

impl Guard {
    /// The guard of a fork that is mounted, or was.
    pub fn new(target: Target) -> Result<Self> {
        let path = match &target.root {
            Root::Mount(path) | Root::Directory(path) => path,
            Root::Unmounted(_) => {
                let what = "the fork has no path here: only a namespace of its own mounts it";
                return Err(Error::new(Kind::Unavailable, what));
            }
        };
        // The root itself may be dead, and its parent is not.
        let path = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => fs::canonicalize(parent).unwrap_or_else(|_| parent.to_path_buf()).join(name),
            _ => path.clone(),
        };
        Ok(Self { base: Base::find(&target.base, None)?, root: target.root, path })
    }

    /// The root of the fork.
    pub fn root(&self) -> &Path {
        &self.path
    }

    /// Where a path leads, links followed as the kernel follows them; what does not exist (yet) lies where it would be
    /// made. A relative path starts at `cwd`.
    ///
    /// # Errors
    /// Links in a circle, or a directory on the way that cannot be read.
    pub fn place(&self, path: &Path, cwd: &Path) -> Result<Place> {
        place(&self.base, &self.path, path, cwd)
    }

    /// What a command line, run in `cwd`, would do behind the fork's back.
    pub fn scan<S: AsRef<OsStr>>(&self, args: &[S], cwd: &Path) -> Scan {
        let args: Vec<OsString> = args.iter().map(|arg| arg.as_ref().to_owned()).collect();
        read(&self.base, &self.path, &args, cwd)
    }

    /// Whether the fork is still there.
    pub fn liveness(&self) -> Liveness {
        match reach(&self.root) {
            Err(e) => Liveness::Gone(e.to_string()),
            Ok(None) => Liveness::Gone("it is not mounted".into()),
            Ok(Some(reached)) => {
                let root = watchdog::Root { fd: reached.fd, path: Some(reached.path) };
                if root.alive() { Liveness::Alive } else { Liveness::Gone("its server does not answer for it".into()) }
            }
        }
    }

    /// The directories that a host should allow its tools for this fork.
    pub fn allow(&self) -> Vec<PathBuf> {
        vec![self.path.clone()]
    }
}

/// Where a path leads, seen from a fork with this base and root.
fn place(base: &Base, root: &Path, path: &Path, cwd: &Path) -> Result<Place> {
    let resolved = resolve(&cwd.join(path)).context("cannot follow", path)?;
    if let Some(below) = resolved.strip_prefix(root).ok().and_then(RelPath::new) {
        return Ok(Place::Inside(below));
    }
    Ok(base.below(&resolved).map_or(Place::Outside, Place::Base))
}

/// What a command line would do behind the back of a fork with this base and root.
pub(super) fn read(base: &Base, root: &Path, args: &[OsString], cwd: &Path) -> Scan {
    scan::command(args, cwd, &|path, cwd| place(base, root, path, cwd).unwrap_or(Place::Outside))
}

/// The path that is reached when this one is opened, without links; the part that does not exist is kept as it is.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    // MAXSYMLINKS of the kernel.
    let mut links = 40;
    let mut done = PathBuf::from("/");
    let mut rest: Vec<OsString> = components(path);
    while let Some(name) = rest.pop() {
        if name == ".." {
            done.pop();
            continue;
        }
        let next = done.join(&name);
        match fs::symlink_metadata(&next) {
            Ok(meta) if meta.is_symlink() => {
                if links == 0 {
                    return Err(io::Error::from(rustix::io::Errno::LOOP));
                }
                links -= 1;
                let target = fs::read_link(&next)?;
                if target.is_absolute() {
                    done = PathBuf::from("/");
                }
                rest.extend(components(&target));
            }
            Ok(_) => done = next,
            Err(e) if e.kind() == io::ErrorKind::NotFound || e.kind() == io::ErrorKind::NotADirectory => done = next,
            // A dead mount answers nothing; what would be below it is still below it.
            Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => done = next,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// The components of a path, last one first, without the root and dots.
fn components(path: &Path) -> Vec<OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    names.rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    struct Site {
        _dir: tempfile::TempDir,
        top: PathBuf,
        guard: Guard,
    }

    fn site() -> Site {
        let dir = tempfile::tempdir().expect("temporary directory");
        let top = fs::canonicalize(dir.path()).expect("there");
        for name in ["base/sub", "fork/sub", "else"] {
            fs::create_dir_all(top.join(name)).expect("writable");
        }
        let target = Target {
            id: "i".into(),
            label: "l".into(),
            base: top.join("base"),
            base_ident: None,
            start: "".into(),
            root: Root::Directory(top.join("fork")),
            hide: vec![],
            shared_git: None,
        };
        Site { guard: Guard::new(target).expect("there"), top, _dir: dir }
    }

    fn rel(path: &str) -> RelPath {
        RelPath::new(Path::new(path)).expect("relative")
    }

    #[test]
    fn three_answers_for_paths() {
        let Site { guard, top, _dir } = site();
        let place = |path: &str| guard.place(Path::new(path), &top.join("fork/sub")).expect("resolves");
        assert_eq!(place("new/file"), Place::Inside(rel("sub/new/file")));
        assert_eq!(place(".."), Place::Inside(rel("")));
        assert_eq!(place("../../base/x"), Place::Base(rel("x")));
        assert_eq!(place("../../else"), Place::Outside);
        assert_eq!(place("/"), Place::Outside);
    }

    #[test]
    fn links_are_followed_as_the_kernel_does() {
        let Site { guard, top, _dir } = site();
        let fork = top.join("fork");
        symlink(top.join("base"), fork.join("abs")).expect("writable");
        symlink("../base/sub", fork.join("rel")).expect("writable");
        symlink(top.join("base/not-yet"), fork.join("dangling")).expect("writable");
        symlink("loop", fork.join("loop")).expect("writable");
        symlink(&fork, top.join("else/back")).expect("writable");
        let place = |path: &str| guard.place(Path::new(path), &fork);
        assert_eq!(place("abs/x").expect("resolves"), Place::Base(rel("x")));
        // The parent of where a link leads, not of the link.
        assert_eq!(place("rel/..").expect("resolves"), Place::Base(rel("")));
        assert_eq!(place("dangling").expect("resolves"), Place::Base(rel("not-yet")));
        assert_eq!(place("../else/back/sub").expect("resolves"), Place::Inside(rel("sub")));
        assert!(place("loop").is_err());
    }

    #[test]
    fn a_fork_that_is_gone_is_gone() {
        let Site { guard, top, _dir } = site();
        assert_eq!(guard.liveness(), Liveness::Alive);
        fs::rename(top.join("fork"), top.join("trash")).expect("ours");
        assert!(matches!(guard.liveness(), Liveness::Gone(_)));
    }
}
