//! Wakers of those who wait for the same thing.

use std::task::Waker;

use smallvec::SmallVec;

/// Wakers to call together.
#[derive(Debug, Default)]
pub(crate) struct Wakers(SmallVec<[Waker; 1]>);

impl Wakers {
    /// Has the waker called, once however often it is added.
    pub(crate) fn add(&mut self, waker: &Waker) {
        if !self.0.iter().any(|known| known.will_wake(waker)) {
            self.0.push(waker.clone());
        }
    }

    /// Takes a waker back.
    pub(crate) fn remove(&mut self, waker: &Waker) {
        self.0.retain(|known| !known.will_wake(waker));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes all of them.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Waker> {
        self.0.drain(..)
    }
}
