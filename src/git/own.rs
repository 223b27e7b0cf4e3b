//! A git directory of its own for a fork whose base has it elsewhere.
//!
//! A fork holds what its base holds. Where that is a pointer (a `.git` file, a link, an alternate, `core.worktree`) to
//! something outside the base, or an absolute one back into it, work in the fork would reach the shared repository.
//! [`fixes`] finds those places and says what has to stand there instead; [`build`] makes the git directories: complete
//! ones, objects included, since a pointer that still leads to the shared one is never left. What cannot be put right
//! is refused with the reason.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::command::configure;
use super::read::read;
use super::repo::{DotGit, Elsewhere, Repo, alternates};
use crate::copy::{self, Symlinks};
use crate::error::{Context, Error, Kind, Result};
use crate::names::RelPath;
use crate::sys::open_root;

/// Something that has to differ between a base and a fork of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fix {
    /// At this path stands a git directory of its own, made from this repository.
    Own {
        /// The path of `.git` in the tree.
        at: RelPath,
        /// The repository that the base has there.
        repo: Repo,
    },
    /// The file at this path has this content.
    Write {
        /// The path of the file in the tree.
        at: RelPath,
        /// Its content.
        content: Vec<u8>,
    },
}

impl Fix {
    /// The path in the tree.
    pub fn at(&self) -> &RelPath {
        match self {
            Self::Own { at, .. } | Self::Write { at, .. } => at,
        }
    }
}

/// What has to differ in a fork of `base` that shows at `tree`; `tops` are the directories that may have a `.git`.
///
/// [`Kind::Git`] where a fork cannot get a git directory of its own.
pub fn fixes<'a>(base: &Path, tree: &Path, tops: impl IntoIterator<Item = &'a RelPath>) -> Result<Vec<Fix>> {
    let mut fixes = Vec::new();
    for top in tops {
        // A pointer to nothing is no danger: there is nothing to reach.
        let Some(repo) = Repo::at(&base.join(top)).ok().flatten() else { continue };
        fixes_of(base, tree, top, repo, &mut fixes)?;
    }
    Ok(fixes)
}

/// So many directories are looked into for a work tree that nothing at the top knows of.
const LOOKED_INTO: usize = 512;

/// Where repositories in `base` may be that a look at the top finds: the top itself, the submodules that it lists, the
/// linked work trees that it knows, and whatever has a `.git` file or link in the directories right below the top.
///
/// Costs nothing that grows with the tree. What it misses is a work tree further down that belongs to a repository outside:
/// an overlay puts that right when somebody gets there ([`fixes_at`]).
pub fn likely_tops(base: &Path) -> Vec<RelPath> {
    let mut tops = vec![RelPath::root()];
    let modules = read(&base.join(".gitmodules")).unwrap_or_default();
    for line in modules.split(|&b| b == b'\n') {
        let value = line.trim_ascii().strip_prefix(b"path").map(<[u8]>::trim_ascii_start);
        let path = value.and_then(|value| value.strip_prefix(b"=")).map(<[u8]>::trim_ascii);
        tops.extend(path.map(|path| path.trim_ascii_start()).and_then(RelPath::from_bytes));
    }
    tops.extend(work_trees(base, &RelPath::root()));
    tops.extend(below_the_top(base));
    tops.sort();
    tops.dedup();
    tops
}

/// The linked work trees in `base` that the repository in one of its directories knows.
fn work_trees(base: &Path, top: &RelPath) -> Vec<RelPath> {
    let Ok(Some(repo)) = Repo::at(&base.join(top)) else { return vec![] };
    let mut tops = Vec::new();
    for entry in fs::read_dir(repo.common_dir.join("worktrees")).into_iter().flatten().flatten() {
        let text = read(&entry.path().join("gitdir")).unwrap_or_default();
        let dot_git = Path::new(OsStr::from_bytes(text.trim_ascii_end()));
        let top = dot_git.parent().and_then(|top| top.strip_prefix(base).ok());
        tops.extend(top.and_then(RelPath::new).filter(|top| !top.is_root()));
    }
    tops
}

/// What has to differ on account of the `.git` in one directory of the base: itself, and what it says of its linked work
/// trees. As [`fixes`].
pub fn fixes_at(base: &Path, tree: &Path, top: &RelPath) -> Result<Vec<Fix>> {
    let mut found = fixes(base, tree, [top])?;
    // Git directories for those are made where they are looked at themselves.
    let others = fixes(base, tree, &work_trees(base, top)).unwrap_or_default();
    found.extend(others.into_iter().filter(|fix| matches!(fix, Fix::Write { .. })));
    let mut seen = std::collections::HashSet::new();
    found.retain(|fix| seen.insert(fix.at().clone()));
    Ok(found)
}

