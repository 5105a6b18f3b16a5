//! Measures the cost of registering memory.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Span, Tally};
use crate::lane::Host;
use crate::memory::Memory;
use crate::plan::Registration;

/// Repeatedly registers and deregisters a buffer of `size` bytes, and records both times; at least
/// once, however busy the machine is.
///
/// # Errors
/// The error of the engine.
pub(crate) fn register(address: IpAddr, size: usize, duration: Duration) -> Result<Tally> {
    let host = Host::open(address)?;
    let mut memory = Memory::new(&host.pd, 1, size, Registration::EachTime)?;
    let mut tally = Tally::new();
    let span = Span::starting_now(duration);
    loop {
        let started = Instant::now();
        if span.is_over(started) && tally.measured != 0 {
            return Ok(tally);
        }
        memory.acquire(0, size)?;
        let registered = Instant::now();
        memory.release(0)?;
        let now = Instant::now();
        tally.ended += 1;
        if span.counts(started) {
            tally.latencies.record(registered - started);
            tally.after.record(now - registered);
            tally.measured += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn time_limit_of_zero_still_measures_once() {
        let tally = register(Ipv4Addr::LOCALHOST.into(), 4_096, Duration::ZERO).expect("times");
        assert_eq!(tally.measured, 1);
        assert!(tally.after.percentile_us(50.0) > 0.0);
    }
}
