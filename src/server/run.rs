//! The main loop of the server: one listener, a thread for each connection, and the end.
//!
//! It ends when it is told to (a request, `SIGTERM`, `SIGINT`), when it has served nothing for a while, and when its
//! socket was taken away, since nobody could reach it any more. Its mounts end with it; what was written in them is in
//! the store, and the next server mounts them again.

use std::any::Any;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::protocol::{DriftedPath, Envelope, MountSpec, Pong, Reply, Request, VERSION};
use super::table::{Backend, How, Table};
use super::{client, start, wire};
use crate::durable::{FileLock, Wait, fault};
use crate::error::{Context, Error, Kind, Result};

/// How long a server that just ends may still hold the lock.
const LOCK_PATIENCE: Duration = Duration::from_secs(15);
/// How long the mounts of earlier forks may hold up readiness; the rest are mounted while requests are served.
const RESTORE_PATIENCE: Duration = Duration::from_secs(20);
/// How long a connection may stay silent.
const SILENCE: Duration = Duration::from_secs(60);
/// The same while there are so many that others may have to wait for it.
const SHORT_SILENCE: Duration = Duration::from_secs(2);
/// How many connections are served at once; the others wait to be accepted.
const CONNECTIONS_MAX: usize = 256;

/// How a server is to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// It ends after serving nothing for so long; `None`: never.
    pub idle: Option<Duration>,
    /// A client starts it, and holds the lock for that.
    pub started: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { idle: Some(Duration::from_secs(60)), started: false }
    }
}

/// Serves the store at this path until the end. `restore` tells what is to be mounted before anything else, and `ready`
/// is called once the server can be reached.
///
/// Changes the process: umask, working directory, descriptor limit, signal handlers, not dumpable.
///
/// # Errors
/// `Locked` where another server runs.
pub fn run(
    store: &Path,
    backend: Box<dyn Backend>,
    options: Options,
    restore: impl FnOnce() -> Vec<MountSpec>,
    ready: impl FnOnce(),
) -> Result<()> {
    prepare_process()?;
    let starting = if options.started { None } else { Some(start::lock(store)?) };
    let lock = FileLock::acquire(&super::lock(store), "treefork serve", Wait::For(LOCK_PATIENCE))?;
    let server = Arc::new(Server {
        table: Table::new(backend),
        connections: AtomicUsize::new(0),
        last_busy: Mutex::new(Instant::now()),
        ending: AtomicBool::new(false),
        wake: wake_pipe()?,
    });
    server.restore(restore());
    let listener = listen(store)?;
    log::info!("serving {store:?} as process {}", std::process::id());
    drop(starting);
    ready();
    let end = server.accept_until_end(&listener, store, options.idle);
    // Nobody finds it any more; whoever is in the queue already is cut off and asks the next server.
    let _ = fs::remove_file(super::socket(store));
    drop(listener);
    server.table.unmount_all();
    server.table.finish_discarding();
    log::info!("the server of {store:?} ends");
    drop(lock);
    end
}

fn prepare_process() -> Result<()> {
    let about = |what| move |e: io::Error| Error::io(what, e);
    std::env::set_current_dir("/").map_err(about("cannot change to the root directory"))?;
    // Modes of new objects come from the kernel, which has applied the caller's umask.
    rustix::process::umask(Mode::empty());
    crate::sys::set_undumpable().map_err(about("cannot make the process undumpable"))?;
    crate::sys::raise_descriptor_limit().map_err(about("cannot raise the limit of open descriptors"))?;
    crate::sys::map_large_blocks();
    Ok(())
}

/// Where signals and threads tell the main loop to look up: write end and read end.
fn wake_pipe() -> Result<(UnixStream, UnixStream)> {
    let cannot = |e: io::Error| Error::io("cannot set up signals", e);
    let (write, read) = UnixStream::pair().map_err(cannot)?;
    read.set_nonblocking(true).map_err(cannot)?;
    write.set_nonblocking(true).map_err(cannot)?;
    for signal in [SIGTERM, SIGINT] {
        signal_hook::low_level::pipe::register(signal, write.try_clone().map_err(cannot)?).map_err(cannot)?;
    }
    Ok((write, read))
}

