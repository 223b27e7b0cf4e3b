//! What is mounted where, as `/proc/self/mountinfo` has it. Reading it touches none of the mounts.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

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

/// The mount that a path without symbolic links lies on, of those given.
pub fn mount_of<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    // The longest mount point above the path; of several at one place the last hides the others.
    mounts.iter().filter(|m| path.starts_with(&m.point)).max_by_key(|m| (m.point.components().count(), m.id))
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
    fn the_root_is_mounted() {
        let mounts = mounts().expect("procfs");
        assert!(mount_of(&mounts, Path::new("/")).is_some());
        assert_eq!(mount_of(&mounts, Path::new("/proc/self")).expect("procfs").kind, "proc");
    }
}
