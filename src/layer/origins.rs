//! Origins of upper objects that cannot carry `user.*` attributes: symbolic links, FIFOs, sockets, device nodes.
//!
//! `work/origin/<ino>-<sec>.<nsec>`, named after the upper object, is a symbolic link whose target is the origin as
//! text. Such objects are rare in an upper, so the whole table is held in memory.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::index::Key;
use super::marks::Origin;
use crate::sys::calls::Dir;
use crate::sys::{At, Ident};

/// The name of the table in the work area.
pub const DIR: &str = "origin";

/// The table of one fork.
#[derive(Debug)]
pub struct Origins {
    dir: OwnedFd,
    origins: Mutex<HashMap<Ident, Origin>>,
}

impl Origins {
    /// Opens the table of a work area; made when missing.
    pub fn open(work: &OwnedFd) -> Result<Self, Errno> {
        let dir = super::area(work, DIR)?;
        let mut origins = HashMap::new();
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let Some(Key(ident)) = Key::parse(name) else { continue };
            if let Some(origin) = Origin::decode(At::new(&dir, name).readlink()?.as_bytes()) {
                origins.insert(ident, origin);
            }
        }
        Ok(Self { dir, origins: Mutex::new(origins) })
    }

    /// The origin of the upper object of this identity.
    pub fn get(&self, upper: Ident) -> Option<Origin> {
        self.origins.lock().get(&upper).copied()
    }

    /// Records the origin of an upper object.
    pub fn set(&self, upper: Ident, origin: Origin) -> Result<(), Errno> {
        let text = origin.encode();
        match At::new(&self.dir, &Key(upper).file_name()).symlink(OsStr::from_bytes(&text)) {
            // A number used again, birth time and all (a file system that keeps none): the old entry is stale.
            Err(Errno::EXIST) => {
                self.remove(upper)?;
                At::new(&self.dir, &Key(upper).file_name()).symlink(OsStr::from_bytes(&text))?;
            }
            other => other?,
        }
        self.origins.lock().insert(upper, origin);
        Ok(())
    }

    /// Forgets an upper object that is gone.
    pub fn remove(&self, upper: Ident) -> Result<(), Errno> {
        if self.origins.lock().remove(&upper).is_none() {
            return Ok(());
        }
        match At::new(&self.dir, &Key(upper).file_name()).unlink() {
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    }
}
