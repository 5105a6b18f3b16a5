//! Tuples, and their places in the order of an element.

use std::cmp::Ordering;

use smallvec::SmallVec;

use crate::limits::{FIELD_OVERHEAD_LEN, OVERHEAD_LEN};

/// The fields of a tuple.
pub type Fields = SmallVec<[Vec<u8>; 1]>;

/// A time stamp. Several tuples of one millisecond are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// Milliseconds since 1970.
    pub ms: u64,
    /// The number within the millisecond.
    pub count: u64,
}

impl Stamp {
    /// The last one of all.
    pub const LAST: Self = Self { ms: u64::MAX, count: u64::MAX };

    /// Returns the next stamp. `None` after the last one.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        match self.count.checked_add(1) {
            Some(count) => Some(Self { count, ..self }),
            None => Some(Self { ms: self.ms.checked_add(1)?, count: 0 }),
        }
    }
}

/// The place of a tuple in its element. Tuples are ordered by their ranks.
///
/// In an element in the order of arrival `key` and `stamp` are empty; in one that is ordered by
/// keys, `stamp` is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rank {
    /// The key.
    pub key: Vec<u8>,
    /// The time stamp.
    pub stamp: Stamp,
    /// The order of arrival. It never decreases at the back of an element, even after the element
    /// was deleted.
    pub position: i64,
}

impl Ord for Rank {
    fn cmp(&self, other: &Self) -> Ordering {
        // Most elements have no keys, and most of the time of an insertion is this comparison.
        let are_keys_empty = self.key.is_empty() && other.key.is_empty();
        let keys = if are_keys_empty { Ordering::Equal } else { self.key.cmp(&other.key) };
        keys.then_with(|| self.stamp.cmp(&other.stamp))
            .then_with(|| self.position.cmp(&other.position))
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A tuple that is to be put into an element.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuple {
    /// The key. It must be empty unless the element is ordered by keys.
    pub key: Vec<u8>,
    /// The time stamp; by default that of the server. It must be `None` unless the element is
    /// ordered by time stamps.
    pub stamp: Option<Stamp>,
    /// The contents.
    pub fields: Fields,
}

impl Tuple {
    /// A tuple of one field.
    #[must_use]
    pub fn of(field: impl Into<Vec<u8>>) -> Self {
        Self { fields: Fields::from_iter([field.into()]), ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.key.len() + len(&self.fields)
    }
}

/// A tuple of an element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its place.
    pub rank: Rank,
    /// Its contents.
    pub fields: Fields,
}

/// The bytes that a tuple counts in the memory of a space.
pub(super) fn stored_len(key: &[u8], fields: &Fields) -> usize {
    OVERHEAD_LEN + key.len() + fields.len() * FIELD_OVERHEAD_LEN + len(fields)
}

/// The number of bytes in `fields`.
fn len(fields: &Fields) -> usize {
    fields.iter().map(Vec::len).sum()
}
