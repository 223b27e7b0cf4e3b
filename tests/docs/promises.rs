//! Each promise and exception of `docs/semantics.md` has a test, which it names.
//!
//! A number stands at the start of a row of a table (`| S1 |`, `| X3 |`); in the row the tests stand as they are called,
//! as in `mount::basics::numbers_and_times_are_the_bases`.

use std::collections::BTreeSet;
use std::path::Path;

use super::{read, sources};

/// The numbers of a document with the tests that their rows name.
fn rows(text: &str) -> Vec<(String, Vec<String>)> {
    let number = |line: &str| {
        let first = line.strip_prefix("| ")?.split(' ').next()?;
        let digits = first.strip_prefix(['S', 'X'])?;
        (!digits.is_empty() && digits.starts_with(|c: char| c.is_ascii_digit())).then(|| first.to_owned())
    };
    let tests = |line: &str| line.split('`').filter(|word| word.contains("::")).map(str::to_owned).collect();
    text.lines().filter_map(|line| Some((number(line)?, tests(line)))).collect()
}

/// All tests of the integration binary, and the unit tests of the library.
fn all_tests() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (root, prefix) in [("tests", ""), ("src", "")] {
        collect(&sources().join(root), prefix, &mut found);
    }
    found
}

fn collect(dir: &Path, module: &str, found: &mut BTreeSet<String>) {
    for entry in dir.read_dir().unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.expect("ours").path();
        let stem = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            collect(&path, &format!("{module}{stem}::"), found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let module = if stem == "mod" || stem == "main" { module.to_owned() } else { format!("{module}{stem}::") };
            let text = read(&path);
            let functions = text.split("#[test]").skip(1).filter_map(|rest| rest.split_once("fn ")?.1.split_once('('));
            for (name, _) in functions {
                found.insert(format!("{module}{name}"));
                // Unit tests at the end of a file are in a module of their own.
                found.insert(format!("{module}tests::{name}"));
            }
        }
    }
}

#[test]
fn every_number_names_a_test_that_exists() {
    let rows = rows(&read(&sources().join("docs/semantics.md")));
    let tests = all_tests();
    assert!(rows.len() > 20, "these are the promises: {rows:?}");
    let mut wrong = Vec::new();
    for (number, named) in &rows {
        if named.is_empty() {
            wrong.push(format!("{number} names no test"));
        }
        wrong.extend(named.iter().filter(|test| !tests.contains(*test)).map(|test| format!("{number}: no {test}")));
    }
    let numbers: BTreeSet<&str> = rows.iter().map(|(number, _)| number.as_str()).collect();
    if numbers.len() < rows.len() {
        wrong.push("a number is given twice".into());
    }
    assert!(wrong.is_empty(), "promises without a test:\n{}", wrong.join("\n"));
}

#[test]
fn rows_are_found() {
    let text = "| S1 | text | `a::b` |\n| S2a | text | `c::d`, `e::f::g` |\n| Some | x |\n| X1 | none |\n";
    let found = rows(text);
    let numbers: Vec<&str> = found.iter().map(|(number, _)| number.as_str()).collect();
    assert_eq!(numbers, ["S1", "S2a", "X1"]);
    assert_eq!((found[1].1.len(), found[2].1.len()), (2, 0));
}
