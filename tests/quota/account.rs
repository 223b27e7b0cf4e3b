//! The account: names and orphans, what a restart finds, and whatever is done in what order.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;

use super::*;

#[test]
fn names_count_once_and_an_open_file_until_it_is_closed() {
    let site =
        Limited::new(&["--max-size", "4M"], "head -c 300000 /dev/zero > one; ln one two; mkdir dir; ln one dir/three");
    File::options().append(true).open(site.join("one")).and_then(|mut f| f.write_all(b"x")).expect("it fits");
    for name in ["two", "dir/three"] {
        File::options().append(true).open(site.join(name)).and_then(|mut f| f.write_all(b"x")).expect("it fits");
    }
    site.agrees();
    let file = File::create_new(site.join("file")).expect("room");
    file.write_all_at(&vec![1; MIB as usize], 0).expect("room");
    fs::hard_link(site.join("file"), site.join("link")).expect("room");
    fs::rename(site.join("link"), site.join("dir/link")).expect("room");
    site.agrees();
    let (with, files) = site.used();
    fs::remove_file(site.join("file")).expect("ours");
    fs::remove_file(site.join("dir/link")).expect("ours");
    // Deleted, and open: it goes on taking its room, and more.
    assert_eq!(site.used(), (with, files));
    file.write_all_at(&vec![1; MIB as usize], MIB).expect("room");
    assert!(site.used().0 >= with + MIB);
    refused(file.write_all_at(&vec![1; 4 * MIB as usize], 2 * MIB));
    drop(file);
    site.agrees();
    assert!(site.used().0 < with, "{:?}", site.used());
    for name in ["one", "two", "dir/three"] {
        fs::remove_file(site.join(name)).expect("ours");
    }
    fs::remove_dir(site.join("dir")).expect("empty");
    site.agrees();
    assert_eq!(site.used().1, 0);
}

#[test]
fn a_killed_server_leaves_an_account_that_the_next_one_finds() {
    let site = Limited::new(&["--max-size", "4M", "--max-files", "2000"], "head -c 300000 /dev/zero > one; ln one two");
    File::options().append(true).open(site.join("two")).and_then(|mut f| f.write_all(b"x")).expect("it fits");
    write(&site.join("file"), MIB).expect("it fits");
    let orphan = File::create_new(site.join("orphan")).expect("room");
    orphan.write_all_at(&vec![1; MIB as usize], 0).expect("room");
    fs::remove_file(site.join("orphan")).expect("ours");
    site.treefork.restart("fork");
    drop(orphan);
    site.agrees();
    refused(write(&site.join("more"), 3 * MIB));
    write(&site.join("more"), 2 * MIB).expect("the orphan's room is there again");
    site.agrees();
    // So many that they are counted while the fork is in use already.
    for n in 0..1500 {
        let dir = site.join(format!("d{}", n % 7));
        fs::create_dir_all(&dir).expect("room");
        File::create_new(dir.join(n.to_string())).expect("room");
    }
    let before = site.used();
    site.treefork.kill_server();
    assert_eq!(site.used(), before, "of a fork that is not mounted");
    site.treefork.ok(["path", "fork"]);
    File::create_new(site.join("first")).expect("what waits for the count goes on after it");
    site.agrees();
    assert_eq!(site.used().1, before.1 + 1);
    let left = 2000 - site.used().1;
    let made = (0..3000).take_while(|n| File::create_new(site.join(format!("n{n}"))).is_ok()).count();
    assert_eq!(made as u64, left);
}

#[test]
fn a_fork_at_its_limit_merges_and_goes() {
    let site =
        Limited::new(&["--max-size", "256K", "--max-files", "20"], "head -c 100000 /dev/zero > one; echo x > gone");
    site.fork("second", &["--max-files", "1"]);
    File::options().append(true).open(site.join("one")).and_then(|mut f| f.write_all(b"x")).expect("it fits");
    while write(&site.join(format!("n{}", site.used().1)), 20_000).is_ok() {}
    fs::remove_file(site.join("gone")).expect("removing is never refused");
    site.treefork.ok(["diff", "fork"]);
    site.treefork.ok(["merge", "fork", "--keep"]);
    assert_eq!(fs::metadata(site.base.join("one")).expect("there").len(), 100_001);
    assert!(!site.base.join("gone").exists());
    // Merged, it begins anew.
    site.agrees();
    assert_eq!(site.used().1, 0);
    write(&site.join("after"), 100_000).expect("there is room again");
    site.treefork.ok(["remove", "fork"]);
    site.treefork.ok(["remove", "second"]);
}

