//! What clients did, and what they saw.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weft_tuples::model::{Count, ElementEnd, Refusal, Sync};

/// An element, by its number.
pub type Element = u8;
/// The contents of a tuple. Each value is put once.
pub type Value = u32;

/// Counts the instants at which clients begin calls and get answers. All clients share it.
#[derive(Debug, Default)]
pub struct Clock(AtomicU64);

/// A time of a [`Clock`] to a later one. Without an end it lasts for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its begin.
    pub start: u64,
    /// Its end.
    pub end: Option<u64>,
}

/// An operation. All elements have the order of arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Makes an element.
    Create(Element, Sync),
    /// Puts tuples.
    Put(Element, ElementEnd, Vec<Value>),
    /// Takes tuples of the first element that has them.
    Take(Vec<Element>, ElementEnd, Count),
    /// Reads the first tuples of each element.
    Observe(Vec<Element>, Count),
    /// Moves a tuple from one element to another one.
    Transfer((Element, ElementEnd), (Element, ElementEnd)),
    /// Counts the tuples of an element, and the calls that wait for it.
    Count(Element),
    /// Deletes an element.
    Delete(Element),
}

/// What a client saw of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Whether the element is new.
    Created(bool),
    /// The tuples that the element had then.
    Put(usize),
    /// From which of the elements, and what.
    Taken(usize, Vec<Value>),
    /// What was in which of the elements.
    Observed(Vec<(usize, Vec<Value>)>),
    /// The tuple that was moved.
    Transferred(Value),
    /// The tuples, and the calls that wait, if the element exists.
    Counted(Option<(usize, usize)>),
    /// Whether the element existed.
    Deleted(bool),
    /// It could not be served in its time.
    Nothing,
    /// It was refused.
    Refused(Refusal),
}

/// A call of a client.
#[derive(Clone, Debug)]
pub struct Call {
    /// What it does.
    pub operation: Operation,
    /// How long it may wait; `None` is for ever.
    pub wait: Option<Duration>,
    /// From its begin to its answer.
    pub span: Span,
    /// The answer. `None`: there was none, and it is not known whether the call took effect.
    pub outcome: Option<Outcome>,
}

/// What one client did, and what it saw.
#[derive(Clone, Debug, Default)]
pub struct ClientHistory {
    /// Its calls, in the order in which it sent them.
    pub calls: Vec<Call>,
    /// When it lost connections: each time from when the server let it in to when it let it in
    /// again. At one instant between them the server forgot the calls that waited. The client sent
    /// calls without an answer again, in the same order.
    pub losses: Vec<Span>,
    /// It has not come back from the last loss.
    pub is_gone: bool,
}

impl Span {
    /// Whether an instant may be of both.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        let ends_before = |one: Self, start: u64| one.end.is_some_and(|end| end < start);
        !ends_before(self, other.start) && !ends_before(other, self.start)
    }
}

impl Clock {
    /// Returns the number of this instant.
    pub fn tick(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }

    /// Returns how many instants there were.
    #[must_use]
    pub fn instants(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Operation {
    /// Whether a server keeps its answer, so that it is not done again after a lost connection.
    pub(crate) fn is_kept(&self) -> bool {
        !matches!(self, Self::Observe(..) | Self::Count(_))
    }

    /// Whether this is the outcome of one that changes nothing.
    pub(crate) fn leaves_all(&self, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Created(is_new) => !is_new,
            Outcome::Deleted(existed) => !existed,
            Outcome::Put(_) | Outcome::Taken(..) | Outcome::Transferred(_) => false,
            Outcome::Observed(_) | Outcome::Counted(_) | Outcome::Nothing | Outcome::Refused(_) => {
                true
            }
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, wait, span, outcome } = self;
        write!(f, "{}-", span.start)?;
        match span.end {
            Some(end) => write!(f, "{end}")?,
            None => write!(f, "?")?,
        }
        write!(f, " {operation:?}")?;
        match wait {
            Some(wait) if wait.is_zero() => {}
            Some(wait) => write!(f, " within {wait:?}")?,
            None => write!(f, " waits")?,
        }
        match outcome {
            Some(outcome) => write!(f, ": {outcome:?}"),
            None => write!(f, ": no answer"),
        }
    }
}
