//! How many system calls ordinary changes take. These numbers are exact, where times are noisy.

use super::*;
use crate::sys::fault::{Action, Rule, scoped};

/// What a change took, by name and in order; how bytes of a base file come over is up to the file system.
fn calls<T>(change: impl FnOnce() -> Result<T>) -> Vec<&'static str> {
    let (done, passed) = scoped(vec![Rule::new("sys.none", Action::Panic, 0)], change);
    done.unwrap_or_else(|e| panic!("{e}: {passed:?}"));
    let names = passed.into_iter().filter_map(|name| name.strip_prefix("sys."));
    names.filter(|name| *name != "ioctl_ficlone").collect()
}

/// A fork of a directory with some small files, in which everything was looked at, and whose directory stands in the upper.
fn looked_at() -> Fork {
    let fork = fork(|base| {
        fs::create_dir(base.join("d")).expect("room");
        for name in ["first", "f", "g", "h"] {
            fs::write(base.join("d").join(name), "some text\n").expect("room");
        }
    });
    // What is found out with the first copy and the first new file is known from then on.
    let first = fork.id("d/first");
    fork.overlay.write(first, 0, b"x", false).expect("room");
    fork.touch("d", "second");
    for name in ["f", "g", "h"] {
        fork.id(&format!("d/{name}"));
    }
    fork
}

const STAGED: [&str; 6] = ["openat2", "statx", "openat", "pread", "fsetxattr", "flistxattr"];
const PLACED: [&str; 5] = ["statx", "write", "statx", "renameat_with", "utimensat"];

fn without<'a>(calls: &[&'a str], name: &str) -> Vec<&'a str> {
    calls.iter().copied().filter(|call| *call != name).collect()
}

#[test]
fn a_new_file() {
    let fork = looked_at();
    let dir = fork.id("d");
    let mut node = 0;
    let made = calls(|| {
        node = fork.overlay.mknod(me(), dir, OsStr::new("new"), 0o100_644, 0, 0)?.node;
        Ok(())
    });
    // The directory has lowers, so it is looked there, too.
    assert_eq!(made, ["statx", "statx", "openat", "statx"]);
    let asked = calls(|| match fork.overlay.getxattr(node, OsStr::new("security.capability")) {
        Err(Errno::NODATA) => Ok(()),
        other => other.map(drop),
    });
    assert_eq!(asked, [""; 0], "it is new: it has none");
    assert_eq!(calls(|| fork.overlay.write(node, 0, b"text", false)), ["pwrite"]);
}

#[test]
fn a_base_file_that_is_written_anew() {
    let fork = looked_at();
    let node = fork.id("d/f");
    let empty = SetAttr { size: Some(0), ..SetAttr::default() };
    let cut = calls(|| fork.overlay.setattr(me(), node, &empty));
    // The last is for the answer.
    assert_eq!(cut, [&STAGED[..], &PLACED[..], &["statx"]].concat());
    assert_eq!(calls(|| fork.overlay.write(node, 0, b"text", false)), ["pwrite"]);
    assert_eq!(fork.content("d/f"), b"text");
}

#[test]
fn a_base_file_that_is_written_to() {
    let fork = looked_at();
    let node = fork.id("d/f");
    let written = calls(|| fork.overlay.write(node, 0, b"S", false));
    let whole = [&STAGED[..], &["futimens"], &PLACED[..], &["pwrite"]].concat();
    // Where blocks are shared, what is written is only the new text.
    let copied = without(&written, "pwrite").len();
    assert_eq!(without(&written, "pwrite"), without(&whole, "pwrite"));
    assert!((copied + 1..=copied + 2).contains(&written.len()), "{written:?}");
    assert_eq!(fork.content("d/f"), b"Some text\n");
}

#[test]
fn a_base_file_that_is_renamed() {
    let fork = looked_at();
    let dir = fork.id("d");
    let rename = |from, to| fork.overlay.rename(dir, OsStr::new(from), dir, OsStr::new(to), RenameFlags::empty());
    let renamed = calls(|| rename("f", "new"));
    // Each name is looked at in the upper and in the base; the second line of the ledger is left out.
    let whole = [&["statx"; 4], &STAGED[..], &["futimens"], &PLACED[..], &["renameat_with"]].concat();
    assert_eq!(without(&renamed, "pwrite"), whole);
    assert_eq!(calls(|| rename("new", "newer")), ["statx", "lgetxattr", "statx", "statx", "statx", "renameat_with"]);
    let made = fork.touch("d", "made");
    assert_eq!(calls(|| rename("made", "again")), ["statx", "statx", "statx", "statx", "renameat_with"]);
    assert_eq!((fork.id("d/again"), fork.content("d/newer")), (made, b"some text\n".to_vec()));
    assert_eq!(fork.names("d"), ["again", "first", "g", "h", "newer", "second"]);
}

