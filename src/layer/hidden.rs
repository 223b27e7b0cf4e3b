//! Names of the base that a fork does not show.
//!
//! What a fork was asked to leave out is written down with it ([`Hide`]) and never changes. It is asked for each name of
//! the lower layers, at lookup and at listing ([`Hidden`]); what stands in the upper is the fork's own and shows. Names
//! are those that the base had when the fork was made: below a directory that the fork renamed, too, what was hidden
//! stays so. A merge takes nothing that is hidden for deleted: to it, the fork has never seen it.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::copy::{Symlinks, leads_outside, leads_outside_of};
use crate::error::{Error, Kind, Result};
use crate::names::RelPath;
use crate::sys::{At, open_beneath};

/// What a fork leaves out of its base, as it is written down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hide {
    /// Which symbolic links.
    #[serde(default)]
    pub symlinks: Symlinks,
    /// Patterns of paths in the format of `.gitignore`; the last one that fits counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
}

/// What a fork leaves out of its base, ready to be asked. The default hides nothing.
#[derive(Clone, Debug)]
pub struct Hidden {
    symlinks: Symlinks,
    base: PathBuf,
    exclude: Gitignore,
}

impl Default for Hidden {
    fn default() -> Self {
        Self { symlinks: Symlinks::Keep, base: PathBuf::new(), exclude: Gitignore::empty() }
    }
}

impl Hide {
    /// Whether this is a pattern; `Usage` where it is none.
    pub fn check(pattern: &str) -> Result<()> {
        add(&mut GitignoreBuilder::new(""), pattern)
    }

    /// Makes it ready for a base that lives at this path.
    ///
    /// # Errors
    /// `Usage`, naming the pattern that is none, and for patterns that leave out the git directory.
    pub fn of(&self, base: &Path) -> Result<Hidden> {
        let mut patterns = GitignoreBuilder::new("");
        self.exclude.iter().try_for_each(|pattern| add(&mut patterns, pattern))?;
        let exclude = patterns.build().map_err(|e| no_pattern("exclude").because(e))?;
        if exclude.matched(".git", true).is_ignore() {
            let what = "the patterns of what to leave out cover .git, which a fork does not do without";
            return Err(Error::new(Kind::Usage, what).remedy("leave out less, or add \"!/.git\" as the last one"));
        }
        Ok(Hidden { symlinks: self.symlinks, base: base.to_path_buf(), exclude })
    }
}

fn no_pattern(pattern: &str) -> Error {
    Error::new(Kind::Usage, format!("{pattern:?} is no pattern of paths to leave out"))
}

fn add(patterns: &mut GitignoreBuilder, pattern: &str) -> Result<()> {
    // A file of patterns has empty lines and comments; a pattern that hides nothing is a mistake.
    if pattern.trim().is_empty() || pattern.starts_with('#') || pattern.contains(['\n', '\0']) {
        return Err(no_pattern(pattern));
    }
    patterns.add_line(None, pattern).map(drop).map_err(|e| no_pattern(pattern).because(e))
}

impl Hidden {
    /// Whether it hides nothing at all.
    pub fn is_nothing(&self) -> bool {
        self.symlinks == Symlinks::Keep && self.exclude.is_empty()
    }

    /// Whether the patterns leave out what is at this path. Nothing of a git directory: half a repository is none.
    pub fn excludes(&self, path: &RelPath, is_dir: bool) -> bool {
        let git = || path.as_path().iter().any(|name| name == OsStr::new(".git"));
        !self.exclude.is_empty()
            && !path.is_root()
            && !git()
            && self.exclude.matched(path.as_path(), is_dir).is_ignore()
    }

    /// Whether the object at this path of the lower layers is hidden. `read_link` gives the target of the link at a path
    /// of theirs, and `None` for anything else, or nothing.
    pub fn hides(
        &self,
        path: &RelPath,
        kind: FileType,
        read_link: &dyn Fn(&RelPath) -> std::result::Result<Option<OsString>, Errno>,
    ) -> std::result::Result<bool, Errno> {
        if self.excludes(path, kind == FileType::Directory) {
            return Ok(true);
        }
        if kind != FileType::Symlink {
            return Ok(false);
        }
        match self.symlinks {
            Symlinks::Keep => Ok(false),
            Symlinks::Skip => Ok(true),
            Symlinks::Confine => match read_link(path)? {
                Some(target) => leads_outside_of(&self.base, path, &target, read_link),
                // Gone since it was found.
                None => Ok(true),
            },
        }
    }

