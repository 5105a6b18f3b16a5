//! Continuous messages in one or both directions, over one connection or many.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Span, Tally};
use crate::lane::{Arrival, Blocking, Lane};
use crate::limits::SILENCE_MAX;
use crate::plan::{Operation, Way};

/// Messages on one connection before the next connection's turn.
const BURST: usize = 16;

/// Sends on the outgoing connections and receives on the incoming ones, for `duration`. Counts
/// received messages, or completed one-sided operations.
///
/// # Errors
/// If a connection breaks or stays silent.
pub(crate) fn stream(
    lane: &mut dyn Lane,
    ways: &[Way],
    operation: Operation,
    sizes: Sizes,
    duration: Duration,
) -> Result<Tally> {
    let of = |has: fn(Way) -> bool| ways.iter().enumerate().filter(move |&(_, &way)| has(way));
    let out: Vec<usize> = of(Way::sends).map(|(connection, _)| connection).collect();
    let incoming = of(Way::receives).count();
    let stream = Stream {
        lane,
        operation,
        open_in: incoming,
        // One-sided operations need no last message: the peer does not count.
        to_end: if operation.is_one_sided() { Vec::new() } else { out.clone() },
        out,
        is_one_way: incoming == 0,
        tally: Tally::new(),
        first: None,
        counts_from: None,
        newest: Instant::now(),
        warm_up: duration / super::WARM_UP,
    };
    if operation.is_one_sided() {
        stream.operate(sizes, duration)
    } else {
        stream.run(sizes, duration)
    }
}

/// Bytes of outgoing and incoming messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) send: usize,
    pub(crate) receive: usize,
}

struct Stream<'a> {
    lane: &'a mut dyn Lane,
    operation: Operation,
    out: Vec<usize>,
    /// Connections on which this side still has to send the last message.
    to_end: Vec<usize>,
    /// Number of connections whose last message has not come.
    open_in: usize,
    is_one_way: bool,
    tally: Tally,
    first: Option<Instant>,
    counts_from: Option<Instant>,
    newest: Instant,
    warm_up: Duration,
}

impl Stream<'_> {
    fn run(mut self, sizes: Sizes, duration: Duration) -> Result<Tally> {
        let end = Instant::now() + duration;
        let mut quiet_since: Option<Instant> = None;
        loop {
            let now = Instant::now();
            let sent = if now < end { self.send_some()? } else { self.send_last()? };
            let received = self.receive_some(now)?;
            if self.to_end.is_empty() && self.open_in == 0 {
                break;
            }
            if sent || received {
                quiet_since = None;
                continue;
            }
            let limit = if self.first.is_some() { self.lane.silence() } else { SILENCE_MAX };
            if quiet_since.get_or_insert(now).elapsed() >= limit {
                ensure!(self.lane.is_lossy(), "nothing moves for {limit:?}");
                break; // The last message was lost.
            }
            if !self.out.is_empty() {
                self.lane.wait()?;
            }
        }
        self.lane.flush()?;
        self.tally.measured_bytes = self.tally.measured * sizes.receive as u64;
        if let (Some(first), Some(from)) = (self.first, self.counts_from) {
            // A connection with only a short turn was slow, not fast for a moment.
            let until = self.newest.max(first + duration);
            self.tally.measured_time = until.saturating_duration_since(from);
        }
        Ok(self.tally)
    }

    fn send_some(&mut self) -> Result<bool> {
        // Without other work it may block for room.
        let alone = self.is_one_way && self.out.len() == 1;
        let blocking = if alone { Blocking::Wait } else { Blocking::Now };
        let mut any = false;
        for &connection in &self.out {
            for _ in 0..BURST {
                if !self.lane.send(connection, self.operation, false, blocking)? {
                    break;
                }
                self.tally.started += 1;
                any = true;
            }
        }
        Ok(any)
    }

    fn send_last(&mut self) -> Result<bool> {
        let before = self.to_end.len();
        let mut left = Vec::new();
        for connection in self.to_end.drain(..) {
            if !self.lane.send(connection, self.operation, true, Blocking::Now)? {
                left.push(connection);
            }
        }
        self.to_end = left;
        Ok(self.to_end.len() != before)
    }

    fn receive_some(&mut self, now: Instant) -> Result<bool> {
        if self.open_in == 0 {
            return Ok(false);
        }
        if self.out.is_empty() {
            let arrival = self.lane.receive(Blocking::Wait)?;
            arrival.into_iter().for_each(|arrival| self.take(arrival, Instant::now()));
            return Ok(arrival.is_some());
        }
        let mut any = false;
        for _ in 0..BURST {
            let Some(arrival) = self.lane.receive(Blocking::Now)? else { break };
            self.take(arrival, now);
            any = true;
        }
        Ok(any)
    }

    fn take(&mut self, arrival: Arrival, now: Instant) {
        self.tally.ended += arrival.messages;
        self.open_in -= usize::from(arrival.last);
        let first = *self.first.get_or_insert(now);
        self.newest = now;
        if self.counts_from.is_some() {
            self.tally.measured += arrival.messages;
        } else if now - first >= self.warm_up {
            self.counts_from = Some(now);
        }
    }

    fn operate(mut self, sizes: Sizes, duration: Duration) -> Result<Tally> {
        let span = Span::starting_now(duration);
        let (mut now, mut before) = (Instant::now(), None);
        while !span.is_over(now) && !self.out.is_empty() {
            if !self.send_some()? {
                self.lane.wait()?;
            }
            now = Instant::now();
            if span.counts(now) {
                before.get_or_insert_with(|| (now, self.lane.ended()));
            }
        }
        self.lane.flush()?;
        self.tally.ended = self.lane.ended();
        if let Some((since, ended)) = before {
            self.tally.measured = self.tally.ended - ended;
            self.tally.measured_time = since.elapsed();
        }
        self.tally.measured_bytes = self.tally.measured * sizes.send as u64;
        Ok(self.tally)
    }
}