/// The directories right below the top with a `.git` that is no directory.
fn below_the_top(base: &Path) -> Vec<RelPath> {
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let looked_into = dirs.filter(|dir| dir.file_name() != ".git").take(LOOKED_INTO);
    let leads_away =
        |dir: &fs::DirEntry| fs::symlink_metadata(dir.path().join(".git")).is_ok_and(|stat| !stat.is_dir());
    looked_into.filter(leads_away).map(|dir| RelPath::root().join(&dir.file_name())).collect()
}

fn fixes_of(base: &Path, tree: &Path, top: &RelPath, repo: Repo, fixes: &mut Vec<Fix>) -> Result<()> {
    let refuse = |why: &dyn std::fmt::Display| {
        let message = format!("a fork cannot have a git directory of its own: {why}; the repository is");
        Err(Error::new(Kind::Git, message).at(&repo.top))
    };
    let inside = |path: &Path| path.starts_with(base);
    let elsewhere = repo.elsewhere()?;
    for part in &elsewhere {
        if matches!(part, Elsewhere::WorkTree(_) | Elsewhere::Part(_)) {
            return refuse(part);
        }
    }
    let borrows = elsewhere.iter().any(|part| matches!(part, Elsewhere::Alternate(_)));
    let absolute_tree = repo.core_worktree()?.is_some_and(|path| path.is_absolute());
    let common = if repo.is_linked() { read(&repo.git_dir.join("commondir")).unwrap_or_default() } else { vec![] };
    let away = !inside(&repo.git_dir) || !inside(&repo.common_dir) || common.starts_with(b"/");
    let at = top.join(OsStr::new(".git"));
    if borrows || absolute_tree || away {
        if repo.is_linked() && repo.has_reftable() {
            return refuse(&"it is a linked work tree of a repository that keeps its refs in reftables");
        }
        fixes.push(Fix::Own { at, repo });
        return Ok(());
    }
    if repo.dot_git != DotGit::File {
        return Ok(());
    }
    // The git directory is in the tree too; what may still be wrong is that it is named from the root.
    let file = repo.top.join(".git");
    if read(&file).context("cannot read", &file)?.starts_with(b"gitdir: /") {
        let mut content = b"gitdir: ".to_vec();
        content.extend_from_slice(relative(&repo.top, &repo.git_dir).as_os_str().as_bytes());
        content.push(b'\n');
        fixes.push(Fix::Write { at: at.clone(), content });
    }
    if repo.is_linked() {
        let entry = repo.git_dir.strip_prefix(base).ok().and_then(RelPath::new).expect("it is inside, see above");
        let mut content = tree.join(&at).into_os_string().as_bytes().to_vec();
        content.push(b'\n');
        fixes.push(Fix::Write { at: entry.join(OsStr::new("gitdir")), content });
    }
    Ok(())
}

/// The way from one directory to another; both are absolute and without links.
fn relative(from: &Path, to: &Path) -> PathBuf {
    let common = from.components().zip(to.components()).take_while(|(a, b)| a == b).count();
    let up = from.components().count() - common;
    std::iter::repeat_n(OsStr::new(".."), up).chain(to.iter().skip(common)).collect()
}

/// Makes a git directory at `dest`, which must not exist, that has everything of `repo` and needs nothing of it.
///
/// Refs come before objects, so that what the refs name is there. Locks are left out: their holders are not in here.
pub fn build(repo: &Repo, dest: &Path, reflink: bool) -> Result<()> {
    let linked = repo.is_linked();
    let objects = RelPath::root().join(OsStr::new("objects"));
    copy_dir(&repo.common_dir, dest, reflink, &|path| {
        *path == objects || is_lock(path) || (linked && is_per_work_tree(path))
    })?;
    if linked {
        let part = dest.join("treefork-part");
        copy_dir(&repo.git_dir, &part, reflink, &|path| {
            is_lock(path) || matches!(path.as_bytes(), b"commondir" | b"gitdir" | b"locked")
        })?;
        merge_into(&part, dest)?;
    }
    let own = dest.join("objects");
    copy_dir(&repo.common_dir.join("objects"), &own, reflink, &|path| is_temporary(path))?;
    for (n, borrowed) in alternates(&repo.common_dir)?.iter().enumerate() {
        let part = dest.join(format!("treefork-borrowed-{n}"));
        // Their indexes of packs and commits speak of their own packs only.
        copy_dir(borrowed, &part, reflink, &|path| {
            is_temporary(path) || path.as_bytes() == b"info" || path.as_bytes().starts_with(b"pack/multi-pack-index")
        })?;
        merge_into(&part, &own)?;
    }
    remove_if_there(&own.join("info/alternates"))?;
    settle(dest)
}

