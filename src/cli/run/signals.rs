//! Signals between whoever called `treefork` and the command.
//!
//! What a terminal sends goes to the whole process group and reaches the command without help. What another process
//! sends to `treefork` alone is passed on; `treefork` itself goes on, to see the command end and to clean up.

use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use rustix::process::{Pid, Resource, Rlimit, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use crate::error::{Error, Result};
use crate::run::Handle;
use crate::sys::{Caught, Mask, catch_signals, caught, process_group};

const PASSED_ON: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// Passes signals on. Those that are ignored stay ignored, for the command as well.
pub(super) struct Forwarding(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    command: Option<Handle>,
    /// Came before there was a command.
    early: Vec<Signal>,
}

/// Calls `hear` for each signal, from a thread of its own, for the rest of this process's life.
pub(super) fn listen(mut hear: impl FnMut(Caught) + Send + 'static) -> Result<()> {
    let pipe = catch_signals(&PASSED_ON).map_err(|e| Error::io("cannot handle signals", e))?;
    let pass = move || {
        let mut byte = [0];
        while let Ok(1) = rustix::io::retry_on_intr(|| rustix::io::read(&pipe, &mut byte)) {
            hear(caught(byte[0]));
        }
    };
    let spawned = thread::Builder::new().name("treefork-signals".into()).spawn(pass);
    spawned.map(|_| ()).map_err(|e| Error::io("cannot start a thread", e))
}

impl Forwarding {
    /// Takes over the signals, for the rest of this process's life.
    pub(super) fn start() -> Result<Self> {
        let state = Arc::new(Mutex::new(State::default()));
        let theirs = state.clone();
        listen(move |caught| {
            let Some(signal) = Signal::from_named_raw(caught.signal) else { return };
            let mut state = theirs.lock();
            match &state.command {
                Some(_) if caught.by_kernel => {}
                Some(command) => command.signal(signal),
                None => state.early.push(signal),
            }
        })?;
        Ok(Self(state))
    }

    /// From now on there is a command to pass them to.
    pub(super) fn reach(&self, command: Handle) {
        let mut state = self.0.lock();
        for signal in state.early.drain(..) {
            command.signal(signal);
        }
        state.command = Some(command);
    }

    /// The command is over; what still comes is for nobody.
    pub(super) fn rest(&self) {
        self.0.lock().command = None;
    }
}

/// The terminal, as far as `treefork` is in its foreground. An interactive shell takes the foreground for itself, and
/// cannot give it back to a process group that it does not see from within its PID namespace.
pub(super) struct Terminal(Option<Pid>);

impl Terminal {
    /// Remembers whose foreground it is.
    pub(super) fn remember() -> Self {
        Self(process_group().filter(|own| rustix::termios::tcgetpgrp(std::io::stdin()) == Ok(*own)))
    }

    /// Takes the foreground back.
    pub(super) fn take_back(&self) {
        let Some(own) = self.0 else { return };
        // From the background this is answered by SIGTTOU, unless that is blocked.
        if let Ok(mask) = Mask::block_all() {
            let _ = rustix::termios::tcsetpgrp(std::io::stdin(), own);
            mask.restore();
        }
    }
}

/// Ends this process by the signal that ended the command, so that its parent sees what it would have seen.
pub(super) fn die_of(signal: i32) {
    // The command has left its core dump, if any; one of treefork helps nobody.
    let _ = rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = signal_hook::low_level::emulate_default_handler(signal);
}
