//! The pure reference: a tree in memory, and what each operation does to it and answers.
//!
//! It knows paths, directories, files and links that lead nowhere, and the order in which the kernel checks things
//! (`fs/namei.c`). A layer is a copy of the tree below it: [`World`] says which changes show in which.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::io::Errno;

/// What stands at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Object {
    Dir,
    File(Vec<u8>),
    /// A symbolic link that leads nowhere.
    Link,
}

/// An operation; paths are relative to the root of a tree.
#[derive(Clone, Debug)]
pub(super) enum Act {
    Write(String, usize, u8),
    Append(String, usize, u8),
    Cut(String, usize),
    Read(String),
    List(String),
    Mkdir(String),
    Rmdir(String),
    Unlink(String),
    Symlink(String),
    Rename(String, String),
}

/// What an operation answers: the bytes read or the names listed, else nothing.
pub(super) type Answer = Result<Vec<u8>, Errno>;

const NOWHERE: &str = "nowhere";

/// Everything there is, by path; the root is the empty one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tree(pub(super) BTreeMap<String, Object>);

impl Default for Tree {
    fn default() -> Self {
        Self(BTreeMap::from([(String::new(), Object::Dir)]))
    }
}

impl Tree {
    fn get(&self, path: &str) -> Option<&Object> {
        self.0.get(path)
    }

    /// The way to a path: every directory on it has to be one.
    fn walk(&self, path: &str) -> Result<(), Errno> {
        let ends = path.match_indices('/').map(|(at, _)| at);
        ends.map(|end| &path[..end]).try_for_each(|above| match self.get(above) {
            Some(Object::Dir) => Ok(()),
            Some(Object::File(_)) => Err(Errno::NOTDIR),
            Some(Object::Link) | None => Err(Errno::NOENT),
        })
    }

    fn is_empty(&self, dir: &str) -> bool {
        !self.0.keys().any(|path| is_below(path, dir))
    }

    /// The content of a file that is there.
    fn file(&mut self, path: &str) -> Result<&mut Vec<u8>, Errno> {
        match self.0.get_mut(path) {
            None => Err(Errno::NOENT),
            Some(Object::Dir) => Err(Errno::ISDIR),
            Some(Object::Link) => Err(Errno::LOOP),
            Some(Object::File(bytes)) => Ok(bytes),
        }
    }

    /// Takes what is at and below one path to another.
    fn shift(&mut self, from: &str, to: &str) {
        let moving: Vec<String> = self.0.keys().filter(|path| *path == from || is_below(path, from)).cloned().collect();
        for path in moving {
            let object = self.0.remove(&path).expect("just found");
            self.0.insert(format!("{to}{}", &path[from.len()..]), object);
        }
    }

