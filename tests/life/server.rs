//! The server: killed, told to end, left without work, and out of reach of the caller's Ctrl-C.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::process::{Pid, PidfdFlags, Signal};

use super::{assert_nothing_left, json, kill_server, listed, server_pid, small_base};
use crate::common::{Run, Treefork};

/// Case 65: the server is killed under a process with its working directory and an open file in the fork.
#[test]
fn killed_under_a_working_directory_and_an_open_file() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let fork = treefork.create(&base, "a");
    treefork.env().sh(&fork, "echo changed > file; mkdir new; echo x > new/f; rm sub/deep; sync -f .");
    let before = treefork.env().sh(&fork, "find . -printf '%p %i %m %s %T@\\n' | sort");
    // A process that waits in the fork and says what becomes of its calls.
    let script = "exec 3< file; echo ready; read go; cat <&3 >/dev/null 2>&1 && echo 'read works' || echo 'read fails'; \
                  mkdir x 2>/dev/null && echo 'mkdir works' || echo 'mkdir fails'; read end";
    let mut sitter = treefork.env().command_in(&fork, "bash");
    sitter.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut sitter = Sitter::new(sitter.spawn().expect("bash"));
    assert_eq!(sitter.line(), "ready");
    kill_server(&treefork);
    assert!(treefork.ok(["list"]).text().contains("stale"));
    assert_eq!(json(&treefork, &["show", "a"])["mount"], "stale");
    sitter.say("go");
    // Quickly, since nobody is left to wait for. What the kernel has cached may still be read.
    assert!(sitter.line().starts_with("read "));
    assert_eq!(sitter.line(), "mkdir fails");
    // The next command starts a server, which mounts at the same path what was there.
    assert_eq!(treefork.ok(["path", "a"]).text(), fork.to_str().expect("UTF-8"));
    assert_eq!(json(&treefork, &["show", "a"])["mount"], "alive");
    let after = treefork.env().sh(&fork, "find . -printf '%p %i %m %s %T@\\n' | sort");
    assert_eq!(before, after, "the same state and the same numbers");
    assert_eq!(fs::read_to_string(base.join("file")).expect("readable"), "one\n");
    // One mount, not one upon the dead one.
    assert_eq!(crate::common::mounts::below(&fork).len(), 1);
    drop(sitter);
    treefork.ok(["remove", "a"]);
    assert_nothing_left(&treefork);
}

/// Any command that changes something mounts all forks again, not only its own.
#[test]
fn the_next_command_mounts_all_again() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let forks: Vec<_> = ["a", "b", "c"].iter().map(|label| treefork.create(&base, label)).collect();
    kill_server(&treefork);
    treefork.create(&base, "d");
    for fork in &forks {
        assert_eq!(treefork.env().sh(fork, "cat file"), "one");
    }
    kill_server(&treefork);
    // Removing one fork brings the others back as well.
    treefork.ok(["remove", "d"]);
    for fork in &forks {
        assert_eq!(treefork.env().sh(fork, "cat file"), "one");
    }
    treefork.ok(["remove", "a", "b", "c"]);
    assert_nothing_left(&treefork);
}

#[test]
fn a_fork_in_use_is_not_removed() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let fork = treefork.create(&base, "a");
    let mut sitter = treefork.env().command_in(&fork.join("sub"), "bash");
    sitter.args(["-c", "echo ready; read end"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut sitter = Sitter::new(sitter.spawn().expect("bash"));
    assert_eq!(sitter.line(), "ready");
    let done = treefork.fails(1, ["remove", "a"]);
    let pid = sitter.child.id().to_string();
    assert!(done.complaint().contains(&pid) && done.complaint().contains("--force"), "{}", done.complaint());
    assert_eq!(treefork.env().sh(&fork, "cat file"), "one");
    // By an open file alone, and by a mapping, too.
    drop(sitter);
    let open = File::open(fork.join("file")).expect("readable");
    let mut holder = Command::new("sleep");
    holder.arg("1000").stdin(Stdio::from(open.try_clone().expect("duplicated")));
    let mut holder = Sitter::new(holder.stdout(Stdio::piped()).spawn().expect("sleep"));
    drop(open);
    let done = treefork.fails(1, ["remove", "a"]);
    assert!(done.complaint().contains("open file"), "{}", done.complaint());
    treefork.ok(["remove", "a", "--force"]);
    assert_nothing_left(&treefork);
    assert!(holder.child.try_wait().expect("our child").is_none(), "its user lives on");
    assert_eq!(fs::read_to_string(base.join("file")).expect("readable"), "one\n");
}

/// A panic while the server answers a command is that command's failure; all forks live on, in the same server.
#[test]
fn a_panic_in_a_request_of_a_command_fails_that_one() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let base_text = base.to_str().expect("text");
    // The rule goes to the server that this command starts; it counts the requests of all that come.
    let create = ["create", base_text, "--label", "a", "--strategy", "overlay"];
    treefork.command(create).env("TREEFORK_FAULT", "server.request:panic@9").ok();
    let fork = treefork.ok(["path", "a"]).text();
    let server = server_pid(&treefork);
    let commands = [&["create", base_text, "--label", "x"][..], &["remove", "x"]];
    let failed =
        commands.iter().cycle().take(40).map(|args| treefork.command(*args).done()).find(|done| done.code() != 0);
    let said = failed.expect("the ninth request comes").complaint();
    assert!(said.contains("the server failed at this request"), "{said}");
    assert_eq!(server_pid(&treefork), server);
    assert_eq!(treefork.env().sh(fork.as_ref(), "echo more > file; cat file sub/deep"), "more\ntwo");
    treefork.ok(["create", base_text, "--label", "b"]);
    // Whatever the panic broke off is put right by now.
    for fork in json(&treefork, &["list"]).as_array().expect("a list") {
        treefork.ok(["remove", fork["id"].as_str().expect("an id")]);
    }
    assert_nothing_left(&treefork);
}

