//! Blocked threads, and how wakers end their sleep.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Wake, Waker};
use std::time::Duration;

/// A thread that sleeps until its waker is called.
#[derive(Debug, Default)]
pub(crate) struct Sleeper {
    is_woken: Mutex<bool>,
    changed: Condvar,
}

impl Sleeper {
    /// A new one, and its waker.
    pub(crate) fn new() -> (Arc<Self>, Waker) {
        let sleeper = Arc::new(Self::default());
        let waker = Waker::from(Arc::clone(&sleeper));
        (sleeper, waker)
    }

    /// Sleeps until the waker is called, or was since the last sleep, or until the limit is over.
    pub(crate) fn sleep(&self, limit: Option<Duration>) {
        // No code panics with the lock.
        let is_woken = self.is_woken.lock().unwrap_or_else(PoisonError::into_inner);
        let sleeps = |is_woken: &mut bool| !*is_woken;
        let mut is_woken = match limit {
            Some(limit) => {
                let woken = self.changed.wait_timeout_while(is_woken, limit, sleeps);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                let woken = self.changed.wait_while(is_woken, sleeps);
                woken.unwrap_or_else(PoisonError::into_inner)
            }
        };
        *is_woken = false;
    }
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.is_woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}
