//! Every system call of every operation fails once, with each errno a disk or a process can give, and is interrupted
//! and cut short.
//!
//! An operation is run once to count its calls, then once for each of them and each fault, on a fresh fork: it answers
//! the errno (or, interrupted or cut short, what is right), the tree is as before or as after, also as the next server
//! finds it, the base is untouched, and trying again works.
//!
//! No call is skipped. Each gets `EIO`, is cut short where it moves bytes, and gets one of the others in turn; all of
//! them with `TREEFORK_FAULTS=all`, which takes minutes.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::io::Errno;
use treefork::overlay::{FdCache, Overlay};
use treefork::sys::fault::Action;

use super::core::InProcess;
use super::differential::{Forks, Site, pin_times, tick};
use super::engine::{Dir, Engine};
use super::ops::{Alloc, How, Move, Op, Put, When};
use super::show::{Outcome, short};
use crate::common::faults::{FAULTS, all_asked_for, applies, counted, is_harmless, said, with_fault};
use crate::common::{Look, TempTree, assert_same};

/// The base of every operation.
fn base() -> Vec<Op> {
    let file = |path| Op::WriteAll { path, len: 9000, fill: 1 };
    let dir = |path| Op::Mkdir { path, mode: 0o755 };
    let attribute = |path| Op::SetXattr { path, name: "user.a", len: 5, fill: 7, put: Put::Any };
    vec![
        dir("d"),
        dir("d/s"),
        dir("e"),
        file("f"),
        file("g"),
        file("d/x"),
        file("d/s/z"),
        attribute("f"),
        attribute("d"),
        Op::Link { from: "g", to: "h" },
        Op::Symlink { path: "l", target: "f" },
        Op::Mkfifo { path: "p", mode: 0o600 },
        Op::Truncate { path: "g", len: 20_000 },
    ]
}

