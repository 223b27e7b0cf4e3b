//! Listings that bring their entries along.

use super::*;

/// What a listing of the root from an offset brings with room for so many entries: names, and which came with a node; and
/// the offset to go on from.
fn listed(fork: &Fork, from: u64, room: usize) -> (Vec<(String, bool)>, u64) {
    let (mut entries, mut next) = (Vec::new(), from);
    let mut list = |listed: DirEntry<'_>, entry: Option<&Entry>| {
        if entries.len() == room {
            return true;
        }
        entries.push((listed.name.to_str().expect("plain").to_owned(), entry.is_some()));
        next = listed.next;
        false
    };
    fork.overlay.readdirplus(ROOT, from, &mut list).expect("listed");
    (entries, next)
}

fn twelve() -> Fork {
    fork(|base| (0..12).for_each(|n| fs::write(base.join(format!("f{n}")), "x").expect("room")))
}

#[test]
fn each_entry_that_was_taken_counts_as_one_lookup() {
    let fork = twelve();
    let (first, next) = listed(&fork, 0, 7);
    assert_eq!(first[..2], [(".".to_owned(), false), ("..".to_owned(), false)]);
    assert!(first[2..].iter().all(|(_, node)| *node));
    // The one that there was no room for is not held.
    assert_eq!(fork.overlay.nodes(), 1 + 5);
    let (rest, _) = listed(&fork, next, 100);
    assert_eq!(rest.len(), 7);
    let names: std::collections::BTreeSet<&String> = first.iter().chain(&rest).map(|(name, _)| name).collect();
    assert_eq!(names.len(), 14, "each once");
    for (name, _) in first[2..].iter().chain(&rest) {
        let entry = fork.entry(name).expect("there");
        fork.overlay.forget(entry.node, 2);
    }
    assert_eq!(fork.overlay.nodes(), 1, "one lookup by the listing, one by name");
}

#[test]
fn what_is_known_is_left_to_the_plain_listing() {
    let fork = twelve();
    for n in 0..7 {
        fork.id(&format!("f{n}"));
    }
    let dots = vec![(".".to_owned(), false), ("..".to_owned(), false)];
    assert_eq!(listed(&fork, 0, 100).0, dots);
    assert_eq!(fork.overlay.nodes(), 1 + 7);
    // Who asks on in this way gets it.
    assert_eq!(listed(&fork, 2, 100).0.len(), 12);
}
