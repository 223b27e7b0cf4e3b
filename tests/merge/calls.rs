//! Every system call of a merge fails once while another fork of the base lives: the parent is old or new, the other
//! fork sees nothing of it, the store is clean after recovery, and the next try succeeds.

use std::fs;
use std::path::{Path, PathBuf};

use treefork::api::{self, Landing, PreMerge, host};
use treefork::durable::Wait;
use treefork::fork::{Forks, JOURNALS, Record, Request, Store};
use treefork::merge::Options;
use treefork::sys::fault::{Action, Rule, scoped};

use crate::common::cli::BINARY;
use crate::common::faults::{counted, fail_every_call, is_harmless};
use crate::common::{Fs, Image, Look, Tree, Treefork, assert_same, eventually};

/// A store and a base in memory, where waiting for a disk takes no time.
struct Scene {
    forks: Forks,
    base: PathBuf,
    // Their order is that in which they go: the server first, its file system last.
    treefork: Treefork,
    _image: Image,
}

/// A base with two forks: one that did something, and one that looks on.
struct Round {
    worker: Record,
    old: Tree,
    new: Tree,
    watcher: (PathBuf, Tree),
}

impl Scene {
    fn new() -> Self {
        host::server_program(BINARY);
        let image = Image::new(Fs::Tmpfs, 200);
        let treefork = Treefork::with_store(image.path().join("store"));
        // One that stays keeps the server alive.
        treefork.create(&image.dir("other"), "stays");
        let store = Store::open(treefork.store()).expect("it is there");
        let forks = Forks::open(store).expect("nothing is to be recovered");
        Self { forks, base: image.path().join("base"), treefork, _image: image }
    }

    /// The forks as the next command finds them.
    fn recovered(&self) -> Forks {
        let store = Store::open(self.treefork.store()).expect("it is there");
        let bases = self.treefork.store().join("bases");
        // A lock may be held a moment longer, by a process that another test just starts.
        eventually("the merge is finished or undone", || {
            api::recover(&store).expect("bases can be listed");
            let open = |base: &String| JOURNALS.iter().any(|name| bases.join(base).join(name).exists());
            !names(&bases).iter().any(open)
        });
        Forks::open(store).expect("forks are brought in order")
    }

    fn fork(&self, label: &str) -> (Record, PathBuf) {
        let mut request = Request::new(&self.base).expect("this process owns it");
        request.label = Some(label.parse().expect("valid"));
        let record = self.forks.create(&request).expect("nothing fails").record;
        let path = record.path(&self.forks.store().fork(&record.id));
        (record, path)
    }

    fn round(&self) -> Round {
        let put = |path: &str, text: &str| fs::write(self.base.join(path), text).expect("room");
        for dir in ["d/sub", "e"] {
            fs::create_dir_all(self.base.join(dir)).expect("room");
        }
        ["f", "d/x", "d/sub/y", "e/f", "g"].iter().for_each(|path| put(path, path));
        let watcher = self.fork("watcher").1;
        let (worker, path) = self.fork("worker");
        let put = |name: &str, text: &str| fs::write(path.join(name), text).expect("room");
        put("f", "more");
        fs::remove_dir_all(path.join("e")).expect("ours");
        put("n", "new");
        fs::rename(path.join("d/sub"), path.join("s")).expect("ours");
        // What only moved has a second name in the preserved layer for as long as the other fork lives.
        put("s/y", "more");
        fs::rename(path.join("g"), path.join("e")).expect("ours");
        let watched = Look::default().ino().ctime().at(&watcher);
        Round { worker, old: Tree::at(&self.base), new: Tree::at(&path), watcher: (watcher, watched) }
    }

