//! A raw mount for one test: `treefork mount -f` in a child process.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::run::ends_within;
use crate::common::{Env, Run, cli, mounts};

/// Nothing here takes this long.
const LIMIT: Duration = Duration::from_secs(60);

/// A base, an upper and a mount of the two. Ends with the test.
pub(crate) struct RawMount {
    env: Env,
    base: PathBuf,
    server: Child,
    said: BufReader<ChildStderr>,
}

impl RawMount {
    /// Mounts a base that `fill` has filled.
    pub(crate) fn new(fill: impl FnOnce(&Path)) -> Self {
        Self::with(fill, |_| {})
    }

    /// The same, with a last word about the command that serves.
    pub(crate) fn with(fill: impl FnOnce(&Path), prepare: impl FnOnce(&mut Command)) -> Self {
        let env = Env::new();
        for dir in ["base", "upper", "work", "mnt"] {
            env.dir(dir);
        }
        let base = env.join("base");
        fill(&base);
        Self::on(env, base, prepare)
    }

    /// Mounts this base; the rest is in the environment.
    pub(crate) fn on(env: Env, base: PathBuf, prepare: impl FnOnce(&mut Command)) -> Self {
        for dir in ["upper", "work", "mnt"] {
            env.dir(dir);
        }
        let (server, said) = start(&env, &base, prepare);
        let mut mount = Self { env, base, server, said };
        mount.wait_until_mounted();
        mount
    }

    fn wait_until_mounted(&mut self) {
        let point = self.path();
        let table = mount_table();
        let until = Instant::now() + LIMIT;
        while mounts::below(&point).is_empty() {
            if let Some(status) = self.server.try_wait().expect("our own child") {
                panic!("the server ended with {status}: {}", self.line());
            }
            assert!(changes(&table, Duration::from_millis(200)) || Instant::now() < until, "nothing was mounted");
        }
        // It is in the table before it answers.
        self.env.command("stat").arg(&point).ok();
    }

    pub(crate) fn env(&self) -> &Env {
        &self.env
    }

    /// The mount point.
    pub(crate) fn path(&self) -> PathBuf {
        self.env.join("mnt")
    }

    /// The lower directory.
    pub(crate) fn base(&self) -> &Path {
        &self.base
    }

    /// The upper directory.
    pub(crate) fn upper(&self) -> PathBuf {
        self.env.join("upper")
    }

    /// Runs a script in the mount; it has to succeed. Returns what it printed.
    #[track_caller]
    pub(crate) fn sh(&self, script: &str) -> String {
        self.env.sh(&self.path(), script)
    }

    /// How many requests of each kind were served so far.
    pub(crate) fn counts(&mut self) -> Counts {
        self.signal(Signal::USR1);
        let line = self.line();
        let text =
            line.trim_end().strip_prefix("treefork: requests:").unwrap_or_else(|| panic!("no counters: {line:?}"));
        let pairs = text.trim_start().split(", ").filter_map(|pair| pair.split_once(' '));
        Counts(pairs.map(|(name, count)| (name.to_owned(), count.parse().expect("a number"))).collect())
    }

    /// What the requests of `work` come to.
    pub(crate) fn cost_of(&mut self, work: impl FnOnce(&Self)) -> Counts {
        let before = self.counts();
        work(self);
        self.counts().since(&before)
    }

    /// The next line that the server printed.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).expect("text");
        line
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.server.id().cast_signed()).expect("a pid is not 0");
        kill_process(pid, signal).expect("our own child, not waited for yet");
    }

    /// The number of the connection.
    pub(crate) fn connection(&self) -> u32 {
        mounts::below(&self.path()).first().expect("mounted").minor
    }

    /// Waits for the server's end; its exit code.
    #[track_caller]
    pub(crate) fn ended(&mut self) -> Option<i32> {
        assert!(ends_within(&self.server, LIMIT), "the server does not end");
        self.server.wait().expect("our own child").code()
    }

    /// Ends the server and mounts the same layers again.
    pub(crate) fn restart(&mut self) {
        self.signal(Signal::TERM);
        assert_eq!(self.ended(), Some(0));
        (self.server, self.said) = start(&self.env, &self.base, |_| {});
        self.wait_until_mounted();
    }
}

fn start(env: &Env, base: &Path, prepare: impl FnOnce(&mut Command)) -> (Child, BufReader<ChildStderr>) {
    let mut command = env.command(cli::BINARY);
    let options = format!("lowerdir={},upperdir=upper,workdir=work", base.display());
    command.args(["mount", "-f", "-o", &options, "mnt"]);
    prepare(&mut command);
    let mut server = command.stderr(Stdio::piped()).spawn().expect("the binary was built");
    let said = BufReader::new(server.stderr.take().expect("piped"));
    (server, said)
}

impl Drop for RawMount {
    fn drop(&mut self) {
        // The environment, dropped after this, takes away the mount.
        let _ = self.server.kill();
        mounts::abort_below(&self.path());
        let _ = self.server.wait();
    }
}

/// Numbers of requests by name.
#[derive(Clone, Debug)]
pub(crate) struct Counts(Vec<(String, u64)>);

impl Counts {
    pub(crate) fn of(&self, name: &str) -> u64 {
        self.0.iter().find(|pair| pair.0 == name).map_or(0, |pair| pair.1)
    }

    /// Requests that somebody waited for.
    pub(crate) fn requests(&self) -> u64 {
        self.0.iter().filter(|pair| pair.0 != "forget" && pair.0 != "panic").map(|pair| pair.1).sum()
    }

    fn since(&self, before: &Self) -> Self {
        let less = |(name, count): &(String, u64)| (name.clone(), count - before.of(name));
        Self(self.0.iter().map(less).filter(|pair| pair.1 > 0).collect())
    }
}

fn mount_table() -> OwnedFd {
    rustix::fs::open("/proc/self/mountinfo", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).expect("procfs")
}

/// Waits for a change of the mount table; false when the time is up.
fn changes(table: &OwnedFd, limit: Duration) -> bool {
    let limit = Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: limit.subsec_nanos().into() };
    rustix::event::poll(&mut [PollFd::new(table, PollFlags::PRI)], Some(&limit)).is_ok_and(|n| n > 0)
}

/// Tries again, without sleeping for a fixed time, until `done` says yes; fails after a minute.
#[track_caller]
pub(crate) fn soon(what: &str, mut done: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "never: {what}");
        std::thread::yield_now();
    }
    start.elapsed()
}
