//! A word of shared memory on which threads doze until a peer has brought something: to be woken
//! from this costs a fraction of what a socket or a pipe costs, but only the peer can do it, and it
//! may have died. So nobody dozes for long.
//!
//! A thread says that it is about to doze and then looks once more; the peer brings something and
//! then asks whether anybody dozes. Each side writes before it reads, with a full barrier between,
//! so that at least one of them sees the other.

#[cfg(not(loom))]
use smallvec::SmallVec;

use crate::atomic::{AtomicU32, Ordering, fence};

/// Words that one thread dozes on without taking memory for them.
#[cfg(not(loom))]
const USUAL_WORDS: usize = 8;

const AWAKE: u32 = 0;
const DOZING: u32 = 1;

/// A word for dozers, zero at first. It may have any value: the peer can write it.
#[derive(Clone, Copy, Debug)]
pub struct Doze<'a>(&'a AtomicU32);

impl<'a> Doze<'a> {
    /// The one that `word` is.
    #[must_use]
    pub fn on(word: &'a AtomicU32) -> Self {
        Self(word)
    }

    /// The calling thread is about to doze, and must look once more before it does.
    pub fn settle_down(self) {
        self.0.store(DOZING, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Dozes until a peer wakes it, which it may have done since [`Doze::settle_down`], for `time`
    /// at most.
    ///
    /// # Errors
    /// `EINTR`: a signal was handled.
    #[cfg(not(loom))]
    pub fn doze(self, time: &rustix::time::Timespec) -> Result<(), rustix::io::Errno> {
        use crate::calls::{Sharing, futex_wait};
        match futex_wait(self.0, Sharing::Processes, DOZING, Some(time)) {
            Err(rustix::io::Errno::INTR) => Err(rustix::io::Errno::INTR),
            _ => Ok(()),
        }
    }

    /// The same on several words, up to a time of the monotonic clock, for the first of the peers.
    /// Where the kernel has no such call (Linux before 5.16) it returns at once.
    ///
    /// # Errors
    /// `EINTR`: a signal was handled.
    #[cfg(not(loom))]
    pub fn doze_on_any(
        words: impl Iterator<Item = Self>,
        until: &rustix::time::Timespec,
    ) -> Result<(), rustix::io::Errno> {
        use rustix::thread::futex::{Wait, WaitFlags, WaitPtr};
        let waits: SmallVec<[Wait; USUAL_WORDS]> = words
            .map(|word| {
                let mut wait = Wait::new();
                wait.val = DOZING.into();
                wait.uaddr = WaitPtr::new(word.0.as_ptr().cast());
                wait.flags = WaitFlags::SIZE_U32;
                wait
            })
            .collect();
        match crate::calls::futex_wait_any(&waits, until) {
            Err(rustix::io::Errno::INTR) => Err(rustix::io::Errno::INTR),
            _ => Ok(()),
        }
    }

    /// Whether anybody may doze. A full barrier lies between what has been brought and this.
    #[inline]
    #[must_use]
    pub fn is_on(self) -> bool {
        self.0.load(Ordering::Relaxed) != AWAKE
    }

    /// Wakes all who doze. A full barrier lies between what has been brought and this.
    #[inline]
    pub fn wake(self) {
        if self.is_on() {
            // Who is about to doze finds the word changed; who dozes already is woken.
            self.0.store(AWAKE, Ordering::Relaxed);
            self.wake_sleepers();
        }
    }

    #[cfg(not(loom))]
    #[cold]
    fn wake_sleepers(self) {
        use crate::calls::{Sharing, futex_wake};
        futex_wake(self.0, Sharing::Processes, u32::MAX);
    }

    /// In a model nobody sleeps: the word tells.
    #[cfg(loom)]
    fn wake_sleepers(self) {}
}
