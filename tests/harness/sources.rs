//! What the sources promise about their own shape: every test file runs, folders use only what is below them, only the
//! command line prints or exits, only `sys` is unsafe.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The folders (and files) of `src` from the bottom up, as `docs/design.md` has them in its table; those in one row do not
/// know each other.
fn table() -> Vec<Vec<String>> {
    let design = read(&crate_dir().join("docs/design.md"));
    let rows = design.lines().skip_while(|line| !line.starts_with("| folders |")).skip(2);
    let names = |row: &str| row.split('|').nth(1).unwrap_or_default().split_whitespace().map(unquoted).collect();
    rows.take_while(|line| line.starts_with('|')).map(names).collect()
}

fn unquoted(word: &str) -> String {
    word.trim_matches('`').to_owned()
}

fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All `.rs` files below `dir`.
fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in dir.read_dir().unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.expect("a directory of ours").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The lines of a source with their numbers, without comments and without the unit tests at its end.
fn code(text: &str) -> Vec<(usize, &str)> {
    let lines: Vec<&str> = text.lines().collect();
    let tests = lines.windows(2).position(|w| w[0] == "#[cfg(test)]" && w[1].starts_with("mod "));
    let lines = lines[..tests.unwrap_or(lines.len())].iter().enumerate();
    lines.map(|(n, line)| (n + 1, line.split("//").next().unwrap_or(""))).collect()
}

/// Whether `word` stands in `line` as a word of its own.
fn has_word(line: &str, word: &str) -> bool {
    let inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word)
        .any(|(at, _)| !inside(line[..at].chars().next_back()) && !inside(line[at + word.len()..].chars().next()))
}

#[test]
fn every_test_file_is_reachable() {
    let tests = crate_dir().join("tests");
    let mut reached = BTreeSet::new();
    let mut todo = vec![tests.join("main.rs")];
    while let Some(file) = todo.pop() {
        let home = match file.file_name().and_then(|n| n.to_str()) {
            Some("main.rs" | "mod.rs") => file.parent().expect("a file is in a directory").to_path_buf(),
            _ => file.with_extension(""),
        };
        for (_, line) in code(&read(&file)) {
            let Some((_, rest)) = line.split_once("mod ") else { continue };
            let Some(name) = rest.trim_end().strip_suffix(';') else { continue };
            let candidates = [home.join(format!("{name}.rs")), home.join(name).join("mod.rs")];
            todo.extend(candidates.into_iter().filter(|path| path.exists()));
        }
        reached.insert(file);
    }
    let forgotten: Vec<_> = rust_files(&tests).into_iter().filter(|file| !reached.contains(file)).collect();
    assert!(forgotten.is_empty(), "no mod line leads to {forgotten:?}");
}

