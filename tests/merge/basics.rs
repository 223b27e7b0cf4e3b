//! What a merge brings over, and what it refuses.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

use super::kit::Work;
use crate::common::{Look, Run, Tree, assert_same};

const BASE: &str =
    "mkdir -p d/sub empty; seq 9 > f; seq 99 > d/x; seq 5 > d/sub/y; ln -s f l; ln d/x hard; echo gone > g";

/// Work of every kind, which leaves a tree that differs from [`BASE`] in all of it.
const EVERYTHING: &str = r#"
    echo more >> f; chmod 750 f; setfattr -n user.a -v b f
    echo linked >> hard
    mv d e; echo new > e/new; rm e/sub/y; chmod 711 e/sub
    rm g; mkdir g; echo in > g/in; mkdir -p n/m/o; echo deep > n/m/o/p; chmod 700 n/m
    rmdir empty; ln -sfn nowhere l; ln -s /etc out
    mkfifo fifo; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")'
    touch -d '2001-02-03 04:05:06.789' f e/new; touch -h -d '2002-02-02' out
    printf x > $'a\nb'; printf y > $'\xff\xfe'; printf z > "$(printf 'n%.0s' {1..255})"
    ln n/m/o/p n/twin"#;

#[test]
fn the_parent_becomes_what_the_fork_shows() {
    let work = Work::plain(BASE);
    let fork = work.fork("all", EVERYTHING);
    let wanted = Look::default().at(&fork);
    let report = work.merge("all", &[]);
    assert_eq!(report["removed"], true, "{report}");
    assert_same(&wanted, &Tree::at(&work.base), "the base after the merge");
    assert!(!fork.exists());
    assert_eq!(work.leftovers(), Vec::<std::path::PathBuf>::new());
    let special = |name: &str| std::fs::symlink_metadata(work.base.join(name)).expect("merged").file_type();
    assert!(special("fifo").is_fifo() && special("sock").is_socket());
    assert_eq!(
        std::fs::metadata(work.base.join("e/x")).expect("merged").ino(),
        std::fs::metadata(work.base.join("hard")).expect("merged").ino()
    );
}

/// Renamed directories in places that the merge makes itself, and changes inside of them, with a sibling looking on.
#[test]
fn renamed_directories_go_where_nothing_was() {
    let cases = [
        ("mkdir d; echo 1 > d/x", "mkdir e; mv d e/a; echo 2 >> e/a/x"),
        ("mkdir d; echo 1 > e", "rm e; mkdir e; mv d e/a; mkdir e/a/n; chmod 700 e/a"),
        ("mkdir -p d e/a", "mv e f; mkdir e; mv d e/a"),
        (
            "mkdir -p d/x/1 e/a/1",
            "mkdir -p n/m; mv d n/m; mv e n/m/d; mv n/m/d/e/a n/a; rmdir n/m/d/x/1; chmod 700 n/a",
        ),
        ("mkdir -p d/s", "mv d e; chmod 700 e/s; setfattr -n user.a -v b e"),
        ("mkdir -p d/s", "mv d e; mkdir d; mv e/s d/s; chmod 711 d/s"),
    ];
    for (base, fork) in cases {
        let work = Work::plain(base);
        let sibling = work.fork("sibling", "true");
        let before = Look::default().ino().at(&sibling);
        let wanted = Look::default().at(&work.fork("f", fork));
        work.merge("f", &[]);
        assert_same(&wanted, &Tree::at(&work.base), fork);
        assert_same(&before, &Look::default().ino().at(&sibling), fork);
        work.treefork.ok(["remove", "sibling"]);
    }
}

/// Directories with something in them give way to links, at whose places nothing is to be synced or dated.
#[test]
fn directories_give_way_to_links() {
    let work = Work::plain("mkdir -p d/s/t e; echo 1 > d/s/t/f; echo 2 > d/x; echo 3 > e/y");
    let wanted = Look::default().at(&work.fork("l", "rm -r d; ln -s e d; rm -r e; echo file > e"));
    work.merge("l", &[]);
    assert_same(&wanted, &Tree::at(&work.base), "the base after the merge");
}

