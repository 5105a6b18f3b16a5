//! Connections whose clients have not shown yet that they may use the server.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::limits::{UNPROVEN_MAX, UNPROVEN_TIME_MAX};

/// The connections with their deadlines. Later ones have greater keys and later deadlines.
#[derive(Debug, Default)]
pub(super) struct Unproven(BTreeMap<usize, Duration>);

impl Unproven {
    /// Adds a connection that is accepted now.
    pub(super) fn insert(&mut self, key: usize, clock: Duration) {
        self.0.insert(key, clock.saturating_add(UNPROVEN_TIME_MAX));
    }

    /// Forgets a connection that has ended, or whose client has shown that it may use the server.
    pub(super) fn remove(&mut self, key: usize) {
        self.0.remove(&key);
    }

    /// When there is one to end next.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.0.values().next().copied()
    }

    /// Takes out a connection that has to end: one too many, or one whose time is over.
    pub(super) fn next(&mut self, clock: Duration) -> Option<usize> {
        let first = self.0.first_entry()?;
        let is_late = *first.get() <= clock;
        let key = *first.key();
        (is_late || self.0.len() > UNPROVEN_MAX).then(|| self.remove(key))?;
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_end_when_there_are_too_many_or_their_time_is_over() {
        let mut unproven = Unproven::default();
        assert_eq!((unproven.deadline(), unproven.next(Duration::MAX)), (None, None));
        for key in 0..UNPROVEN_MAX + 2 {
            unproven.insert(key, Duration::from_secs(key as u64));
        }
        let clock = Duration::from_secs(1);
        unproven.remove(1);
        assert_eq!(unproven.next(clock), Some(0));
        assert_eq!(unproven.next(clock), None, "there are just as many as may be");
        let deadline = unproven.deadline().unwrap();
        assert_eq!(deadline, Duration::from_secs(2) + UNPROVEN_TIME_MAX);
        assert_eq!(unproven.next(deadline - Duration::from_nanos(1)), None);
        assert_eq!((unproven.next(deadline), unproven.next(deadline)), (Some(2), None));
    }
}
