//! Messages and their answers.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Span, Tally, pause};
use crate::lane::{Blocking, Lane};
use crate::limits::SILENCE_MAX;
use crate::plan::Operation;

/// Sends a message on each of `connections`, and the next one `gap` after the answer has come;
/// records the round trips. For a one-sided operation the completion is the answer.
///
/// # Errors
/// If a connection breaks or stays silent.
pub(crate) fn ask(
    lane: &mut dyn Lane,
    connections: usize,
    operation: Operation,
    gap: Duration,
    duration: Duration,
) -> Result<Tally> {
    if operation.is_one_sided() {
        return operate(lane, connections, operation, gap, duration);
    }
    let mut tally = Tally::new();
    let mut asked = Vec::new();
    for connection in 0..connections {
        asked.push(Some(Instant::now()));
        lane.send(connection, operation, false, Blocking::Wait)?;
        tally.started += 1;
    }
    let span = Span::starting_now(duration);
    let mut open = connections;
    while open != 0 {
        let arrival = lane.receive(Blocking::Wait)?;
        let now = Instant::now();
        let Some(arrival) = arrival else {
            ensure!(lane.is_lossy(), "no answer for {:?}", lane.silence());
            for (connection, asked) in asked.iter_mut().enumerate() {
                if asked.is_some() {
                    *asked = Some(Instant::now());
                    tally.lost += 1;
                    open -= ask_again(lane, connection, span.is_over(now))?;
                }
            }
            continue;
        };
        // An answer that counts as lost may come late, or after the last message.
        let Some(since) = asked[arrival.connection].take() else { continue };
        tally.ended += 1;
        if span.counts(now) {
            tally.latencies.record(now - since);
            tally.measured += 1;
        }
        if span.is_over(now) {
            lane.send(arrival.connection, operation, true, Blocking::Wait)?;
            open -= 1;
        } else {
            pause(gap);
            asked[arrival.connection] = Some(Instant::now());
            lane.send(arrival.connection, operation, false, Blocking::Wait)?;
            tally.started += 1;
        }
    }
    tally.measured_time = span.counted();
    lane.flush()?;
    Ok(tally)
}

/// Sends the next message, or the last one. Returns how many connections this closes: 0 or 1.
fn ask_again(lane: &mut dyn Lane, connection: usize, last: bool) -> Result<usize> {
    lane.send(connection, Operation::Send, last, Blocking::Wait)?;
    Ok(usize::from(last))
}

/// Executes one operation after another, each when the last one has completed.
fn operate(
    lane: &mut dyn Lane,
    connections: usize,
    operation: Operation,
    gap: Duration,
    duration: Duration,
) -> Result<Tally> {
    let mut tally = Tally::new();
    let span = Span::starting_now(duration);
    for connection in (0..connections).cycle() {
        let since = Instant::now();
        if span.is_over(since) {
            break;
        }
        lane.send(connection, operation, false, Blocking::Wait)?;
        lane.flush()?;
        let now = Instant::now();
        tally.started += 1;
        tally.ended += 1;
        if span.counts(now) {
            tally.latencies.record(now - since);
            tally.measured += 1;
        }
        pause(gap);
    }
    tally.measured_time = span.counted();
    Ok(tally)
}

/// Answers each message, until the last one of each connection has come.
///
/// # Errors
/// If a connection breaks or stays silent.
pub(crate) fn answer(lane: &mut dyn Lane, connections: usize) -> Result<Tally> {
    let mut tally = Tally::new();
    let started = Instant::now();
    let mut open = connections;
    while open != 0 {
        let Some(arrival) = lane.receive(Blocking::Wait)? else {
            ensure!(lane.is_lossy(), "no message for {:?}", lane.silence());
            if tally.ended != 0 {
                break; // The last message was lost.
            }
            ensure!(started.elapsed() < SILENCE_MAX, "no message came at all");
            continue;
        };
        if arrival.last {
            open -= 1;
        } else {
            tally.ended += arrival.messages;
            lane.send(arrival.connection, Operation::Send, false, Blocking::Wait)?;
            tally.started += 1;
        }
    }
    lane.flush()?;
    Ok(tally)
}