/// A kept fork forgets what went with a merge, so that something new at the same place is just new.
#[test]
fn a_kept_fork_makes_anew_what_it_deleted() {
    let cases = [
        ("rm d/x; rm -r d", "mkdir d; echo 2 > d/x"),
        ("rm -r d; mkdir d", "echo 2 > d/x"),
        ("echo more >> d/x; rm -r d", "mkdir d; echo 2 > d/x"),
        ("rm d/sub/y; mv d q; rmdir q/sub", "mkdir -p d/sub q/sub; echo 2 > d/sub/y; echo 3 > q/sub/y"),
        ("echo 1 >> d/x; mv d t; mv e d; mv t e", "rm e/x; mv d t; mv e d; mv t e; echo 2 > d/x"),
    ];
    for (first, then) in cases {
        let work = Work::plain("mkdir -p d/sub e; seq 5 > d/sub/y; seq 9 > d/x; echo z > e/z");
        let fork = work.fork("k", first);
        work.merge("k", &["--keep"]);
        work.treefork.env().sh(&fork, then);
        let wanted = Look::default().at(&fork);
        work.merge("k", &["--keep"]);
        assert_same(&wanted, &Tree::at(&work.base), then);
        assert_same(&wanted, &Look::default().at(&fork), then);
    }
}

/// Killed between the end of the merge and the end of the command, a kept fork does not go back to the old state.
#[test]
fn a_kept_fork_goes_on_although_the_merge_is_killed_at_its_end() {
    for point in ["merge.recorded", "merge.strip", "merge.clear", "merge.close"] {
        let work = Work::plain(BASE);
        work.fork("sibling", "true");
        let fork = work.fork("k", "echo more >> f; rm g");
        let wanted = Look::default().at(&fork);
        let mut merge = work.treefork.command(["merge", "--keep", "k"]);
        assert!(!merge.env("TREEFORK_FAULT", format!("{point}:kill")).done().status.success());
        work.treefork.ok(["path", "k"]);
        assert_same(&wanted, &Look::default().at(&fork), point);
        work.treefork.env().sh(&fork, "echo again >> f");
        work.merge("k", &[]);
        assert_eq!(work.in_base("tail -n 2 f"), "more\nagain", "{point}");
    }
}

/// What landed in another tree is still a change against the base.
#[test]
fn a_fork_that_is_kept_loses_nothing_to_another_tree() {
    let work = Work::plain(BASE);
    let other = work.treefork.env().join("other");
    let into = other.to_str().expect("text");
    work.in_base(&format!("cp -a . {into}"));
    let sibling = work.fork("sibling", "echo sibling > d/sub/y");
    let fork = work.fork("f", "echo more >> f; mv d e; echo new > e/new; rm g");
    work.merge("sibling", &[]);
    assert!(!sibling.exists());
    let before = Look::default().at(&fork);
    work.merge("f", &["--keep", "--into", into]);
    assert_same(&before, &Look::default().at(&fork), "the kept fork");
    assert_eq!(work.treefork.env().sh(&other, "ls; tail -n 1 f; ls e"), "e\nempty\nf\nhard\nl\nmore\nnew\nsub\nx");
    work.merge("f", &[]);
    assert_eq!(work.in_base("ls; tail -n 1 f; cat e/sub/y e/new"), "e\nempty\nf\nhard\nl\nmore\nsibling\nnew");
}

/// A further name of a file of the base stays one, whether or not the file itself was changed.
#[test]
fn new_names_of_old_files_stay_names() {
    for more in ["true", "chmod 600 f", "ln -f new g; rm old"] {
        let work = Work::plain("echo 1 > f; echo 1 > g; echo 2 > h; ln h old");
        let wanted = Look::default().at(&work.fork("l", &format!("ln f new; ln h newer; {more}")));
        work.merge("l", &[]);
        assert_same(&wanted, &Tree::at(&work.base), more);
        let same =
            work.in_base("test f -ef new && test h -ef newer && { test ! -e old || test h -ef old; } && echo yes");
        assert_eq!(same, "yes", "after {more}");
    }
}

#[test]
fn nothing_of_ours_stays_on_what_was_merged() {
    let work = Work::plain(BASE);
    work.fork("all", EVERYTHING);
    work.merge("all", &[]);
    let marked = work.in_base("getfattr -R -h -d -m 'user.overlay' . 2> /dev/null || true");
    assert_eq!(marked, "");
}

#[test]
fn a_clean_fork_touches_nothing() {
    let work = Work::plain(BASE);
    work.fork("clean", "cat f d/x > /dev/null; ls -R > /dev/null");
    let before = Look::default().ino().ctime().at(&work.base);
    let report = work.merge("clean", &[]);
    assert_eq!((&report["merged"], &report["removed"]), (&true.into(), &true.into()), "{report}");
    assert_same(&before, &Look::default().ino().ctime().at(&work.base), "the base");
}

