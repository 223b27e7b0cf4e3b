//! The words after `-o`: those of fuse-overlayfs and of `mount(8)`.
//!
//! Each word is honoured, or asks for nothing that is not so anyway, or is refused by its name. None is dropped in
//! silence. Commas and colons in a path are written `\,` and `\:`, a backslash `\\`, as for the kernel's overlay.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use rustix::mount::MountFlags;

use crate::config;
use crate::error::{Error, Kind, Result};
use crate::overlay::Limits;

/// What the words ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Words {
    /// The lower layers, the top one first.
    pub(super) lower: Vec<PathBuf>,
    /// The private layer; without one the mount is read-only.
    pub(super) upper: Option<PathBuf>,
    /// The directory for unfinished business, on the file system of the upper.
    pub(super) work: Option<PathBuf>,
    /// The lower layers are those of a container image: see [`Lower`](crate::overlay::Lower).
    pub(super) image: bool,
    /// Flags to set.
    pub(super) set: MountFlags,
    /// Flags to clear, of those that are set by default.
    pub(super) clear: MountFlags,
    /// `allow_other` was named.
    pub(super) allow_other: bool,
    /// Change the flags of an existing mount instead.
    pub(super) remount: bool,
    /// The source to show.
    pub(super) source: Option<OsString>,
    /// How many threads, where named.
    pub(super) threads: Option<usize>,
    /// What the upper may take on the disk.
    pub(super) limits: Limits,
}

/// What is so in any case, or may be but need not: asking for it asks for nothing.
const GRANTED: [&str; 22] = [
    "default_permissions",
    "defaults",
    "clone_fd",
    "volatile",
    "static_nlink",
    "userxattr",
    "redirect_dir=on",
    "xino=on",
    "xino=auto",
    "index=on",
    "metacopy=off",
    "nfs_export=off",
    "fsync=1",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "nouser",
    "relatime",
    "norelatime",
    "lazytime",
    "subtype=treefork",
];

/// Words that the kernel shows for a mount and that nobody can ask for.
const SHOWN: [&[u8]; 5] = [b"user_id=", b"group_id=", b"rootmode=", b"max_read=", b"blksize="];

/// Words of `mount(8)`: what they set, what they clear.
const FLAGS: [(&str, MountFlags, MountFlags); 15] = [
    ("ro", MountFlags::RDONLY, MountFlags::empty()),
    ("rw", MountFlags::empty(), MountFlags::RDONLY),
    ("dev", MountFlags::empty(), MountFlags::NODEV),
    ("nodev", MountFlags::NODEV, MountFlags::empty()),
    ("suid", MountFlags::empty(), MountFlags::NOSUID),
    ("nosuid", MountFlags::NOSUID, MountFlags::empty()),
    ("exec", MountFlags::empty(), MountFlags::NOEXEC),
    ("noexec", MountFlags::NOEXEC, MountFlags::empty()),
    ("atime", MountFlags::empty(), MountFlags::NOATIME),
    ("noatime", MountFlags::NOATIME, MountFlags::empty()),
    ("diratime", MountFlags::empty(), MountFlags::NODIRATIME),
    ("nodiratime", MountFlags::NODIRATIME, MountFlags::empty()),
    ("sync", MountFlags::SYNCHRONOUS, MountFlags::empty()),
    ("async", MountFlags::empty(), MountFlags::SYNCHRONOUS),
    ("dirsync", MountFlags::DIRSYNC, MountFlags::empty()),
];

impl Words {
    /// Reads the arguments of all `-o`, the later word winning over the earlier.
    pub(super) fn parse(arguments: &[OsString]) -> Result<Self> {
        let (set, clear) = (MountFlags::empty(), MountFlags::empty());
        let (lower, upper, work, source, threads) = (vec![], None, None, None, None);
        let mut shown = None;
        let (image, allow_other, remount, limits) = (false, false, false, Limits::default());
        let mut words = Self { lower, upper, work, image, set, clear, allow_other, remount, source, threads, limits };
        for argument in arguments {
            for word in split(argument.as_bytes(), b',').filter(|word| !word.is_empty()) {
                if SHOWN.iter().any(|start| word.starts_with(start)) {
                    shown = Some(word);
                } else {
                    words.take(word)?;
                }
            }
        }
        match shown {
            // `mount -o remount` repeats what /proc/mounts says of the mount.
            Some(word) if !words.remount => Err(refused(word)),
            _ => Ok(words),
        }
    }

    fn take(&mut self, word: &[u8]) -> Result<()> {
        let (key, value) = match word.iter().position(|&b| b == b'=') {
            Some(at) => (&word[..at], Some(&word[at + 1..])),
            None => (word, None),
        };
        match (key, value) {
            (b"lowerdir", Some(list)) => self.lower = layers(list)?,
            (b"upperdir", Some(path)) => self.upper = Some(path_of("upperdir", path)?),
            (b"workdir", Some(path)) => self.work = Some(path_of("workdir", path)?),
            (b"fsname", Some(name)) => self.source = Some(unescape(name)),
            (b"threaded", Some(b"0")) => self.threads = Some(1),
            (b"threaded", Some(b"1")) => self.threads = None,
            (b"max_threads", Some(number)) => self.threads = Some(count(number, word)?),
            (b"max_size", Some(size)) => self.limits.max_size = Some(size_of(size, word)?),
            (b"max_files", Some(number)) => self.limits.max_files = Some(files(number, word)?),
            (b"image_whiteouts", None) => self.image = true,
            (b"allow_other", None) => self.allow_other = true,
            (b"remount", None) => self.remount = true,
            _ => self.take_flag(word)?,
        }
        Ok(())
    }

