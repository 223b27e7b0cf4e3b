//! Which fork has which label: known without a look at every record, and right whatever became of the entries for it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::gc::orphan;
use super::{assert_nothing_left, exists, json, listed, small_base};
use crate::common::{Run, Treefork, eventually};

fn id(treefork: &Treefork, label: &str) -> String {
    json(treefork, &["show", label])["id"].as_str().expect("an id").to_owned()
}

/// The entries but the one that says that they are complete: label and id.
fn entries(treefork: &Treefork) -> Vec<(String, String)> {
    let target = |name: &str| fs::read_link(entry(treefork, name)).expect("a link").to_str().expect("an id").to_owned();
    let labels = listed(treefork, "labels").into_iter().filter(|name| name != ".complete");
    labels.map(|name| (name.clone(), target(&name))).collect()
}

fn entry(treefork: &Treefork, name: &str) -> PathBuf {
    treefork.env().store().join("labels").join(name)
}

/// How many records of forks a command reads.
fn records_read(treefork: &Treefork, args: &[&str]) -> usize {
    let log = treefork.env().join("strace");
    let command = treefork.command(args);
    let mut strace = treefork.env().command("strace");
    strace.args(["-f", "-qq", "-e", "trace=open,openat", "-o"]).arg(&log).arg(command.get_program());
    strace.args(command.get_args()).envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).ok();
    let text = fs::read_to_string(&log).expect("traced");
    text.lines().filter(|line| line.contains("fork.json") && !line.contains("ENOENT")).count()
}

#[test]
fn no_other_record_is_read() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let base = base.to_str().expect("UTF-8");
    for n in 0..8 {
        treefork.ok(["create", base, "--label", &format!("fork{n}")]);
    }
    assert_eq!(records_read(&treefork, &["create", base, "--label", "new"]), 0);
    assert_eq!(records_read(&treefork, &["create", base, "--id", "asked-for-1"]), 0);
    for args in [&["path", "new"][..], &["diff", "new"]] {
        assert!(records_read(&treefork, args) <= 4, "{args:?}");
    }
}

#[test]
fn entries_come_and_go_with_the_forks() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let labels = ["Füchse 2", "a", "b"];
    for label in labels {
        treefork.create(&base, label);
    }
    let by_record: Vec<_> = labels.iter().map(|label| (label.to_string(), id(&treefork, label))).collect();
    let mut by_entry = entries(&treefork);
    by_entry.sort_by_key(|(label, _)| labels.iter().position(|l| l == label));
    assert_eq!(by_entry, by_record);
    treefork.ok(["remove", "a", "Füchse 2"]);
    eventually("the entries are gone with the files", || entries(&treefork).len() == 1);
    // One that waits in the trash has none, and gets it back when it is restored.
    let orphan = orphan(&treefork, &base, "waits", &[]);
    treefork.env().sh(Path::new(&orphan), "echo work > work");
    let waits = id(&treefork, "waits");
    treefork.ok(["gc", "--min-age", "0s", "--unmerged"]);
    assert_eq!(entries(&treefork).len(), 1);
    treefork.ok(["restore", "waits"]);
    assert!(entries(&treefork).contains(&("waits".into(), waits)));
    let done = treefork.fails(1, ["create", base.to_str().expect("UTF-8"), "--label", "waits"]);
    assert!(done.complaint().contains("\"waits\""), "{}", done.complaint());
    treefork.ok(["remove", "b", "waits"]);
    treefork.ok(["gc"]);
    assert_eq!(entries(&treefork), []);
    assert_nothing_left(&treefork);
}

