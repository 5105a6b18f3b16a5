//! Operations during a computation: how much of an operation's time a program can use (overlap),
//! and whether the operation proceeds meanwhile (progress).

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::{Span, Tally};
use crate::lane::{Blocking, Lane};
use crate::plan::Operation;
use crate::stats::median;

/// The first computation as a share of the operation's time, and the factor to the next one.
const FIRST_WORK: f64 = 0.1;
const GROWTH: f64 = 1.1;
/// A computation counts as visible when the operation takes this many times as long as without it.
const VISIBLE: f64 = 1.1;
/// Number of computations that are tried: from a tenth of the operation's time to more than twice
/// that.
const STEPS: u32 = 34;
/// Least number of iterations whose median is a time.
const REPEATS_MIN: usize = 5;

/// A computation of a known amount. It takes longer if other threads use the core.
#[derive(Debug)]
pub(super) struct Work {
    rounds_per_us: f64,
}

impl Work {
    /// Measures how fast this core computes.
    pub(super) fn calibrated() -> Self {
        const ROUNDS: u64 = 200_000;
        let time_of = |_| {
            let started = Instant::now();
            Self::rounds(ROUNDS);
            started.elapsed().as_secs_f64() * 1e6
        };
        // The shortest time is the least disturbed one.
        let best = (0..10).map(time_of).fold(f64::INFINITY, f64::min);
        Self { rounds_per_us: ROUNDS as f64 / best }
    }

    pub(super) fn run(&self, us: f64) {
        Self::rounds((us * self.rounds_per_us) as u64);
    }

    fn rounds(count: u64) {
        let mut value = 1u64;
        for round in 0..count {
            value = black_box(value.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round);
        }
    }
}

/// Sends a message, computes for `work`, and then waits for the answer; alternates with the same
/// without the computation. Records the whole time without, and the remaining time after the
/// computation.
///
/// # Errors
/// If the connection breaks or stays silent.
pub(crate) fn compute(lane: &mut dyn Lane, work: Duration, duration: Duration) -> Result<Tally> {
    let cpu = Work::calibrated();
    let mut tally = Tally::new();
    let span = Span::starting_now(duration);
    for computes in [false, true].into_iter().cycle() {
        let started = Instant::now();
        if span.is_over(started) && tally.measured > 1 {
            break;
        }
        lane.send(0, Operation::Send, false, Blocking::Now)?;
        let mut since = started;
        if computes {
            cpu.run(work.as_secs_f64() * 1e6);
            since = Instant::now();
        }
        lane.flush()?;
        lane.receive(Blocking::Wait)?.context("no answer")?;
        let took = since.elapsed();
        tally.started += 1;
        tally.ended += 1;
        if span.counts(started) {
            let times = if computes { &mut tally.after } else { &mut tally.latencies };
            times.record(took);
            tally.measured += 1;
        }
    }
    lane.send(0, Operation::Send, true, Blocking::Wait)?;
    lane.flush()?;
    Ok(tally)
}

/// Finds the longest computation, in steps of a tenth, that prolongs an operation by less than a
/// tenth. The operation is sending a message or, with `receives`, waiting for its answer.
///
/// # Errors
/// If the connection breaks or stays silent.
pub(crate) fn overlap(lane: &mut dyn Lane, receives: bool, duration: Duration) -> Result<Tally> {
    let cpu = Work::calibrated();
    let mut tally = Tally::new();
    let share = duration / (STEPS + 2);
    let mut time_with = |work: f64, lane: &mut dyn Lane| -> Result<f64> {
        let mut times = Vec::new();
        let end = Instant::now() + share;
        while times.len() < REPEATS_MIN || Instant::now() < end {
            let started = Instant::now();
            lane.send(0, Operation::Send, false, Blocking::Now)?;
            cpu.run(work);
            lane.flush()?;
            let sent = Instant::now();
            lane.receive(Blocking::Wait)?.context("no answer")?;
            let ended = if receives { Instant::now() } else { sent };
            times.push((ended - started).as_secs_f64() * 1e6);
        }
        tally.started += times.len() as u64;
        Ok(median(&times))
    };
    time_with(0.0, lane)?; // Warm-up.
    let alone = time_with(0.0, lane)?;
    let mut work = alone * FIRST_WORK;
    let mut found = [alone, 0.0, alone];
    for _ in 0..STEPS {
        let with = time_with(work, lane)?;
        if with >= alone * VISIBLE {
            break;
        }
        found = [alone, work, with];
        work *= GROWTH;
    }
    lane.send(0, Operation::Send, true, Blocking::Wait)?;
    lane.flush()?;
    tally.ended = tally.started;
    tally.measured = tally.started;
    tally.overlap_us = Some(found);
    Ok(tally)
}

/// Keeps a core busy until `stop` is set.
pub(crate) fn burn(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        Work::rounds(10_000);
    }
}
