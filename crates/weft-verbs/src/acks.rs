//! Events that a program has taken and not acknowledged yet.
//!
//! A program may still use an object whose event it has taken, so destroying the object waits for
//! the acknowledgement (ibv_get_async_event(3), ibv_get_cq_event(3)).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

/// The count for one object and one kind of event.
#[derive(Clone, Debug, Default)]
pub(crate) struct Acks {
    /// Shared, so that the last acknowledgement outlives the object that it releases.
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    outstanding: AtomicU32,
    /// Threads that wait, so that the usual acknowledgement needs no system call.
    waiting: AtomicU32,
}

impl Acks {
    /// The program has taken an event.
    pub(crate) fn delivered(&self) {
        self.state.outstanding.fetch_add(1, Ordering::AcqRel);
    }

    /// The program acknowledges `count` events.
    pub(crate) fn acknowledge(&self, count: u32) {
        let state = Arc::clone(&self.state);
        let before = state.outstanding.fetch_sub(count, Ordering::SeqCst);
        // A waiting thread publishes that before it looks at the count.
        if before <= count && state.waiting.load(Ordering::SeqCst) != 0 {
            let _ = futex::wake(&state.outstanding, futex::Flags::PRIVATE, u32::MAX);
        }
    }

    /// Waits until every event that was taken is acknowledged. The wait is no cancellation point.
    pub(crate) fn wait(&self) {
        self.state.waiting.fetch_add(1, Ordering::SeqCst);
        loop {
            let outstanding = self.state.outstanding.load(Ordering::SeqCst);
            // A program that acknowledges too much has not lost its right to destroy the object.
            if outstanding.cast_signed() <= 0 {
                break;
            }
            // Interrupted or late, it only means looking again.
            let _ = futex::wait(&self.state.outstanding, futex::Flags::PRIVATE, outstanding, None);
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