    /// Does to the tree what the operation does.
    pub(super) fn apply(&mut self, act: &Act) -> Answer {
        let done = Ok(Vec::new());
        match act {
            Act::Write(path, len, fill) => {
                self.walk(path)?;
                if self.get(path).is_some() {
                    self.file(path)?;
                }
                self.0.insert(path.clone(), Object::File(vec![*fill; *len]));
            }
            Act::Append(path, len, fill) => {
                self.walk(path)?;
                self.file(path)?.extend(vec![*fill; *len]);
            }
            Act::Cut(path, len) => {
                self.walk(path)?;
                self.file(path)?.resize(*len, 0);
            }
            Act::Read(path) => {
                self.walk(path)?;
                return self.file(path).cloned();
            }
            Act::List(path) => {
                self.walk(path)?;
                return match self.get(path) {
                    Some(Object::Dir) => Ok(self.names(path)),
                    Some(Object::File(_)) => Err(Errno::NOTDIR),
                    Some(Object::Link) | None => Err(Errno::NOENT),
                };
            }
            Act::Mkdir(path) | Act::Symlink(path) => {
                self.walk(path)?;
                if self.get(path).is_some() {
                    return Err(Errno::EXIST);
                }
                let is_dir = matches!(act, Act::Mkdir(_));
                self.0.insert(path.clone(), if is_dir { Object::Dir } else { Object::Link });
            }
            Act::Rmdir(path) => {
                self.walk(path)?;
                match self.get(path) {
                    None => return Err(Errno::NOENT),
                    Some(Object::Dir) if self.is_empty(path) => self.0.remove(path),
                    Some(Object::Dir) => return Err(Errno::NOTEMPTY),
                    Some(_) => return Err(Errno::NOTDIR),
                };
            }
            Act::Unlink(path) => {
                self.walk(path)?;
                match self.get(path) {
                    None => return Err(Errno::NOENT),
                    Some(Object::Dir) => return Err(Errno::ISDIR),
                    Some(_) => self.0.remove(path),
                };
            }
            Act::Rename(from, to) => self.rename(from, to)?,
        }
        done
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), Errno> {
        self.walk(from)?;
        self.walk(to)?;
        let is_dir = *self.get(from).ok_or(Errno::NOENT)? == Object::Dir;
        match self.get(to) {
            _ if is_below(to, from) => return Err(Errno::INVAL),
            _ if is_below(from, to) => return Err(Errno::NOTEMPTY),
            _ if from == to => return Ok(()),
            Some(target) if is_dir && *target != Object::Dir => return Err(Errno::NOTDIR),
            Some(Object::Dir) if !is_dir => return Err(Errno::ISDIR),
            Some(Object::Dir) if !self.is_empty(to) => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        self.0.remove(to);
        self.shift(from, to);
        Ok(())
    }

    fn names(&self, dir: &str) -> Vec<u8> {
        let below = self.0.keys().filter_map(|path| path.strip_prefix(dir)?.strip_prefix('/'));
        below.filter(|rest| !rest.contains('/')).flat_map(|name| [name.as_bytes(), b"/"].concat()).collect()
    }

    /// The part at and below these paths; what else there is goes.
    pub(super) fn part(&self, paths: impl Fn(&str) -> bool) -> BTreeMap<String, Object> {
        self.0.iter().filter(|(path, _)| paths(path)).map(|(path, object)| (path.clone(), object.clone())).collect()
    }

    /// The tree at a path, as it is on disk or in a mount.
    pub(super) fn at(root: &Path) -> Self {
        let mut tree = Self::default();
        let mut todo = vec![String::new()];
        while let Some(dir) = todo.pop() {
            for entry in root.join(&dir).read_dir().expect("listable").map(|entry| entry.expect("listable")) {
                let name = entry.file_name().into_string().expect("the operations use text");
                let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
                let kind = entry.file_type().expect("there");
                let object = if kind.is_dir() {
                    todo.push(path.clone());
                    Object::Dir
                } else if kind.is_symlink() {
                    Object::Link
                } else {
                    Object::File(std::fs::read(entry.path()).expect("readable"))
                };
                tree.0.insert(path, object);
            }
        }
        tree
    }

    /// Where two trees differ.
    pub(super) fn differences(&self, other: &Self) -> Vec<String> {
        let paths: std::collections::BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        let differ = paths.into_iter().filter(|path| self.0.get(*path) != other.0.get(*path));
        differ
            .map(|path| format!("{path:?}: wanted {}, got {}", short(self.get(path)), short(other.get(path))))
            .collect()
    }
}

fn is_below(path: &str, dir: &str) -> bool {
    dir.is_empty() && !path.is_empty() || path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'))
}

fn short(object: Option<&Object>) -> String {
    match object {
        Some(Object::File(bytes)) => format!("{} bytes of {:?}", bytes.len(), bytes.first()),
        other => format!("{other:?}"),
    }
}

/// Carries out the operation on a tree of the kernel's.
pub(super) fn carry_out(root: &Path, act: &Act) -> Answer {
    let at = |path: &String| root.join(path);
    let open = |path: &String, how: &mut OpenOptions| how.custom_flags(libc::O_NOFOLLOW).open(at(path));
    let write = |mut file: File, len: usize, fill: u8| file.write_all(&vec![fill; len]);
    let done = match act {
        Act::Write(path, len, fill) => open(path, File::options().write(true).create(true).truncate(true))
            .and_then(|file| write(file, *len, *fill)),
        Act::Append(path, len, fill) => {
            open(path, File::options().append(true)).and_then(|file| write(file, *len, *fill))
        }
        Act::Cut(path, len) => open(path, File::options().write(true)).and_then(|file| file.set_len(*len as u64)),
        Act::Read(path) => {
            let mut bytes = Vec::new();
            let read = open(path, File::options().read(true)).and_then(|mut file| file.read_to_end(&mut bytes));
            return read.map(|_| bytes).map_err(|e| Errno::from_io_error(&e).expect("of the system"));
        }
        Act::List(path) => {
            let names = at(path).read_dir().and_then(|entries| {
                entries.map(|entry| Ok(entry?.file_name().into_encoded_bytes())).collect::<Result<Vec<_>, _>>()
            });
            return names.map_err(|e| Errno::from_io_error(&e).expect("of the system")).map(|mut names| {
                names.sort();
                names.into_iter().flat_map(|name| [name, b"/".to_vec()].concat()).collect()
            });
        }
        Act::Mkdir(path) => std::fs::create_dir(at(path)),
        Act::Rmdir(path) => std::fs::remove_dir(at(path)),
        Act::Unlink(path) => std::fs::remove_file(at(path)),
        Act::Symlink(path) => std::os::unix::fs::symlink(NOWHERE, at(path)),
        Act::Rename(from, to) => std::fs::rename(at(from), at(to)),
    };
    done.map(|()| Vec::new()).map_err(|e| Errno::from_io_error(&e).expect("of the system"))
}
