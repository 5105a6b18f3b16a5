//! Wakes a thread that waits for descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};

/// An eventfd. It is readable from a notification until it is cleared.
#[derive(Debug)]
pub struct Wakeup(OwnedFd);

impl Wakeup {
    /// Returns a wakeup without a notification.
    ///
    /// # Errors
    ///
    /// If the kernel has no descriptor for it.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Notifies the thread.
    pub fn notify(&self) {
        // It fails only if the count is full, and then the thread is notified already.
        let _ = write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Clears notifications.
    pub fn clear(&self) {
        let mut count = [0; 8];
        // It fails if there are none.
        let _ = read(&self.0, &mut count);
    }
}

impl AsFd for Wakeup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
