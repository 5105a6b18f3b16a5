//! Detects replayed counters.

use crate::limits::REPLAY_WINDOW_MAX;

const WORD: u64 = u64::BITS as u64;
const WORDS: usize = (REPLAY_WINDOW_MAX / WORD) as usize;

/// The counters that have been seen: one bit for each counter of a window that ends with the
/// greatest.
#[derive(Debug)]
pub struct ReplayWindow {
    bits: Box<[u64; WORDS]>,
    /// One above the greatest counter seen.
    end: u64,
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self { bits: Box::new([0; WORDS]), end: 0 }
    }
}

impl ReplayWindow {
    /// Whether the counter is within or above the window and has not been seen.
    #[must_use]
    pub fn is_new(&self, counter: u64) -> bool {
        if counter >= self.end {
            return true;
        }
        let is_recent = self.end - counter <= REPLAY_WINDOW_MAX;
        let (word, bit) = Self::place(counter);
        is_recent && self.bits[word] & bit == 0
    }

    /// Records a counter as seen. Returns whether it was new.
    pub fn note(&mut self, counter: u64) -> bool {
        if !self.is_new(counter) || counter == u64::MAX {
            return false;
        }
        if counter >= self.end {
            // Clear the bits that older counters have set at these positions.
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
        // The quotient is below the number of words, so the cast is exact.
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
        fn window_agrees_with_a_set(
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
    fn last_counter_is_refused() {
        let mut window = ReplayWindow::default();
        assert!(!window.note(u64::MAX));
        assert!(window.note(0));
    }
}
