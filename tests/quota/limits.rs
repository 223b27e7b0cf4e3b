//! What is refused at the limit, operation by operation, and what goes on.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{CWD, FallocateFlags, FileType, Mode, XattrFlags, fallocate, mknodat, setxattr};

use super::*;

#[test]
fn what_does_not_fit_is_refused_and_nothing_else_is_disturbed() {
    let site = Limited::new(&["--max-size", "1M"], "echo base > file; mkdir dir");
    let other = site.fork("other", &[]);
    write(&site.join("half"), 512 * KIB).expect("it fits");
    refused(write(&site.join("more"), MIB));
    // The file was made, and what of it fits: nothing, since a write is whole or not at all.
    assert_eq!(fs::metadata(site.join("more")).expect("made").len(), 0);
    fs::remove_file(site.join("more")).expect("removing is never refused");
    // Another fork, the server and the base go on.
    write(&other.join("more"), 4 * MIB).expect("it has no limit");
    assert_eq!(fs::read(site.base.join("file")).expect("there"), b"base\n");
    assert!(!site.base.join("half").exists());
    // Room that is there can be taken to the last block, and what is there can be overwritten.
    let block = 4 * KIB;
    let left = (MIB - site.used().0) / block * block;
    write(&site.join("rest"), left).expect("the rest fits");
    refused(write(&site.join("dir/one"), 1));
    let half = File::options().write(true).open(site.join("half")).expect("there");
    half.write_all_at(&vec![9; 512 * KIB as usize], 0).expect("overwriting takes no room");
    refused(half.write_all_at(&[9], 512 * KIB));
    assert_eq!(half.metadata().expect("there").len(), 512 * KIB);
    site.agrees();
    // Deleting makes room again.
    fs::remove_file(site.join("rest")).expect("ours");
    write(&site.join("again"), left / 2).expect("there is room again");
    site.agrees();
}

#[test]
fn df_shows_the_room_that_the_limit_leaves() {
    let site = Limited::new(&["--max-size", "8M", "--max-files", "100"], "echo base > file");
    write(&site.join("new"), 2 * MIB).expect("it fits");
    let shown = rustix::fs::statvfs(&site.path).expect("mounted");
    assert_eq!(shown.f_blocks * shown.f_frsize, 8 * MIB);
    let (bytes, files) = site.used();
    assert_eq!(shown.f_bavail, (8 * MIB - bytes) / shown.f_frsize);
    assert_eq!((shown.f_files, shown.f_ffree), (100, 100 - files));
    assert_eq!(files, 1);
    let real = rustix::fs::statvfs(&site.base).expect("there");
    let other = rustix::fs::statvfs(site.fork("other", &[])).expect("mounted");
    assert_eq!(other.f_blocks, real.f_blocks);
    let text = site.treefork.ok(["show", "fork"]).text();
    assert!(text.contains("8.00 MiB") && text.contains("1 of 100 files"), "{text}");
    let shown = site.show();
    assert_eq!((&shown["max_size"], &shown["max_files"]), (&(8 * MIB).into(), &100.into()));
}

#[test]
fn a_copy_of_a_base_file_has_to_fit_as_a_whole() {
    let site = Limited::new(
        &["--max-size", "1M"],
        "head -c 3000000 /dev/urandom > big; echo small > small; truncate -s 1G sparse; printf data | dd of=sparse bs=1 \
         seek=500000000 conv=notrunc status=none; for i in 1 2 3; do ln -s big link$i; done",
    );
    let content = fs::read(site.base.join("big")).expect("there");
    let big = site.join("big");
    refused(File::options().append(true).open(&big).and_then(|mut file| file.write_all(b"more")));
    refused(fs::set_permissions(&big, fs::Permissions::from_mode(0o600)));
    refused(setxattr(&big, "user.name", b"value", XattrFlags::empty()).map_err(io::Error::from));
    assert_eq!(fs::read(&big).expect("there"), content);
    assert_eq!(fs::metadata(&big).expect("there").mode() & 0o777, 0o644);
    assert!(fs::read_dir(site.upper()).expect("there").next().is_none(), "no half copy is left");
    // Only what is kept of it has to fit.
    File::options().write(true).open(&big).and_then(|file| file.set_len(100_000)).expect("that fits");
    assert_eq!(fs::read(&big).expect("there"), content[..100_000]);
    File::options().append(true).open(site.join("small")).and_then(|mut file| file.write_all(b"more")).expect("fits");
    let sparse = File::options().write(true).open(site.join("sparse")).expect("there");
    sparse.write_all_at(b"more", 700_000_000).expect("holes take no room");
    site.agrees();
    assert!(site.used().0 < 300 * KIB, "{:?}", site.used());
}

