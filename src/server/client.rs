//! The client's side: a connection to the server of a store, which is started where it does not run.
//!
//! Every request may be sent again: where a server ends just as it is asked, the client starts another one and asks
//! that.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::protocol::{Envelope, Layer, MountInfo, MountSpec, Pong, Reply, Request, VERSION};
use super::{start, wire};
use crate::durable::{FileLock, Wait};
use crate::error::{Context, Error, Kind, Result};

/// How long a server that was told to end may take.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// How often a request is sent again when the server ends under it.
const TRIES: usize = 3;

/// What changed in the base of a fork.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// The paths, below the base's root.
    pub paths: Vec<PathBuf>,
    /// Some directories of the base could not be watched.
    pub unwatched: bool,
}

/// How to reach the server of one store.
#[derive(Clone, Debug)]
pub struct Client {
    store: PathBuf,
}

impl Client {
    /// A client of the store at this path. Nothing is connected or started yet.
    pub fn new(store: &Path) -> Self {
        Self { store: store.to_path_buf() }
    }

    /// Who answers; `None` where no server runs. Starts none.
    pub fn ping(&self) -> Result<Option<Pong>> {
        match self.ask_running(&Request::Ping)? {
            Some(Reply::Pong(pong)) => Ok(Some(pong)),
            Some(other) => Err(self.unexpected(&other)),
            None => Ok(None),
        }
    }

    /// Whether a server runs, or is about to, by its lock alone: nobody is asked.
    pub fn is_served(&self) -> Result<bool> {
        FileLock::is_held(&super::lock(&self.store))
    }

    /// What is mounted; `None` where no server runs. Starts none.
    pub fn mounts(&self) -> Result<Option<Vec<MountInfo>>> {
        match self.ask_running(&Request::List)? {
            Some(Reply::Mounts(mounts)) => Ok(Some(mounts)),
            Some(other) => Err(self.unexpected(&other)),
            None => Ok(None),
        }
    }

