//! A one-way stream from a program that works between messages: it computes, or writes to the
//! buffer that it has just sent (Balaji 2006, chapter 5: overlap and page faults).

use std::time::{Duration, Instant};

use anyhow::Result;

use super::Tally;
use super::compute::Work;
use crate::lane::{Blocking, Lane};
use crate::plan::Operation;

/// Sends for `duration`, and computes for `work` after each message. Writes to the buffer after
/// every `touch_every` messages, or never if that is 0.
///
/// # Errors
/// If the connection breaks or stays silent.
pub(crate) fn produce(
    lane: &mut dyn Lane,
    work: Duration,
    touch_every: usize,
    duration: Duration,
) -> Result<Tally> {
    let cpu = Work::calibrated();
    let work_us = work.as_secs_f64() * 1e6;
    let mut tally = Tally::new();
    let mut untouched = 0;
    let end = Instant::now() + duration;
    while Instant::now() < end {
        lane.send(0, Operation::Send, false, Blocking::Wait)?;
        tally.started += 1;
        untouched += 1;
        if untouched == touch_every {
            lane.touch();
            untouched = 0;
        }
        if work_us > 0.0 {
            cpu.run(work_us);
        }
    }
    lane.send(0, Operation::Send, true, Blocking::Wait)?;
    lane.flush()?;
    Ok(tally)
}