    /// Has one fault strike in a merge: its outcome, and the names of its calls. Afterwards the parent is old, and the next try
    /// succeeds, or it is new, and the fork is gone; the other fork has seen nothing.
    fn struck(&self, work: impl FnOnce(&Round) -> Struck, harmless: bool) -> Vec<&'static str> {
        let round = self.round();
        let (landed, passed) = work(&round);
        let forks = self.recovered();
        let spared = |what: &str| {
            let (path, before) = &round.watcher;
            assert_same(before, &Look::default().ino().ctime().at(path), what);
        };
        spared("the other fork");
        let now = Tree::at(&self.base);
        match &landed {
            Ok(landed) => {
                assert!(landed.merged, "conflicts: {:?}", landed.plan.conflicts);
                assert_same(&round.new, &now, "the parent after a merge that succeeded");
            }
            Err(e) => assert!(!harmless, "{e}"),
        }
        if now == round.new {
            assert!(forks.find(round.worker.id.as_str()).is_err(), "it has landed, and the fork is there");
        } else {
            assert_same(&round.old, &now, "the parent after a merge that failed");
            let path = forks.ready("worker").expect("it lives").1;
            assert_same(&round.new, &Tree::at(&path), "the fork after a merge that failed");
            let worker = forks.find("worker").expect("it lives");
            assert!(self.merge(&forks, &worker).expect("the next try succeeds").merged);
            assert_same(&round.new, &Tree::at(&self.base), "the parent after the next try");
            spared("the other fork after the next try");
        }
        self.end(&forks, &round);
        passed
    }

    fn merge(&self, forks: &Forks, worker: &Record) -> treefork::Result<Landing> {
        api::merge_fork(forks, worker, &Options::default(), PreMerge::Skip, Wait::No, |_| {})
    }

    /// What the round leaves is taken away: nothing is left of it in the store.
    fn end(&self, forks: &Forks, round: &Round) {
        forks.remove("watcher", true).expect("removed");
        let _ = forks.remove(round.worker.id.as_str(), true).expect("removed, or gone");
        treefork::fork::trash::empty(forks.store()).expect("emptied");
        let store = self.treefork.store();
        assert_eq!(names(&store.join("forks")).len(), 1, "forks are left");
        for dir in ["pending", "trash"] {
            assert_eq!(names(&store.join(dir)), [""; 0], "left in {dir}");
        }
        for base in names(&store.join("bases")) {
            let left = names(&store.join("bases").join(base));
            assert!(left.iter().all(|name| name == "lock" || name == "preserved"), "{left:?}");
        }
        let beside = names(self.base.parent().expect("the root of the image"));
        assert_eq!(beside, ["base", "other", "store"], "beside the base");
        fs::remove_dir_all(&self.base).expect("ours");
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("listable").file_name().into_string().expect("text")).collect();
    names.sort();
    names
}

/// What came of a merge, and the names of its calls.
type Struck = (treefork::Result<Landing>, Vec<&'static str>);

#[test]
fn a_merge_beside_a_sibling_survives_a_fault_in_every_call() {
    let scene = Scene::new();
    let mut calls = Vec::new();
    scene.struck(
        |round| {
            let (landed, passed) = counted(|| scene.merge(&scene.forks, &round.worker));
            calls.clone_from(&passed);
            (landed, passed)
        },
        true,
    );
    drop(scene);
    fail_every_call("a merge beside a sibling", &calls, Scene::new, |scene, strike| {
        let harmless = is_harmless(strike.fault);
        scene.struck(|round| strike.within(|| scene.merge(&scene.forks, &round.worker)), harmless)
    });
}

/// The disk is full for all steps, and then a call fails while they are undone.
#[test]
fn an_undone_merge_survives_a_fault_in_every_call() {
    let full = || Rule::new("merge.landed", Action::Fail(libc::ENOSPC), 1);
    let merge = |scene: &Scene, round: &Round, rule: Rule| {
        let (landed, passed) = scoped(vec![full(), rule], || scene.merge(&scene.forks, &round.worker));
        assert!(landed.is_err(), "it cannot land");
        let undone = passed.iter().position(|name| *name == "merge.landed").expect("it was undone");
        let calls = |names: &[&'static str]| names.iter().copied().filter(|name| name.starts_with("sys.")).collect();
        let (before, after): (Vec<_>, Vec<_>) = (calls(&passed[..undone]), calls(&passed[undone..]));
        (landed, before, after)
    };
    let scene = Scene::new();
    let (mut before, mut calls) = (Vec::new(), Vec::new());
    scene.struck(
        |round| {
            let (landed, first, then) = merge(&scene, round, Rule::new("sys.*", Action::Short, u64::MAX));
            (before, calls) = (first.clone(), then);
            (landed, first)
        },
        false,
    );
    drop(scene);
    fail_every_call("an undone merge", &calls, Scene::new, |scene, strike| {
        let mut after = Vec::new();
        scene.struck(
            |round| {
                let (landed, first, then) = merge(scene, round, strike.rule_after(&before));
                after = then;
                (landed, first)
            },
            false,
        );
        after
    });
}
