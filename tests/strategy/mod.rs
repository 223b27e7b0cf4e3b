//! The ways to make a fork, each held to what it promises.

mod copies;
mod deep;
mod elsewhere;
mod hidden;
mod merging;
mod worktree;

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use treefork::strategy::{Hide, Limits, Site};
use treefork::sys::{Ident, Time};

use crate::common::{Env, Run};

/// A site for a fork of `base` below `store`, with the directories that a strategy finds there.
fn site(base: &Path, store: &Path, id: &str) -> Site {
    let dir = store.join("forks").join(id);
    std::fs::create_dir_all(dir.join("mnt")).expect("a store of the test's own");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    Site {
        base: std::fs::canonicalize(base).expect("there"),
        base_ident: Ident::default(),
        base_dev: 0,
        store: std::fs::canonicalize(store).expect("there"),
        dir: std::fs::canonicalize(dir).expect("there"),
        id: id.into(),
        created: Time { sec: now.as_secs().cast_signed(), nsec: now.subsec_nanos() },
        hide: Hide::default(),
        limits: Limits::default(),
        private_mount: false,
        layers: vec![],
    }
}

/// The regular files below `dir` (but `.git` and those that configure git, such as `.gitignore`) that `git ARGS` opens there.
#[track_caller]
fn opened_by_git(env: &Env, dir: &Path, args: &[&str]) -> Vec<PathBuf> {
    let trace = env.join("trace");
    let mut command = env.command_in(dir, "strace");
    command.args(["-f", "-qq", "-y", "-e", "trace=open,openat,openat2", "-o"]).arg(&trace).arg("git").args(args).ok();
    let text = std::fs::read_to_string(&trace).expect("strace wrote it");
    assert!(text.contains("openat"), "strace saw nothing: {text}");
    // `-y` shows where a descriptor leads: `... = 3</path>`.
    let opened = text.lines().filter_map(|line| line.rsplit_once(" = ")?.1.split_once('<')?.1.strip_suffix('>'));
    let below = opened.map(PathBuf::from).filter(|path| path.starts_with(dir) && path.is_file());
    let of_git = |path: &PathBuf| path.iter().any(|name| name.as_encoded_bytes().starts_with(b".git"));
    below.filter(|path| !of_git(path)).collect()
}
