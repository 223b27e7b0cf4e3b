//! Copies and reflinks: everything is there, the base is untouched, git re-reads nothing, and changes are found.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use treefork::layer::manifest::Manifest;
use treefork::strategy::{Copy, Hide, Made, Reflink, Site, Strategy, Symlinks, Wishes};

use super::{opened_by_git, site};
use crate::common::{Env, Fs, Image, Look, Repo, Run, Shape, TempTree, Tree, assert_same, temp};

/// Makes a fork of a full repository and checks all that both strategies promise.
fn check(strategy: &dyn Strategy, root: &Path, unchanged: &str) -> Made {
    let env = Env::new();
    let base = root.join("base");
    Repo::new(&env, &base, Shape { files: 300, changed: 20, ignored: 5, submodule: true });
    env.sh(&base, "mkfifo fifo; mkdir -p ro/x; echo y > ro/x/file; chmod 555 ro/x ro; truncate -s 64M sparse");
    env.sh(
        &base,
        "setfattr -n user.note -v here README; printf data | dd of=sparse bs=1 seek=1M conv=notrunc status=none",
    );
    env.sh(&base, "chmod 4711 build/obj1.bin; chown 1000:1001 build/obj2.bin; touch -hd @7.123456789 build/latest");
    env.git(&base, ["update-index", "-q", "--refresh"]);
    let look = Look::default().ctime().ino();
    let before = look.at(&base);
    let site = site(&base, &root.join("store"), "f");
    strategy.probe(&site).expect("possible here");
    let entries = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&entries);
    let progress: treefork::strategy::Progress = Arc::new(move |n, _| {
        seen.fetch_max(n, Ordering::Relaxed);
        ControlFlow::Continue(())
    });
    let made = strategy.create(&site, &Wishes { progress: Some(progress), ..Wishes::default() }).expect("made");
    assert!(entries.load(Ordering::Relaxed) > 300, "progress was told");
    assert_same(&before, &look.at(&base), "the base");
    // The indexes differ on purpose: they speak of the copies. Objects of the submodule are hard links out of the base.
    let tree = site.tree();
    let same = |look: Look| look.without(".git/index").without(".git/modules");
    assert_same(&same(Look::default()).at(&base), &same(Look::default()).at(&tree), "the fork");
    assert!(fs::metadata(tree.join("sparse")).expect("there").blocks() < 1024, "holes are kept");
    for dir in [tree.clone(), tree.join("vendor/lib")] {
        assert_eq!(opened_by_git(&env, &dir, &["status", "--porcelain"]), Vec::<std::path::PathBuf>::new());
    }
    assert_eq!(
        env.git(&tree, ["status", "--porcelain"]),
        env.git(&base, ["--no-optional-locks", "status", "--porcelain"])
    );
    env.git(&tree, ["fsck", "--strict"]);
    let changed = || -> Vec<String> {
        let manifest = Manifest::read(&site.work()).expect("written");
        let differences = manifest.compare(&tree).expect("readable");
        let paths = differences.into_iter().map(|d| d.path.as_path().display().to_string());
        paths.filter(|path| !path.starts_with(".git")).collect()
    };
    assert_eq!(changed(), Vec::<String>::new(), "{unchanged}");
    env.sh(&tree, "echo more >> README; rm hard/a; touch new; chmod 600 .gitignore");
    assert_eq!(changed(), ["", "README", "hard", "hard/a", "hard/b", "new"]);
    assert_same(&before, &look.at(&base), "the base after changes in the fork");
    strategy.destroy(&site).expect("destroyed");
    made
}

#[test]
fn a_copy_on_each_file_system() {
    for image in [Fs::Ext4, Fs::Tmpfs].map(|fs| Image::new(fs, 200)) {
        let made = check(&Copy, &image.path(), "as made");
        assert_eq!(made.advisories, Vec::<String>::new());
    }
}

#[test]
fn a_reflink_where_the_file_system_can() {
    for image in [Image::xfs(300), Image::btrfs(300)] {
        let made = check(&Reflink, &image.path(), "as made");
        assert_eq!(made.advisories, Vec::<String>::new());
    }
}

#[test]
fn a_copy_can_be_cancelled() {
    let tree = TempTree::new();
    let base = tree.dir("base");
    fs::write(base.join("file"), "x").expect("ours");
    let site = site(&base, &tree.dir("store"), "f");
    let progress: treefork::strategy::Progress = Arc::new(|_, _| ControlFlow::Break(()));
    let error = Copy.create(&site, &Wishes { progress: Some(progress), ..Wishes::default() }).expect_err("cancelled");
    assert_eq!(error.kind(), treefork::Kind::Cancelled);
}

