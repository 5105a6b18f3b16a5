//! Looking before sleeping.

use rustix::time::Timespec;
use weft_sys::{Spin, Threads as _, YieldKind, YieldPolicy};

use crate::kernel::{Host, Kernel as _};

/// Looks between two glances at the clock.
const LOOKS: u32 = 16;
/// Nanoseconds after which the core is offered to others, however few looks that were.
const OFFER_NS: u64 = 5_000;

static YIELD_POLICY: YieldPolicy = YieldPolicy::new();

/// Nanoseconds that no one adjusts.
#[inline]
pub(crate) fn now() -> u64 {
    Host::now()
}

/// Nanoseconds as the kernel takes them.
pub(crate) fn timespec(ns: u64) -> Timespec {
    const SECOND: u64 = 1_000_000_000;
    Timespec { tv_sec: (ns / SECOND).cast_signed(), tv_nsec: (ns % SECOND).cast_signed() }
}

/// A wait: began when, and how long it is to be looked through.
#[derive(Debug)]
pub(crate) struct Wait<'a> {
    spin: &'a Spin,
    began: u64,
}

impl<'a> Wait<'a> {
    pub(crate) fn begin(spin: &'a Spin) -> Self {
        Self { spin, began: now() }
    }

    /// Whether [`Wait::look`] would look for any time at all.
    pub(crate) fn would_look(&self) -> bool {
        self.spin.ns(YIELD_POLICY.are_cores_scarce(self.began)) > 0
    }

    /// Looks for as long as that has paid, `most` nanoseconds at most. Whether it is there now.
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
                    return false; // Somebody has work; a sleeper keeps its claim to the core.
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

    /// When it began, in nanoseconds.
    pub(crate) fn began(&self) -> u64 {
        self.began
    }

    /// It is there: remembers how long it took, and returns that, in nanoseconds.
    pub(crate) fn end(self) -> u64 {
        let waited = now().saturating_sub(self.began);
        self.spin.learn(waited);
        waited
    }
}