fn listen(store: &Path) -> Result<UnixListener> {
    let path = super::socket(store);
    match fs::remove_file(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e).context("cannot replace", path),
        _ => {}
    }
    let listener = client::with_short_path(store, |short| {
        let listener = UnixListener::bind(&short)?;
        fs::set_permissions(&short, fs::Permissions::from_mode(0o700))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.context("cannot listen at", path)
}

struct Server {
    table: Table,
    connections: AtomicUsize,
    last_busy: Mutex<Instant>,
    ending: AtomicBool,
    wake: (UnixStream, UnixStream),
}

impl Server {
    /// Mounts what earlier servers served, in parallel, and waits for it, but not for ever.
    fn restore(self: &Arc<Self>, specs: Vec<MountSpec>) {
        const THREADS: usize = 4;
        let (todo, next) = crossbeam_channel::unbounded();
        self.table.await_all(&specs);
        specs.into_iter().for_each(|spec| todo.send(spec).expect("its receiver is right here"));
        drop(todo);
        let (done, wait) = crossbeam_channel::bounded::<()>(0);
        for _ in 0..THREADS {
            let (server, next, done) = (Arc::clone(self), next.clone(), done.clone());
            let work = move || {
                for spec in next {
                    let id = spec.id.clone();
                    if let Err(e) = server.table.restore(spec) {
                        log::error!("cannot mount the fork {id} again: {e}");
                    }
                }
                drop(done);
            };
            if let Err(e) = std::thread::Builder::new().name("restore".into()).spawn(work) {
                log::error!("cannot start a thread: {e}");
            }
        }
        drop(done);
        if wait.recv_timeout(RESTORE_PATIENCE) == Err(crossbeam_channel::RecvTimeoutError::Timeout) {
            log::warn!("some forks are still being mounted");
        }
    }

    fn accept_until_end(self: &Arc<Self>, listener: &UnixListener, store: &Path, idle: Option<Duration>) -> Result<()> {
        loop {
            if self.ending.load(Ordering::SeqCst) || self.was_told_to_end(store, idle) {
                return Ok(());
            }
            let accepting = self.connections.load(Ordering::SeqCst) < CONNECTIONS_MAX;
            let listening = if accepting { PollFlags::IN } else { PollFlags::empty() };
            let mut fds = [PollFd::new(&self.wake.1, PollFlags::IN), PollFd::new(listener, listening)];
            let tick = idle.unwrap_or(SILENCE).clamp(Duration::from_millis(20), SILENCE);
            match poll(&mut fds, Some(&timespec(tick))) {
                // Nobody came for a while.
                Ok(0) => {
                    self.table.shrink();
                    crate::sys::give_back_memory();
                }
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(Error::io("cannot wait for connections", e)),
            }
            let woken = fds[0].revents();
            if woken.contains(PollFlags::IN) && self.drain_wake() {
                return Ok(());
            }
            match listener.accept() {
                Ok((stream, _)) => self.serve(stream),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // Out of descriptors, or the client is gone: the others are served on.
                Err(e) => log::warn!("cannot accept a connection: {e}"),
            }
        }
    }

    /// Reads what woke the loop: true for a signal. Threads write a zero byte, signals their `X`.
    fn drain_wake(&self) -> bool {
        let mut bytes = [0; 64];
        let read = io::Read::read(&mut &self.wake.1, &mut bytes).unwrap_or(0);
        bytes[..read].iter().any(|&byte| byte != 0)
    }

    fn was_told_to_end(&self, store: &Path, idle: Option<Duration>) -> bool {
        if matches!(fs::symlink_metadata(super::socket(store)), Err(e) if e.kind() == io::ErrorKind::NotFound) {
            log::warn!("the socket is gone");
            return true;
        }
        let busy = self.connections.load(Ordering::SeqCst) > 0 || !self.table.is_idle();
        let mut last_busy = self.last_busy.lock();
        if busy {
            *last_busy = Instant::now();
        }
        idle.is_some_and(|idle| !busy && last_busy.elapsed() >= idle)
    }

    fn serve(self: &Arc<Self>, stream: UnixStream) {
        *self.last_busy.lock() = Instant::now();
        self.connections.fetch_add(1, Ordering::SeqCst);
        let server = Arc::clone(self);
        let work = move || {
            if let Err(e) = server.converse(&stream) {
                log::debug!("a connection ended: {e}");
            }
            server.connections.fetch_sub(1, Ordering::SeqCst);
            server.wake();
        };
        if let Err(e) = std::thread::Builder::new().name("request".into()).spawn(work) {
            self.connections.fetch_sub(1, Ordering::SeqCst);
            log::error!("cannot start a thread: {e}");
        }
    }

    fn wake(&self) {
        // Full: it is awake.
        let _ = io::Write::write(&mut &self.wake.0, &[0]);
    }

    fn converse(&self, stream: &UnixStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        let crowded = self.connections.load(Ordering::SeqCst) > CONNECTIONS_MAX / 2;
        stream.set_read_timeout(Some(if crowded { SHORT_SILENCE } else { SILENCE }))?;
        stream.set_write_timeout(Some(SILENCE))?;
        let peer = rustix::net::sockopt::socket_peercred(stream.as_fd())?.uid;
        if !peer.is_root() && peer != rustix::process::geteuid() {
            return Err(io::Error::other(format!("it came from user {}", peer.as_raw())));
        }
        while let Some((envelope, fd)) = wire::receive::<Envelope<serde_json::Value>>(stream)? {
            let reply = match understand(envelope) {
                Ok(request) => self.answer_safely(request, fd),
                Err(e) => Reply::Failed((&e).into()),
            };
            wire::send(stream, &Envelope { version: VERSION, message: reply }, None)?;
        }
        Ok(())
    }

    /// A panic in one request is the failure of that request.
    fn answer_safely(&self, request: Request, fd: Option<OwnedFd>) -> Reply {
        let answer = catch_unwind(AssertUnwindSafe(|| self.answer(request, fd)));
        let answer = answer.unwrap_or_else(|panic| {
            let what = format!("the server failed at this request: {}", panic_text(panic.as_ref()));
            log::error!("{what}");
            Err(Error::new(Kind::Io, what))
        });
        answer.unwrap_or_else(|e| Reply::Failed((&e).into()))
    }

    fn answer(&self, request: Request, fd: Option<OwnedFd>) -> Result<Reply> {
        fault::point("server.request").map_err(|e| Error::io("cannot answer", e))?;
        match request {
            Request::Ping => {
                let (pid, program) = (std::process::id(), env!("CARGO_PKG_VERSION").to_owned());
                return Ok(Reply::Pong(Pong { pid, program, mounts: self.table.len() }));
            }
            Request::List => return Ok(Reply::Mounts(self.table.list())),
            Request::Stats { id } => {
                let stats: BTreeMap<String, u64> = self.table.get(&id)?.stats().into_iter().collect();
                return Ok(Reply::Stats(stats));
            }
            Request::Drift { id } => {
                let mounted = self.table.get(&id)?;
                let paths = mounted.drift().into_iter().map(DriftedPath).collect();
                return Ok(Reply::Drift { paths, unwatched: mounted.is_unwatched() });
            }
            Request::Mount(spec) => self.table.mount(spec, How::Here)?,
            Request::Attach(spec) => {
                let fd = fd.ok_or_else(|| Error::new(Kind::Usage, "no FUSE device came with the request"))?;
                self.table.mount(spec, How::Device(fd))?;
            }
            Request::Unmount { id, discard: false } => self.table.unmount(&id)?,
            Request::Unmount { id, discard: true } => self.table.discard(&id)?,
            Request::Preserve { id, layer } => self.table.preserve(&id, layer)?,
            Request::Expect { id, layer } => self.table.get(&id)?.expect(&layer)?,
            Request::Settle(spec) => self.table.settle(&spec)?,
            Request::Withdraw { id, layer } => self.table.get(&id)?.withdraw(&layer)?,
            Request::Observe { id, kept, wait } => {
                return Ok(Reply::Observed(self.table.get(&id)?.observe(&kept, wait)?));
            }
            Request::Sync { id } => self.table.get(&id)?.sync()?,
            Request::Shutdown => {
                self.table.unmount_all();
                self.ending.store(true, Ordering::SeqCst);
            }
        }
        Ok(Reply::Done)
    }
}

fn understand(envelope: Envelope<serde_json::Value>) -> Result<Request> {
    if envelope.version != VERSION {
        let (theirs, ours) = (envelope.version, VERSION);
        let what = format!("the server speaks protocol {ours}, not {theirs}");
        return Err(Error::new(Kind::Locked, what).remedy("end the old server: `treefork serve --stop`"));
    }
    serde_json::from_value(envelope.message).map_err(|e| Error::new(Kind::Usage, "no such request").because(e))
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("it panicked")
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() }
}
