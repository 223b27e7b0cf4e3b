//! The marks of an upper layer: whiteouts, opaque directories, redirects, and where a copied-up object came from.
//!
//! | mark | on | form |
//! |---|---|---|
//! | whiteout | any name | character device 0:0, else an empty file with [`WHITEOUT`] in a directory with [`OPAQUE`] = `x` |
//! | opaque | directory | [`OPAQUE`] = `y` |
//! | redirect | directory | [`REDIRECT`] = path from the root of the layers below, with a leading slash |
//! | origin | file, directory | [`ORIGIN`] = [`Origin`] as text |
//! | blocks | large file that is still being copied up | [`BLOCKS`] = [`Source`](super::blocks::Source) as JSON |
//!
//! Only regular files and directories can carry `user.*` attributes; the origin of a link or a special file stands in
//! the origin directory of the fork's work area (see `docs/format.md`).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::fs::{FileType, XattrFlags};
use rustix::io::Errno;

use crate::names::RelPath;
use crate::sys::{At, Ident, Stat, Time};

/// Every attribute with this prefix is ours: invisible and unsettable from inside a fork.
pub const PREFIX: &str = "user.overlay.";
/// Hides everything below (`y`), or says that whiteouts in attribute form may stand in the directory (`x`).
pub const OPAQUE: &str = "user.overlay.opaque";
/// Where the lower entries of a renamed directory are.
pub const REDIRECT: &str = "user.overlay.redirect";
/// Makes an empty regular file a whiteout.
pub const WHITEOUT: &str = "user.overlay.whiteout";
/// What a copied-up object was in the lower.
pub const ORIGIN: &str = "user.overlay.treefork.origin";
/// Blocks of this file are still in the lower; gone once all of them are here.
pub const BLOCKS: &str = "user.overlay.treefork.blocks";

/// The access list that new objects inherit from a directory: none of our marks, but nothing in a staging area may get one.
pub const DEFAULT_ACL: &str = "system.posix_acl_default";

/// Begins the name of a whiteout in a layer of a container image: `.wh.NAME` says that there is no NAME below.
const IMAGE_WHITEOUT: &[u8] = b".wh.";
/// Makes the directory that it stands in opaque, in a layer of a container image.
pub const IMAGE_OPAQUE: &str = ".wh..wh..opq";

/// What a name in a layer of a container image hides, as its mark; `None` for a name that is an entry.
pub fn image_mark(name: &OsStr) -> Option<&OsStr> {
    name.as_bytes().strip_prefix(IMAGE_WHITEOUT).map(OsStr::from_bytes)
}

/// The name of the mark that hides a name, in a layer of a container image.
pub fn image_whiteout(name: &OsStr) -> OsString {
    OsString::from_vec([IMAGE_WHITEOUT, name.as_bytes()].concat())
}

/// The lower object that an upper object was copied from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Number and birth time of the lower object: the identity that the fork goes on showing.
    pub ident: Ident,
    /// Device of the lower object.
    pub dev: u64,
    /// The object is a base hard link: its data stands in the index, shared by all its names.
    pub indexed: bool,
    /// A directory that only became part of the upper because something below it did: its change time is still the
    /// lower's, given here.
    pub ctime: Option<Time>,
}

impl Origin {
    /// The text form: `1 <dev> <ino> <btime> <indexed> <ctime or ->`, times as `sec.nsec`.
    pub fn encode(&self) -> Vec<u8> {
        let Time { sec, nsec } = self.ident.btime;
        let ctime = self.ctime.map_or("-".into(), |t| format!("{}.{}", t.sec, t.nsec));
        format!("1 {} {} {sec}.{nsec} {} {ctime}", self.dev, self.ident.ino, u8::from(self.indexed)).into_bytes()
    }

    /// Reads the text form; `None` for anything else.
    pub fn decode(text: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(text).ok()?.split(' ');
        if words.next()? != "1" {
            return None;
        }
        let dev = words.next()?.parse().ok()?;
        let ino = words.next()?.parse().ok()?;
        let btime = decode_time(words.next()?)?;
        let indexed = match words.next()? {
            "0" => false,
            "1" => true,
            _ => return None,
        };
        let ctime = match words.next()? {
            "-" => None,
            time => Some(decode_time(time)?),
        };
        words.next().is_none().then_some(Self { ident: Ident { ino, btime }, dev, indexed, ctime })
    }
}

fn decode_time(text: &str) -> Option<Time> {
    let (sec, nsec) = text.split_once('.')?;
    Some(Time { sec: sec.parse().ok()?, nsec: nsec.parse().ok()? })
}

/// Whether an entry of an upper directory is a whiteout.
///
/// `attribute_form` says whether the directory is marked to hold whiteouts in attribute form; only then an empty
/// regular file costs a look at its attributes.
pub fn is_whiteout(entry: At<'_>, stat: &Stat, attribute_form: bool) -> Result<bool, Errno> {
    match stat.file_type() {
        FileType::CharacterDevice => Ok(stat.rdev == 0),
        FileType::RegularFile if attribute_form && stat.size == 0 => Ok(entry.xattr(OsStr::new(WHITEOUT))?.is_some()),
        _ => Ok(false),
    }
}

