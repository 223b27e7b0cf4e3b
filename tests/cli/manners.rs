//! Help, hints, completions, man pages; where one is; who works where.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;

use crate::common::{Run, Treefork};

fn with_fork() -> (Treefork, std::path::PathBuf) {
    let treefork = Treefork::new();
    let base = treefork.env().dir("base");
    std::fs::create_dir(base.join("sub")).expect("ours");
    std::fs::write(base.join("file"), "x\n").expect("ours");
    let path = treefork.create(&base, "idea-a");
    (treefork, path)
}

#[test]
fn help_has_examples() {
    let treefork = Treefork::new();
    assert!(treefork.ok(["--help"]).text().contains("treefork merge idea-a"));
    for args in [["merge", "--help"], ["help", "merge"]] {
        let text = treefork.ok(args).text();
        assert!(text.contains("Examples:") && text.contains("treefork merge --dry-run idea-a"), "{text}");
    }
}

#[test]
fn what_was_perhaps_meant_is_said() {
    let treefork = Treefork::new();
    let done = treefork.fails(2, ["creat"]);
    let said = done.complaint();
    assert!(
        said.contains("unrecognized subcommand 'creat'") && said.contains("hint: ") && said.contains("'create'"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 2, "an error and a hint: {said}");
    assert!(treefork.fails(2, ["merge", "--dry-rnu", "x"]).complaint().contains("'--dry-run'"));
    assert!(treefork.fails(2, ["create", "-l", "x"]).complaint().contains("hint: usage: treefork create"));
    treefork.ok(["ls"]);
    let said = treefork.fails(2, ["create", "--label", "-x"]).complaint();
    assert!(said.contains("\"-x\" starts with a dash") && said.contains("hint: use letters"), "{said}");
}

#[test]
fn ways_to_go_on_are_said() {
    let (treefork, path) = with_fork();
    let base = treefork.env().join("base");
    let said = |status, args: &[&str]| treefork.command(args).current_dir(&base).fails(status).complaint();
    assert!(said(2, &["exec", "idea-a", "ls"]).contains("two dashes: treefork exec"));
    let failed = said(3, &["run", "--", "sh", "-c", "echo > made; exit 3"]);
    assert!(failed.contains("what it changed is removed; --keep-on-error"), "{failed}");
    assert_eq!(said(3, &["run", "--", "sh", "-c", "exit 3"]), "");
    assert!(said(2, &["conflicts", "idea-a", "idea"]).contains("named twice"));
    std::fs::write(path.join("file"), "fork's\n").expect("writable");
    std::fs::write(base.join("file"), "base's\n").expect("ours");
    let refused = said(1, &["merge", "idea-a"]);
    assert!(refused.contains("hint: `treefork merge idea-a --resolve ours file` takes"), "{refused}");
    let merged = treefork.ok(["merge", "idea-a", "--resolve", "ours", "file", "--resolve", "ours", "none"]).complaint();
    assert!(merged.contains("changed nothing at or below none"), "{merged}");
    assert!(merged.contains("merged 1 path; the fork is removed"), "{merged}");
}

#[test]
fn inside_of_a_fork_its_name_can_be_left_out() {
    let (treefork, path) = with_fork();
    let inside = |command: &str| treefork.command([command]).current_dir(path.join("sub")).ok().text();
    assert_eq!(inside("path"), path.display().to_string());
    assert!(inside("log").ends_with("live"));
    std::fs::write(path.join("file"), "changed\n").expect("writable");
    assert!(inside("diff").contains("+changed"));
    let nested = treefork.command(["create"]).current_dir(&path).fails(2).complaint();
    assert!(nested.contains("fork its base instead"), "{nested}");
    let told = treefork.fails(2, ["exec", "idea-a", "--", crate::common::cli::BINARY, "diff"]).complaint();
    assert!(told.contains("do this outside of the fork"), "{told}");
}

#[test]
fn shells_can_complete() {
    let treefork = Treefork::new();
    let dir = treefork.env().dir("scripts");
    for (shell, mark) in [("bash", "complete -F"), ("zsh", "#compdef treefork"), ("fish", "complete -c treefork")] {
        let script = treefork.ok(["completions", shell]).text();
        assert!(script.contains(mark) && script.contains("dry-run"), "{shell}: {script}");
        std::fs::write(dir.join(shell), script).expect("ours");
    }
    let check = r#"source ./bash; COMP_WORDS=(treefork mer); COMP_CWORD=1; _treefork_and_names treefork mer treefork; echo "${COMPREPLY[*]}""#;
    assert_eq!(treefork.env().sh(&dir, check), "merge");
}

#[test]
fn shells_complete_the_names_of_forks() {
    let (treefork, _) = with_fork();
    let base = treefork.env().join("base");
    treefork.ok([Path::new("create"), &base, Path::new("--label"), Path::new("idea b")]);
    let id = treefork.ok([Path::new("create"), &base, Path::new("--json")]).text();
    let id: serde_json::Value = serde_json::from_str(&id).expect("JSON");
    let id = id["id"].as_str().expect("an id").to_owned();
    assert_eq!(treefork.ok(["list", "--names"]).text(), format!("idea-a\nidea b\n{id}"));
    let dir = treefork.env().dir("scripts");
    let run = |shell: &str, check: &str| {
        std::fs::write(dir.join(shell), treefork.ok(["completions", shell]).text()).expect("ours");
        let path = std::env::join_paths(
            Path::new(crate::common::cli::BINARY)
                .parent()
                .into_iter()
                .map(Path::to_path_buf)
                .chain(std::env::split_paths(&std::env::var_os("PATH").expect("set"))),
        );
        let mut command = treefork.env().command_in(&dir, shell);
        if command.get_program() != "bash"
            && treefork.env().command("sh").args(["-c", &format!("command -v {shell}")]).done().code() != 0
        {
            eprintln!("shells_complete_the_names_of_forks: NOT RUN for {shell}, which is not installed here");
            return None;
        }
        Some(command.env("PATH", path.expect("plain")).args(["-c", check]).ok().text())
    };
    let bash = r#"source ./bash; COMP_WORDS=(treefork merge --dry-run id); COMP_CWORD=3
                  _treefork_and_names treefork id --dry-run; printf '%s\n' "${COMPREPLY[@]}"
                  COMP_WORDS=(treefork exec x -- id); COMP_CWORD=4; COMPREPLY=(); _treefork_and_names treefork id --; echo "${COMPREPLY[*]}""#;
    assert_eq!(run("bash", bash).as_deref(), Some("idea-a\nidea\\ b"));
    if let Some(said) = run("fish", "source ./fish; complete -C 'treefork merge id'") {
        assert_eq!(said, "idea b\tFork\nidea-a\tFork");
    }
    // What the completion system of zsh would be told.
    let zsh =
        "compdef() { :; }; compadd() { print -l $names }; source ./zsh; _treefork_names; grep -c _treefork_names ./zsh";
    if let Some(said) = run("zsh", zsh) {
        let (names, uses) = said.rsplit_once('\n').expect("names and a number");
        assert_eq!(names, format!("idea-a\nidea b\n{id}"));
        assert!(uses.parse::<usize>().is_ok_and(|uses| uses > 8), "{said}");
    }
}

#[test]
fn man_pages_come_from_the_same_definitions() {
    let treefork = Treefork::new();
    let dir = treefork.env().dir("man");
    treefork.ok([Path::new("man"), &dir]);
    let page = std::fs::read_to_string(dir.join("treefork-merge.1")).expect("written");
    assert!(page.contains("dry\\-run") && page.contains("treefork merge \\-\\-dry\\-run idea\\-a"), "{page}");
    let names: Vec<_> = dir.read_dir().expect("there").map(|entry| entry.expect("there").file_name()).collect();
    assert!(names.len() > 15 && !names.iter().any(|name| name == "treefork-empty-trash.1"), "{names:?}");
    assert!(treefork.ok(["man"]).text().starts_with(".ie"));
}

#[test]
fn show_knows_where_one_is() {
    let (treefork, path) = with_fork();
    let inside = treefork.command(["show"]).current_dir(path.join("sub")).ok().text();
    assert!(inside.lines().any(|line| line.starts_with("label") && line.ends_with("idea-a")), "{inside}");
    // Also where the store is not the usual one.
    let elsewhere = treefork.command(["show"]).current_dir(&path).env_remove("TREEFORK_STORE").ok().text();
    assert!(elsewhere.contains("idea-a"), "{elsewhere}");
    let in_command = treefork.ok(["exec", "idea-a", "--", crate::common::cli::BINARY, "show"]).text();
    assert!(in_command.contains("label  idea-a") && in_command.contains("base   "), "{in_command}");
    let outside = treefork.fails(2, ["show"]).complaint();
    assert!(outside.contains("no fork was named"), "{outside}");
}

#[test]
fn show_counts_what_the_kernel_asked() {
    let (treefork, path) = with_fork();
    std::fs::read(path.join("file")).expect("there");
    let counted = treefork.ok(["show", "idea-a", "--stats", "--json"]).text();
    let counted: std::collections::BTreeMap<String, u64> = serde_json::from_str(&counted).expect("numbers");
    assert!(counted.values().sum::<u64>() > 0, "{counted:?}");
    assert!(treefork.ok(["show", "idea-a", "--stats"]).text().lines().count() > 0);
}

#[test]
fn ps_says_who_works_where() {
    let (treefork, path) = with_fork();
    assert_eq!(treefork.ok(["ps"]).text(), "");
    let mut command = treefork.env().command("cat");
    command.current_dir(path.join("sub")).stdin(Stdio::piped()).stdout(Stdio::null()).arg0("cat");
    let mut cat = command.spawn().expect("started");
    let text = treefork.ok(["ps"]).text();
    let line = text.lines().find(|line| line.contains("idea-a")).unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains(&cat.id().to_string()) && line.contains("cat"), "{line}");
    let json: serde_json::Value = serde_json::from_str(&treefork.ok(["ps", "idea", "--json"]).text()).expect("JSON");
    assert_eq!((&json[0]["label"], &json[0]["pid"]), (&"idea-a".into(), &cat.id().into()));
    drop(cat.stdin.take());
    cat.wait().expect("it ends with its input");
}

