//! Marks of an upper, each with any value: what comes out of them stays within bounds.

use std::ffi::OsStr;
use std::fs;
use std::path::Component;

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use treefork::layer::blocks::{self, Bits, Map, Source};
use treefork::layer::marks::{BLOCKS, DirMarks, OPAQUE, ORIGIN, Origin, REDIRECT, read_origin};
use treefork::sys::{At, Ident, open_root};

use super::{put, scratch};

/// The first byte says which mark, the rest is its value.
pub(crate) fn mark(data: &[u8]) {
    let Some((which, value)) = data.split_first() else { return };
    let home = scratch();
    let (dir, file) = (home.join("marked"), home.join("file"));
    let _ = fs::remove_dir(&dir);
    fs::create_dir(&dir).expect("there is room");
    put(&file, b"");
    let root = open_root(&home).expect("ours");
    let (dir, file) = (At::new(&root, "marked"), At::new(&root, "file"));
    // Too long a value for the file system.
    let set = |at: At<'_>, name: &str| at.set_xattr(OsStr::new(name), value, XattrFlags::empty()).is_ok();
    match which % 4 {
        0 if set(dir, REDIRECT) => redirected(dir),
        1 if set(dir, ORIGIN) && set(file, ORIGIN) => {
            let origin = Origin::decode(value);
            assert_eq!(DirMarks::read(dir).expect("one that cannot be read is none").origin, origin);
            assert_eq!(read_origin(file).expect("the same"), origin);
            assert_eq!(origin.and_then(|origin| Origin::decode(&origin.encode())), origin);
        }
        2 if set(file, BLOCKS) => sourced(&home, file),
        3 if set(dir, OPAQUE) => assert_eq!(DirMarks::read(dir).map(|marks| marks.opaque), Ok(value == b"y")),
        _ => {}
    }
}

fn redirected(dir: At<'_>) {
    match DirMarks::read(dir) {
        Ok(DirMarks { redirect: Some(path), .. }) => {
            assert!(path.as_path().components().all(|c| matches!(c, Component::Normal(_))), "{path:?}");
        }
        other => assert_eq!(other.map(|_| ()), Err(Errno::IO)),
    }
}

fn sourced(home: &std::path::Path, file: At<'_>) {
    let file = file.open(rustix::fs::OFlags::RDONLY).expect("ours");
    let source = match Source::of(&file) {
        Ok(source) => source.expect("it is marked"),
        Err(e) => return assert_eq!(e, Errno::IO),
    };
    let blocks = source.blocks();
    assert!(blocks <= 1 << 22, "a map of {blocks} blocks is none of ours");
    assert!(blocks == 0 || (blocks - 1).checked_mul(source.block).is_some_and(|start| start < source.size));
    let work = open_root(home).expect("ours");
    let area = blocks::area(&work).expect("there is room");
    Map::create(&area, Ident::default(), blocks).expect("there is room");
    assert_eq!(Map::open(&area, Ident::default(), blocks).map(|(_, bits, _)| bits), Ok(Bits::none(blocks)));
}