#[test]
fn git_fails_cleanly_at_the_limit_and_works_again_afterwards() {
    let site = Limited::new(&["--max-size", "4M"], "git init -q; echo one > file; git add -A; git commit -qm one");
    let git = |args: &[&str]| {
        let mut command = site.env().command("git");
        command.args(args).current_dir(&site.path).done()
    };
    site.env().sh(&site.path, "head -c 600000 /dev/urandom > work; echo two >> file");
    let filler = File::create_new(site.join("filler")).expect("room");
    let mut end = 0;
    while filler.write_all_at(&[1; 4096], end).is_ok() {
        end += 4096;
    }
    drop(filler);
    let failed = git(&["add", "work", "file"]);
    assert!(!failed.status.success(), "there was no room for it");
    assert!(failed.complaint().contains("quota"), "{}", failed.complaint());
    assert_eq!(git(&["log", "--oneline"]).text().lines().count(), 1);
    fs::remove_file(site.join("filler")).expect("ours");
    for args in [&["add", "work", "file"][..], &["commit", "-qm", "two"], &["fsck", "--strict"]] {
        let done = git(args);
        assert!(done.status.success(), "{args:?}: {}", done.complaint());
    }
    assert_eq!(git(&["status", "--porcelain"]).text(), "");
    site.agrees();
}

#[test]
fn what_a_mapping_stores_beyond_the_limit_is_refused_where_it_is_synced() {
    let site = Limited::new(&["--max-size", "256K"], "true");
    let script = "import mmap, os, errno\n\
                  file = os.open('file', os.O_RDWR | os.O_CREAT)\n\
                  os.ftruncate(file, 1 << 20)\n\
                  whole = mmap.mmap(file, 1 << 20)\n\
                  whole[0:4096] = b'x' * 4096\n\
                  whole.flush()\n\
                  whole[4096:1 << 20] = b'x' * ((1 << 20) - 4096)\n\
                  try: whole.flush()\n\
                  except OSError as e: print(errno.errorcode[e.errno])\n";
    let said = site.env().command("python3").args(["-c", script]).current_dir(&site.path).ok().text();
    assert_eq!(said, "EDQUOT");
    site.agrees();
    site.treefork.restart("fork");
    let content = fs::read(site.join("file")).expect("there");
    assert!(content[..4096].iter().all(|&byte| byte == b'x'));
    write(&site.join("other"), 16 * KIB).expect("the fork goes on");
}

/// It counts, and is never refused: without it work would be done in the repository outside.
#[test]
fn a_git_directory_that_leads_out_of_the_base_counts_when_it_is_there() {
    // So much lies beside it that it is not found when the fork is made.
    let script = "mkdir -p aside/{1..400}; for n in a b; do mkdir -p d/e/e/p/$n; git init -q --separate-git-dir ../$n.git d/e/e/p/$n; \
                  head -c 200000 /dev/urandom > d/e/e/p/$n/file; git -C d/e/e/p/$n add file; \
                  git -C d/e/e/p/$n commit -qm one; done";
    let site = Limited::new(&["--max-size", "300K"], script);
    site.agrees();
    let before = site.used().0;
    for name in ["a", "b"] {
        assert!(site.join("d/e/e/p").join(name).join(".git").is_dir(), "the fork's own");
        site.agrees();
    }
    assert!(site.used().0 > before + 400_000 && site.used().0 > 300 * KIB, "{before} {:?}", site.used());
    refused(File::create_new(site.join("d/e/e/p/more")));
    assert_eq!(site.env().git(&site.join("d/e/e/p/a"), ["status", "--porcelain"]), "");
}
