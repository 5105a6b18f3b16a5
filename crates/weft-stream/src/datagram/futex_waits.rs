//! Decides whether a receiver waits on a futex before it sleeps in the kernel, and for how long.
//!
//! During a futex wait the thread does not see the kernel's socket: datagrams from other hosts, and
//! from programs without Weft, wait until the futex wait ends. So futex waits are short and rare:
//!
//! * A futex wait lasts at most one tick of the kernel (4 ms at 250 Hz). A shorter timeout would
//!   program the hardware timer each time, which costs more than all the rest (in a virtual machine
//!   5 us for each datagram); the tick comes before any later time anyway.
//! * The kernel has been asked at most [`KERNEL_RECHECK_NS`] before. So while datagrams come
//!   through memory, one that comes by the kernel is received at most that time, plus one datagram,
//!   late. It waits for a whole tick only if it comes when the others stop.
//! * A socket does a futex wait only if its last wait was short and ended by a datagram that came
//!   through memory, or would have if the inbox had been open.
//! * After the kernel has brought a datagram of another kind, the socket makes its next
//!   [`WAITS_WITHOUT`] waits without a futex, and twice as many each time that it happens again, up
//!   to [`WAITS_WITHOUT_MAX`]. So at most eleven datagrams are late in the first 130,000 waits, and
//!   later one in 65,536.

use std::sync::atomic::{AtomicU32, Ordering};
use weft_sys::SectionOnce;

use weft_sys::calls::time::{ClockId, Timespec, clock_getres};

use crate::limits::WAITS_WITHOUT_MAX;

/// How long, in nanoseconds, an empty kernel socket is assumed to stay empty.
const KERNEL_RECHECK_NS: u64 = 50_000;
/// A wait shorter than this, in nanoseconds, is short. It includes a wakeup by the kernel.
const SHORT_NS: u64 = 250_000;
/// Number of waits without a futex after the first datagram that only the kernel could bring. It
/// doubles up to [`WAITS_WITHOUT_MAX`].
const WAITS_WITHOUT: u32 = 64;

/// The way by which a datagram came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Through the inbox, or by the kernel because the inbox was shut.
    Memory,
    /// By the kernel, from a sender that knows no inbox.
    Kernel,
}

/// Learns whether futex waits pay off at a socket. If two threads learn at once, one result is
/// lost.
#[derive(Debug)]
pub struct FutexWaits {
    pay: AtomicU32,
    /// Waits that are still to be made without a futex.
    without: AtomicU32,
    /// The number of such waits after the next datagram by the kernel.
    penalty: AtomicU32,
}

impl FutexWaits {
    /// The longest futex wait in the call that has opened the inbox. A sender may have found the
    /// inbox shut before, and may pass its datagram to the kernel only now.
    pub const FIRST: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000 };

    /// The longest futex wait: one tick of the kernel.
    #[must_use]
    pub fn longest() -> Timespec {
        static TICK: SectionOnce<Timespec> = SectionOnce::new();
        // The clock that each tick advances (`clock_getres(2)`).
        *TICK.get_or_init(|| {
            let tick = clock_getres(ClockId::MonotonicCoarse);
            Timespec { tv_sec: 0, tv_nsec: tick.tv_nsec.clamp(1_000_000, 10_000_000) }
        })
    }

    /// The state of a socket of which nothing is known yet.
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

    /// Whether the kernel's socket was found empty too long ago for a futex wait. Both times are in
    /// nanoseconds; `asked` is 0 if the kernel has not been asked yet.
    #[must_use]
    pub fn is_kernel_doubtful(asked: u64, now: u64) -> bool {
        now.saturating_sub(asked) >= KERNEL_RECHECK_NS
    }

    /// Records that a wait ended after `waited` nanoseconds.
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
