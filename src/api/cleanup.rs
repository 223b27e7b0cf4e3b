//! Taking a fork away: once, from any thread, whatever has become of it meanwhile.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::Result;
use crate::fork::{Forks, Id, trash};

/// Takes a fork away when it is told to, or when its last clone is dropped.
#[derive(Clone, Debug)]
pub struct Cleanup(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    forks: Forks,
    id: Id,
    /// Lock order: taken before anything of the store. Held while the fork is removed, so that a second call returns
    /// when it is gone.
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Done,
    Released,
}

impl Cleanup {
    pub(super) fn new(forks: Forks, id: Id) -> Self {
        Self(Arc::new(Inner { forks, id, state: Mutex::new(State::Waiting) }))
    }

    /// Takes the fork away, whoever uses it. Success where it is gone already. After an error it may be called again.
    pub fn run(&self) -> Result<()> {
        self.0.run()
    }

    /// Lets the fork live on: neither [`run`](Self::run) nor dropping this takes it away any more.
    pub fn release(&self) {
        let mut state = self.0.state.lock();
        if *state == State::Waiting {
            *state = State::Released;
        }
    }
}

impl Inner {
    fn run(&self) -> Result<()> {
        let mut state = self.state.lock();
        if *state == State::Waiting {
            self.forks.remove(self.id.as_str(), true)?;
            *state = State::Done;
            delete_in_background(self.forks.clone());
        }
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(e) = self.run() {
            log::warn!("the fork {} is not removed, gc will find it: {e}", self.id);
        }
    }
}

/// The files are out of sight already; nobody waits for their deletion. What this process does not live to delete, the
/// next removal does.
fn delete_in_background(forks: Forks) {
    std::thread::spawn(move || {
        if let Err(e) = trash::empty(forks.store()) {
            log::warn!("the trash is not empty: {e}");
        }
    });
}