#[test]
fn top_looks_as_often_as_it_is_told() {
    let (treefork, _) = with_fork();
    let text = treefork.ok(["top", "--interval", "0.05"]).text();
    assert!(text.lines().count() == 2 && text.contains("REQUESTS/S") && text.contains("idea-a"), "{text}");
    let looks = treefork.ok(["top", "--interval", "0.05", "--count", "3", "--json"]).text();
    assert_eq!(looks.lines().count(), 3);
    for look in looks.lines() {
        let rows: serde_json::Value = serde_json::from_str(look).expect("JSON");
        assert_eq!(rows[0]["label"], "idea-a");
    }
}

#[test]
fn no_colours_but_on_a_terminal() {
    let (treefork, _) = with_fork();
    // A terminal that `script` makes.
    let seen = |variables: &[(&str, &str)]| {
        let mut command = treefork.env().command("script");
        let shown = format!("{} show nothing", crate::common::cli::BINARY);
        command.env("TERM", "xterm").envs(variables.iter().copied()).args(["-qec", &shown, "/dev/null"]).done().stdout
    };
    assert!(seen(&[]).contains(&0x1b));
    assert!(!seen(&[("NO_COLOR", "1")]).contains(&0x1b) && !seen(&[("TERM", "dumb")]).contains(&0x1b));
    for done in [treefork.ok(["list"]), treefork.fails(1, ["show", "nothing"])] {
        assert!(!done.stdout.contains(&0x1b) && !done.stderr.contains(&0x1b));
    }
}

