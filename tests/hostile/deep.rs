//! Trees deeper than any path, any stack and any limit of descriptors.

use std::path::Path;

use crate::common::{Fork, Run, Treefork};

/// Goes down by names, since no path is long enough, and works at the bottom: `NAME LEVELS WHAT`.
const DEEP: &str = r#"
import os, sys
name, levels, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
for level in range(levels):
    if what == "make":
        os.mkdir(name)
    os.chdir(name)
if what == "make":
    open("file", "w").write("deep\n")
elif what == "change":
    open("file", "a").write("more\n")
    open("new", "w").write("new\n")
    os.rename("new", "renamed")
    os.mkdir("dir")
    os.symlink("file", "link")
elif what == "untouched":
    assert os.listdir(".") == ["file"] and open("file").read() == "deep\n"
if what in ("change", "look"):
    assert sorted(os.listdir(".")) == ["dir", "file", "link", "renamed"], os.listdir(".")
    assert open("file").read() == "deep\nmore\n"
"#;

fn deep(treefork: &Treefork, dir: &Path, name: &str, levels: usize, what: &str) {
    treefork.env().command_in(dir, "python3").args(["-c", DEEP, name, &levels.to_string(), what]).ok();
}

/// What no command can name, it cannot show or merge; it says so, and everything else goes on.
#[test]
fn a_tree_deeper_than_any_path_is_the_forks_own_affair() {
    let fork = Fork::new("echo text > file");
    let name = "n".repeat(200);
    let all = |what| deep(&fork.treefork, &fork.path, &name, 30, what);
    all("make");
    all("change");
    all("look");
    fork.restart();
    all("look");
    for args in [["diff", "fork"], ["merge", "fork"]] {
        let said = fork.treefork.fails(1, args).complaint();
        assert!(said.contains("nested too deeply") && said.contains("further up"), "{said}");
    }
    fork.treefork.ok(["show", "fork"]);
    fork.sh("mv n* below; mv below/n* up; rm -r up; [ -d below ]");
    fork.merge();
    assert!(fork.base.join("below").is_dir());
}

/// Deeper than the stacks of the server's threads would be, were they to go down step by step, also where it has to look
/// for a large file that is still coming up.
#[test]
fn a_tree_deeper_than_any_stack_ends_nobody() {
    const LEVELS: usize = 2_500;
    let treefork = Treefork::new().with("TREEFORK_LARGE", "65536");
    let base = treefork.env().dir("base");
    treefork.env().sh(&base, "head -c 1000000 /dev/zero | tr '\\0' x > large");
    let fork = Fork::of(treefork, base);
    let other = fork.treefork.create(&fork.base, "other");
    let server = fork.treefork.server();
    deep(&fork.treefork, &fork.path, "d", LEVELS, "make");
    deep(&fork.treefork, &fork.path, "d", LEVELS, "change");
    for args in [["show", "fork"], ["diff", "fork"], ["merge", "fork"]] {
        let done = fork.treefork.command(args).done();
        assert_eq!(done.status.code(), Some(i32::from(args[0] != "show")), "{}", done.complaint());
    }
    fork.treefork.ok(["list"]);
    assert!(server.is_some() && fork.treefork.server() == server, "it fell over");
    // A map of a large file that is nowhere: looked for everywhere.
    let maps = fork.upper().parent().expect("a fork's directory").join("work/blocks");
    std::fs::create_dir_all(&maps).expect("ours");
    std::fs::write(maps.join("1-2.3"), "").expect("ours");
    fork.restart();
    let server = fork.treefork.server();
    deep(&fork.treefork, &fork.path, "d", LEVELS, "look");
    fork.treefork.ok(["remove", "--force", "fork"]);
    fork.treefork.ok(["gc"]);
    assert!(server.is_some() && fork.treefork.server() == server, "it fell over");
    fork.env().sh(&other, "head -c 1 large | grep -x x; echo x > y");
}

/// A base as deep as a path can name it comes up from the very bottom; what lies deeper than that is out of reach.
#[test]
fn x11_what_lies_deeper_in_a_base_than_a_path_can_say_is_out_of_reach() {
    let treefork = Treefork::new();
    let base = treefork.env().dir("base");
    deep(&treefork, &base, "d", 1_200, "make");
    treefork.env().sh(&base, "mkdir far");
    deep(&treefork, &base.join("far"), &"n".repeat(200), 30, "make");
    // Not what looks at the whole of a base, which goes by paths.
    let fork = treefork.create(&base, "fork");
    deep(&treefork, &fork, "d", 1_200, "change");
    treefork.restart("fork");
    deep(&treefork, &fork, "d", 1_200, "look");
    deep(&treefork, &base, "d", 1_200, "untouched");
    let find = treefork.env().command_in(&fork, "find").arg("far").done();
    assert!(find.complaint().contains("File name too long"), "{}", find.complaint());
    assert_eq!(
        find.text().lines().count(),
        22,
        "far, as many directories as fit into a path, and the name of the next"
    );
    treefork.env().sh(&fork, "mkdir near; echo x > near/y; ! rm -r far 2>/dev/null");
    treefork.ok(["merge", "fork"]);
    assert_eq!(treefork.env().sh(&base, "cat near/y"), "x");
    deep(&treefork, &base, "d", 1_200, "look");
    deep(&treefork, &base.join("far"), &"n".repeat(200), 30, "untouched");
}
