//! Large files come up block by block: what is seen of them until all of it is there, and after whatever happens then.
//!
//! `blocks background` is where the rest begins to come up; a rule that lets it fail holds the world in between.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use treefork::layer::blocks;

use crate::common::{Fork, Image, Treefork, eventually};

const SIZE: u64 = 24 << 20;
const BLOCK: usize = 4096;
/// In the middle of the file, and of a block.
const AT: u64 = 10_000_001;
const HELD: &str = "blocks background:fail=5@*";

/// A base with a large file on an image where nothing can be shared, and a fork.
struct Site {
    fork: Fork,
    /// What the file holds in the fork.
    content: Vec<u8>,
    _image: Image,
}

impl Site {
    /// With rules for faults in the server.
    fn new(faults: &str) -> Self {
        Self::sized(faults, 160)
    }

    fn sized(faults: &str, mib: u64) -> Self {
        let image = Image::ext4(mib);
        let treefork = Treefork::with_store(image.dir("store")).with("TREEFORK_FAULT", faults);
        let base = image.dir("base");
        let content = content(0);
        fs::write(base.join("big"), &content).expect("room");
        fs::write(base.join("small"), "small").expect("room");
        Self { fork: Fork::of(treefork, base), content, _image: image }
    }

    /// Writes some bytes in the fork, as the first change.
    fn write(&mut self) {
        self.write_at(AT, b"written");
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) {
        self.open().write_all_at(bytes, at).expect("writable");
        let at = usize::try_from(at).expect("small");
        self.content[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn open(&self) -> File {
        File::options().read(true).write(true).open(self.fork.join("big")).expect("there")
    }

    fn work(&self) -> PathBuf {
        self.fork.upper().with_file_name("work")
    }

    /// How many files are still coming up.
    fn pending(&self) -> usize {
        fs::read_dir(self.work().join(blocks::DIR)).map_or(0, Iterator::count)
    }

    #[track_caller]
    fn same(&self) {
        assert!(fs::read(self.fork.join("big")).expect("readable") == self.content, "other content");
    }

    /// The server is killed; the next one sees these rules.
    fn restart(&mut self, faults: &str) {
        self.fork.treefork.set("TREEFORK_FAULT", faults);
        self.fork.restart();
    }

    /// The file is an ordinary one of the upper.
    #[track_caller]
    fn completed(&self) {
        eventually("all of the file is in the upper", || self.pending() == 0);
        let upper = self.fork.upper().join("big");
        assert!(fs::read(&upper).expect("readable") == self.content, "other content in the upper");
        let marks = crate::common::tree::xattrs(&upper);
        assert!(!marks.keys().any(|mark| mark == treefork::layer::marks::BLOCKS), "{marks:?}");
        self.same();
    }
}

/// Bytes that differ from block to block.
fn content(seed: u8) -> Vec<u8> {
    let block = |n: usize| [(n % 251) as u8 ^ seed; BLOCK];
    (0..SIZE as usize / BLOCK).flat_map(block).collect()
}

#[test]
fn the_rest_comes_up_by_itself_and_times_are_those_of_the_write() {
    let mut site = Site::new("");
    site.write();
    let written = site.fork.join("big").metadata().expect("there");
    site.completed();
    let now = site.fork.join("big").metadata().expect("there");
    let of = |meta: &fs::Metadata| (meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.len());
    assert_eq!(of(&written), of(&now));
    site.fork.restart();
    assert_eq!(of(&written), of(&site.fork.join("big").metadata().expect("there")));
    site.same();
}

#[test]
fn until_then_the_rest_is_the_lowers_also_after_a_killed_server() {
    let mut site = Site::new(HELD);
    site.write();
    site.write_at(0, b"beginning");
    site.write_at(SIZE - 3, b"end");
    for _ in 0..2 {
        assert_eq!(site.pending(), 1);
        site.same();
        assert_eq!(site.fork.join("big").metadata().expect("there").len(), SIZE);
        site.restart(HELD);
    }
    site.write_at(5 << 20, &[9; 3 * BLOCK]);
    site.open().sync_all().expect("room");
    site.restart("");
    site.completed();
}

#[test]
fn killed_at_each_step_it_is_the_old_or_the_new() {
    let mut site = Site::new("blocks begun:kill@1");
    let write = site.open().write_all_at(b"lost", AT);
    assert!(write.is_err(), "the server was killed");
    site.restart(HELD);
    site.same();
    assert_eq!(site.pending(), 0, "a map without a file is removed");
    site.write();
    for step in ["blocks synced", "blocks unmarked"] {
        site.fork.treefork.kill_server();
        site.fork.treefork.set("TREEFORK_FAULT", format!("{step}:kill@1"));
        // It may be killed before it has answered.
        let _ = site.fork.treefork.command(["path", "fork"]).output();
        // Where it was killed before it had answered, the command has started another, which may have finished.
        eventually("it was killed", || site.fork.treefork.server().is_none() || site.pending() == 0);
        site.restart(HELD);
        site.same();
    }
    site.restart("");
    site.completed();
}

#[test]
fn a_base_file_that_changes_meanwhile_is_never_mixed_with_what_it_was() {
    let mut site = Site::new(HELD);
    site.fork.let_base_change();
    site.write();
    let base = File::options().write(true).open(site.fork.base.join("big")).expect("there");
    base.write_all_at(b"edited", 20 << 20).expect("room");
    for _ in 0..2 {
        let mut page = [0; BLOCK];
        let at = AT / BLOCK as u64 * BLOCK as u64;
        site.open().read_exact_at(&mut page, at).expect("what the fork wrote stays");
        assert_eq!(page[..], site.content[at as usize..][..BLOCK]);
        let lost = site.open().read_exact_at(&mut page, 20 << 20).expect_err("neither old nor new");
        assert_eq!(lost.raw_os_error(), Some(libc::EIO));
        assert!(site.fork.treefork.ok(["show", "fork"]).text().contains("big"), "the drifted path is named");
        let refused = site.fork.merge_refused().complaint();
        assert!(refused.contains("big") && refused.contains("lost"), "{refused}");
        site.restart("");
    }
    // Writing it anew heals it.
    fs::write(site.fork.join("big"), "new").expect("writable");
    eventually("nothing is pending", || site.pending() == 0);
    assert_eq!(fs::read(site.fork.join("big")).expect("there"), b"new");
}

#[test]
fn a_base_file_that_is_replaced_or_removed_meanwhile_is_read_on() {
    for script in ["rm big", "echo new > new; mv new big", "chmod 600 big; mv big elsewhere"] {
        let mut site = Site::new(HELD);
        site.fork.let_base_change();
        site.write();
        site.fork.env().sh(&site.fork.base, script);
        site.same();
        // Whoever needs it whole gets it whole.
        site.fork.sh("chmod 640 big");
        site.completed();
    }
}

#[test]
fn a_merge_of_a_sibling_is_invisible_also_while_a_file_comes_up() {
    let mut site = Site::new(HELD);
    site.fork.let_base_change();
    let sibling = site.fork.treefork.create(&site.fork.base, "sibling");
    site.write();
    fs::write(sibling.join("big"), "of the sibling").expect("writable");
    site.fork.treefork.ok(["merge", "sibling"]);
    assert_eq!(fs::read(site.fork.base.join("big")).expect("there"), b"of the sibling");
    site.same();
    site.restart(HELD);
    site.same();
    site.restart("");
    site.completed();
}

#[test]
fn a_merge_takes_the_whole_file() {
    let mut site = Site::new(HELD);
    site.write();
    site.fork.merge();
    assert!(fs::read(site.fork.base.join("big")).expect("there") == site.content);
}

#[test]
fn without_room_for_all_of_it_the_first_write_fails() {
    let site = Site::sized("", 56);
    let full = site.open().write_all_at(b"x", AT).expect_err("no room");
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    site.same();
    assert_eq!(site.pending(), 0);
    assert_eq!(site.fork.changed(), Vec::<PathBuf>::new());
    let staged = fs::read_dir(site.work().join("tmp")).expect("there").count();
    assert!(staged <= 1, "nothing but the whiteout that others are linked to");
}

#[test]
fn an_unlinked_file_is_whole_for_whoever_has_it_open_and_gone_after_that() {
    let mut site = Site::new(HELD);
    let file = site.open();
    site.write();
    fs::remove_file(site.fork.join("big")).expect("there");
    let mut all = vec![0; site.content.len()];
    file.read_exact_at(&mut all, 0).expect("open");
    assert!(all == site.content);
    assert_eq!(file.metadata().expect("open").nlink(), 0);
    file.write_all_at(b"more", 0).expect("open");
    drop(file);
    eventually("its map is gone", || site.pending() == 0);
}

#[test]
fn names_change_freely_meanwhile() {
    let mut site = Site::new(HELD);
    site.write();
    fs::create_dir(site.fork.join("d")).expect("free");
    fs::rename(site.fork.join("big"), site.fork.join("d/moved")).expect("free");
    fs::rename(site.fork.join("d"), site.fork.join("e")).expect("free");
    assert_eq!(site.pending(), 1);
    site.restart("");
    eventually("found wherever it is", || site.pending() == 0);
    assert!(fs::read(site.fork.join("e/moved")).expect("there") == site.content);
}

#[test]
fn a_rename_of_a_large_base_file_copies_nothing_first() {
    let mut site = Site::new(HELD);
    fs::rename(site.fork.join("big"), site.fork.join("moved")).expect("free");
    assert_eq!(site.pending(), 1);
    assert!(fs::read(site.fork.join("moved")).expect("there") == site.content);
    site.restart("");
    eventually("all of it is there", || site.pending() == 0);
    assert!(fs::read(site.fork.upper().join("moved")).expect("there") == site.content);
}
