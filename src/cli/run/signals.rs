//! Signals between whoever called `treefork` and the command.
//!
//! What a terminal sends goes to the whole process group and reaches the command without help. What another process
//! sends to `treefork` alone is passed on; `treefork` itself goes on, to see the command end and to clean up. It stops when
//! the command has stopped, and not before: the shell above would go on, and the command, on its way to stop, might take
//! away what is typed for the shell.

use std::sync::Arc;
use std::thread;

use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};

use crate::error::{Error, Result};
use crate::run::{Event, Handle};
use crate::sys::{Caught, Mask, catch_signals, caught, process_group, stop_by};

/// What ends a process unless it is caught.
pub(super) const ENDING: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];
const PASSED_ON: [i32; 7] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGTSTP];

/// Passes signals on. Those that are ignored stay ignored, for the command as well.
pub(super) struct Forwarding(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    command: Option<Handle>,
    /// There is about to be one.
    expected: bool,
    /// Came before there was a command.
    early: Vec<Signal>,
}

/// Calls `hear` for each of these signals, from a thread of its own, for the rest of this process's life.
pub(super) fn listen(signals: &[i32], mut hear: impl FnMut(Caught) + Send + 'static) -> Result<()> {
    let pipe = catch_signals(signals).map_err(|e| Error::io("cannot handle signals", e))?;
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
        listen(&PASSED_ON, move |caught| {
            let Some(signal) = Signal::from_named_raw(caught.signal) else { return };
            let mut state = theirs.lock();
            match &state.command {
                Some(_) if caught.by_kernel => {}
                Some(command) => command.signal(signal),
                // There is nobody but us to stop.
                None if caught.signal == SIGTSTP && !state.expected => {
                    MutexGuard::unlocked(&mut state, || stop_by(SIGTSTP))
                }
                None => state.early.push(signal),
            }
        })?;
        Ok(Self(state))
    }

    /// From now on there may be a command that has them from the terminal, although nobody can pass it any yet. One that
    /// gets a signal to stop once more does not mind: the signal to go on takes away both.
    pub(super) fn expect(&self) {
        self.0.lock().expected = true;
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
        *self.0.lock() = State::default();
    }
}

/// A command that was stopped stops `treefork` along, so that the shell above notices; when the shell lets it go on, the
/// command does. By SIGTTIN and SIGTTOU, which the kernel sends to all of the group, `treefork` stops by itself.
pub(super) fn stop_along(event: Event, handle: &Handle) {
    if let Event::Stopped(signal) = event
        && [Signal::STOP, Signal::TSTP].map(Signal::as_raw).contains(&signal)
    {
        stop_by(signal);
        handle.signal(Signal::CONT);
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