#[test]
fn folders_use_only_what_is_below() {
    let src = crate_dir().join("src");
    let table = table();
    assert!(table.len() > 10, "docs/design.md has the table: {table:?}");
    let rank = |name: &str| table.iter().position(|row| row.iter().any(|folder| folder == name));
    let mut wrong = Vec::new();
    for file in rust_files(&src) {
        let rel = file.strip_prefix(&src).expect("it was found there");
        let first = rel.iter().next().and_then(|c| c.to_str()).expect("a file has a name");
        let home = first.strip_suffix(".rs").unwrap_or(first);
        if matches!(home, "lib" | "main") {
            continue;
        }
        let Some(own) = rank(home) else {
            wrong.push(format!("{}: the table has no {home}", rel.display()));
            continue;
        };
        for (line, used) in uses(&read(&file)) {
            let below = match rank(&used) {
                // Not a folder: something that lib.rs re-exports.
                None => true,
                Some(0) => true,
                Some(rank) => rank < own || used == home,
            };
            if !below {
                wrong.push(format!("{}:{line}: {home} uses {used}", rel.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "edges that the table does not allow:\n{}", wrong.join("\n"));
}

/// The folders that a source names by `crate::NAME` or `crate::{NAME..., NAME...}`.
fn uses(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let ident = |s: &str| s.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    for (n, line) in code(text) {
        for (at, _) in line.match_indices("crate::") {
            let rest = &line[at + "crate::".len()..];
            match rest.strip_prefix('{') {
                None => found.push((n, ident(rest))),
                Some(group) => found.extend(group.split(',').map(|part| (n, ident(part.trim())))),
            }
        }
    }
    found
}

#[test]
fn only_the_command_line_prints_or_exits() {
    let words = ["println!", "eprintln!", "print!", "eprint!", "dbg!", "process::exit", "io::stdout", "io::stderr"];
    let stray = stray_words("cli", &words);
    assert!(stray.is_empty(), "outside of src/cli:\n{}", stray.join("\n"));
}

#[test]
fn only_sys_is_unsafe() {
    let stray = stray_words("sys", &["unsafe", "allow(unsafe_code)", "expect(unsafe_code)"]);
    assert!(stray.is_empty(), "outside of src/sys:\n{}", stray.join("\n"));
}

/// The folders whose calls tests can make fail.
const CORE: [&str; 6] = ["copy", "durable", "fork", "layer", "merge", "overlay"];
/// Files in them whose calls are git's, or look at the machine and change nothing.
const APART: [&str; 6] =
    ["fork/doctor.rs", "fork/prewarm.rs", "fork/status.rs", "fork/users.rs", "merge/gitstep.rs", "merge/repository.rs"];

#[test]
fn the_core_reaches_the_kernel_by_one_way() {
    let src = crate_dir().join("src");
    let mut stray = Vec::new();
    for file in CORE.iter().flat_map(|folder| rust_files(&src.join(folder))) {
        let rel = file.strip_prefix(&src).expect("it was found there");
        if is_test(rel) || APART.iter().any(|name| rel == Path::new(name)) {
            continue;
        }
        for (n, line) in code(&read(&file)) {
            let raw = ["fs::", "io::"].iter().flat_map(|path| line.match_indices(path)).any(|(at, path)| {
                let rest = &line[at + path.len()..];
                let name: String = rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
                let word = !line[..at].ends_with(|c: char| c.is_alphanumeric());
                word && !matches!(name.as_str(), "" | "canonicalize") && rest[name.len()..].starts_with('(')
            });
            // `exists` of the standard library takes what cannot be told for an absence.
            if raw || line.contains(".exists()") || has_word(line, "fs::File") {
                stray.push(format!("{}:{n}: {}", rel.display(), line.trim()));
            }
        }
    }
    assert!(stray.is_empty(), "use crate::sys::calls instead:\n{}", stray.join("\n"));
}

/// Whether a source holds nothing but unit tests: `tests.rs`, or a file in the folder of that name.
fn is_test(rel: &Path) -> bool {
    rel.ends_with("tests.rs") || rel.parent().is_some_and(|dir| dir.ends_with("tests"))
}

/// Where one of the words stands in a source outside of `src/home`.
fn stray_words(home: &str, words: &[&str]) -> Vec<String> {
    let src = crate_dir().join("src");
    let mut stray = Vec::new();
    for file in rust_files(&src) {
        let rel = file.strip_prefix(&src).expect("it was found there");
        // lib.rs declares modules and lints, nothing else; `sys` is let off its lint there. Unit tests may do as they like.
        if rel.starts_with(home) || rel == Path::new("lib.rs") || is_test(rel) {
            continue;
        }
        for (n, line) in code(&read(&file)) {
            let hit = words.iter().find(|word| has_word(line, word));
            stray.extend(hit.map(|word| format!("{}:{n}: {word}", rel.display())));
        }
    }
    stray
}

#[test]
fn words_are_found_as_words() {
    assert!(has_word("  println!(\"x\")", "println!"));
    assert!(!has_word("eprintln!()", "println!"));
    assert!(!has_word("deny(unsafe_code)", "unsafe"));
    assert_eq!(uses("use crate::{a::B, c};\nuse crate::d;"), [(1, "a".into()), (1, "c".into()), (2, "d".into())]);
}
