//! When the waits of blocked threads end without a result.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use weft_sys::Lock;

use crate::wakers::Wakers;

/// Ends the waits that are given it ([`Fabric::wait_until`](crate::Fabric::wait_until)): when
/// [`stop`](Self::stop) is called, from any thread, or at its deadline.
///
/// Clones are stopped together, and so is what [`Stop::at`] returns.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    shared: Arc<StopState>,
    deadline: Option<Instant>,
}

#[derive(Debug)]
struct StopState {
    is_stopped: AtomicBool,
    /// The threads that wait.
    wakers: Lock<Wakers>,
}

impl Default for StopState {
    fn default() -> Self {
        Self { is_stopped: AtomicBool::new(false), wakers: Lock::new(Wakers::default()) }
    }
}

impl Stop {
    /// One without a deadline.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same one with a deadline besides. If it has one already, the earlier one counts.
    #[must_use]
    pub fn at(&self, deadline: Instant) -> Self {
        let deadline = self.deadline.map_or(deadline, |earlier| earlier.min(deadline));
        Self { shared: Arc::clone(&self.shared), deadline: Some(deadline) }
    }

    /// Ends all waits that are given it, now and later.
    pub fn stop(&self) {
        self.shared.is_stopped.store(true, Ordering::Release);
        let mut wakers = std::mem::take(&mut *self.shared.wakers.lock());
        wakers.drain().for_each(Waker::wake);
    }

    /// Whether [`stop`](Self::stop) was called. The deadline does not count.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.shared.is_stopped.load(Ordering::Acquire)
    }

    /// How long a wait may last from now on; `None` for ever.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Has the waker called by [`stop`](Self::stop), until the returned value is dropped. If it was
    /// called before, the waker is not: look at [`Stop::is_stopped`] afterwards.
    pub(crate) fn call<'a>(&'a self, waker: &'a Waker) -> Called<'a> {
        self.shared.wakers.lock().add(waker);
        Called { shared: &self.shared, waker }
    }
}

/// A waker that [`Stop::stop`] calls.
pub(crate) struct Called<'a> {
    shared: &'a StopState,
    waker: &'a Waker,
}

impl Drop for Called<'_> {
    fn drop(&mut self) {
        self.shared.wakers.lock().remove(self.waker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_stop_together_and_the_earlier_deadline_counts() {
        let stop = Stop::new();
        assert_eq!(stop.left(), None);
        let now = Instant::now();
        let early = stop.at(now);
        let late = stop.at(now + Duration::from_secs(1_000));
        assert_eq!(early.left(), Some(Duration::ZERO));
        assert_eq!(late.at(now).left(), Some(Duration::ZERO));
        assert_eq!(early.at(now + Duration::from_secs(1_000)).left(), Some(Duration::ZERO));
        assert!(late.left() > Some(Duration::from_secs(500)));
        assert!(!early.is_stopped());
        late.clone().stop();
        assert!(stop.is_stopped() && early.is_stopped() && late.is_stopped());
    }

    #[test]
    fn wakers_are_kept_only_while_somebody_waits() {
        let (stop, waker) = (Stop::new(), Waker::noop());
        let called = stop.call(waker);
        assert!(!stop.shared.wakers.lock().is_empty());
        drop(called);
        assert!(stop.shared.wakers.lock().is_empty());
    }
}
