//! Forks that are linked work trees: HEAD and nothing else, unless the uncommitted changes are asked for.
//!
//! For helpers that read: the fork shares the repository of its base, so a commit in it is seen there at once. Links
//! are git's to make; `confine` and `skip` take those away that are not to be there.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Guarantees, Made, Site, Strategy, Symlinks, Way, Wishes};
use crate::copy;
use crate::error::{Context, Error, Kind, Result};
use crate::git::{Git, Repo, dirty, worktree};
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
        let fork = worktree::add(&repo, &tree, &locks(site))?;
        let mut made = Made::default();
        if wishes.dirty {
            made.advisories.extend(dirty::bring(&Git::new(&repo)?, &fork)?);
        }
        if site.symlinks != Symlinks::Keep {
            thin_out(&tree, &fork, site.symlinks)?;
        }
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

/// Takes away the links that the fork is not to have; git is told to overlook that.
fn thin_out(tree: &Path, fork: &Git, symlinks: Symlinks) -> Result<()> {
    let root = open_root(tree).context("cannot open", tree)?;
    let mut hidden = Vec::new();
    for path in links(fork)? {
        let place = tree.join(&path);
        let Ok(target) = fs::read_link(&place) else { continue };
        if symlinks == Symlinks::Skip || copy::leads_outside(&root, tree, &path, target.as_os_str()) {
            fs::remove_file(&place).context("cannot remove", &place)?;
            hidden.extend_from_slice(path.as_bytes());
            hidden.push(0);
        }
    }
    if !hidden.is_empty() {
        fork.run_with(["update-index", "--skip-worktree", "-z", "--stdin"], &hidden)?;
    }
    Ok(())
}

/// The tracked links.
fn links(fork: &Git) -> Result<Vec<RelPath>> {
    let list = fork.run(["ls-files", "-z", "--stage"])?;
    // `<mode> <object> <stage>\t<path>`
    let path = |entry: &[u8]| {
        let tab = entry.iter().position(|&b| b == b'\t')?;
        entry.starts_with(b"120000 ").then(|| RelPath::from_bytes(&entry[tab + 1..]))?
    };
    Ok(list.split(|&b| b == 0).filter_map(path).collect())
}
