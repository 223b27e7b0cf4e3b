//! What is mounted where. Asking touches none of the mounts.
//!
//! [`mounts`] reads all of `/proc/self/mountinfo`, which takes a millisecond for a few hundred. What making a fork asks, it
//! asks of single mounts by their numbers ([`mount_above`], [`Newer`]), or of all again where the kernel is older than that.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use super::calls;

/// One mount of this process's mount namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Number of the mount.
    pub id: u64,
    /// Device number of its file system; the minor names a FUSE connection in `/sys/fs/fuse/connections`.
    pub dev: u64,
    /// Which directory of its file system it shows: `/` unless this is a bind mount or a subvolume.
    pub root: PathBuf,
    /// Where it is.
    pub point: PathBuf,
    /// Type of the file system, with the subtype: `ext4`, `fuse.treefork`.
    pub kind: String,
    /// What is mounted: a device, or a name.
    pub source: OsString,
}

impl Mount {
    /// The minor device number: the name of a FUSE connection under `/sys/fs/fuse/connections`.
    pub fn minor(&self) -> u32 {
        rustix::fs::minor(self.dev)
    }
}

/// All mounts that this process sees, in the order in which they were made.
pub fn mounts() -> io::Result<Vec<Mount>> {
    // Room from the beginning: the kernel writes the table anew for each read.
    let mut text = Vec::with_capacity(64 * 1024);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let table = calls::open("/proc/self/mountinfo", flags, Mode::empty())?;
    // How often it is read depends on how much others have mounted: no point for faults, which are counted.
    std::fs::File::from(table).read_to_end(&mut text)?;
    Ok(text.split(|&b| b == b'\n').filter_map(parse).collect())
}

/// The device of what is mounted at a directory; `None` where nothing is. One look, however many mounts there are, and
/// one that the kernel answers by itself, also for a mount whose server is dead.
pub fn mounted_at(point: &Path) -> io::Result<Option<u64>> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = calls::statx(CWD, point, flags, StatxFlags::empty())?;
    let is_root = found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    Ok(is_root.then(|| rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor)))
}

/// The mount that a path without symbolic links lies on, of those given.
pub fn mount_of<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    // The longest mount point above the path; of several at one place the last hides the others.
    mounts.iter().filter(|m| path.starts_with(&m.point)).max_by_key(|m| (m.point.components().count(), m.id))
}

/// Where something is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The place.
    pub point: PathBuf,
    /// Type of the file system, with the subtype.
    pub kind: OsString,
}

impl From<Mount> for Mounted {
    fn from(mount: Mount) -> Self {
        Self { point: mount.point, kind: mount.kind.into() }
    }
}

/// The first mount of a kind that a path leads through, from the top. Nothing in it, and nothing below, is touched.
pub fn mount_above(path: &Path, kind: &str) -> io::Result<Option<PathBuf>> {
    match above_by_numbers(path, kind) {
        Some(found) => Ok(found),
        None => Ok(mounts()?.into_iter().find(|m| m.kind == kind && path.starts_with(&m.point)).map(|m| m.point)),
    }
}

/// The same of single mounts; the outer `None` where the kernel does not tell, or a link is on the way.
fn above_by_numbers(path: &Path, kind: &str) -> Option<Option<PathBuf>> {
    let places: Vec<&Path> = path.ancestors().collect();
    let mut last = None;
    for place in places.into_iter().rev() {
        let number = Some(number(place)?);
        if number != last {
            let mounted = about(number?).ok()?;
            if mounted.kind == kind {
                return Some(Some(mounted.point));
            }
            last = number;
        }
    }
    Some(None)
}

/// The number of the mount that a path is on, never used twice; `None` for a link, and where the kernel does not tell.
fn number(path: &Path) -> Option<u64> {
    /// `STATX_MNT_ID_UNIQUE` (since Linux 6.8).
    const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let x = calls::statx(CWD, path, flags, StatxFlags::TYPE | UNIQUE).ok()?;
    let is_link = FileType::from_raw_mode(x.stx_mode.into()) == FileType::Symlink;
    (x.stx_mask & UNIQUE.bits() != 0 && !is_link).then_some(x.stx_mnt_id)
}

/// Mounts in the order of their making, each seen once.
#[derive(Debug, Default)]
pub struct Newer {
    last: u64,
}

impl Newer {
    /// The numbers and places of those that were made since the last look, and are still there; all of them the first
    /// time. `None` where the kernel does not tell.
    pub fn look(&mut self) -> Option<Vec<(u64, Mounted)>> {
        let mut found = Vec::new();
        let mut numbers = [0; 128];
        loop {
            let count = calls::listmount(self.last, &mut numbers).ok()?;
            for &number in &numbers[..count] {
                match about(number) {
                    Ok(mounted) => found.push((number, mounted)),
                    // Gone again, or out of this process's reach.
                    Err(Errno::NOENT | Errno::PERM) => {}
                    Err(_) => return None,
                }
                self.last = number;
            }
            if count < numbers.len() {
                return Some(found);
            }
        }
    }
}

