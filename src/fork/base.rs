//! Which directories can be forked from this store: the checks before anything is made.
//!
//! Two dangers shape them. A fork that showed up inside its own base, or a server that read one of its own mounts,
//! would hang; and a process left in a directory whose fork is gone must never find another git work tree further up.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::Base;
use crate::error::{Context, Error, Kind, Result};
use crate::server::MOUNT_KIND;
use crate::sys::{Stat, calls, mount_above};

/// Checks that `path` can be forked with the store at `store` (absolute, without symbolic links).
///
/// # Errors
/// `NotFound` where there is no such directory, `Usage` where it is no directory or lies where it must not, `Io` where
/// it cannot be read.
pub fn check(path: &Path, store: &Path) -> Result<Base> {
    let root = match fs::canonicalize(path) {
        Ok(root) => root,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let error = Error::new(Kind::NotFound, "the base does not exist:").at(path);
            return Err(error.remedy("name the directory to fork"));
        }
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => {
            return Err(Error::new(Kind::Usage, "the base lies in a fork whose mount is dead:").at(path));
        }
        Err(e) => return Err(e).context("cannot resolve the base", path),
    };
    if let Some(fork) = mount_above(&root, MOUNT_KIND).context("cannot look for mounts above", path)? {
        let error = Error::new(Kind::Usage, format!("the base lies inside the fork at {fork:?}:")).at(path);
        return Err(error.remedy("a fork has no forks: fork its base instead, which `treefork show` names"));
    }
    apart(&root, store)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = match calls::open(&root, flags, Mode::empty()) {
        Err(Errno::NOTDIR) => {
            let error = Error::new(Kind::Usage, "the base is not a directory:").at(path);
            return Err(error.remedy("name the directory to fork"));
        }
        other => other.context("cannot read the base", path)?,
    };
    calls::accessat(&dir, ".", rustix::fs::Access::EXEC_OK, rustix::fs::AtFlags::EACCESS)
        .context("cannot enter the base", path)?;
    let stat = Stat::of(std::os::fd::AsFd::as_fd(&dir)).context("cannot look at the base", path)?;
    Ok(Base::new(root, &stat))
}

/// Whether base and store keep out of each other's way. (That no fork is mounted inside the base is looked at when the fork
/// is made: see [`crate::server::refuse_any_inside`].)
fn apart(base: &Path, store: &Path) -> Result<()> {
    let refuse =
        |what: &str, remedy: &'static str| Err(Error::new(Kind::Usage, what.to_owned()).at(base).remedy(remedy));
    if base.starts_with(store) {
        return refuse(
            &format!("the base lies inside the store {store:?}:"),
            "fork another directory, or name another --store",
        );
    }
    if store.starts_with(base) {
        return refuse(&format!("the store {store:?} lies inside the base"), "name a --store that lies elsewhere");
    }
    Ok(())
}

/// Checks that no directory from the store upwards is a git work tree: a process whose fork is gone from under it would
/// find that one, and commit there.
pub fn check_store(store: &Path) -> Result<()> {
    for dir in store.ancestors() {
        let git = dir.join(".git");
        if calls::exists(&git).context("cannot look for", &git)? {
            let error = Error::new(Kind::Usage, format!("the store {store:?} lies inside the git work tree")).at(dir);
            return Err(error.remedy("name a --store that lies elsewhere"));
        }
    }
    Ok(())
}

/// Opens the root of a recorded base, making sure that it is still the directory that was forked.
///
/// # Errors
/// `NotFound` where it is gone, `Usage` where something else is at its place.
pub fn reopen(base: &Base) -> Result<PathBuf> {
    let gone = |why: &str| Error::new(Kind::NotFound, format!("the base {why}:")).at(&base.path);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = match calls::open(&base.path, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Err(gone("is gone")),
        Err(Errno::NOTDIR | Errno::LOOP) => return Err(gone("is not a directory any more")),
        other => other.context("cannot open the base", &base.path)?,
    };
    let stat = Stat::of(std::os::fd::AsFd::as_fd(&root)).context("cannot look at the base", &base.path)?;
    if stat.ident() != base.ident {
        return Err(gone("is another directory than the one that was forked, or its file system is not mounted"));
    }
    Ok(base.path.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_and_store_stay_apart() {
        let check = |base: &str, store: &str| apart(Path::new(base), Path::new(store));
        check("/b", "/s").expect("apart");
        check("/s2", "/s").expect("a longer name is another directory");
        for (base, store, says) in [
            ("/b", "/b", "inside the store"),
            ("/b", "/b/s", "lies inside the base"),
            ("/s/forks", "/s", "inside the store"),
            ("/", "/s", "lies inside the base"),
        ] {
            let error = check(base, store).expect_err(base);
            assert!(error.kind() == Kind::Usage && error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_forked_is_named() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (file, store) = (dir.path().join("f"), Path::new("/nowhere"));
        fs::write(&file, "").expect("writable");
        assert_eq!(check(&file, store).expect_err("a file").kind(), Kind::Usage);
        assert_eq!(check(&dir.path().join("none"), store).expect_err("absent").kind(), Kind::NotFound);
        check(dir.path(), store).expect("a directory");
    }

    #[test]
    fn another_directory_at_the_same_path_is_noticed() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("b");
        fs::create_dir(&path).expect("made");
        let base = check(&path, Path::new("/nowhere")).expect("a directory");
        reopen(&base).expect("still there");
        fs::rename(&path, dir.path().join("old")).expect("moved");
        assert_eq!(reopen(&base).expect_err("gone").kind(), Kind::NotFound);
        fs::create_dir(&path).expect("another one");
        assert!(reopen(&base).expect_err("another").to_string().contains("another directory"));
    }

    #[test]
    fn a_store_below_a_work_tree_is_refused() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = dir.path().join("a/b");
        check_store(&store).expect("no git here");
        fs::write(dir.path().join(".git"), "gitdir: elsewhere").expect("writable");
        assert_eq!(check_store(&store).expect_err("a work tree above").kind(), Kind::Usage);
    }
}
