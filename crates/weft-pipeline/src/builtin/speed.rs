//! Makes a filter as slow as it would be on another host.

use std::thread;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::filter::Filter;
use crate::outputs::Outputs;
use crate::parameters::Parameters;

/// The shortest sleep in nanoseconds. Shorter times add up, because a sleep is not exact.
const SLEEP_MIN: f64 = 200_000.0;

/// A filter that takes a time for each byte. It sleeps, so that one host can act for many.
struct Limited {
    filter: Box<dyn Filter>,
    ns_per_byte: f64,
    /// Nanoseconds that the filter has been faster than it should be.
    ahead: f64,
}

/// Limits the speed of a filter as its parameters say.
pub(super) fn limited(
    filter: Box<dyn Filter>,
    parameters: &Parameters,
    copy: usize,
) -> Result<Box<dyn Filter>, Failure> {
    let mut ns_per_byte: f64 = parameters.get("ns_per_byte")?.unwrap_or(0.0);
    if parameters.get("slow_copy")? == Some(copy) {
        ns_per_byte *= parameters.get("slow_times")?.unwrap_or(1.0);
    }
    if !(0.0..=1e9).contains(&ns_per_byte) {
        return Err(Failure::filter("ns_per_byte: from 0 to a second for each byte"));
    }
    if ns_per_byte == 0.0 {
        return Ok(filter);
    }
    Ok(Box::new(Limited { filter, ns_per_byte, ahead: 0.0 }))
}

impl Filter for Limited {
    fn init(&mut self, parameters: &Parameters) -> Result<(), Failure> {
        self.filter.init(parameters)
    }

    fn produce(&mut self, out: &mut Outputs) -> Result<(), Failure> {
        self.filter.produce(out)
    }

    fn process(&mut self, buffer: &[u8], out: &mut Outputs) -> Result<(), Failure> {
        self.ahead += buffer.len() as f64 * self.ns_per_byte;
        if self.ahead >= SLEEP_MIN {
            let start = Instant::now();
            thread::sleep(Duration::from_nanos(self.ahead as u64));
            self.ahead -= start.elapsed().as_nanos() as f64;
        }
        self.filter.process(buffer, out)
    }

    fn finalize(&mut self, out: &mut Outputs) -> Result<(), Failure> {
        self.filter.finalize(out)
    }
}
