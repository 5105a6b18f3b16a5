//! The clock that completions are stamped with: nanoseconds that no one adjusts, as a card's own
//! clock would count. Beside it a wait for what another process does.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Ticks in a millisecond, which is what `hca_core_clock` says in kHz.
pub const KHZ: u64 = 1_000_000;

const NANOSECONDS: u64 = 1_000_000_000;

/// The time on the clock.
#[must_use]
pub fn now() -> Timespec {
    clock_gettime(ClockId::MonotonicRaw)
}

/// The ticks of the clock.
#[must_use]
pub fn ticks() -> u64 {
    nanoseconds(now())
}

/// The time of day, in nanoseconds since 1970, at which the clock had these ticks.
#[must_use]
pub fn time_of_day(then: u64) -> u64 {
    let today = nanoseconds(clock_gettime(ClockId::Realtime));
    today.wrapping_sub(ticks().wrapping_sub(then))
}

/// Waits until `is_done`, with the core left to others between two looks. Returns false when
/// `limit` has passed before.
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
    fn the_time_of_day_is_that_of_the_tick() {
        let before = nanoseconds(clock_gettime(ClockId::Realtime));
        let tick = ticks();
        let after = nanoseconds(clock_gettime(ClockId::Realtime));
        // Two clocks are read one after the other.
        let slack = NANOSECONDS / 10;
        assert!((before - slack..after + slack).contains(&time_of_day(tick)));
        assert!(ticks() >= tick);
    }

    #[test]
    fn a_wait_ends_when_it_is_over_or_at_its_limit() {
        let mut looks = 0;
        let is_third = || {
            looks += 1;
            looks == 3
        };
        assert!(yield_until(Duration::MAX, is_third));
        assert!(!yield_until(Duration::ZERO, || false));
    }
}
