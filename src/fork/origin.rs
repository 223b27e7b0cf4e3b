//! What exactly is forked: the root of the tree, where below it the caller is, and the commit it stands at.

use std::path::{Path, PathBuf};

use super::{Base, base};
use crate::error::Result;
use crate::git::Repo;

/// The base for a directory. Inside a repository that is the root of the work tree, and the second value leads from
/// there to the directory; the third is the commit of `HEAD`.
pub(super) fn of(dir: &Path, store: &Path) -> Result<(Base, PathBuf, Option<String>)> {
    let (given, repo) = look(dir, store)?;
    let Some(repo) = repo else { return Ok((given, PathBuf::new(), None)) };
    let subdir = given.path.strip_prefix(&repo.top).map(Path::to_path_buf).unwrap_or_default();
    let base = if subdir.as_os_str().is_empty() { given } else { base::check(&repo.top, store)? };
    let commit = repo.head()?.commit;
    Ok((base, subdir, commit))
}

/// The root of the base for a directory.
pub(super) fn root(dir: &Path, store: &Path) -> Result<PathBuf> {
    let (given, repo) = look(dir, store)?;
    Ok(repo.map_or(given.path, |repo| repo.top))
}

fn look(dir: &Path, store: &Path) -> Result<(Base, Option<Repo>)> {
    let given = base::check(dir, store)?;
    let repo = Repo::discover(&given.path)?;
    Ok((given, repo))
}
