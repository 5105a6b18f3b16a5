//! Tells counters that have come before from those that have not.

use crate::limits::REPLAY_WINDOW_MAX;

const WORD: u64 = u64::BITS as u64;
const WORDS: usize = (REPLAY_WINDOW_MAX / WORD) as usize;

/// The last counters that have come: a bit for each of those in a window that ends with the
/// greatest.
#[derive(Debug)]
pub struct ReplayWindow {
    bits: Box<[u64; WORDS]>,
    /// One more than the greatest counter that has come.
    end: u64,
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self { bits: Box::new([0; WORDS]), end: 0 }
    }
}

impl ReplayWindow {
    /// Whether the counter may be a new one: it has not come, and is not too old to say.
    #[must_use]
    pub fn is_new(&self, counter: u64) -> bool {
        if counter >= self.end {
            return true;
        }
        let is_recent = self.end - counter <= REPLAY_WINDOW_MAX;
        let (word, bit) = Self::place(counter);
        is_recent && self.bits[word] & bit == 0
    }

    /// Notes that a counter has come. Returns whether it is new.
    pub fn note(&mut self, counter: u64) -> bool {
        if !self.is_new(counter) || counter == u64::MAX {
            return false;
        }
        if counter >= self.end {
            // The places of those between have bits of older counters.
            let from = self.end.max((counter + 1).saturating_sub(REPLAY_WINDOW_MAX));
            self.clear(from, counter);
            self.end = counter + 1;
        }
        let (word, bit) = Self::place(counter);
        self.bits[word] |= bit;
        true
    }

    fn clear(&mut self, first: u64, last: u64) {
        let mut counter = first;
        while counter <= last {
            let (word, bit) = Self::place(counter);
            if bit == 1 && last - counter >= WORD {
                self.bits[word] = 0;
                counter += WORD;
            } else {
                self.bits[word] &= !bit;
                counter += 1;
            }
        }
    }

    fn place(counter: u64) -> (usize, u64) {
        let index = counter % REPLAY_WINDOW_MAX;
        // Below the number of words.
        ((index / WORD) as usize, 1 << (index % WORD))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn window_is_as_good_as_a_set(
            steps in prop::collection::vec(
                prop_oneof![
                    0..200_u64,
                    (0..200_u64).prop_map(|n| n + REPLAY_WINDOW_MAX),
                    (0..REPLAY_WINDOW_MAX * 3),
                    Just(u64::MAX - 1),
                ],
                1..200,
            ),
        ) {
            let mut window = ReplayWindow::default();
            let mut seen = BTreeSet::new();
            for counter in steps {
                let end = seen.last().map_or(0, |last| last + 1);
                let is_recent = counter >= end || end - counter <= REPLAY_WINDOW_MAX;
                let expected = is_recent && !seen.contains(&counter);
                prop_assert_eq!(window.is_new(counter), expected);
                prop_assert_eq!(window.note(counter), expected);
                if expected {
                    seen.insert(counter);
                }
            }
        }
    }

    #[test]
    fn last_counter_is_never_taken() {
        let mut window = ReplayWindow::default();
        assert!(!window.note(u64::MAX));
        assert!(window.note(0));
    }
}
