//! How who sleeps is woken when the peer has written something: by a thread of this process, which
//! places it.
//!
//! A sleeper arms, looks once more, and sleeps on the event. Who places a word does so, and then
//! looks whether anybody is armed. With a full barrier on either side one of the two looks finds
//! what the other has stored.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};

use super::window::StateWord;

/// What a sleeper waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum For {
    /// Bytes, or whatever else the peer says.
    News = 1,
    /// Room to send.
    Room = 2,
}

/// An event, and who waits for it.
#[derive(Debug)]
pub struct WakeupFd {
    armed: AtomicU32,
    event: OwnedFd,
}

impl WakeupFd {
    pub(super) fn new() -> Result<Self, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { armed: AtomicU32::new(0), event })
    }

    /// The peer's words at these bytes, of those that it may write, have changed. To be called
    /// after they have, by the thread that places them.
    pub fn written(&self, offset: usize, len: usize) {
        const TAIL: usize = 8 * StateWord::Tail as usize;
        let is_tail = offset == TAIL && len <= 8;
        let mut notified = For::Room as u32;
        if !is_tail {
            notified |= For::News as u32;
        }
        fence(Ordering::SeqCst);
        let armed = self.armed.load(Ordering::Relaxed) & notified;
        if armed != 0 && self.armed.fetch_and(!armed, Ordering::AcqRel) & armed != 0 {
            self.ring();
        }
    }

    /// Wakes who sleeps.
    pub fn ring(&self) {
        let _ = write(&self.event, &1_u64.to_ne_bytes()); // A full one is rung.
    }

    /// From here on the next change rings; who sleeps looks once more before.
    pub(super) fn arm(&self, what: For) {
        self.armed.fetch_or(what as u32, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Forgets what it was rung for.
    pub(super) fn clear(&self) {
        let _ = read(&self.event, &mut [0_u8; 8]); // It may not have been rung.
    }
}

impl AsFd for WakeupFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