    fn take_flag(&mut self, word: &[u8]) -> Result<()> {
        if let Some((_, set, clear)) = FLAGS.iter().find(|flag| flag.0.as_bytes() == word) {
            self.set = (self.set | *set) & !*clear;
            self.clear = (self.clear | *clear) & !*set;
            return Ok(());
        }
        // Remarks for other programs, as fstab has them.
        let remark = [&b"x-"[..], b"X-", b"comment=", b"user="].iter().any(|start| word.starts_with(start));
        if remark || GRANTED.iter().any(|granted| granted.as_bytes() == word) { Ok(()) } else { Err(refused(word)) }
    }
}

fn refused(word: &[u8]) -> Error {
    let word = OsStr::from_bytes(word).display().to_string();
    Error::new(Kind::Usage, format!("the mount option {word:?} cannot be honoured"))
}

fn count(number: &[u8], word: &[u8]) -> Result<usize> {
    let number = std::str::from_utf8(number).ok().and_then(|n| n.parse().ok());
    number.filter(|n| (1..=64).contains(n)).ok_or_else(|| refused(word))
}

fn size_of(size: &[u8], word: &[u8]) -> Result<u64> {
    let size = std::str::from_utf8(size).map_err(|_| refused(word))?;
    config::size(size).map_err(|why| refused(word).because(why))
}

fn files(number: &[u8], word: &[u8]) -> Result<u64> {
    let number = std::str::from_utf8(number).ok().and_then(|n| n.parse().ok());
    number.filter(|&n| n > 0).ok_or_else(|| refused(word))
}

fn layers(list: &[u8]) -> Result<Vec<PathBuf>> {
    split(list, b':').map(|layer| path_of("lowerdir", layer)).collect()
}

fn path_of(option: &str, path: &[u8]) -> Result<PathBuf> {
    if path.is_empty() {
        return Err(Error::new(Kind::Usage, format!("{option} holds an empty path")));
    }
    Ok(unescape(path).into())
}

/// The pieces between the separators that no backslash stands before. The backslashes stay.
fn split(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut escaped = false;
    text.split(move |&byte| {
        let ends = byte == separator && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

/// Takes each backslash away that makes the next byte an ordinary one.
fn unescape(text: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'\\' => plain.extend(bytes.next()),
            _ => plain.push(byte),
        }
    }
    OsString::from_vec(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Words> {
        Words::parse(&[text.into()])
    }

    #[test]
    fn layers_with_commas_colons_and_backslashes() {
        let words = parse(r"lowerdir=/a\:b:/c\,d:/e\\f,upperdir=u\:u,workdir=w").expect("all known");
        assert_eq!(words.lower, [r"/a:b", "/c,d", r"/e\f"].map(PathBuf::from));
        assert_eq!(words.upper, Some("u:u".into()));
        assert_eq!(words.work, Some("w".into()));
        let bytes = OsString::from_vec(b"lowerdir=/\xff".to_vec());
        assert_eq!(Words::parse(&[bytes]).expect("bytes").lower[0].as_os_str().as_bytes(), b"/\xff");
    }

    #[test]
    fn the_later_word_wins() {
        let words = parse("rw,dev,suid,ro,nosuid").expect("all known");
        assert_eq!(words.set, MountFlags::RDONLY | MountFlags::NOSUID);
        assert_eq!(words.clear, MountFlags::NODEV);
        let words = Words::parse(&["lowerdir=/a".into(), "lowerdir=/b,threaded=0".into()]).expect("all known");
        assert_eq!((words.lower, words.threads), (vec!["/b".into()], Some(1)));
        let words = parse("max_size=1G,max_files=7,max_size=64K").expect("all known");
        assert_eq!(words.limits, Limits { max_size: Some(64 << 10), max_files: Some(7) });
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        for word in [
            "squash_to_root",
            "context=\"x\"",
            "uidmapping=0:1:2",
            "noacl",
            "timeout=5",
            "lowerdir",
            "frob",
            "max_files=0",
            "max_size=much",
        ] {
            let refusal = parse(&format!("rw,{word},ro")).expect_err(word);
            assert_eq!(refusal.kind(), Kind::Usage);
            assert!(refusal.to_string().contains(&format!("{word:?}")), "{refusal}");
        }
        assert!(parse("lowerdir=/a::/b").is_err(), "data-only layers");
        assert!(parse("rw,nofail,x-systemd.automount,_netdev,volatile,,").is_ok());
    }
}
