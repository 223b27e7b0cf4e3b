//! The hard-link index: files of the base with several names stay one file in the fork.
//!
//! When such a file is copied up, its data goes to `work/index/<key>`, named after the lower object, and every name of
//! it, seen now or later, leads there. A name that was changed in the fork is a hard link of it in the upper as well.
//! The number of names that the fork shows stands in `work/index/<key>.nlink`, a symbolic link whose target is the
//! count, and when it was last changed (`<count> <sec>.<nsec>`, since that changes the change time of the file): one
//! atomic step to replace, no block on disk. It exists once the file was copied up or gained or lost a name.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::staging::Staging;
use crate::sys::calls::Dir;
use crate::sys::{At, Ident, Time};

/// The name of the index in the work area.
pub const DIR: &str = "index";

/// Which lower object an entry of the index stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(pub Ident);

impl Key {
    /// The file name: `<ino>-<sec>.<nsec>` of the birth time.
    pub fn file_name(self) -> OsString {
        let Ident { ino, btime: Time { sec, nsec } } = self.0;
        format!("{ino}-{sec}.{nsec}").into()
    }

    /// The key that a file name of the index means.
    pub fn parse(name: &OsStr) -> Option<Self> {
        let (ino, rest) = name.to_str()?.split_once('-')?;
        let (sec, nsec) = rest.split_once('.')?;
        let btime = Time { sec: sec.parse().ok()?, nsec: nsec.parse().ok()? };
        Some(Self(Ident { ino: ino.parse().ok()?, btime }))
    }

    fn count_name(self) -> OsString {
        let mut name = self.file_name();
        name.push(".nlink");
        name
    }
}

/// The names of an object as the fork counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Links {
    /// How many.
    pub count: u32,
    /// When one was last added or removed; zero where none was.
    pub since: Time,
}

impl Links {
    fn encode(self) -> OsString {
        format!("{} {}.{}", self.count, self.since.sec, self.since.nsec).into()
    }

    fn decode(text: &OsStr) -> Option<Self> {
        let (count, time) = text.to_str()?.split_once(' ')?;
        let (sec, nsec) = time.split_once('.')?;
        Some(Self { count: count.parse().ok()?, since: Time { sec: sec.parse().ok()?, nsec: nsec.parse().ok()? } })
    }
}

/// What the index says of one object.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    copied: bool,
    links: Option<Links>,
}

/// The index of one fork, with what is on disk held in memory: most trees have few hard links, and a lookup of one must
/// not cost a system call more.
#[derive(Debug)]
pub struct Index {
    dir: OwnedFd,
    entries: Mutex<HashMap<Key, Entry>>,
}

impl Index {
    /// Opens the index of a work area; made when missing.
    pub fn open(work: &OwnedFd) -> Result<Self, Errno> {
        let dir = super::area(work, DIR)?;
        let mut entries: HashMap<Key, Entry> = HashMap::new();
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if let Some(stem) = name.as_bytes().strip_suffix(b".nlink") {
                let count = At::new(&dir, name).readlink()?;
                if let (Some(key), Some(count)) = (Key::parse(OsStr::from_bytes(stem)), Links::decode(&count)) {
                    entries.entry(key).or_default().links = Some(count);
                }
            } else if let Some(key) = Key::parse(name) {
                entries.entry(key).or_default().copied = true;
            }
        }
        Ok(Self { dir, entries: Mutex::new(entries) })
    }

    /// The directory of the index.
    pub fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// Whether the object was copied up: its data is in the index.
    pub fn is_copied(&self, key: Key) -> bool {
        self.entries.lock().get(&key).is_some_and(|entry| entry.copied)
    }

    /// Notes that the data of the object is in the index now.
    pub fn set_copied(&self, key: Key) {
        self.entries.lock().entry(key).or_default().copied = true;
    }

    /// How many names the object has in the fork; `None` while that is as in the lower.
    pub fn links(&self, key: Key) -> Option<Links> {
        self.entries.lock().get(&key).and_then(|entry| entry.links)
    }

    /// Records how many names the object has.
    pub fn set_links(&self, staging: &Staging, key: Key, links: Links) -> Result<(), Errno> {
        let staged = staging.name();
        staging.at(&staged).symlink(&links.encode())?;
        staging.at(&staged).rename(At::new(&self.dir, &key.count_name())).inspect_err(|_| {
            // Where that fails too, the next start clears the staging area.
            let _ = staging.discard(&staged);
        })?;
        self.entries.lock().entry(key).or_default().links = Some(links);
        Ok(())
    }

    /// Records what was recorded before.
    pub fn restore_links(&self, staging: &Staging, key: Key, before: Option<Links>) -> Result<(), Errno> {
        match before {
            Some(links) => self.set_links(staging, key, links),
            None => {
                At::new(&self.dir, &key.count_name()).unlink()?;
                self.entries.lock().entry(key).or_default().links = None;
                Ok(())
            }
        }
    }

    /// Takes the data of an object that has no name left out of the index; the count stays.
    pub fn drop_data(&self, key: Key) -> Result<(), Errno> {
        At::new(&self.dir, &key.file_name()).unlink()?;
        self.entries.lock().entry(key).or_default().copied = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_their_names() {
        let key = Key(Ident { ino: 12, btime: Time { sec: 1, nsec: 5 } });
        assert_eq!(Key::parse(&key.file_name()), Some(key));
        assert_eq!(Key::parse(OsStr::new("12-1.5.nlink")), None);
    }
}
