//! Every change in the fork against every change in the parent. The verdicts are the tables of docs/merging.md; a pair
//! that is missing there fails the test, and git is asked where it has an opinion.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use super::kit::Work;
use crate::common::{Look, Run};

/// A thing that is changed, how it is made, and what can be done to it. In the commands `$WHO` is the side, `$LINE` and
/// `$MODE` differ between the sides.
struct Subject {
    name: &'static str,
    make: &'static str,
    changes: &'static [(&'static str, &'static str)],
}

const SUBJECTS: [Subject; 3] = [
    Subject {
        name: "file",
        make: "text > s",
        changes: &[
            ("untouched", ":"),
            ("edited", "sed -i \"s/^$LINE$/$WHO/\" s"),
            ("edited in the same place", "sed -i \"s/^10$/$WHO/\" s"),
            ("same edit", "sed -i 's/^10$/same/' s"),
            ("chmod", "chmod $MODE s"),
            ("xattr", "setfattr -n user.t -v $WHO s"),
            ("deleted", "rm s"),
            ("now a directory", "rm s; mkdir s; echo $WHO > s/y"),
            ("now a link", "ln -sfn $WHO s"),
            ("now special", "rm s; $SPECIAL s"),
            ("renamed", "mv s s.$WHO"),
        ],
    },
    Subject {
        name: "directory",
        make: "mkdir s s/sub; text > s/x; text > s/sub/y",
        changes: &[
            ("untouched", ":"),
            ("edit inside", "sed -i \"s/^$LINE$/$WHO/\" s/x"),
            ("same edit inside", "sed -i 's/^10$/same/' s/x"),
            ("new inside", "echo $WHO > s/new.$WHO"),
            ("new inside, same name", "echo $WHO > s/new"),
            ("deleted inside", "rm s/x"),
            ("chmod", "chmod $MODE s"),
            ("xattr", "setfattr -n user.t -v $WHO s"),
            ("deleted", "rm -r s"),
            ("emptied", "rm -r s; mkdir s"),
            ("now a file", "rm -r s; echo $WHO > s"),
            ("now a link", "rm -r s; ln -s $WHO s"),
            ("renamed", "mv s s.$WHO"),
        ],
    },
    Subject {
        name: "nothing",
        make: ":",
        changes: &[
            ("untouched", ":"),
            ("new file", "echo $WHO > s"),
            ("same new file", "echo same > s"),
            ("new directory", "mkdir s; echo $WHO > s/$WHO"),
            ("new directory, same entry", "mkdir s; echo $WHO > s/y"),
            ("new link", "ln -s $WHO s"),
            ("new special", "$SPECIAL s"),
        ],
    },
];

const FORK: &str = "WHO=fork LINE=3 MODE=700 SPECIAL=mkfifo";
const PARENT: &str =
    "WHO=parent LINE=17 MODE=750 SPECIAL='mknod -m 666'; mknod() { command mknod -m 666 \"$3\" c 1 5; }";

fn cells(subject: &Subject) -> Vec<(usize, usize)> {
    let n = subject.changes.len();
    (0..n).flat_map(|fork| (0..n).map(move |parent| (fork, parent))).collect()
}

fn cell_name((fork, parent): (usize, usize)) -> String {
    format!("c{fork}-{parent}")
}

/// The script that one side runs in all cells.
fn script(subject: &Subject, setting: &str, change: impl Fn((usize, usize)) -> usize) -> String {
    let mut script = format!("{setting}\n");
    for cell in cells(subject) {
        let command = subject.changes[change(cell)].1;
        let _ = writeln!(script, "( cd {}; {command} )", cell_name(cell));
    }
    script
}

/// The verdict on every cell of a subject, found by merging.
fn verdicts(subject: &Subject) -> BTreeMap<(usize, usize), String> {
    // No two files alike: git would see renames between the cells.
    let mut make = "text() { seq 20; seq -f \"$PWD $RANDOM %g\" 40; }\n".to_owned();
    for cell in cells(subject) {
        let _ = writeln!(make, "( mkdir {0}; cd {0}; touch keep; {1} )", cell_name(cell), subject.make);
    }
    let work = Work::repository(&make);
    let fork = work.fork("m", &script(subject, FORK, |cell| cell.0));
    let look = |root: &Path, cell: &str| Look::default().no_mtime().at(&root.join(cell));
    // Before the parent changes: what a fork has not touched follows it.
    let mut ours: BTreeMap<_, _> =
        cells(subject).into_iter().map(|cell| (cell, look(&fork, &cell_name(cell)))).collect();
    let copy = work.treefork.env().join("fork-copy");
    work.treefork.env().sh(&work.base, &format!("mkdir {0}; cp -a {1}/c* {0}", copy.display(), fork.display()));
    work.in_base(&script(subject, PARENT, |cell| cell.1));
    let plan = work.treefork.command(["merge", "--dry-run", "--json", "m"]).done();
    let plan: serde_json::Value = serde_json::from_slice(&plan.stdout).expect("a plan");
    let conflicts = plan["conflicts"].as_array().expect("a list");
    let of = |cell: &str| {
        let inside = |path: &str| path.strip_prefix(cell).is_some_and(|rest| rest.starts_with('/'));
        conflicts.iter().find(|conflict| inside(conflict["path"].as_str().expect("text")))
    };
    let mut found = BTreeMap::new();
    let mut clean = Vec::new();
    for cell in cells(subject) {
        let name = cell_name(cell);
        match of(&name) {
            Some(conflict) => {
                drop(found.insert(cell, format!("conflict: {}", conflict["reason"].as_str().expect("text"))))
            }
            None => {
                let ours = ours.remove(&cell).expect("each cell once");
                clean.push((cell, ours, look(&work.base, &name), name));
            }
        }
    }
    oracle(&work, &copy, subject, &found);
    let mut args = vec!["merge", "m"];
    args.extend(clean.iter().flat_map(|(.., name)| ["--only", name.as_str()]));
    work.treefork.ok(args);
    for (cell, ours, theirs, name) in clean {
        let result = look(&work.base, &name);
        let verdict = match (result == ours, result == theirs) {
            (true, true) => "same",
            (true, false) => "fork",
            (false, true) => "parent",
            (false, false) => "both",
        };
        found.insert(cell, verdict.to_owned());
        // A fork that lives on shows the merged state.
        assert_eq!(look(&fork, &name), result, "the kept fork in {name}");
    }
    assert_eq!(work.leftovers(), Vec::<std::path::PathBuf>::new());
    found
}

