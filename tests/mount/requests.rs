//! How many requests ordinary work costs. These numbers are exact, where times are noisy.

use std::fs;
use std::path::Path;

use super::raw::RawMount;
use crate::common::{Env, Repo, Run, Shape, caches};

fn tree(base: &Path) {
    for dir in 0..20 {
        let dir = base.join(format!("d{dir}"));
        fs::create_dir(&dir).expect("mkdir");
        for file in 0..20 {
            fs::write(dir.join(format!("f{file}")), "some text\n").expect("write");
        }
    }
}

#[test]
fn what_was_seen_once_costs_nothing() {
    let _kept = caches::kept();
    let mut mount = RawMount::new(tree);
    let listing = "find . -printf '%s %T@\\n' > /dev/null; grep -r some . > /dev/null; ! ls absent 2> /dev/null";
    let first = mount.cost_of(|mount| drop(mount.sh(listing)));
    assert_eq!(first.of("read"), 400, "{first:?}");
    // Files are opened without asking, once that was refused.
    assert!(first.of("open") <= 2 && first.of("opendir") <= 2 && first.of("flush") <= 2, "{first:?}");
    // Reading a file for the first time makes the kernel doubt its access time, once.
    let again = mount.cost_of(|mount| drop(mount.sh(listing)));
    assert!(again.of("getattr") <= 401 && again.requests() <= 403, "{again:?}");
    let warm = mount.cost_of(|mount| drop(mount.sh(listing)));
    assert!(warm.requests() <= 2, "{warm:?}");
}

#[test]
fn a_first_walk_asks_for_directories_not_for_files() {
    let _kept = caches::kept();
    let mut mount = RawMount::new(tree);
    let walk = mount.cost_of(|mount| drop(mount.sh("find . -printf '%s %T@\\n' > /dev/null")));
    assert_eq!(walk.of("readdirplus"), 21, "once for each directory: {walk:?}");
    // What else is asked of a directory: the end of its listing, and its attributes, since reading it changes a time.
    assert!(walk.of("lookup") <= 2 && walk.requests() <= 3 * 21 + 5, "{walk:?}");
}

#[test]
fn a_listing_does_not_look_up_again_what_is_known() {
    let _kept = caches::kept();
    let mut mount = RawMount::new(tree);
    mount.sh("for i in $(seq 0 19); do stat d0/f$i > /dev/null; done");
    let cost = mount.cost_of(|mount| assert_eq!(mount.sh("ls d0").lines().count(), 20));
    assert_eq!(
        (cost.of("readdirplus"), cost.of("readdir")),
        (1, 2),
        "the dot entries; the rest, and its end: {cost:?}"
    );
}

#[test]
fn a_new_file_costs_what_it_has_to() {
    let _kept = caches::kept();
    let mut mount = RawMount::new(tree);
    mount.sh("ls -lR > /dev/null; echo first > first");
    let cost = mount.cost_of(|mount| {
        mount.sh("for i in $(seq 100); do echo $i > d0/new$i; done");
    });
    assert_eq!((cost.of("mknod"), cost.of("write")), (100, 100), "{cost:?}");
    assert!(cost.of("create") <= 1 && cost.of("lookup") <= 110 && cost.of("getattr") <= 110, "{cost:?}");
    let again = mount.cost_of(|mount| {
        mount.sh("cat d0/new* > /dev/null; ls d0 > /dev/null; ls d0 > /dev/null");
    });
    assert!(again.of("lookup") + again.of("open") == 0, "{again:?}");
}

#[test]
fn git_status_asks_for_nothing_it_has_seen_and_reads_no_tracked_file() {
    let _kept = caches::kept();
    let env = Env::new();
    let base = env.join("base");
    Repo::new(&env, &base, Shape { files: 1000, changed: 50, ignored: 10, submodule: false });
    let mut mount = RawMount::on(env, base, |_| {});
    let status = |mount: &RawMount| mount.env().git(&mount.path(), ["status", "--porcelain"]);
    let (plain, mut shown) = (mount.env().git(mount.base(), ["status", "--porcelain"]), String::new());
    let first = mount.cost_of(|mount| shown = status(mount));
    assert_eq!(shown, plain);
    // The files of .git, a few times each; not one for each tracked file.
    assert!(first.of("read") < 60, "{first:?}");
    status(&mount);
    let warm = mount.cost_of(|mount| drop(status(mount)));
    assert!(warm.requests() <= 20, "{warm:?}");
}

#[test]
fn reading_ahead_takes_large_pieces() {
    let _kept = caches::kept();
    let mut mount = RawMount::new(|base| {
        fs::write(base.join("big"), vec![7; 16 << 20]).expect("write");
    });
    let cost = mount.cost_of(|mount| {
        mount.env().command_in(&mount.path(), "md5sum").arg("big").ok();
    });
    // 16 if every request took as much as it may; 128 with the kernel's own reading ahead.
    assert!(cost.of("read") <= 40, "{cost:?}");
}