#[test]
fn a_reflink_shares_its_blocks() {
    let image = Image::xfs(300);
    let base = image.dir("base");
    fs::write(base.join("large"), vec![7; 32 << 20]).expect("room");
    let used = || {
        std::process::Command::new("sync").arg("-f").arg(image.path()).ok();
        let stat = rustix::fs::statvfs(image.path()).expect("mounted");
        (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    };
    let before = used();
    let site = site(&base, &image.dir("store"), "f");
    Reflink.create(&site, &Wishes::default()).expect("made");
    let used = used().saturating_sub(before);
    assert!(used < 8 << 20, "{used} bytes for a copy of 32 MiB");
}

#[test]
fn a_reflink_is_refused_with_the_reason() {
    let (ext4, xfs) = (Image::ext4(64), Image::xfs(300));
    let base = ext4.dir("base");
    fs::write(base.join("file"), "x").expect("room");
    let refused = |store: &Path| Reflink.probe(&site(&base, store, "f")).expect_err("cannot").to_string();
    assert!(refused(&ext4.dir("store")).contains("cannot share blocks"), "same file system");
    assert!(refused(&xfs.dir("store")).contains("another file system"), "another file system");
}

#[test]
fn mounts_in_the_base_are_named_and_counted() {
    let image = Image::xfs(300);
    let base = image.dir("base");
    fs::write(base.join("file"), "x").expect("room");
    for (dir, kind) in [("tmp", "tmpfs"), ("proc", "proc")] {
        fs::create_dir(base.join(dir)).expect("room");
        std::process::Command::new("mount").args(["-t", kind, kind]).arg(base.join(dir)).ok();
    }
    fs::write(base.join("tmp/inner"), "y").expect("room");
    let site = site(&base, &image.dir("store"), "f");
    let made = Reflink.create(&site, &Wishes::default()).expect("made");
    let said = made.advisories.join("\n");
    assert!(said.contains("1 of 2 files could not share"), "{said}");
    assert!(said.contains("\"tmp\"") && said.contains("\"proc\""), "{said}");
    assert_eq!(fs::read_to_string(site.tree().join("tmp/inner")).expect("there"), "y");
    assert_eq!(fs::read_dir(site.tree().join("proc")).expect("there").count(), 0);
    let manifest = Manifest::read(&site.work()).expect("written");
    assert_eq!(manifest.mounts.len(), 2);
}

#[test]
fn links_are_kept_confined_or_skipped() {
    let tree = TempTree::new();
    let base = tree.dir("base");
    fs::create_dir(base.join("d")).expect("ours");
    for (name, target) in [("in", "d"), ("out", "../elsewhere"), ("abs", "/etc/passwd"), ("d/up", "../../x")] {
        symlink(target, base.join(name)).expect("ours");
    }
    symlink(base.join("d"), base.join("own")).expect("ours");
    let expected: [(Symlinks, &[&str]); 3] = [
        (Symlinks::Keep, &["abs", "d", "d/up", "in", "out", "own"]),
        (Symlinks::Confine, &["d", "in", "own"]),
        (Symlinks::Skip, &["d"]),
    ];
    for (symlinks, names) in expected {
        let site = Site {
            hide: Hide { symlinks, ..Hide::default() },
            ..site(&base, &tree.dir("store"), &format!("{symlinks:?}"))
        };
        Copy.create(&site, &Wishes::default()).expect("made");
        let seen = Tree::at(&site.tree());
        let seen: Vec<&str> = seen.paths().skip(1).map(|path| path.to_str().expect("text")).collect();
        assert_eq!(seen, names, "{symlinks:?}");
        if symlinks != Symlinks::Skip {
            assert_eq!(fs::read_link(site.tree().join("own")).expect("a link"), Path::new("d"));
        }
        assert_eq!(Copy.is_changed(&site).expect("readable"), Some(false));
    }
}

#[test]
fn an_ordinary_user_keeps_what_it_may() {
    // Copied by root as somebody else's files, then by that somebody, who may not give files away.
    let env = Env::new();
    let base = env.dir("base");
    fs::write(base.join("mine"), "x").expect("ours");
    fs::write(base.join("theirs"), "x").expect("ours");
    fs::set_permissions(base.join("theirs"), fs::Permissions::from_mode(0o6755)).expect("ours");
    temp::chmod(&base, 0o755);
    std::os::unix::fs::chown(base.join("mine"), Some(1000), Some(1000)).expect("root");
    let store = env.dir("user-store");
    std::os::unix::fs::chown(&store, Some(1000), Some(1000)).expect("root");
    let mut command = env.user_command(crate::common::cli::BINARY);
    let done = command.args(["--store"]).arg(&store).args(["create", "--strategy", "copy"]).arg(&base).ok();
    let stat = fs::metadata(Path::new(&done.text()).join("theirs")).expect("there");
    assert_eq!((stat.uid(), stat.mode() & 0o7777), (1000, 0o755), "set-id bits would lend another's rights");
    let said = format!("{}{}", done.complaint(), done.text());
    assert!(said.contains("owner of"), "{said}");
}
