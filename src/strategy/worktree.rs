//! Forks that are linked work trees: HEAD and nothing else, unless the uncommitted changes are asked for.
//!
//! For helpers that read: the fork shares the repository of its base, so a commit in it is seen there at once. Links
//! are git's to make; `confine` and `skip` take those away that are not to be there.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::{Guarantees, Made, Site, Strategy, Way, Wishes};
use crate::error::{Context, Error, Kind, Result};
use crate::git::{Git, Repo, dirty, worktree};
use crate::layer::hidden::Hidden;
use crate::names::RelPath;
use crate::sys::open_root;

/// The strategy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Worktree;

impl Strategy for Worktree {
    fn way(&self) -> Way {
        Way::Worktree
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            frozen_against_merges: true,
            frozen_against_drift: true,
            own_git: false,
            same_identity: false,
            cost: "O(tracked files)",
        }
    }

    fn probe(&self, site: &Site) -> Result<()> {
        let repo = repo(site)?;
        if Git::new(&repo)?.head()?.commit.is_none() {
            return Err(Error::new(Kind::Git, "there is no commit yet in").at(&site.base));
        }
        Ok(())
    }

    fn create(&self, site: &Site, wishes: &Wishes) -> Result<Made> {
        let repo = repo(site)?;
        let tree = site.tree();
        let fork = worktree::add(&repo, &tree, &locks(site), &wishes.cancel)?;
        let mut made = Made::default();
        if wishes.dirty {
            made.advisories.extend(dirty::bring(&Git::new(&repo)?.until(&wishes.cancel), &fork)?);
        }
        thin_out(&tree, &fork, &site.hide.of(&tree)?)?;
        Ok(made)
    }

    /// Takes the entry out of the repository; where that is gone, nothing knows of the fork any more.
    fn destroy(&self, site: &Site) -> Result<()> {
        match Repo::at(&site.base) {
            Ok(Some(repo)) => worktree::remove(&repo, &site.tree(), &site.dir.join("removed"), &locks(site)),
            Ok(None) | Err(_) => Ok(()),
        }
    }

    /// Changed files, or a commit that no ref of the repository has.
    fn is_changed(&self, site: &Site) -> Result<Option<bool>> {
        let Some(repo) = Repo::at(&site.tree())? else { return Ok(None) };
        let git = Git::new(&repo)?;
        let status = git.run(["status", "--porcelain", "-z", "--ignore-submodules=dirty"])?;
        Ok(Some(!status.is_empty() || git.run(["for-each-ref", "--count=1", "--contains=HEAD"])?.is_empty()))
    }
}

fn repo(site: &Site) -> Result<Repo> {
    Repo::at(&site.base)?.ok_or_else(|| Error::new(Kind::Unavailable, "the base is no git work tree:").at(&site.base))
}

/// Where the locks of repositories are.
fn locks(site: &Site) -> PathBuf {
    site.store.join("locks")
}

/// Takes away what the fork is not to have; git is told to overlook that.
fn thin_out(tree: &Path, fork: &Git, hidden: &Hidden) -> Result<()> {
    if hidden.is_nothing() {
        return Ok(());
    }
    let root = open_root(tree).context("cannot open", tree)?;
    let mut left_out = Vec::new();
    let tracked = fork.run(["ls-files", "-z"])?;
    // Brought over with the uncommitted changes.
    let others = fork.run(["ls-files", "-z", "--others"])?;
    let paths = |list: &[u8]| list.split(|&b| b == 0).filter_map(RelPath::from_bytes).collect::<Vec<_>>();
    let tracked = paths(&tracked).into_iter().map(|path| (path, true));
    for (path, is_tracked) in tracked.chain(paths(&others).into_iter().map(|path| (path, false))) {
        let place = tree.join(&path);
        // A submodule is a directory; what of the index is not there need not be taken away.
        let Ok(stat) = fs::symlink_metadata(&place) else { continue };
        let kind = FileType::from_raw_mode(stat.mode());
        if kind != FileType::Directory && hidden.covers(&root, &path, kind) {
            left_out.push((place, path, is_tracked));
        }
    }
    // What a link leads through has to be there until all are judged.
    let mut overlook = Vec::new();
    for (place, path, is_tracked) in left_out {
        fs::remove_file(&place).context("cannot remove", &place)?;
        // Directories of which nothing else is left.
        let _ = place.ancestors().skip(1).take_while(|dir| *dir != tree).try_for_each(fs::remove_dir);
        if is_tracked {
            overlook.extend_from_slice(path.as_bytes());
            overlook.push(0);
        }
    }
    if !overlook.is_empty() {
        fork.run_with(["update-index", "--skip-worktree", "-z", "--stdin"], &overlook)?;
    }
    Ok(())
}
