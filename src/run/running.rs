//! A command on its way: wait for it, pass signals on, end it when its time or its fork is gone.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;

use super::plan::{self, Prepared};
use super::watchdog::{Root, Watchdog};
use super::{Job, Target, failure};
use crate::error::{Error, Kind, Result};
use crate::sys::cell::{self, Cell, Ended, Part, Plan, Report};

/// How long a command has between SIGTERM and SIGKILL when its time is up.
const GRACE: Duration = Duration::from_secs(2);

/// How a command ended.
#[derive(Debug)]
pub enum End {
    /// It exited with this status.
    Exited(u8),
    /// It was killed by this signal.
    Signaled(i32),
    /// It took too long, and was ended.
    TimedOut,
    /// Its fork went away, and it was ended.
    Vanished,
    /// The program cannot be executed, or does not exist.
    NotExecuted(Errno),
}

impl End {
    /// The exit status that stands for it, as shells and `env(1)` count.
    pub fn status(&self) -> u8 {
        match self {
            End::Exited(status) => *status,
            End::Signaled(signal) => 128_u8.saturating_add(u8::try_from(*signal).unwrap_or(u8::MAX)),
            End::TimedOut => Kind::TimedOut.exit_status(),
            End::Vanished => Kind::Vanished.exit_status(),
            End::NotExecuted(Errno::NOENT | Errno::NOTDIR) => 127,
            End::NotExecuted(_) => 126,
        }
    }

    /// Whether it exited with 0.
    pub fn is_success(&self) -> bool {
        matches!(self, End::Exited(0))
    }
}

/// How a command ended, and what it took.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// From start to end.
    pub wall: Duration,
    /// In user mode, of the command and all children that were waited for.
    pub user: Duration,
    /// In the kernel, likewise.
    pub system: Duration,
    /// Peak resident memory of the largest process, in KiB.
    pub peak_kib: u64,
}

/// What happens to a command before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It was stopped by this signal.
    Stopped(i32),
    /// It goes on.
    Continued,
}

/// A command that was started. Dropping it ends the command and all that it left behind.
pub struct Running {
    shared: Arc<Shared>,
    plan: Plan,
    started: Instant,
    timeout: Option<Duration>,
    watchdog: Option<Watchdog>,
    joined: bool,
}

struct Shared {
    cell: Cell,
    vanished: AtomicBool,
}

/// Reaches a running command from elsewhere: another thread, a signal handler's loop.
#[derive(Clone)]
pub struct Handle(Arc<Shared>);

impl Handle {
    /// Sends the command a signal.
    pub fn signal(&self, signal: Signal) {
        self.0.cell.signal(signal);
    }

    /// Ends the command and whatever it started, at once.
    pub fn end(&self) {
        self.0.cell.kill();
    }
}

impl Running {
    pub(super) fn start(target: Target, job: Job) -> Result<Self> {
        let timeout = job.timeout;
        let Prepared { plan, serve, root } = plan::prepare(target, job)?;
        let started = Instant::now();
        let cell = cell::launch(&plan).map_err(failure::of_launch)?;
        let shared = Arc::new(Shared { cell, vanished: AtomicBool::new(false) });
        let mut running = Self { shared, plan, started, timeout, watchdog: None, joined: false };
        let root = match (root, serve) {
            (Some(root), _) => Root { fd: root.fd, path: Some(root.path) },
            (None, Some(serve)) => running.hand_over(serve)?,
            (None, None) => return Ok(running),
        };
        let shared = running.shared.clone();
        running.watchdog = Some(Watchdog::start(root, move || {
            shared.vanished.store(true, Ordering::Relaxed);
            shared.cell.kill();
        })?);
        Ok(running)
    }

    /// Gives the FUSE connection of the cell to whoever serves it; the root of the mount.
    fn hand_over(&self, serve: impl FnOnce(OwnedFd) -> Result<()>) -> Result<Root> {
        let cell = &self.shared.cell;
        match cell.report().map_err(|e| Error::io("cannot hear from the command's namespace", e))? {
            Some(Report::Connection { device, root }) => {
                serve(device)?;
                cell.proceed();
                Ok(Root { fd: root, path: None })
            }
            Some(Report::Failed(part, errno)) => Err(failure::of_part(part, errno, &self.plan)),
            _ => Err(Error::new(Kind::Io, "the command's namespace went away while it was made")),
        }
    }

