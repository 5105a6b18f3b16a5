//! Going back to TCP.
//!
//! Each end says, in a word of its own, behind which of its bytes its stream goes on over TCP, and
//! sends the first of those when the word has arrived. What TCP brings is the stream and nothing
//! else: the process that gets the socket next need not know of any of this.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use weft_sys::{SharedGuard, SharedLock};

use super::clock::Clock;
use super::end::{Broken, FLUSH_NS, Remote};
use super::window::{StateWord, is_set, state};
use super::wire::Wire;

/// How long an end that leaves waits for the peer to do the same: a thread of the peer's process
/// answers, whatever the program does.
const ANSWER_NS: u64 = 1_000_000_000;

impl<W: Wire, C: Clock> Remote<W, C> {
    /// Goes back to TCP in both directions for good: before a child is born, and for what only TCP
    /// has. When this returns, all that this end has sent is at the peer; what the peer has put is
    /// here, and what it sends from here on comes over TCP.
    pub fn leave(&self, socket: BorrowedFd<'_>) {
        if !self.is_owner() {
            return; // Done before this process was born.
        }
        if self.local().leaves.swap(1, Ordering::SeqCst) != 0 {
            return;
        }
        if !self.drive_until(FLUSH_NS, || !self.is_pending()) {
            self.give_up();
        }
        let Some(wire) = self.wire() else { return };
        if let Some(held) = SharedLock::on(&self.local().tx_lock).lock() {
            self.leave_silently(&held);
        }
        if !self.say(StateWord::Leaves, 1) {
            let may_be_more = self.switch_in().is_some() && self.back_in().is_none();
            if may_be_more && !self.peer_says(state::SHUT_WRITE) {
                self.reset_silently(socket); // What the peer has put is lost.
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

    /// The own direction goes back to TCP, or never leaves it. The lock is held.
    pub(super) fn leave_held(&self, _held: &SharedGuard<'_>) -> Result<(), Broken> {
        let is_decided = self.back_out().is_some();
        if is_decided || is_set(&self.local().gone) || self.peer_says(state::CLOSED) {
            return Ok(());
        }
        let head = self.window.local_state(StateWord::Head).load(Ordering::Relaxed);
        // A peer that leaves waits for this, even if nothing more is sent. Whether all of that has
        // arrived was found out then.
        let may_miss_some = || !is_set(&self.local().shut_write) && !self.has_peer_read_all();
        if !self.say(StateWord::Back, head + 1) && may_miss_some() {
            // It has not been published, and what was sent before may be missing.
            self.window.local_state(StateWord::Back).store(0, Ordering::Release);
            return Err(Broken);
        }
        self.show_left();
        Ok(())
    }

    /// The same, where the next call is to say what is wrong.
    fn leave_silently(&self, held: &SharedGuard<'_>) {
        if self.leave_held(held).is_err() && !self.is_reset() {
            self.keep_reset();
        }
    }

    fn show_left(&self) {
        let Some(shown) = self.shown.get() else { return };
        if self.back_out().is_some() {
            shown.left();
        }
        if self.back_in().is_some() {
            shown.peer_left();
        }
    }

    /// Does what a peer wants that goes back to TCP. To be called by any thread of the process when
    /// [`window::is_wish`](super::window::is_wish) has been written; [`Remote::begin`] does so for
    /// what was written before.
    pub fn answer_leave(&self) {
        if self.peer_leaves()
            && self.wire().is_some()
            && self.back_out().is_none()
            && let Some(held) = SharedLock::on(&self.local().tx_lock).lock()
        {
            self.leave_silently(&held);
        }
    }

    /// Whether a direction has gone back, or will not leave, TCP.
    #[must_use]
    pub fn has_left(&self) -> bool {
        is_set(&self.local().leaves) || self.peer_leaves()
    }

    /// Whether bytes of the ring are to be read before those of TCP, to which the peer is back.
    #[must_use]
    pub fn has_rest(&self) -> bool {
        let tail = self.window.local_state(StateWord::Tail).load(Ordering::Relaxed);
        self.back_in().is_some_and(|back| back != tail)
    }

    /// The socket goes to somebody who does not have the ring. If that holds bytes the connection
    /// is reset, rather than that they be missing.
    pub fn hand_on(&self, socket: BorrowedFd<'_>) {
        if self.has_rest() || self.seen() > 0 {
            self.abort(socket);
        }
    }

    /// Whether the peer wants to go back to TCP.
    pub(super) fn peer_leaves(&self) -> bool {
        self.window.peer_state(StateWord::Leaves).load(Ordering::Acquire) != 0
    }
}
