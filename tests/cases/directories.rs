//! Directories: rename, whiteouts, opaque.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;

use crate::common::{Fork, Image, Run, Treefork, same_as_plain};

const DIR: &str = "mkdir dir; for n in 1 2 3; do echo $n > dir/f$n; done";

#[test]
fn case_01_a_directory_is_renamed_after_a_write_in_it() {
    let fork = same_as_plain(DIR, "echo new > dir/f2; mv dir other; ls; cat other/*; test ! -e dir");
    assert_eq!(fork.sh("cat other/f2"), "new");
}

#[test]
fn case_02_base_directories_can_be_renamed() {
    let fork = Fork::new("mkdir -p d/sub empty full; echo x > d/sub/f; echo y > full/g");
    let rename = |from: &str, to: &str| fs::rename(fork.join(from), fork.join(to));
    rename("d", "e").expect("to a free name");
    rename("e", "empty").expect("over an empty base directory");
    assert_eq!(rename("empty", "full").map_err(|e| e.kind()), Err(ErrorKind::DirectoryNotEmpty));
    rename("empty", "full/inner").expect("into another directory");
    rename("full", "d").expect("to a name that was used before");
    assert_eq!(
        fork.sh("find . | sort | tr '\\n' ' '; cat d/inner/sub/f d/g"),
        ". ./d ./d/g ./d/inner ./d/inner/sub ./d/inner/sub/f x\ny"
    );
    fork.restart();
    assert_eq!(fork.sh("cat d/inner/sub/f d/g"), "x\ny");
    assert!(fork.changed().iter().all(|path| path != "d/inner/sub/f"), "renaming a directory copies no file");
}

#[test]
fn case_02_git_moves_directories() {
    let base = "git init -q; mkdir -p a/b; echo 1 > a/b/f; git add .; git commit -qm 1";
    same_as_plain(
        base,
        "git mv a c; git status --porcelain; git commit -qm 2; git ls-tree -r HEAD; git status --porcelain",
    );
}

#[test]
fn case_02_a_swap_as_package_managers_do_it() {
    let base = "mkdir -p modules/{a,b}/lib; echo a > modules/a/lib/f; echo b > modules/b/lib/f";
    let swap = "mkdir staging; cp -r modules/a staging/new; mv modules/a modules/.a-old; mv staging/new modules/a;
        echo 2 > modules/a/lib/f; rm -rf modules/.a-old; mv modules modules.old; mkdir modules; mv modules.old/* modules/;
        rmdir modules.old staging; find . | sort; cat modules/*/lib/f";
    same_as_plain(base, swap);
}

#[test]
fn case_03_a_directory_that_was_removed_and_made_again_is_empty() {
    let fork = Fork::new("mkdir -p d/sub; echo x > d/old; echo y > d/sub/f");
    fork.sh("rm -rf d; mkdir d");
    for _ in 0..2 {
        assert_eq!(fork.sh("ls -RA d"), "d:");
        assert_eq!(fs::metadata(fork.join("d/old")).map_err(|e| e.kind()).err(), Some(ErrorKind::NotFound));
        assert_eq!(fs::metadata(fork.join("d/sub/f")).map_err(|e| e.kind()).err(), Some(ErrorKind::NotFound));
        fork.restart();
    }
}

#[test]
fn case_06_a_whiteout_hides_one_path_only() {
    let fork = same_as_plain("mkdir sub; echo 1 > x; echo 2 > sub/x", "rm x; find . | sort; cat sub/x");
    assert!(fork.join("sub/x").exists());
}

#[test]
fn case_08_a_directory_made_again_holds_only_what_is_new() {
    same_as_plain("mkdir d; touch d/1 d/2", "rm d/1 d/2; rmdir d; mkdir d; touch d/x; ls d");
}

#[test]
fn case_09_what_was_deleted_stays_deleted() {
    let fork = same_as_plain("mkdir d; echo 1 > a; echo 2 > d/b", "rm a d/b; ls -R");
    fork.restart();
    assert!(!fork.join("a").exists() && !fork.join("d/b").exists());
}

#[test]
fn case_11_a_deletion_that_cannot_be_recorded_fails() {
    let image = Image::ext4(8);
    let treefork = Treefork::with_store(image.path().join("store"));
    let base = treefork.env().dir("base");
    treefork.env().sh(&base, "for n in $(seq 200); do mkdir $n; echo $n > $n/f; done");
    let fork = Fork::of(treefork, base);
    // Whatever room there is goes, down to the last block.
    let full = image.path().join("full");
    let fill = format!("dd if=/dev/zero of={0} bs=64k; dd if=/dev/zero of={0}2 bs=1k; true", full.display());
    fork.env().command("sh").args(["-c", &fill]).done();
    let deleted: Vec<bool> = (1..=200).map(|n| fs::remove_file(fork.join(format!("{n}/f"))).is_ok()).collect();
    let check = |when: &str| {
        for (n, deleted) in (1..=200).zip(&deleted) {
            let there = fs::read_to_string(fork.join(format!("{n}/f")));
            let wanted = if *deleted { None } else { Some(format!("{n}\n")) };
            assert_eq!(there.ok(), wanted, "file {n} {when}");
        }
    };
    assert!(deleted.iter().any(|deleted| !deleted), "the disk was not full");
    check("on the full disk");
    fork.env().sh(&image.path(), "rm full*");
    check("with room again");
    fork.restart();
    check("after a restart");
}

#[test]
fn case_12_exactly_the_file_with_a_newline_is_gone() {
    same_as_plain("touch $'a\\nb' a b", "rm $'a\\nb'; ls");
}

#[test]
fn case_13_exclusive_creation_on_a_deleted_name_succeeds_once() {
    let fork = Fork::new("echo base > f");
    fs::remove_file(fork.join("f")).expect("it is there");
    let create =
        || OpenOptions::new().write(true).create_new(true).open(fork.join("f")).map(drop).map_err(|e| e.kind());
    assert_eq!(create(), Ok(()));
    assert_eq!(create(), Err(ErrorKind::AlreadyExists));
    assert_eq!(fs::read(fork.join("f")).expect("it was made"), b"");
}
