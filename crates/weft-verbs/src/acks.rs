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
    outstanding: Arc<AtomicU32>,
}

impl Acks {
    /// The program has taken an event.
    pub(crate) fn delivered(&self) {
        self.outstanding.fetch_add(1, Ordering::AcqRel);
    }

    /// The program acknowledges `count` events.
    pub(crate) fn acknowledge(&self, count: u32) {
        let outstanding = Arc::clone(&self.outstanding);
        let before = outstanding.fetch_sub(count, Ordering::AcqRel);
        if before <= count {
            let _ = futex::wake(&outstanding, futex::Flags::PRIVATE, u32::MAX);
        }
    }

    /// Waits until every event that was taken is acknowledged. The wait is no cancellation point.
    pub(crate) fn wait(&self) {
        loop {
            let outstanding = self.outstanding.load(Ordering::Acquire);
            // A program that acknowledges too much has not lost its right to destroy the object.
            if outstanding.cast_signed() <= 0 {
                return;
            }
            // Interrupted or late, it only means looking again.
            let _ = futex::wait(&self.outstanding, futex::Flags::PRIVATE, outstanding, None);
        }
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
