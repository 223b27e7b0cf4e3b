//! The core driven by node, without a mount.

mod ahead;
mod calls;
mod numbers;
mod preserved;
mod told;

use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::*;
use crate::layer::hidden::Hide;
use crate::sys::{Time, open_root};

struct Fork {
    dir: tempfile::TempDir,
    overlay: Arc<Overlay>,
}

fn me() -> Caller {
    Caller { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}

fn open(path: &Path) -> OwnedFd {
    open_root(path).expect("a directory of the test")
}

fn mount(dir: &Path) -> Arc<Overlay> {
    mount_hiding(dir, Hidden::default())
}

fn mount_hiding(dir: &Path, hidden: Hidden) -> Arc<Overlay> {
    for sub in ["upper", "work"] {
        fs::create_dir_all(dir.join(sub)).expect("room");
    }
    let lower = Lower { root: open(&dir.join("base")), marked: false, image: false, watch: false };
    let created = Some(Time { sec: i64::MAX, nsec: 0 });
    Overlay::new(Config {
        lowers: vec![lower],
        upper: Some(open(&dir.join("upper"))),
        work: Some(open(&dir.join("work"))),
        watch: None,
        fds: FdCache::new(64),
        created,
        made_on: None,
        hidden,
        large: Large { from: 64 << 10, background: true },
    })
    .expect("an overlay")
}

fn fork(fill: impl FnOnce(&Path)) -> Fork {
    let dir = tempfile::tempdir().expect("room");
    fs::create_dir(dir.path().join("base")).expect("room");
    fill(&dir.path().join("base"));
    let overlay = mount(dir.path());
    Fork { dir, overlay }
}

impl Fork {
    fn base(&self, path: &str) -> std::path::PathBuf {
        self.dir.path().join("base").join(path)
    }

    fn upper(&self, path: &str) -> std::path::PathBuf {
        self.dir.path().join("upper").join(path)
    }

    fn restart(&mut self) {
        self.overlay = mount(self.dir.path());
    }

    fn entry(&self, path: &str) -> Result<Entry> {
        let mut at = Err(Errno::NOENT);
        let mut node = ROOT;
        for name in path.split('/') {
            match self.overlay.lookup(node, OsStr::new(name))? {
                Lookup::Found(entry) => {
                    node = entry.node;
                    at = Ok(entry);
                }
                Lookup::Absent(_) => return Err(Errno::NOENT),
            }
        }
        at
    }

    fn id(&self, path: &str) -> u64 {
        if path.is_empty() { ROOT } else { self.entry(path).unwrap_or_else(|e| panic!("{path}: {e}")).node }
    }

    fn content(&self, path: &str) -> Vec<u8> {
        self.bytes(self.id(path))
    }

    fn bytes(&self, node: u64) -> Vec<u8> {
        let mut buffer = vec![0; 1 << 16];
        let n = self.overlay.read(node, 0, &mut buffer).expect("readable");
        buffer.truncate(n);
        buffer
    }

    fn names(&self, path: &str) -> Vec<String> {
        let mut names = Vec::new();
        self.overlay
            .readdir(self.id(path), 2, &mut |entry| {
                names.push(entry.name.to_str().expect("plain").to_owned());
                false
            })
            .expect("a directory");
        names.sort();
        names
    }

    fn touch(&self, parent: &str, name: &str) -> u64 {
        let parent = self.id(parent);
        self.overlay.mknod(me(), parent, OsStr::new(name), 0o100_644, 0, 0).expect("room").node
    }

    fn rename(&self, from: (&str, &str), to: (&str, &str)) -> Result<()> {
        let (parent, new) = (self.id(from.0), self.id(to.0));
        self.overlay.rename(parent, OsStr::new(from.1), new, OsStr::new(to.1), RenameFlags::empty())
    }
}

#[test]
fn reads_through_without_a_trace() {
    let fork = fork(|base| {
        fs::create_dir(base.join("d")).expect("room");
        fs::write(base.join("d/f"), "hello").expect("room");
    });
    assert_eq!(fork.content("d/f"), b"hello");
    let meta = fs::metadata(fork.base("d/f")).expect("there");
    let attr = fork.entry("d/f").expect("there").attr;
    assert_eq!((attr.ino, attr.mtime.sec, attr.ctime.sec), (meta.ino(), meta.mtime(), meta.ctime()));
    assert_eq!(fs::read_dir(fork.upper("")).expect("there").count(), 0);
}

#[test]
fn a_write_goes_up_and_keeps_the_number() {
    let mut fork = fork(|base| {
        fs::create_dir(base.join("d")).expect("room");
        fs::write(base.join("d/f"), "hello").expect("room");
    });
    let dir_before = fork.entry("d").expect("there").attr;
    let before = fork.entry("d/f").expect("there").attr;
    let node = fork.id("d/f");
    fork.overlay.write(node, 0, b"J", false).expect("writable");
    assert_eq!(fork.content("d/f"), b"Jello");
    assert_eq!(fs::read(fork.base("d/f")).expect("there"), b"hello");
    let dir_after = fork.entry("d").expect("there").attr;
    assert_eq!(
        (dir_after.mtime, dir_after.ctime, dir_after.nlink),
        (dir_before.mtime, dir_before.ctime, dir_before.nlink)
    );
    fork.restart();
    let after = fork.entry("d/f").expect("there").attr;
    assert_eq!((after.ino, after.nlink), (before.ino, 1));
    assert_eq!(fork.content("d/f"), b"Jello");
    assert_eq!(fork.entry("d").expect("there").attr.ctime, dir_before.ctime);
}

#[test]
fn a_renamed_directory_takes_everything_along() {
    let mut fork = fork(|base| {
        fs::create_dir_all(base.join("dir/sub")).expect("room");
        for f in ["f1", "f2", "sub/f3"] {
            fs::write(base.join("dir").join(f), f).expect("room");
        }
    });
    let sub = fork.id("dir/sub");
    fork.overlay.write(fork.id("dir/f2"), 0, b"new", false).expect("writable");
    fork.rename(("", "dir"), ("", "other")).expect("one step");
    for round in 0..2 {
        assert_eq!(fork.names("other"), ["f1", "f2", "sub"], "round {round}");
        assert_eq!(fork.names(""), ["other"]);
        assert_eq!(fork.entry("dir").err(), Some(Errno::NOENT));
        assert_eq!(fork.content("other/sub/f3"), b"sub/f3");
        assert_eq!(fork.content("other/f2"), b"new");
        assert_eq!(fork.id("other/sub"), sub);
        fork.restart();
    }
    assert!(fork.base("dir/f1").exists());
}

#[test]
fn a_directory_made_anew_is_empty() {
    let mut fork = fork(|base| {
        fs::create_dir(base.join("d")).expect("room");
        fs::write(base.join("d/old"), "").expect("room");
    });
    fork.overlay.unlink(fork.id("d"), OsStr::new("old")).expect("there");
    fork.overlay.rmdir(ROOT, OsStr::new("d")).expect("empty");
    assert_eq!(fork.entry("d").err(), Some(Errno::NOENT));
    fork.overlay.mkdir(me(), ROOT, OsStr::new("d"), 0o755, 0).expect("free");
    fork.touch("d", "x");
    for _ in 0..2 {
        assert_eq!(fork.names("d"), ["x"]);
        assert_eq!(fork.entry("d/old").err(), Some(Errno::NOENT));
        fork.restart();
    }
}

#[test]
fn hard_links_of_the_base_stay_one_file() {
    let mut fork = fork(|base| {
        fs::write(base.join("a"), "one").expect("room");
        fs::hard_link(base.join("a"), base.join("b")).expect("room");
    });
    let (a, b) = (fork.entry("a").expect("there"), fork.entry("b").expect("there"));
    assert_eq!((a.node, a.attr.nlink), (b.node, 2));
    fork.overlay.write(a.node, 0, b"two", false).expect("writable");
    fork.restart();
    assert_eq!(fork.content("b"), b"two");
    assert_eq!(fork.id("a"), fork.id("b"));
    fork.overlay.unlink(ROOT, OsStr::new("a")).expect("there");
    for _ in 0..2 {
        let b = fork.entry("b").expect("there").attr;
        assert_eq!((b.nlink, b.ino), (1, a.attr.ino));
        assert_eq!(fork.content("b"), b"two");
        fork.restart();
    }
    fork.rename(("", "b"), ("", "c")).expect("free");
    assert_eq!(fork.names(""), ["c"]);
    assert_eq!(fork.content("c"), b"two");
}

#[test]
fn an_unlinked_file_lives_until_forgotten() {
    let fork = fork(|base| fs::write(base.join("f"), "base").expect("room"));
    let lower = fork.id("f");
    fork.overlay.unlink(ROOT, OsStr::new("f")).expect("there");
    assert_eq!(fork.bytes(lower), b"base");
    assert_eq!(fork.overlay.getattr(lower).expect("open").0.nlink, 0);
    fork.overlay.write(lower, 0, b"B", false).expect("writable");
    assert_eq!(fork.bytes(lower), b"Base");
    let upper = fork.touch("", "g");
    fork.overlay.write(upper, 0, b"x", false).expect("writable");
    fork.overlay.unlink(ROOT, OsStr::new("g")).expect("there");
    assert_eq!(fork.bytes(upper), b"x");
    fork.overlay
        .setattr(me(), upper, &SetAttr { size: Some(5), mode: Some(0o600), ..Default::default() })
        .expect("open");
    assert_eq!(fork.bytes(upper), b"x\0\0\0\0");
    assert_eq!(fork.names(""), Vec::<String>::new());
    assert_eq!(fs::read(fork.base("f")).expect("there"), b"base");
}

#[test]
fn offsets_survive_changes() {
    let fork = fork(|base| {
        for i in 0..100 {
            fs::write(base.join(format!("f{i}")), "").expect("room");
        }
    });
    let mut seen = Vec::new();
    let mut offset = 2;
    loop {
        let mut page = Vec::new();
        let emit = &mut |entry: DirEntry<'_>| {
            if page.len() == 7 {
                return true;
            }
            page.push((entry.name.to_owned(), entry.next));
            false
        };
        fork.overlay.readdir(ROOT, offset, emit).expect("a directory");
        let Some((_, next)) = page.last() else { break };
        offset = *next;
        for (name, _) in &page {
            fork.overlay.unlink(ROOT, name).expect("there");
        }
        seen.extend(page);
    }
    assert_eq!(seen.len(), 100);
    assert_eq!(fork.names(""), Vec::<String>::new());
}

