//! Buffers for the answers to reads, shared by all sessions.
//!
//! A thousand idle forks must not keep a buffer each, and mapping and clearing a new one for every read would cost as
//! much as the read. A few are kept, as many as there are likely to be reads at one moment.

use std::ops::{Deref, DerefMut};

use parking_lot::Mutex;

use super::serving::MAX_IO;

/// How many unused buffers are kept.
const KEPT: usize = 8;

static FREE: Mutex<Vec<Box<[u8]>>> = Mutex::new(Vec::new());

/// A buffer of [`MAX_IO`] bytes with anything in it; it goes back when dropped.
pub(super) struct Buffer(Box<[u8]>);

/// A buffer, a used one if there is one.
pub(super) fn take() -> Buffer {
    let used = FREE.lock().pop();
    Buffer(used.unwrap_or_else(|| vec![0; MAX_IO as usize].into_boxed_slice()))
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut free = FREE.lock();
        if free.len() < KEPT {
            free.push(std::mem::take(&mut self.0));
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
