//! Where a fork differs from a plain directory, each with its errno: the exceptions of `docs/semantics.md`, by number.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, FallocateFlags, FileType, Mode, RenameFlags, XattrFlags};
use rustix::io::Errno;

use crate::common::{Fs, Image, Run, Treefork};

/// A fork of a small base.
struct Fork {
    treefork: Treefork,
    base: PathBuf,
    path: PathBuf,
}

fn fork() -> Fork {
    let treefork = Treefork::new();
    let base = treefork.env().dir("base");
    fs::write(base.join("file"), "text\n").expect("ours");
    fs::create_dir(base.join("dir")).expect("ours");
    let set = |name, value: &[u8]| rustix::fs::setxattr(base.join("dir"), name, value, XattrFlags::empty());
    set("user.overlay.opaque", b"y").expect("the file system has attributes");
    set("user.mine", b"1").expect("the file system has attributes");
    let path = treefork.create(&base, "x");
    Fork { treefork, base, path }
}

#[test]
fn x1_the_marks_of_overlays_are_hidden() {
    let fork = fork();
    let (dir, mut buffer) = (fork.path.join("dir"), [0_u8; 256]);
    assert_eq!(rustix::fs::getxattr(&dir, "user.overlay.opaque", &mut buffer), Err(Errno::NODATA));
    let length = rustix::fs::listxattr(&dir, &mut buffer).expect("listed");
    assert_eq!(&buffer[..length], b"user.mine\0");
    for name in ["user.overlay.opaque", "user.overlay.anything"] {
        assert_eq!(rustix::fs::setxattr(&dir, name, b"y", XattrFlags::empty()), Err(Errno::PERM));
        assert_eq!(rustix::fs::removexattr(&dir, name), Err(Errno::PERM));
    }
}

#[test]
fn x2_no_device_0_0_and_no_whiteout() {
    let fork = fork();
    let file = fork.path.join("file");
    let made = rustix::fs::mknodat(CWD, fork.path.join("z"), FileType::CharacterDevice, Mode::RUSR, 0);
    assert_eq!(made, Err(Errno::PERM));
    let renamed = rustix::fs::renameat_with(CWD, &file, CWD, fork.path.join("g"), RenameFlags::WHITEOUT);
    assert_eq!(renamed, Err(Errno::INVAL));
    assert_eq!(fs::read(file).expect("still there"), b"text\n");
}

#[test]
fn x3_no_attributes_by_ioctl_and_no_sharing_of_blocks() {
    let fork = fork();
    let file = File::options().read(true).write(true).open(fork.path.join("file")).expect("there");
    assert_eq!(rustix::fs::ioctl_getflags(&file).err(), Some(Errno::NOTTY));
    let other = File::create(fork.path.join("other")).expect("writable");
    assert_eq!(rustix::fs::ioctl_ficlone(&other, &file), Err(Errno::OPNOTSUPP));
    let script = "cp --reflink=auto file copy && cmp file copy";
    fork.treefork.env().sh(&fork.path, script);
}

#[test]
fn x4_no_unnamed_files_and_no_moving_of_ranges() {
    let fork = fork();
    let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
    let opened = rustix::fs::open(&fork.path, flags, Mode::RUSR);
    assert_eq!(opened.err(), Some(Errno::OPNOTSUPP));
    let file = File::options().write(true).open(fork.path.join("file")).expect("there");
    for flag in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        assert_eq!(rustix::fs::fallocate(&file, flag, 0, 4096), Err(Errno::OPNOTSUPP));
    }
}

#[test]
fn x5_a_device_number_of_its_own() {
    let fork = fork();
    let stat = |root: &Path| fs::metadata(root.join("file")).expect("there");
    let (ours, theirs) = (stat(&fork.path), stat(&fork.base));
    assert_ne!(ours.dev(), theirs.dev());
    assert_eq!(ours.ino(), theirs.ino());
    assert_eq!(stat(&fork.path).dev(), fs::metadata(&fork.path).expect("there").dev());
}

#[test]
fn x6_set_id_bits_and_devices_have_no_effect() {
    // A base on a file system that is mounted so; forks of ordinary users always are.
    let image = Image::new(Fs::Tmpfs, 8);
    Command::new("mount").args(["-o", "remount,nosuid,nodev"]).arg(image.path()).ok();
    let treefork = Treefork::new();
    let path = treefork.create(&image.dir("base"), "x");
    let table = fs::read_to_string("/proc/self/mounts").expect("every process can");
    let line = table.lines().find(|line| line.contains(path.to_str().expect("plain"))).expect("mounted");
    assert!(line.contains("nosuid") && line.contains("nodev"), "{line}");
    rustix::fs::mknodat(CWD, path.join("null"), FileType::CharacterDevice, Mode::RWXU, rustix::fs::makedev(1, 3))
        .expect("made");
    assert_eq!(File::open(path.join("null")).expect_err("no device").raw_os_error(), Some(libc::EACCES));
}

#[test]
fn x7_no_export_by_file_handle_across_a_restart() {
    let fork = fork();
    let name = CString::new(fork.path.join("file").as_os_str().as_bytes()).expect("no NUL");
    let handle = handle_of(&name);
    fork.treefork.ok(["serve", "--stop"]);
    fork.treefork.ok(["path", "x"]);
    let root = File::open(&fork.path).expect("mounted again");
    // SAFETY: the handle is a whole `file_handle` of 128 bytes, and the descriptor is open.
    let fd = unsafe { libc::open_by_handle_at(root.as_raw_fd(), handle.as_ptr().cast_mut().cast(), libc::O_RDONLY) };
    assert_eq!((fd, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ESTALE)));
}

/// A `struct file_handle` for up to 128 bytes.
fn handle_of(name: &CString) -> Vec<u32> {
    let mut handle = vec![0_u32; 34];
    handle[0] = 128;
    let mut mount = 0;
    let place = handle.as_mut_ptr().cast();
    // SAFETY: the buffer holds the header and the 128 bytes that it announces.
    let done = unsafe { libc::name_to_handle_at(libc::AT_FDCWD, name.as_ptr(), place, &raw mut mount, 0) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    handle
}

#[test]
fn x8_a_fork_that_is_gone_is_an_error() {
    let fork = fork();
    let dir = File::open(&fork.path).expect("there");
    fork.treefork.ok(["remove", "--force", "x"]);
    let create = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
    assert_eq!(rustix::fs::openat(&dir, "new", create, Mode::RUSR).err(), Some(Errno::NOTCONN));
    let read = rustix::fs::OFlags::RDONLY;
    assert_eq!(rustix::fs::openat(&dir, "file", read, Mode::empty()).err(), Some(Errno::NOTCONN));
    assert!(!fork.path.exists());
    assert_eq!(fs::read_dir(&fork.base).expect("there").count(), 2, "nothing went into the base");
}
