//! A repository in which everything that git can be told to run leaves a mark. None may appear.

use std::fs;
use std::path::{Path, PathBuf};

use treefork::durable::CancelToken;
use treefork::git::{Git, dirty, worktree};
use treefork::names::RelPath;

use super::{in_child, repo_at};
use crate::common::{Env, Run, temp};

/// Makes the repository; each program in it creates a file of its name in `marks`.
fn hostile(env: &Env, marks: &Path) -> PathBuf {
    let top = env.dir("hostile");
    let bin = env.dir("bin");
    let program = |name: &str| {
        let path = bin.join(name);
        // Filters and textconv must give something back; the pager and fsmonitor do not mind.
        let script = format!("#!/bin/sh\ntouch {:?}\ncat \"$@\" 2>/dev/null\nexit 0\n", marks.join(name));
        fs::write(&path, script).expect("ours");
        temp::chmod(&path, 0o755);
        path.display().to_string()
    };
    env.git(&top, ["init", "-q"]);
    fs::write(top.join(".gitignore"), "ignored\n").expect("ours");
    fs::write(top.join(".gitattributes"), "*.f filter=evil diff=evil merge=evil\n*.i filter=included\n").expect("ours");
    for name in ["a.f", "b.f", "c.i", "plain"] {
        fs::write(top.join(name), "one\n").expect("ours");
    }
    env.git(&top, ["add", "-A"]);
    env.git(&top, ["commit", "-q", "-m", "one"]);
    for hook in ["post-checkout", "post-index-change", "reference-transaction", "pre-commit", "fsmonitor-watchman"] {
        for dir in [top.join(".git/hooks"), env.dir("hooks")] {
            fs::create_dir_all(&dir).expect("ours");
            fs::copy(program(hook), dir.join(hook)).expect("ours");
        }
    }
    let included = env.join("included");
    let filter = |name: &str| format!("\tclean = {0}\n\tsmudge = {0}\n\trequired = true\n", program(name));
    fs::write(&included, format!("[filter \"included\"]\n{}", filter("included-filter"))).expect("ours");
    let config = format!(
        "[core]\n\thooksPath = {hooks}\n\tpager = {pager}\n\tfsmonitor = {monitor}\n\teditor = {editor}\n\
         \tsshCommand = {ssh}\n\taskPass = {ask}\n\talternateRefsCommand = {refs}\n\
         [pager]\n\tstatus = {pager}\n\tdiff = {pager}\n\tlog = {pager}\n\
         [diff]\n\texternal = {external}\n[diff \"evil\"]\n\tcommand = {command}\n\ttextconv = {textconv}\n\
         [merge \"evil\"]\n\tdriver = {driver}\n[filter \"evil\"]\n{filter}\
         [gpg]\n\tprogram = {gpg}\n[commit]\n\tgpgSign = true\n[log]\n\tshowSignature = true\n\
         [credential]\n\thelper = {credential}\n[include]\n\tpath = {included:?}\n",
        hooks = env.join("hooks").display(),
        pager = program("pager"),
        monitor = program("fsmonitor"),
        editor = program("editor"),
        ssh = program("ssh"),
        ask = program("askpass"),
        refs = program("alternate-refs"),
        external = program("external-diff"),
        command = program("diff-command"),
        textconv = program("textconv"),
        driver = program("merge-driver"),
        filter = filter("filter"),
        gpg = program("gpg"),
        credential = program("credential"),
    );
    let mut text = fs::read_to_string(top.join(".git/config")).expect("git wrote it");
    text.push_str(&config);
    fs::write(top.join(".git/config"), text).expect("ours");
    // Same size, later time: git has to read both through their filters to know.
    fs::write(top.join("a.f"), "two\n").expect("ours");
    fs::write(top.join("c.i"), "two\n").expect("ours");
    fs::write(top.join("untracked"), "u\n").expect("ours");
    top
}

fn marks_in(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).expect("ours").map(|e| e.expect("readable").file_name().into_string().expect("text"));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn nothing_of_a_hostile_repository_runs() {
    let env = Env::new();
    let marks = env.dir("marks");
    let set = |command: &mut std::process::Command| {
        // What a caller may have in its environment runs neither.
        for name in ["GIT_EXTERNAL_DIFF", "GIT_PAGER", "PAGER", "GIT_EDITOR", "GIT_SSH_COMMAND", "GIT_PROXY_COMMAND"] {
            command.env(name, format!("touch {}", marks.join(name).display()));
        }
        command.env("MARKS", &marks).env("GIT_DIR", "/nowhere").env("GIT_WORK_TREE", "/nowhere");
        command.env("GIT_INDEX_FILE", "/nowhere").env("GIT_CONFIG_PARAMETERS", "'core.pager=false'");
        command.env("GIT_CONFIG_COUNT", "junk").env("GIT_OBJECT_DIRECTORY", "/nowhere").env("LANG", "de_DE.UTF-8");
    };
    if !in_child("git::hostile::nothing_of_a_hostile_repository_runs", set) {
        assert_eq!(marks_in(&marks), Vec::<String>::new());
        return;
    }
    let marks = PathBuf::from(std::env::var_os("MARKS").expect("set above"));
    let top = hostile(&env, &marks);
    for mark in marks_in(&marks) {
        fs::remove_file(marks.join(mark)).expect("ours");
    }
    let repo = repo_at(&top);
    let git = Git::new(&repo).expect("readable");
    git.run(["status", "--porcelain", "--ignore-submodules=dirty"]).expect("status");
    let diff = git.run(["diff", "HEAD"]).expect("diff");
    assert!(String::from_utf8_lossy(&diff).contains("+two"), "the diff is git's own");
    git.run(["log", "-p", "-1"]).expect("log");
    git.run(["show", "HEAD"]).expect("show");
    git.head().expect("head");
    git.tracked().expect("tracked");
    let ignored = RelPath::new(Path::new("ignored")).expect("relative");
    assert!(git.ignored([&ignored]).expect("ignored").contains(&ignored));
    assert_eq!(repo.elsewhere().expect("readable"), []);
    let tree = env.dir("tree");
    let fork = worktree::add(&repo, &tree, &env.join("locks"), &CancelToken::new()).expect("added");
    assert_eq!(dirty::bring(&git, &fork).expect("brought"), None);
    assert_eq!(fs::read_to_string(tree.join("a.f")).expect("there"), "two\n");
    assert_eq!(fs::read_to_string(tree.join("untracked")).expect("there"), "u\n");
    worktree::remove(&repo, &tree, &env.join("aside"), &env.join("locks")).expect("removed");
    assert_eq!(marks_in(&marks), Vec::<String>::new());
    // The control: git as it comes runs plenty of them.
    let _ = env.command_in(&top, "git").args(["status"]).done();
    let _ = env.command_in(&top, "git").args(["diff"]).done();
    let _ = env.command_in(&top, "git").args(["checkout", "-f", "-b", "other"]).done();
    let run = marks_in(&marks);
    assert!(["filter", "fsmonitor", "post-checkout"].iter().all(|name| run.contains(&(*name).to_owned())), "{run:?}");
    for mark in run {
        fs::remove_file(marks.join(mark)).expect("ours");
    }
}
