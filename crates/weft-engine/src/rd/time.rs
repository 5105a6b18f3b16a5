//! Times of the protocol, in microseconds from any origin.

/// A time later than all others: never.
pub(super) const NEVER: u64 = u64::MAX;

/// The 32-bit timestamp of a time in microseconds; never 0.
pub(super) fn stamp(now: u64) -> u32 {
    (now as u32).max(1)
}
