//! A fork as a FUSE overlay mount: an empty upper over the base, served by the store's server.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{Guarantees, Made, Site, Strategy, Way, Wishes, elsewhere};
use crate::error::{Context, Error, Kind, Result};
use crate::fuse;
use crate::git::{index, own};
use crate::layer::blocks;
use crate::layer::manifest::{Difference, Manifest, PREPARED};
use crate::layer::marks::DirMarks;
use crate::server::{Client, Layer, MountSpec};
use crate::sys::{At, calls, open_root};

/// The overlay strategy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overlay;

impl Overlay {
    /// What the server is to mount for a fork.
    pub fn spec(site: &Site) -> MountSpec {
        MountSpec {
            id: site.id.clone(),
            base: site.base.clone(),
            base_ident: site.base_ident,
            base_dev: site.base_dev,
            layers: site.layers.iter().map(|dir| Layer { dir: dir.clone() }).collect(),
            upper: site.upper(),
            work: site.work(),
            point: site.tree(),
            created: site.created,
            hide: site.hide.clone(),
            limits: site.limits,
        }
    }

    /// Completes the large files of a fork that is not mounted, so that its upper says all that was written.
    pub fn settle(site: &Site) -> Result<()> {
        let maps = site.work().join(blocks::DIR);
        let pending = calls::names_if_any(&maps).context("cannot list", maps)?;
        if pending.is_empty() { Ok(()) } else { Client::new(&site.store).settle(&Self::spec(site)) }
    }
}

impl Strategy for Overlay {
    fn way(&self) -> Way {
        Way::Overlay
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            frozen_against_merges: true,
            frozen_against_drift: false,
            own_git: true,
            same_identity: true,
            cost: "O(1)",
        }
    }

    fn probe(&self, site: &Site) -> Result<()> {
        fuse_is_there(site.private_mount)?;
        takes_marks(&site.dir)
    }

    fn create(&self, site: &Site, _: &Wishes) -> Result<Made> {
        for dir in [site.upper(), site.work()] {
            make(&dir)?;
        }
        let fixes = own::fixes(&site.base, &site.tree(), &own::likely_tops(&site.base))?;
        if !fixes.is_empty() {
            // Before the first of them, so that an upper with something in it is never taken for work done in the fork.
            calls::File::create(&site.work().join(PREPARED)).context("cannot write in", site.work())?;
            elsewhere::in_upper(&fixes, &site.base, &site.upper(), true)?;
            Manifest::of(&site.upper())?.write_as(&site.work(), PREPARED)?;
        }
        Ok(Made { advisories: fixes.iter().filter_map(elsewhere::own_git).collect() })
    }

    fn present(&self, site: &Site, meanwhile: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        if site.private_mount {
            meanwhile()
        } else {
            Client::new(&site.store).mount_meanwhile(&Self::spec(site), meanwhile)
        }
    }

    fn destroy(&self, site: &Site) -> Result<()> {
        unmount(site, Client::discard)
    }

    fn put_away(&self, site: &Site) -> Result<()> {
        unmount(site, Client::unmount)
    }

    fn is_changed(&self, site: &Site) -> Result<Option<bool>> {
        if let Some(prepared) = Manifest::prepared(&site.work())? {
            let upper = site.upper();
            let differences = prepared.compare(&upper)?;
            return Ok(Some(differences.iter().any(|difference| !only_leads_there(&upper, difference))));
        }
        let upper = site.upper();
        let names = calls::names(&upper).context("cannot list", &upper)?;
        Ok(Some(!names.is_empty() && !is_only_an_index(&upper, &names, &site.base)?))
    }

    fn revive(&self, site: &Site) -> Result<()> {
        if site.private_mount { Ok(()) } else { Client::new(&site.store).mount(&Self::spec(site)) }
    }
}

/// Whether all that is in an upper, with these names at its top, is an index of git that records what the base's does: git
/// has looked at the files, and written down when.
fn is_only_an_index(upper: &Path, names: &[OsString], base: &Path) -> Result<bool> {
    const INDEX: &str = ".git/index";
    let git = upper.join(".git");
    let is_dir = |path: &Path| std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir());
    if names != [".git"] || !is_dir(&git) || !is_dir(&base.join(".git")) {
        return Ok(false);
    }
    if calls::names(&git).context("cannot list", &git)? != ["index"] {
        return Ok(false);
    }
    let read = |tree: &Path| {
        let path = tree.join(INDEX);
        let is_file = std::fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file());
        is_file.then(|| std::fs::read(path).ok()).flatten()
    };
    Ok(read(upper).zip(read(base)).is_some_and(|(ours, theirs)| index::records_the_same(&ours, &theirs)))
}

/// Whether something is in an upper only for the sake of what is below it.
fn only_leads_there(upper: &Path, difference: &Difference) -> bool {
    let marks = || open_root(&upper.join(&difference.path)).and_then(|dir| DirMarks::read(At::new(&dir, ".")));
    difference.now.is_some_and(|stat| stat.is_dir())
        && marks().is_ok_and(|marks| marks.origin.is_some_and(|origin| origin.ctime.is_some()))
}

fn unmount(site: &Site, end: impl FnOnce(&Client, &str) -> Result<()>) -> Result<()> {
    let ended = end(&Client::new(&site.store), &site.id);
    // Whatever the server said: a mount that outlived its server is in the way of the deletion.
    fuse::clear(&site.tree())?;
    ended
}

fn make(dir: &Path) -> Result<()> {
    calls::make_dirs(dir, Mode::RWXU).context("cannot make the directory", dir)
}

/// Whether this machine has FUSE and some way to mount it; whether that way works shows when it is tried.
fn fuse_is_there(private_mount: bool) -> Result<()> {
    let lacks = |what: String| Error::new(Kind::Unavailable, what);
    match calls::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => {}
        // The set-user-id helper opens it with the user's own rights, too.
        Err(Errno::ACCESS | Errno::PERM) => {
            return Err(
                lacks("/dev/fuse is closed to this user".into()).remedy("have root open it: chmod 666 /dev/fuse")
            );
        }
        Err(e) => return Err(lacks(format!("/dev/fuse cannot be opened: {e}"))),
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let helped = || std::env::split_paths(&path).any(|dir| dir.join("fusermount3").exists());
    if private_mount || rustix::process::geteuid().is_root() || helped() {
        return Ok(());
    }
    Err(lacks("fusermount3 is not installed".into()).remedy("install the package fuse3"))
}

/// Whether the store's file system keeps the attributes by which an upper says what it hides.
fn takes_marks(dir: &Path) -> Result<()> {
    let unused = rustix::fs::XattrFlags::empty();
    match calls::lsetxattr(dir, "user.overlay.opaque", b"y", unused) {
        Ok(()) => calls::lremovexattr(dir, "user.overlay.opaque").context("cannot remove an attribute of", dir),
        Err(e) => Err(Error::new(Kind::Unavailable, "the store's file system keeps no user attributes")
            .because(io::Error::from(e))
            .remedy("put the store on another file system with --store or TREEFORK_STORE")),
    }
}
