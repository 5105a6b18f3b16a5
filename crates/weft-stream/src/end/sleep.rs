//! What a thread publishes before it sleeps.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use weft_sys::calls::io::Errno;
use weft_sys::calls::time::Timespec;
use weft_sys::{FutexWord, Tag};

use crate::kernel::Kernel;

use super::{Carrier, End, WANTED_BY_FUTEX, WANTED_BY_POLL};

impl<K: Kernel> End<K> {
    /// Returns pending credits to the peer's writer. A reader calls it when it will not read again
    /// soon: under credit-based flow control the credits may not have been due yet.
    pub fn acknowledge(&self, socket: K::Socket<'_>) {
        if self.rx.acknowledge() {
            self.announce_room(socket);
        }
    }

    /// Whether the kernel has nothing for a reader of empty rings (wakeups, bytes or an end), as
    /// far as the peer has published. A peer that was killed has published nothing.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let pending = self.own.wakeup.load(Ordering::Relaxed)
            | self.own.gone.load(Ordering::Relaxed)
            | self.own.shut_read.load(Ordering::Relaxed)
            | self.peer.parted.load(Ordering::Relaxed)
            | self.peer.shut_write.load(Ordering::Relaxed);
        pending == 0 && self.carrier_in() == Carrier::Memory
    }

    /// Begins a sleep: from here on the peer sends a wakeup when it has put something.
    pub fn begin_sleep(&self) {
        self.own.waits().begin_sleep();
    }

    /// Publishes this sleeper's tag before it sleeps; `None` clears it: see
    /// [`Waits::tag`](weft_sys::Waits::tag). `false` if other processes hold the socket, because a
    /// tag names only one sleep.
    pub fn tag_sleep(&self, tag: Option<Tag>) -> bool {
        self.own.waits().tag(tag);
        fence(Ordering::SeqCst);
        let is_alone = self.own.refs.load(Ordering::Relaxed) == 1;
        if !is_alone {
            self.own.waits().tag(None);
        }
        is_alone
    }

    /// Ends the sleep that [`End::begin_sleep`] began.
    pub fn end_sleep(&self) {
        self.own.waits().end_sleep();
    }

    /// Sleeps until the peer has put something, for `time` at most. This wakes faster than a byte
    /// by TCP, but only the peer itself can do it, and it may have died.
    ///
    /// # Errors
    /// `EINTR`: a signal was handled.
    pub fn futex_wait(&self, time: &Timespec) -> Result<(), Errno> {
        self.begin_futex_wait().map_or(Ok(()), |word| word.wait(time))
    }

    /// Begins a futex wait, and returns the word to wait on. `None` if something is there, or the
    /// peer closes or shuts down, which the kernel reports.
    #[must_use]
    pub fn begin_futex_wait(&self) -> Option<FutexWord<'static>> {
        let word = self.own.waits().futex;
        word.begin_wait();
        let ends =
            self.peer.parted.load(Ordering::Relaxed) | self.peer.shut_write.load(Ordering::Relaxed);
        (ends == 0 && self.unread() == 0).then_some(word)
    }

    /// Whether more threads sleep in the kernel until something comes than `own`, those of the
    /// caller.
    #[inline]
    pub(super) fn do_others_sleep(&self, own: u32) -> bool {
        self.own.sleepers.load(Ordering::Acquire) > own
    }

    /// Whether wakeups were left for other sleepers and are not needed any more: they would fill
    /// the socket in time. `own` is the number of sleepers that are the caller's.
    #[inline]
    #[must_use]
    pub fn has_left_wakeups(&self, own: u32) -> bool {
        self.do_others_sleep(own) && self.wakeups_left() > 0 && self.unread() == 0
    }

    /// Asks the peer for one wakeup when it has made room.
    pub fn want_room(&self) {
        self.own.waits().want_room(WANTED_BY_POLL);
    }

    /// Number of wakeups that have been taken from the socket. A thread that has taken another's
    /// has to wake that one.
    #[inline]
    #[must_use]
    pub fn wakeups_taken(&self) -> u64 {
        self.rx.words().wakeups_taken.load(Ordering::Relaxed)
    }

    /// Whether the peer can send wakeups. If it cannot, because it has shut down its writing half,
    /// a writer that waits for room has to poll for it.
    #[must_use]
    pub fn can_be_woken(&self) -> bool {
        self.peer.shut_write.load(Ordering::Relaxed) == 0 && self.carrier_in() == Carrier::Memory
    }

    /// The word on which a writer sleeps by a futex, and its value. The writer checks for room once
    /// more before it sleeps.
    #[must_use]
    pub fn want_room_by_futex(&self) -> (&'static AtomicU32, u32) {
        (&self.own.space_wanted, self.own.waits().want_room(WANTED_BY_FUTEX))
    }
}
