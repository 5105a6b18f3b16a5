//! What who waits says before it sleeps.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::io::Errno;
use rustix::time::Timespec;
use weft_sys::{FutexWord, Tag};

use crate::kernel::Kernel;

use super::{Carrier, End, WANTED_BY_FUTEX, WANTED_BY_POLL};

impl<K: Kernel> End<K> {
    /// Lets the peer's writer have what has been read, as a reader does that will not come back
    /// soon: under flow control by credits that may not have been due.
    pub fn acknowledge(&self, socket: K::Socket<'_>) {
        if self.rx.acknowledge() {
            self.announce_room(socket);
        }
    }

    /// Whether the kernel has nothing for a reader of empty rings as far as the peer knows: neither
    /// wakeups nor bytes nor an end. A peer that was killed could not publish that.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let pending = self.own.wakeup.load(Ordering::Relaxed)
            | self.own.gone.load(Ordering::Relaxed)
            | self.own.shut_read.load(Ordering::Relaxed)
            | self.peer.parted.load(Ordering::Relaxed)
            | self.peer.shut_write.load(Ordering::Relaxed);
        pending == 0 && self.carrier_in() == Carrier::Memory
    }

    /// From here on the peer sends a wakeup when it has put something.
    pub fn begin_sleep(&self) {
        self.own.waits().settle_down();
    }

    /// Who has begun to sleep says which sleep it is, or with `None` that it is none in particular:
    /// see [`Waits::tag`](weft_sys::Waits::tag). `false`: other processes have the socket, for whom
    /// no tag of this one's says anything.
    pub fn tag_sleep(&self, tag: Option<Tag>) -> bool {
        self.own.waits().tag(tag);
        fence(Ordering::SeqCst);
        let is_alone = self.own.refs.load(Ordering::Relaxed) == 1;
        if !is_alone {
            self.own.waits().tag(None);
        }
        is_alone
    }

    /// The end of what [`End::begin_sleep`] began.
    pub fn end_sleep(&self) {
        self.own.waits().rise();
    }

    /// Sleeps until the peer has put something, for `time` at most: waking from this costs less
    /// than a wakeup by TCP, but only the peer itself can do it, and it may have died.
    ///
    /// # Errors
    /// `EINTR`: a signal was handled.
    pub fn futex_wait(&self, time: &Timespec) -> Result<(), Errno> {
        self.begin_futex_wait().map_or(Ok(()), |word| word.wait(time))
    }

    /// Begins a futex wait, and returns the word to wait on. `None`: something is there, or comes
    /// to an end, which is the kernel's to tell.
    #[must_use]
    pub fn begin_futex_wait(&self) -> Option<FutexWord<'static>> {
        let word = self.own.waits().futex;
        word.settle_down();
        let ends =
            self.peer.parted.load(Ordering::Relaxed) | self.peer.shut_write.load(Ordering::Relaxed);
        (ends == 0 && self.unread() == 0).then_some(word)
    }

    /// Whether any sleep in the kernel until something comes, beside so many of the caller's.
    #[inline]
    pub(super) fn do_others_sleep(&self, own: u32) -> bool {
        self.own.sleepers.load(Ordering::Acquire) > own
    }

    /// Whether wakeups were left for others who slept, and nobody needs them any more: they would
    /// fill the socket in time. So many of those that count as asleep are the caller's own.
    #[inline]
    #[must_use]
    pub fn has_left_wakeups(&self, own: u32) -> bool {
        self.do_others_sleep(own) && self.wakeups_left() > 0 && self.unread() == 0
    }

    /// From here on the peer sends a wakeup, once, when it has made room.
    pub fn want_room(&self) {
        self.own.waits().want_room(WANTED_BY_POLL);
    }

    /// How many wakeups have been taken from the socket: a thread that takes another's has to
    /// tell.
    #[inline]
    #[must_use]
    pub fn wakeups_taken(&self) -> u64 {
        self.rx.words().wakeups_taken.load(Ordering::Relaxed)
    }

    /// Whether the peer can still ring. Who waits for room of one that cannot, because it has shut
    /// down its half, has to look again and again.
    #[must_use]
    pub fn can_be_woken(&self) -> bool {
        self.peer.shut_write.load(Ordering::Relaxed) == 0 && self.carrier_in() == Carrier::Memory
    }

    /// The word on which a writer sleeps by a futex, and its value, after which it looks for room
    /// once more.
    #[must_use]
    pub fn want_room_by_futex(&self) -> (&'static AtomicU32, u32) {
        (&self.own.space_wanted, self.own.waits().want_room(WANTED_BY_FUTEX))
    }
}