/// Makes the configuration right for a git directory that stands in its own work tree.
fn settle(dest: &Path) -> Result<()> {
    configure(&dest.join("config"), &["--unset-all", "core.worktree"])?;
    configure(&dest.join("config"), &["--bool", "core.bare", "false"])?;
    let own = dest.join("config.worktree");
    if own.exists() {
        configure(&own, &["--unset-all", "core.worktree"])?;
        configure(&own, &["--unset-all", "core.bare"])?;
    }
    Ok(())
}

/// What of a common directory belongs to its main work tree alone (gitrepository-layout(5)).
fn is_per_work_tree(path: &RelPath) -> bool {
    const SHARED_FILES: [&[u8]; 4] = [b"config", b"packed-refs", b"description", b"shallow"];
    const SHARED_DIRS: [&[u8]; 12] = [
        b"objects",
        b"refs",
        b"logs",
        b"info",
        b"hooks",
        b"branches",
        b"remotes",
        b"lfs",
        b"rr-cache",
        b"annex",
        b"svn",
        b"reftable",
    ];
    let bytes = path.as_bytes();
    let first = bytes.split(|&b| b == b'/').next().unwrap_or_default();
    if first.len() == bytes.len() {
        return !SHARED_FILES.contains(&bytes) && !SHARED_DIRS.contains(&bytes);
    }
    let rest = bytes.strip_prefix(b"logs/").unwrap_or(bytes);
    matches!(rest, b"HEAD" | b"refs/bisect" | b"refs/worktree" | b"refs/rewritten" | b"info/sparse-checkout")
}

fn is_lock(path: &RelPath) -> bool {
    let name = path.file_name().unwrap_or_default().as_bytes();
    name.ends_with(b".lock") || name.starts_with(b"fsmonitor--daemon")
}

fn is_temporary(path: &RelPath) -> bool {
    path.file_name().unwrap_or_default().as_bytes().starts_with(b"tmp_") || is_lock(path)
}

fn copy_dir(from: &Path, to: &Path, reflink: bool, skip: &(dyn Fn(&RelPath) -> bool + Sync)) -> Result<()> {
    fs::create_dir(to).context("cannot make", to)?;
    let options = copy::Options {
        root: from,
        reflink,
        symlinks: Symlinks::Keep,
        skip: &|path, _| skip(path),
        threads: copy::default_threads(),
        watch: &|_| ControlFlow::Continue(()),
        observe: &|_, _, _| {},
    };
    let source = open_root(from).context("cannot open", from)?;
    let target = open_root(to).context("cannot open", to)?;
    copy::tree(source.as_fd(), target.as_fd(), &options).map(drop)
}

/// Moves everything from one directory into another that may have some of it already; what is moved wins.
fn merge_into(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).context("cannot read", from)? {
        let entry = entry.context("cannot read", from)?;
        let target = to.join(entry.file_name());
        let both_dirs = entry.path().is_dir() && target.is_dir();
        if both_dirs {
            merge_into(&entry.path(), &target)?;
        } else {
            fs::rename(entry.path(), &target).context("cannot move to", &target)?;
        }
    }
    fs::remove_dir(from).context("cannot remove", from)
}

fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e).context("cannot remove", path),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_linked_work_tree_shares() {
        let per_work_tree = |path: &str| is_per_work_tree(&RelPath::new(Path::new(path)).unwrap());
        for own in ["HEAD", "index", "MERGE_HEAD", "rebase-merge", "worktrees", "modules", "logs/HEAD", "refs/bisect"] {
            assert!(per_work_tree(own), "{own}");
        }
        for shared in ["config", "packed-refs", "refs", "refs/heads/HEAD", "logs/refs/heads/x", "info/exclude", "lfs/x"]
        {
            assert!(!per_work_tree(shared), "{shared}");
        }
    }

    #[test]
    fn ways_between_directories() {
        let way = |from: &str, to: &str| relative(Path::new(from), Path::new(to));
        assert_eq!(way("/a/b/wt", "/a/b/.git/worktrees/wt"), Path::new("../.git/worktrees/wt"));
        assert_eq!(way("/a/b", "/a/b/.bare"), Path::new(".bare"));
    }
}
