//! What a fork does not show of its base: symbolic links, by where they lead.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::common::{Look, Run, Tree, Treefork, assert_same};

/// A base with links of all kinds; those that lead outside are called `out`.
fn base(treefork: &Treefork) -> PathBuf {
    let base = treefork.env().dir("base");
    fs::create_dir_all(base.join("d/e")).expect("ours");
    fs::create_dir_all(base.join("only")).expect("ours");
    fs::write(base.join("d/f"), "f\n").expect("ours");
    let links = [
        ("in", "d/f"),
        ("out-absolute", "/etc/passwd"),
        ("out-relative", "../elsewhere"),
        ("d/e/up", "../.."),
        ("out-over-up", "d/e/up/../elsewhere"),
        ("out-by-out", "out-relative/x"),
        ("d/e/out", "../../../elsewhere"),
        ("only/out", "/etc"),
        ("dangling", "d/nothing"),
        ("loop", "loop"),
    ];
    for (name, target) in links {
        symlink(target, base.join(name)).expect("ours");
    }
    symlink(base.join("d"), base.join("own")).expect("ours");
    fs::write(treefork.env().join("elsewhere"), "outside\n").expect("ours");
    base
}

fn create(treefork: &Treefork, base: &Path, symlinks: &str) -> PathBuf {
    let mut create = treefork.command(["create", "--strategy", "overlay", "--label", symlinks, "--symlinks", symlinks]);
    PathBuf::from(create.arg(base).ok().text())
}

/// All names of symbolic links below a directory, as listed and as looked up.
fn links(root: &Path) -> Vec<String> {
    let tree = Tree::at(root);
    let paths = tree.paths().filter(|path| root.join(path).is_symlink());
    paths.map(|path| path.to_str().expect("text").to_owned()).collect()
}

#[test]
fn an_overlay_keeps_confines_or_skips_links() {
    let treefork = Treefork::new();
    let base = base(&treefork);
    let before = Look::default().ino().ctime().at(&base);
    let all = links(&base);
    for symlinks in ["keep", "confine", "skip"] {
        let fork = create(&treefork, &base, symlinks);
        let expected: Vec<String> = match symlinks {
            "keep" => all.clone(),
            "confine" => all.iter().filter(|name| !name.contains("out")).cloned().collect(),
            _ => vec![],
        };
        assert_eq!(links(&fork), expected, "{symlinks}");
        for hidden in all.iter().filter(|name| !expected.contains(name)) {
            assert!(fs::symlink_metadata(fork.join(hidden)).is_err(), "{symlinks}: {hidden} is there");
        }
        if symlinks == "confine" {
            assert_eq!(fs::read_to_string(fork.join("own/f")).expect("in the fork"), "f\n");
            assert_eq!(fs::read_link(fork.join("own")).expect("a link"), Path::new("d"));
        }
        let diff = treefork.ok(["diff", symlinks, "--name-status"]).text();
        assert_eq!(diff, "", "{symlinks}: nothing counts as deleted");
        treefork.restart(symlinks);
        assert_eq!(links(&fork), expected, "{symlinks}, after a restart");
    }
    assert_same(&before, &Look::default().ino().ctime().at(&base), "the base");
}

#[test]
fn links_that_the_fork_makes_are_its_own() {
    let treefork = Treefork::new();
    let base = base(&treefork);
    let fork = create(&treefork, &base, "skip");
    let env = treefork.env();
    env.sh(&fork, "ln -s /etc/hosts mine; mkdir -p new; ln -s ../.. new/up; mv d dd; ls dd/e; test ! -L dd/e/up");
    assert_eq!(links(&fork), ["mine", "new/up"]);
    env.sh(&fork, "mv dd d");
    treefork.ok(["merge", "skip", "--keep"]);
    assert_eq!(fs::read_link(base.join("mine")).expect("landed"), Path::new("/etc/hosts"));
    assert_eq!(links(&fork), ["mine", "new/up"], "they stay in a fork that goes on");
    env.sh(&fork, "ln -sfn /etc/passwd mine");
    treefork.ok(["merge", "skip"]);
    assert_eq!(fs::read_link(base.join("mine")).expect("landed"), Path::new("/etc/passwd"));
    assert!(base.join("d/e/up").is_symlink() && base.join("out-absolute").is_symlink(), "the hidden ones are there");
}

#[test]
fn a_hidden_name_can_be_taken_and_is_a_conflict_in_the_merge() {
    let treefork = Treefork::new();
    let base = base(&treefork);
    let env = treefork.env();
    let fork = create(&treefork, &base, "confine");
    env.sh(
        &fork,
        "echo mine > out-absolute; mkdir out-relative; echo x > out-relative/x; ln -s d out-over-up
         echo gone > out-by-out; rm out-by-out; mv d/f only/out",
    );
    assert_eq!(fs::read_to_string(fork.join("out-absolute")).expect("the fork's"), "mine\n");
    treefork.restart("confine");
    assert_eq!(fs::read_to_string(fork.join("only/out")).expect("the fork's"), "f\n");
    assert!(!fork.join("out-by-out").exists(), "what was hidden does not come back");
    let before = Look::default().ino().ctime().at(&base);
    let said = treefork.fails(1, ["merge", "confine"]);
    let said = format!("{}{}", said.text(), said.complaint());
    for path in ["out-absolute", "out-relative", "out-over-up", "only/out"] {
        assert!(said.contains(path), "{path}: {said}");
    }
    assert!(!said.contains("out-by-out"), "{said}");
    assert_same(&before, &Look::default().ino().ctime().at(&base), "after a conflict");
    let resolve = ["out-absolute", "out-relative", "out-over-up", "only/out"];
    let merge =
        treefork.command(["merge", "confine"]).args(resolve.iter().flat_map(|path| ["--resolve", "ours", path])).done();
    assert_eq!(merge.code(), 0, "{}", merge.complaint());
    assert_eq!(fs::read_to_string(base.join("out-absolute")).expect("landed"), "mine\n");
    assert_eq!(fs::read_to_string(base.join("out-relative/x")).expect("landed"), "x\n");
    assert_eq!(fs::read_link(base.join("out-over-up")).expect("landed"), Path::new("d"));
    assert!(base.join("out-by-out").is_symlink());
}

#[test]
fn what_is_hidden_does_not_go_with_its_directory() {
    for strategy in ["overlay", "copy"] {
        let treefork = Treefork::new();
        let base = base(&treefork);
        let mut create = treefork.command(["create", "--strategy", strategy, "--label", "f", "--symlinks", "skip"]);
        let fork = PathBuf::from(create.arg(&base).ok().text());
        treefork.env().sh(&fork, "rmdir only; rm -r d; mkdir d; echo new > d/new");
        let said = treefork.fails(1, ["merge", "f"]);
        let said = format!("{}{}", said.text(), said.complaint());
        assert!(said.contains("only/out"), "{strategy}: {said}");
        assert!(base.join("only/out").is_symlink() && base.join("d/e/out").is_symlink(), "{strategy}");
    }
}
