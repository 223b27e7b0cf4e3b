//! Preserved layers: the old state of what a merge changed in the base, for the forks that were made before it.
//!
//! `bases/<key>/preserved/<n>/` holds `tree/`, a layer in overlay format, and `overrides`, the attributes that each
//! preserved object and each directory around it had, one [`Stat`] as JSON a line. In the tree
//!
//! - an object that the merge replaces or removes stands itself, as one more hard link (same number, same content,
//!   nothing copied), or, where the store is on another file system, as a copy with a mark of origin;
//! - a name that the merge added is a whiteout;
//! - the directories on the way are shells with a mark of origin; one that is removed or replaced whole is opaque.
//!
//! The overrides are there because a hard link changes the change time of an object, and changing the entries of a
//! directory its modification time: the forks go on showing the old ones. The layer is complete and synced before the
//! merge changes anything.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::staging::remove_tree;
use super::tree::Layer;
use crate::error::Result;
use crate::sys::calls::{self, Dir};
use crate::sys::{At, Ident, Stat};

/// The name of the directory that a store keeps for a base with this path (canonical) and root.
///
/// Nothing in it changes when the file system is mounted again, under another device number after a reboot or when a
/// disk is plugged in elsewhere. The path tells clones of one file system apart.
pub fn key(path: &Path, root: &Ident) -> String {
    let digest = Sha256::digest(path.as_os_str().as_bytes());
    let place: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{:x}-{:x}.{:x}-{place}", root.ino, root.btime.sec, root.btime.nsec)
}

/// The layer itself, in the directory of a preserved layer.
pub const TREE: &str = "tree";
/// The attributes, in the directory of a preserved layer.
pub const OVERRIDES: &str = "overrides";

/// Opens a preserved layer by its directory.
pub fn open(dir: &OwnedFd) -> std::result::Result<Layer, Errno> {
    let root = At::new(dir, TREE).open(OFlags::PATH | OFlags::DIRECTORY)?;
    let mut layer = Layer::new(root, true, false)?;
    layer.overrides = read_overrides(dir)?;
    Ok(layer)
}

/// Writes the attributes of a preserved layer and makes them survive a power cut. To be done before anything is linked.
pub fn write_overrides<'a>(dir: &OwnedFd, stats: impl IntoIterator<Item = &'a Stat>) -> std::result::Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    let mut file = calls::File::from(At::new(dir, OVERRIDES).create(flags, 0o600)?);
    let mut text = Vec::new();
    for stat in stats {
        serde_json::to_writer(&mut text, stat).expect("numbers always serialise");
        text.push(b'\n');
    }
    file.put(&text)?;
    calls::fsync(&file)
}

/// Reads the attributes of a preserved layer, by the identity of the objects.
pub fn read_overrides(dir: &OwnedFd) -> std::result::Result<HashMap<Ident, Stat>, Errno> {
    let file = calls::File::from(At::new(dir, OVERRIDES).open(OFlags::RDONLY)?);
    let mut overrides = HashMap::new();
    for line in BufReader::new(file).split(b'\n') {
        let line = line.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        // Written whole and synced before anything depends on it: what cannot be read is damage, not a torn tail.
        let stat: Stat = serde_json::from_slice(&line).map_err(|_| Errno::IO)?;
        overrides.insert(stat.ident(), stat);
    }
    Ok(overrides)
}

/// Takes everything out of a layer but its attributes.
pub fn empty(dir: &OwnedFd) -> std::result::Result<(), Errno> {
    let tree = At::new(dir, TREE).open(OFlags::RDONLY | OFlags::DIRECTORY)?;
    for entry in Dir::read_from(&tree)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            remove_tree(At::new(&tree, name))?;
        }
    }
    calls::fsync(&tree)
}

/// Whoever knows which forks read through a base, and gives a merge the place for what it has to preserve.
pub trait Keeper {
    /// An empty directory for a layer; `None` where no other fork reads through the base. `base` is the directory that
    /// the store keeps for it.
    fn begin(&self, base: &Path) -> Result<Option<PathBuf>>;

    /// The attributes in that directory are complete. From now on objects get one more name, which changes their change
    /// time and their count of names: the forks go on showing what the attributes say.
    fn expect(&self, layer: &Path) -> Result<()>;

    /// Where the next layer will be; `None` where no other fork reads through the base.
    fn next(&self, base: &Path) -> Result<Option<PathBuf>>;

    /// The merge that this layer was made for was undone: everything in it stands in the base again. The forks read there,
    /// and nothing but its attributes is left of the layer, when this returns.
    fn withdraw(&self, layer: &Path) -> Result<()>;

    /// The layer in that directory is complete and synced: the forks read through it when this returns.
    fn complete(&self, base: &Path, layer: &Path) -> Result<()>;

    /// The merge has landed. What is recorded of the merged fork has to say so before the merge's journal is closed:
    /// whether it `stays`, reading through later layers only, or goes, with what was moved out of it.
    fn landed(&self, base: &Path, stays: bool) -> Result<()>;
}

/// There are no other forks to think of.
#[derive(Clone, Copy, Debug)]
pub struct Nobody;

impl Keeper for Nobody {
    fn begin(&self, _: &Path) -> Result<Option<PathBuf>> {
        Ok(None)
    }

    fn expect(&self, _: &Path) -> Result<()> {
        Ok(())
    }

    fn next(&self, _: &Path) -> Result<Option<PathBuf>> {
        Ok(None)
    }

    fn withdraw(&self, _: &Path) -> Result<()> {
        Ok(())
    }

    fn complete(&self, _: &Path, _: &Path) -> Result<()> {
        Ok(())
    }

    fn landed(&self, _: &Path, _: bool) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn keys_tell_bases_apart() {
        let ident = |ino, nsec| Ident { ino, btime: crate::sys::Time { sec: 1, nsec } };
        let of = |path: &str, ino, nsec| key(Path::new(path), &ident(ino, nsec));
        assert_eq!(of("/b", 2, 3), of("/b", 2, 3));
        assert_eq!(of("/b", 31, 255), "1f-1.ff-9812b0b9d61e09b9");
        for other in [of("/c", 2, 3), of("/b", 3, 3), of("/b", 2, 4)] {
            assert_ne!(other, of("/b", 2, 3));
        }
    }

    #[test]
    fn overrides_survive_the_disk() {
        let dir = tempfile::tempdir().expect("room");
        std::fs::create_dir(dir.path().join(TREE)).expect("room");
        let fd = crate::sys::open_root(dir.path()).expect("there");
        let stat = Stat::of(fd.as_fd()).expect("open");
        write_overrides(&fd, [&stat]).expect("room");
        let layer = open(&fd).expect("whole");
        assert_eq!(layer.overrides.get(&stat.ident()), Some(&stat));
        std::fs::write(dir.path().join(OVERRIDES), "{").expect("room");
        assert_eq!(open(&fd).err(), Some(Errno::IO));
    }
}
