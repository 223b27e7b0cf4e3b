//! Durable primitives: few, small, each with its guarantee.
//!
//! | primitive | a killed process leaves | a power cut leaves |
//! |---|---|---|
//! | [`write_atomic`] | the old file or the new one, whole | the same; the new one once the call has returned |
//! | [`write()`], [`write_record_as`] | as `write_atomic` | see [`Sync`] |
//! | [`write_record`], [`read_record`] | as `write_atomic` | as `write_atomic`; a newer format is refused, never guessed at |
//! | [`sync_dir`] | (nothing to add) | every name made, replaced or removed in the directory before the call |
//! | [`FileLock`] | the lock free: the kernel drops it with the process | the lock free |
//!
//! [`CancelToken`] is how a caller ends what it has asked for, and finds nothing half-made afterwards.
//!
//! Between any two steps of whatever is built on these stands a named [`fault::point`], so that tests can stop the
//! world there; recovery is ordinary code with ordinary tests.

mod cancel;
mod file;
mod lock;
mod record;

pub use crate::sys::fault;
pub use cancel::{CancelToken, Registration};
pub use file::{Sync, sweep, sync_dir, sync_fd, write, write_atomic};
pub use lock::{FileLock, Holder, Wait};
pub use record::{Record, read_record, write_record, write_record_as};