#[test]
fn what_came_and_went_in_the_base_is_no_news() {
    let (treefork, path) = with_fork();
    let base = treefork.env().join("base");
    let drift = || treefork.ok(["show", "idea-a"]).text().lines().filter(|l| l.starts_with("drift")).count();
    let names = |dir: &Path| dir.read_dir().expect("there").map(|e| e.expect("listed").file_name()).collect::<Vec<_>>();
    names(&path);
    // As an editor does it: a probe, a file of its own, a lock, and no change.
    std::fs::write(base.join("4913"), "").expect("ours");
    std::fs::remove_file(base.join("4913")).expect("ours");
    std::fs::write(base.join(".file.swp"), "x\n").expect("ours");
    std::os::unix::fs::symlink("me@here", base.join(".#file")).expect("ours");
    crate::common::eventually("the fork shows what came", || names(&path).len() == 4);
    assert_eq!(drift(), 2);
    std::fs::remove_file(base.join(".file.swp")).expect("ours");
    std::fs::remove_file(base.join(".#file")).expect("ours");
    crate::common::eventually("the fork shows that it went", || names(&path).len() == 2);
    assert_eq!(drift(), 0);
    // What was there and went is news; so is what stayed.
    std::fs::remove_file(base.join("file")).expect("ours");
    std::fs::write(base.join("new"), "x\n").expect("ours");
    crate::common::eventually("the fork shows the end", || names(&path).iter().all(|n| n == "sub" || n == "new"));
    assert_eq!(drift(), 2);
}

#[test]
fn what_others_changed_in_the_base_is_named() {
    let (treefork, path) = with_fork();
    let base = treefork.env().join("base");
    let named = |done: &crate::common::run::Done| {
        done.complaint().contains("1 path of the base has changed since idea-a was made: \"file\"")
    };
    assert!(!named(&treefork.ok(["exec", "idea-a", "--", "cat", "file"])));
    std::fs::write(path.join("new"), "x\n").expect("writable");
    // The server says what it has noticed so far: it has looked when the fork shows the new content.
    std::fs::write(base.join("file"), "changed\n").expect("ours");
    while std::fs::read(path.join("file")).expect("there") != b"changed\n" {
        std::thread::yield_now();
    }
    assert!(named(&treefork.ok(["exec", "idea-a", "--", "true"])));
    assert!(named(&treefork.ok(["diff", "idea-a"])));
    assert!(treefork.ok(["show", "idea-a"]).text().contains("drift"));
    assert!(named(&treefork.ok(["merge", "idea-a"])));
}
