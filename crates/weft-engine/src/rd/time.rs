//! Times of this protocol: microseconds from any origin.

/// No time: later than all others.
pub(super) const NEVER: u64 = u64::MAX;

/// A clock of 32 bits, in microseconds, which is never 0.
pub(super) fn stamp(now: u64) -> u32 {
    (now as u32).max(1)
}
