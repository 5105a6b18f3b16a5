//! The clock by which the time of commands is measured.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::session::Clock;

/// The time since the host was started.
pub const CLOCK: Clock = Clock(now);

fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
