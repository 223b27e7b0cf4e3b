//! Linked work trees of our own: added, filled and taken away without anything of the repository running.
//!
//! Registering and unregistering touch the repository and are done under a lock per repository; filling a new work
//! tree, which is what takes the time, touches only that work tree and is not. A bare `git worktree prune` is never
//! run: it would judge work trees that are not ours.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::command::Git;
use super::read::read;
use super::repo::Repo;
use crate::durable::{self, CancelToken, FileLock, Wait};
use crate::error::{Context, Error, Kind, Result};

/// Adds a work tree at `path`, an empty directory, with the files of `HEAD`, detached; git ready to run in it.
///
/// `locks` is the directory for the lock of the repository. Killed or cancelled in the middle, it leaves what [`remove`] takes away.
pub fn add(repo: &Repo, path: &Path, locks: &Path, cancel: &CancelToken) -> Result<Git> {
    let git = Git::new(repo)?.until(cancel);
    if git.head()?.commit.is_none() {
        return Err(Error::new(Kind::Git, "there is no commit yet in").at(&repo.top));
    }
    let lock = lock(&repo.common_dir, locks, "adding a work tree", cancel)?;
    let args = ["worktree", "add", "--quiet", "--force", "--detach", "--no-checkout"];
    git.run(args.map(AsRef::as_ref).into_iter().chain([path.as_os_str(), "HEAD".as_ref()]))?;
    drop(lock);
    let path = fs::canonicalize(path).context("cannot resolve", path)?;
    let made = Repo::at(&path)?.ok_or_else(|| Error::new(Kind::Git, "git made no work tree at").at(&path))?;
    let git = git.within(&made.git_dir, &made.top);
    git.run(["reset", "--quiet", "--hard", "HEAD"])?;
    Ok(git)
}

/// Takes a work tree of ours out of its repository. Its directory is moved to `aside` first (unless it is gone), so that
/// what takes long can be deleted later. Nothing to do is success.
pub fn remove(repo: &Repo, path: &Path, aside: &Path, locks: &Path) -> Result<()> {
    if registered(repo, path)?.is_none() {
        return Ok(());
    }
    let _lock = lock(&repo.common_dir, locks, "removing a work tree", &CancelToken::new())?;
    match fs::rename(path, aside) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e).context("cannot move aside", path),
        _ => {}
    }
    let args = ["worktree", "remove", "--force", "--force"].map(AsRef::as_ref);
    let removed = Git::new(repo)?.run(args.into_iter().chain([path.as_os_str()]));
    match registered(repo, path)? {
        None => Ok(()),
        // Git refuses what it finds damaged. The entry is ours, whatever became of it.
        Some(entry) if removed.is_err() => fs::remove_dir_all(&entry).context("cannot remove", &entry),
        Some(entry) => Err(Error::new(Kind::Git, "git did not remove").at(entry)),
    }
}

/// The repository's entry for the work tree at `path`.
fn registered(repo: &Repo, path: &Path) -> Result<Option<PathBuf>> {
    // The last component need not exist any more.
    let parent = path.parent().and_then(|parent| fs::canonicalize(parent).ok());
    let path = match (parent, path.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => path.to_path_buf(),
    };
    let found = entries(&repo.common_dir)?.into_iter().find(|(_, tree)| *tree == path);
    Ok(found.map(|(entry, _)| entry))
}

/// One at a time for each repository, whoever asks through the same store; and where the repository is, for [`repositories`].
fn lock(common_dir: &Path, locks: &Path, what: &str, cancel: &CancelToken) -> Result<FileLock> {
    fs::create_dir_all(locks).context("cannot make", locks)?;
    let stat = fs::metadata(common_dir).context("cannot look at", common_dir)?;
    let name = format!("git-{:x}-{:x}", stat.dev(), stat.ino());
    let lock = FileLock::acquire_with(&locks.join(&name), what, Wait::Forever, cancel, |_| {})?;
    let place = locks.join(name + PLACE);
    if read(&place).ok().as_deref() != Some(common_dir.as_os_str().as_bytes()) {
        durable::write_atomic(&place, common_dir.as_os_str().as_bytes(), 0o600)?;
    }
    Ok(lock)
}

/// What the name of the file that says where a repository is has more than that of its lock.
const PLACE: &str = ".place";

/// The common directories of the repositories that have, or have had, work trees of ours.
pub fn repositories(locks: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(locks).into_iter().flatten().flatten();
    let places = entries.filter(|entry| entry.file_name().as_bytes().ends_with(PLACE.as_bytes()));
    let mut found: Vec<PathBuf> =
        places.filter_map(|entry| read(&entry.path()).ok()).map(|path| OsString::from_vec(path).into()).collect();
    found.sort();
    found.dedup();
    found
}

/// The entries of a repository for work trees of which `is_orphan` says that they are ours and gone; each with the path
/// of its work tree. They are taken away unless this is a `dry_run`.
pub fn orphans(
    common_dir: &Path,
    locks: &Path,
    is_orphan: &dyn Fn(&Path) -> bool,
    dry_run: bool,
) -> Result<Vec<PathBuf>> {
    let of_ours = || -> Result<Vec<(PathBuf, PathBuf)>> {
        let all = entries(common_dir)?.into_iter();
        Ok(all.filter(|(_, tree)| is_orphan(tree)).collect())
    };
    let mut found = of_ours()?;
    if !found.is_empty() && !dry_run {
        let _lock = lock(common_dir, locks, "removing what is left of work trees", &CancelToken::new())?;
        found = of_ours()?;
        for (entry, _) in &found {
            fs::remove_dir_all(entry).context("cannot remove", entry)?;
        }
        // As git does with the last one.
        let _ = fs::remove_dir(common_dir.join("worktrees"));
    }
    Ok(found.into_iter().map(|(_, tree)| tree).collect())
}

/// The entries of a repository for linked work trees, each with the path of its work tree.
fn entries(common_dir: &Path) -> Result<Vec<(PathBuf, PathBuf)>> {
    let list = common_dir.join("worktrees");
    let entries = match fs::read_dir(&list) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        Err(e) => return Err(e).context("cannot read", list),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.context("cannot read", &list)?.path();
        let Ok(text) = read(&entry.join("gitdir")) else { continue };
        let dot_git = Path::new(OsStr::from_bytes(text.trim_ascii_end()));
        found.extend(dot_git.parent().map(|tree| (entry, tree.to_path_buf())));
    }
    Ok(found)
}