    /// Reaches the command from elsewhere.
    pub fn handle(&self) -> Handle {
        Handle(self.shared.clone())
    }

    /// Waits for the end of the command and of everything that it started.
    ///
    /// # Errors
    /// Whatever kept the command from being started: see [`super::start`].
    pub fn wait(mut self, mut on_event: impl FnMut(Event, &Handle)) -> Result<Outcome> {
        let handle = self.handle();
        let verdict = loop {
            match self.next() {
                Next::Report(Report::Stopped(signal)) => on_event(Event::Stopped(signal), &handle),
                Next::Report(Report::Continued) => on_event(Event::Continued, &handle),
                Next::Report(Report::Connection { .. }) => {}
                Next::Report(Report::Failed(Part::Exec, errno)) => {
                    break Ok((End::NotExecuted(errno), Ended::default()));
                }
                Next::Report(Report::Failed(part, errno)) => break Err(failure::of_part(part, errno, &self.plan)),
                Next::Report(Report::Ended(ended)) => break Ok((end_of(ended.status), ended)),
                Next::Late => break Ok((End::TimedOut, self.expire())),
                // Nobody but us or an administrator can kill the keeper.
                Next::Gone => break Ok((End::Signaled(Signal::KILL.as_raw()), Ended::default())),
            }
        };
        self.finish();
        let (end, ended) = verdict?;
        let vanished = self.shared.vanished.load(Ordering::Relaxed)
            // A command can fail for want of its files before the watchdog has looked.
            || !end.is_success() && self.watchdog.as_ref().is_some_and(Watchdog::sees_it_gone);
        let end = if vanished { End::Vanished } else { end };
        let wall = self.started.elapsed();
        Ok(Outcome { end, wall, user: ended.user, system: ended.system, peak_kib: ended.peak_kib })
    }

    /// The next report, or that time is up.
    fn next(&self) -> Next {
        let late = self.timeout.map(|timeout| self.started + timeout);
        match self.report_until(late) {
            Some(next) => next,
            None => Next::Late,
        }
    }

    /// The next report; `None` where it does not come in time.
    fn report_until(&self, deadline: Option<Instant>) -> Option<Next> {
        let cell = &self.shared.cell;
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let limit = left.map(|left| Timespec {
                tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            });
            match poll(&mut [PollFd::from_borrowed_fd(cell.line().as_fd(), PollFlags::IN)], limit.as_ref()) {
                Ok(0) => return None,
                Err(Errno::INTR) => {}
                _ => return Some(cell.report().ok().flatten().map_or(Next::Gone, Next::Report)),
            }
        }
    }

    /// Time is up: SIGTERM, and after a while the end. What the command took, where it told in time.
    fn expire(&self) -> Ended {
        let cell = &self.shared.cell;
        cell.signal(Signal::TERM);
        // A stopped process would not see the other one.
        cell.signal(Signal::CONT);
        let deadline = Instant::now() + GRACE;
        loop {
            match self.report_until(Some(deadline)) {
                Some(Next::Report(Report::Ended(ended))) => return ended,
                Some(Next::Report(_)) => {}
                _ => return Ended::default(),
            }
        }
    }

    /// Makes sure that nothing is left.
    fn finish(&mut self) {
        if !self.joined {
            self.joined = true;
            self.shared.cell.finish();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.watchdog = None;
        self.finish();
    }
}

enum Next {
    Report(Report),
    Late,
    Gone,
}

fn end_of(status: i32) -> End {
    if libc::WIFSIGNALED(status) {
        End::Signaled(libc::WTERMSIG(status))
    } else {
        End::Exited(u8::try_from(libc::WEXITSTATUS(status)).unwrap_or(u8::MAX))
    }
}
