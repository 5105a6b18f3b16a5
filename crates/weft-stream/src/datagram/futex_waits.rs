//! When a receiver waits on a futex before it sleeps in the kernel, and for how long.
//!
//! A futex wait hides the kernel's socket: what comes there, from other hosts and from programs
//! without Weft, waits until the futex wait is over. So it is bounded, and rare:
//!
//! * A futex wait lasts for one tick of the kernel's at most (4 ms at 250 Hz). A shorter one would
//!   have the hardware's timer set each time, which costs more than all the rest (in a virtual
//!   machine 5 us for each datagram), for the tick is due before any later time.
//! * The kernel has been asked at most [`KERNEL_BELIEF_NS`] before. So while datagrams come through
//!   memory, one of the kernel's is received no later than that, and a datagram, after it came; it
//!   waits for a whole tick only if it comes when those cease.
//! * A socket does a futex wait only if its last wait was short, and ended by a datagram that came
//!   through memory, or would have if the inbox had been open.
//! * A socket to which the kernel brings others does not for the next [`WAITS_WITHOUT`] waits, and
//!   for twice as many each time that it happens again, up to [`WAITS_WITHOUT_MAX`]: in the first
//!   130,000 waits eleven datagrams at most are late, later one in 65,536.

use std::sync::atomic::{AtomicU32, Ordering};
use weft_sys::SectionOnce;

use rustix::time::{ClockId, Timespec, clock_getres};

use crate::limits::WAITS_WITHOUT_MAX;

/// How long it is believed that the kernel has nothing, in nanoseconds.
const KERNEL_BELIEF_NS: u64 = 50_000;
/// A wait, in nanoseconds, that was short: being woken by the kernel is part of it.
const SHORT_NS: u64 = 250_000;
/// Waits without a futex wait after the kernel has brought what memory never would: the
/// first time. At most they are [`WAITS_WITHOUT_MAX`].
const WAITS_WITHOUT: u32 = 64;

/// By which way a datagram came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Through the inbox, or past it because it was shut.
    Memory,
    /// From somebody who knows no inbox.
    Kernel,
}

/// Whether futex waits pay at a socket. Threads may learn at once; then one of the lessons is lost.
#[derive(Debug)]
pub struct FutexWaits {
    pay: AtomicU32,
    /// Waits still to be made without.
    without: AtomicU32,
    /// How many of them the next datagram of the kernel's costs.
    penalty: AtomicU32,
}

impl FutexWaits {
    /// The longest futex wait in the call that has opened the inbox: a sender may have found it
    /// shut before, and hand its datagram to the kernel only now.
    pub const FIRST: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000 };

    /// The longest futex wait: one tick of the kernel's.
    #[must_use]
    pub fn longest() -> Timespec {
        static TICK: SectionOnce<Timespec> = SectionOnce::new();
        // The clock that each tick sets (clock_getres(2)).
        *TICK.get_or_init(|| {
            let tick = clock_getres(ClockId::MonotonicCoarse);
            Timespec { tv_sec: 0, tv_nsec: tick.tv_nsec.clamp(1_000_000, 10_000_000) }
        })
    }

    /// Of a socket of which nothing is known yet.
    #[must_use]
    #[allow(clippy::new_without_default)] // An object of its own, not a value.
    pub fn new() -> Self {
        Self {
            pay: AtomicU32::new(0),
            without: AtomicU32::new(0),
            penalty: AtomicU32::new(WAITS_WITHOUT),
        }
    }

    /// Whether the next wait is to begin with a futex wait.
    #[must_use]
    pub fn pay(&self) -> bool {
        self.pay.load(Ordering::Relaxed) != 0
    }

    /// Whether the kernel was last seen to have nothing too long ago for a futex wait; both times
    /// are in nanoseconds, and one that has not been asked yet is zero.
    #[must_use]
    pub fn is_kernel_doubtful(asked: u64, now: u64) -> bool {
        now.saturating_sub(asked) >= KERNEL_BELIEF_NS
    }

    /// A wait was over after `waited` nanoseconds.
    pub fn learn(&self, waited: u64, by: By) {
        let without = match by {
            By::Kernel => {
                let penalty = self.penalty.load(Ordering::Relaxed);
                self.penalty.store((penalty * 2).min(WAITS_WITHOUT_MAX), Ordering::Relaxed);
                penalty
            }
            By::Memory => self.without.load(Ordering::Relaxed).saturating_sub(1),
        };
        self.without.store(without, Ordering::Relaxed);
        self.pay.store(u32::from(without == 0 && waited < SHORT_NS), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_waits_for_memory_begin_with_a_futex_wait() {
        let futex_waits = FutexWaits::new();
        assert!(!futex_waits.pay(), "nothing is known of it");
        futex_waits.learn(SHORT_NS - 1, By::Memory);
        assert!(futex_waits.pay());
        futex_waits.learn(SHORT_NS, By::Memory);
        assert!(!futex_waits.pay());
    }

    #[test]
    fn futex_wait_is_skipped_after_a_datagram_by_the_kernel() {
        let futex_waits = FutexWaits::new();
        futex_waits.learn(0, By::Memory);
        for without in [64, 128, 256] {
            futex_waits.learn(0, By::Kernel);
            for wait in 1..without {
                futex_waits.learn(0, By::Memory);
                assert!(!futex_waits.pay(), "{wait} of {without}");
            }
            futex_waits.learn(0, By::Memory);
            assert!(futex_waits.pay());
        }
        (0..100).for_each(|_| futex_waits.learn(0, By::Kernel));
        assert_eq!(futex_waits.without.load(Ordering::Relaxed), WAITS_WITHOUT_MAX);
    }

    #[test]
    fn futex_wait_is_bounded() {
        let longest = FutexWaits::longest();
        assert_eq!(longest.tv_sec, 0);
        assert!((1_000_000..=10_000_000).contains(&longest.tv_nsec));
    }
}
