//! Telling work in another thread that it is no longer wanted.
//!
//! Whoever works looks at the token between steps that can still be undone, and not any more once they cannot.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::fault;
use crate::error::{Error, Kind, Result};

type Callback = Box<dyn Fn() + Send>;

/// A flag that is raised once. Clones share it.
#[derive(Clone, Default)]
pub struct CancelToken(Arc<Shared>);

#[derive(Default)]
struct Shared {
    raised: AtomicBool,
    /// Lock order: a leaf, held while callbacks run; they must not call back into the token.
    callbacks: Mutex<Callbacks>,
}

#[derive(Default)]
struct Callbacks {
    next: u64,
    waiting: BTreeMap<u64, Callback>,
}

impl CancelToken {
    /// A token that nobody has cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels. What runs with this token ends soon; what has ended is not affected.
    pub fn cancel(&self) {
        let mut callbacks = self.0.callbacks.lock();
        self.0.raised.store(true, Ordering::SeqCst);
        for callback in std::mem::take(&mut callbacks.waiting).into_values() {
            callback();
        }
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.raised.load(Ordering::SeqCst)
    }

    /// An error of [`Kind::Cancelled`] where it was cancelled.
    pub fn check(&self) -> Result<()> {
        // Where a test wants it, the caller cancels just here.
        if fault::point("cancel").is_err() {
            self.cancel();
        }
        if self.is_cancelled() { Err(Error::new(Kind::Cancelled, "cancelled by the caller")) } else { Ok(()) }
    }

    /// Whether to go on, for what asks in these words.
    pub fn flow(&self) -> ControlFlow<()> {
        if self.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Calls back when it is cancelled, at once where it is already; not any more once the registration is dropped.
    pub fn on_cancel(&self, callback: impl Fn() + Send + 'static) -> Registration {
        let mut callbacks = self.0.callbacks.lock();
        let number = callbacks.next;
        callbacks.next += 1;
        if self.is_cancelled() {
            callback();
        } else {
            callbacks.waiting.insert(number, Box::new(callback));
        }
        Registration { token: self.clone(), number }
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelToken").field(&self.is_cancelled()).finish()
    }
}

/// A callback that waits; dropping it takes it back.
#[derive(Debug)]
#[must_use = "dropping it takes the callback back"]
pub struct Registration {
    token: CancelToken,
    number: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.token.0.callbacks.lock().waiting.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn callbacks_run_once_and_not_after_they_were_taken_back() {
        let (token, count) = (CancelToken::new(), Arc::new(AtomicUsize::new(0)));
        let counting = || {
            let count = count.clone();
            move || {
                count.fetch_add(1, Ordering::SeqCst);
            }
        };
        token.check().expect("not cancelled");
        drop(token.on_cancel(counting()));
        let _kept = token.on_cancel(counting());
        token.clone().cancel();
        token.cancel();
        assert_eq!(count.load(Ordering::SeqCst), 1);
        let _late = token.on_cancel(counting());
        assert_eq!(count.load(Ordering::SeqCst), 2);
        assert_eq!(token.check().expect_err("cancelled").kind(), Kind::Cancelled);
    }
}
