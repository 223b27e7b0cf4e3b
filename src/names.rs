//! Names and relative paths as types: bytes from end to end, and nothing in them that could leave a tree.

use std::borrow::Borrow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// The longest name a directory entry may have, in bytes (`NAME_MAX`). The kernel hands FUSE servers names of up to
/// 1,024 bytes, so `ENAMETOOLONG` is ours to answer.
pub const NAME_MAX: usize = 255;

/// The longest path that a call takes, in bytes (`PATH_MAX` without the NUL at its end).
const PATH_MAX: usize = 4095;

/// One component of a path: not empty, no slash, no NUL, neither `.` nor `..`, at most [`NAME_MAX`] bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Box<OsStr>);

impl Name {
    /// Checks a name. `ENAMETOOLONG` past [`NAME_MAX`], `EINVAL` for what no entry can be called.
    pub fn new(name: &OsStr) -> Result<Self, Errno> {
        let bytes = name.as_bytes();
        if bytes.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.iter().any(|b| matches!(b, b'/' | 0)) {
            return Err(Errno::INVAL);
        }
        Ok(Self(name.into()))
    }

    /// The name as the kernel takes it.
    pub fn as_os_str(&self) -> &OsStr {
        &self.0
    }
}

impl Borrow<OsStr> for Name {
    fn borrow(&self) -> &OsStr {
        &self.0
    }
}

impl AsRef<OsStr> for Name {
    fn as_ref(&self) -> &OsStr {
        &self.0
    }
}

/// A path below some root: relative, without `.`, `..` or empty components. The empty path is the root itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelPath(PathBuf);

impl RelPath {
    /// The root itself.
    pub fn root() -> Self {
        Self::default()
    }

    /// Checks a path; `None` where it is absolute or holds `..`. A `.` component is dropped.
    pub fn new(path: &Path) -> Option<Self> {
        let mut clean = PathBuf::new();
        for component in path.components() {
            match component {
                Component::Normal(name) => clean.push(name),
                Component::CurDir => {}
                _ => return None,
            }
        }
        Some(Self(clean))
    }

    /// This path and one more component.
    #[must_use]
    pub fn join(&self, name: &OsStr) -> Self {
        debug_assert!(Name::new(name).is_ok(), "{name:?} is not a name");
        Self(self.0.join(name))
    }

    /// The same; `ENAMETOOLONG` where no call takes the path any more. Who walks down a tree, which may be deeper, ends there.
    pub fn deeper(&self, name: &OsStr) -> Result<Self, Errno> {
        let longer = self.join(name);
        if longer.is_too_long() { Err(Errno::NAMETOOLONG) } else { Ok(longer) }
    }

    /// Whether no call takes the path.
    pub fn is_too_long(&self) -> bool {
        self.as_bytes().len() > PATH_MAX
    }

    /// The path without its last component; `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        self.0.parent().map(|p| Self(p.to_path_buf()))
    }

    /// The last component; `None` for the root.
    pub fn file_name(&self) -> Option<&OsStr> {
        self.0.file_name()
    }

    /// Whether this is the root itself.
    pub fn is_root(&self) -> bool {
        self.0.as_os_str().is_empty()
    }

    /// The path as `std` knows it.
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// The bytes of the path.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_os_str().as_bytes()
    }

    /// A path from bytes that [`as_bytes`](Self::as_bytes) gave; checked like [`new`](Self::new).
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::new(Path::new(&OsString::from_vec(bytes.to_vec())))
    }
}

/// In the form of [`json`].
impl Serialize for RelPath {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        json::serialize(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for RelPath {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let path: PathBuf = json::deserialize(deserializer)?;
        Self::new(&path).ok_or_else(|| serde::de::Error::custom("not a path below a root"))
    }
}

impl AsRef<Path> for RelPath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<OsStr> for RelPath {
    fn as_ref(&self) -> &OsStr {
        self.0.as_os_str()
    }
}

/// Paths in JSON: a string where the bytes are UTF-8, else `{"hex": "..."}`, so that no byte is lost.
///
/// For fields: `#[serde(with = "crate::names::json")]` on a `PathBuf`, an `OsString`, a [`RelPath`].
pub mod json {
    use std::ffi::{OsStr, OsString};
    use std::os::unix::ffi::{OsStrExt, OsStringExt};

    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Form<'a> {
        Text(std::borrow::Cow<'a, str>),
        Bytes { hex: String },
    }

    /// Writes a path.
    pub fn serialize<S: Serializer, P: AsRef<OsStr>>(path: &P, to: S) -> Result<S::Ok, S::Error> {
        let path = path.as_ref();
        match path.to_str() {
            Some(text) => Form::Text(text.into()),
            None => Form::Bytes { hex: path.as_bytes().iter().map(|b| format!("{b:02x}")).collect() },
        }
        .serialize(to)
    }

    /// Reads what [`serialize`] wrote.
    pub fn deserialize<'de, D: Deserializer<'de>, P: From<OsString>>(from: D) -> Result<P, D::Error> {
        let bytes = match Form::deserialize(from)? {
            Form::Text(text) => text.into_owned().into_bytes(),
            Form::Bytes { hex } => unhex(&hex).ok_or_else(|| D::Error::custom("not hexadecimal"))?,
        };
        Ok(OsString::from_vec(bytes).into())
    }

    fn unhex(hex: &str) -> Option<Vec<u8>> {
        let pairs = hex.as_bytes().chunks(2);
        pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_loses_no_byte() {
        #[derive(serde::Serialize, serde::Deserialize)]
        struct Holder(#[serde(with = "json")] PathBuf);
        for bytes in [&b"/a b/\n"[..], b"/x\xff\xfe/y"] {
            let path = PathBuf::from(OsString::from_vec(bytes.to_vec()));
            let text = serde_json::to_string(&Holder(path.clone())).expect("serialises");
            assert_eq!(serde_json::from_str::<Holder>(&text).expect("reads back").0, path);
        }
    }

    #[test]
    fn names_are_components() {
        for bad in ["", ".", "..", "a/b", "a\0b"] {
            assert_eq!(Name::new(OsStr::new(bad)), Err(Errno::INVAL), "{bad:?}");
        }
        assert_eq!(Name::new(OsStr::new(&"x".repeat(256))), Err(Errno::NAMETOOLONG));
        assert!(Name::new(OsStr::from_bytes(b"\xff\n")).is_ok());
    }

    #[test]
    fn paths_stay_below() {
        assert_eq!(RelPath::new(Path::new("/a")), None);
        assert_eq!(RelPath::new(Path::new("a/../b")), None);
        let p = RelPath::new(Path::new("a/./b/")).expect("plain");
        assert_eq!(p.as_bytes(), b"a/b");
        assert_eq!(p.parent().and_then(|p| p.parent()), Some(RelPath::root()));
    }
}