/// git merges the same two trees: what it finds in conflict must not have merged here.
fn oracle(work: &Work, fork: &Path, subject: &Subject, conflicts: &BTreeMap<(usize, usize), String>) {
    let env = work.treefork.env();
    let scratch = env.dir("oracle");
    let bring = |from: &Path, branch: &str| {
        let script = format!(
            "git checkout -qf -b {branch} start; git rm -rqf .; cp -a --no-preserve=xattr {}/c* .; find . -type p -delete; find . -type c -delete; git add -A; git commit -q --allow-empty -m {branch}",
            from.display()
        );
        env.sh(&scratch, &script);
    };
    env.sh(&scratch, &format!("git clone -q {} .; git branch -q start", work.base.display()));
    bring(fork, "ours");
    bring(&work.base, "theirs");
    let args = ["merge-tree", "--write-tree", "--name-only", "--no-messages", "ours", "theirs"];
    let done = env.command_in(&scratch, "git").args(args).done();
    assert!(matches!(done.code(), 0 | 1), "{}", done.complaint());
    let text = done.text();
    for cell in cells(subject) {
        let name = cell_name(cell);
        let special = |change: usize| subject.changes[change].0.contains("special");
        if special(cell.0) || special(cell.1) {
            continue;
        }
        let git = text.lines().skip(1).any(|path| path.starts_with(&format!("{name}/")));
        let renamed = |change: usize| subject.changes[change].0 == "renamed";
        // Renames are found by us through identity and by git through likeness, and only in the fork.
        if git && !renamed(cell.0) && !renamed(cell.1) {
            let pair = (subject.changes[cell.0].0, subject.changes[cell.1].0);
            let see = format!("for b in start ours theirs; do echo $b; git ls-tree -r $b {name}; done");
            let seen = if conflicts.contains_key(&cell) { String::new() } else { env.sh(&scratch, &see) };
            assert!(seen.is_empty(), "{} {pair:?}: a conflict for git, merged here: {seen}", subject.name);
        }
    }
}

/// The tables of docs/merging.md: for each subject, (fork, parent) to verdict.
fn documented() -> BTreeMap<(String, String, String), String> {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/merging.md")).expect("the document");
    let mut found = BTreeMap::new();
    let mut subject = None;
    let mut columns: Vec<String> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("### The matrix: ") {
            subject = Some(name.to_owned());
            columns.clear();
        } else if line.starts_with('#') {
            subject = None;
        }
        let Some(subject) = &subject else { continue };
        let Some(row) = line.strip_prefix('|') else { continue };
        let words: Vec<String> = row.trim_end_matches('|').split('|').map(|word| word.trim().to_owned()).collect();
        if columns.is_empty() {
            columns = words[1..].to_vec();
        } else if !words[0].starts_with('-') {
            for (column, verdict) in columns.iter().zip(&words[1..]) {
                found.insert((subject.clone(), words[0].clone(), column.clone()), verdict.clone());
            }
        }
    }
    found
}

fn table(subject: &Subject, verdicts: &BTreeMap<(usize, usize), String>) -> String {
    let names: Vec<&str> = subject.changes.iter().map(|change| change.0).collect();
    let mut text = format!("### The matrix: {}\n\n| fork \\ parent | {} |\n|", subject.name, names.join(" | "));
    text += &"---|".repeat(names.len() + 1);
    text.push('\n');
    for (fork, name) in names.iter().enumerate() {
        let row: Vec<&str> = (0..names.len()).map(|parent| verdicts[&(fork, parent)].as_str()).collect();
        let _ = writeln!(text, "| {name} | {} |", row.join(" | "));
    }
    text
}

fn check(subject: &Subject) {
    let verdicts = verdicts(subject);
    let documented = documented();
    let mut wrong = String::new();
    for (cell, verdict) in &verdicts {
        let (fork, parent) = (subject.changes[cell.0].0, subject.changes[cell.1].0);
        match documented.get(&(subject.name.to_owned(), fork.to_owned(), parent.to_owned())) {
            Some(said) if said == verdict => {}
            said => drop(writeln!(wrong, "{fork} x {parent}: documented {said:?}, is {verdict:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}\n{wrong}\nthe table as it is:\n{}", subject.name, table(subject, &verdicts));
}

#[test]
fn files() {
    check(&SUBJECTS[0]);
}

#[test]
fn directories() {
    check(&SUBJECTS[1]);
}

#[test]
fn where_there_was_nothing() {
    check(&SUBJECTS[2]);
}
