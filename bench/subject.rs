//! The ways to get a fork of a directory, behind one trait.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::place::{BINARY, Place, run};

/// A fork that a subject made.
#[derive(Debug)]
pub(crate) struct Fork {
    /// The directory to work in.
    pub(crate) path: PathBuf,
    name: String,
    base: PathBuf,
}

/// A way to get a fork.
pub(crate) trait Subject: Sync {
    fn name(&self) -> &'static str;

    /// Makes a fork of `base`. What is timed is this call, so it does nothing but what a user would have to.
    fn create(&self, place: &Place, base: &Path, name: &str) -> Fork;

    /// What is needed for the fork to be fit for use, but is not part of what a user would do.
    fn prepare(&self, _: &Place, _: &Fork) {}

    /// Removes the fork; timed as well.
    fn remove(&self, place: &Place, fork: &Fork);

    /// Runs git in the fork as the subject recommends it.
    fn git(&self, place: &Place, fork: &Fork, arguments: &[&str]) {
        place.git(&fork.path, arguments);
    }

    /// Whether the fork has everything that is in the directory, ignored files and `.git` too.
    fn is_whole(&self) -> bool {
        true
    }

    /// Whether what it makes is an ordinary directory, in which everything takes as long as in one that was made by
    /// other means: how long it takes to make, to look at for the first time, and to remove is all there is to tell.
    fn is_ordinary(&self) -> bool {
        false
    }

    /// Whether this is treefork with its server.
    fn is_treefork(&self) -> bool {
        false
    }
}

/// All that this machine has.
pub(crate) fn all(place: &Place) -> Vec<Box<dyn Subject>> {
    let mut all: Vec<Box<dyn Subject>> = vec![
        Box::new(Plain),
        Box::new(Treefork { name: "treefork", use_as: Use::Fresh }),
        Box::new(Treefork { name: "treefork exec", use_as: Use::Exec }),
        Box::new(Treefork { name: "treefork prewarmed", use_as: Use::Prewarmed }),
        Box::new(Fallback { name: "treefork copy", strategy: "copy" }),
        Box::new(Fallback { name: "treefork worktree", strategy: "worktree" }),
        Box::new(Copy { name: "cp -a", reflink: false }),
        Box::new(Worktree),
        Box::new(Overlay { name: "overlayfs", program: None }),
    ];
    if reflinks(place) {
        all.push(Box::new(Copy { name: "cp --reflink", reflink: true }));
        all.push(Box::new(Fallback { name: "treefork reflink", strategy: "reflink" }));
    }
    if Command::new("fuse-overlayfs")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
    {
        all.push(Box::new(Overlay { name: "fuse-overlayfs", program: Some("fuse-overlayfs") }));
    }
    all
}

fn reflinks(place: &Place) -> bool {
    let (from, to) = (place.path("home/.gitconfig"), place.path("home/reflinked"));
    let mut cp = Command::new("cp");
    cp.arg("--reflink=always").args([&from, &to]).stderr(Stdio::null());
    cp.status().is_ok_and(|status| status.success())
}

/// Whether `treefork` has a command: what it has not yet is left out of the table.
pub(crate) fn has_command(command: &str) -> bool {
    let mut help = Command::new(BINARY);
    help.args([command, "--help"]).stdout(Stdio::null()).stderr(Stdio::null());
    help.status().is_ok_and(|status| status.success())
}

fn fork(place: &Place, base: &Path, name: &str) -> Fork {
    Fork { path: place.path("forks").join(name), name: name.to_owned(), base: base.to_owned() }
}

fn remove_tree(path: &Path) {
    std::fs::remove_dir_all(path).expect("remove a fork");
}

/// No fork at all, but the directory itself: what everything is compared with. Since workloads change it, each gets a
/// copy, made by hand and not timed.
struct Plain;

impl Subject for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn create(&self, place: &Place, base: &Path, name: &str) -> Fork {
        let fork = fork(place, base, name);
        run(Command::new("cp").arg("-a").args([base, &fork.path]));
        fork
    }

    fn prepare(&self, place: &Place, fork: &Fork) {
        // The index of a copy knows the inodes of the original.
        if fork.path.join(".git").exists() {
            place.git(&fork.path, &["status"]);
        }
    }

    fn remove(&self, _: &Place, fork: &Fork) {
        remove_tree(&fork.path);
    }
}

struct Treefork {
    name: &'static str,
    use_as: Use,
}

/// How a fork is used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// At its path, as it was made.
    Fresh,
    /// Git runs through `treefork exec`, once the index of the base is prepared: from the second fork of a base on.
    Exec,
    /// At its path, once `create --prewarm` is done.
    Prewarmed,
}

