//! Metadata, permissions, locks.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::process::Stdio;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};

use crate::common::{Fork, Run, same_as_plain};

#[test]
fn case_55_what_is_built_is_executable() {
    let base = "mkdir -m 710 d; mkdir -m 2750 d/e; echo 'int main(void) { return 0; }' > main.c; umask 000";
    let work = "umask 027; gcc -o prog main.c; ./prog; install -m755 prog d/e/inst; d/e/inst; mkdir -p d/e/f/g; : > d/e/f/h; mkdir -m 777 d/m
        stat -c '%n %a' prog d d/e d/e/inst d/e/f d/e/f/g d/e/f/h d/m";
    same_as_plain(base, work);
}

#[test]
fn case_56_set_group_id_and_default_acls_are_inherited() {
    let base = "mkdir d a; chgrp 8 d; chmod 2775 d; setfacl -d -m u:7:rwx,g::rx,o::- a";
    let work = "umask 077; touch d/f; mkdir d/sub; touch a/f; mkdir a/sub; ln -s x a/l; echo x > a/sub/g
        stat -c '%n %a %g' d/f d/sub a/f a/sub a/sub/g; getfacl a a/f a/sub a/sub/g";
    same_as_plain(base, work);
    // The same over whiteouts.
    same_as_plain(&format!("{base}; touch d/f a/f"), &format!("rm d/f a/f; {work}"));
}

#[test]
fn case_59_copying_up_keeps_times() {
    let fork = Fork::new(
        "mkdir -p d/sub; echo x > d/sub/f; touch -d @1234567890.123456789 d/sub/f; touch -d @1234567891.987654321 d/sub d .",
    );
    let times = |name: &str| {
        let meta = fork.join(name).metadata().expect("it is there");
        (meta.mtime(), meta.mtime_nsec())
    };
    let before = ["d/sub/f", "d/sub", "d", ""].map(times);
    assert_eq!(before[0], (1_234_567_890, 123_456_789));
    fork.sh("chmod 600 d/sub/f");
    assert_eq!(before, ["d/sub/f", "d/sub", "d", ""].map(times), "chmod");
    fork.sh("chown -R 7:8 .");
    assert_eq!(before, ["d/sub/f", "d/sub", "d", ""].map(times), "chown -R");
    fork.restart();
    assert_eq!(before, ["d/sub/f", "d/sub", "d", ""].map(times), "after a restart");
}

#[test]
fn case_61_locks_exclude_across_a_copy_up() {
    let fork = Fork::new("echo base > f");
    let path = fork.join("f");
    let open = || OpenOptions::new().read(true).write(true).open(&path).expect("it is there");
    let (one, two) = (open(), open());
    rustix::fs::flock(&one, FlockOperation::LockExclusive).expect("it is free");
    fork.sh("echo more >> f");
    let try_lock = |file: &File| rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(try_lock(&two), Err(rustix::io::Errno::AGAIN));
    assert_eq!(try_lock(&open()), Err(rustix::io::Errno::AGAIN), "opened after the copy-up");
    drop(one);
    assert_eq!(try_lock(&two), Ok(()));
    let script = "import fcntl, os, sys
f = open('g', 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); os.write(1, b'locked'); sys.stdin.read(1)";
    fork.sh("echo > g");
    let mut holder = fork.env().command_in(&fork.path, "/usr/bin/python3");
    let holder = holder.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut holder = holder.expect("python starts");
    let mut said = [0; 6];
    std::io::Read::read_exact(holder.stdout.as_mut().expect("a pipe"), &mut said).expect("it takes the lock");
    let other = "import fcntl
try: fcntl.lockf(open('g', 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB); print('taken')
except BlockingIOError: print('held')";
    let mut check = fork.env().command_in(&fork.path, "/usr/bin/python3");
    assert_eq!(check.args(["-c", other]).ok().text(), "held");
    drop(holder.stdin.take());
    holder.wait().expect("our own child");
    assert_eq!(check.ok().text(), "taken");
}

#[test]
fn case_63_rarer_calls_are_right_or_refused_at_once() {
    let fork = Fork::new("head -c 100000 /dev/zero | tr '\\0' x > f; mkdir d");
    // O_TMPFILE: works, or says at once that it does not.
    match rustix::fs::open(fork.join("d"), OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o600)) {
        Ok(fd) => {
            rustix::io::write(&fd, b"tmp").expect("there is room");
            let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
            rustix::fs::linkat(rustix::fs::CWD, name, rustix::fs::CWD, fork.join("d/named"), AtFlags::SYMLINK_FOLLOW)
                .expect("it gets a name");
            assert_eq!(fs::read(fork.join("d/named")).expect("it has one"), b"tmp");
        }
        Err(e) => assert!([rustix::io::Errno::OPNOTSUPP, rustix::io::Errno::ISDIR].contains(&e), "{e}"),
    }
    fork.sh("fallocate --punch-hole --keep-size -o 4096 -l 4096 f; stat -c %s f; od -An -tx1 -j4096 -N4 f");
    assert_eq!(fork.sh("stat -c %s f; od -An -tx1 -j4095 -N2 f"), "100000\n 78 00");
    fork.sh("fallocate --keep-size -l 1M f; test $(stat -c %s f) = 100000; fallocate -l 200000 f; test $(stat -c %s f) = 200000");
    fork.sh("cp --reflink=auto f g; cmp f g; cp --sparse=always f h; cmp f h");
    match OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(fork.join("f")) {
        Ok(file) => drop(file),
        Err(e) => assert_eq!(e.raw_os_error(), Some(libc::EINVAL)),
    }
    assert!(fork.join("f").metadata().expect("there").blksize() > 0);
    assert_eq!(fork.sh("stat -c %s f"), "200000");
}

#[test]
fn case_58_attributes_survive_copying_up() {
    let base = "cp /bin/true f; setfattr -n user.x -v 1 f; setfacl -m u:7:rw f; setcap cap_net_raw+ep f 2>/dev/null || setfattr -n security.x -v 2 f; chmod u+s f";
    let fork = same_as_plain(base, "touch f; mv f g; getfattr -d -m - g; getfacl g; stat -c %a g");
    let as_user = |script: &str| fork.env().user_command("sh").current_dir(&fork.path).args(["-c", script]).ok();
    fork.sh("chmod 4777 g; chmod 777 .");
    as_user("echo x >> g");
    assert_eq!(fork.sh("stat -c %a g"), "777", "a write by somebody else clears set-user-id");
    fork.sh("chmod 6755 g; chown 7 g");
    assert_eq!(fork.sh("stat -c %a g"), "755", "a change of the owner clears both");
    // Of a file that was just made it is known that it has no capabilities, but only until it gets some.
    let able = "setcap cap_net_raw+ep n 2>/dev/null && getcap n; echo x >> n; getcap n";
    same_as_plain("cp /bin/true b", &format!("cp b n; {able}; : > b; cp /bin/true b; mv b n; {able}"));
}
