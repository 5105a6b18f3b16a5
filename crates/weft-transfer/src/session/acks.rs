//! The blocks that have arrived, and which of them the sink has not acknowledged yet.

use std::collections::BTreeMap;

use super::fault::Fault;
use crate::limits::ACK_RANGES_MAX;
use crate::wire::Range;

/// A set of sequence numbers, stored as ranges.
#[derive(Clone, Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a number that the set does not contain.
    fn insert(&mut self, seq: u64) {
        let mut until = seq + 1;
        if let Some(next) = self.0.remove(&until) {
            until = next;
        }
        if let Some((_, before)) = self.0.range_mut(..=seq).next_back()
            && *before == seq
        {
            *before = until;
            return;
        }
        self.0.insert(seq, until);
    }

    fn contains(&self, seq: u64) -> bool {
        self.0.range(..=seq).next_back().is_some_and(|(_, until)| seq < *until)
    }

    /// Removes the range that begins with `seq`, and returns its end.
    fn take_from(&mut self, seq: u64) -> Option<u64> {
        self.0.remove(&seq)
    }
}

/// The blocks that have arrived at a sink.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrived {
    /// All blocks below this number have arrived.
    cumulative: u64,
    /// The blocks above `cumulative` that have arrived.
    beyond: Ranges,
    /// Those of `beyond` that the sink has not acknowledged.
    unreported: Ranges,
    /// The last cumulative number that the sink has acknowledged.
    reported: u64,
}

impl Arrived {
    pub(super) fn cumulative(&self) -> u64 {
        self.cumulative
    }

    pub(super) fn contains(&self, seq: u64) -> bool {
        seq < self.cumulative || self.beyond.contains(seq)
    }

    /// Records that a block has arrived.
    ///
    /// # Errors
    /// If the block has arrived before, or its number is the highest possible one.
    pub(super) fn insert(&mut self, seq: u64) -> Result<(), Fault> {
        if self.contains(seq) {
            return Err(Fault::Repeated(seq));
        }
        if seq == u64::MAX {
            return Err(Fault::Ahead(seq));
        }
        if seq != self.cumulative {
            self.beyond.insert(seq);
            self.unreported.insert(seq);
            return Ok(());
        }
        self.cumulative = self.beyond.take_from(seq + 1).unwrap_or(seq + 1);
        // The cumulative number acknowledges these blocks, so their ranges are not sent.
        while let Some((&from, _)) = self.unreported.0.first_key_value()
            && from < self.cumulative
        {
            self.unreported.take_from(from);
        }
        Ok(())
    }

    pub(super) fn is_unreported(&self) -> bool {
        self.reported != self.cumulative || !self.unreported.0.is_empty()
    }

    /// Returns the next acknowledgement: the cumulative number and ranges. More ranges may remain.
    pub(super) fn report(&mut self) -> (u64, Vec<Range>) {
        self.reported = self.cumulative;
        let mut ranges = Vec::new();
        while ranges.len() < ACK_RANGES_MAX
            && let Some((from, until)) = self.unreported.0.pop_first()
        {
            ranges.push(Range { from, until });
        }
        (self.cumulative, ranges)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::{ACK_RANGES_MAX, Arrived, Fault, Range};

    #[test]
    fn arrivals_in_order_make_no_ranges() {
        let mut arrived = Arrived::default();
        for seq in 0..10 {
            assert_eq!(arrived.insert(seq), Ok(()));
        }
        assert_eq!(arrived.report(), (10, Vec::new()));
        assert!(!arrived.is_unreported());
        assert_eq!(arrived.insert(3), Err(Fault::Repeated(3)));
        assert_eq!(arrived.insert(u64::MAX), Err(Fault::Ahead(u64::MAX)));
    }

    #[test]
    fn an_acknowledgement_has_at_most_ack_ranges_max_ranges() {
        let mut arrived = Arrived::default();
        let count = ACK_RANGES_MAX as u64 + 3;
        for index in 0..count {
            assert_eq!(arrived.insert(2 * index + 1), Ok(()));
        }
        assert_eq!(arrived.report().1.len(), ACK_RANGES_MAX);
        assert!(arrived.is_unreported());
        let last = 2 * count - 1;
        assert_eq!(arrived.report().1.last(), Some(&Range { from: last, until: last + 1 }));
        assert!(!arrived.is_unreported());
    }

    proptest! {
        /// The acknowledgements cover each arrival, in any order of blocks.
        #[test]
        fn acknowledgements_cover_each_arrival(
            seqs in prop::collection::vec(0_u64..60, 0..80),
            reports in prop::collection::vec(any::<bool>(), 80),
        ) {
            let mut arrived = Arrived::default();
            let (mut model, mut known) = (BTreeSet::new(), BTreeSet::new());
            for (seq, reports) in seqs.into_iter().zip(reports) {
                prop_assert_eq!(arrived.contains(seq), model.contains(&seq));
                prop_assert_eq!(arrived.insert(seq).is_ok(), model.insert(seq));
                if reports {
                    let (cumulative, ranges) = arrived.report();
                    known.extend(0..cumulative);
                    for Range { from, until } in ranges {
                        prop_assert!(from > cumulative && until > from);
                        for seq in from..until {
                            prop_assert!(known.insert(seq), "{} is acknowledged twice", seq);
                        }
                    }
                    prop_assert_eq!(&known, &model);
                    prop_assert!(!arrived.is_unreported());
                }
            }
        }
    }
}
