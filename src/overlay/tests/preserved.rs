//! Staying as it was while a merge changes the base.

use super::*;

/// Makes a preserved layer by hand: shells, hard links of objects, whiteouts for what will be added.
fn preserved_layer(fork: &Fork, shells: &[&str], objects: &[&str], added: &[&str]) -> OwnedFd {
    use crate::layer::{marks, preserved};
    use crate::sys::At;
    let dir = fork.dir.path().join("preserved");
    let tree = |path: &str| dir.join("tree").join(path);
    let stat = |path: &&str| Stat::of(path_fd(&fork.base(path)).as_fd()).expect("there");
    let stats: Vec<Stat> = [""].iter().chain(shells).chain(objects).map(stat).collect();
    for (path, stat) in [""].iter().chain(shells).zip(&stats) {
        fs::create_dir_all(tree(path)).expect("room");
        let shell = path_fd(&tree(path));
        let origin = marks::Origin { ident: stat.ident(), dev: stat.dev, indexed: false, ctime: None };
        marks::set_origin(At::object(&shell), &origin).expect("attributes");
    }
    for path in objects {
        fs::hard_link(fork.base(path), tree(path)).expect("room");
    }
    for name in added {
        At::new(&open(&tree("")), name).mknod(0o020_000, 0).expect("whiteouts");
    }
    let fd = open(&dir);
    preserved::write_overrides(&fd, &stats).expect("room");
    fd
}

fn path_fd(path: &Path) -> OwnedFd {
    rustix::fs::open(path, rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW, rustix::fs::Mode::empty())
        .expect("there")
}

#[test]
fn a_merge_into_the_base_is_invisible() {
    let mut fork = fork(|base| {
        fs::create_dir_all(base.join("d/gone")).expect("room");
        for f in ["f", "d/g", "d/gone/h"] {
            fs::write(base.join(f), f).expect("room");
        }
    });
    let see = |fork: &Fork| {
        let attrs = ["f", "d", "d/g", "d/gone", "d/gone/h"].map(|path| {
            let attr = fork.entry(path).unwrap_or_else(|e| panic!("{path}: {e}")).attr;
            (attr.ino, attr.nlink, attr.mtime, attr.ctime)
        });
        let root = fork.overlay.getattr(ROOT).expect("there").0;
        (attrs, (root.mtime, root.ctime), fork.names(""), fork.names("d"), fork.content("f"), fork.content("d/gone/h"))
    };
    let before = see(&fork);
    let (f, h) = (fork.id("f"), fork.id("d/gone/h"));
    let layer = preserved_layer(&fork, &["d", "d/gone"], &["f", "d/gone/h"], &["new"]);
    fork.overlay.preserve(&layer).expect("a layer");
    assert_eq!(see(&fork), before);
    fs::write(fork.base("f.new"), "merged").expect("room");
    fs::rename(fork.base("f.new"), fork.base("f")).expect("room");
    fs::remove_dir_all(fork.base("d/gone")).expect("room");
    fs::write(fork.base("new"), "new").expect("room");
    assert_eq!(see(&fork), before);
    assert_eq!((fork.bytes(f), fork.bytes(h)), (b"f".to_vec(), b"d/gone/h".to_vec()));
    fork.overlay.write(f, 0, b"F", false).expect("writable");
    assert_eq!(fork.content("f"), b"F");
    assert_eq!(fs::read(fork.base("f")).expect("there"), b"merged");
    let before = see(&fork);
    fork.restart();
    fork.overlay.preserve(&layer).expect("a layer");
    assert_eq!(see(&fork), before);
}
