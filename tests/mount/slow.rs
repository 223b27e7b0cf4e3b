//! A disk that stands still: whoever has to wait for it waits, and nobody else.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::run::ends_within;
use crate::common::{Image, Run, TempTree, Treefork};

/// A file system that takes no writes until this is dropped.
struct Frozen(std::path::PathBuf);

impl Frozen {
    fn new(image: &Image) -> Self {
        let path = image.path();
        Command::new("fsfreeze").arg("-f").arg(&path).ok();
        Self(path)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("-u").arg(&self.0).status();
    }
}

#[test]
fn changes_that_wait_for_the_disk_hold_up_no_one_who_reads() {
    let image = Image::ext4(64);
    let treefork = Treefork::with_store(image.dir("store"));
    // The base is on another disk.
    let tree = TempTree::new();
    let base = tree.dir("base");
    fs::create_dir(base.join("d")).expect("free");
    for n in 0..30 {
        fs::write(base.join(format!("f{n}")), format!("{n}")).expect("room");
        fs::write(base.join(format!("d/f{n}")), format!("{n}")).expect("room");
    }
    let forks = ["busy", "other"].map(|label| treefork.create(&base, label));
    // The kernel lets nobody look for a name in a directory where another is just being made: it is known before.
    assert!(forks.iter().all(|fork| fork.join("d").is_dir()));
    let frozen = Frozen::new(&image);
    // More of every kind than the fork has threads.
    let change = |script: String| -> Child {
        let mut bash = treefork.env().command_in(&forks[0], "bash");
        bash.args(["-c", &script]).stdin(Stdio::null()).spawn().expect("bash")
    };
    let mut changes = Vec::new();
    for n in 0..6 {
        changes.push(change(format!("echo new > new{n}")));
        changes.push(change(format!("echo more >> f{n}; sync f{n}")));
        changes.push(change(format!("rm f{}", n + 20)));
    }
    let reads = |fork: &Path| {
        // What nobody has looked at yet, one name after the other.
        let script = "for n in {0..29}; do cat d/f$n > /dev/null || exit 1; done";
        let mut read = treefork.env().command_in(fork, "bash").args(["-c", script]).spawn().expect("bash");
        ends_within(&read, Duration::from_secs(60)) && read.wait().expect("our own child").success()
    };
    let same = reads(&forks[0]);
    // A rename is the one change that all others of its fork wait for; those of other forks do not.
    for n in 10..16 {
        changes.push(change(format!("mv f{n} moved{n}")));
    }
    let other = reads(&forks[1]);
    let waiting = changes.iter_mut().filter_map(|child| child.try_wait().expect("our own child")).count() == 0;
    drop(frozen);
    assert!(waiting, "the disk does not stand still");
    assert!(same && other, "a reader waits for the disk of those who write: in the fork {same}, in another {other}");
    for mut child in changes {
        assert!(child.wait().expect("our own child").success());
    }
    assert_eq!(fs::read_to_string(forks[0].join("f3")).expect("there"), "3more\n");
    assert_eq!(fs::read_to_string(forks[0].join("moved13")).expect("there"), "13");
    assert!(!forks[0].join("f23").exists());
}
