//! A git repository of any size, the same in every run: what the main job and the benchmarks fork.
//!
//! It holds, besides plain files in a tree of directories: executables, symlinks (relative, dangling), hard links,
//! names that are no UTF-8, a submodule, a branch that changes many files, an ignored build directory, an untracked
//! file. Modification times are pinned and older than the index, so that git has no reason to read a file again.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use filetime::FileTime;

use super::env::DATE;
use super::{Env, Run};

/// How large a repository is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Tracked plain files.
    pub(crate) files: usize,
    /// How many of them the branch `other` changes.
    pub(crate) changed: usize,
    /// Ignored files in `build/`.
    pub(crate) ignored: usize,
    /// Whether there is a submodule (half a second).
    pub(crate) submodule: bool,
}

impl Shape {
    /// Of this many files, with everything in it.
    pub(crate) fn full(files: usize) -> Self {
        Self { files, changed: files / 20, ignored: files / 100, submodule: true }
    }

    /// A small one, for tests that only need git.
    pub(crate) fn small() -> Self {
        Self { files: 20, changed: 2, ignored: 3, submodule: false }
    }
}

/// A generated repository.
#[derive(Debug)]
pub(crate) struct Repo {
    pub(crate) path: PathBuf,
    shape: Shape,
}

/// A tracked name that is no UTF-8.
pub(crate) const ODD_NAME: &[u8] = b"odd/\xff\xfe \n.txt";

impl Repo {
    /// Makes one at `path`, which must not exist.
    pub(crate) fn new(env: &Env, path: &Path, shape: Shape) -> Self {
        let repo = Self { path: path.to_path_buf(), shape };
        std::fs::create_dir_all(path).unwrap_or_else(|e| panic!("cannot make {}: {e}", path.display()));
        env.git(path, ["init", "-q"]);
        env.command_in(path, "git").args(["fast-import", "--quiet"]).ok_with(&repo.history());
        env.git(path, ["reset", "-q", "--hard", "main"]);
        if shape.submodule {
            repo.add_submodule(env);
        }
        repo.add_untracked();
        repo.pin_times(path);
        // Twice: the first one writes the new times into the index.
        env.git(path, ["status", "--porcelain"]);
        assert_eq!(env.git(path, ["status", "--porcelain"]), "?? notes.txt", "as made");
        repo
    }

    /// The path of the n-th plain file.
    pub(crate) fn file(n: usize) -> PathBuf {
        PathBuf::from(format!("pkg{:02}/mod{:03}/file{n:05}.txt", n / 2000, n / 50))
    }

    /// The stream for `git fast-import`: two commits on `main`, one on `other`.
    fn history(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let head = |branch: &str, date: i64, what: &str| {
            let who = format!("Test <test@example.org> {date} +0000");
            format!("commit refs/heads/{branch}\nauthor {who}\ncommitter {who}\ndata {}\n{what}\n", what.len())
        };
        out.extend(head("main", DATE - 7200, "first").bytes());
        for n in 0..self.shape.files {
            let mode = if n % 17 == 0 { "100755" } else { "100644" };
            add(&mut out, mode, Self::file(n).as_os_str(), content(n, 0).as_bytes());
        }
        add(&mut out, "100644", OsStr::new(".gitignore"), b"/build/\n*.o\n");
        add(&mut out, "100644", OsStr::new("hard/a"), b"one file, two names\n");
        add(&mut out, "100644", OsStr::new("hard/b"), b"one file, two names\n");
        add(&mut out, "120000", OsStr::new("link/file"), b"../hard/a");
        add(&mut out, "120000", OsStr::new("link/dir"), b"../pkg00");
        add(&mut out, "120000", OsStr::new("link/dangling"), b"nowhere/\xff");
        add(&mut out, "100644", OsStr::from_bytes(ODD_NAME), b"odd\n");
        out.extend(head("main", DATE - 3600, "second").bytes());
        add(&mut out, "100644", OsStr::new("README"), b"A repository for tests.\n");
        out.extend(head("other", DATE - 1800, "other").bytes());
        out.extend(b"from refs/heads/main\n");
        for n in 0..self.shape.changed {
            let n = n * self.shape.files / self.shape.changed;
            add(&mut out, "100644", Self::file(n).as_os_str(), content(n, 1).as_bytes());
        }
        out
    }

    fn add_submodule(&self, env: &Env) {
        let origin = self.path.with_extension("sub-origin");
        env.git(env.tree().path(), [OsStr::new("init"), OsStr::new("-q"), origin.as_os_str()]);
        for n in 0..20 {
            std::fs::write(origin.join(format!("lib{n}.c")), content(n, 2)).expect("the new directory is ours");
        }
        env.git(&origin, ["add", "."]);
        env.git(&origin, ["commit", "-q", "-m", "library"]);
        let add = ["submodule", "--quiet", "add"].map(OsStr::new).into_iter();
        env.git(&self.path, add.chain([origin.as_os_str(), OsStr::new("vendor/lib")]));
        env.git(&self.path, ["commit", "-q", "-m", "submodule"]);
    }

    fn add_untracked(&self) {
        let at = |name: &str| self.path.join(name);
        std::fs::write(at("notes.txt"), "not tracked\n").expect("ours");
        std::fs::remove_file(at("hard/b")).expect("ours");
        std::fs::hard_link(at("hard/a"), at("hard/b")).expect("ours");
        std::fs::create_dir(at("build")).expect("ours");
        for n in 0..self.shape.ignored {
            std::fs::write(at(&format!("build/obj{n}.bin")), content(n, 3)).expect("ours");
        }
        if self.shape.ignored > 0 {
            std::fs::hard_link(at("build/obj0.bin"), at("build/again.bin")).expect("ours");
        }
        symlink("obj0.bin", at("build/latest")).expect("ours");
    }

    /// Pins the times of everything outside `.git`, the entries of a directory before the directory.
    fn pin_times(&self, dir: &Path) {
        for entry in dir.read_dir().expect("ours").map(|e| e.expect("ours")) {
            if entry.file_name() == ".git" {
                continue;
            }
            if entry.file_type().expect("ours").is_dir() {
                self.pin_times(&entry.path());
            }
            let time = FileTime::from_unix_time(DATE - 600, 123_456_789);
            filetime::set_symlink_file_times(entry.path(), time, time).expect("ours");
        }
    }
}

/// One file of a commit.
fn add(out: &mut Vec<u8>, mode: &str, path: &OsStr, data: &[u8]) {
    let mut quoted = String::new();
    for &byte in path.as_bytes() {
        match byte {
            b'"' | b'\\' | 0..=31 | 127..=255 => write!(quoted, "\\{byte:03o}").expect("a string takes all"),
            _ => quoted.push(char::from(byte)),
        }
    }
    out.extend(format!("M {mode} inline \"{quoted}\"\ndata {}\n", data.len()).bytes());
    out.extend(data);
    out.push(b'\n');
}

/// The text of the n-th file in some version: 100 to 2,000 bytes of lines.
fn content(n: usize, version: usize) -> String {
    let lines = 3 + (n * 7919) % 57;
    (0..lines).fold(String::new(), |mut text, line| {
        writeln!(text, "file {n} version {version} line {line} {}", (n * 31 + line * 17) % 997).expect("a string");
        text
    })
}