/// What an upper directory says about the lower directories of its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirMarks {
    /// Nothing below shows through.
    pub opaque: bool,
    /// Whiteouts in attribute form may stand in it.
    pub attribute_whiteouts: bool,
    /// The lower entries are those of this path instead, from the root of the layers below.
    pub redirect: Option<RelPath>,
    /// What it was copied from.
    pub origin: Option<Origin>,
}

impl DirMarks {
    /// Reads the marks of a directory. A redirect that is not an absolute path without `..` is `EIO`: nothing that we
    /// or the kernel wrote, and following it could lead anywhere.
    pub fn read(dir: At<'_>) -> Result<Self, Errno> {
        let mut marks = Self::default();
        for attribute in dir.xattrs()? {
            match attribute.to_str() {
                Some(OPAQUE) => match dir.xattr(&attribute)?.as_deref() {
                    Some(b"y") => marks.opaque = true,
                    Some(b"x") => marks.attribute_whiteouts = true,
                    _ => {}
                },
                Some(REDIRECT) => {
                    let path = dir.xattr(&attribute)?.unwrap_or_default();
                    marks.redirect = Some(redirect_path(&path).ok_or(Errno::IO)?);
                }
                Some(ORIGIN) => marks.origin = read_origin(dir)?,
                _ => {}
            }
        }
        Ok(marks)
    }
}

fn redirect_path(bytes: &[u8]) -> Option<RelPath> {
    let rest = bytes.strip_prefix(b"/")?;
    RelPath::new(Path::new(&OsString::from_vec(rest.to_vec())))
}

/// The origin mark of a regular file or directory, if it has a readable one.
pub fn read_origin(entry: At<'_>) -> Result<Option<Origin>, Errno> {
    Ok(entry.xattr(OsStr::new(ORIGIN))?.and_then(|text| Origin::decode(&text)))
}

/// Looks at the marks of an object in an upper, or of what is in it, or changes them, whatever its permissions.
///
/// The kernel lets an ordinary user do so only where he may read, or write, the object itself. In a fork there may be what
/// its owner may not: that takes a moment with other permissions, and the call is made again. Not for objects of a base,
/// which are not ours to change.
pub fn of_upper<T>(at: At<'_>, mut call: impl FnMut(At<'_>) -> Result<T, Errno>) -> Result<T, Errno> {
    match call(at) {
        Err(Errno::ACCESS) if !rustix::process::geteuid().is_root() => {
            let stat = at.stat()?;
            let mode = stat.mode;
            at.chmod(mode | if stat.is_dir() { 0o700 } else { 0o600 }).map_err(|_| Errno::ACCESS)?;
            let called = call(at);
            at.chmod(mode)?;
            called
        }
        other => other,
    }
}

/// Marks a regular file or directory with what it was copied from.
pub fn set_origin(entry: At<'_>, origin: &Origin) -> Result<(), Errno> {
    let text = origin.encode();
    of_upper(entry, |entry| entry.set_xattr(OsStr::new(ORIGIN), &text, XattrFlags::empty()))
}

/// Marks a directory opaque.
pub fn set_opaque(dir: At<'_>) -> Result<(), Errno> {
    of_upper(dir, |dir| dir.set_xattr(OsStr::new(OPAQUE), b"y", XattrFlags::empty()))
}

/// Says where the lower entries of a renamed directory are.
pub fn set_redirect(dir: At<'_>, path: &RelPath) -> Result<(), Errno> {
    let mut value = vec![b'/'];
    value.extend_from_slice(path.as_bytes());
    of_upper(dir, |dir| dir.set_xattr(OsStr::new(REDIRECT), &value, XattrFlags::empty()))
}

/// Whether an attribute is one of our marks and hidden from the inside.
pub fn is_ours(attribute: &OsStr) -> bool {
    attribute.as_bytes().starts_with(PREFIX.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_survives_its_text() {
        let origin = Origin {
            ident: Ident { ino: 7, btime: Time { sec: -3, nsec: 999_999_999 } },
            dev: 66_305,
            indexed: true,
            ctime: Some(Time { sec: 5, nsec: 0 }),
        };
        assert_eq!(Origin::decode(&origin.encode()), Some(origin));
        for bad in ["", "2 1 1 0.0 0 -", "1 1 1 0.0 0", "1 1 1 0.0 2 -", "1 1 1 0 0 -", "1 1 1 0.0 0 - x"] {
            assert_eq!(Origin::decode(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn redirects_cannot_leave() {
        assert_eq!(redirect_path(b"/a/b").as_ref().map(RelPath::as_bytes), Some(&b"a/b"[..]));
        for bad in [&b"a"[..], b"/../x", b"/a/../../x", b""] {
            assert_eq!(redirect_path(bad), None, "{bad:?}");
        }
    }
}
