//! Random operations on a fork and on a plain copy of its base give the same results and the same tree.
//!
//! A run is a number of episodes, each on a fresh fork. A failure prints the seed, then the shortest sequence of
//! operations that still shows it, as Rust for `regressions.rs`. `TREEFORK_SEED=N` runs one seed, and
//! `TREEFORK_OPERATIONS=N` sets how many operations a seed gets.

use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use filetime::FileTime;
use treefork::sys::Time;

use super::engine::{Dir, Engine};
use super::ops::Op;
use super::random::{Known, Maker};
use super::rng::Rng;
use super::show::{Outcome, done, short};
use crate::common::faults::said;
use crate::common::{Fs, Image, Look, Run, Tree, assert_same};

/// Operations in one episode: enough to meet what earlier ones did, few enough that the base still matters.
const EPISODE: usize = 400;

/// A way to fork.
pub(super) trait Forks {
    /// Makes a fresh fork of `site`'s base and has `work` drive it.
    fn with(&self, site: &Site, start: Time, work: &mut dyn FnMut(&mut dyn Engine));

    /// The engine for the plain copy.
    fn plain<'a>(&self, dir: Dir<'a>) -> Box<dyn Engine + 'a> {
        Box::new(dir)
    }

    /// What the base still needs.
    fn prepare(&self, _base: &Path) {}
}

/// A base and a place for what belongs to one episode.
pub(super) struct Site {
    pub(super) dir: PathBuf,
    pub(super) base: PathBuf,
}

/// Where a fork and the plain copy disagree.
#[derive(Debug)]
struct Mismatch {
    /// The operations up to and with the one that shows it.
    ops: usize,
    what: String,
}

/// Runs random operations of one seed on a file system.
pub(super) fn run(fs: Fs, seed: u64, forks: &dyn Forks) {
    let seed = variable("TREEFORK_SEED").unwrap_or(seed);
    let operations = variable("TREEFORK_OPERATIONS").map_or(10_000, |n| usize::try_from(n).expect("small"));
    let image = Image::new(fs, 600);
    let mut rng = Rng::new(seed);
    let site = Site { dir: image.dir("site"), base: image.dir("base") };
    make_base(&site.base, &mut rng);
    forks.prepare(&site.base);
    let look = Look::default().ino().ctime();
    let before = look.at(&site.base);
    for episode in 0..operations.div_ceil(EPISODE) {
        let ops = make_ops(&site, &mut rng, EPISODE.min(operations));
        if let Some(mismatch) = play(&site, forks, &ops) {
            let (ops, mismatch) = shrink(&site, forks, ops, mismatch);
            let lines: Vec<String> = ops.iter().map(|op| format!("        {op:?},")).collect();
            panic!(
                "{} seed {seed} episode {episode}: {}\n    let ops = [\n{}\n    ];",
                fs.name(),
                mismatch.what,
                lines.join("\n")
            );
        }
        assert_same(&before, &look.at(&site.base), "the base changed");
    }
}

