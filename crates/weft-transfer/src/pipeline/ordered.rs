//! The output of a parallel stage that keeps the order of its tasks.

use std::sync::{Condvar, Mutex, MutexGuard};

use super::order::Reorder;
use super::stop::{Stop, Stopped};

struct State<O> {
    order: Reorder<Option<O>>,
    /// A worker is passing on results that are in order, without holding the lock.
    is_flushing: bool,
}

/// Passes on results in the order of their tasks' numbers. It holds back a bounded number of
/// results.
pub(crate) struct Ordered<O> {
    state: Mutex<State<O>>,
    advanced: Condvar,
    window: u64,
}

impl<O> Ordered<O> {
    pub(crate) fn new(window: usize) -> Self {
        let window = window as u64;
        let order = Reorder::new(0, window);
        Self {
            state: Mutex::new(State { order, is_flushing: false }),
            advanced: Condvar::new(),
            window,
        }
    }

    /// Takes the result of task `number`, if it has one, and passes on the next ones by `push`. A
    /// worker that is too far ahead of the others sleeps.
    pub(crate) fn give<E>(
        &self,
        number: u64,
        result: Option<O>,
        stop: &Stop<E>,
        mut push: impl FnMut(O) -> Result<(), Stopped>,
    ) -> Result<(), Stopped> {
        let mut state = self.lock();
        while number - state.order.next() >= self.window {
            if stop.is_stopped() {
                return Err(Stopped);
            }
            state = self.advanced.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        // Each number occurs once and is within the window, so only a stop can fail here.
        state.order.insert(number, result).map_err(|_| Stopped)?;
        if state.is_flushing {
            return Ok(());
        }
        state.is_flushing = true;
        while let Some(next) = state.order.pop() {
            drop(state);
            self.advanced.notify_all();
            let pushed = next.map_or(Ok(()), &mut push);
            state = self.lock();
            if let Err(stopped) = pushed {
                state.is_flushing = false;
                return Err(stopped);
            }
        }
        state.is_flushing = false;
        Ok(())
    }

    /// Wakes all sleeping workers, which then check whether the pipeline has stopped.
    pub(crate) fn wake(&self) {
        drop(self.lock());
        self.advanced.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<O>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