#[test]
fn a_name_that_is_removed() {
    let fork = looked_at();
    let dir = fork.id("d");
    let unlink = |name| fork.overlay.unlink(dir, OsStr::new(name));
    assert_eq!(calls(|| unlink("f")), ["statx", "statx", "write", "linkat"]);
    // Its descriptor is kept for whoever has it open.
    assert_eq!(calls(|| unlink("second")), ["statx", "statx", "unlinkat"]);
    // What was changed has to make way for the whiteout in one step.
    assert_eq!(calls(|| unlink("first")), ["statx", "lgetxattr", "statx", "write", "linkat", "renameat_with"]);
    assert_eq!(fork.names("d"), ["g", "h"]);
}

#[test]
fn the_attributes_of_a_directory() {
    let mut fork = fork(|base| {
        for dir in ["d/a/x", "d/b", "d/c", "d/e", "leaf"] {
            fs::create_dir_all(base.join(dir)).expect("room");
        }
        for file in ["d/f", "d/c/f", "leaf/f"] {
            fs::write(base.join(file), "text").expect("room");
        }
    });
    let attributes = |fork: &Fork, path: &str| {
        let dir = fork.id(path);
        let mut links = 0;
        let calls = calls(|| fork.overlay.getattr(dir).map(|(attr, _)| links = attr.nlink));
        (links, calls)
    };
    let overlay = Arc::clone(&fork.overlay);
    let (dir, c) = (fork.id("d"), fork.id("d/c"));
    fork.touch("leaf", "new");
    // Neither side is listed to know how many subdirectories there are.
    assert_eq!(attributes(&fork, "leaf"), (2, vec!["statx", "statx"]));
    fork.touch("d/c", "new");
    assert_eq!(attributes(&fork, "d"), (6, vec!["statx", "statx"]));
    overlay.rmdir(dir, OsStr::new("b")).expect("empty");
    overlay.unlink(dir, OsStr::new("f")).expect("there");
    overlay.mkdir(me(), dir, OsStr::new("f"), 0o755, 0).expect("room");
    overlay.mkdir(me(), c, OsStr::new("below"), 0o755, 0).expect("room");
    fork.rename(("d", "e"), ("d", "moved")).expect("a directory");
    fork.touch("d", "e");
    assert_eq!(attributes(&fork, "d"), (6, vec!["statx", "statx"]), "a, c, f, moved");
    drop(overlay);
    fork.restart();
    let (links, counted) = attributes(&fork, "d");
    assert_eq!((links, attributes(&fork, "leaf").0, attributes(&fork, "d/c").0), (6, 2, 3), "{counted:?}");
    assert_eq!(attributes(&fork, "d").1, ["statx", "statx"], "once counted it is known");
}

#[test]
fn the_way_to_a_base_file() {
    let fork = fork(|base| {
        fs::create_dir_all(base.join("d/e")).expect("room");
        fs::write(base.join("f"), "text").expect("room");
        fs::write(base.join("d/e/f"), "text").expect("room");
    });
    fork.overlay.write(fork.id("f"), 0, b"T", false).expect("room");
    let (dir, e) = (fork.id("d"), fork.id("d/e"));
    // A directory comes up as a shell: made, marked, with the times and a line in the ledger, and moved into its place.
    let shell = ["statx", "mkdirat", "openat", "fsetxattr", "listxattr", "futimens", "write"];
    let placed = ["statx", "renameat_with", "utimensat"];
    let first = calls(|| fork.overlay.mknod(me(), dir, OsStr::new("new"), 0o100_644, 0, 0));
    assert_eq!(first[1..=10], [&shell[..], &placed[..]].concat(), "after the look at the name: {first:?}");
    fork.overlay.mkdir(me(), e, OsStr::new("sub"), 0o755, 0).expect("room");
    let made = calls(|| fork.overlay.mkdir(me(), e, OsStr::new("more"), 0o755, 0));
    assert_eq!(made, ["statx", "statx", "mkdirat", "lsetxattr", "statx"]);
    let sub = fork.id("d/e/sub");
    let in_new = calls(|| fork.overlay.mknod(me(), sub, OsStr::new("new"), 0o100_644, 0, 0));
    assert_eq!(in_new, ["openat", "openat", "statx"], "what it inherits is known");
}

#[test]
fn a_base_file_that_is_read() {
    let fork = looked_at();
    let node = fork.id("d/f");
    let mut buffer = [0; 4096];
    assert_eq!(calls(|| fork.overlay.read(node, 0, &mut buffer)), ["openat2", "statx", "pread"]);
    assert_eq!(calls(|| fork.overlay.read(node, 5, &mut buffer)), ["pread"]);
}

#[test]
fn a_directory_that_is_listed() {
    let fork = looked_at();
    let dir = fork.id("d");
    let listed = calls(|| fork.overlay.readdir(dir, 0, &mut |_| false));
    let opened: Vec<_> = listed.iter().filter(|name| **name != "getdents").collect();
    // The upper, with the marks of what stands there, and the base.
    assert_eq!(opened, [&"open", &"lgetxattr", &"lgetxattr", &"open"]);
}