    /// Starts the server where none runs; returns who answers.
    pub fn ensure(&self) -> Result<Pong> {
        match self.ask(&Request::Ping, None)? {
            Reply::Pong(pong) => Ok(pong),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Mounts a fork, unless it is mounted.
    pub fn mount(&self, spec: &MountSpec) -> Result<()> {
        self.done(self.ask(&Request::Mount(spec.clone()), None)?)
    }

    /// The same; `work` is done once, in the time that the server takes. Whatever comes of either, both have come to an end.
    pub fn mount_meanwhile(&self, spec: &MountSpec, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let request = Request::Mount(spec.clone());
        let begun = self.begin(&request, None);
        let worked = work();
        let answered = match begun {
            Ok(Some(stream)) => self.finish(&stream, &request),
            Ok(None) => Ok(None),
            Err(e) => Err(e),
        };
        worked?;
        match answered?.map(failed).transpose()? {
            Some(reply) => self.done(reply),
            // No server runs, or it ended just then.
            None => self.mount(spec),
        }
    }

    /// Has the server serve a fork on a FUSE device that the caller has opened and mounted, in whatever namespace.
    pub fn attach(&self, spec: &MountSpec, device: BorrowedFd<'_>) -> Result<()> {
        self.done(self.ask(&Request::Attach(spec.clone()), Some(device))?)
    }

    /// Ends the mount of a fork: all that was written in it is in its upper then. Nothing to do is success, also where no
    /// server runs.
    pub fn unmount(&self, id: &str) -> Result<()> {
        self.end(id, false)
    }

    /// The same for a fork of which nothing is wanted any more: what the kernel remembers of it is not waited for.
    pub fn discard(&self, id: &str) -> Result<()> {
        self.end(id, true)
    }

    fn end(&self, id: &str, discard: bool) -> Result<()> {
        let request = Request::Unmount { id: id.to_owned(), discard };
        let reply = match self.ask_running(&request)? {
            Some(reply) => Some(reply),
            None => {
                // One that just starts may be about to mount it, from what its record said before.
                let _none_starts = start::lock(&self.store)?;
                self.ask_running(&request)?
            }
        };
        reply.map_or(Ok(()), |reply| self.done(reply))
    }

    /// How many requests of each kind the kernel has sent for a fork.
    pub fn stats(&self, id: &str) -> Result<BTreeMap<String, u64>> {
        match self.ask_running(&Request::Stats { id: id.to_owned() })? {
            Some(Reply::Stats(stats)) => Ok(stats),
            Some(other) => Err(self.unexpected(&other)),
            None => Err(self.gone()),
        }
    }

    /// What changed in the base under a fork.
    pub fn drift(&self, id: &str) -> Result<Drift> {
        match self.ask_running(&Request::Drift { id: id.to_owned() })? {
            Some(Reply::Drift { paths, unwatched }) => {
                Ok(Drift { paths: paths.into_iter().map(|path| path.0).collect(), unwatched })
            }
            Some(other) => Err(self.unexpected(&other)),
            None => Err(self.gone()),
        }
    }

    /// Puts a new preserved layer, complete, by its directory, above the base of a fork, before the base changes. The fork
    /// goes on showing what it showed. False where the fork is not mounted, and so has nothing to be told.
    pub fn preserve(&self, id: &str, layer: &Path) -> Result<bool> {
        let layer = Layer { dir: layer.to_path_buf() };
        self.tell(&Request::Preserve { id: id.to_owned(), layer })
    }

    /// Has a fork show the attributes of a layer that is being made. False as of [`preserve`](Self::preserve).
    pub fn expect(&self, id: &str, layer: &Path) -> Result<bool> {
        let layer = Layer { dir: layer.to_path_buf() };
        self.tell(&Request::Expect { id: id.to_owned(), layer })
    }

    /// Has a fork read past a preserved layer before it is emptied. False as of [`preserve`](Self::preserve).
    pub fn withdraw(&self, id: &str, layer: &Path) -> Result<bool> {
        let layer = Layer { dir: layer.to_path_buf() };
        self.tell(&Request::Withdraw { id: id.to_owned(), layer })
    }

    /// Observes a fork for git. `kept` is the directory that the store keeps for its base; whether a prepared index is
    /// there for the fork, which with `wait` is waited for.
    pub fn observe(&self, id: &str, kept: &Path, wait: bool) -> Result<bool> {
        match self.ask_running(&Request::Observe { id: id.to_owned(), kept: kept.to_path_buf(), wait })? {
            Some(Reply::Observed(prepared)) => Ok(prepared),
            Some(other) => Err(self.unexpected(&other)),
            None => Err(self.gone()),
        }
    }

    /// Tells something to the mount of a fork, if it is mounted.
    fn tell(&self, request: &Request) -> Result<bool> {
        match self.ask_running(request) {
            Ok(Some(reply)) => self.done(reply).map(|()| true),
            Ok(None) => Ok(false),
            Err(e) if e.kind() == Kind::Vanished => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Completes the large files of a fork that are still being copied up, whether it is mounted or not.
    pub fn settle(&self, spec: &MountSpec) -> Result<()> {
        self.done(self.ask(&Request::Settle(spec.clone()), None)?)
    }

    /// Brings all that was written in a fork to the disk, its large files complete.
    pub fn sync(&self, id: &str) -> Result<()> {
        match self.ask_running(&Request::Sync { id: id.to_owned() })? {
            Some(reply) => self.done(reply),
            None => Err(self.gone()),
        }
    }

    /// Ends the server and all its mounts; false where none runs. Its process is gone when this returns, unless it is the
    /// caller's own.
    pub fn shutdown(&self) -> Result<bool> {
        let Some(pong) = self.ping()? else { return Ok(false) };
        let process = watch_end_of(pong.pid);
        if let Some(reply) = self.ask_running(&Request::Shutdown)? {
            self.done(reply)?;
        }
        if let Some(process) = process {
            let limit = Timespec { tv_sec: END_PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
            let mut fds = [PollFd::new(&process, PollFlags::IN)];
            if rustix::event::poll(&mut fds, Some(&limit)).is_ok_and(|ended| ended == 0) {
                log::warn!("the server, process {}, is still there", pong.pid);
            }
        }
        Ok(true)
    }

    /// Takes away the socket that a killed server left; whether there was one. With `only_look` it stays.
    pub fn remove_dead_socket(&self, only_look: bool) -> Result<bool> {
        let path = super::socket(&self.store);
        if std::fs::symlink_metadata(&path).is_err() || self.ping()?.is_some() {
            return Ok(false);
        }
        let _none_starts = start::lock(&self.store)?;
        // Held by a server that is not there yet, or about to end: its socket is its own.
        let _none_runs = match FileLock::acquire(&super::lock(&self.store), "gc", Wait::No) {
            Err(e) if e.kind() == Kind::Locked => return Ok(false),
            other => other?,
        };
        if !only_look {
            std::fs::remove_file(&path).context("cannot remove", path)?;
        }
        Ok(true)
    }

    /// Asks, starting the server where none runs.
    fn ask(&self, request: &Request, fd: Option<BorrowedFd<'_>>) -> Result<Reply> {
        for _ in 0..TRIES {
            if let Some(reply) = self.attempt(request, fd)? {
                return failed(reply);
            }
            start::start(&self.store, || Ok(self.attempt(&Request::Ping, None)?.is_some()))?;
        }
        Err(Error::new(Kind::Io, "the server ends as soon as it is asked something; its log is").at(self.log()))
    }

    /// Asks the server that runs; `None` where none does.
    fn ask_running(&self, request: &Request) -> Result<Option<Reply>> {
        self.attempt(request, None)?.map(failed).transpose()
    }

    /// One try; `None` where no server answered.
    fn attempt(&self, request: &Request, fd: Option<BorrowedFd<'_>>) -> Result<Option<Reply>> {
        match self.begin(request, fd)? {
            Some(stream) => self.finish(&stream, request),
            None => Ok(None),
        }
    }

    /// Sends a request; `None` where no server takes it. One that may take long goes after a question that does not, so that a
    /// server that does not answer at all is told apart from one that is busy.
    fn begin(&self, request: &Request, fd: Option<BorrowedFd<'_>>) -> Result<Option<UnixStream>> {
        let Some(stream) = connect(&self.store)? else { return Ok(None) };
        let limited = stream.set_write_timeout(Some(Request::Ping.patience()));
        limited.context("cannot talk to the server at", super::socket(&self.store))?;
        let send = |request, fd| wire::send(&stream, &Envelope { version: VERSION, message: request }, fd);
        let asked = if request.takes_long() { send(&Request::Ping, None) } else { Ok(()) };
        let sent = asked.and_then(|()| send(request, fd));
        self.heard(sent.map(|()| Some(stream)))
    }

    /// Receives the answer; `None` where the server ended instead.
    fn finish(&self, stream: &UnixStream, request: &Request) -> Result<Option<Reply>> {
        if request.takes_long() {
            let answer = self.reply(stream, Request::Ping.patience())?;
            if !matches!(answer, Some(Reply::Pong(_))) {
                return Ok(answer);
            }
        }
        self.reply(stream, request.patience())
    }

    fn reply(&self, stream: &UnixStream, patience: Duration) -> Result<Option<Reply>> {
        let limited = stream.set_read_timeout(Some(patience));
        limited.context("cannot talk to the server at", super::socket(&self.store))?;
        let received = wire::receive::<Envelope<serde_json::Value>>(stream);
        let Some((envelope, _)) = self.heard(received)? else { return Ok(None) };
        if envelope.version != VERSION {
            let (theirs, ours) = (envelope.version, VERSION);
            let what = format!("the running server speaks protocol {theirs}, this treefork {ours}: the store is");
            let error = Error::new(Kind::Locked, what).at(&self.store);
            return Err(error.remedy("end the old server with the treefork that started it: `treefork serve --stop`"));
        }
        let understood = serde_json::from_value(envelope.message);
        understood.map(Some).map_err(|e| Error::new(Kind::Corrupt, "cannot understand the server").because(e))
    }

    /// What came of sending or receiving; `None` where the server is gone.
    fn heard<T>(&self, result: io::Result<Option<T>>) -> Result<Option<T>> {
        match result {
            Err(e) if is_gone(&e) => Ok(None),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(self.silent()),
            other => other.context("cannot talk to the server at", super::socket(&self.store)),
        }
    }

    fn done(&self, reply: Reply) -> Result<()> {
        match reply {
            Reply::Done => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    fn unexpected(&self, reply: &Reply) -> Error {
        Error::new(Kind::Corrupt, format!("an unexpected answer of the server: {reply:?}"))
    }

    fn silent(&self) -> Error {
        let holder = FileLock::holder(&super::lock(&self.store));
        let who =
            holder.map_or_else(|| "the server".to_owned(), |holder| format!("the server, process {},", holder.pid));
        let error = Error::new(Kind::Locked, format!("{who} does not answer; its log is")).at(self.log());
        error.remedy("end that process: the next command starts another, which mounts all forks again")
    }

    fn gone(&self) -> Error {
        Error::new(Kind::Vanished, "no server runs for the store").at(&self.store)
    }

    fn log(&self) -> PathBuf {
        self.store.join("server.log")
    }
}

/// A descriptor by which the end of another process shows; `None` for this one, and where there is none.
fn watch_end_of(pid: u32) -> Option<OwnedFd> {
    let pid = i32::try_from(pid).ok().filter(|_| pid != std::process::id())?;
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

fn failed(reply: Reply) -> Result<Reply> {
    match reply {
        Reply::Failed(failure) => Err(failure.into()),
        other => Ok(other),
    }
}

/// Connects; `None` where nobody listens.
fn connect(store: &Path) -> Result<Option<UnixStream>> {
    let path = super::socket(store);
    let stream = with_short_path(store, UnixStream::connect);
    match stream {
        Ok(stream) => Ok(Some(stream)),
        Err(e) if is_gone(&e) => Ok(None),
        Err(e) => Err(e).context("cannot connect to the server at", path),
    }
}

/// Calls with a path of the socket that fits into an address (108 bytes), however long the store's is.
pub(super) fn with_short_path<T>(store: &Path, call: impl FnOnce(PathBuf) -> io::Result<T>) -> io::Result<T> {
    let dir = crate::sys::open_root(store)?;
    call(PathBuf::from(format!("/proc/self/fd/{}/server.sock", dir.as_fd().as_raw_fd())))
}

fn is_gone(e: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
    matches!(e.kind(), BrokenPipe | ConnectionRefused | ConnectionReset | NotFound | UnexpectedEof)
}