/// What is tried: a name, what is done first, and the operation.
type Case = (&'static str, Vec<Op>, Op);

fn content() -> Vec<Case> {
    let open = |path| Op::Open { slot: 0, path, how: How::ReadWrite, create: false, excl: false, trunc: false };
    let write = Op::Pwrite { slot: 0, off: 100, len: 8000, fill: 3 };
    let all = |path| Op::WriteAll { path, len: 3000, fill: 9 };
    let allocate = |mode| Op::Allocate { slot: 0, mode, off: 4096, len: 8192 };
    let range = Op::CopyRange { from: 0, from_off: 0, to: 1, to_off: 50, len: 6000 };
    let second = Op::Open { slot: 1, path: "d/x", how: How::ReadWrite, create: false, excl: false, trunc: false };
    vec![
        ("copy-up by a write", vec![open("f")], write),
        ("copy-up of a sparse file with two names", vec![open("h")], write),
        ("copy-up below a directory", vec![open("d/s/z")], write),
        ("write to the upper", vec![all("f"), open("f")], write),
        ("empty", vec![], Op::Truncate { path: "d/x", len: 0 }),
        ("empty a new file", vec![all("d/n")], Op::Truncate { path: "d/n", len: 0 }),
        ("shorter", vec![], Op::Truncate { path: "f", len: 10 }),
        ("longer", vec![], Op::Truncate { path: "d/x", len: 70_000 }),
        ("allocate", vec![open("f")], allocate(Alloc::Extend)),
        ("punch", vec![open("g")], allocate(Alloc::Punch)),
        ("copy a range", vec![open("f"), second], range),
        ("read", vec![], Op::ReadAll { path: "g" }),
        ("read what was unlinked", vec![open("f"), Op::Unlink { path: "f" }], Op::Pread { slot: 0, off: 0, len: 9000 }),
        ("holes", vec![open("g")], Op::Holes { slot: 0, off: 0 }),
        ("sync a file", vec![open("f"), write], Op::Fsync { slot: 0, data: false }),
        ("sync a directory", vec![all("d/n"), Op::OpenDir { slot: 0, path: "d" }], Op::Fsync { slot: 0, data: false }),
    ]
}

fn names() -> Vec<Case> {
    let all = |path| Op::WriteAll { path, len: 3000, fill: 9 };
    let create = |path| Op::Open { slot: 0, path, how: How::ReadWrite, create: true, excl: true, trunc: false };
    let unlink = |path| Op::Unlink { path };
    let rename = |from, to| Op::Rename { from, to, how: Move::Plain };
    let open = Op::Open { slot: 0, path: "d/x", how: How::ReadWrite, create: false, excl: false, trunc: false };
    vec![
        ("create", vec![], create("d/s/n")),
        ("create where one was removed", vec![unlink("f")], create("f")),
        ("mkdir", vec![], Op::Mkdir { path: "d/n", mode: 0o750 }),
        ("mkdir where one was removed", vec![Op::Rmdir { path: "e" }], Op::Mkdir { path: "e", mode: 0o700 }),
        ("symlink", vec![], Op::Symlink { path: "d/n", target: "x" }),
        ("fifo", vec![], Op::Mkfifo { path: "d/n", mode: 0o600 }),
        ("device", vec![], Op::Mkchar { path: "d/n", mode: 0o600 }),
        ("link", vec![], Op::Link { from: "f", to: "d/n" }),
        ("link to one of two names", vec![], Op::Link { from: "h", to: "d/n" }),
        ("link to a link", vec![], Op::Link { from: "l", to: "d/n" }),
        ("unlink", vec![], unlink("d/x")),
        ("unlink a new file", vec![all("d/n")], unlink("d/n")),
        ("unlink what was copied up", vec![all("d/x")], unlink("d/x")),
        ("unlink one of two names", vec![], unlink("h")),
        ("unlink an open file", vec![open], unlink("d/x")),
        ("rmdir", vec![], Op::Rmdir { path: "e" }),
        ("rmdir of what was emptied", vec![unlink("d/s/z")], Op::Rmdir { path: "d/s" }),
        ("rename a file", vec![], rename("f", "n")),
        ("rename over a file", vec![], rename("f", "d/x")),
        ("rename a new file over one", vec![all("n")], rename("n", "f")),
        ("rename one of two names", vec![], rename("h", "d/h")),
        ("rename a link", vec![], rename("l", "d/l")),
        ("rename a directory", vec![], rename("d", "n")),
        ("rename a directory over one", vec![], rename("d", "e")),
        ("rename a directory that was renamed", vec![rename("d", "n")], rename("n", "d")),
        ("rename a directory with changes", vec![all("d/n"), unlink("d/x")], rename("d", "e")),
        ("exchange", vec![], Op::Rename { from: "f", to: "d", how: Move::Exchange }),
        ("rename without replacing", vec![], Op::Rename { from: "f", to: "n", how: Move::NoReplace }),
        ("list", vec![all("d/n"), unlink("d/x")], Op::List { path: "d" }),
        ("list what was renamed", vec![rename("d", "n")], Op::List { path: "n" }),
    ]
}

fn attributes() -> Vec<Case> {
    let put = |path| Op::SetXattr { path, name: "user.b", len: 300, fill: 1, put: Put::Any };
    let chown = |path| Op::Chown { path, uid: 7, gid: 8, follow: false };
    let (atime, mtime) = (When::Omit, When::At(1_000_000_000, 5));
    vec![
        ("chmod", vec![], Op::Chmod { path: "d/x", mode: 0o604 }),
        ("chmod a directory", vec![], Op::Chmod { path: "d/s", mode: 0o700 }),
        ("chown", vec![], chown("f")),
        ("chown a link", vec![], chown("l")),
        ("chown a fifo", vec![], chown("p")),
        ("set times", vec![], Op::Utimens { path: "d/x", atime, mtime, follow: true }),
        ("set an attribute", vec![], put("d/x")),
        ("set an attribute of a directory", vec![], put("d")),
        ("remove an attribute", vec![], Op::RemoveXattr { path: "f", name: "user.a" }),
        ("read an attribute", vec![], Op::GetXattr { path: "f", name: "user.a" }),
        ("list attributes", vec![put("d")], Op::ListXattr { path: "d" }),
        ("stat", vec![], Op::Stat { path: "d/s/z", follow: true }),
        ("read a link", vec![], Op::Readlink { path: "l" }),
    ]
}

type Snapshot = BTreeMap<String, String>;

struct Rig {
    // Before the tree that it is in.
    site: Site,
    tree: TempTree,
}

impl Rig {
    fn new() -> Self {
        let tree = TempTree::new();
        let site = Site { dir: tree.dir("site"), base: tree.dir("base") };
        let mut engine = Dir::new(&site.base, Default::default(), || {});
        for op in base() {
            engine.apply(&op).unwrap_or_else(|e| panic!("{op:?}: {e}"));
        }
        drop(engine);
        pin_times(&site.base);
        Self { site, tree }
    }

    /// Has `work` drive a fresh fork in which `first` was done.
    fn fresh(&self, first: &[Op], mut work: impl FnMut(&mut dyn Engine)) {
        let start = tick(self.tree.path());
        InProcess::default().with(&self.site, start, &mut |engine| {
            for op in first {
                engine.apply(op).unwrap_or_else(|e| panic!("{op:?}: {e}"));
            }
            work(engine);
        });
    }
}

/// Whether it is the turn of the `m`-th fault in the `n`-th call.
fn turn(m: usize, n: usize) -> bool {
    let (first, last) = (0, FAULTS.len() - 1);
    m == first || m == last || m == 1 + n % (last - 1) || all_asked_for()
}

/// What an operation is without faults.
struct Clean {
    calls: Vec<&'static str>,
    outcome: Outcome,
    before: Snapshot,
    after: Snapshot,
}

fn clean(rig: &Rig, first: &[Op], op: &Op) -> Clean {
    let (mut outcome, mut calls) = (Err(Errno::IO), Vec::new());
    let (mut before, mut after) = (Snapshot::new(), Snapshot::new());
    rig.fresh(first, |engine| before = engine.snapshot());
    rig.fresh(first, |engine| {
        (outcome, calls) = counted(|| engine.apply(op));
        after = engine.snapshot();
    });
    assert!(outcome.is_ok(), "{op:?}: {}", short(&outcome));
    Clean { calls, outcome, before, after }
}

/// One fault in one call, which is `call`.
fn one(rig: &Rig, (name, first, op): &Case, clean: &Clean, nth: usize, call: &str, fault: Action, retry_first: bool) {
    rig.fresh(first, |engine| {
        let (outcome, passed) = with_fault(fault, nth, || engine.apply(op));
        assert_eq!(passed.get(nth - 1), Some(&call), "{name}: not the calls that were counted");
        match (&outcome, fault) {
            (Ok(_), _) => assert_eq!(outcome, clean.outcome),
            (Err(e), Action::Fail(errno)) if !is_harmless(fault) => assert_eq!(e.raw_os_error(), errno),
            (Err(e), _) => panic!("answered {e}"),
        }
        // A time that could not be put back keeps no operation from succeeding.
        let exact =
            |snapshot: &Snapshot| if call.contains("utimens") { without(snapshot, TIMES) } else { snapshot.clone() };
        let loose = |snapshot: &Snapshot| {
            if call.contains("utimens") { without(snapshot, TIMES) } else { without(snapshot, CTIME) }
        };
        let now = engine.snapshot();
        let is_new = loose(&now) == loose(&clean.after);
        if outcome.is_ok() {
            same("it succeeded", &exact(&now), &exact(&clean.after));
        } else if !is_new {
            same("it failed", &loose(&now), &loose(&clean.before));
        }
        let again = |engine: &mut dyn Engine| {
            if outcome.is_err() && (!is_new || clean.before == clean.after) {
                assert_eq!(engine.apply(op), clean.outcome, "tried again");
            }
        };
        // A restart closes what is open.
        let retry_first = retry_first || first.iter().any(|op| matches!(op, Op::Open { .. } | Op::OpenDir { .. }));
        if retry_first {
            again(engine);
        }
        engine.apply(&Op::Remount).expect("a restart");
        let restarted = engine.snapshot();
        if retry_first || outcome.is_ok() {
            same("tried again, restarted", &loose(&restarted), &loose(&clean.after));
        } else {
            same("restarted", &restarted, &now);
            again(engine);
            same("at last", &loose(&engine.snapshot()), &loose(&clean.after));
        }
    });
}

const CTIME: &[&str] = &["ctime "];
const TIMES: &[&str] = &["ctime ", "mtime "];

/// A failed operation may have copied something up, which gives it a change time of its own, or made an entry and taken it
/// back, which gives the directory a modification time as well.
fn without(snapshot: &Snapshot, fields: &[&str]) -> Snapshot {
    let strip = |text: &String| {
        let fields = if text.starts_with("4") { TIMES } else { fields };
        fields.iter().fold(text.clone(), |text, field| match text.split_once(field) {
            Some((head, tail)) => format!("{head}{}", tail.split_once(' ').map_or("", |(_, rest)| rest)),
            None => text,
        })
    };
    snapshot.iter().map(|(path, text)| (path.clone(), strip(text))).collect()
}

#[track_caller]
fn same(when: &str, got: &Snapshot, wanted: &Snapshot) {
    let paths: std::collections::BTreeSet<_> = got.keys().chain(wanted.keys()).collect();
    let differ = paths.into_iter().filter(|path| got.get(*path) != wanted.get(*path));
    let lines: Vec<_> = differ.map(|p| format!("{p:?}: got {:?}, wanted {:?}", got.get(p), wanted.get(p))).collect();
    assert!(lines.is_empty(), "{when}, but {}", lines.join("; "));
}

fn matrix(cases: Vec<Case>) {
    let rig = Rig::new();
    let look = Look::default().ino().ctime();
    let before = look.at(&rig.site.base);
    let (mut calls, mut faults, mut wrong) = (0, 0, Vec::new());
    let count = cases.len();
    for case in cases {
        let clean = clean(&rig, &case.1, &case.2);
        assert!(!clean.calls.is_empty(), "{}: no call at all", case.0);
        for (n, call) in clean.calls.iter().enumerate() {
            for (m, fault) in FAULTS.into_iter().enumerate().filter(|(m, fault)| applies(*fault, call) && turn(*m, n)) {
                let retry_first = (n + m).is_multiple_of(2);
                let one = || one(&rig, &case, &clean, n + 1, call, fault, retry_first);
                if let Err(panic) = catch_unwind(AssertUnwindSafe(one)) {
                    wrong.push(format!("{}, {fault:?} in call {} ({call}): {}", case.0, n + 1, said(&*panic)));
                }
                faults += 1;
            }
        }
        calls += clean.calls.len();
        eprintln!("{}: {} calls", case.0, clean.calls.len());
        assert_same(&before, &look.at(&rig.site.base), case.0);
    }
    eprintln!("{count} operations, {calls} system calls, {faults} faults, none skipped");
    assert!(wrong.is_empty(), "{} faults left something wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn content_survives_a_fault_in_every_call() {
    matrix(content());
}

#[test]
fn names_survive_a_fault_in_every_call() {
    matrix(names());
}

#[test]
fn attributes_survive_a_fault_in_every_call() {
    matrix(attributes());
}

/// The start of an overlay on what an earlier one left: it fails and leaves everything as it was, or works.
#[test]
fn a_start_survives_a_fault_in_every_call() {
    let rig = Rig::new();
    let first: Vec<Op> =
        [content(), names()].concat().into_iter().flat_map(|(_, first, op)| [first, vec![op]].concat()).collect();
    let start = tick(rig.tree.path());
    let mut wanted = Snapshot::new();
    InProcess::default().with(&rig.site, start, &mut |engine| {
        // One after the other on one fork: some find nothing to do any more.
        first.iter().for_each(|op| drop(engine.apply(op)));
        wanted = engine.snapshot();
    });
    let make = || InProcess::default().config(&rig.site, start, &FdCache::new(64));
    let (mut calls, mut faults) = (0, 0);
    'calls: for nth in 1.. {
        for fault in FAULTS {
            let config = make();
            let (made, passed) = with_fault(fault, nth, || Overlay::new(config));
            if passed.len() < nth {
                break 'calls;
            }
            faults += 1;
            let at = format!("{fault:?} in call {nth} ({})", passed[nth - 1]);
            match (made.map(drop), fault) {
                (Ok(()), _) => {}
                (Err(e), Action::Fail(errno)) if errno != libc::EINTR => assert_eq!(e.raw_os_error(), errno, "{at}"),
                (Err(e), _) => panic!("{at}: {e}"),
            }
            let mut core = super::core::Core::new(start, || Overlay::new(make()).expect("nothing fails"));
            let now = core.snapshot();
            same(&at, &without(&now, CTIME), &without(&wanted, CTIME));
        }
        calls += 1;
    }
    eprintln!("{calls} system calls of a start, {faults} faults, none skipped");
}