impl Subject for Treefork {
    fn name(&self) -> &'static str {
        self.name
    }

    fn create(&self, place: &Place, base: &Path, name: &str) -> Fork {
        let base = base.to_str().expect("plain names");
        let path = place.treefork(["create", base, "--label", name, "--strategy", "overlay"]).into();
        Fork { path, name: name.to_owned(), base: base.into() }
    }

    fn prepare(&self, place: &Place, fork: &Fork) {
        match self.use_as {
            Use::Fresh => {}
            Use::Exec => drop(place.treefork(["prewarm", "--only-git", &fork.name])),
            Use::Prewarmed => drop(place.treefork(["prewarm", &fork.name])),
        }
    }

    fn remove(&self, place: &Place, fork: &Fork) {
        place.treefork(["remove", &fork.name]);
    }

    fn git(&self, place: &Place, fork: &Fork, arguments: &[&str]) {
        if self.use_as == Use::Exec {
            place.treefork(["exec", &fork.name, "--", "git"].iter().chain(arguments));
        } else {
            place.git(&fork.path, arguments);
        }
    }

    fn is_treefork(&self) -> bool {
        true
    }
}

/// treefork where FUSE cannot run, or is not wanted: an ordinary directory, once it is made.
struct Fallback {
    name: &'static str,
    strategy: &'static str,
}

impl Subject for Fallback {
    fn name(&self) -> &'static str {
        self.name
    }

    fn create(&self, place: &Place, base: &Path, name: &str) -> Fork {
        let base = base.to_str().expect("plain names");
        let path = place.treefork(["create", base, "--label", name, "--strategy", self.strategy]).into();
        Fork { path, name: name.to_owned(), base: base.into() }
    }

    fn remove(&self, place: &Place, fork: &Fork) {
        place.treefork(["remove", "--force", &fork.name]);
    }

    fn is_whole(&self) -> bool {
        self.strategy != "worktree"
    }

    fn is_ordinary(&self) -> bool {
        true
    }
}

struct Copy {
    name: &'static str,
    reflink: bool,
}

impl Subject for Copy {
    fn name(&self) -> &'static str {
        self.name
    }

    fn create(&self, place: &Place, base: &Path, name: &str) -> Fork {
        let fork = fork(place, base, name);
        let how = if self.reflink { "--reflink=always" } else { "--reflink=never" };
        run(Command::new("cp").arg("-a").arg(how).args([base, &fork.path]));
        fork
    }

    fn remove(&self, _: &Place, fork: &Fork) {
        remove_tree(&fork.path);
    }
}

struct Worktree;

impl Subject for Worktree {
    fn name(&self) -> &'static str {
        "git worktree"
    }

    fn create(&self, place: &Place, base: &Path, name: &str) -> Fork {
        let fork = fork(place, base, name);
        let path = fork.path.to_str().expect("plain names");
        place.git(base, &["worktree", "add", "-q", "--detach", path]);
        fork
    }

    fn remove(&self, place: &Place, fork: &Fork) {
        place.git(&fork.base, &["worktree", "remove", "--force", fork.path.to_str().expect("plain names")]);
    }

    fn is_whole(&self) -> bool {
        false
    }
}

/// The kernel's overlay, or a program that mounts one.
struct Overlay {
    name: &'static str,
    program: Option<&'static str>,
}

impl Subject for Overlay {
    fn name(&self) -> &'static str {
        self.name
    }

    fn create(&self, place: &Place, base: &Path, name: &str) -> Fork {
        let mut fork = fork(place, base, name);
        let home = fork.path.clone();
        let [upper, work, mnt] = ["upper", "work", "mnt"].map(|dir| home.join(dir));
        for dir in [&upper, &work, &mnt] {
            std::fs::create_dir_all(dir).expect("make the layers");
        }
        let layers = format!("lowerdir={},upperdir={},workdir={}", base.display(), upper.display(), work.display());
        let mut mount = Command::new(self.program.unwrap_or("mount"));
        if self.program.is_none() {
            mount.args(["-t", "overlay", "overlay"]);
        }
        // It complains about mount options that it did not ask for.
        run(mount.args(["-o", &layers]).arg(&mnt).stderr(Stdio::null()));
        fork.path = mnt;
        fork
    }

    fn remove(&self, _: &Place, fork: &Fork) {
        run(Command::new("umount").arg(&fork.path));
        remove_tree(fork.path.parent().expect("it lies below its home"));
    }
}
