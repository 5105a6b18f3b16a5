//! Sets of byte ranges of a file.

use std::collections::BTreeMap;
use std::iter;

use crate::limits::{HAVE_PIECE_LEN, HAVE_PIECES_MAX};

/// Ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    /// The ends of the ranges by their starts.
    ends: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Adds a range. Returns false and changes nothing if it overlaps an existing one.
    pub fn add(&mut self, offset: u64, len: u64) -> bool {
        let Some(end) = offset.checked_add(len) else { return false };
        if len == 0 {
            return true;
        }
        let before = self.ends.range(..end).next_back().map(|(&start, &end)| (start, end));
        let mut start = offset;
        if let Some((before_start, before_end)) = before {
            if before_end > offset {
                return false;
            }
            if before_end == offset {
                start = before_start;
            }
        }
        let end = self.ends.remove(&end).unwrap_or(end);
        self.ends.insert(start, end);
        true
    }

    /// Removes a range. Returns false and changes nothing if a byte of it is not in the set.
    pub fn remove(&mut self, offset: u64, len: u64) -> bool {
        let Some(end) = offset.checked_add(len) else { return false };
        if len == 0 {
            return true;
        }
        let Some((start, before_end)) = self.ends.range(..=offset).next_back() else {
            return false;
        };
        let (start, before_end) = (*start, *before_end);
        if before_end < end {
            return false;
        }
        self.ends.remove(&start);
        if start < offset {
            self.ends.insert(start, offset);
        }
        if end < before_end {
            self.ends.insert(end, before_end);
        }
        true
    }

    /// Whether the set contains all bytes before `size`.
    #[must_use]
    pub fn is_complete(&self, size: u64) -> bool {
        size == 0 || self.ends.get(&0).is_some_and(|&end| end >= size)
    }

    /// Returns the end of the range that contains the byte at `offset`, if there is one.
    #[must_use]
    pub fn end_at(&self, offset: u64) -> Option<u64> {
        let (_, &end) = self.ends.range(..=offset).next_back()?;
        (end > offset).then_some(end)
    }

    /// Returns the start of the first range after `offset`.
    #[must_use]
    pub fn start_after(&self, offset: u64) -> Option<u64> {
        self.ends.range(offset..).next().map(|(&start, _)| start)
    }

    /// Iterates over offset and length of each range in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ends.iter().map(|(&start, &end)| (start, end - start))
    }

    /// The number of ranges.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

/// Splits ranges into pieces, so that all of them fit into one answer unless they are many.
pub(crate) fn split(ranges: &Ranges) -> impl Iterator<Item = (u64, u64)> {
    let all: u64 = ranges.iter().map(|(_, len)| len).sum();
    let most = (all / (HAVE_PIECES_MAX as u64 / 2)).next_multiple_of(HAVE_PIECE_LEN);
    let most = most.max(HAVE_PIECE_LEN);
    ranges.iter().flat_map(move |(offset, len)| {
        let end = offset + len;
        let starts = iter::successors(Some(offset), move |at| Some(at + most));
        starts.take_while(move |&at| at < end).map(move |at| (at, most.min(end - at)))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Ranges;

    proptest! {
        #[test]
        fn ranges_are_a_set_of_bytes(
            changes in prop::collection::vec((any::<bool>(), 0_u64..64, 0_u64..16), 0..40),
        ) {
            let (mut ranges, mut model) = (Ranges::default(), [false; 80]);
            for (adds, offset, len) in changes {
                let bytes = &mut model[offset as usize..(offset + len) as usize];
                if !adds {
                    let is_there = !bytes.contains(&false);
                    prop_assert_eq!(ranges.remove(offset, len), is_there);
                    if is_there {
                        bytes.fill(false);
                    }
                    continue;
                }
                let is_free = !bytes.contains(&true);
                prop_assert_eq!(ranges.add(offset, len), is_free);
                if is_free {
                    bytes.fill(true);
                }
            }
            let edges = model.windows(2).filter(|pair| !pair[0] && pair[1]).count();
            prop_assert_eq!(ranges.count(), edges + usize::from(model[0]));
            for at in 0..79 {
                let is_complete = model[..at].iter().all(|&there| there);
                prop_assert_eq!(ranges.is_complete(at as u64), is_complete);
                let end = (at..80).find(|&end| !model[end]).filter(|&end| end > at);
                prop_assert_eq!(ranges.end_at(at as u64), end.map(|end| end as u64));
            }
        }
    }
}