/// A file that was mapped and closed again is in use as well, by whoever still has the mapping.
#[test]
fn a_fork_in_use_by_a_mapping_alone_is_not_removed() {
    const MAP: &str = "import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
fd = os.open(sys.argv[1], os.O_RDONLY)
at = libc.mmap(None, 4096, 1, 2, fd, 0)
os.close(fd)
print(ctypes.string_at(at, 3).decode(), flush=True)
sys.stdin.read()";
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let fork = treefork.create(&base, "a");
    let mut python = treefork.env().command("python3");
    python.args(["-c", MAP]).arg(fork.join("file")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut python = Sitter::new(python.spawn().expect("python3"));
    assert_eq!(python.line(), "one");
    for refused in [["remove", "a"], ["merge", "a"]] {
        let said = treefork.fails(1, refused).complaint();
        assert!(said.contains(&python.child.id().to_string()) && said.contains("mapped"), "{refused:?}: {said}");
    }
    drop(python);
    treefork.ok(["remove", "a"]);
    assert_nothing_left(&treefork);
}

/// Several names at once: each has to mean one fork before any goes.
#[test]
fn a_slip_among_several_names_removes_nothing() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let made = json(&treefork, &["create", base.to_str().expect("text"), "--label", "one"]);
    treefork.create(&base, "two");
    for names in [["nosuch", "one"], ["one", "nosuch"], ["two", "tw0"]] {
        let said = treefork.fails(1, ["remove"].into_iter().chain(names)).complaint();
        assert!(said.contains("nothing was removed") && said.contains("is called"), "{said}");
        assert_eq!(listed(&treefork, "forks").len(), 2);
    }
    let id = made["id"].as_str().expect("text");
    treefork.ok(["remove", id]);
    // A whole id of a fork that is gone is no slip.
    treefork.ok(["remove", id, "two"]);
    assert_nothing_left(&treefork);
}

/// Case 68: a shell in a fork that is removed under it.
#[test]
fn git_in_a_removed_fork_finds_no_other_repository() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    treefork.env().git(&base, ["init", "-q"]);
    treefork.env().git(&base, ["add", "-A"]);
    treefork.env().git(&base, ["commit", "-qm", "one"]);
    let fork = treefork.create(&base, "a");
    let mut sitter = treefork.env().command_in(&fork.join("sub"), "bash");
    let script = "echo ready; read go; git checkout -b stray >/dev/null 2>&1 && echo works || echo fails";
    sitter.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut sitter = Sitter::new(sitter.spawn().expect("bash"));
    assert_eq!(sitter.line(), "ready");
    treefork.ok(["remove", "--force", "a"]);
    sitter.say("go");
    assert_eq!(sitter.line(), "fails");
    assert!(!treefork.env().git(&base, ["branch"]).contains("stray"));
}

/// Case 67: Ctrl-C in the terminal of the caller who started the server.
#[test]
fn the_callers_signals_do_not_reach_it() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    // A process group of its own, as a shell makes one for a job; the create in it starts the server.
    let mut job = treefork.env().command("bash");
    let script = r#""$0" create "$1" --label a; echo done; read end"#;
    job.args(["-c", script, crate::common::cli::BINARY]).arg(&base).process_group(0);
    let mut job = Sitter::new(job.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("bash"));
    let fork = std::path::PathBuf::from(job.line());
    assert_eq!(job.line(), "done");
    let group = Pid::from_child(&job.child);
    rustix::process::kill_process_group(group, Signal::INT).expect("signalled");
    rustix::process::kill_process_group(group, Signal::HUP).expect("signalled");
    job.child.wait().expect("our child");
    assert_eq!(treefork.env().sh(&fork, "cat file"), "one");
    let server = server_pid(&treefork);
    assert_ne!(session(&server.as_raw_nonzero().to_string()), session("self"));
    let fds = fs::read_dir(format!("/proc/{}/fd", server.as_raw_nonzero())).expect("root may look").count();
    assert!(fds < 64, "it inherited descriptors: {fds}");
    assert_eq!(
        fs::read_link(format!("/proc/{}/cwd", server.as_raw_nonzero())).expect("root may look"),
        std::path::Path::new("/")
    );
    treefork.ok(["remove", "a"]);
}

