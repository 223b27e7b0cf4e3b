//! Git directories made by a hostile hand: read without git, and with git, which runs nothing that they name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use treefork::git::index::{Carried, carry};
use treefork::git::{Git, Repo};
use treefork::sys::{At, open_root};

use super::{put, scratch};

/// The files of a git directory, divided by bytes 0xff. `.git` itself is a file where the first is not empty.
pub(crate) fn parts(data: &[u8]) {
    const NAMES: [&str; 5] = ["HEAD", "commondir", "objects/info/alternates", "packed-refs", "index"];
    let top = scratch().join("parts");
    let _ = fs::remove_dir_all(&top);
    let dir = top.join("git");
    for name in ["objects/info", "refs/heads"] {
        fs::create_dir_all(dir.join(name)).expect("there is room");
    }
    let mut pieces = data.split(|&byte| byte == 0xff);
    let file = pieces.next().unwrap_or_default();
    for (name, piece) in NAMES.iter().zip(pieces).filter(|(_, piece)| !piece.is_empty()) {
        put(&dir.join(name), piece);
    }
    match file {
        [] => fs::rename(&dir, top.join(".git")).expect("a new name"),
        file => put(&top.join(".git"), file),
    }
    let Ok(Some(repo)) = Repo::at(&fs::canonicalize(&top).expect("it is there")) else { return };
    drop(repo.elsewhere());
    // What is no plain branch is asked of git.
    if fs::read(repo.git_dir.join("HEAD")).is_ok_and(|head| head.starts_with(b"ref: refs/heads/")) {
        drop(repo.head());
    }
    let index = repo.git_dir.join("index");
    let Ok(before) = fs::read(&index) else { return };
    let root = open_root(&repo.git_dir).expect("it is there");
    if carry(At::new(&root, "index"), |_| None) == Ok(Carried::Untouched) {
        assert_eq!(fs::read(&index).expect("it is there"), before);
    }
}

/// A repository with a file that differs from the index, and attributes that ask for all programs there may be.
fn repository() -> PathBuf {
    let top = fs::canonicalize(scratch()).expect("it is there").join("repository");
    if top.exists() {
        return top;
    }
    let git = |args: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(&top).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        assert!(git.args(["-c", "user.name=x", "-c", "user.email=x"]).args(args).status().expect("runs").success());
    };
    fs::create_dir(&top).expect("there is room");
    git(&["init", "-q"]);
    put(&top.join(".gitattributes"), b"* filter=x diff=x merge=x\n");
    put(&top.join("file"), b"one\n");
    git(&["add", "-A"]);
    git(&["commit", "-q", "-m", "x"]);
    put(&top.join("file"), b"two\n");
    top
}

/// Any configuration. Whatever it names leaves a file called `mark` where git runs.
pub(crate) fn config(data: &[u8]) {
    let top = repository();
    put(&top.join(".git/config"), &[b"[core]\n\trepositoryformatversion = 0\n", data].concat());
    let Ok(Some(repo)) = Repo::at(&top) else { return };
    if let Ok(git) = Git::new(&repo) {
        drop(git.run(["status", "--porcelain"]));
        drop(git.run(["diff", "HEAD"]));
    }
    let marks = [Path::new("mark"), Path::new(".git/mark")].map(|mark| top.join(mark));
    assert!(!marks.iter().any(|mark| mark.exists()), "it was run: {:?}", String::from_utf8_lossy(data));
}
