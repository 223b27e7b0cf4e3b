//! A base, a fork of it, and what became of them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::Treefork;

/// A base with forks.
pub(super) struct Work {
    pub(super) treefork: Treefork,
    pub(super) base: PathBuf,
}

impl Work {
    /// A plain directory that a script fills.
    pub(super) fn plain(script: &str) -> Self {
        let treefork = Treefork::new();
        let base = treefork.env().dir("base");
        treefork.env().sh(&base, script);
        Self { treefork, base }
    }

    /// A git repository that a script fills, all of it committed.
    pub(super) fn repository(script: &str) -> Self {
        let work = Self::plain(&format!("git init -q\n{script}\ngit add -A\ngit commit -qm start"));
        // Times of files and index apart, so that no entry of the index is racy.
        work.in_base("find . -path ./.git -prune -o -exec touch -h -d '2024-01-01 00:00:00' {} +; git status -s");
        work
    }

    /// A fork, with a script run in it.
    pub(super) fn fork(&self, label: &str, script: &str) -> PathBuf {
        let path = self.treefork.create(&self.base, label);
        self.treefork.env().sh(&path, script);
        path
    }

    pub(super) fn in_base(&self, script: &str) -> String {
        self.treefork.env().sh(&self.base, script)
    }

    /// `treefork merge LABEL ARGS`, which has to succeed; its report.
    #[track_caller]
    pub(super) fn merge(&self, label: &str, args: &[&str]) -> Value {
        let all = [&["merge", "--json", label], args].concat();
        let done = self.treefork.ok(all);
        serde_json::from_slice(&done.stdout).expect("a report")
    }

    /// A merge that has to find conflicts; their paths and reasons.
    #[track_caller]
    pub(super) fn conflicts(&self, label: &str, args: &[&str]) -> Vec<(String, String)> {
        let all = [&["merge", "--json", label], args].concat();
        let done = self.treefork.fails(1, all);
        let report: Value = serde_json::from_slice(&done.stdout).expect("a report");
        let list = report["conflicts"].as_array().unwrap_or_else(|| panic!("no conflicts: {report}"));
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        list.iter().map(|conflict| (text(&conflict["path"]), text(&conflict["reason"]))).collect()
    }

    /// What is where the store keeps things for bases, apart from locks: has to be nothing after a merge.
    pub(super) fn leftovers(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let bases = self.treefork.env().store().join("bases");
        for dir in list(&bases) {
            found.extend(list(&dir).into_iter().filter(|path| !path.ends_with("lock")));
        }
        let ours = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().contains("treefork"));
        found.extend(list(&self.base).into_iter().filter(ours));
        found
    }
}

fn list(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}
