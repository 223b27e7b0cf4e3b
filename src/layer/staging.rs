//! The staging directory of a fork: objects are made here, complete with their marks, and renamed into place.
//!
//! It also makes whiteouts. The cheapest is one more hard link to a whiteout that is there already, as the kernel's
//! overlay does it; where character devices cannot be made at all, the attribute form is used.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{OFlags, XattrFlags};
use rustix::io::Errno;

use super::marks;
use crate::sys::calls::{self, Dir};
use crate::sys::{At, Stat};

/// The name of the staging directory in the work area.
pub const DIR: &str = "tmp";
/// The whiteout that others are linked to.
const TEMPLATE: &str = "whiteout";

/// The staging directory.
#[derive(Debug)]
pub struct Staging {
    dir: OwnedFd,
    next: AtomicU64,
    devices: bool,
    made: OnceLock<Made>,
}

/// What objects get that are made here, whatever is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The permissions that are taken away.
    pub umask: u32,
}

impl Made {
    /// The permissions to make a copy of `original` with: its own, where nothing is in their way and whoever owns the copy
    /// may do this much to it until it is complete (an ordinary user cannot mark what he may not write); else that much.
    pub fn mode_of(self, original: &Stat, least: u32) -> u32 {
        let wanted = original.mode & 0o7777;
        let as_wanted = wanted & !0o777 == 0 && wanted & least == least && wanted & self.umask == 0;
        if as_wanted { wanted } else { least }
    }
}

impl Staging {
    /// Opens the staging directory of a work area, made when missing and emptied of what a crash left in it.
    pub fn open(work: &OwnedFd) -> Result<Self, Errno> {
        let dir = super::area(work, DIR)?;
        inherits_nothing(&dir)?;
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                remove_tree(At::new(&dir, name))?;
            }
        }
        let devices = match At::new(&dir, TEMPLATE).mknod(rustix::fs::FileType::CharacterDevice.as_raw_mode(), 0) {
            Ok(()) => true,
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL) => false,
            Err(e) => return Err(e),
        };
        Ok(Self { dir, next: AtomicU64::new(0), devices, made: OnceLock::new() })
    }

    /// What objects get that are made here: tried out when it is first asked for.
    pub fn made(&self) -> Result<Made, Errno> {
        if let Some(made) = self.made.get() {
            return Ok(*made);
        }
        let name = self.name();
        let file = self.at(&name).create(OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, 0o777)?;
        let stat = Stat::of(file.as_fd());
        self.at(&name).unlink()?;
        let Stat { uid, gid, mode, .. } = stat?;
        Ok(*self.made.get_or_init(|| Made { uid, gid, umask: 0o777 & !mode }))
    }

    /// A name that is free here.
    pub fn name(&self) -> OsString {
        format!("{}", self.next.fetch_add(1, Ordering::Relaxed)).into()
    }

    /// The entry of that name here.
    pub fn at<'a>(&'a self, name: &'a OsStr) -> At<'a> {
        At::new(&self.dir, name)
    }

    /// Whether whiteouts are devices here (else they have the attribute form, and the directory that gets one has to be
    /// marked first).
    pub fn whiteouts_are_devices(&self) -> bool {
        self.devices
    }

    /// Makes a whiteout at a name that is free.
    pub fn whiteout(&self, to: At<'_>) -> Result<(), Errno> {
        if !self.devices {
            drop(to.create(OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, 0o600)?);
            return to.set_xattr(OsStr::new(marks::WHITEOUT), b"y", XattrFlags::empty());
        }
        match At::new(&self.dir, TEMPLATE).link_to(to) {
            // ext4 ends at 65,000 links: go on with a fresh template.
            Err(Errno::MLINK) => {
                let fresh = self.name();
                self.at(&fresh).mknod(rustix::fs::FileType::CharacterDevice.as_raw_mode(), 0)?;
                self.at(&fresh).rename(At::new(&self.dir, TEMPLATE))?;
                At::new(&self.dir, TEMPLATE).link_to(to)
            }
            other => other,
        }
    }

    /// Makes a whiteout here, to be renamed or exchanged into place.
    pub fn staged_whiteout(&self) -> Result<OsString, Errno> {
        let name = self.name();
        self.whiteout(self.at(&name))?;
        Ok(name)
    }

    /// Removes what is staged under a name, directories with all that is in them.
    pub fn discard(&self, name: &OsStr) -> Result<(), Errno> {
        remove_tree(self.at(name))
    }
}

/// Sees to it that what is made in a directory takes after nothing: neither the group nor an access list that the store may
/// have got from a directory above it.
fn inherits_nothing(dir: &OwnedFd) -> Result<(), Errno> {
    if Stat::of(dir.as_fd())?.mode & 0o2000 != 0 {
        calls::fchmod(dir, rustix::fs::Mode::RWXU)?;
    }
    let (at, list) = (At::object(dir), OsStr::new(marks::DEFAULT_ACL));
    if at.xattr(list)?.is_some() { at.remove_xattr(list) } else { Ok(()) }
}

/// Removes an object that only we can see, whatever it is. Never follows a link and never leaves a directory behind
/// for lack of permission bits.
pub(crate) fn remove_tree(at: At<'_>) -> Result<(), Errno> {
    match at.unlink() {
        Err(Errno::ISDIR | Errno::PERM) => {}
        other => return other,
    }
    match at.rmdir() {
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        other => return other,
    }
    let dir = match at.open(OFlags::RDONLY | OFlags::DIRECTORY) {
        Err(Errno::ACCESS) => {
            at.chmod(0o700)?;
            at.open(OFlags::RDONLY | OFlags::DIRECTORY)?
        }
        other => other?,
    };
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        match remove_tree(At::new(&dir, name)) {
            Err(Errno::ACCESS) => {
                at.chmod(0o700)?;
                remove_tree(At::new(&dir, name))?;
            }
            other => other?,
        }
    }
    at.rmdir()
}
