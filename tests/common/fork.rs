//! A base and a fork of it, for tests that work in one.

use std::cell::Cell;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::run::Done;
use super::{Env, Look, Run, Tree, Treefork, assert_same};

/// The label of the fork.
const LABEL: &str = "fork";

/// A fork. When it is dropped its base has to be as it was, unless it was merged or the test changed the base.
pub(crate) struct Fork {
    pub(crate) treefork: Treefork,
    pub(crate) base: PathBuf,
    pub(crate) path: PathBuf,
    before: Tree,
    base_may_change: Cell<bool>,
}

impl Fork {
    /// Forks a base that a shell script makes.
    #[track_caller]
    pub(crate) fn new(script: &str) -> Self {
        let treefork = Treefork::new();
        let base = treefork.env().dir("base");
        treefork.env().sh(&base, script);
        Self::of(treefork, base)
    }

    /// Forks a base that is there.
    #[track_caller]
    pub(crate) fn of(treefork: Treefork, base: PathBuf) -> Self {
        let before = look().at(&base);
        let path = treefork.create(&base, LABEL);
        Self { treefork, base, path, before, base_may_change: Cell::new(false) }
    }

    pub(crate) fn env(&self) -> &Env {
        self.treefork.env()
    }

    /// A path in the fork.
    pub(crate) fn join(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.path.join(Path::new(name.as_ref()))
    }

    /// Runs a shell script in the fork; it has to succeed. Returns what it printed.
    #[track_caller]
    pub(crate) fn sh(&self, script: &str) -> String {
        self.env().sh(&self.path, script)
    }

    /// Kills the server; the fork is mounted again afterwards.
    #[track_caller]
    pub(crate) fn restart(&self) {
        self.treefork.restart(LABEL);
    }

    /// Merges the fork into its base; it has to succeed.
    #[track_caller]
    pub(crate) fn merge(&self) -> Done {
        self.base_may_change.set(true);
        self.treefork.ok(["merge", LABEL])
    }

    /// Tries to merge the fork; that has to be refused, and the base stays.
    #[track_caller]
    pub(crate) fn merge_refused(&self) -> Done {
        self.treefork.fails(1, ["merge", LABEL])
    }

    /// From here on the test itself changes the base.
    pub(crate) fn let_base_change(&self) {
        self.base_may_change.set(true);
    }

    /// The private layer of the fork.
    pub(crate) fn upper(&self) -> PathBuf {
        self.path.parent().expect("the mount point is in the fork's directory").join("upper")
    }

    /// Everything but directories that the private layer holds.
    pub(crate) fn changed(&self) -> Vec<PathBuf> {
        let upper = self.upper();
        let tree = Tree::at(&upper);
        tree.paths().filter(|path| !upper.join(path).is_dir()).map(Path::to_path_buf).collect()
    }
}

impl Drop for Fork {
    fn drop(&mut self) {
        if !self.base_may_change.get() && !std::thread::panicking() {
            assert_same(&self.before, &look().at(&self.base), "the base changed");
        }
    }
}

/// All that nobody may change in a base.
fn look() -> Look {
    Look::default().ino().ctime()
}

/// Runs a script in a fork and in a plain copy of its base: it has to print the same and leave the same tree behind.
///
/// Times are left out, and with them git's index, which holds some: the two run one after the other.
#[track_caller]
pub(crate) fn same_as_plain(base: &str, script: &str) -> Fork {
    let fork = Fork::new(base);
    let plain = fork.env().join("plain");
    fork.env().command("cp").arg("-a").args([&fork.base, &plain]).ok();
    let run = |dir: &Path| {
        let done = fork.env().command_in(dir, "bash").args(["-euo", "pipefail", "-c", script]).done();
        (done.code(), done.text(), done.complaint())
    };
    let (expected, got) = (run(&plain), run(&fork.path));
    assert_eq!(expected, got, "exit code, output, complaints of {script}");
    let look = Look::default().no_mtime().without(".git/index");
    assert_same(&look.at(&plain), &look.at(&fork.path), script);
    fork.restart();
    assert_same(&look.at(&plain), &look.at(&fork.path), "after a restart");
    fork
}

/// Waits until something holds that happens by itself; fails when it does not in time.
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    assert!(within(Duration::from_secs(20), &mut holds), "still not: {what}");
}

/// Whether something comes to hold by itself in this time.
pub(crate) fn within(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + limit;
    while !holds() {
        if Instant::now() > until {
            return false;
        }
        std::thread::yield_now();
    }
    true
}
