//! Wakes sleepers when the peer has written something. The service thread of this process, which
//! places the peer's words, does it.
//!
//! A sleeper arms, checks once more, and sleeps on the eventfd. The service thread places a word,
//! and then checks whether a sleeper is armed. With a full barrier on either side, at least one of
//! the two sees what the other has stored.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use weft_sys::calls::event::{EventfdFlags, eventfd};
use weft_sys::calls::io::{Errno, read, write};

use super::window::StateWord;

/// What a sleeper waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum For {
    /// Bytes, or another word of the peer.
    EventReport = 1,
    /// Room to send.
    Room = 2,
}

/// An eventfd, and the events that sleepers wait for.
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

    /// Notifies sleepers of a change of the peer's words in this range of its state. The thread
    /// that places the words calls it after they have changed.
    pub fn written(&self, offset: usize, len: usize) {
        const TAIL: usize = 8 * StateWord::Tail as usize;
        let is_tail = offset == TAIL && len <= 8;
        let mut notified = For::Room as u32;
        if !is_tail {
            notified |= For::EventReport as u32;
        }
        fence(Ordering::SeqCst);
        let armed = self.armed.load(Ordering::Relaxed) & notified;
        if armed != 0 && self.armed.fetch_and(!armed, Ordering::AcqRel) & armed != 0 {
            self.ring();
        }
    }

    /// Wakes the sleepers.
    pub fn ring(&self) {
        let _ = write(&self.event, &1_u64.to_ne_bytes()); // A full eventfd is readable already.
    }

    /// Makes the next change wake the sleeper, which checks once more before it sleeps.
    pub(super) fn arm(&self, what: For) {
        self.armed.fetch_or(what as u32, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Drains the eventfd.
    pub(super) fn clear(&self) {
        let _ = read(&self.event, &mut [0_u8; 8]); // It may not have been written to.
    }
}

impl AsFd for WakeupFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
