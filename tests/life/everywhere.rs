//! The whole command set, as root and as an ordinary user, with the store and the base on every file system that people
//! have.

use std::os::unix::fs::chown;

use super::user::as_user;
use crate::common::env::USER;
use crate::common::{Fs, Image, Run, Treefork};

const COMMANDS: &str = r#"
    t() { "$BIN" --store "$STORE" "$@"; }
    mkdir -p "$BASE/sub" "$BASE/dir"; cd "$BASE"
    echo one > file; echo two > sub/deep; ln -s file link; ln file hard; echo x > dir/x; : > gone
    fork=$(t create . --label a --strategy overlay)
    [ "$(cat "$fork/sub/deep")" = two ]
    [ "$(stat -c %i "$fork/file")" = "$(stat -c %i file)" ]
    cd "$fork"
    echo changed >> file; [ "$(cat hard)" = "$(cat file)" ]
    rm gone; mv dir moved; mkdir dir; ln -sfn sub link; echo new > sub/new; mkfifo pipe; chmod 600 sub/deep
    rm -r sub; mkdir sub; echo two > sub/deep; mknod device c 0 0 2> complaint && exit 1; rm complaint
    cd "$BASE"
    [ "$(cat file; ls)" = "one
dir
file
gone
hard
link
sub" ]
    t list | grep -q 'a .*live'
    t show a > shown; grep -q overlay shown; rm shown
    t log a | grep -q live
    t diff a --name-status | grep -q '^D gone'
    t exec a -- sh -c 'echo run > ran; cat file' | grep -q changed
    t serve --stop
    t list | grep -q 'a .*stale'
    [ "$(t path a)" = "$fork" ]
    [ "$(cat "$fork/ran"; ls "$fork/dir" "$fork/moved" "$fork/sub")" = "run
$fork/dir:

$fork/moved:
x

$fork/sub:
deep" ]
    sibling=$(t create . --label b --strategy overlay)
    t merge a --keep
    [ "$(cat file)" = "one
changed" ]
    [ "$(stat -c %i file)" = "$(stat -c %i hard)" ]
    [ "$(ls | tr '\n' ' ')" = "dir file hard link moved pipe ran sub " ]
    [ "$(cat "$sibling/file")" = one ]; [ -e "$sibling/gone" ]; [ "$(ls "$sibling/dir")" = x ]
    echo otherwise > "$sibling/file"
    if t merge b > conflicts; then exit 1; fi
    grep -q '^C file' conflicts; rm conflicts
    t remove a b
    t run --strategy overlay --merge -- sh -c 'echo made > by-run'
    [ "$(cat by-run)" = made ]
    bash -c '"$BIN" --store "$STORE" create . --label c --strategy overlay; :'
    echo work > "$(t path c)/work"
    t gc --min-age 0s --unmerged | grep -q 'c .*trashed'
    t restore c
    [ "$(cat "$(t path c)/work")" = work ]
    t remove c
    t doctor > findings || [ $? = 1 ]; rm findings
    [ -z "$(ls "$STORE/forks" "$STORE/pending" | grep -v : | tr -d '\n')" ]
    t serve --stop
    if grep -q "$STORE" /proc/self/mountinfo; then exit 1; fi"#;

/// Runs all commands as root and as an ordinary user; the base lies on the same file system, or apart.
fn check(fs: Fs, together: bool) {
    let treefork = Treefork::new();
    let image = Image::new(fs, 64);
    for user in [false, true] {
        let who = if user { "user" } else { "root" };
        let store = image.dir(format!("store-{who}"));
        let base = if together { image.dir(who) } else { treefork.env().dir(who) };
        let mut command = if user {
            for dir in [&store, &base] {
                chown(dir, Some(USER), Some(USER)).expect("root may");
            }
            as_user(&treefork, 0o666, COMMANDS)
        } else {
            let mut command = treefork.env().command("bash");
            command.args(["-euo", "pipefail", "-c", COMMANDS]);
            command
        };
        command.env("BIN", crate::common::cli::BINARY).env("STORE", &store).env("BASE", &base);
        command.ok();
    }
}

#[test]
fn with_the_store_on_ext4() {
    check(Fs::Ext4, false);
    check(Fs::Ext4, true);
}

#[test]
fn with_the_store_on_xfs() {
    check(Fs::Xfs, true);
}

#[test]
fn with_the_store_on_btrfs() {
    check(Fs::Btrfs, true);
}

#[test]
fn with_the_store_on_tmpfs() {
    check(Fs::Tmpfs, false);
}

#[test]
fn with_the_store_on_overlayfs() {
    check(Fs::Overlay, false);
    check(Fs::Overlay, true);
}
