//! Waiting until the peer has put or taken something.

use std::sync::atomic::Ordering;

use weft_sys::SharedLock;

use super::clock::Clock;
use super::end::Remote;
use super::wakeup_fd::For;
use super::window::StateWord;
use super::wire::Wire;

impl<W: Wire, C: Clock> Remote<W, C> {
    /// Begins a sleep, which [`Remote::wakeup_fd`] or the kernel's socket ends. The thread checks
    /// once more before it sleeps.
    pub fn begin_sleep(&self) {
        self.local().sleepers.fetch_add(1, Ordering::Relaxed);
        self.wakeup_fd.arm(For::EventReport);
        let tail = self.window.local_state(StateWord::Tail).load(Ordering::Relaxed);
        if self.is_new_tail(tail, 1)
            && let Some(_held) = SharedLock::on(&self.local().rx_lock).lock()
        {
            // If this end dies asleep, the peer knows that everything has been read.
            self.report_tail(self.window.local_state(StateWord::Tail).load(Ordering::Relaxed), 1);
        }
        if let Some(wire) = self.wire() {
            wire.rest();
        }
    }

    /// Ends the sleep that [`Remote::begin_sleep`] began. Bytes that this thread has left wake the
    /// next one.
    pub fn end_sleep(&self) {
        let fewer = |sleepers: u32| sleepers.checked_sub(1);
        let sleepers = &self.local().sleepers;
        let before = sleepers.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fewer);
        if before.is_ok_and(|before| before > 1) {
            // The wakeup of this thread has disarmed the eventfd for the others.
            self.wakeup_fd.arm(For::EventReport);
            self.drive();
            // Even if TCP has bytes that must be read before.
            if self.available() != Ok(0) {
                self.wakeup_fd.ring();
            }
        }
    }

    /// Clears the eventfd. A thread that it has woken calls this before it begins another sleep.
    pub fn clear_wakeup(&self) {
        self.wakeup_fd.clear();
    }

    /// Arms the eventfd for a thread that is about to sleep until there is room.
    pub fn want_room(&self) {
        self.wakeup_fd.arm(For::Room);
        if let Some(wire) = self.wire() {
            wire.rest();
        }
    }

    /// Whether the peer's words show when a writer can go on. If too much is posted, only driving
    /// the wire shows it.
    #[must_use]
    pub fn can_be_woken(&self) -> bool {
        !self.is_crowded()
    }
}
