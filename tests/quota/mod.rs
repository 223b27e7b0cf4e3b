//! Limits of what a fork takes: what counts, what is refused at the limit, and what is not disturbed by it.

mod account;
mod limits;
mod random;
mod refusals;
mod writers;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde_json::Value;

use crate::common::{Env, Fs, Image, Run, Treefork, eventually};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A base and a fork with limits, on a file system of their own.
struct Limited {
    treefork: Treefork,
    base: PathBuf,
    path: PathBuf,
    _image: Image,
}

impl Limited {
    /// A fork, made with these options, of a base that a shell script makes.
    #[track_caller]
    fn new(options: &[&str], script: &str) -> Self {
        Self::on(Image::ext4(600), options, script)
    }

    #[track_caller]
    fn on(image: Image, options: &[&str], script: &str) -> Self {
        Self::with(image, Treefork::with_store, options, script)
    }

    #[track_caller]
    fn with(image: Image, treefork: impl FnOnce(PathBuf) -> Treefork, options: &[&str], script: &str) -> Self {
        let treefork = treefork(image.dir("store"));
        let base = image.dir("base");
        treefork.env().sh(&base, script);
        let mut limited = Self { treefork, base, path: PathBuf::new(), _image: image };
        limited.path = limited.fork("fork", options);
        limited
    }

    /// One more fork of the base.
    #[track_caller]
    fn fork(&self, label: &str, options: &[&str]) -> PathBuf {
        let mut command = self.treefork.command(["create", "--label", label]);
        command.args(options).arg(&self.base);
        command.ok().text().into()
    }

    fn env(&self) -> &Env {
        self.treefork.env()
    }

    fn join(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.path.join(name.as_ref())
    }

    /// The directory of the fork in the store.
    fn dir(&self) -> &Path {
        self.path.parent().expect("the mount point is in the fork's directory")
    }

    fn upper(&self) -> PathBuf {
        self.dir().join("upper")
    }

    fn show(&self) -> Value {
        let shown = self.treefork.ok(["show", "fork", "--json"]).text();
        serde_json::from_str(&shown).expect("JSON")
    }

    /// What treefork says that the fork takes: bytes and objects.
    fn used(&self) -> (u64, u64) {
        let shown = self.show();
        let number = |name: &str| shown[name].as_u64().unwrap_or_else(|| panic!("{name} in {shown:#}"));
        (number("used_bytes"), number("used_files"))
    }

    /// What it takes by the file system's word.
    fn taken(&self) -> (u64, u64) {
        let work = self.dir().join("work");
        let ledger = fs::metadata(work.join("ledger")).expect("every fork has one").len();
        let mut all = (fs::metadata(self.upper()).expect("there").blocks() * 512 + ledger, 0);
        let mut met = HashSet::new();
        count(&self.upper(), &mut met, &mut all);
        count(&work.join("index"), &mut met, &mut all);
        all
    }

    /// The two agree. Once the kernel has told of what was removed.
    #[track_caller]
    fn agrees(&self) {
        let mut last = ((0, 0), (0, 0));
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while std::time::Instant::now() < until {
            last = (self.used(), self.taken());
            if last.0 == last.1 {
                return;
            }
        }
        panic!("treefork says {:?}, the file system {:?}", last.0, last.1);
    }
}

fn count(dir: &Path, met: &mut HashSet<u64>, all: &mut (u64, u64)) {
    for entry in fs::read_dir(dir).expect("there") {
        let entry = entry.expect("there");
        let meta = entry.metadata().expect("there");
        let whiteout = meta.file_type().is_char_device() && meta.rdev() == 0;
        let of_ours = entry.file_name().as_encoded_bytes().ends_with(b".nlink");
        if whiteout || of_ours || !met.insert(meta.ino()) {
            continue;
        }
        all.0 += meta.blocks() * 512;
        all.1 += 1;
        if meta.is_dir() {
            count(&entry.path(), met, all);
        }
    }
}

/// The result is a refusal by the limit.
#[track_caller]
fn refused<T: std::fmt::Debug>(done: io::Result<T>) {
    let error = done.expect_err("it does not fit");
    assert_eq!(error.raw_os_error(), Some(Errno::DQUOT.raw_os_error()), "{error}");
}

/// Writes so many bytes to a new file, or into an old one.
fn write(path: &Path, len: u64) -> io::Result<()> {
    fs::write(path, vec![7; len as usize])
}