#[test]
fn a_new_entry_has_the_mode_and_a_whiteout_does_not_get_in_its_way() {
    let fork = fork(|base| fs::write(base.join("f"), "").expect("room"));
    fork.overlay.unlink(ROOT, OsStr::new("f")).expect("there");
    let entry = fork.overlay.mknod(me(), ROOT, OsStr::new("f"), 0o100_666, 0o027, 0).expect("free");
    assert_eq!(entry.attr.mode & 0o7777, 0o640);
    assert_eq!(fs::metadata(fork.upper("f")).expect("there").permissions().mode() & 0o7777, 0o640);
    let again = fork.overlay.mknod(me(), ROOT, OsStr::new("f"), 0o100_666, 0, 0);
    assert_eq!(again.err(), Some(Errno::EXIST));
}

#[test]
fn our_marks_are_nobodys_business() {
    let fork = fork(|base| fs::write(base.join("f"), "").expect("room"));
    let f = fork.id("f");
    fork.overlay.write(f, 0, b"x", false).expect("writable");
    assert_eq!(fork.overlay.listxattr(f).expect("there"), Vec::<std::ffi::OsString>::new());
    let origin = OsStr::new(crate::layer::marks::ORIGIN);
    assert_eq!(fork.overlay.getxattr(f, origin).err(), Some(Errno::NODATA));
    let set = fork.overlay.setxattr(me(), f, origin, b"1", rustix::fs::XattrFlags::empty());
    assert_eq!(set.err(), Some(Errno::PERM));
}