    /// Whether the object at this path of the base, whose root is given, or a directory above it, is hidden: for those
    /// who come to a path by another way than through the directories above it.
    pub fn covers(&self, root: &impl AsFd, path: &RelPath, kind: FileType) -> bool {
        if !self.may_cover(path, kind) {
            return false;
        }
        if kind != FileType::Symlink || self.symlinks != Symlinks::Confine {
            return true;
        }
        let target = || {
            let dir = open_beneath(root, &path.parent()?, OFlags::PATH | OFlags::DIRECTORY).ok()?;
            At::new(&dir, path.file_name()?).readlink().ok()
        };
        self.covers_by_pattern(path, false)
            || target().is_some_and(|target| leads_outside(root, &self.base, path, &target))
    }

    /// Whether an object of this type at this path would be hidden, as far as that can be told without following it.
    pub fn may_cover(&self, path: &RelPath, kind: FileType) -> bool {
        self.symlinks != Symlinks::Keep && kind == FileType::Symlink
            || self.covers_by_pattern(path, kind == FileType::Directory)
    }

    fn covers_by_pattern(&self, path: &RelPath, is_dir: bool) -> bool {
        let mut above = path.as_path().ancestors().skip(1).filter_map(RelPath::new);
        !self.exclude.is_empty() && (self.excludes(path, is_dir) || above.any(|dir| self.excludes(&dir, true)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rel(path: &str) -> RelPath {
        RelPath::new(Path::new(path)).expect("a path")
    }

    #[test]
    fn patterns_as_git_reads_them() {
        let hide =
            Hide { exclude: vec!["target/".into(), "/top".into(), "*.o".into(), "!keep.o".into()], ..Hide::default() };
        let hidden = hide.of(Path::new("/b")).expect("patterns");
        for (path, is_dir, left_out) in [
            ("target", true, true),
            ("target", false, false),
            ("a/b/target", true, true),
            ("top", false, true),
            ("a/top", false, false),
            ("a/x.o", false, true),
            ("a/keep.o", false, false),
            (".git/x.o", false, false),
            ("sub/.git/target", true, false),
            ("", true, false),
        ] {
            assert_eq!(hidden.excludes(&rel(path), is_dir), left_out, "{path}");
        }
        let root = crate::sys::open_root(Path::new("/")).expect("there");
        assert!(hidden.covers(&root, &rel("target/deep/down"), FileType::RegularFile));
        assert!(!hidden.covers(&root, &rel("src/deep/down"), FileType::RegularFile));
        let of = |patterns: &[&str]| {
            let exclude = patterns.iter().map(ToString::to_string).collect();
            Hide { exclude, ..Hide::default() }.of(Path::new("/b"))
        };
        for bad in ["[z-a]", "", "# comment", ".git", "*", ".*/"] {
            assert_eq!(of(&[bad]).expect_err(bad).kind(), Kind::Usage);
        }
        of(&["*", "!/.git", "!/src"]).expect("all but two");
        assert!(Hide::default().of(Path::new("/b")).expect("nothing").is_nothing());
    }

    #[test]
    fn links_by_where_they_lead() {
        let links = |path: &RelPath| {
            Ok(match path.as_path().to_str() {
                Some("in") => Some("d/f".into()),
                Some("out") => Some("/etc".into()),
                Some("own") => Some("/b/d".into()),
                Some("d/up") => Some("..".into()),
                Some("over") => Some("d/up/../x".into()),
                _ => None,
            })
        };
        let of = |symlinks| Hide { symlinks, ..Hide::default() }.of(Path::new("/b")).expect("fine");
        let hides = |symlinks, path| of(symlinks).hides(&rel(path), FileType::Symlink, &links).expect("readable");
        for (path, outside) in [("in", false), ("out", true), ("own", false), ("d/up", false), ("over", true)] {
            assert!(!hides(Symlinks::Keep, path) && hides(Symlinks::Skip, path), "{path}");
            assert_eq!(hides(Symlinks::Confine, path), outside, "{path}");
        }
        assert!(!of(Symlinks::Skip).hides(&rel("f"), FileType::RegularFile, &links).expect("readable"));
    }
}