#[test]
fn a_large_file_that_comes_up_block_by_block_has_to_fit_before_its_first_change() {
    let script = "head -c 25165824 /dev/urandom > big";
    let held = |store| Treefork::with_store(store).with("TREEFORK_FAULT", "blocks background:fail=5@*");
    let site = Limited::with(Image::ext4(600), held, &["--max-size", "20M"], script);
    let big = |path: &Path| File::options().write(true).open(path.join("big")).expect("there");
    refused(big(&site.path).write_all_at(b"x", 10_000_000));
    assert!(fs::read_dir(site.upper()).expect("there").next().is_none(), "nothing of it came up");
    // One in which it fits, to the last block: what comes up later is accounted for at once.
    let path = site.fork("wide", &["--max-size", "25190000"]);
    let file = big(&path);
    file.write_all_at(b"x", 10_000_000).expect("it fits");
    file.write_all_at(&vec![1; MIB as usize], 20_000_000).expect("its room is there already");
    let free = rustix::fs::statvfs(&path).expect("mounted").f_bavail;
    assert!(free <= 9, "{free} blocks left");
    refused(write(&path.join("more"), 64 * KIB));
    let site = Limited { path, ..site };
    let mut expected = fs::read(site.base.join("big")).expect("there");
    expected[10_000_000] = b'x';
    expected[20_000_000..20_000_000 + MIB as usize].fill(1);
    assert!(fs::read(site.join("big")).expect("there") == expected, "other content");
    let mut site = site;
    site.treefork.set("TREEFORK_FAULT", "");
    site.treefork.restart("wide");
    eventually("all of the file is in the upper", || {
        fs::read_dir(site.dir().join("work/blocks")).map_or(0, Iterator::count) == 0
    });
    assert!(fs::read(site.upper().join("big")).expect("there") == expected, "other content in the upper");
    let shown = rustix::fs::statvfs(&site.path).expect("mounted").f_bavail;
    assert!(shown.abs_diff(free) <= 1, "{free} blocks were left, and {shown} are now");
}

/// All operations that make an object, with whether each did.
fn make_all(site: &Limited) -> Vec<(&'static str, io::Result<()>)> {
    let base_file = site.join("file");
    vec![
        ("mknod", File::create_new(site.join("new")).map(drop)),
        ("mkdir", fs::create_dir(site.join("newdir"))),
        ("symlink", symlink("x".repeat(100), site.join("newlink"))),
        ("fifo", mknodat(CWD, site.join("fifo"), FileType::Fifo, Mode::from(0o600), 0).map_err(io::Error::from)),
        ("link of a base file", fs::hard_link(&base_file, site.join("second"))),
        ("copy-up", fs::set_permissions(&base_file, fs::Permissions::from_mode(0o600))),
        ("directory shell", fs::set_permissions(site.join("dir"), fs::Permissions::from_mode(0o700))),
        ("rename of a base file", fs::rename(site.join("dir/inner"), site.join("dir/renamed"))),
        ("new in a base directory", File::create_new(site.join("dir/new")).map(drop)),
    ]
}

#[test]
fn the_limit_of_files_is_for_objects_of_any_kind() {
    let site =
        Limited::new(&["--max-files", "3"], "echo base > file; mkdir dir; echo inner > dir/inner; echo x > gone");
    for name in ["a", "b", "c"] {
        File::create_new(site.join(name)).expect("three are allowed");
    }
    for (what, done) in make_all(&site) {
        assert!(done.is_err(), "{what}");
        refused(done);
    }
    // Writing to those that are there is not making one, nor is a second name, nor another one, nor a whiteout.
    write(&site.join("a"), MIB).expect("there is room");
    fs::hard_link(site.join("a"), site.join("a2")).expect("a second name");
    fs::rename(site.join("b"), site.join("b2")).expect("another name");
    fs::remove_file(site.join("gone")).expect("removing is never refused");
    fs::remove_file(site.join("a")).expect("ours");
    site.agrees();
    refused(File::create_new(site.join("d")));
    fs::remove_file(site.join("a2")).expect("ours");
    File::create_new(site.join("d")).expect("there is room again");
    site.agrees();
    // Also with what is replaced.
    fs::rename(site.join("d"), site.join("c")).expect("one replaces the other");
    File::create_new(site.join("e")).expect("there is room again");
    assert_eq!(site.used().1, 3);
}