/// A store of an older treefork, another boot, and whatever else may stand there: no label is given twice, and each fork
/// is found by its own.
#[test]
fn records_decide() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    for label in ["a", "b"] {
        treefork.create(&base, label);
    }
    let ids = ["a", "b"].map(|label| id(&treefork, label));
    let labels = treefork.env().store().join("labels");
    let complete = entry(&treefork, ".complete");
    let remove = |path: &Path| fs::remove_file(path).expect("there");
    let spoilt: [(&str, &dyn Fn()); 6] = [
        ("none", &|| fs::remove_dir_all(&labels).expect("ours")),
        ("those of another boot", &|| {
            remove(&complete);
            symlink("00000000-0000-0000-0000-000000000000", &complete).expect("made");
            remove(&labels.join("a"));
        }),
        ("to nothing", &|| {
            remove(&complete);
            remove(&labels.join("a"));
            symlink("abcdefgh", labels.join("a")).expect("made");
            symlink("../../b", labels.join("x")).expect("made");
            fs::write(labels.join("y"), "").expect("writable");
        }),
        // As where a file system takes two labels for one name.
        ("to another fork", &|| {
            remove(&labels.join("a"));
            symlink(&ids[1], labels.join("a")).expect("made");
        }),
        ("a directory", &|| {
            remove(&complete);
            remove(&labels.join("a"));
            fs::create_dir(labels.join("a")).expect("made");
        }),
        ("a directory still", &|| {}),
    ];
    for (what, spoil) in spoilt {
        spoil();
        let done = treefork.fails(1, ["create", base.to_str().expect("UTF-8"), "--label", "a"]);
        assert!(done.complaint().contains(&ids[0]), "{what}: {}", done.complaint());
        assert_eq!([id(&treefork, "a"), id(&treefork, "b")], ids, "{what}");
        treefork.create(&base, "c");
        assert_ne!(id(&treefork, "c"), ids[0], "{what}");
        treefork.ok(["remove", "c"]);
    }
    fs::remove_dir(labels.join("a")).expect("empty");
    treefork.ok(["gc"]);
    assert_eq!(entries(&treefork), ["a", "b"].map(str::to_owned).into_iter().zip(ids).collect::<Vec<_>>());
    assert!(exists(&complete));
    treefork.ok(["remove", "a", "b"]);
    assert_nothing_left(&treefork);
}

/// What a fork left behind that is gone is no obstacle, at whatever point its maker or remover was killed.
#[test]
fn what_is_left_of_a_label_is_free() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let create = ["create", base.to_str().expect("UTF-8"), "--label", "a"];
    treefork.ok(["create", base.to_str().expect("UTF-8"), "--label", "other"]);
    for rule in ["fork.labelled:kill", "sys.symlinkat:kill@2", "fork.trashed:kill"] {
        if rule == "fork.trashed:kill" {
            treefork.ok(create);
            treefork.command(["remove", "a"]).env("TREEFORK_FAULT", rule).done();
        } else {
            // All entries are made anew, and the second is the one that says so.
            fs::remove_dir_all(treefork.env().store().join("labels")).expect("ours");
            treefork.command(create).env("TREEFORK_FAULT", rule).done();
        }
        treefork.ok(create);
        assert_eq!(json(&treefork, &["show", "a"])["state"], "live", "{rule}");
        treefork.fails(1, create);
        treefork.ok(["remove", "a"]);
    }
    treefork.ok(["remove", "other"]);
    treefork.ok(["gc"]);
    assert_eq!(entries(&treefork), []);
    assert_nothing_left(&treefork);
}

/// A record that cannot be read keeps nobody from making forks; put right, its fork has its label as before.
#[test]
fn a_record_that_is_put_right_has_its_label() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    treefork.create(&base, "a");
    let record = treefork.env().store().join("forks").join(id(&treefork, "a")).join("fork.json");
    let text = fs::read_to_string(&record).expect("readable");
    fs::write(&record, &text[..text.len() / 2]).expect("writable");
    fs::remove_dir_all(treefork.env().store().join("labels")).expect("ours");
    treefork.create(&base, "b");
    fs::write(&record, text).expect("writable");
    treefork.fails(1, ["create", base.to_str().expect("UTF-8"), "--label", "a"]);
    assert_eq!(entries(&treefork).len(), 2);
    treefork.ok(["remove", "a", "b"]);
    assert_nothing_left(&treefork);
}
