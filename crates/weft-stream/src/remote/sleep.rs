//! Who waits until the peer has put or taken something.

use std::sync::atomic::Ordering;

use weft_sys::SharedLock;

use super::clock::Clock;
use super::doorbell::For;
use super::end::Remote;
use super::window::Said;
use super::wire::Wire;

impl<W: Wire, C: Clock> Remote<W, C> {
    /// Somebody is about to sleep until [`Remote::doorbell`] rings or the kernel's socket says
    /// something, and looks once more before.
    pub fn begin_sleep(&self) {
        self.local().sleepers.fetch_add(1, Ordering::Relaxed);
        self.doorbell.arm(For::News);
        let told = self.window.told(Said::Tail).load(Ordering::Relaxed);
        if self.is_tail_news(told, 1)
            && let Some(_held) = SharedLock::on(&self.local().rx_lock).lock()
        {
            // If this end dies asleep, the peer knows that it has read all.
            self.tell_tail(self.window.told(Said::Tail).load(Ordering::Relaxed), 1);
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
            self.doorbell.arm(For::News);
            self.drive();
            // Even if TCP has bytes to be read before.
            if self.available() != Ok(0) {
                self.doorbell.ring();
            }
        }
    }

    /// Who is woken by the doorbell calls this before it begins to sleep once more.
    pub fn forget_ring(&self) {
        self.doorbell.clear();
    }

    /// Somebody is about to sleep until there is room, likewise.
    pub fn want_room(&self) {
        self.doorbell.arm(For::Room);
        if let Some(wire) = self.wire() {
            wire.rest();
        }
    }

    /// Whether the peer tells when a writer can go on. What has been posted, only a look tells.
    #[must_use]
    pub fn can_be_rung(&self) -> bool {
        !self.is_crowded()
    }
}
