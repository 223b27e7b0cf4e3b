//! Running a command to its end, with what it said, and never for ever.

use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};

use super::mounts;

/// Nothing that a test starts takes this long, unless it hangs.
const LIMIT: Duration = Duration::from_secs(300);

/// What a command did.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    what: String,
}

impl Done {
    /// Standard output as text, without the final newline.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end_matches('\n').to_owned()
    }

    /// Standard error as text.
    pub(crate) fn complaint(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// The exit code; -1 where a signal ended it.
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }

    #[track_caller]
    fn expect(self, fine: bool, wanted: &str) -> Self {
        let Self { status, what, .. } = &self;
        assert!(fine, "{what}\nwanted {wanted}, got {status}\nstdout: {}\nstderr: {}", self.text(), self.complaint());
        self
    }
}

/// Ways to run a [`Command`] in a test.
pub(crate) trait Run {
    /// Runs it to its end.
    fn done(&mut self) -> Done;

    /// Runs it with `input` on its standard input.
    fn done_with(&mut self, input: &[u8]) -> Done;

    /// Runs it; it has to succeed.
    #[track_caller]
    fn ok(&mut self) -> Done {
        let done = self.done();
        let fine = done.status.success();
        done.expect(fine, "success")
    }

    /// Runs it with input; it has to succeed.
    #[track_caller]
    fn ok_with(&mut self, input: &[u8]) -> Done {
        let done = self.done_with(input);
        let fine = done.status.success();
        done.expect(fine, "success")
    }

    /// Runs it; it has to fail with this exit code.
    #[track_caller]
    fn fails(&mut self, code: i32) -> Done {
        let done = self.done();
        let fine = done.code() == code;
        done.expect(fine, &format!("exit code {code}"))
    }
}

impl Run for Command {
    fn done(&mut self) -> Done {
        self.stdin(Stdio::null());
        finish(self, None)
    }

    fn done_with(&mut self, input: &[u8]) -> Done {
        self.stdin(Stdio::piped());
        finish(self, Some(input.to_vec()))
    }
}

fn finish(command: &mut Command, input: Option<Vec<u8>>) -> Done {
    let what = format!("{command:?}");
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("cannot start {what}: {e}"));
    let stdin = child.stdin.take();
    let writer = std::thread::spawn(move || {
        if let (Some(mut pipe), Some(input)) = (stdin, input) {
            // A command may end without having read everything.
            let _ = pipe.write_all(&input);
        }
    });
    let stdout = slurp(child.stdout.take());
    let stderr = slurp(child.stderr.take());
    let status = wait(&mut child, &what);
    writer.join().expect("the writer does not panic");
    let done = |t: std::thread::JoinHandle<Vec<u8>>| t.join().expect("a reader does not panic");
    Done { status, stdout: done(stdout), stderr: done(stderr), what }
}

fn slurp(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut all).expect("a pipe can be read");
        }
        all
    })
}

/// Waits for the end; past the limit every FUSE mount of this test run is cut, since that is what hangs.
pub(crate) fn wait(child: &mut Child, what: &str) -> ExitStatus {
    if !ends_within(child, LIMIT) {
        mounts::abort_below(&super::temp::root());
        let _ = child.kill();
        let _ = child.wait();
        panic!("hangs: {what}");
    }
    child.wait().expect("our own child")
}

/// Whether the child ends in time.
pub(crate) fn ends_within(child: &Child, limit: Duration) -> bool {
    let pid = Pid::from_raw(child.id().try_into().expect("a pid is small")).expect("a pid is not 0");
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).expect("our own child, not waited for yet");
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match rustix::event::poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&left)) {
            Ok(n) => return n > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => panic!("poll: {e}"),
        }
    }
}
