//! An ordinary user: with the FUSE helper, and on a machine whose `/dev/fuse` is closed to everybody but root.

use std::process::Command;

use crate::common::env::USER;
use crate::common::{Run, Treefork};

/// A command as an ordinary user, in a mount namespace with a `/dev/fuse` of this mode.
pub(crate) fn as_user(treefork: &Treefork, device_mode: u32, script: &str) -> Command {
    // Everything of the user's is in a directory of the user's own.
    let home = treefork.env().dir("user");
    std::os::unix::fs::chown(&home, Some(USER), Some(USER)).expect("root may");
    let setup = format!(
        r#"set -eu
        mknod "$FAKE" c 10 229 2>/dev/null || :
        chmod {device_mode:o} "$FAKE"
        mount --bind "$FAKE" /dev/fuse
        cd "$HOME"
        exec setpriv --reuid {USER} --regid {USER} --clear-groups --inh-caps=-all bash -euc "$0""#
    );
    let mut command = treefork.env().command("unshare");
    command.args(["-m", "bash", "-c", &setup, script]);
    command.env("FAKE", treefork.env().join("fuse")).env("HOME", &home).env("TMPDIR", &home);
    command.env("BIN", crate::common::cli::BINARY).env("TREEFORK_STORE", home.join("store"));
    command
}

