//! A raw mount: `treefork mount` on directories of the test's own choice, in a server process of its own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal};

use super::{Env, Run, cli, mounts};

/// Nothing that is done in one mount takes this long, unless it hangs.
const LIMIT: Duration = Duration::from_secs(240);

/// A mounted overlay. Unmounted when dropped; its upper and work area stay.
pub(crate) struct RawMount<'a> {
    env: &'a Env,
    options: OsString,
    point: PathBuf,
    /// Closed when the mount is given up: until then somebody watches that it does not hang.
    _alive: Sender<()>,
}

impl<'a> RawMount<'a> {
    /// Mounts `upper` over `lower` at `point`. All four directories exist.
    pub(crate) fn new(env: &'a Env, lower: &Path, upper: &Path, work: &Path, point: &Path) -> Self {
        let mut options = OsString::new();
        for (name, path) in [("lowerdir=", lower), (",upperdir=", upper), (",workdir=", work)] {
            options.push(name);
            options.push(path);
        }
        let (alive, given_up) = channel();
        let watched = point.to_path_buf();
        std::thread::spawn(move || {
            if given_up.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                eprintln!("hangs, cut off: {}", watched.display());
                mounts::abort_below(&watched);
            }
        });
        let mount = Self { env, options, point: point.to_path_buf(), _alive: alive };
        mount.mount();
        mount
    }

    pub(crate) fn path(&self) -> &Path {
        &self.point
    }

    /// Kills the server without a warning and mounts again.
    pub(crate) fn remount(&mut self) {
        self.kill();
        self.mount();
    }

    fn mount(&self) {
        let mut command = self.env.command(cli::BINARY);
        command.arg("mount").arg("-o").arg(&self.options).arg(&self.point).ok();
    }

    /// The processes that serve this mount.
    pub(crate) fn servers(&self) -> Vec<i32> {
        mounts::processes_of(&self.point)
    }

    fn kill(&self) {
        for pid in self.servers().into_iter().filter_map(Pid::from_raw) {
            let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            if let Ok(pidfd) = pidfd {
                // Gone for good, so that it holds no lock on the upper any more.
                let poll = &mut [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
                let _ = rustix::event::poll(poll, None);
            }
        }
        for mount in mounts::below(&self.point) {
            let _ = rustix::mount::unmount(&mount.point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
    }
}

impl Drop for RawMount<'_> {
    fn drop(&mut self) {
        self.kill();
    }
}
