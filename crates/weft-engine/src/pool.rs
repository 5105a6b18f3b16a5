//! A pool of socket buffers, lent to the connections that have bytes to send or receive.

use crate::limits::IDLE_BUFFERS_MAX;
use weft_sys::{Forkable, Lock};

/// Size of a buffer: two of our largest FPDUs, with room for further bytes of the same receive.
pub(super) const BUFFER_LEN: usize = 256 << 10;

static IDLE: Forkable<Lock<Vec<Vec<u8>>>> = Forkable::new(|| Lock::new(Vec::new()));

/// Gives `buffer` memory if it has none.
pub(crate) fn borrow(buffer: &mut Vec<u8>) {
    if buffer.capacity() == 0 {
        *buffer = IDLE.get().lock().pop().unwrap_or_else(|| Vec::with_capacity(BUFFER_LEN));
    }
}

/// Returns the memory of an empty buffer to the pool.
pub(crate) fn give_back(buffer: &mut Vec<u8>) {
    debug_assert!(buffer.is_empty());
    // A buffer that had to grow for a foreign peer's FPDUs is not worth keeping.
    if buffer.capacity() != BUFFER_LEN {
        *buffer = Vec::new();
        return;
    }
    let mut idle = IDLE.get().lock();
    if idle.len() < IDLE_BUFFERS_MAX {
        idle.push(std::mem::take(buffer));
    } else {
        drop(idle);
        *buffer = Vec::new();
    }
}
