//! Killed at every durable step of a merge, counted and not guessed, and killed again in every step of the recovery:
//! the parent is old or new, and the fork or the parent has all the work.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

use crate::common::{Fs, Image, Look, Run, Tree, Treefork, assert_same};

const BASE: &str = "git init -q; mkdir -p d/sub e keep; seq 9 > f; seq 99 > d/x; seq 5 > d/sub/y; echo gone > g; \
                    echo e > e/f; echo k > keep/k; ln keep/k keep/l; git add -A; git commit -qm start";
const WORK: &str = "echo more >> f; mv d z; echo in >> z/x; rm -r e; mkdir -p n/m; echo p > n/m/p; rm g; mkdir g; \
                    echo g > g/g; chmod 700 keep; echo both >> keep/l; mkfifo fifo; git add -A; git commit -qm work; \
                    echo open > open";

/// A base and its store on a file system of their own.
struct Scene {
    treefork: Treefork,
    image: Image,
    store: PathBuf,
    round: u32,
}

struct Round {
    base: PathBuf,
    fork: PathBuf,
    old: Tree,
    old_git: String,
    new: Tree,
    new_log: String,
}

fn files() -> Look {
    Look::default().without(".git")
}

impl Scene {
    fn new(fs: Fs) -> Self {
        let image = Image::new(fs, 200);
        let store = image.path().join("store");
        Self { treefork: Treefork::new(), image, store, round: 0 }
    }

    fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = self.treefork.command(["--store"]);
        command.arg(&self.store).args(args);
        command
    }

    /// A fresh base with a fork that has done its work.
    fn round(&mut self) -> Round {
        self.round += 1;
        let base = self.image.dir(format!("base{}", self.round));
        let env = self.treefork.env();
        env.sh(&base, BASE);
        let done = self.command(&["create", base.to_str().expect("text"), "--label", &self.label()]).ok();
        let fork = PathBuf::from(done.text());
        env.sh(&fork, WORK);
        let log = |dir: &PathBuf| env.sh(dir, "git log --format=%H");
        Round {
            old: files().at(&base),
            old_git: self.git(&base),
            new: files().at(&fork),
            new_log: log(&fork),
            base,
            fork,
        }
    }

    fn label(&self) -> String {
        format!("r{}", self.round)
    }

    fn git(&self, base: &Path) -> String {
        self.treefork.env().sh(
            base,
            "GIT_OPTIONAL_LOCKS=0 git status --porcelain=v2 --branch; git for-each-ref; git fsck --no-dangling 2>&1",
        )
    }

    /// Runs a command that is killed at its `n`-th point; false where it had fewer.
    fn killed(&self, args: &[&str], n: usize) -> bool {
        let done = self.command(args).env("TREEFORK_FAULT", format!("*:kill@{n}")).done();
        match done.status.signal() {
            Some(9) => true,
            _ => {
                assert!(done.status.success(), "{args:?} with a kill at {n}: {}", done.complaint());
                false
            }
        }
    }

    /// Whether the parent is new; it has to be old or new, and the old state goes with a whole fork.
    fn judge(&self, round: &Round, what: &str) -> bool {
        let now = files().at(&round.base);
        assert!(!round.base.join(".git/index.lock").exists(), "{what}: index.lock is left");
        let new = round.new == now;
        if new {
            let env = self.treefork.env();
            assert_eq!(env.sh(&round.base, "git log --format=%H"), round.new_log, "{what}");
            assert_eq!(env.sh(&round.base, "git status --porcelain; git fsck --no-dangling 2>&1"), "?? open", "{what}");
        } else {
            assert_same(&round.old, &now, &format!("the parent, {what}"));
            assert_eq!(self.git(&round.base), round.old_git, "{what}");
            assert_same(&round.new, &files().at(&round.fork), &format!("the fork, {what}"));
        }
        let bases = std::fs::read_dir(self.store.join("bases")).expect("there").flatten();
        let left: Vec<PathBuf> = bases
            .flat_map(|dir| std::fs::read_dir(dir.path()).expect("there").flatten())
            .map(|entry| entry.path())
            // What was being written when the process died is swept up by the next merge.
            .filter(|path| !path.ends_with("lock") && !path.to_string_lossy().contains("/.tmp."))
            .collect();
        assert_eq!(left, Vec::<PathBuf>::new(), "{what}");
        new
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // Before its file system goes.
        self.command(&["serve", "--stop"]).done();
    }
}

/// Kills a merge at each of its points; with `again`, each recovery at each of its own.
fn every_step(fs: Fs, again: bool) {
    let mut scene = Scene::new(fs);
    let mut round = scene.round();
    let (mut undone, mut finished, mut second) = (0, 0, 0);
    for n in 1.. {
        let label = scene.label();
        if !scene.killed(&["merge", &label], n) {
            break;
        }
        let mut k = 1;
        while again && scene.killed(&["list"], k) {
            second += 1;
            k += 1;
        }
        scene.command(&["list"]).ok();
        // A fork that came out of it is usable again; one that is merged may be gone.
        scene.command(&["path", &label]).done();
        if scene.judge(&round, &format!("{} killed at {n}", fs.name())) {
            finished += 1;
            round = scene.round();
        } else {
            undone += 1;
        }
    }
    assert!(scene.judge(&round, "merged at last"));
    eprintln!(
        "{}: {} points of a merge, {undone} undone, {finished} finished, {second} kills in recovery",
        fs.name(),
        undone + finished
    );
    assert!(undone > 40 && finished > 3, "{undone} {finished}");
}

#[test]
fn killed_at_every_step_and_again_on_ext4() {
    every_step(Fs::Ext4, true);
}

/// Whether recovery is killed as well on the other file systems; that takes minutes.
fn again_everywhere() -> bool {
    let again = std::env::var_os("TREEFORK_KILL_AGAIN").is_some();
    if !again {
        eprintln!("NOT RUN: kills in recovery on this file system; set TREEFORK_KILL_AGAIN for them");
    }
    again
}

#[test]
fn killed_at_every_step_on_xfs() {
    every_step(Fs::Xfs, again_everywhere());
}

#[test]
fn killed_at_every_step_on_btrfs() {
    every_step(Fs::Btrfs, again_everywhere());
}
