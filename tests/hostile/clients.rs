//! Clients that stop answering, and requests of absurd sizes.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Fork, same_as_plain};

/// More than the server serves at a time.
#[test]
fn connections_that_say_nothing_are_dropped_when_others_wait() {
    let fork = Fork::new("echo text > file");
    let socket = fork.treefork.store().join("server.sock");
    let half_a_frame = |n: usize| {
        let mut stream = UnixStream::connect(&socket).expect("it listens");
        let said: &[u8] = [&b""[..], b"\x10\x00", b"\xff\xff\xff\x00{"][n % 3];
        stream.write_all(said).expect("it fits");
        stream
    };
    let silent: Vec<UnixStream> = (0..300).map(half_a_frame).collect();
    fork.treefork.ok(["list"]);
    fork.treefork.create(&fork.base, "another");
    assert_eq!(fork.sh("cat file; echo x > new"), "text");
    drop(silent);
}

/// Stopped in the middle of its work, with files open, locked and mapped.
#[test]
fn a_process_that_is_stopped_holds_up_nobody_else() {
    let fork = Fork::new("mkdir d; seq 1000 > d/f; echo text > file");
    let other = fork.treefork.create(&fork.base, "other");
    let script = "import fcntl, mmap, os, sys\nf = open('d/f', 'r+b'); fcntl.flock(f, fcntl.LOCK_EX)\n\
                  m = mmap.mmap(f.fileno(), 0); m[0] = 55\nos.chdir('d'); print('ready', flush=True)\n\
                  while True: m[1] = (m[1] + 1) % 100; os.pwrite(f.fileno(), b'x', 9)";
    let mut child = fork.env().command_in(&fork.path, "python3");
    let mut child = child.args(["-c", script]).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut ready = [0; 5];
    std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut ready).expect("it says so");
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("small")).expect("not 0");
    kill_process(pid, Signal::STOP).expect("ours");
    fork.sh("cat file d/f > /dev/null; echo x > new; mv d/f d/g; sync -f .");
    fork.env().sh(&other, "cat d/f > /dev/null; echo x > new");
    let said = fork.merge_refused().complaint();
    assert!(said.contains(&child.id().to_string()), "who it is: {said}");
    fork.treefork.ok(["merge", "other"]);
    fork.let_base_change();
    fork.treefork.ok(["remove", "--force", "fork"]);
    child.kill().expect("ours");
    child.wait().expect("ours");
}

/// What each call answers, as on a plain directory.
const ABSURD: &str = r#"
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
HUGE = [2**31 - 1, 2**31, 2**32 + 1, 2**40, 2**62, 2**63 - 1]
def say(what, call):
    try:
        print(what, call())
    except OSError as e:
        print(what, errno.errorcode[e.errno])
    except (OverflowError, ValueError, MemoryError) as e:
        print(what, type(e).__name__)
file = os.open("file", os.O_RDWR)
for n in HUGE:
    say(f"pread {n}", lambda: os.pread(file, 10, n - 10))
buffer = ctypes.create_string_buffer(100)
for n in [2**31, 2**40, 2**63 - 1]:
    say(f"read {n}", lambda: libc.pread(file, buffer, ctypes.c_size_t(n), ctypes.c_long(0)) and "some")
for n in [2**62, 2**63 - 2]:
    say(f"pwrite {n}", lambda: os.pwrite(file, b"x", n))
    say(f"truncate {n}", lambda: os.truncate("file", n))
for n in [0, 1, 255, 256, 1000, 4095]:
    say(f"name {n}", lambda: os.mkdir("n" * n))
    say(f"link {n}", lambda: os.symlink("t" * n, f"link{n}"))
for n in [1, 200, 256, 1000]:
    say(f"attribute {n}", lambda: os.setxattr("file", "user." + "a" * n, b"v"))
for n in [1, 65536, 65537, 2**24]:
    say(f"value {n}", lambda: os.setxattr("file", "user.v", b"v" * n))
for n in [0, 1, 2]:
    say(f"list {n}", lambda: libc.listxattr(b"file", buffer, ctypes.c_size_t(n)) > 0)
say("allocate", lambda: os.posix_fallocate(file, 2**63 - 2, 1))
for n in [0, 1, 23]:
    dir = os.open(".", os.O_RDONLY)
    say(f"getdents {n}", lambda: libc.syscall(217, dir, buffer, ctypes.c_uint(n)) > 0)
say("times", lambda: os.utime("file", ns=(-1, 2**62)))
say("owner", lambda: os.chown("file", 2**32 - 2, 2**32 - 2))
print(os.stat("file").st_size, sorted(name[:9] for name in os.listdir(".")))
"#;

#[test]
fn requests_of_absurd_sizes_are_answered_as_on_a_plain_directory() {
    let fork = same_as_plain("echo text > file", &format!("python3 - <<'E'\n{ABSURD}\nE"));
    assert_eq!(fork.env().sh(&fork.base, "cat file"), "text");
}
