//! Filters for measurements.

use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::failure::Failure;
use crate::filter::Filter;
use crate::limits::DELAYS_MAX;
use crate::outputs::Outputs;
use crate::parameters::Parameters;

/// A longer delay is not one: the buffer has no time of this host.
const PLAUSIBLE_NS: u64 = 3_600_000_000_000;

/// The host's monotonic clock in nanoseconds, which all of its processes share.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    (time.tv_sec as u64) * 1_000_000_000 + time.tv_nsec as u64
}

/// Writes `count` buffers of `size` bytes, each with the time at its begin.
#[derive(Default)]
pub(super) struct Generate {
    count: u64,
    interval: Duration,
    bytes: Vec<u8>,
    size: Option<usize>,
}

impl Filter for Generate {
    fn init(&mut self, parameters: &Parameters) -> Result<(), Failure> {
        self.count = parameters.get("count")?.unwrap_or(1_000);
        self.interval = Duration::from_micros(parameters.get("interval_us")?.unwrap_or(0));
        self.size = parameters.get("size")?;
        Ok(())
    }

    fn produce(&mut self, out: &mut Outputs) -> Result<(), Failure> {
        let most = out.buffer_len();
        let size = self.size.map_or(most, |size| size.min(most));
        self.bytes.resize(size, b'x');
        for _ in 0..self.count {
            if !self.interval.is_zero() {
                thread::sleep(self.interval);
            }
            if let Some(stamp) = self.bytes.first_chunk_mut() {
                *stamp = now().to_be_bytes();
            }
            out.write(&self.bytes)?;
        }
        Ok(())
    }
}

/// Passes buffers on as they are.
pub(super) struct Pass;

impl Filter for Pass {
    fn init(&mut self, _: &Parameters) -> Result<(), Failure> {
        Ok(())
    }

    fn process(&mut self, buffer: &[u8], out: &mut Outputs) -> Result<(), Failure> {
        out.write(buffer)
    }
}

/// Measures how long buffers take from a `generate` filter to here.
#[derive(Default)]
pub(super) struct Measure {
    delays: Vec<u64>,
}

impl Filter for Measure {
    fn init(&mut self, _: &Parameters) -> Result<(), Failure> {
        Ok(())
    }

    fn process(&mut self, buffer: &[u8], _: &mut Outputs) -> Result<(), Failure> {
        let stamp = buffer.first_chunk().map_or(0, |stamp| u64::from_be_bytes(*stamp));
        let delay = now().wrapping_sub(stamp);
        if delay < PLAUSIBLE_NS && self.delays.len() < DELAYS_MAX {
            self.delays.push(delay);
        }
        Ok(())
    }

    fn finalize(&mut self, out: &mut Outputs) -> Result<(), Failure> {
        self.delays.sort_unstable();
        let Some(last) = self.delays.len().checked_sub(1) else { return Ok(()) };
        let at = |share: f64| self.delays[(last as f64 * share) as usize] as f64 / 1_000.0;
        let (median, high, most) = (at(0.5), at(0.99), at(1.0));
        out.note(format!("delay: median {median:.1} us, 99 % {high:.1} us, most {most:.1} us"));
        Ok(())
    }
}
