//! A word of shared memory on which threads wait, by a futex, until a peer has brought something.
//! This wakes faster than a socket or a pipe. But only the peer can wake the thread, and the peer
//! may have died, so every wait is short.
//!
//! A thread announces its wait and then checks once more; the peer brings something and then asks
//! whether a thread waits. Each side writes before it reads, with a full barrier between, so at
//! least one of them sees the other.

#[cfg(not(loom))]
use smallvec::SmallVec;

use crate::atomic::{AtomicU32, Ordering, fence};

/// Number of words that one thread can wait on without an allocation.
#[cfg(not(loom))]
const USUAL_WORDS: usize = 8;

const NO_WAITERS: u32 = 0;
const MAY_WAIT: u32 = 1;

/// A word that threads wait on, initially zero. It may have any value, because the peer can write
/// it.
#[derive(Clone, Copy, Debug)]
pub struct FutexWord<'a>(&'a AtomicU32);

impl<'a> FutexWord<'a> {
    /// Uses `word` as a futex.
    #[must_use]
    pub fn on(word: &'a AtomicU32) -> Self {
        Self(word)
    }

    /// Announces that the calling thread is about to wait. It must check once more before it does.
    pub fn begin_wait(self) {
        self.0.store(MAY_WAIT, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Waits until a peer wakes the thread, for `time` at most. Returns at once if the peer has
    /// woken it since [`FutexWord::begin_wait`].
    ///
    /// # Errors
    /// `EINTR`: a signal was handled.
    #[cfg(not(loom))]
    pub fn wait(self, time: &crate::calls::time::Timespec) -> Result<(), crate::calls::io::Errno> {
        use crate::calls::{Sharing, futex_wait};
        match futex_wait(self.0, Sharing::Processes, MAY_WAIT, Some(time)) {
            Err(crate::calls::io::Errno::INTR) => Err(crate::calls::io::Errno::INTR),
            _ => Ok(()),
        }
    }

    /// Waits on several words until a peer wakes the thread, up to a time of the monotonic clock.
    /// Returns at once if the kernel has no such call (Linux before 5.16).
    ///
    /// # Errors
    /// `EINTR`: a signal was handled.
    #[cfg(not(loom))]
    pub fn wait_any(
        words: impl Iterator<Item = Self>,
        until: &crate::calls::time::Timespec,
    ) -> Result<(), crate::calls::io::Errno> {
        use crate::calls::thread::futex::{Wait, WaitFlags, WaitPtr};
        let waits: SmallVec<[Wait; USUAL_WORDS]> = words
            .map(|word| {
                let mut wait = Wait::new();
                wait.val = MAY_WAIT.into();
                wait.uaddr = WaitPtr::new(word.0.as_ptr().cast());
                wait.flags = WaitFlags::SIZE_U32;
                wait
            })
            .collect();
        match crate::calls::futex_wait_any(&waits, until) {
            Err(crate::calls::io::Errno::INTR) => Err(crate::calls::io::Errno::INTR),
            _ => Ok(()),
        }
    }

    /// Whether a thread may be waiting. The peer asks after it has brought something and executed a
    /// full barrier.
    #[inline]
    #[must_use]
    pub fn has_waiters(self) -> bool {
        self.0.load(Ordering::Relaxed) != NO_WAITERS
    }

    /// Wakes all waiting threads. The peer calls this after it has brought something and executed a
    /// full barrier.
    #[inline]
    pub fn wake(self) {
        if self.has_waiters() {
            // A thread that is about to wait finds the word changed; one that waits already is
            // woken.
            self.0.store(NO_WAITERS, Ordering::Relaxed);
            self.wake_waiters();
        }
    }

    #[cfg(not(loom))]
    #[cold]
    fn wake_waiters(self) {
        use crate::calls::{Sharing, futex_wake};
        futex_wake(self.0, Sharing::Processes, u32::MAX);
    }

    /// In a model no thread sleeps: the word alone shows the wakeup.
    #[cfg(loom)]
    fn wake_waiters(self) {}
}
