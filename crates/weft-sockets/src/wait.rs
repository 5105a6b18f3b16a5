//! Spinning before sleeping.

use weft_sys::calls::time::Timespec;
use weft_sys::{Spin, Threads as _, YieldKind, YieldPolicy};

use crate::kernel::{Host, Kernel as _};

/// Checks between two readings of the clock.
const LOOKS: u32 = 16;
/// Interval after which a spinning thread offers its core to others, in nanoseconds.
const OFFER_NS: u64 = 5_000;

static YIELD_POLICY: YieldPolicy = YieldPolicy::new();

/// Returns the time of a monotonic clock in nanoseconds.
#[inline]
pub(crate) fn now() -> u64 {
    Host::now()
}

/// Converts nanoseconds to the kernel's structure.
pub(crate) fn timespec(ns: u64) -> Timespec {
    const SECOND: u64 = 1_000_000_000;
    Timespec { tv_sec: (ns / SECOND).cast_signed(), tv_nsec: (ns % SECOND).cast_signed() }
}

/// A wait: when it began, and how long spinning is worth while.
#[derive(Debug)]
pub(crate) struct Wait<'a> {
    spin: &'a Spin,
    began: u64,
}

impl<'a> Wait<'a> {
    pub(crate) fn begin(spin: &'a Spin) -> Self {
        Self { spin, began: now() }
    }

    /// Returns whether [`Wait::look`] would spin at all.
    pub(crate) fn would_look(&self) -> bool {
        self.spin.ns(YIELD_POLICY.are_cores_scarce(self.began)) > 0
    }

    /// Spins for as long as that has paid, for `most` nanoseconds at most. Returns whether
    /// `is_there` has become true.
    pub(crate) fn look(&self, most: u64, mut is_there: impl FnMut() -> bool) -> bool {
        let scarce = YIELD_POLICY.are_cores_scarce(self.began);
        let limit = self.began + self.spin.ns(scarce).min(most);
        let mut looks = 0_u32;
        let mut time = self.began;
        let mut offered = self.began;
        while time < limit {
            for _ in 0..LOOKS {
                if is_there() {
                    return true;
                }
                std::hint::spin_loop();
            }
            looks += LOOKS;
            time = now();
            let by_looks = looks >= YIELD_POLICY.polls_before_yield();
            if by_looks || time >= offered + OFFER_NS {
                looks = 0;
                if YIELD_POLICY.kind(time) == YieldKind::TimedSleep {
                    return false; // Other threads need the core. A sleeper keeps its claim to it.
                }
                Host::offer_core();
                let after = now();
                let took = after - time;
                if by_looks {
                    YIELD_POLICY.learn(took, after);
                } else if YIELD_POLICY.learn_early(took, after) {
                    return is_there();
                }
                (time, offered) = (after, after);
            }
        }
        is_there()
    }

    /// Returns when it began, in nanoseconds.
    pub(crate) fn began(&self) -> u64 {
        self.began
    }

    /// Ends a successful wait: records and returns how long it took, in nanoseconds.
    pub(crate) fn end(self) -> u64 {
        let waited = now().saturating_sub(self.began);
        self.spin.learn(waited);
        waited
    }
}
