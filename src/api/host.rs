//! Which program serves the mounts of a host's forks.
//!
//! The mounts are served by a process of their own, which the library starts when it needs one: a process that touches
//! a mount which it serves itself can hang beyond killing. By default that is the `treefork` program: `$TREEFORK_BIN`,
//! one beside the host's program, or one in the search path. A host that wants to bring everything along in its own
//! binary puts one line at the start of its `main`:
//!
//! ```no_run
//! treefork::serve_if_asked();
//! ```
//!
//! From then on the library starts the host's own binary to serve. [`serve_in_process`] is for tests and for hosts that
//! never touch a fork themselves.

use std::path::{Path, PathBuf};

use crate::error::{Error, Kind, Result};
use crate::fork::{self, Store};
use crate::server::{self, Client, Fuse, Options, Program};

/// Has this program started as the server from now on, where one is needed. The first call in a process counts.
pub fn server_program(program: impl Into<PathBuf>) {
    server::set_program(Program::At(program.into()));
}

/// Serves a store in threads of this process, until the guard is dropped.
///
/// Nothing in this process may touch a fork of the store, by its path or through a file that is open, not even by way of
/// a directory listing: a thread that waits for a mount served by its own process cannot be killed, and neither can the
/// process. The umask and the working directory of the process change, too.
///
/// # Errors
/// `Locked` where another server serves the store.
pub fn serve_in_process(store: &Path) -> Result<InProcess> {
    let store = Store::open(store)?;
    let (ready, waiting) = crossbeam_channel::bounded(1);
    let root = store.root().to_path_buf();
    let thread = std::thread::spawn(move || {
        let restore = || fork::mounted(&store);
        let options = Options { idle: None, started: false };
        // The other end waits below for as long as this runs.
        let ready = move || ready.send(()).unwrap_or_default();
        server::run(store.root(), Box::new(Fuse::new()), options, restore, ready)
    });
    match waiting.recv() {
        Ok(()) => Ok(InProcess { store: root, thread: Some(thread) }),
        // It ended before it was ready.
        Err(_) => Err(ended(thread)
            .err()
            .unwrap_or_else(|| Error::new(Kind::Io, "the server ended before it served anything"))),
    }
}

/// A server in threads of this process. Dropping it ends its mounts.
#[derive(Debug)]
pub struct InProcess {
    store: PathBuf,
    thread: Option<std::thread::JoinHandle<Result<()>>>,
}

impl InProcess {
    /// Ends it, and says how it went.
    pub fn end(mut self) -> Result<()> {
        self.stop()
    }

    fn stop(&mut self) -> Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        Client::new(&self.store).shutdown()?;
        ended(thread)
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        if let Err(e) = self.stop() {
            log::warn!("the server of {:?} did not end well: {e}", self.store);
        }
    }
}

fn ended(thread: std::thread::JoinHandle<Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|_| Err(Error::new(Kind::Io, "the server panicked")))
}
