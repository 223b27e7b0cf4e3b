//! Failures in the middle, races with the parent, merges at the same time.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::kit::Work;
use crate::common::{Image, Look, Run, Tree, Treefork, assert_same};

const BASE: &str = "mkdir d e; seq 9 > f; seq 99 > d/x; echo e > e/f; echo z > z";
const WORK: &str = "echo more >> f; echo in >> d/x; mkdir n; echo n > n/n; rm -r e; echo z2 > z";

#[test]
fn a_failure_at_any_step_leaves_the_parent_old_or_new() {
    let (mut old, mut new) = (0, 0);
    let mut fresh: Option<(Work, Tree, Tree)> = None;
    for n in 1.. {
        let (work, before, wanted) = fresh.take().unwrap_or_else(|| {
            let work = Work::plain(BASE);
            let fork = work.fork("w", WORK);
            let (before, wanted) = (Tree::at(&work.base), Tree::at(&fork));
            (work, before, wanted)
        });
        let rule = format!("merge.*:fail={}@{n}", libc::ENOSPC);
        let log = work.treefork.env().join("points");
        let _ = std::fs::remove_file(&log);
        let mut merge = work.treefork.command(["merge", "w"]);
        let done = merge.env("TREEFORK_FAULT", rule).env("TREEFORK_FAULT_LOG", &log).done();
        let points = std::fs::read_to_string(&log).expect("points are logged");
        if points.lines().filter(|point| point.starts_with("merge.")).count() < n {
            assert!(done.status.success(), "{}", done.complaint());
            break;
        }
        assert!(done.complaint().contains("No space left"), "{}", done.complaint());
        // What could not be cleared up is cleared up by the next command.
        work.treefork.ok(["list"]);
        let now = Tree::at(&work.base);
        // Once it has landed it has succeeded, and says what is left to do.
        assert_eq!(done.status.success(), now == wanted, "{}", done.complaint());
        if now == wanted {
            new += 1;
        } else {
            assert_same(&before, &now, &format!("the parent after a failure at {n}"));
            old += 1;
            fresh = Some((work, before, wanted));
        }
    }
    eprintln!("{old} failures undone, {new} after the parent was new");
    assert!(old > 10 && new > 1, "{old} {new}");
}

#[test]
fn an_immutable_file_in_the_middle() {
    let work = Work::plain(BASE);
    let fork = work.fork("w", WORK);
    let wanted = Tree::at(&fork);
    work.in_base("chattr +i z");
    let before = Look::default().ino().at(&work.base);
    let done = work.treefork.fails(1, ["merge", "w"]);
    work.in_base("chattr -i z");
    assert!(done.complaint().contains("\"z\""), "{}", done.complaint());
    assert_same(&before, &Look::default().ino().at(&work.base), "the base");
    assert_same(&wanted, &Tree::at(&fork), "the fork");
    assert_eq!(work.leftovers(), Vec::<std::path::PathBuf>::new());
    work.merge("w", &[]);
    assert_same(&wanted, &Tree::at(&work.base), "the base at last");
}

#[test]
fn a_full_parent_stays_as_it_was() {
    // Case 28.
    let work = Work::plain(":");
    let image = Image::ext4(16);
    let base = image.dir("base");
    let env = work.treefork.env();
    env.sh(&base, BASE);
    let fork = work.treefork.create(&base, "big");
    env.sh(&fork, "echo small > f; head -c 40M /dev/urandom > big; rm -r e");
    let before = Tree::at(&base);
    let done = work.treefork.fails(1, ["merge", "big"]);
    assert!(done.complaint().contains("No space left"), "{}", done.complaint());
    assert_same(&before, &Tree::at(&base), "the base");
    assert_eq!(std::fs::metadata(fork.join("big")).expect("the fork has it").len(), 40 << 20);
    let names = env.sh(&image.path(), "ls -A | grep treefork || true");
    assert_eq!(names, "", "no stage is left");
    env.sh(&fork, "rm big");
    work.treefork.ok(["merge", "big"]);
    assert_eq!(env.sh(&base, "cat f; ls"), "small\nd\nf\nlost+found\nz".replace("lost+found\n", ""));
    work.treefork.ok(["serve", "--stop"]);
}

