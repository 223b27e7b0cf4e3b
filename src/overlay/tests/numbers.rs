//! One number, one object, for as long as the kernel may know it.

use super::super::lookup::file_node;
use super::super::node::{Node, Place};
use super::*;

/// Enters an object that has this number in the base and was born at this time.
fn enter(fork: &Fork, ino: u64, born: i64) -> Arc<Node> {
    let overlay = &fork.overlay;
    let ident = Ident { ino, btime: Time { sec: born, nsec: 0 } };
    let stat = Stat { btime: ident.btime, ..At::object(&open(&fork.base("."))).stat().expect("there") };
    let link = (overlay.node(ROOT).expect("there"), crate::names::Name::new(OsStr::new("f")).expect("a name"));
    let place = Place::Lower { layer: Arc::clone(&overlay.layers.read()[0]), path: RelPath::root(), shared: None };
    overlay.table.enter(ino, stat.dev, ident, |numbers| file_node(numbers, (stat.dev, ident), &stat, &link, place))
}

#[test]
fn what_was_sent_for_an_older_object_does_not_reach_a_newer_one() {
    let fork = fork(|_| ());
    let old = enter(&fork, 7, 1);
    let new = enter(&fork, 7, 2);
    assert_eq!((old.id, old.ino), (7, 7));
    assert_ne!(new.id, 7, "the kernel may still ask for the old one");
    assert_eq!(new.ino, 7, "st_ino is the base's");
    assert!(Arc::ptr_eq(&fork.overlay.node(7).expect("known"), &old));
    let found = |born| fork.overlay.table.of_object(7, new.dev, Ident { ino: 7, btime: Time { sec: born, nsec: 0 } });
    assert!(found(2).is_some_and(|found| Arc::ptr_eq(&found, &new)));
    assert!(found(1).is_some_and(|found| Arc::ptr_eq(&found, &old)));
    assert!(found(3).is_none());
}

#[test]
fn there_are_never_two_nodes_for_one_object() {
    let fork = fork(|_| ());
    let new = {
        enter(&fork, 7, 1);
        enter(&fork, 7, 2)
    };
    fork.overlay.forget(7, 1);
    assert!(
        Arc::ptr_eq(&enter(&fork, 7, 2), &new),
        "its own number is free by now, but the kernel knows it by this one"
    );
    fork.overlay.forget(new.id, 2);
    assert_eq!(enter(&fork, 7, 2).id, 7, "nobody knows it by the other one any more");
}
