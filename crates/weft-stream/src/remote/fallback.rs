//! Falling back to TCP.
//!
//! Each end publishes, in a word of its own, the position from which its stream continues over TCP,
//! and sends the first of those bytes once the word has arrived. TCP carries nothing but the
//! stream, so the process that gets the socket next need not know about the ring.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use weft_sys::{SharedGuard, SharedLock};

use super::clock::Clock;
use super::end::{Broken, FLUSH_NS, Remote};
use super::window::{StateWord, is_set, state};
use super::wire::Wire;

/// How long an end that falls back waits for the peer to do the same. A thread of the peer's
/// process answers, whatever the program does.
const ANSWER_NS: u64 = 1_000_000_000;

impl<W: Wire, C: Clock> Remote<W, C> {
    /// Falls back to TCP in both directions for good: before a `fork`, and for operations that only
    /// TCP has. When this returns, the peer has all bytes that this end has sent, the peer's bytes
    /// in the ring are here, and what it sends from now on comes over TCP.
    pub fn fall_back_to_tcp(&self, socket: BorrowedFd<'_>) {
        if !self.is_owner() {
            return; // Done before this process was born.
        }
        if self.local().falls_back.swap(1, Ordering::SeqCst) != 0 {
            return;
        }
        if !self.drive_until(FLUSH_NS, || !self.is_pending()) {
            self.give_up();
            // Unless another thread has begun at this moment.
            self.drive_until(FLUSH_NS, || !self.is_pending());
        }
        let Some(wire) = self.wire() else { return };
        if let Some(held) = SharedLock::on(&self.local().tx_lock).lock() {
            self.leave_silently(&held);
        }
        if !self.publish_and_wait(StateWord::Leaves, 1) {
            let may_be_more = self.switch_in().is_some() && self.back_in().is_none();
            if may_be_more && !self.peer_state_has(state::SHUT_WRITE) {
                self.reset_silently(socket); // Bytes that the peer has put are lost.
            }
            return;
        }
        self.drive_until(ANSWER_NS, || self.back_in().is_some() || wire.is_broken());
        if let Some(back) = self.back_in() {
            let head = || self.window.peer_state(StateWord::Head).load(Ordering::Acquire);
            self.drive_until(FLUSH_NS, || head() >= back || wire.is_broken());
        }
        self.show_left();
    }

    /// Makes the sending direction fall back to TCP, or stay there. The caller holds the lock.
    pub(super) fn fall_back_held(&self, _held: &SharedGuard<'_>) -> Result<(), Broken> {
        let is_decided = self.back_out().is_some();
        if is_decided || is_set(&self.local().gone) || self.peer_state_has(state::CLOSED) {
            return Ok(());
        }
        let head = self.window.local_state(StateWord::Head).load(Ordering::Relaxed);
        // A peer that falls back waits for this, even if nothing more is sent. If this half is shut
        // down, `shut_write` has checked that everything arrived.
        let may_miss_some = || !is_set(&self.local().shut_write) && !self.has_peer_read_all();
        if !self.publish_and_wait(StateWord::Back, head + 1) && may_miss_some() {
            // The position has not been published, and bytes sent before may be missing.
            self.window.local_state(StateWord::Back).store(0, Ordering::Release);
            return Err(Broken);
        }
        self.show_left();
        Ok(())
    }

    /// Does the same, and leaves an error to the next call.
    fn leave_silently(&self, held: &SharedGuard<'_>) {
        if self.fall_back_held(held).is_err() && !self.is_reset() {
            self.keep_reset();
        }
    }

    fn show_left(&self) {
        let Some(stat_slot) = self.stat_slot.get() else { return };
        if self.back_out().is_some() {
            stat_slot.fell_back();
        }
        if self.back_in().is_some() {
            stat_slot.peer_left();
        }
    }

    /// Falls back if the peer has asked for it. Any thread of the process calls this when
    /// [`window::is_fallback_request`](super::window::is_fallback_request) has been
    /// written; [`Remote::begin`] handles requests that came before.
    pub fn answer_leave(&self) {
        if self.peer_falls_back()
            && self.wire().is_some()
            && self.back_out().is_none()
            && let Some(held) = SharedLock::on(&self.local().tx_lock).lock()
        {
            self.leave_silently(&held);
        }
    }

    /// Whether a direction has fallen back to TCP, or will not leave it.
    #[must_use]
    pub fn has_fallen_back(&self) -> bool {
        is_set(&self.local().falls_back) || self.peer_falls_back()
    }

    /// Whether bytes of the ring must be read before those that the peer, after its fallback, sends
    /// over TCP.
    #[must_use]
    pub fn has_rest(&self) -> bool {
        let tail = self.window.local_state(StateWord::Tail).load(Ordering::Relaxed);
        self.back_in().is_some_and(|back| back != tail)
    }

    /// Prepares for a process that gets the socket without the ring. If the ring holds bytes the
    /// connection is reset, so that none are missing unnoticed.
    pub fn hand_on(&self, socket: BorrowedFd<'_>) {
        if self.has_rest() || self.seen() > 0 {
            self.abort(socket);
        }
    }

    /// Whether the peer wants to fall back to TCP.
    pub(super) fn peer_falls_back(&self) -> bool {
        self.window.peer_state(StateWord::Leaves).load(Ordering::Acquire) != 0
    }
}
