//! Wakes the thread that waits on a connection.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// Closes a connection from any thread, and wakes the thread that uses it. Clones share the state.
#[derive(Clone, Debug)]
pub struct Waker(Arc<State>);

#[derive(Debug)]
struct State {
    is_closed: AtomicBool,
    fd: OwnedFd,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(State { is_closed: AtomicBool::new(false), fd })))
    }

    /// Closes the connection: its thread wakes, and its calls fail.
    pub fn close(&self) {
        self.0.is_closed.store(true, Ordering::SeqCst);
        // Adding one to the counter fails only if it is at its maximum.
        let _ = rustix::io::write(&self.0.fd, &1_u64.to_ne_bytes());
    }

    /// Wakes the connection's thread: its wait, or the next one, ends as if its time were over.
    pub fn interrupt(&self) {
        // If it fails the counter is at its maximum, and the thread wakes anyway.
        let _ = rustix::io::write(&self.0.fd, &1_u64.to_ne_bytes());
    }

    /// Forgets interruptions.
    pub(crate) fn clear(&self) {
        // It fails if there are none.
        let _ = rustix::io::read(&self.0.fd, &mut [0; 8]);
    }

    /// Whether the connection is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.is_closed.load(Ordering::SeqCst)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}
