//! What clients may do in a share, and how much at a time.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::clock::Clock;
use crate::limits::PLACE_WAIT;
use crate::transport::Limit;
use crate::tree::apply::Quota;
use crate::wire::Refusal;
use weft_sys::lock;

/// What a client may do in a share. A share of which a client may do nothing is none of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It may read.
    Read,
    /// It may write, and learns nothing about what is there.
    Write,
    /// It may read and write.
    Both,
}

impl Access {
    /// Whether it may read.
    #[must_use]
    pub fn reads(self) -> bool {
        self != Self::Write
    }

    /// Whether it may write.
    #[must_use]
    pub fn writes(self) -> bool {
        self != Self::Read
    }
}

/// A directory that a server shares.
#[derive(Clone, Debug)]
pub struct Share {
    /// Its name for clients.
    pub name: Vec<u8>,
    /// The directory.
    pub root: Arc<OwnedFd>,
    /// What the client may do.
    pub access: Access,
    /// The limits of what it contains.
    pub quota: Option<Arc<Quota>>,
    /// What all clients together may do with it at a time.
    pub limits: Option<Arc<Limits>>,
}

/// The most that copies may do together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// How many may run at a time.
    pub copies: Option<u32>,
    /// How many bytes of blocks and headers they may take in a second.
    pub rate: Option<u64>,
}

/// What copies do together, and the most of it.
#[derive(Debug)]
pub struct Limits {
    /// Whose limits these are.
    of: String,
    state: Mutex<LimitsState>,
    /// Notified when a copy gives its place back.
    left: Condvar,
}

#[derive(Debug)]
struct LimitsState {
    bounds: Bounds,
    running: u32,
    rate: Option<Limit>,
}

impl Limits {
    /// Limits the copies of this user, share or server.
    ///
    /// # Panics
    /// If the rate is zero.
    #[must_use]
    pub fn new(of: String, bounds: Bounds) -> Arc<Self> {
        let rate = limit(bounds);
        let state = Mutex::new(LimitsState { bounds, running: 0, rate });
        Arc::new(Self { of, state, left: Condvar::new() })
    }

    /// Changes the limits for copies that begin from now on. Those that run count, and keep their
    /// rate.
    ///
    /// # Panics
    /// If the rate is zero.
    pub fn change(&self, bounds: Bounds) {
        let mut state = lock(&self.state);
        if state.bounds.rate != bounds.rate {
            state.rate = limit(bounds);
        }
        state.bounds = bounds;
    }

    /// Takes the place of a copy. If there is none, it waits for a moment: a client may know before
    /// the server that its last copy has ended.
    pub(super) fn enter(self: &Arc<Self>) -> Result<Place, (Refusal, String)> {
        let is_full =
            |state: &LimitsState| state.bounds.copies.is_some_and(|most| state.running >= most);
        let state = lock(&self.state);
        let waited = self.left.wait_timeout_while(state, PLACE_WAIT, |state| is_full(state));
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(most) = state.bounds.copies
            && is_full(&state)
        {
            let text = format!("{} has {most} copies at a time: try again later", self.of);
            return Err((Refusal::Busy, text));
        }
        state.running += 1;
        Ok(Place { limits: Arc::clone(self), rate: state.rate.clone() })
    }
}

fn limit(bounds: Bounds) -> Option<Limit> {
    bounds.rate.map(|rate| Limit::new(rate, Clock::system()))
}

/// The place of a copy within limits, until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) limits: Arc<Limits>,
    pub(super) rate: Option<Limit>,
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.limits.state).running -= 1;
        self.limits.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_back_and_changes_count_what_runs() {
        let bounds = |copies, rate| Bounds { copies, rate };
        let limits = Limits::new("the share x".into(), bounds(Some(2), Some(1 << 20)));
        let one = limits.enter().expect("a place");
        let two = limits.enter().expect("a place");
        assert!(one.rate.is_some());
        let (refusal, text) = limits.enter().expect_err("two at a time");
        assert_eq!(refusal, Refusal::Busy);
        assert_eq!(text, "the share x has 2 copies at a time: try again later");
        drop(one);
        let three = limits.enter().expect("a place");
        limits.change(bounds(Some(1), None));
        drop(two);
        limits.enter().expect_err("one at a time, which runs");
        drop(three);
        assert!(limits.enter().expect("a place").rate.is_none());
        limits.change(bounds(None, None));
        let many: Vec<_> = (0..100).map(|_| limits.enter().expect("any number")).collect();
        assert_eq!(many.len(), 100);
    }
}
