//! Readers that are to see uncommitted work. The single cases of what comes over are in `git::dirty`, among them
//! that a clean tree takes exactly one git command and that its environment is scrubbed.

use std::fs;
use std::os::unix::fs::symlink;

use super::{Host, read, root};
use crate::common::assert_same;

#[test]
fn uncommitted_work_comes_over() {
    let host = Host::git();
    host.write("a.txt", "modified\n");
    host.write("b.txt", "staged\n");
    host.env.git(&host.base, ["add", "b.txt"]);
    fs::remove_file(host.base.join("d/c.txt")).expect("ours");
    fs::write(host.base.join("bin.dat"), [9, 0, 254]).expect("ours");
    fs::create_dir(host.base.join("new")).expect("ours");
    host.write("new/file", "untracked\n");
    host.write("new/x.log", "ignored\n");
    symlink("/etc/passwd", host.base.join("link")).expect("ours");
    // git registers a linked work tree, so that its directory changes; nothing in it does.
    let look = || (host.look_outside_git(), read(&host.base, ".git/index"), read(&host.base, ".git/HEAD"));
    let before = look();
    let fork = host.fork(host.forker().dirty_overlay());
    assert_eq!(fork.advisory, "");
    assert_eq!(read(root(&fork), "a.txt"), b"modified\n");
    assert_eq!(read(root(&fork), "b.txt"), b"staged\n");
    assert_eq!(read(root(&fork), "bin.dat"), [9, 0, 254]);
    assert_eq!(read(root(&fork), "new/file"), b"untracked\n");
    for absent in ["d/c.txt", "new/x.log", "link"] {
        assert!(fs::symlink_metadata(root(&fork).join(absent)).is_err(), "{absent}");
    }
    let after = look();
    assert_same(&before.0, &after.0, "the base");
    assert!((before.1, before.2) == (after.1, after.2), "index and HEAD");
}

#[test]
fn both_sides_go_on_by_themselves() {
    let host = Host::git();
    host.write("a.txt", "dirty\n");
    let fork = host.fork(host.forker().dirty_overlay());
    fs::write(root(&fork).join("a.txt"), "fork\n").expect("writable");
    host.write("b.txt", "base\n");
    assert_eq!(read(&host.base, "a.txt"), b"dirty\n");
    assert_eq!(read(root(&fork), "b.txt"), b"two\n");
}

#[test]
fn failure_gives_an_advisory_and_the_committed_head() {
    let host = Host::git();
    host.write("a.txt", "dirty\n");
    fs::write(host.base.join(".git/index"), "no index").expect("ours");
    let fork = host.fork(host.forker().dirty_overlay());
    assert!(fork.advisory.contains("committed HEAD only"), "{}", fork.advisory);
    assert_eq!(read(root(&fork), "a.txt"), b"one\n");
    assert_eq!(host.env.git(root(&fork), ["status", "--porcelain"]), "");
}
