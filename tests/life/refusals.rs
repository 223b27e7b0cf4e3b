//! Wrong use and missing means: one line that names the thing, a hint, the right status, and nothing left behind.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::{assert_nothing_left, small_base};
use crate::common::run::Done;
use crate::common::{Image, Run, Treefork};

/// One line that says `says`, then at most one hint.
#[track_caller]
fn assert_says(done: &Done, says: &str) {
    let complaint = done.complaint();
    let lines: Vec<&str> = complaint.lines().collect();
    assert!(matches!(lines.len(), 1 | 2), "more than an error and a hint:\n{complaint}");
    assert!(lines[0].starts_with("treefork: ") && lines[0].contains(says), "does not say {says:?}:\n{complaint}");
    assert!(lines.iter().skip(1).all(|line| line.starts_with("hint: ")), "{complaint}");
    assert!(done.stdout.is_empty(), "an error prints nothing else: {}", done.text());
}

#[test]
fn bases_that_cannot_be_forked() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let base = small_base(&treefork, "base");
    symlink("nowhere", env.join("dangling")).expect("made");
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let file = text(&base.join("file"));
    for (given, code, says) in [
        ("missing", 1, "does not exist"),
        ("dangling", 1, "does not exist"),
        ("", 2, "a value is required"),
        (file.as_str(), 2, "not a directory"),
        ("/", 2, "inside the base"),
        (".", 2, "inside the base"),
    ] {
        assert_says(&treefork.fails(code, ["create", given]), says);
        assert_nothing_left(&treefork);
    }
    let store = text(&env.store());
    assert_says(&treefork.fails(2, ["create", &store]), "inside the store");
    assert_says(&treefork.fails(2, ["create", &format!("{store}/forks")]), "inside the store");
    assert_nothing_left(&treefork);
}

#[test]
fn a_base_that_may_not_be_read() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    crate::common::temp::chmod(&base, 0o700);
    let store = treefork.env().dir("theirs");
    crate::common::temp::chmod(&store, 0o777);
    let mut command = treefork.env().user_command(crate::common::cli::BINARY);
    command.arg("create").arg(&base).env("TREEFORK_STORE", store.join("store"));
    assert_says(&command.fails(1), "cannot read the base");
}

#[test]
fn a_base_in_a_live_fork() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let fork = treefork.create(&base, "outer");
    let sub = fork.join("sub");
    for inside in [&fork, &sub] {
        let inside = inside.to_str().expect("UTF-8");
        assert_says(&treefork.fails(2, ["create", inside]), "inside the fork");
        // Another store changes nothing about that.
        let other = treefork.env().join("other");
        let other = other.to_str().expect("UTF-8");
        assert_says(&treefork.fails(2, ["--store", other, "create", inside]), "inside the fork");
    }
    // Nor does a base with the mount somewhere below it.
    let above = treefork.env().store();
    let above = above.parent().and_then(Path::to_str).expect("UTF-8");
    let elsewhere = crate::common::TempTree::new();
    let other = elsewhere.join("store");
    let other = other.to_str().expect("UTF-8");
    for strategy in ["auto", "overlay", "copy"] {
        let create = ["--store", other, "create", above, "--strategy", strategy];
        assert_says(&treefork.fails(2, create), "inside the base");
        assert_eq!(std::fs::read_dir(elsewhere.join("store/forks")).expect("made").count(), 0);
    }
    treefork.ok(["remove", "outer"]);
    // It was seen there, and is not there any more.
    treefork.ok(["--store", other, "create", above, "--label", "free"]);
    treefork.ok(["--store", other, "remove", "free"]);
    treefork.ok(["--store", other, "serve", "--stop"]);
    assert_nothing_left(&treefork);
}

/// Kernels before 6.8 do not speak of single mounts: the same is found out from the table of all.
#[test]
fn an_older_kernel_says_the_same() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let elsewhere = crate::common::TempTree::new();
    let other = elsewhere.join("store");
    let other = other.to_str().expect("UTF-8");
    // The servers that they start are told the same.
    let old = |args: &[&str]| {
        let mut command = treefork.command(args);
        command.env("TREEFORK_FAULT", "sys.statmount:fail=38@*;sys.listmount:fail=38@*");
        command
    };
    let fork = old(&["create", base.to_str().expect("UTF-8"), "--label", "outer"]).ok().text();
    assert_says(&old(&["create", &fork]).fails(2), "inside the fork");
    let above = treefork.env().store();
    let above = above.parent().and_then(Path::to_str).expect("UTF-8");
    assert_says(&old(&["--store", other, "create", above]).fails(2), "inside the base");
    old(&["remove", "outer"]).ok();
    old(&["--store", other, "create", above, "--label", "free"]).ok();
    treefork.ok(["--store", other, "remove", "free"]);
    treefork.ok(["--store", other, "serve", "--stop"]);
    assert_nothing_left(&treefork);
}

