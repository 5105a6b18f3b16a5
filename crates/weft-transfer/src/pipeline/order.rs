//! Restores the order of numbered items.

use std::collections::BTreeMap;

/// Why a number was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// The number has been inserted before.
    #[error("number {0} was inserted twice")]
    Repeated(u64),
    /// The number exceeds the window.
    #[error("number {number} is {window} or more ahead of {next}")]
    Ahead {
        /// The number.
        number: u64,
        /// The next number in order.
        next: u64,
        /// The size of the window.
        window: u64,
    },
}

/// Holds back items that are early, within a bounded window.
#[derive(Debug)]
pub struct Reorder<T> {
    next: u64,
    window: u64,
    early: BTreeMap<u64, T>,
}

impl<T> Reorder<T> {
    /// Creates a buffer that begins with number `next` and holds back fewer than `window` numbers.
    #[must_use]
    pub fn new(next: u64, window: u64) -> Self {
        Self { next, window, early: BTreeMap::new() }
    }

    /// Inserts an item.
    ///
    /// # Errors
    /// If the number was inserted before, or exceeds the window.
    pub fn insert(&mut self, number: u64, item: T) -> Result<(), OrderError> {
        if number < self.next || self.early.contains_key(&number) {
            return Err(OrderError::Repeated(number));
        }
        if number - self.next >= self.window {
            return Err(OrderError::Ahead { number, next: self.next, window: self.window });
        }
        self.early.insert(number, item);
        Ok(())
    }

    /// Returns the next item in order, if it has been inserted.
    pub fn pop(&mut self) -> Option<T> {
        let item = self.early.remove(&self.next)?;
        self.next += 1;
        Some(item)
    }

    /// The next number in order.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The number of items held back.
    #[must_use]
    pub fn held(&self) -> usize {
        self.early.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn repeated_and_remote_numbers_are_refused() {
        let mut order = Reorder::new(5, 3);
        assert_eq!(order.insert(4, ()), Err(OrderError::Repeated(4)));
        let ahead = OrderError::Ahead { number: 8, next: 5, window: 3 };
        assert_eq!(order.insert(8, ()), Err(ahead));
        order.insert(7, ()).expect("within the window");
        assert_eq!(order.insert(7, ()), Err(OrderError::Repeated(7)));
        assert_eq!(order.pop(), None);
        order.insert(5, ()).expect("the next");
        assert_eq!((order.pop(), order.pop(), order.held()), (Some(()), None, 1));
    }

    proptest! {
        #[test]
        fn every_permutation_is_put_in_order(
            numbers in Just((0..50_u64).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let mut order = Reorder::new(0, 50);
            let mut out = Vec::new();
            for number in numbers {
                order.insert(number, number).expect("new, and within the window");
                out.extend(std::iter::from_fn(|| order.pop()));
            }
            prop_assert_eq!(out, (0..50).collect::<Vec<_>>());
            prop_assert_eq!(order.held(), 0);
        }
    }
}
