//! Marks, mounts and special files of whoever works in a fork.

use std::ffi::CString;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::common::{Fork, Look, Run, TempTree, Treefork, assert_same, eventually};

const BASE: &str = "mkdir -p d/sub e; for f in a d/f d/sub/g e/f; do echo \"$f\" > \"$f\"; done; ln -s a link";

/// Every mark that means something to one of the overlays, and one that may some day.
const MARKS: [&str; 12] = [
    "opaque",
    "redirect",
    "whiteout",
    "origin",
    "metacopy",
    "impure",
    "nlink",
    "uuid",
    "protattr",
    "treefork.origin",
    "treefork.blocks",
    "anything",
];

/// Values that would lead out of the fork, or hide something, were they believed.
const VALUES: [&str; 5] = ["y", "x", "/e", "/../../../etc", "{\"path\":\"../../etc/passwd\"}"];

fn names_of(path: &Path) -> Vec<String> {
    let mut buffer = vec![0; 4096];
    let length = rustix::fs::llistxattr(path, &mut buffer).expect("listed");
    let names = buffer[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty());
    names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

#[test]
fn the_marks_of_our_own_overlay_are_out_of_reach() {
    let fork = Fork::new(BASE);
    fork.sh("echo changed > d/f; mv e moved; echo new > new; rm a");
    let paths = ["", "d", "d/f", "d/sub", "d/sub/g", "moved", "moved/f", "new"].map(|path| fork.join(path));
    let before = Look::default().at(&fork.path);
    for path in &paths {
        for mark in MARKS {
            let name = CString::new(format!("user.overlay.{mark}")).expect("no NUL");
            for value in VALUES {
                for flags in [XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE] {
                    let set = rustix::fs::lsetxattr(path, &name, value.as_bytes(), flags);
                    assert_eq!(set, Err(Errno::PERM), "{name:?} on {path:?}");
                }
            }
            let mut buffer = [0; 256];
            assert_eq!(rustix::fs::lgetxattr(path, &name, &mut buffer), Err(Errno::NODATA), "{name:?} of {path:?}");
            assert_eq!(rustix::fs::lremovexattr(path, &name), Err(Errno::PERM), "{name:?} of {path:?}");
        }
        let file = fs::File::open(path).expect("there");
        assert_eq!(rustix::fs::fsetxattr(&file, "user.overlay.opaque", b"y", XattrFlags::empty()), Err(Errno::PERM));
        assert_eq!(names_of(path), Vec::<String>::new(), "{path:?} shows attributes");
    }
    fork.restart();
    assert_same(&before, &Look::default().at(&fork.path), "after all attempts");
    fork.merge();
    fork.env().sh(&fork.base, "! getfattr -Rhd -m - . 2>/dev/null | grep overlay");
}

/// Marks of the kernel's overlay for root, and of fuse-overlayfs, are attributes like any other: they mean nothing here.
#[test]
fn the_marks_of_other_overlays_mean_nothing() {
    let fork = Fork::new(BASE);
    let look = || Look::default().no_mtime().without("unused").at(&fork.path);
    let before = fork.sh("find . | sort; cat a d/f d/sub/g e/f");
    for family in ["trusted.overlay.", "user.fuseoverlayfs.", "user.overlay_", "user.containers.overlay."] {
        for (mark, value) in MARKS.iter().zip(VALUES.iter().cycle()) {
            let name = CString::new(format!("{family}{mark}")).expect("no NUL");
            for path in ["d", "d/sub", "d/f", "e"] {
                let path = fork.join(path);
                rustix::fs::setxattr(&path, &name, value.as_bytes(), XattrFlags::empty()).expect("like any other");
                let mut buffer = [0; 256];
                let length = rustix::fs::getxattr(&path, &name, &mut buffer).expect("it was set");
                assert_eq!(&buffer[..length], value.as_bytes());
            }
        }
    }
    let marked = look();
    fork.restart();
    assert_eq!(fork.sh("find . | sort; cat a d/f d/sub/g e/f"), before, "nothing is hidden and nothing led away");
    assert_same(&marked, &look(), "attributes and all");
}

/// A mount on a directory of a fork is not ours: the fork goes, and what is mounted stays whole.
#[test]
fn what_is_mounted_in_a_fork_outlives_it() {
    let treefork = Treefork::new();
    let base = treefork.env().dir("base");
    treefork.env().sh(&base, BASE);
    let elsewhere = TempTree::new();
    fs::write(elsewhere.join("precious"), "kept").expect("ours");
    for (label, path) in [("below", "d/sub"), ("root", "")] {
        let fork = treefork.create(&base, label);
        treefork.env().sh(&fork, "echo x > d/new");
        Command::new("mount").arg("--bind").arg(elsewhere.path()).arg(fork.join(path)).ok();
        let removed = treefork.command(["remove", "--force", label]).done();
        if !removed.status.success() {
            // Refused is fine, and then it is whole.
            eprintln!("{}", removed.complaint());
            Command::new("umount").arg(fork.join(path)).ok();
            assert_eq!(fs::read_to_string(fork.join("d/new")).expect("whole"), "x\n");
            treefork.ok(["remove", "--force", label]);
        }
        assert!(!fork.join("precious").exists());
        treefork.ok(["gc"]);
        assert_eq!(fs::read_to_string(elsewhere.join("precious")).expect("not ours"), "kept");
        assert_eq!(fs::read_to_string(base.join("d/sub/g")).expect("the base"), "d/sub/g\n");
    }
}

/// Openers that wait for each other at pipes keep nobody else waiting, however many they are.
#[test]
fn pipes_that_nobody_writes_to_block_nobody_else() {
    let fork = Fork::new("mkfifo base; echo text > file");
    fork.sh("mkfifo new");
    let open = |n: usize| -> Child {
        // One kind for each pipe: a reader and a writer would let each other through.
        let (redirect, name) = [("<", "base"), (">", "new")][n % 2];
        let script = format!("exec 3{redirect}{name}");
        let mut command = fork.env().command_in(&fork.path, "bash");
        command.args(["-c", &script]).stdin(Stdio::null()).spawn().expect("it starts")
    };
    let waiting: Vec<Child> = (0..32).map(open).collect();
    for n in 0..20 {
        fork.sh(&format!("ls -l; cat file; echo {n} > other; mv other another; rm another; [ -p base ]"));
    }
    for mut child in waiting {
        assert!(child.try_wait().expect("ours").is_none(), "nobody writes, and yet it went on");
        child.kill().expect("ours");
        child.wait().expect("ours");
    }
    eventually("the fork can go", || fork.treefork.command(["remove", "--force", "fork"]).done().status.success());
}
