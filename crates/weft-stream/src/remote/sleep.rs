//! Who waits until the peer has put or taken something.

use std::sync::atomic::Ordering;

use weft_sys::SharedLock;

use super::clock::Clock;
use super::end::Remote;
use super::wakeup_fd::For;
use super::window::StateWord;
use super::wire::Wire;

impl<W: Wire, C: Clock> Remote<W, C> {
    /// A thread is about to sleep until [`Remote::wakeup_fd`] wakes it or the kernel's socket has
    /// something, and looks once more before.
    pub fn begin_sleep(&self) {
        self.local().sleepers.fetch_add(1, Ordering::Relaxed);
        self.wakeup_fd.arm(For::News);
        let tail = self.window.local_state(StateWord::Tail).load(Ordering::Relaxed);
        if self.is_tail_news(tail, 1)
            && let Some(_held) = SharedLock::on(&self.local().rx_lock).lock()
        {
            // If this end dies asleep, the peer knows that it has read all.
            self.report_tail(self.window.local_state(StateWord::Tail).load(Ordering::Relaxed), 1);
        }
        if let Some(wire) = self.wire() {
            wire.rest();
        }
    }

    /// The end of what [`Remote::begin_sleep`] began. What this one has left wakes the next.
    pub fn end_sleep(&self) {
        let fewer = |sleepers: u32| sleepers.checked_sub(1);
        let sleepers = &self.local().sleepers;
        let before = sleepers.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fewer);
        if before.is_ok_and(|before| before > 1) {
            // What has rung for this one rings for the others no more.
            self.wakeup_fd.arm(For::News);
            self.drive();
            // Even if TCP has bytes to be read before.
            if self.available() != Ok(0) {
                self.wakeup_fd.ring();
            }
        }
    }

    /// A thread that is woken by the eventfd calls this before it begins to sleep once more.
    pub fn clear_wakeup(&self) {
        self.wakeup_fd.clear();
    }

    /// Somebody is about to sleep until there is room, likewise.
    pub fn want_room(&self) {
        self.wakeup_fd.arm(For::Room);
        if let Some(wire) = self.wire() {
            wire.rest();
        }
    }

    /// Whether the peer tells when a writer can go on. What has been posted, only a look tells.
    #[must_use]
    pub fn can_be_woken(&self) -> bool {
        !self.is_crowded()
    }
}