#[test]
fn forgotten_nodes_are_gone() {
    let fork = fork(|base| fs::write(base.join("f"), "").expect("room"));
    let (one, two) = (fork.id("f"), fork.id("f"));
    assert_eq!(one, two);
    fork.overlay.forget(one, 1);
    assert_eq!(fork.overlay.nodes(), 2);
    fork.overlay.forget(one, 1);
    assert_eq!(fork.overlay.nodes(), 1);
    assert_eq!(fork.overlay.getattr(one).err(), Some(Errno::STALE));
}

#[test]
fn the_ledger_has_the_name_that_was_covered() {
    let fork = fork(|base| {
        fs::write(base.join("a"), "one").expect("room");
        fs::hard_link(base.join("a"), base.join("b")).expect("room");
    });
    let (a, b) = (fork.id("a"), fork.id("b"));
    assert_eq!(a, b);
    fork.overlay.write(a, 0, b"two", false).expect("writable");
    let covered: Vec<_> = ["a", "b"].into_iter().filter(|name| fork.upper(name).exists()).collect();
    let ledger = crate::layer::ledger::read(&open(&fork.dir.path().join("work"))).expect("written");
    let noted: Vec<_> = ledger.keys().map(|path| path.as_path().to_str().expect("plain")).collect();
    assert_eq!(noted, covered);
}

#[test]
fn what_is_hidden_is_there_by_no_way() {
    let fill = |base: &Path| {
        for dir in ["d/target/x", "target"] {
            fs::create_dir_all(base.join(dir)).expect("room");
        }
        fs::write(base.join("d/target/f"), "theirs").expect("room");
        std::os::unix::fs::symlink("/etc", base.join("d/out")).expect("room");
    };
    let hide = Hide { symlinks: crate::copy::Symlinks::Confine, exclude: vec!["target/".into()] };
    let mut fork = fork(fill);
    fork.overlay = mount_hiding(fork.dir.path(), hide.of(Path::new("/b")).expect("patterns"));
    assert_eq!(fork.names(""), ["d"]);
    assert_eq!(fork.names("d"), Vec::<String>::new());
    // Moved, it hides the same; and there is room for what the fork makes.
    fork.rename(("", "d"), ("", "e")).expect("moves");
    assert_eq!(fork.names("e"), Vec::<String>::new());
    fork.overlay.mkdir(me(), fork.id("e"), OsStr::new("target"), 0o755, 0).expect("free");
    assert_eq!(fork.names("e/target"), Vec::<String>::new());
    assert_eq!(fork.entry("e/target/f").err(), Some(Errno::NOENT));
    fork.overlay.rmdir(fork.id("e"), OsStr::new("target")).expect("empty");
    assert!(!fork.upper("e/target").exists(), "no whiteout for what it never showed");
    fork.overlay.rmdir(ROOT, OsStr::new("e")).expect("empty to the fork");
    assert!(fork.base("d/target/f").exists());
}