#[test]
fn labels_and_names() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let base = base.to_str().expect("UTF-8");
    let long = "x".repeat(300);
    for (label, says) in [
        ("a/b", "slash"),
        ("a\nb", "line break"),
        (long.as_str(), "300 bytes"),
        ("", "empty"),
        (".hidden", "dash or dot"),
        ("-", "dash or dot"),
    ] {
        assert_says(&treefork.fails(2, ["create", base, &format!("--label={label}")]), says);
        assert_nothing_left(&treefork);
    }
    treefork.ok(["create", base, "--label", "idea-a"]);
    treefork.ok(["create", base, "--label", "idea-b"]);
    let taken = treefork.fails(1, ["create", base, "--label", "idea-a"]);
    assert_says(&taken, "idea-a");
    assert_eq!(super::listed(&treefork, "forks").len(), 2);
    assert_says(&treefork.fails(1, ["show", "unknown"]), "idea-a");
    let ambiguous = treefork.fails(2, ["show", "idea"]);
    assert_says(&ambiguous, "idea-a");
    assert!(ambiguous.complaint().contains("idea-b"));
    assert_says(&treefork.fails(1, ["path", "unknown"]), "no fork is called");
    assert_says(&treefork.fails(1, ["remove", "unknown"]), "no fork is called");
    assert_says(&treefork.fails(2, ["remove", "idea"]), "idea-b");
    treefork.ok(["remove", "idea-a", "idea-b"]);
    assert_nothing_left(&treefork);
}

#[test]
fn arguments_that_make_no_sense() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let base = base.to_str().expect("text");
    for (args, says) in [
        (&["frobnicate"][..], "frobnicate"),
        (&["list", "--frobnicate"], "--frobnicate"),
        (&["restore"], "FORK"),
        (&["create", "--strategy", "magic"], "magic"),
        (&["gc", "--min-age", "soon"], "soon"),
        (&["create", base, "--dirty"], "worktree"),
        (&["create", base, "--owner", "4194999"], "4194999"),
    ] {
        let done = treefork.command(args).done();
        assert!(matches!(done.code(), 1 | 2), "{args:?}: {}", done.code());
        assert_says(&done, says);
    }
}

#[test]
fn no_fuse_here() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    // A namespace in which the device leads nowhere, for this command alone.
    let script = r#"mount --bind /dev/null /dev/fuse && exec "$0" "$@""#;
    let mut command = treefork.env().command("unshare");
    command.args(["-m", "sh", "-c", script, crate::common::cli::BINARY, "create", "--strategy", "overlay"]).arg(&base);
    let done = command.fails(1);
    assert_says(&done, "cannot mount");
    assert_nothing_left(&treefork);
}

#[test]
fn a_full_disk() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let image = Image::ext4(16);
    let store = image.path().join("store");
    let store_text = store.to_str().expect("UTF-8");
    let base = base.to_str().expect("UTF-8");
    treefork.ok(["--store", store_text, "create", base, "--label", "before"]);
    fill(&image.path());
    let done = treefork.fails(1, ["--store", store_text, "create", base, "--label", "after"]);
    assert_says(&done, "No space left");
    fs::remove_file(image.path().join("filler")).expect("removable");
    treefork.ok(["--store", store_text, "create", base, "--label", "after"]);
    let mut left: Vec<_> = fs::read_dir(store.join("forks")).expect("listable").collect();
    assert_eq!(left.len(), 2, "{left:?}");
    left.clear();
    assert_eq!(fs::read_dir(store.join("pending")).expect("listable").count(), 0);
    treefork.ok(["--store", store_text, "remove", "before", "after"]);
    treefork.ok(["--store", store_text, "serve", "--stop"]);
}

/// Takes all space and all inodes' worth of small writes.
fn fill(dir: &Path) {
    use std::io::Write;
    let mut file = fs::File::create(dir.join("filler")).expect("made");
    let mut size = 1 << 20;
    while size > 0 {
        if file.write_all(&vec![b'x'; size]).is_err() {
            size /= 2;
        }
    }
}

/// With `--json` an error is an object on standard output as well, whatever went wrong.
#[test]
fn errors_as_json() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    treefork.create(&base, "a");
    for (args, kind) in [
        (&["show", "nope", "--json"][..], "not-found"),
        (&["create", "missing", "--json"], "not-found"),
        (&["create", "--json", "--label", "a/b"], "usage"),
        (&["create", base.to_str().expect("UTF-8"), "--json", "--label", "a"], "exists"),
        (&["--json", "frobnicate"], "usage"),
    ] {
        let done = treefork.command(args).done();
        assert!(!done.status.success());
        let error: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
        assert_eq!(error["error"]["kind"], kind, "{args:?}");
        let message = error["error"]["message"].as_str().expect("a message");
        assert!(done.complaint().contains(message), "both say the same");
    }
    treefork.ok(["remove", "a"]);
}
