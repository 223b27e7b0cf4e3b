//! The test kit does what it says: it sees every difference, cleans up after itself, and makes the same repository twice.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::common::run::ends_within;
use crate::common::temp;
use crate::common::{Env, Fs, Image, Look, Repo, Run, Shape, TempTree, Tree, mounts, repo};

/// Changes that a listing has to tell apart.
const CHANGES: &[&str] = &[
    "echo x >> f",
    "chmod 600 f",
    "chown 7 f",
    "touch -d @5.000000001 f",
    "setfattr -n user.x -v 2 f",
    "setfacl -m u:7:r f",
    "rm l; ln -s elsewhere l",
    "rm h; cp -p f h",
    "rm f",
    "mkfifo new",
    "touch $'\\xff'",
    "rmdir d; touch d",
];

#[test]
fn a_listing_sees_every_change() {
    let env = Env::new();
    let dir = env.dir("tree");
    let make = "echo text > f; ln f h; ln -s f l; mkdir d; setfattr -n user.x -v 1 f; touch -d @5 f d; touch -hd @5 l";
    for change in CHANGES {
        env.sh(&dir, "rm -rf ./*");
        env.sh(&dir, make);
        env.sh(&dir, "touch -d @5 .");
        let before = Tree::at(&dir);
        assert_eq!(before, Tree::at(&dir), "looking changes nothing");
        env.sh(&dir, change);
        env.sh(&dir, "touch -d @5 .");
        let after = Tree::at(&dir);
        assert!(!before.diff(&after).is_empty(), "not seen: {change}");
        assert_ne!(before.hash(), after.hash(), "{change}");
    }
}

#[test]
fn an_environment_owns_its_mounts_and_processes() {
    let env = Env::new();
    let dir = env.dir("a b");
    env.command("mount").args(["-t", "tmpfs", "none"]).arg(&dir).ok();
    let mut child = env.command("sleep").arg("600").stdin(Stdio::null()).spawn().expect("sleep starts");
    let root = env.tree().path().to_path_buf();
    assert_eq!(mounts::below(&root).len(), 1);
    drop(env);
    assert!(ends_within(&child, Duration::from_secs(60)), "the process is gone");
    child.wait().expect("our own child");
    assert!(mounts::below(&root).is_empty());
    assert!(!root.exists());
}

#[test]
fn images_leave_no_loop_device() {
    for fs in [Fs::Ext4, Fs::Xfs, Fs::Btrfs, Fs::Tmpfs] {
        let image = Image::new(fs, 16);
        let root = image.path();
        let kind = std::process::Command::new("stat").args(["-f", "-c", "%T"]).arg(&root).ok().text();
        assert!(kind.contains(if fs == Fs::Ext4 { "ext" } else { fs.name() }), "{kind}");
        std::fs::write(image.dir("d").join("f"), "x").expect("a new file system has room");
        drop(image);
        assert!(!root.exists());
        let devices = std::process::Command::new("losetup").arg("-a").ok().text();
        assert!(!devices.contains(&*root.parent().expect("mnt is in a tree").to_string_lossy()), "{devices}");
    }
}

#[test]
fn git_sees_nothing_of_the_user() {
    let env = Env::new();
    let dir = env.dir("r");
    env.git(&dir, ["init", "-q"]);
    let origins = env.git(&dir, ["config", "--list", "--show-origin"]);
    let root = env.tree().path().to_string_lossy().into_owned();
    for line in origins.lines() {
        assert!(line.starts_with(&format!("file:{root}")) || line.starts_with("file:.git/"), "{line}");
    }
}

#[test]
fn repositories_are_the_same_in_every_run() {
    let env = Env::new();
    let shape = Shape { files: 300, changed: 10, ignored: 5, submodule: true };
    let look = Look::default().without(".git").without("vendor/lib/.git").no_mtime();
    let [one, two] = ["one", "two"].map(|name| Repo::new(&env, &env.join(name).join("repo"), shape));
    let [tree, again] = [&one, &two].map(|repo| look.at(&repo.path));
    let gitmodules = |tree: &Tree| tree.paths().any(|p| p == Path::new(".gitmodules"));
    assert!(gitmodules(&tree) && gitmodules(&again));
    // The address of the submodule has the temporary path in it; all else is equal.
    let diff = tree.diff(&again);
    assert!(diff.iter().all(|line| line.contains(".gitmodules")), "{diff:?}");
    assert!(one.path.join(OsStr::from_bytes(repo::ODD_NAME)).exists());
    env.git(&one.path, ["fsck", "--strict"]);
    env.git(&one.path, ["checkout", "-q", "other"]);
}

#[test]
fn the_ordinary_user_has_no_power() {
    let env = Env::new();
    assert_eq!(env.user_command("id").arg("-u").ok().text(), "1000");
    let secret = env.join("secret");
    std::fs::write(&secret, "x").expect("ours");
    crate::common::temp::chmod(&secret, 0o600);
    env.user_command("cat").arg(&secret).fails(1);
}

#[test]
fn temporary_trees_are_distinct() {
    let (a, b) = (TempTree::new(), TempTree::new());
    assert_ne!(a.path(), b.path());
}

/// A test run in another PID namespace that shares the temporary directory has process numbers that say nothing here.
#[test]
fn sweeping_takes_what_dead_runs_of_this_namespace_left_and_nothing_else() {
    let tree = TempTree::new();
    // No process has a number this large.
    let dead = u32::MAX;
    let own = temp::prefix();
    let [ours, alive] = [format!("{own}{dead}-0"), format!("{own}{}-0", std::process::id())].map(|name| tree.dir(name));
    let namespace = own.trim_end_matches('-').rsplit('-').next().expect("it is named");
    let elsewhere = tree.dir(format!("{}{dead}-0", own.replace(namespace, "1")));
    temp::sweep(tree.path());
    assert!(!ours.exists() && alive.exists() && elsewhere.exists());
}
