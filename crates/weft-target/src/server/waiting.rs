//! How an event loop waits: it looks for events for as long as that pays off, and then sleeps.
//!
//! Two wakeups, of the target and of the initiator, are most of the time of a short command, and
//! the initiator pays for the target's within its own system call.

use std::os::fd::OwnedFd;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event};
use rustix::io::{Errno, Result};
use weft_sys::{Spin, YieldPolicy, nanoseconds};

use super::clock::CLOCK;
use crate::limits::LOOKS_PER_YIELD;

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// What a loop knows of its waits.
pub(super) struct Waiting {
    spin: Spin,
    yields: YieldPolicy,
}

impl Waiting {
    /// Knows nothing: the first wait sleeps.
    pub(super) fn new() -> Self {
        // Initiators are woken, too, before they send the next command.
        Self { spin: Spin::behind_a_thread(), yields: YieldPolicy::new() }
    }

    /// Waits for events, or until `timeout` is over.
    pub(super) fn wait(
        &self,
        epoll: &OwnedFd,
        events: &mut Vec<Event>,
        timeout: Option<&Timespec>,
    ) -> Result<()> {
        let began = now();
        let look_for = self.spin.ns(self.yields.are_cores_scarce(began));
        if look_for == 0 || !self.look(epoll, events, began + look_for)? {
            take(epoll, events, timeout)?;
        }
        self.spin.learn(now() - began);
        Ok(())
    }

    /// Looks for events until `end`. Other threads of the core have their turn meanwhile: one of
    /// them may be the initiator.
    fn look(&self, epoll: &OwnedFd, events: &mut Vec<Event>, end: u64) -> Result<bool> {
        loop {
            for _ in 0..LOOKS_PER_YIELD {
                take(epoll, events, Some(&AT_ONCE))?;
                if !events.is_empty() {
                    return Ok(true);
                }
            }
            let before = now();
            if before >= end {
                return Ok(false);
            }
            std::thread::yield_now();
            let after = now();
            if self.yields.learn_early(after - before, after) {
                return Ok(false);
            }
        }
    }
}

/// Takes the events that the kernel has within `timeout`.
fn take(epoll: &OwnedFd, events: &mut Vec<Event>, timeout: Option<&Timespec>) -> Result<()> {
    events.clear();
    match epoll::wait(epoll, spare_capacity(events), timeout) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The time in nanoseconds.
fn now() -> u64 {
    nanoseconds((CLOCK.0)())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

    use rustix::event::epoll::{CreateFlags, EventData, EventFlags};

    use super::*;
    use crate::server::Wakeup;

    #[test]
    fn a_wait_ends_with_an_event_whether_it_looks_or_sleeps() {
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let wakeup = Arc::new(Wakeup::new().unwrap());
        epoll::add(&epoll, &*wakeup, EventData::new_u64(7), EventFlags::IN).unwrap();
        let (sender, pauses) = mpsc::channel();
        let notified = Arc::clone(&wakeup);
        let other = thread::spawn(move || {
            for pause in pauses {
                thread::sleep(pause);
                notified.notify();
            }
        });
        let (waiting, mut events) = (Waiting::new(), Vec::with_capacity(4));
        let long = Duration::from_millis(20);
        for pause in [Duration::ZERO; 300].into_iter().chain([long; 3]) {
            sender.send(pause).unwrap();
            waiting.wait(&epoll, &mut events, None).unwrap();
            assert_eq!((events.len(), events[0].data.u64()), (1, 7));
            wakeup.clear();
        }
        assert_eq!(waiting.spin.ns(false), 0, "it looks for events after long waits");
        let timeout = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        waiting.wait(&epoll, &mut events, Some(&timeout)).unwrap();
        assert!(events.is_empty());
        drop(sender);
        other.join().unwrap();
    }
}
