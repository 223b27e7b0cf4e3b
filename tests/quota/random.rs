//! Whatever is done in whatever order, the account says what the file system says, and never more than is allowed.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};

use rustix::fs::{FallocateFlags, XattrFlags, copy_file_range, fallocate, removexattr, setxattr};

use super::*;
use crate::semantics::rng::Rng;

const LIMIT: u64 = 3 * MIB;
const FILES: u64 = 60;
const OPTIONS: [&str; 4] = ["--max-size", "3M", "--max-files", "60"];
const STEPS: u64 = 1500;

/// A base with something of each kind, among it a large file by the measure that the server is given.
const BASE: &str = "mkdir -p d1/d2 d3; for i in 1 2 3 4 5 6; do head -c ${i}0000 /dev/urandom > f$i; cp f$i d1/d2/f$i; \
                    done; ln f1 d3/f1; ln f2 d1/f2; ln -s f1 l1; head -c 400000 /dev/urandom > d3/f3; truncate -s 10M f7; \
                    printf x >> f7; mkfifo d1/f4";

/// What programs do, with files that stay open for a while.
struct Load<'a> {
    site: &'a Limited,
    rng: Rng,
    open: Vec<File>,
}

impl Load<'_> {
    fn path(&mut self) -> PathBuf {
        let dir = self.rng.pick(&["", "d1", "d1/d2", "d3", "d4"]);
        let name = self.rng.pick(&["f1", "f2", "f3", "f4", "f5", "f6", "f7", "n1", "n2", "n3", "l1", "d2", "d4"]);
        self.site.path.join(dir).join(name)
    }

    fn file(&mut self) -> Option<File> {
        if self.rng.once_in(3) && !self.open.is_empty() {
            let n = self.rng.below(self.open.len() as u64) as usize;
            return self.open[n].try_clone().ok();
        }
        let path = self.path();
        if !fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file()) {
            return None;
        }
        let file = File::options().read(true).write(true).open(path).ok()?;
        if self.rng.once_in(4) {
            self.open.push(file.try_clone().ok()?);
        }
        Some(file)
    }

    /// One operation; what it says is its own affair.
    fn step(&mut self) {
        let bytes = vec![self.rng.next() as u8; self.rng.pick(&[1, 100, 4096, 5000, 70_000, 300_000])];
        let at = self.rng.pick(&[0, 1, 4096, 10_000, 65_536, 200_000, 1_000_000]);
        let (from, to) = (self.path(), self.path());
        match self.rng.below(24) {
            0..4 => drop(self.file().map(|file| file.write_all_at(&bytes, at))),
            4 => drop(self.file().map(|file| file.set_len(at))),
            5 | 6 => {
                let keep = FallocateFlags::KEEP_SIZE;
                let flags =
                    [FallocateFlags::empty(), keep, keep | FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE];
                let flags = self.rng.pick(&flags);
                let _ = self.file().map(|file| fallocate(&file, flags, at, bytes.len() as u64));
            }
            7 => {
                let files = self.file().zip(self.file());
                let copy = |(from, to): (File, File)| {
                    copy_file_range(&from, Some(&mut 0), &to, Some(&mut at.clone()), bytes.len())
                };
                let _ = files.map(copy);
            }
            8 | 9 => drop(File::create_new(to)),
            10 => drop(fs::create_dir(to)),
            11 => drop(symlink("x".repeat(bytes.len().min(3000)), to)),
            12 => drop(fs::hard_link(from, to)),
            13 | 14 => drop(fs::rename(from, to)),
            15..18 => drop(fs::remove_file(from)),
            18 => drop(fs::remove_dir(from)),
            19 => drop(setxattr(&from, "user.x", &bytes[..bytes.len().min(3500)], XattrFlags::empty())),
            20 => drop(removexattr(&from, "user.x")),
            21 if !fs::symlink_metadata(&from).is_ok_and(|meta| meta.is_symlink()) => {
                drop(fs::set_permissions(from, fs::Permissions::from_mode(0o755)));
            }
            _ => self.open.truncate(4),
        }
    }
}

/// Works in a fork on this file system; `slack`: how far beyond its limit that may take it, and how far account and file
/// system may be from each other, since the latter changes its mind about what a file takes.
fn agree(fs: Fs, seed: u64, slack: u64) {
    let large = |store| Treefork::with_store(store).with("TREEFORK_LARGE", "200000");
    let site = Limited::with(Image::new(fs, 600), large, &OPTIONS, BASE);
    let mut load = Load { site: &site, rng: Rng::new(seed), open: vec![] };
    let mut most = (0, 0);
    for n in 1..=STEPS {
        load.step();
        if n % 50 == 0 {
            let (bytes, files) = site.used();
            most = (most.0.max(bytes), most.1.max(files));
            assert!(
                bytes <= LIMIT + 256 * KIB + slack && files <= FILES + 10,
                "{bytes} {files} after step {n} of {seed}"
            );
        }
        if n % 250 == 0 {
            load.open.clear();
            if slack == 0 {
                site.agrees();
            } else {
                eventually("account and file system are close", || {
                    let ((bytes, files), (taken, objects)) = (site.used(), site.taken());
                    files == objects && bytes.abs_diff(taken) <= slack
                });
            }
        }
        if n % 500 == 0 {
            site.treefork.restart("fork");
        }
    }
    assert!(most.0 > LIMIT / 3 && most.1 > FILES / 2, "the limits were not even near: {most:?}");
}

#[test]
fn on_ext4() {
    (1..=3).for_each(|seed| agree(Fs::Ext4, seed, 0));
}

#[test]
fn on_xfs() {
    agree(Fs::Xfs, 4, MIB);
}

#[test]
fn on_btrfs() {
    agree(Fs::Btrfs, 5, 64 * KIB);
}

#[test]
fn on_tmpfs() {
    agree(Fs::Tmpfs, 6, 0);
}

/// Every so often a call fails in the server: what was not done is not charged. Where not even that can be looked at, what was
/// held for it counts until the object is changed the next time.
#[test]
fn with_calls_that_fail() {
    for (seed, every) in [(7, 101), (8, 53), (9, 211)] {
        let rules: Vec<_> = (20..600).map(|n| format!("sys.*:fail=5@{}", n * every)).collect();
        let treefork = |store| {
            let treefork = Treefork::with_store(store).with("TREEFORK_LARGE", "200000");
            treefork.with("TREEFORK_FAULT", rules.join(";"))
        };
        let mut site = Limited::with(Image::ext4(600), treefork, &OPTIONS, BASE);
        // The server has the rules; what is asked of it is to be answered.
        site.treefork.set("TREEFORK_FAULT", "");
        let mut load = Load { site: &site, rng: Rng::new(seed), open: vec![] };
        for n in 1..=STEPS {
            load.step();
            if n % 100 == 0 {
                load.open.clear();
                eventually("account and file system are close", || {
                    let ((bytes, files), (taken, objects)) = (site.used(), site.taken());
                    files == objects && bytes.abs_diff(taken) <= 64 * KIB
                });
            }
        }
    }
}
