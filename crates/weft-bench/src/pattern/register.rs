//! What registering memory costs.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Span, Tally};
use crate::lane::Host;
use crate::memory::Memory;
use crate::plan::Registration;

/// Registers and deregisters a buffer of `size` bytes again and again, and records both times.
///
/// # Errors
/// What the engine reports.
pub(crate) fn register(address: IpAddr, size: usize, duration: Duration) -> Result<Tally> {
    let host = Host::open(address)?;
    let mut memory = Memory::new(&host.pd, 1, size, Registration::EachTime)?;
    let mut tally = Tally::new();
    let span = Span::starting_now(duration);
    loop {
        let started = Instant::now();
        if span.is_over(started) {
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
