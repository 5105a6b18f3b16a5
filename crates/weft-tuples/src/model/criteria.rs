//! How elements are ordered, and when operations on them wait.

/// The order of the tuples of an element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// As they arrived. Tuples may be put at either end.
    #[default]
    Arrival,
    /// By their keys, as bytes; tuples of one key as they arrived.
    Key,
    /// By their time stamps; tuples of one time stamp as they arrived.
    Time,
}

/// When operations on an element wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sync {
    /// A put never waits.
    #[default]
    Unbounded,
    /// A put waits until the element has at most this many tuples with it.
    Bound(u32),
    /// A put waits until at most this many tuples, with it, have been neither taken nor observed.
    Unread(u32),
    /// Tuples are read in groups: a take or an observe waits until exactly this many are there, and
    /// a take gets all of them. A put waits as with [`Self::Bound`].
    Exactly(u32),
}

/// Both criteria of an element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Criteria {
    /// The order.
    pub order: Order,
    /// The synchronisation.
    pub sync: Sync,
}

/// An end of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementEnd {
    /// Where the first tuple is.
    Front,
    /// Where the last tuple is.
    Back,
}

/// How many tuples an operation wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Count {
    /// As many as there are, at least one and at most this many.
    AtMost(u32),
    /// This many, or none.
    Exactly(u32),
}

impl Count {
    /// The most tuples.
    #[must_use]
    pub fn most(self) -> u32 {
        match self {
            Self::AtMost(count) | Self::Exactly(count) => count,
        }
    }

    /// The fewest tuples.
    #[must_use]
    pub fn fewest(self) -> u32 {
        match self {
            Self::AtMost(_) => 1,
            Self::Exactly(count) => count,
        }
    }
}

impl Sync {
    /// Whether a take of this many tuples can ever be served.
    pub(super) fn allows_take(self, count: Count) -> bool {
        match self {
            Self::Unbounded | Self::Unread(_) => true,
            Self::Bound(bound) => count.fewest() <= bound,
            Self::Exactly(bound) => count.fewest() <= bound && bound <= count.most(),
        }
    }

    /// Whether an observe of this many tuples can ever be served.
    pub(super) fn allows_observe(self, count: Count) -> bool {
        match self {
            Self::Unbounded | Self::Unread(_) => true,
            Self::Bound(bound) | Self::Exactly(bound) => count.fewest() <= bound,
        }
    }

    /// Whether a put of this many tuples can ever be served.
    pub(super) fn allows_put(self, tuples: usize) -> bool {
        match self {
            Self::Unbounded => true,
            Self::Bound(bound) | Self::Unread(bound) | Self::Exactly(bound) => {
                tuples <= bound as usize
            }
        }
    }
}