/// The whole command set through `fusermount3`.
#[test]
fn with_the_helper() {
    let treefork = Treefork::new();
    let script = r#"
        mkdir -p base/sub; echo one > base/file; echo two > base/sub/deep
        fork=$("$BIN" create base --label a --strategy overlay)
        [ "$(stat -c %U:%a "$fork/file")" = "$(stat -c %U:%a base/file)" ]
        echo changed > "$fork/file"; rm "$fork/sub/deep"; mkdir "$fork/new"; ln -s file "$fork/new/link"
        [ "$(cat base/file base/sub/deep)" = "one
two" ]
        "$BIN" list | grep -q live
        "$BIN" show a --json | grep -q '"mount": "alive"'
        server=$(sed 's/.*"pid":\([0-9]*\).*/\1/' store/server.lock)
        kill -9 "$server"
        while kill -0 "$server" 2>/dev/null; do :; done
        "$BIN" list | grep -q stale
        [ "$("$BIN" path a)" = "$fork" ]
        [ "$(cat "$fork/file"; ls "$fork/new" "$fork/sub")" = "changed
$fork/new:
link

$fork/sub:" ]
        "$BIN" log a | grep -q live
        "$BIN" doctor
        "$BIN" remove a
        ! grep -q treefork /proc/self/mountinfo
        [ -z "$(ls store/forks)" ]
        "$BIN" serve --stop"#;
    as_user(&treefork, 0o666, script).ok();
}

/// A directory of the base that the user may not write to: nothing of the merge lands, and the fork is whole.
#[test]
fn a_merge_that_may_not_write_in_the_middle() {
    let treefork = Treefork::new();
    let script = r#"
        mkdir -p base/a base/closed; for f in base/a/f base/closed/f base/z; do echo one > $f; done
        fork=$("$BIN" create base --label a --strategy overlay)
        for f in a/f closed/f z; do echo more >> "$fork/$f"; done
        chmod 555 base/closed
        before=$(find base -printf '%p %m %i %T@\n'; cat base/a/f base/closed/f base/z)
        if "$BIN" merge a 2> complaint; then exit 1; fi
        grep -q 'closed/f.*Permission denied' complaint
        [ "$before" = "$(find base -printf '%p %m %i %T@\n'; cat base/a/f base/closed/f base/z)" ]
        [ "$(cat "$fork/a/f" "$fork/closed/f")" = "one
more
one
more" ]
        chmod 755 base/closed
        "$BIN" merge a
        [ "$(cat base/closed/f base/z)" = "one
more
one
more" ]
        "$BIN" serve --stop"#;
    as_user(&treefork, 0o666, script).ok();
}

/// What its owner may neither read nor write is as on the base, and does not keep anybody from the rest of the fork.
#[test]
fn objects_that_are_closed_to_their_owner() {
    let treefork = Treefork::new();
    let script = r#"
        mkdir -p base/dir base/ro base/plain; echo 1 > base/dir/1; echo 2 > base/file; echo 3 > base/ro/f; echo 4 > base/plain/x
        chmod 555 base/ro
        cp -a base copy
        fork=$("$BIN" create base --label a --strategy overlay)
        cat > steps <<'END'
try() { "$@" > /dev/null 2>&1 && echo "did   $*" || echo "cannot $*"; }
look() { ls -l | awk 'NR > 1 { print $1, $NF }'; }
try mkdir -m 555 new555; try mkdir -m 0 new0
try mv ro ro2; try chmod 755 ro2; try chmod 555 ro2; try touch ro2/more
try chmod 0 file; try cat file; try stat file; try mv file file2
try chmod 0 plain; try stat plain; try mv plain plain2; try ls plain2
look
try rmdir new0; try rmdir new555
try touch n; try chmod 200 n; try mv n n2; try sh -c 'echo more >> n2'
try mkdir closed; try touch closed/x; try chmod 0 closed; look; try rmdir closed
try mkdir empty; try chmod 0 empty; try mv -T ro2 empty; try rmdir empty
try chmod 100 dir; try stat dir; try cat dir/1; look
END
        (cd copy; bash ../steps) > expected
        (cd "$fork"; bash "$OLDPWD/steps") > got
        diff expected got
        server=$(sed 's/.*"pid":\([0-9]*\).*/\1/' store/server.lock)
        kill -9 "$server"
        while kill -0 "$server" 2>/dev/null; do :; done
        "$BIN" path a > /dev/null
        look() { (cd "$1"; find . ! -name . -printf '%p %m %s\n' 2> /dev/null | sed 's/ [0-9]*$//' | sort); }
        diff <(look copy) <(look "$fork")
        ! "$BIN" merge a 2> complaint
        grep -q 'chmod -R u+rwX' complaint
        chmod -R u+rwX copy "$fork"
        # A merge takes the way through its stage, as nobody may take a closed directory of the base to another one.
        mv copy/empty copy/ro; mv "$fork/empty" "$fork/ro"
        diff <(look copy) <(look "$fork")
        "$BIN" merge a
        diff <(look copy) <(look base)
        "$BIN" serve --stop"#;
    as_user(&treefork, 0o666, script).ok();
}

/// Where only root may open the device, not even the helper can mount for a user: that is said, with the remedy.
#[test]
fn with_a_device_that_is_closed() {
    let treefork = Treefork::new();
    let script = r#"
        mkdir -p base; echo one > base/file
        if "$BIN" create base --strategy overlay 2> complaint; then exit 1; fi
        grep -q '^treefork: .*/dev/fuse is closed to this user' complaint
        grep -q '^hint: .*chmod 666 /dev/fuse' complaint
        [ -z "$(ls store/forks store/pending | grep -v : | tr -d '\n')" ]
        if "$BIN" doctor > findings; then exit 1; fi
        grep -q 'bad.*fuse' findings"#;
    as_user(&treefork, 0o600, script).ok();
}

/// Root in a container without CAP_SYS_ADMIN: no mount, so a copy, and it says why.
#[test]
fn root_that_may_not_mount() {
    let treefork = Treefork::new();
    let base = super::small_base(&treefork, "base");
    let script = r#"
        fork=$("$BIN" create "$BASE" --label a 2> complaint)
        grep -q '^treefork: made as a copy: overlay is not possible here: ' complaint
        [ "$(cat "$fork/file")" = one ]
        "$BIN" show a --json | grep -q '"strategy": "copy"'
        "$BIN" show a | grep -q 'refused.*overlay'
        if "$BIN" create "$BASE" --strategy overlay; then exit 1; fi
        if "$BIN" doctor > findings; then exit 1; fi
        grep -q 'bad.*fuse.*CAP_SYS_ADMIN' findings
        "$BIN" remove a
        [ -z "$(ls store/forks store/pending | grep -v : | tr -d '\n')" ]"#;
    let mut command = treefork.env().command("setpriv");
    command.args(["--bounding-set", "-sys_admin", "--inh-caps=-all", "--", "bash", "-euc", script]);
    command.env("BIN", crate::common::cli::BINARY).env("BASE", &base).ok();
    assert_eq!(std::fs::read_to_string(base.join("file")).expect("readable"), "one\n");
}
