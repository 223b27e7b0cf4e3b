//! Every link of a document to a file of the sources leads to one.

use super::{documents, read};

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for document in documents() {
        let text = read(&document);
        for (at, _) in text.match_indices("](") {
            let target = text[at + 2..].split(')').next().unwrap_or_default();
            let file = target.split('#').next().unwrap_or_default();
            if target.contains("://") || file.is_empty() || file.contains(char::is_whitespace) {
                continue;
            }
            if !document.parent().expect("a file is in a directory").join(file).exists() {
                broken.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}
