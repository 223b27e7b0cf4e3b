//! A mounted overlay: its threads, and its end.
//!
//! A session lasts until somebody unmounts it, cuts its connection or calls [`Session::end`]. Ending never waits for
//! the mount: a process that sits in it, or a mount namespace that kept a copy, would make that take for ever. The mount
//! is detached, and if the connection outlives that, it is cut.
//!
//! The process that serves a session must not touch the mount, not even by a path that leads through it: a thread that
//! waits for its own process cannot be killed.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use fuser::SessionACL;
use parking_lot::{Condvar, Mutex};
use rustix::fs::{major, minor};

use super::notify::Caches;
use super::serving::Adapter;
use super::stats::Stats;
use super::{Options, connection, device};
use crate::error::{Context, Error, Kind, Result};
use crate::overlay::{Invalidate, Overlay};
use crate::sys::mounted_at;

/// How long [`Session::end`] waits for requests that are being served before it leaves their threads to themselves.
const LAST_REQUESTS: Duration = Duration::from_secs(10);

/// An overlay that is being served.
#[derive(Debug)]
pub struct Session {
    device: OwnedFd,
    /// Where it was mounted; `None` where somebody else did that.
    point: Option<PathBuf>,
    /// The connection's number, where the kernel told.
    number: Option<u32>,
    stats: Arc<Stats>,
    /// Kept alive here; the overlay holds it weakly.
    _caches: Arc<Caches>,
    ended: Arc<Ended>,
}

/// Set once the session's threads are gone, and what it has on the pool is done.
#[derive(Debug, Default)]
struct Ended {
    flag: Mutex<bool>,
    changed: Condvar,
}

/// Sets it when the last holder lets go: the session itself, or a request of it that takes long.
pub(super) struct Ending(Arc<Ended>);

impl Drop for Ending {
    fn drop(&mut self) {
        *self.0.flag.lock() = true;
        self.0.changed.notify_all();
    }
}

impl Session {
    /// Mounts the overlay at a directory and serves it. Returns once it answers.
    pub fn mount(overlay: Arc<Overlay>, point: &Path, options: &Options) -> Result<Session> {
        let point = point.canonicalize().context("cannot mount at", point)?;
        let device = device::mount(&point, options)?;
        let number = connection::number(device.as_fd()).or_else(|| minor_of(&point));
        let session = Self::start(overlay, device, Some(point.clone()), number, options);
        if session.is_err() {
            // Better the reason than the failure to clean up after it.
            let _ = device::detach(&point);
        }
        session
    }

    /// Serves the overlay to a connection that is mounted already, or is about to be. Waits for the kernel's first
    /// message, which comes with the mount.
    pub fn serve(overlay: Arc<Overlay>, device: OwnedFd, options: &Options) -> Result<Session> {
        Self::start(overlay, device, None, None, options)
    }

    fn start(
        overlay: Arc<Overlay>,
        device: OwnedFd,
        point: Option<PathBuf>,
        number: Option<u32>,
        options: &Options,
    ) -> Result<Session> {
        let cannot = |e| Error::io("cannot start the FUSE session", e);
        let stats = Arc::new(Stats::default());
        let threads = options.threads.max(1);
        let ended = Arc::new(Ended::default());
        let adapter = Adapter::new(Arc::clone(&overlay), Arc::clone(&stats), threads, Ending(Arc::clone(&ended)));
        let mut config = fuser::Config::default();
        config.n_threads = Some(threads);
        // Who may use the mount is the kernel's business (allow_other). The library's own check compares with the
        // user id of this process, which means nothing for a mount in another user namespace.
        let theirs = device.try_clone().map_err(cannot)?;
        let session = fuser::Session::from_fd(adapter, theirs, SessionACL::All, config).map_err(cannot)?;
        let caches = Arc::new(Caches(session.notifier()));
        let weak: Weak<Caches> = Arc::downgrade(&caches);
        overlay.set_invalidate(weak as Weak<dyn Invalidate>);
        let number = number.or_else(|| connection::number(device.as_fd()));
        number.inspect(|&number| connection::raise_read_ahead(number));
        let run = move || {
            if let Err(e) = session.run() {
                log::warn!("a FUSE session ended with an error: {e}");
            }
        };
        std::thread::Builder::new().name("treefork-mount".into()).spawn(run).map_err(cannot)?;
        Ok(Session { device, point, number, stats, _caches: caches, ended })
    }

    /// Where it is mounted, where this session did that.
    pub fn point(&self) -> Option<&Path> {
        self.point.as_deref()
    }

    /// The minor device number of the mount: its name in fusectl, and in `/proc/self/mountinfo`.
    pub fn connection(&self) -> Option<u32> {
        self.number
    }

