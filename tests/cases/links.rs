//! Links, inodes, handles.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use crate::common::{Fork, Repo, Run, Shape, Treefork};

#[test]
fn case_31_names_of_one_base_file_stay_one_file() {
    let fork = Fork::new("mkdir d; echo base > a; ln a b; ln a d/c");
    let meta = |name: &str| fork.join(name).metadata().expect("it is there");
    fork.sh("echo more >> a");
    for _ in 0..2 {
        assert_eq!(fork.sh("cat b; cat d/c"), "base\nmore\nbase\nmore");
        assert!(meta("a").ino() == meta("b").ino() && meta("b").ino() == meta("d/c").ino());
        assert_eq!([meta("a").nlink(), meta("b").nlink(), meta("d/c").nlink()], [3, 3, 3]);
        fork.restart();
    }
    fs::remove_file(fork.join("b")).expect("it is there");
    assert_eq!([meta("a").nlink(), meta("d/c").nlink()], [2, 2]);
    fs::remove_file(fork.join("a")).expect("it is there");
    fork.restart();
    assert_eq!((meta("d/c").nlink(), fork.sh("cat d/c")), (1, "base\nmore".to_owned()));
}

#[test]
fn case_32_sizes_agree_at_once() {
    let fork = Fork::new("echo base > a; ln a b");
    let mut file = OpenOptions::new().append(true).open(fork.join("a")).expect("it is there");
    assert_eq!(fork.join("b").metadata().expect("there").len(), 5);
    for n in 1..50 {
        file.write_all(b"x").expect("there is room");
        assert_eq!(fork.join("b").metadata().expect("there").len(), 5 + n);
    }
}

/// `st_ino` and `st_dev` of everything, and that listings say the same.
fn numbers(root: &Path, at: &Path, all: &mut Vec<(String, u64, u64)>) {
    for entry in root.join(at).read_dir().expect("it is a directory") {
        let entry = entry.expect("it can be listed");
        let meta = entry.path().symlink_metadata().expect("it is there");
        assert_eq!(entry.ino(), meta.ino(), "d_ino and st_ino of {:?}", entry.path());
        let rel = at.join(entry.file_name());
        all.push((format!("{rel:?}"), meta.ino(), meta.dev()));
        if meta.is_dir() {
            numbers(root, &rel, all);
        }
    }
    all.sort();
}

#[test]
fn case_34_numbers_stay_the_same() {
    let fork = Fork::new(
        "mkdir -p d/sub; for n in 1 2 3; do echo $n > d/f$n; done; echo x > d/sub/g; ln -s d l; ln d/f1 d/again; mkfifo p",
    );
    let look = |root: &Path| {
        let mut all = Vec::new();
        numbers(root, Path::new(""), &mut all);
        all
    };
    let base = look(&fork.base);
    let before = look(&fork.path);
    let inos = |all: &[(String, u64, u64)]| all.iter().map(|(path, ino, _)| (path.clone(), *ino)).collect::<Vec<_>>();
    assert_eq!(inos(&base), inos(&before), "as in the base");
    fork.sh("echo more >> d/f1; chmod 600 d/f2 d p; touch d/sub/g; chown -h 7 l; chmod 700 .");
    assert_eq!(before, look(&fork.path), "after copying up");
    fork.sh("echo new > new; mkdir newdir; mv d/f3 d/moved; mv d/sub newdir/sub");
    let changed = look(&fork.path);
    let ino =
        |all: &[(String, u64, u64)], path: &str| all.iter().find(|(p, ..)| *p == format!("{path:?}")).expect("there").1;
    assert_eq!(ino(&before, "d/f3"), ino(&changed, "d/moved"));
    assert_eq!(ino(&before, "d/sub/g"), ino(&changed, "newdir/sub/g"));
    let plain_numbers = inos(&changed);
    fork.restart();
    assert_eq!(plain_numbers, inos(&look(&fork.path)), "after a restart");
}

#[test]
fn case_35_renames_under_open_files() {
    let fork = Fork::new("mkdir -p .git d/sub; echo one > .git/HEAD; echo f > d/sub/f");
    let old = File::open(fork.join(".git/HEAD")).expect("it is there");
    fork.sh("echo two > .git/HEAD.lock; mv .git/HEAD.lock .git/HEAD; cat .git/HEAD");
    let text = |file: &File| {
        let mut bytes = vec![0; 100];
        let n = file.read_at(&mut bytes, 0).expect("an open file can be read");
        String::from_utf8(bytes[..n].to_vec()).expect("text")
    };
    assert_eq!((text(&old).as_str(), fork.sh("cat .git/HEAD").as_str()), ("one\n", "two"));
    let child = OpenOptions::new().read(true).write(true).open(fork.join("d/sub/f")).expect("it is there");
    fs::rename(fork.join("d"), fork.join("e")).expect("a base directory can be renamed");
    assert_eq!(text(&child), "f\n");
    child.write_all_at(b"g", 0).expect("it can be written");
    assert_eq!(fork.sh("cat e/sub/f; test ! -e d; echo h > e/sub/new; ls e/sub"), "g\nf\nnew");
    fs::rename(fork.join("e/sub"), fork.join("s")).expect("again");
    child.write_all_at(b"i", 0).expect("it can be written");
    assert_eq!(fork.sh("cat s/f"), "i");
}

#[test]
fn case_38_an_unlinked_file_lives_while_it_is_open() {
    for touched in [false, true] {
        let fork = Fork::new("mkdir d; echo base > d/f");
        let path = fork.join("d/f");
        if touched {
            fork.sh("echo more >> d/f");
        }
        let file = OpenOptions::new().read(true).write(true).open(&path).expect("it is there");
        let size = file.metadata().expect("open").len();
        fs::remove_file(&path).expect("it is there");
        fs::remove_dir(fork.join("d")).expect("it is empty now");
        let meta = file.metadata().expect("open");
        assert_eq!((meta.nlink(), meta.len()), (0, size));
        file.set_len(2).expect("ftruncate");
        file.set_permissions(PermissionsExt::from_mode(0o600)).expect("fchmod");
        file.write_all_at(b"tail", 2).expect("write");
        let mut bytes = [0; 6];
        file.read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!(&bytes, b"batail");
        assert_eq!(file.metadata().expect("open").mode() & 0o777, 0o600);
        assert_eq!(fork.sh("ls -A"), "");
    }
}

#[test]
fn case_39_few_descriptors_are_enough() {
    let treefork = Treefork::new();
    Repo::new(treefork.env(), &treefork.env().join("repo"), Shape { submodule: false, ..Shape::full(3000) });
    // The server gets this limit from the command that starts it.
    let create = format!("ulimit -n 1024; exec {} create repo --label fork", crate::common::cli::BINARY);
    let fork = treefork.env().command("bash").args(["-c", &create]).ok().text();
    let fork = Path::new(&fork);
    assert_eq!(treefork.env().git(fork, ["status", "--porcelain"]), "?? notes.txt");
    treefork.env().sh(fork, "find . -type f -exec cat {} + > /dev/null; for n in $(seq 600); do echo $n > new$n; done");
    treefork.env().sh(fork, "find pkg00 -type f -exec touch {} +");
    assert_eq!(treefork.env().git(fork, ["status", "--porcelain"]).lines().count(), 601);
    treefork.env().git(fork, ["fsck", "--strict"]);
}