#[test]
fn the_fork_is_synced_before_what_is_in_it() {
    let fork = fork(|_| {});
    fs::write(fork.dir.path().join("fork.json"), "{}").expect("room");
    fork.overlay.anchor(open(fork.dir.path()));
    let made = fork.overlay.mknod(me(), ROOT, OsStr::new("f"), 0o100_644, 0, 0).expect("free");
    assert!(fork.overlay.anchor.lock().is_some(), "not before it is asked for");
    fork.overlay.fsync(made.node, true).expect("synced");
    assert!(fork.overlay.anchor.lock().is_none());
    fork.overlay.fsync(made.node, true).expect("synced again");
}

/// Its number is not given to a new one meanwhile, which would have to go by another than its entry in the listing says.
#[test]
fn the_number_of_a_removed_directory_stays_taken_while_somebody_is_in_it() {
    let fork = fork(|_| {});
    let make = |name: &str| fork.overlay.mkdir(me(), ROOT, OsStr::new(name), 0o755, 0).expect("free");
    let forget_descriptor = |node| fork.overlay.fds.remove(fork.overlay.owner, node, fds::Slot::UpperDir);
    for replaced in [false, true] {
        // Nobody forgets this node: a process is in the directory.
        let old = make("old").node;
        forget_descriptor(old);
        if replaced {
            make("other");
            fork.rename(("", "other"), ("", "old")).expect("it is empty");
        } else {
            fork.overlay.rmdir(ROOT, OsStr::new("old")).expect("it is empty");
        }
        forget_descriptor(old);
        // A file system that gives free numbers to whoever comes next does so here.
        let name = if replaced { "after a rename" } else { "after a removal" };
        let new = make(name);
        assert_ne!(new.node, old);
        assert_eq!(new.attr.ino, fs::metadata(fork.upper(name)).expect("there").ino(), "as it is listed");
    }
}

/// Whoever makes directories in directories must not be able to end the server, which has small stacks and few descriptors.
#[test]
fn a_tree_deeper_than_any_stack_or_path() {
    const DEPTH: usize = 5_000;
    let fork = fork(|base| fs::write(base.join("f"), "x").expect("room"));
    let (dir, name) = (fork.dir.path().to_path_buf(), OsStr::new("d"));
    let work = move || {
        let mut bottom = ROOT;
        for _ in 0..DEPTH {
            bottom = fork.overlay.mkdir(me(), bottom, name, 0o755, 0).expect("made").node;
        }
        for node in fork.overlay.table.all() {
            fork.overlay.fds.remove(fork.overlay.owner, node.id, fds::Slot::UpperDir);
        }
        fork.overlay.mkdir(me(), bottom, name, 0o755, 0).expect("the way there is opened anew");
        // A map of a large file that is nowhere: a new server looks for it everywhere.
        let map = fork.dir.path().join("work/blocks/1-2.3");
        fs::create_dir_all(map.parent().expect("in a directory")).expect("room");
        fs::write(&map, "").expect("room");
        let next = mount(fork.dir.path());
        next.resume().expect("looked through");
        assert!(!map.exists());
        // All nodes at once, each the last to hold the one above it.
        drop(fork.overlay);
        fork.dir.keep()
    };
    let small = std::thread::Builder::new().stack_size(256 << 10).spawn(work).expect("a thread");
    small.join().expect("no panic");
    // What the standard library does for that goes down step by step.
    assert!(std::process::Command::new("rm").arg("-rf").arg(dir).status().expect("it runs").success());
}

#[test]
fn names_that_are_not_there_are_not_remembered_without_end() {
    let fork = fork(|base| fs::write(base.join("f"), "x").expect("room"));
    let ask = |n: usize| fork.overlay.lookup(ROOT, OsStr::new(&format!("none{n}")));
    let told: Vec<_> = (0..=10_000).map(ask).collect();
    assert!(matches!(told[0], Ok(Lookup::Absent(ttl)) if !ttl.is_zero()));
    assert!(matches!(told[10_000], Ok(Lookup::Absent(ttl)) if ttl.is_zero()));
}
