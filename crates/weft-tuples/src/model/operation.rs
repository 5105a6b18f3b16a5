//! Operations on a space, and their outcomes.

use std::rc::Rc;
use std::time::Duration;

use super::criteria::{Count, Criteria, ElementEnd};
use super::tuple::{Item, Rank, Stamp, Tuple};

/// The name of an element.
pub type Name = Rc<[u8]>;

/// The present time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// A clock that only advances, from any start. Deadlines are times of this clock.
    pub clock: Duration,
    /// Milliseconds since 1970.
    pub ms: u64,
}

/// How long an operation may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It does not wait.
    No,
    /// Until this time of [`Now::clock`].
    Until(Duration),
    /// Until it is served or cancelled.
    Forever,
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Makes an element.
    Create {
        /// Its name.
        element: Name,
        /// How it behaves.
        criteria: Criteria,
    },
    /// Puts tuples into an element, all at once, and the last one last. This is `move` of the
    /// literature.
    Put {
        /// The element. If there is none, it is made, unbounded; one in the order of arrival
        /// exists only while it has tuples.
        element: Name,
        /// The order of an element that is made.
        criteria: Criteria,
        /// Where: [`ElementEnd::Front`] only in the order of arrival.
        end: ElementEnd,
        /// The tuples to put.
        tuples: Vec<Tuple>,
        /// Refuses time stamps that do not follow those of all tuples before, when the put is
        /// served.
        is_append: bool,
    },
    /// Takes tuples out of the first of several elements that can serve it.
    Take {
        /// The elements.
        elements: Vec<Name>,
        /// From which end.
        end: ElementEnd,
        /// How many.
        count: Count,
    },
    /// Reads tuples and leaves them where they are.
    Observe {
        /// The elements, each with the rank behind which to read.
        elements: Vec<(Name, Option<Rank>)>,
        /// How many of each element.
        count: Count,
    },
    /// Takes a tuple from one element and puts it into another one, in one step.
    Transfer {
        /// From where.
        from: (Name, ElementEnd),
        /// To where. If this element is full when there is a tuple, or has another order than that
        /// of arrival, the operation is refused.
        to: (Name, ElementEnd),
    },
    /// Reads tuples. It neither waits nor counts as observing.
    Read {
        /// The element.
        element: Name,
        /// Which tuples.
        selection: Selection,
        /// The most tuples.
        count: u32,
    },
    /// Describes an element.
    Describe {
        /// The element.
        element: Name,
    },
    /// Lists all elements.
    List,
    /// Deletes an element with its tuples. Puts that wait for it are refused.
    Delete {
        /// The element.
        element: Name,
    },
}

/// Which tuples are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Those from one place in the order to another; negative ones count from the end, where -1
    /// is the last tuple.
    Places(i64, i64),
    /// Those with a key, in an element that is ordered by keys.
    Key(Vec<u8>),
    /// Those with time stamps from one to another, in an element that is ordered by them.
    Stamps(Stamp, Stamp),
}

/// A description of an element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its name.
    pub name: Name,
    /// How it behaves.
    pub criteria: Criteria,
    /// Its tuples.
    pub len: usize,
    /// The largest time stamp that it has had.
    pub last: Stamp,
    /// Operations that wait for it.
    pub waiting: usize,
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Whether the element is new. It is not if there was one with the same criteria.
    Created(bool),
    /// The rank of the last tuple, and the number of tuples in the element then.
    Put(Rank, usize),
    /// Tuples of the element with this number in the operation.
    Taken(usize, Vec<Item>),
    /// Tuples, for each element that has some, by its number in the operation.
    Observed(Vec<(usize, Vec<Item>)>),
    /// The tuple.
    Transferred(Item),
    /// Tuples.
    Read(Vec<Item>),
    /// The element, if there is one.
    Described(Option<Description>),
    /// Elements, in the order of their names.
    Listed(Vec<Description>),
    /// Whether there was an element.
    Deleted(bool),
    /// It could not be served in its time.
    Nothing,
    /// It was cancelled.
    Cancelled,
    /// It cannot be served.
    Refused(Refusal),
}

/// Why an operation is refused. Nothing has changed, except where that is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// A name, a key, a tuple or a number is too long or empty.
    Limit,
    /// The element exists, with other criteria.
    Exists,
    /// The element's criteria never allow that many tuples.
    Count,
    /// The element's order does not allow this key, time stamp or end.
    Order,
    /// The time stamp does not follow that of all tuples before.
    Stamp,
    /// The element is full, and the operation does not wait.
    Full,
    /// The space has no memory for it.
    Memory,
    /// The answer would be too long.
    Answer,
    /// Too many operations wait, or there are too many elements or clients.
    Busy,
    /// The element was deleted.
    Deleted,
    /// The client has confirmed the answer with this number already.
    Stale,
    /// The client has too many answers that it has not confirmed.
    Window,
    /// The server cannot write its log and stops. It is not known whether anything has changed.
    Log,
    /// Another server is the leader, or none is. It is not known whether anything has changed.
    Elsewhere,
    /// The server lets in only clients that know its token.
    Token,
    /// The user may not do that with the element.
    Rights,
}
