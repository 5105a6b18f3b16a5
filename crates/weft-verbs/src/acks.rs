//! Counts the events that a program has taken and not acknowledged yet.
//!
//! A program may still use an object whose event it has taken, so destroying the object waits for
//! the acknowledgement (ibv_get_async_event(3), ibv_get_cq_event(3)).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use weft_sys::calls::{Sharing, futex_wait, futex_wake};

/// The unacknowledged events of one object and one kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Acks {
    /// Shared, because the thread that acknowledges last still uses it while the thread that waited
    /// frees the object.
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    outstanding: AtomicU32,
    /// Number of waiting threads: while it is 0, an acknowledgement needs no system call.
    waiting: AtomicU32,
}

impl Acks {
    /// Counts an event that the program has taken.
    pub(crate) fn delivered(&self) {
        self.state.outstanding.fetch_add(1, Ordering::AcqRel);
    }

    /// Acknowledges `count` events.
    pub(crate) fn acknowledge(&self, count: u32) {
        let state = Arc::clone(&self.state);
        let before = state.outstanding.fetch_sub(count, Ordering::SeqCst);
        // A waiting thread increments `waiting` before it reads `outstanding`, so that one of the
        // two threads sees the other's change.
        if before <= count && state.waiting.load(Ordering::SeqCst) != 0 {
            futex_wake(&state.outstanding, Sharing::Threads, u32::MAX);
        }
    }

    /// Waits until the program has acknowledged every event that it has taken. The wait is no
    /// cancellation point.
    pub(crate) fn wait(&self) {
        self.state.waiting.fetch_add(1, Ordering::SeqCst);
        loop {
            let outstanding = self.state.outstanding.load(Ordering::SeqCst);
            // The count is negative if the program has acknowledged too many events; it may still
            // destroy the object.
            if outstanding.cast_signed() <= 0 {
                break;
            }
            // After an error or a spurious wakeup the loop reads the count again.
            let _ = futex_wait(&self.state.outstanding, Sharing::Threads, outstanding, None);
        }
        self.state.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_the_last_acknowledgement() {
        let acks = Acks::default();
        acks.delivered();
        acks.delivered();
        acks.acknowledge(1);
        let waiter = {
            let acks = acks.clone();
            std::thread::spawn(move || acks.wait())
        };
        acks.acknowledge(1);
        waiter.join().expect("no panic");
        acks.acknowledge(1);
        acks.wait();
    }
}