#[test]
fn the_limit_of_size_is_for_whatever_takes_blocks() {
    let script = "echo base > file; mkdir dir; echo inner > dir/inner; for i in $(seq 40); do mkdir -p deep/$i/x; \
                  echo $i > deep/$i/x/file; done";
    let site = Limited::new(&["--max-size", "64K"], script);
    let filler = File::create_new(site.join("filler")).expect("room");
    let mut end = 0;
    while filler.write_all_at(&[1; 4096], end).is_ok() {
        end += 4096;
    }
    assert!(end > 32 * KIB, "{end}");
    for (what, done) in make_all(&site) {
        // What takes no block may be made until one is needed for the directory.
        if !matches!(what, "mknod" | "fifo") {
            assert!(done.is_err(), "{what}");
            refused(done);
        }
    }
    let long = vec![1; 2000];
    refused(setxattr(site.join("filler"), "user.long", &long, XattrFlags::empty()).map_err(io::Error::from));
    site.agrees();
    // Removing what the base has makes shells of its directories, for a while: they count, and are not refused.
    for n in 1..=40 {
        fs::remove_file(site.join(format!("deep/{n}/x/file"))).expect("removing is never refused");
    }
    assert!(site.used().0 > 64 * KIB);
    site.agrees();
    refused(File::create_new(site.join("beyond")));
    refused(fs::hard_link(site.join("filler"), site.join("beyond")));
    filler.write_all_at(&[2; 4096], 0).expect("overwriting takes no room");
    fs::remove_dir_all(site.join("deep")).expect("removing is never refused");
    site.agrees();
    fs::remove_file(site.join("filler")).expect("ours");
    refused(fs::create_dir(site.join("directory")));
    drop(filler);
    eventually("the room of a closed file is there again", || fs::create_dir(site.join("directory")).is_ok());
    site.agrees();
}

#[test]
fn what_is_set_aside_counts_and_holes_do_not() {
    let site = Limited::new(&["--max-size", "1M"], "true");
    let file = File::create_new(site.join("file")).expect("room");
    file.set_len(1 << 40).expect("a hole takes no room");
    let keep = FallocateFlags::KEEP_SIZE;
    refused(fallocate(&file, FallocateFlags::empty(), 0, 2 * MIB).map_err(io::Error::from));
    fallocate(&file, FallocateFlags::empty(), 8 * MIB, 512 * KIB).expect("it fits");
    site.agrees();
    let at_most = |file: &File| {
        let mut len = MIB;
        while fallocate(file, keep, 0, len).is_err() {
            len -= 4096;
        }
        len
    };
    let more = File::create_new(site.join("more")).expect("room");
    let set_aside = at_most(&more);
    assert!(set_aside > 400 * KIB, "{set_aside}");
    site.agrees();
    // What was set aside can be written, also where nothing else fits any more.
    refused(write(&site.join("none"), 4096));
    file.write_all_at(&vec![1; 512 * KIB as usize], 8 * MIB).expect("set aside");
    more.write_all_at(&vec![1; set_aside as usize], 0).expect("set aside");
    refused(more.write_all_at(&[1; 4096], set_aside));
    refused(file.write_all_at(&[1], 0));
    site.agrees();
    // Punching and cutting off give room back.
    fallocate(&file, keep | FallocateFlags::PUNCH_HOLE, 8 * MIB, 256 * KIB).expect("punched");
    file.write_all_at(&vec![1; 256 * KIB as usize], 0).expect("there is room again");
    file.set_len(0).expect("cut off");
    more.set_len(0).expect("cut off");
    site.agrees();
    assert!(site.used().0 < 64 * KIB, "{:?}", site.used());
    let copied = std::io::copy(&mut File::open("/dev/zero").expect("there"), &mut &file);
    refused(copied);
    site.agrees();
}
