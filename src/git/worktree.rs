//! Linked work trees of our own: added, filled and taken away without anything of the repository running.
//!
//! Registering and unregistering touch the repository and are done under a lock per repository; filling a new work
//! tree, which is what takes the time, touches only that work tree and is not. A bare `git worktree prune` is never
//! run: it would judge work trees that are not ours.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::command::Git;
use super::repo::Repo;
use crate::durable::{CancelToken, FileLock, Wait};
use crate::error::{Context, Error, Kind, Result};

/// Adds a work tree at `path`, an empty directory, with the files of `HEAD`, detached; git ready to run in it.
///
/// `locks` is the directory for the lock of the repository. Killed or cancelled in the middle, it leaves what [`remove`] takes away.
pub fn add(repo: &Repo, path: &Path, locks: &Path, cancel: &CancelToken) -> Result<Git> {
    let git = Git::new(repo)?.until(cancel);
    if git.head()?.commit.is_none() {
        return Err(Error::new(Kind::Git, "there is no commit yet in").at(&repo.top));
    }
    let lock = lock(repo, locks, "adding a work tree", cancel)?;
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
    let _lock = lock(repo, locks, "removing a work tree", &CancelToken::new())?;
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
    let dot_git = path.join(".git");
    let list = repo.common_dir.join("worktrees");
    let entries = match fs::read_dir(&list) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).context("cannot read", list),
    };
    for entry in entries {
        let entry = entry.context("cannot read", &list)?.path();
        let Ok(text) = fs::read(entry.join("gitdir")) else { continue };
        if text.trim_ascii_end() == dot_git.as_os_str().as_bytes() {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

/// One at a time for each repository, whoever asks through the same store.
fn lock(repo: &Repo, locks: &Path, what: &str, cancel: &CancelToken) -> Result<FileLock> {
    fs::create_dir_all(locks).context("cannot make", locks)?;
    let stat = fs::metadata(&repo.common_dir).context("cannot look at", &repo.common_dir)?;
    let name = format!("git-{:x}-{:x}", stat.dev(), stat.ino());
    FileLock::acquire_with(&locks.join(name), what, Wait::Forever, cancel, |_| {})
}
