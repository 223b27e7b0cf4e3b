//! What `docs/embedding.md` says of `--json` and of exit statuses is complete: a command or a field that is not in its
//! tables fails here.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;

use serde_json::Value;

use crate::common::{Run, Treefork};

/// The rows of the tables whose heading begins with a word: first cell, second cell.
fn rows(heading: &str) -> Vec<(String, String)> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/embedding.md");
    let text = std::fs::read_to_string(path).expect("it is part of the sources");
    let table = text.lines().skip_while(|line| !line.starts_with(&format!("| {heading} |"))).skip(2);
    let row = |line: &str| {
        let (first, second) = line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | ")?;
        Some((first.to_owned(), second.to_owned()))
    };
    table.map_while(row).collect()
}

/// The words between backticks, those inside of one taken apart.
fn words(cell: &str) -> BTreeSet<String> {
    let quoted = cell.split('`').skip(1).step_by(2);
    quoted.flat_map(|words| words.split(|c: char| !c.is_alphanumeric() && c != '_')).map(str::to_owned).collect()
}

/// The row of a command.
fn shape(command: &str) -> Option<String> {
    let of = |first: &str| first.split('`').skip(1).step_by(2).any(|name| name == command);
    rows("command").into_iter().find(|(first, _)| of(first)).map(|(_, shape)| shape)
}

#[test]
fn every_command_has_its_shape() {
    let treefork = Treefork::new();
    let help = treefork.ok(["--help"]).text();
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let commands: Vec<&str> =
        commands.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.len() > 15, "{commands:?}");
    let missing: Vec<_> = commands.iter().filter(|name| **name != "help" && shape(name).is_none()).collect();
    assert!(missing.is_empty(), "no row in docs/embedding.md for {missing:?}");
}

#[test]
fn every_field_is_documented() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let base = env.dir("base");
    env.sh(&base, "git init -q; echo a > a; echo b > b; git add -A; git commit -qm one");
    let base = base.to_str().expect("plain");
    let check = |command: &str, args: &[&str]| {
        let done = treefork.command([&["--json"], args].concat()).current_dir(base).done();
        let text = done.text();
        // After a command's own output its summary is the last line.
        let last = if matches!(args[0], "run" | "exec") { text.lines().last().unwrap_or_default() } else { &text };
        let mut value: Value =
            serde_json::from_str(last).unwrap_or_else(|e| panic!("{command}: {e}: {}", done.complaint()));
        while let Value::Array(list) = value {
            value = list.into_iter().next().unwrap_or_else(|| panic!("{command} has nothing to show"));
        }
        let known = words(&shape(command).unwrap_or_else(|| panic!("no row for {command}")));
        let fields: BTreeSet<String> = value.as_object().expect("an object").keys().cloned().collect();
        let unknown: Vec<_> = fields.difference(&known).collect();
        assert!(unknown.is_empty(), "{command}: {unknown:?} in its JSON, not in docs/embedding.md");
    };
    check("create", &["create", base, "--label", "x"]);
    check("create", &["create", base, "--label", "y"]);
    for fork in ["x", "y"] {
        treefork.ok(["exec", fork, "--", "sh", "-c", &format!("echo {fork} >> a")]);
    }
    for command in ["show", "path", "log", "diff"] {
        check(command, &[command, "x"]);
    }
    check("create", &["list"]);
    for command in ["gc", "doctor"] {
        check(command, &[command]);
    }
    check("conflicts", &["conflicts", "x", "y"]);
    check("top", &["top", "--interval", "0.02"]);
    check("exec", &["exec", "x", "--", "true"]);
    check("run", &["run", base, "--", "true"]);
    check("fanout", &["fanout", base, "-n", "1", "--", "true"]);
    check("check", &["check", "x", "--", "git", "-C", base, "status"]);
    check("merge", &["merge", "--dry-run", "x"]);
    let mut cat = env.command("cat");
    let at = treefork.ok(["path", "y"]).text();
    let mut cat = cat.current_dir(at).stdin(std::process::Stdio::piped()).spawn().expect("started");
    check("ps", &["ps"]);
    drop(cat.stdin.take());
    cat.wait().expect("it ends with its input");
    check("merge", &["merge", "x"]);
    check("remove", &["remove", "y"]);
}

#[test]
fn every_exit_status_is_what_the_table_says() {
    let treefork = Treefork::new();
    let env = treefork.env();
    let base = env.dir("base");
    std::fs::write(base.join("file"), "x\n").expect("ours");
    treefork.create(&base, "x");
    let base = base.to_str().expect("plain");
    let mut tested = BTreeSet::new();
    let mut ends = |status: &str, args: &[&str]| {
        let done = treefork.command(args).done();
        assert_eq!(done.code().to_string(), status, "{args:?}: {}", done.complaint());
        tested.insert(status.to_owned());
    };
    ends("0", &["list"]);
    ends("1", &["show", "nothing"]);
    ends("2", &["create", base, "--label", "a/b"]);
    ends("3", &["check", "x", "--path", "/etc/passwd"]);
    ends("4", &["check", "x", "--path", &format!("{base}/file")]);
    ends("124", &["exec", "--timeout", "200ms", "x", "--", "sleep", "1000"]);
    ends("125", &["exec", "nothing", "--", "true"]);
    ends("126", &["exec", "x", "--", "./file"]);
    ends("127", &["exec", "x", "--", "no-such-program"]);
    ends("7", &["exec", "x", "--", "sh", "-c", "exit 7"]);
    // Seen by a shell, as callers mostly see it.
    let script = format!("'{}' exec x -- sh -c 'kill -9 $$'; echo $?", crate::common::cli::BINARY);
    let told = env.command("sh").env("TREEFORK_STORE", treefork.store()).args(["-c", &script]).done();
    assert_eq!(told.text(), "137", "{}", told.complaint());
    let done = treefork.command(["exec", "x", "--", "sh", "-c", "kill -9 $$"]).done();
    assert_eq!(done.status.signal(), Some(9));
    // The fork is removed by force under its command.
    let mut running = treefork.command(["exec", "x", "--", "sh", "-c", "echo > started; sleep 1000"]);
    let mut running = running.stdin(std::process::Stdio::null()).spawn().expect("starts");
    let started = std::path::Path::new(&treefork.ok(["path", "x"]).text()).join("started");
    crate::common::eventually("the command has started", || started.exists());
    treefork.ok(["remove", "--force", "x"]);
    assert_eq!(crate::common::run::wait(&mut running, "exec in a removed fork").code(), Some(120));
    tested.insert("120".to_owned());
    let documented: BTreeSet<String> = rows("exit status")
        .iter()
        .flat_map(|(first, _)| first.split(", ").map(str::to_owned).collect::<Vec<_>>())
        .map(|status| if status == "other" { "7".to_owned() } else { status })
        .collect();
    assert_eq!(documented, tested, "left: documented, right: tested");
}
