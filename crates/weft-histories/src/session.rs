//! A client that makes random calls and notes what it sees. It has no socket.

use std::collections::VecDeque;
use std::time::Duration;

use fastrand::Rng;
use weft_tuples::limits::ANSWER_FRAME_LEN_MAX;
use weft_tuples::model::{ClientId, Count, ElementEnd, Refusal, Sync};
use weft_tuples::wire::{Action, Answer, Hello, RequestFrame, Welcome, split};

use crate::history::{Call, ClientHistory, Clock, Element, Operation, Span, Value};
use crate::limits::TUPLES_MAX;
use crate::wire;

/// Elements, and how each behaves once a client has made it.
const ELEMENTS: [Sync; 3] = [Sync::Unbounded, Sync::Bound(2), Sync::Exactly(2)];

/// What a client is to do.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How many calls it makes.
    pub calls: usize,
    /// The most calls without an answer.
    pub depth: usize,
    /// The longest time that a call may wait.
    pub wait_max: Duration,
}

/// What no server may do.
#[derive(Debug, thiserror::Error)]
pub enum Unexpected {
    /// It does not let the client in.
    #[error("the client is not let in: {0:?}")]
    Refused(Refusal),
    /// It sends what is no answer to a call.
    #[error("the server has sent what is no answer")]
    Foreign,
}

/// A client.
#[derive(Debug)]
pub struct Session {
    rng: Rng,
    id: ClientId,
    plan: Plan,
    history: ClientHistory,
    /// Calls without an answer, in their order.
    open: VecDeque<usize>,
    input: Vec<u8>,
    /// When the server let the client in at last.
    welcomed: Option<u64>,
    is_connected: bool,
    /// The next value to put.
    value: Value,
}

impl Session {
    /// A client with this number, which no other one has.
    #[must_use]
    pub fn new(seed: u64, number: u16, plan: Plan) -> Self {
        let mut rng = Rng::with_seed(seed ^ u64::from(number) << 48);
        let id = std::array::from_fn(|_| rng.u8(..));
        let (open, input) = (VecDeque::new(), Vec::new());
        let value = Value::from(number) << 16;
        let history = ClientHistory::default();
        let (welcomed, is_connected) = (None, false);
        Self { rng, id, plan, history, open, input, welcomed, is_connected, value }
    }

    /// Begins a connection. Returns what to send.
    pub fn connect(&mut self) -> Vec<u8> {
        self.input.clear();
        self.is_connected = false;
        Hello { id: self.id, returns: self.welcomed.is_some(), ..Hello::default() }.encode()
    }