    /// The counters of its requests.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// Whether the kernel can still reach it: not unmounted, not cut.
    pub fn is_alive(&self) -> bool {
        connection::alive(self.device.as_fd()) && !*self.ended.flag.lock()
    }

    /// Waits until it has ended, by whomever.
    pub fn wait(&self) {
        let mut ended = self.ended.flag.lock();
        while !*ended {
            self.ended.changed.wait(&mut ended);
        }
    }

    /// Ends it: detaches the mount, cuts the connection if somebody still holds it, and waits for the last requests.
    ///
    /// Everything that was acknowledged is with the overlay. What fails is whatever anybody tries afterwards, in a
    /// working directory or on a file that is still open (`ENOTCONN`). Ending twice is fine. An error says that the
    /// threads are still busy, and with what they hold.
    pub fn end(&self) -> Result<()> {
        let detached = self.detach();
        if connection::alive(self.device.as_fd())
            && let Some(number) = self.number
            && let Err(e) = connection::abort(number)
        {
            log::debug!("cannot cut connection {number}: {e}");
        }
        if self.ends_within(LAST_REQUESTS) {
            return Ok(());
        }
        detached?;
        let busy = Error::new(Kind::InUse, "a request is still being served after the end of the mount");
        Err(self.point.iter().fold(busy, |e, point| e.at(point)))
    }

    /// Ends it where nothing of what it shows is wanted any more. To the same effect as [`end`](Self::end), but what was
    /// written through a mapping and did not get here yet is lost, and where that can be had without waiting for it, the
    /// root of the mount is returned: once it is closed, which takes a while, the kernel has forgotten names and pages.
    ///
    /// The connection is cut while the root is held. With the last reference gone, the kernel wants to write back: this
    /// process would wait for itself.
    pub fn cut(&self) -> Result<Option<OwnedFd>> {
        let root = self.point.as_deref().zip(self.number).and_then(|(point, number)| {
            let root = root_of(point, number)?;
            let is_cut = device::cut(point).is_ok() || connection::abort(number).is_ok();
            is_cut.then_some(root)
        });
        self.end().map(|()| root)
    }

    /// Takes the mount away from its place, if it is still the one that is there.
    fn detach(&self) -> Result<()> {
        match &self.point {
            Some(point) if self.number.is_some() && minor_of(point) == self.number => device::detach(point),
            _ => Ok(()),
        }
    }

    fn ends_within(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut ended = self.ended.flag.lock();
        while !*ended {
            if self.ended.changed.wait_until(&mut ended, until).timed_out() {
                break;
            }
        }
        *ended
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !*self.ended.flag.lock()
            && let Err(e) = self.end()
        {
            log::warn!("{e}");
        }
    }
}

/// The minor device number of the file system without a device that is mounted at a path.
fn minor_of(point: &Path) -> Option<u32> {
    let device = mounted_at(point).ok().flatten()?;
    (major(device) == 0).then(|| minor(device))
}

/// The root of this mount, if it is the one at a path. Nobody is asked for that: the kernel has the root of every mount, and
/// a descriptor that stands for a path alone needs no leave to be opened.
fn root_of(point: &Path, number: u32) -> Option<OwnedFd> {
    let root = crate::sys::open_root(point).ok()?;
    (minor_of(point) == Some(number)).then_some(root)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::hidden::Hidden;
    use crate::overlay::{Config, FdCache, Large, Lower};

    /// A merge reads the upper once the session is over: a write that is still on the pool would be in the middle of it.
    #[test]
    fn a_request_on_the_pool_keeps_the_session_from_being_over() {
        let base = tempfile::tempdir().expect("room");
        let root = crate::sys::open_root(base.path()).expect("there");
        let overlay = Overlay::new(Config {
            lowers: vec![Lower { root, marked: false, image: false, watch: false }],
            upper: None,
            work: None,
            watch: None,
            fds: FdCache::new(8),
            created: None,
            made_on: None,
            hidden: Hidden::default(),
            large: Large { from: u64::MAX, background: false },
        });
        let ended = Arc::new(Ended::default());
        let adapter = Adapter::new(overlay.expect("an overlay"), Arc::default(), 2, Ending(Arc::clone(&ended)));
        let (open, gate) = crossbeam_channel::bounded::<()>(0);
        let (begun, begins) = crossbeam_channel::bounded(0);
        adapter.slowly(move |_| {
            begun.send(()).expect("somebody waits");
            let _ = gate.recv();
        });
        begins.recv().expect("it begins");
        // As when the session's own threads are gone.
        drop(adapter);
        assert!(!*ended.flag.lock(), "over in the middle of a request");
        drop(open);
        let mut over = ended.flag.lock();
        while !*over {
            ended.changed.wait(&mut over);
        }
    }
}
