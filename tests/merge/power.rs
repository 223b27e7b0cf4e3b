//! The power goes at each moment at which something is brought to the disk: what the disk holds then is what comes up.
//!
//! The command stops itself before each `fsync`, `fdatasync` and `syncfs`; the image of its file system is copied as it
//! is, without what the kernel still keeps in memory. Later each copy is mounted at the same place, as after a start.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::common::{Fs, Image, Look, Run, Tree, Treefork, assert_same, mounts};

const BASE: &str = "git init -q; mkdir -p d/sub e; seq 9 > f; seq 99 > d/x; seq 5 > d/sub/y; echo e > e/f; \
                    git add -A; git commit -qm start";
const WORK: &str = "echo more >> f; mv d z; echo in >> z/x; rm -r e; mkdir -p n/m; echo p > n/m/p; git add -A; \
                    git commit -qm work; echo open > open; sync -f .";
const STOPS: &str = "sys.fsync:pause@*;sys.fdatasync:pause@*;sys.syncfs:pause@*";

struct Scene {
    treefork: Treefork,
    image: Image,
    base: PathBuf,
}

impl Scene {
    fn new(fs: Fs) -> Self {
        let image = Image::new(fs, 64);
        let treefork = Treefork::with_store(image.path().join("store"));
        let base = image.dir("base");
        treefork.env().sh(&base, BASE);
        Self { treefork, image, base }
    }

    fn files(&self, at: &Path) -> Tree {
        Look::default().without(".git").at(at)
    }

    /// Runs a command to its end; the images at each of its stops, and one of the end.
    #[expect(clippy::zombie_processes, reason = "waited for by its number, which tells of stops as well")]
    fn cut(&self, args: &[&str]) -> Vec<PathBuf> {
        Command::sync(&self.image.path());
        let mut command = self.treefork.command(args);
        let child = command.env("TREEFORK_FAULT", STOPS).stdout(Stdio::null()).spawn().expect("starts");
        let pid = Pid::from_child(&child);
        let mut images = Vec::new();
        loop {
            let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).expect("a child").expect("it stops or ends");
            images.push(self.image.copy(&format!("cut{}", images.len())));
            if !status.stopped() {
                assert_eq!(status.exit_status(), Some(0), "{args:?}");
                break;
            }
            kill_process(pid, Signal::CONT).expect("a child");
        }
        self.treefork.ok(["serve", "--stop"]);
        images
    }

    /// What a command left in the background has stopped itself as well: it goes on, to its end.
    fn go_on(&self) {
        let store = self.image.path().join("store");
        for process in std::fs::read_dir("/proc").expect("it is mounted").flatten() {
            let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let command = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            if mounts::mentions(&command, &store) {
                let _ = kill_process(Pid::from_raw(pid).expect("not 0"), Signal::CONT);
            }
        }
    }

    /// The machine starts with that image; the next command brings everything in order.
    fn start(&self, image: &Path) {
        self.treefork.command(["serve", "--stop"]).done();
        self.image.swap(image, || self.go_on());
        self.treefork.ok(["list"]);
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // Before its file system goes.
        self.treefork.command(["serve", "--stop"]).done();
    }
}

struct Command;

impl Command {
    fn sync(dir: &Path) {
        std::process::Command::new("sync").arg("-f").arg(dir).ok();
    }
}

fn merge_on(fs: Fs) {
    let scene = Scene::new(fs);
    let fork = scene.treefork.create(&scene.base, "w");
    scene.treefork.env().sh(&fork, WORK);
    let (old, new) = (scene.files(&scene.base), scene.files(&fork));
    let images = scene.cut(&["merge", "w"]);
    let (mut before, mut after) = (0, 0);
    for (n, image) in images.iter().enumerate() {
        let what = format!("{} cut at {n} of {}", fs.name(), images.len());
        scene.start(image);
        let now = scene.files(&scene.base);
        if now == new {
            after += 1;
        } else {
            assert_same(&old, &now, &format!("the parent, {what}"));
            let fork = PathBuf::from(scene.treefork.ok(["path", "w"]).text());
            assert_same(&new, &scene.files(&fork), &format!("the fork, {what}"));
            scene.treefork.ok(["merge", "w"]);
            assert_same(&new, &scene.files(&scene.base), &format!("merged again, {what}"));
            before += 1;
        }
        assert_eq!(
            scene.treefork.env().sh(&scene.base, "git fsck --no-dangling 2>&1; git status --porcelain"),
            "?? open"
        );
    }
    eprintln!("{}: {} power cuts in a merge: {before} old, {after} new", fs.name(), images.len());
    assert!(before > 2 && after > 0, "{before} {after}");
}

#[test]
fn a_merge_is_old_or_new_on_ext4() {
    merge_on(Fs::Ext4);
}

#[test]
fn a_fork_is_there_or_not() {
    let scene = Scene::new(Fs::Ext4);
    let created = scene.cut(&["create", scene.base.to_str().expect("text"), "--label", "cutfork"]);
    let mut there = Vec::new();
    for image in &created {
        scene.start(image);
        there.push(labels(&scene).contains("\"state\": \"live\""));
        if there.last() == Some(&true) {
            let fork = PathBuf::from(scene.treefork.ok(["path", "cutfork"]).text());
            assert_same(&scene.files(&scene.base), &scene.files(&fork), "the fork");
        } else {
            scene.treefork.create(&scene.base, "cutfork");
        }
    }
    assert_eq!(there.last(), Some(&true), "what was answered is there");
    let removed = scene.cut(&["remove", "--force", "cutfork"]);
    for image in &removed {
        scene.start(image);
        if labels(&scene).contains("cutfork") {
            scene.treefork.ok(["remove", "--force", "cutfork"]);
        }
    }
    eprintln!("{} power cuts in create, {} in remove", created.len(), removed.len());
}

fn labels(scene: &Scene) -> String {
    scene.treefork.ok(["list", "--json"]).text()
}

/// What an application has synced is there, whatever happened to the server's own files.
#[test]
fn what_was_synced_survives() {
    let scene = Scene::new(Fs::Ext4);
    let fork = scene.treefork.create(&scene.base, "cutfork");
    Command::sync(&scene.image.path());
    let script = "import os\nfor name, how in (('f', os.O_RDWR), ('z', os.O_RDWR | os.O_CREAT)):\n\
                  \x20   fd = os.open(name, how); os.pwrite(fd, b'kept', 0); os.fsync(fd)\n\
                  d = os.open('.', os.O_RDONLY); os.fsync(d)\n";
    scene.treefork.env().command_in(&fork, "python3").args(["-c", script]).ok();
    let image = scene.image.copy("cut");
    scene.start(&image);
    let fork = PathBuf::from(scene.treefork.ok(["path", "cutfork"]).text());
    let read = |name: &str| std::fs::read_to_string(fork.join(name)).expect("there");
    assert_eq!((read("f").as_str(), read("z").as_str()), ("kept3\n4\n5\n6\n7\n8\n9\n", "kept"));
    let base = std::fs::read_to_string(scene.base.join("f")).expect("there");
    assert!(base.starts_with("1\n2\n"), "{base}");
}