#[test]
fn a_conflict_writes_nothing_at_all() {
    let work = Work::plain(BASE);
    let fork = work.fork("c", "echo fork > f; echo fine > fine; rm -r d");
    work.in_base("echo parent > f; echo more > d/more");
    let before = Look::default().ino().ctime().at(&work.base);
    let mut conflicts = work.conflicts("c", &[]);
    conflicts.sort();
    let wanted = [("d/more", "new-in-deleted"), ("f", "both-changed")];
    assert_eq!(conflicts, wanted.map(|(path, why)| (path.to_owned(), why.to_owned())));
    assert_same(&before, &Look::default().ino().ctime().at(&work.base), "the base");
    assert_eq!(std::fs::read_to_string(fork.join("fine")).expect("the fork lives"), "fine\n");
    // The operator decides.
    work.merge("c", &["--resolve", "ours", "f", "--resolve", "ours", "d"]);
    assert_eq!(work.in_base("cat f; ls"), "fork\nempty\nf\nfine\ng\nhard\nl");
}

#[test]
fn deciding_for_the_parent_leaves_it_alone() {
    let work = Work::plain(BASE);
    work.fork("c", "echo fork > f; echo fine > fine");
    work.in_base("echo parent > f");
    work.merge("c", &["--resolve", "theirs", "f"]);
    assert_eq!(work.in_base("cat f fine"), "parent\nfine");
}

#[test]
fn only_some_paths_and_the_rest_later() {
    let work = Work::plain(BASE);
    let fork = work.fork("part", "echo one > d/y; echo two > f; mkdir -p n/a n/b; echo 3 > n/a/3; echo 4 > n/b/4");
    let report = work.merge("part", &["--only", "d", "--only", "n/a"]);
    assert_eq!(report["removed"], false);
    assert_eq!(work.in_base("cat d/y; head -1 f; find n | sort"), "one\n1\nn\nn/a\nn/a/3");
    assert_eq!(work.treefork.env().sh(&fork, "cat d/y f n/a/3 n/b/4"), "one\ntwo\n3\n4");
    work.merge("part", &[]);
    assert_eq!(work.in_base("cat f n/b/4"), "two\n4");
}

#[test]
fn one_name_of_a_file_brings_its_other_names() {
    let work = Work::plain("mkdir d; echo 1 > d/a; ln d/a b");
    work.fork("part", "echo 2 >> d/a; echo n > d/new; ln d/new new; echo no > no");
    work.merge("part", &["--only", "d"]);
    assert_eq!(work.in_base("cat b new; stat -c %h d/a d/new; ls"), "1\n2\nn\n2\n2\nb\nd\nnew");
}

#[test]
fn a_kept_fork_goes_on_from_the_merged_state() {
    let work = Work::plain(BASE);
    let fork = work.fork("kept", EVERYTHING);
    work.merge("kept", &["--keep"]);
    assert_same(&Tree::at(&work.base), &Tree::at(&fork), "the fork after its merge");
    assert_eq!(work.merge("kept", &["--keep"])["entries"], serde_json::json!([]), "nothing left to merge");
    // Both go on, and meet again.
    work.treefork.env().sh(&fork, "echo again > e/new; rm n/twin; mv e d; echo 1 > d/2");
    work.in_base("echo parent > g/in");
    assert_eq!(std::fs::read(fork.join("g/in")).expect("reads"), b"parent\n");
    work.merge("kept", &["--keep"]);
    assert_same(&Tree::at(&fork), &Tree::at(&work.base), "the base after the second merge");
}

#[test]
fn swaps_and_chains_of_directories() {
    let work = Work::plain("mkdir -p a/i b c/d/e; echo a > a/f; echo b > b/f; echo e > c/d/e/f");
    let script = "mv a t; mv b a; mv t b; mv c/d/e e; mv c a/c; mv e a/c/d/e2; mkdir c; echo new > c/f";
    let fork = work.fork("swap", script);
    let wanted = Tree::at(&fork);
    work.merge("swap", &[]);
    assert_same(&wanted, &Tree::at(&work.base), "the base");
}

#[test]
fn deep_renames_carry_what_the_parent_did_inside() {
    let work = Work::plain("mkdir -p a/b; seq 9 > a/b/f; echo x > a/x");
    work.fork("move", "mv a z; echo fork >> z/x");
    work.in_base("echo parent > a/b/new; echo changed > a/b/f");
    work.merge("move", &[]);
    assert_eq!(work.in_base("find . -type f | sort; cat z/b/f z/x"), "./z/b/f\n./z/b/new\n./z/x\nchanged\nx\nfork");
}

