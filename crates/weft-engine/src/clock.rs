//! The clock of completion time stamps: monotonic nanoseconds that NTP does not adjust, like a
//! card's own clock. Also a bounded wait for another process.

use std::time::{Duration, Instant};

use weft_sys::calls::time::{ClockId, Timespec, clock_gettime};

/// Ticks in a millisecond (`hca_core_clock` in kHz).
pub const KHZ: u64 = 1_000_000;

const NANOSECONDS: u64 = 1_000_000_000;

/// The current time of the clock.
#[must_use]
pub fn now() -> Timespec {
    clock_gettime(ClockId::MonotonicRaw)
}

/// The current time in ticks.
#[must_use]
pub fn ticks() -> u64 {
    nanoseconds(now())
}

/// Converts ticks of the clock to nanoseconds since 1970.
#[must_use]
pub fn time_of_day(then: u64) -> u64 {
    let today = nanoseconds(clock_gettime(ClockId::Realtime));
    today.wrapping_sub(ticks().wrapping_sub(then))
}

/// Waits until `is_done`, yielding the core between checks. Returns false if `limit` passes first.
pub(crate) fn yield_until(limit: Duration, mut is_done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !is_done() {
        if start.elapsed() > limit {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec.cast_unsigned().wrapping_mul(NANOSECONDS).wrapping_add(time.tv_nsec.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_day_matches_the_wall_clock_at_the_tick() {
        let before = nanoseconds(clock_gettime(ClockId::Realtime));
        let tick = ticks();
        let after = nanoseconds(clock_gettime(ClockId::Realtime));
        // The clocks are read one after the other.
        let slack = NANOSECONDS / 10;
        assert!((before - slack..after + slack).contains(&time_of_day(tick)));
        assert!(ticks() >= tick);
    }

    #[test]
    fn yield_until_ends_when_done_or_at_the_limit() {
        let mut looks = 0;
        let is_third = || {
            looks += 1;
            looks == 3
        };
        assert!(yield_until(Duration::MAX, is_third));
        assert!(!yield_until(Duration::ZERO, || false));
    }
}
