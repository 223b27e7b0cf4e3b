//! The documents are true: their commands run, their links lead somewhere, their promises are tested.

mod examples;
mod links;
mod packaging;
mod promises;
mod readme;

use std::path::{Path, PathBuf};

/// The root of the sources.
fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[track_caller]
fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The documents at the top and in `docs/`.
fn documents() -> Vec<PathBuf> {
    let list = |dir: PathBuf| dir.read_dir().unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let files = list(sources().into()).chain(list(sources().join("docs"))).map(|entry| entry.expect("ours").path());
    files.filter(|path| path.extension().is_some_and(|e| e == "md")).collect()
}

/// The code blocks of a document whose fence says `kind`.
fn blocks(text: &str, kind: &str) -> Vec<String> {
    let (mut found, mut inside): (Vec<String>, Option<bool>) = (vec![], None);
    for line in text.lines() {
        match (line.strip_prefix("```"), inside) {
            (Some(info), None) => {
                inside = Some(info == kind);
                found.extend((info == kind).then(String::new));
            }
            (Some(_), Some(_)) => inside = None,
            (None, Some(true)) => {
                let block = found.last_mut().expect("begun with its fence");
                block.push_str(line);
                block.push('\n');
            }
            (None, _) => {}
        }
    }
    found
}

#[test]
fn blocks_are_told_apart() {
    let text = "```sh\na\n```\ntext\n```sh setup\nb\n```\n```sh\nc\nd\n```\n";
    assert_eq!(blocks(text, "sh"), ["a\n", "c\nd\n"]);
    assert_eq!(blocks(text, "sh setup"), ["b\n"]);
}