#[test]
fn same_size_within_the_same_second_is_seen() {
    // Case 86.
    let work = Work::plain("echo aaaa > f");
    work.fork("c", "echo fork > f");
    work.in_base("t=$(stat -c %Y f); echo bbbb > f; touch -d \"@$t.5\" f");
    assert_eq!(work.conflicts("c", &[]), [("f".to_owned(), "both-changed".to_owned())]);
}

#[test]
fn diff_and_dry_run_agree() {
    let work = Work::repository(BASE);
    work.fork("d", &format!("{EVERYTHING}; mkdir -p .git/hooks; echo '#!/bin/sh' > .git/hooks/pre-commit"));
    let parse =
        |args: &[&str]| -> serde_json::Value { serde_json::from_slice(&work.treefork.ok(args).stdout).expect("JSON") };
    let (plan, diff) = (parse(&["merge", "--dry-run", "--json", "d"]), parse(&["diff", "--json", "d"]));
    assert_eq!(plan["entries"], diff["entries"]);
    assert_eq!(plan["left_out"], serde_json::json!([{"path": ".git/hooks/pre-commit", "why": "git-setting"}]));
    let text = work.treefork.ok(["diff", "--name-status", "d"]).text();
    let entries = plan["entries"].as_array().expect("a list");
    assert_eq!(text.lines().filter(|line| !line.starts_with(['-', 'G'])).count(), entries.len(), "{text}");
    assert!(text.contains("A out (leads outside, to /etc)"), "{text}");
    assert!(text.contains("(mode 644 -> 750)"), "{text}");
    let full = work.treefork.ok(["diff", "d"]);
    assert!(full.stdout.windows(6).any(|bytes| bytes == b"+more\n"), "{}", full.text());
    let forks = work.treefork.ok(["list"]).text();
    assert!(forks.contains('d'), "diff leaves the fork: {forks}");
}

#[test]
fn git_can_apply_a_diff() {
    let work = Work::repository(
        "seq 9 > f; printf 'caf\\xe9\\n1\\n' > latin; ln -s f l; ln -s f gone; : > void; seq 5 > r; seq 3 > x",
    );
    let change =
        "sed -i s/1/2/ f latin; ln -sfn r l; rm gone void; : > new; mv r 'r 2'; chmod +x x; ln -s x y; echo n > n";
    let fork = work.fork("p", &format!("{change}; chmod 600 .git/../new; mkdir empty"));
    let patch = work.treefork.ok(["diff", "p"]).stdout;
    let file = work.treefork.env().join("patch");
    std::fs::write(&file, patch).expect("ours");
    work.in_base(&format!("git apply {}", file.display()));
    let list = r"find . -path ./.git -prune -o ! -type d -printf '%p %y %l\n' -type f -exec md5sum {} ';' | sort";
    assert_eq!(work.in_base(list), work.treefork.env().sh(&fork, list));
    assert!(work.base.join("x").metadata().expect("there").permissions().mode() & 0o111 != 0);
}

#[test]
fn conflicts_previews_pairs() {
    let work = Work::plain(BASE);
    work.fork("one", "echo 1 > f; rm -r d");
    work.fork("two", "echo 2 > f");
    work.fork("three", "echo 3 > d/x");
    let done = work.treefork.command(["conflicts", "one", "two", "three"]).fails(1);
    assert_eq!(done.text(), "one two f\none three d/x");
}

#[test]
fn names_of_any_bytes_come_over_whole() {
    let work = Work::plain("mkdir $'d\\xff'; echo 1 > $'d\\xff/\\x01'");
    work.fork("n", "echo 2 > $'d\\xff/\\x01'; ln -s $'\\xfe' $'d\\xff/l'");
    work.merge("n", &[]);
    let dir = work.base.join(std::ffi::OsStr::from_bytes(b"d\xff"));
    assert_eq!(std::fs::read(dir.join("\u{1}")).expect("merged"), b"2\n");
    assert_eq!(std::fs::read_link(dir.join("l")).expect("merged").as_os_str().as_bytes(), b"\xfe");
}

#[test]
fn into_another_tree_with_the_same_content() {
    let work = Work::plain(BASE);
    let other = work.treefork.env().dir("other");
    work.treefork.env().sh(&other, &format!("cp -a {}/. .; echo own > own", work.base.display()));
    let fork = work.fork("i", EVERYTHING);
    let wanted = Look::default().without("own").at(&fork);
    let base = Tree::at(&work.base);
    work.merge("i", &["--into", other.to_str().expect("text")]);
    assert_same(&base, &Tree::at(&work.base), "the base");
    assert_same(&wanted, &Look::default().without("own").at(&other), "the other tree");
}