    /// Whether the server has let the client in by this connection.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Whether all calls have been made and answered.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.open.is_empty() && self.history.calls.len() >= self.plan.calls
    }

    /// Whether there are calls without an answer.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.open.is_empty()
    }

    /// Begins another call, if the plan allows it. Returns what to send.
    pub fn begin(&mut self, clock: &Clock) -> Option<Vec<u8>> {
        let is_all = self.history.calls.len() >= self.plan.calls;
        if !self.is_connected || is_all || self.open.len() >= self.plan.depth {
            return None;
        }
        let operation = self.operation();
        let wait = if self.rng.bool() {
            Duration::ZERO
        } else {
            let ms = self.plan.wait_max.as_millis() as u64;
            Duration::from_millis(self.rng.u64(1..=ms.max(1)))
        };
        let at = self.history.calls.len();
        let span = Span { start: clock.tick(), end: None };
        self.history.calls.push(Call { operation, wait: Some(wait), span, outcome: None });
        self.open.push_back(at);
        Some(self.frame(at))
    }

    fn frame(&self, at: usize) -> Vec<u8> {
        let Call { operation, wait, .. } = &self.history.calls[at];
        // All calls before the first open one are answered.
        let first = self.open.front().copied().unwrap_or(at);
        let action = Action::Do(wire::operation(operation), *wait);
        RequestFrame { number: at as u64 + 1, confirmed: first as u64, action }.encode()
    }

    /// Notes what has arrived. Returns what to send.
    ///
    /// # Errors
    ///
    /// If no server may send that.
    pub fn receive(&mut self, clock: &Clock, bytes: &[u8]) -> Result<Vec<u8>, Unexpected> {
        self.input.extend_from_slice(bytes);
        let mut output = Vec::new();
        if !self.is_connected {
            let Some(welcome) = self.input.get(..Welcome::LEN) else { return Ok(output) };
            let welcome = Welcome::decode(welcome).map_err(|_| Unexpected::Foreign)?;
            self.input.drain(..Welcome::LEN);
            match welcome.0 {
                // The server stops; the next one lets the client in.
                Err(Refusal::Log) => return Ok(output),
                Err(refusal) => return Err(Unexpected::Refused(refusal)),
                Ok(()) => {}
            }
            self.is_connected = true;
            let now = clock.tick();
            if let Some(start) = self.welcomed.replace(now) {
                self.history.losses.push(Span { start, end: Some(now) });
            }
            output.extend(self.open.iter().flat_map(|at| self.frame(*at)));
        }
        loop {
            let frame = split(&self.input, ANSWER_FRAME_LEN_MAX);
            let Some(frame) = frame.map_err(|_| Unexpected::Foreign)? else { return Ok(output) };
            let (len, answer) = (frame.len(), Answer::decode(frame));
            self.input.drain(..4 + len);
            let (number, answer) = answer.map_err(|_| Unexpected::Foreign)?;
            self.note(clock, number, answer)?;
        }
    }

    fn note(&mut self, clock: &Clock, number: u64, answer: Answer) -> Result<(), Unexpected> {
        let place = self.open.iter().position(|at| *at as u64 + 1 == number);
        let Answer::Outcome(outcome) = answer else { return Err(Unexpected::Foreign) };
        if number == 0 {
            // The log of the server has failed. The connection ends.
            return Ok(());
        }
        let at = place.and_then(|place| self.open.remove(place)).ok_or(Unexpected::Foreign)?;
        let call = &mut self.history.calls[at];
        call.outcome = Some(wire::outcome(outcome).ok_or(Unexpected::Foreign)?);
        call.span.end = Some(clock.tick());
        Ok(())
    }

    /// Returns what the client saw. If it is gone, it will not come back, although calls may have
    /// no answer.
    #[must_use]
    pub fn history(mut self, is_gone: bool) -> ClientHistory {
        if is_gone {
            self.history.is_gone = true;
            let start = self.welcomed.unwrap_or_default();
            self.history.losses.push(Span { start, end: None });
        }
        self.history
    }

    fn element(&mut self) -> Element {
        self.rng.u8(..ELEMENTS.len() as u8)
    }

    fn elements(&mut self) -> Vec<Element> {
        let first = self.element();
        let mut elements = vec![first];
        let second = self.element();
        if self.rng.u8(..3) == 0 && second != first {
            elements.push(second);
        }
        elements
    }

    fn end(&mut self, usual: ElementEnd) -> ElementEnd {
        match (usual, self.rng.u8(..5)) {
            (ElementEnd::Front, 0) => ElementEnd::Back,
            (ElementEnd::Back, 0) => ElementEnd::Front,
            _ => usual,
        }
    }

    fn count(&mut self) -> Count {
        let count = self.rng.u32(1..=2);
        if self.rng.u8(..3) == 0 { Count::Exactly(count) } else { Count::AtMost(count) }
    }

    fn operation(&mut self) -> Operation {
        match self.rng.u8(..32) {
            0..2 => {
                let element = self.element();
                Operation::Create(element, ELEMENTS[usize::from(element)])
            }
            2 => Operation::Delete(self.element()),
            3..6 => Operation::Count(self.element()),
            6..10 => Operation::Observe(self.elements(), self.count()),
            10..12 => {
                let from = (self.element(), self.end(ElementEnd::Front));
                Operation::Transfer(from, (self.element(), self.end(ElementEnd::Back)))
            }
            12..21 => Operation::Take(self.elements(), self.end(ElementEnd::Front), self.count()),
            _ => {
                let count = if self.rng.bool() { 1 } else { self.rng.usize(1..=TUPLES_MAX) };
                let first = self.value;
                self.value += count as Value;
                Operation::Put(
                    self.element(),
                    self.end(ElementEnd::Back),
                    (first..self.value).collect(),
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Outcome;

    #[test]
    fn outcome_of_an_unknown_call_is_foreign() {
        let plan = Plan { calls: 1, depth: 1, wait_max: Duration::from_millis(1) };
        let (mut session, clock) = (Session::new(1, 0, plan), Clock::default());
        session.connect();
        session.receive(&clock, &Welcome(Ok(())).encode()).unwrap();
        session.begin(&clock).unwrap();
        let answer = |number| {
            let outcome = weft_tuples::model::Outcome::Nothing;
            weft_tuples::wire::frame(number, &Answer::Outcome(outcome))
        };
        session.receive(&clock, &answer(1)).unwrap();
        assert!(session.is_over());
        assert_eq!(session.history.calls[0].outcome, Some(Outcome::Nothing));
        assert!(session.receive(&clock, &answer(1)).is_err());
    }
}