/// Where a mount is; `ENOENT` where it is gone.
pub fn about(number: u64) -> Result<Mounted, Errno> {
    // Masks and offsets of `struct statmount` in linux/mount.h.
    const POINT: u64 = 0x10;
    const TYPE: u64 = 0x20;
    const SUBTYPE: u64 = 0x100;
    let mut answer = [0; 8192];
    calls::statmount(number, POINT | TYPE | SUBTYPE, &mut answer)?;
    let told = u64::from_ne_bytes(answer[8..16].try_into().expect("eight bytes"));
    let string = |mask: u64, at: usize| {
        let start = 512 + u32::from_ne_bytes(answer[at..at + 4].try_into().expect("four bytes")) as usize;
        let text = answer.get(start..).filter(|_| told & mask != 0)?;
        Some(OsStr::from_bytes(text.split(|&b| b == 0).next()?))
    };
    let (kind, point) = (string(TYPE, 36).ok_or(Errno::NOSYS)?, string(POINT, 108).ok_or(Errno::NOSYS)?);
    let (mut kind, point) = (kind.to_os_string(), PathBuf::from(point));
    match string(SUBTYPE, 120) {
        Some(subtype) => kind.extend([OsStr::new("."), subtype]),
        // It may have none, or the kernel is older than 6.11.
        None if kind.as_bytes().starts_with(b"fuse") => {
            let all = mounts().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
            kind = all.into_iter().rfind(|mount| mount.point == point).ok_or(Errno::NOENT)?.kind.into();
        }
        None => {}
    }
    Ok(Mounted { point, kind })
}

/// One line: `36 35 98:0 /root /point rw,noatime master:1 - ext3 /dev/root rw`.
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&b| b == b' ');
    let text = |field: &[u8]| std::str::from_utf8(field).ok().map(str::to_owned);
    let id = text(fields.next()?)?.parse().ok()?;
    let dev = text(fields.nth(1)?)?;
    let (major, minor) = dev.split_once(':')?;
    let dev = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
    let root = PathBuf::from(unescape(fields.next()?));
    let point = PathBuf::from(unescape(fields.next()?));
    // Optional fields follow the options, up to a dash.
    fields.find(|field| *field == b"-")?;
    let kind = text(fields.next()?)?;
    Some(Mount { id, dev, root, point, kind, source: unescape(fields.next()?) })
}

/// Space, tab, newline and backslash are written as `\040` and so on.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let code = (first == b'\\').then(|| after.get(..3)).flatten();
        let code = code.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_lines_with_escapes_and_optional_fields() {
        let line = br"36 35 0:45 /sub /mnt/a\040b\134c rw,noatime master:1 shared:2 - fuse.treefork tree\012fork rw";
        let mount = parse(line).expect("a whole line");
        assert_eq!((mount.root.as_path(), mount.point.as_path()), (Path::new("/sub"), Path::new("/mnt/a b\\c")));
        assert_eq!((mount.kind.as_str(), mount.minor()), ("fuse.treefork", 45));
        assert_eq!(mount.source, "tree\nfork");
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn numbers_say_what_the_table_says() {
        let all: Vec<Mounted> = mounts().expect("procfs").into_iter().map(Mounted::from).collect();
        let mut newer = Newer::default();
        let Some(found) = newer.look() else {
            eprintln!("the kernel does not tell: not tested");
            return;
        };
        // Others may mount meanwhile.
        let known = found.iter().filter(|(_, mounted)| all.contains(mounted)).count();
        assert!(known > 0 && known * 2 > found.len(), "{found:?}\n{all:?}");
        assert!(newer.look().expect("told before").iter().all(|new| !found.contains(new)));
        let above = |path: &str, kind: &str| above_by_numbers(Path::new(path), kind);
        assert_eq!(above("/proc/sys/kernel", "proc"), Some(Some("/proc".into())));
        assert_eq!(above("/proc/sys/kernel", "fuse.treefork"), Some(None));
        assert_eq!(above("/proc/self/ns", "none"), None, "a link");
    }

    #[test]
    fn the_root_is_mounted() {
        let mounts = mounts().expect("procfs");
        assert!(mount_of(&mounts, Path::new("/")).is_some());
        assert_eq!(mount_of(&mounts, Path::new("/proc/self")).expect("procfs").kind, "proc");
    }
}