#[test]
fn a_parent_that_becomes_read_only_in_the_middle() {
    for point in ["merge.stage.object", "merge.step", "merge.times"] {
        let image = Image::ext4(16);
        let work = Work { treefork: Treefork::new(), base: image.dir("base") };
        work.in_base(BASE);
        let fork = work.fork("w", WORK);
        let (before, wanted) = (Tree::at(&work.base), Tree::at(&fork));
        let paused = Paused::at(&work, point);
        let remount = |how: &str| work.in_base(&format!("mount -o remount,{how} {}", image.path().display()));
        remount("ro");
        let output = paused.go_on();
        assert_eq!(output.status.code(), Some(1), "{point}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("Read-only"), "{point}: {output:?}");
        remount("rw");
        // What could not be undone then is undone by the next command.
        work.treefork.ok(["list"]);
        assert_same(&before, &Tree::at(&work.base), &format!("the parent, {point}"));
        assert_eq!(work.leftovers(), Vec::<std::path::PathBuf>::new());
        let path = work.treefork.ok(["path", "w"]).text();
        assert_same(&wanted, &Tree::at(path.as_ref()), &format!("the fork, {point}"));
        work.merge("w", &[]);
        assert_same(&wanted, &Tree::at(&work.base), &format!("the parent at last, {point}"));
        work.treefork.ok(["serve", "--stop"]);
    }
}

/// A merge that has stopped itself at a point; goes on, and to its end, when told.
struct Paused(Child);

impl Paused {
    fn at(work: &Work, point: &str) -> Self {
        let mut command: Command = work.treefork.command(["merge", "w"]);
        command.env("TREEFORK_FAULT", format!("{point}:pause"));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        let (_, status) = waitpid(Some(pid(&child)), WaitOptions::UNTRACED).expect("a child").expect("it stops");
        assert!(status.stopped(), "{status:?}");
        Self(child)
    }

    fn go_on(self) -> std::process::Output {
        kill_process(pid(&self.0), Signal::CONT).expect("a child");
        self.0.wait_with_output().expect("a child")
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

#[test]
fn a_directory_that_becomes_a_link_meanwhile() {
    let work = Work::plain(BASE);
    let outside = work.treefork.env().dir("outside");
    std::fs::write(outside.join("x"), "not ours").expect("room");
    let fork = work.fork("w", WORK);
    // The times of the root are ours to change here.
    let look = Look::default().no_mtime();
    let wanted = look.at(&fork);
    let paused = Paused::at(&work, "merge.ready");
    work.in_base(&format!("mv d moved; ln -s {} d", outside.display()));
    let before = Tree::at(&work.base);
    let output = paused.go_on();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_same(&before, &Tree::at(&work.base), "the base");
    assert_eq!(std::fs::read_to_string(outside.join("x")).expect("there"), "not ours");
    work.in_base("rm d; mv moved d");
    work.merge("w", &[]);
    assert_same(&wanted, &look.at(&work.base), "the base at last");
}

#[test]
fn a_file_that_is_edited_meanwhile() {
    for edit in ["echo theirs > f", "echo theirs > f.new; mv f.new f", "rm f", "echo theirs > n", "echo theirs > e/g"] {
        let work = Work::plain(BASE);
        work.fork("w", WORK);
        let paused = Paused::at(&work, "merge.ready");
        work.in_base(edit);
        let before = Tree::at(&work.base);
        let output = paused.go_on();
        assert_eq!(output.status.code(), Some(1), "{edit}: {output:?}");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains("during the merge"), "{edit}: {said}");
        assert_same(&before, &Tree::at(&work.base), edit);
    }
}

#[test]
fn the_lock_names_its_holder() {
    let work = Work::plain(BASE);
    work.fork("w", WORK);
    work.fork("other", "echo other > other");
    let paused = Paused::at(&work, "merge.ready");
    let said = work.treefork.fails(1, ["merge", "other"]).complaint();
    assert!(said.contains("merge of w") && said.contains(&paused.0.id().to_string()), "{said}");
    let mut waiter = work.treefork.command(["merge", "other", "--wait", "60"]);
    let waiter = waiter.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("starts");
    assert!(paused.go_on().status.success());
    assert!(waiter.wait_with_output().expect("a child").status.success());
    assert_eq!(work.in_base("cat other z"), "other\nz2");
}

#[test]
fn merges_at_once_are_whole_or_refused() {
    // Case 82.
    const FORKS: usize = 8;
    let work = Work::repository(&format!("{BASE}; seq 200 > shared"));
    work.in_base("echo staged > staged; git add staged");
    for i in 0..FORKS {
        let line = 20 * (i / 2) + 5;
        work.fork(
            &format!("f{i}"),
            &format!("sed -i 's/^{line}$/fork {i}/' shared; mkdir o{i}; seq 30 | (cd o{i}; xargs touch)"),
        );
    }
    let spawn = |i: usize| {
        let mut command = work.treefork.command(["merge", &format!("f{i}"), "--wait", "120"]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts")
    };
    let children: Vec<Child> = (0..FORKS).map(spawn).collect();
    let merged: Vec<bool> =
        children.into_iter().map(|child| child.wait_with_output().expect("a child").status.success()).collect();
    for pair in merged.chunks(2) {
        assert_eq!(pair.iter().filter(|&&ok| ok).count(), 1, "one of each pair: {merged:?}");
    }
    let shared = std::fs::read_to_string(work.base.join("shared")).expect("there");
    for (i, &ok) in merged.iter().enumerate() {
        assert_eq!(shared.contains(&format!("fork {i}\n")), ok, "{i}");
        assert_eq!(count(&work.base.join(format!("o{i}"))), if ok { 30 } else { 0 });
    }
    assert_eq!(work.in_base("git diff --cached --name-only; git fsck 2>&1"), "staged");
}

fn count(dir: &Path) -> usize {
    std::fs::read_dir(dir).map_or(0, Iterator::count)
}