/// Number of the session of a process: 0 where its leader is outside of this PID namespace, as in a container.
#[track_caller]
fn session(process: &str) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    let (_, fields) = stat.rsplit_once(") ").expect("the name ends");
    fields.split(' ').nth(3).expect("state, parent, group, session").parse().expect("a number")
}

#[test]
fn it_ends_when_it_serves_nothing() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let mut create = treefork.command(["create", base.to_str().expect("UTF-8"), "--label", "a"]);
    create.env("TREEFORK_SERVER_IDLE", "0.05").ok();
    let pidfd = rustix::process::pidfd_open(server_pid(&treefork), PidfdFlags::empty()).expect("it runs");
    // It has a mount to serve: still there after many times that.
    let mut fds = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
    let short = rustix::event::Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
    assert_eq!(rustix::event::poll(&mut fds, Some(&short)).expect("polls"), 0, "it ended under a mount");
    treefork.ok(["remove", "a"]);
    let long = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut fds, Some(&long)).expect("polls"), 1, "it ends");
    assert!(!super::exists(&treefork.env().store().join("server.sock")));
    assert_nothing_left(&treefork);
}

#[test]
fn one_in_the_foreground_is_the_only_one_and_ends_on_request() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let mut serve = treefork.command(["serve"]);
    let mut server = Sitter::new(serve.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("treefork"));
    let mut said = String::new();
    let mut stderr = BufReader::new(server.child.stderr.take().expect("piped"));
    while !said.contains("treefork: serving") {
        assert_ne!(stderr.read_line(&mut said).expect("readable"), 0, "{said}");
    }
    let fork = treefork.create(&base, "a");
    assert_eq!(server_pid(&treefork), Pid::from_child(&server.child), "no other was started");
    rustix::process::kill_process(Pid::from_child(&server.child), Signal::TERM).expect("signalled");
    assert!(server.child.wait().expect("our child").success());
    assert!(crate::common::mounts::below(&fork).is_empty(), "its mounts end with it");
    treefork.ok(["remove", "a"]);
    assert_nothing_left(&treefork);
}

/// Nonsense on the socket harms nobody else.
#[test]
fn nonsense_on_the_socket() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let fork = treefork.create(&base, "a");
    let socket = treefork.env().store().join("server.sock");
    let frame = |text: &str| [&u32::try_from(text.len()).expect("short").to_le_bytes()[..], text.as_bytes()].concat();
    for bytes in [
        vec![0xff; 64],
        frame("{"),
        frame(r#"{"version":1,"message":"explode"}"#),
        frame(r#"{"version":99,"message":"ping"}"#),
        frame(r#"{"version":1,"message":{"unmount":{"id":"../../etc"}}}"#),
        frame(r#"{"version":1,"message":{"attach":{"id":"x"}}}"#),
    ] {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).expect("it listens");
        stream.write_all(&bytes).expect("it reads");
        stream.shutdown(std::net::Shutdown::Write).expect("half closed");
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
    }
    assert_eq!(treefork.env().sh(&fork, "cat file"), "one");
    treefork.ok(["remove", "a"]);
    assert_nothing_left(&treefork);
}

/// A server that hangs is named, and nobody waits for it for ever.
#[test]
fn one_that_does_not_answer_is_named() {
    let treefork = Treefork::new();
    let base = small_base(&treefork, "base");
    let fork = treefork.create(&base, "a");
    let pid = server_pid(&treefork);
    rustix::process::kill_process(pid, Signal::STOP).expect("signalled");
    let number = pid.as_raw_nonzero().to_string();
    let listed = treefork.ok(["list"]);
    assert!(listed.text().contains("stale") && listed.complaint().contains(&number), "{}", listed.complaint());
    let done = treefork.fails(1, ["doctor"]);
    assert!(done.text().contains(&number), "{}", done.text());
    // Nor is a copy made instead.
    let done = treefork.fails(1, ["create", base.to_str().expect("UTF-8"), "--label", "b"]);
    assert!(done.complaint().contains(&number) && done.complaint().contains("does not answer"), "{}", done.complaint());
    kill_server(&treefork);
    assert_eq!(treefork.ok(["path", "a"]).text(), fork.to_str().expect("UTF-8"));
    assert_eq!(treefork.env().sh(&fork, "cat file"), "one");
    treefork.ok(["remove", "a"]);
    assert_nothing_left(&treefork);
}

/// A child with a conversation; killed when dropped.
pub(super) struct Sitter {
    child: std::process::Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Sitter {
    pub(super) fn new(mut child: std::process::Child) -> Self {
        let out = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, out }
    }

    #[track_caller]
    pub(super) fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("readable");
        line.trim_end().to_owned()
    }

    pub(super) fn say(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().expect("piped"), "{line}").expect("it listens");
    }
}

impl Drop for Sitter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