/// Runs named operations: on a base that `base` operations make, those of `ops` agree.
pub(super) fn check(fs: Fs, forks: &dyn Forks, base: &[Op], ops: &[Op]) {
    let image = Image::new(fs, 64);
    let site = Site { dir: image.dir("site"), base: image.dir("base") };
    let mut engine = Dir::new(&site.base, Time::default(), || {});
    for op in base {
        engine.apply(op).unwrap_or_else(|e| panic!("{op:?}: {e}"));
    }
    drop(engine);
    pin_times(&site.base);
    let before = Look::default().ino().ctime().at(&site.base);
    if let Some(mismatch) = play(&site, forks, ops) {
        panic!("{} after {} operations: {}", fs.name(), mismatch.ops, mismatch.what);
    }
    assert_same(&before, &Look::default().ino().ctime().at(&site.base), "the base changed");
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// A base as random operations leave it, with times that both trees can have.
fn make_base(base: &Path, rng: &mut Rng) {
    // Some fail; what succeeds makes the tree.
    let _ = random_ops(&mut Dir::new(base, Time::default(), || {}), rng, 1_000);
    pin_times(base);
}

/// Random operations that make sense on a copy of the base.
fn make_ops(site: &Site, rng: &mut Rng, count: usize) -> Vec<Op> {
    let scratch = copy_base(site, "scratch");
    random_ops(&mut Dir::new(&scratch, Time::default(), || {}), rng, count)
}

/// Makes operations and carries them out.
fn random_ops(engine: &mut Dir<'_>, rng: &mut Rng, count: usize) -> Vec<Op> {
    let mut maker = Maker { rng, known: Known::default() };
    let mut ops = Vec::new();
    for n in 0..count {
        if n % 4 == 0 {
            maker.known = engine.known();
        }
        let op = maker.next();
        let _ = engine.apply(&op);
        ops.push(op);
    }
    ops
}

/// A fresh plain copy of the base beside it.
fn copy_base(site: &Site, name: &str) -> PathBuf {
    let copy = site.dir.join(name);
    let _ = std::fs::remove_dir_all(&copy);
    std::process::Command::new("cp").args(["-a", "--sparse=always"]).args([&site.base, &copy]).ok();
    copy
}

pub(super) fn pin_times(dir: &Path) {
    for entry in dir.read_dir().expect("ours").map(|e| e.expect("ours")) {
        if entry.file_type().expect("ours").is_dir() {
            pin_times(&entry.path());
        }
        let nsec = u32::try_from(entry.metadata().expect("ours").ino() % 1_000_000_000).expect("small");
        let time = FileTime::from_unix_time(1_600_000_000, nsec);
        filetime::set_symlink_file_times(entry.path(), time, time).expect("ours");
    }
    let time = FileTime::from_unix_time(1_500_000_000, 1);
    filetime::set_file_times(dir, time, time).expect("ours");
}

/// Carries out operations on a fresh fork and a fresh copy; what differs first, if anything does.
fn play(site: &Site, forks: &dyn Forks, ops: &[Op]) -> Option<Mismatch> {
    let plain = copy_base(site, "plain");
    let start = tick(&site.dir);
    let mut plain = forks.plain(Dir::new(&plain, start, || {}));
    let mut result = None;
    forks.with(site, start, &mut |fork| result = compare(&mut *plain, fork, ops));
    result
}

fn compare(plain: &mut dyn Engine, fork: &mut dyn Engine, ops: &[Op]) -> Option<Mismatch> {
    for (n, op) in ops.iter().enumerate() {
        let wrong = |what| Some(Mismatch { ops: n + 1, what });
        let expected = plain.apply(op);
        let got = match catch_unwind(AssertUnwindSafe(|| fork.apply(op))) {
            Ok(got) => got,
            Err(panic) => return wrong(format!("{op:?} panicked: {}", said(&*panic))),
        };
        if expected != got {
            return wrong(format!("{op:?}\n  expected {}\n  got      {}", short(&expected), short(&got)));
        }
        if matches!(op, Op::Snapshot)
            && let Some(what) = compare_trees(plain, fork)
        {
            return wrong(what);
        }
    }
    // At the end, and again as the next server finds it.
    for op in [Op::Snapshot, Op::Remount] {
        let _ = (plain.apply(&op), fork.apply(&op));
        if let Some(what) = compare_trees(plain, fork) {
            return Some(Mismatch { ops: ops.len(), what: format!("at the end, after {op:?}: {what}") });
        }
    }
    None
}

fn compare_trees(plain: &mut dyn Engine, fork: &mut dyn Engine) -> Option<String> {
    let expected = plain.snapshot();
    let got = match catch_unwind(AssertUnwindSafe(|| fork.snapshot())) {
        Ok(got) => got,
        Err(panic) => return Some(format!("looking at the tree panicked: {}", said(&*panic))),
    };
    let none = String::from("nothing");
    let paths: std::collections::BTreeSet<_> = expected.keys().chain(got.keys()).collect();
    let pair = |path| (expected.get(path).unwrap_or(&none), got.get(path).unwrap_or(&none));
    let differ = paths.into_iter().map(|path| (path, pair(path))).filter(|(_, (a, b))| a != b);
    let lines: Vec<String> =
        differ.take(5).map(|(path, (a, b))| format!("{path:?}\n  expected {a}\n  got      {b}")).collect();
    if lines.is_empty() { None } else { Some(format!("the trees differ:\n{}", lines.join("\n"))) }
}

/// Drops operations for as long as what is left still fails.
fn shrink(site: &Site, forks: &dyn Forks, mut ops: Vec<Op>, mut last: Mismatch) -> (Vec<Op>, Mismatch) {
    let until = Instant::now() + Duration::from_secs(90);
    ops.truncate(last.ops);
    let mut chunk = ops.len() / 2;
    while chunk > 0 && Instant::now() < until {
        let mut at = 0;
        let mut smaller = false;
        while at < ops.len() && Instant::now() < until {
            let mut fewer = ops.clone();
            fewer.drain(at..(at + chunk).min(ops.len()));
            match play(site, forks, &fewer) {
                Some(mismatch) => {
                    fewer.truncate(mismatch.ops);
                    (ops, last, smaller) = (fewer, mismatch, true);
                }
                None => at += chunk,
            }
        }
        if !smaller || chunk > 1 {
            chunk /= 2;
        }
    }
    (ops, last)
}

/// A time that is later than everything done on this file system so far and not later than anything done from now on.
pub(super) fn tick(dir: &Path) -> Time {
    let probe = dir.join("probe");
    let touch = || {
        std::fs::write(&probe, "x").expect("ours");
        let meta = probe.metadata().expect("ours");
        Time { sec: meta.mtime(), nsec: u32::try_from(meta.mtime_nsec()).expect("below a second") }
    };
    let first = touch();
    loop {
        let now = touch();
        if now > first {
            return now;
        }
    }
}

/// No fork at all but another copy: shows that the harness itself is right.
pub(super) struct Copies;

impl Forks for Copies {
    fn with(&self, site: &Site, start: Time, work: &mut dyn FnMut(&mut dyn Engine)) {
        let before = Tree::at(&site.base);
        let copy = copy_base(site, "copy");
        assert_same(&before, &Tree::at(&copy), "cp -a");
        // Copying took time, but nothing in the copy is younger than the operations that follow.
        let start = start.max(tick(&site.dir));
        work(&mut Dir::new(&copy, start, || {}));
    }
}

#[test]
fn two_plain_copies_agree() {
    run(Fs::Ext4, 1, &Copies);
}

#[test]
fn a_flaw_is_found_and_shrinks_to_what_shows_it() {
    /// Unlinks of paths that hold a `b` do nothing.
    struct Flawed<'a>(Dir<'a>);

    impl Engine for Flawed<'_> {
        fn apply(&mut self, op: &Op) -> Outcome {
            match op {
                Op::Unlink { path } if path.contains('b') => self.0.apply(&Op::Stat { path, follow: false }).map(done),
                _ => self.0.apply(op),
            }
        }

        fn ino(&mut self, path: &str) -> u64 {
            self.0.ino(path)
        }
    }

    struct Flaw;

    impl Forks for Flaw {
        fn with(&self, site: &Site, _: Time, work: &mut dyn FnMut(&mut dyn Engine)) {
            let copy = copy_base(site, "copy");
            work(&mut Flawed(Dir::new(&copy, tick(&site.dir), || {})));
        }
    }

    let image = Image::new(Fs::Ext4, 600);
    let site = Site { dir: image.dir("site"), base: image.dir("base") };
    let mut rng = Rng::new(3);
    make_base(&site.base, &mut rng);
    let (ops, mismatch) = (0..20)
        .find_map(|_| {
            let ops = make_ops(&site, &mut rng, EPISODE);
            play(&site, &Flaw, &ops).map(|mismatch| shrink(&site, &Flaw, ops, mismatch))
        })
        .expect("twenty episodes unlink something");
    assert!(ops.len() <= 4, "{ops:?}: {mismatch:?}");
}
