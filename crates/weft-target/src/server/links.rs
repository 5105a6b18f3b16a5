//! The connections over RDMA, as far as other threads know them.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use weft_rdma::Waker;
use weft_sys::lock;

use super::wakeup::Wakeup;
use crate::limits::RDMA_CONNECTIONS_MAX;

/// The connections.
pub(super) struct Links<'a> {
    state: Mutex<State>,
    /// One more than the seconds that initiators have to log out; 0 while they need not.
    draining: AtomicU32,
    /// Is notified when a connection has ended.
    ended: &'a Wakeup,
}

#[derive(Default)]
struct State {
    /// `None` until a connection is accepted.
    wakers: HashMap<u64, Option<Waker>>,
    last: u64,
    is_closed: bool,
}

/// The place of a connection, free again when it is dropped.
pub(super) struct Place<'a> {
    links: &'a Links<'a>,
    number: u64,
}

impl<'a> Links<'a> {
    /// Returns none.
    pub(super) fn new(ended: &'a Wakeup) -> Self {
        Self { state: Mutex::default(), draining: AtomicU32::new(0), ended }
    }

    /// Adds a connection that is to be accepted. `None` if there are too many.
    pub(super) fn add(&'a self) -> Option<Place<'a>> {
        let mut state = lock(&self.state);
        if state.wakers.len() >= RDMA_CONNECTIONS_MAX {
            return None;
        }
        state.last += 1;
        let number = state.last;
        state.wakers.insert(number, None);
        Some(Place { links: self, number })
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.state).wakers.is_empty()
    }

    /// Asks the initiators to log out within this many seconds.
    pub(super) fn drain(&self, seconds: u16) {
        self.draining.store(u32::from(seconds) + 1, Ordering::SeqCst);
        lock(&self.state).wakers.values().flatten().for_each(Waker::interrupt);
    }

    /// The seconds in which initiators have to log out, if they have to.
    pub(super) fn seconds_to_log_out(&self) -> Option<u16> {
        self.draining.load(Ordering::SeqCst).checked_sub(1)?.try_into().ok()
    }

    /// Closes all connections, those that are being accepted, too.
    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        state.wakers.values().flatten().for_each(Waker::close);
    }
}

impl Place<'_> {
    /// Notes that the connection is accepted.
    pub(super) fn set(&self, waker: Waker) {
        let mut state = lock(&self.links.state);
        if state.is_closed {
            waker.close();
        }
        state.wakers.insert(self.number, Some(waker));
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        lock(&self.links.state).wakers.remove(&self.number);
        self.links.ended.notify();
    }
}
