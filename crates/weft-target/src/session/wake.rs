//! Waking the threads that serve the connections of a session.

use std::fmt;
use std::sync::{Arc, Mutex};

use super::member::MemberId;
use weft_sys::lock;

/// Wakes the thread that serves a connection.
#[derive(Clone)]
pub struct Wake(Arc<dyn Fn() + Send + Sync>);

impl Wake {
    /// Returns one that calls `wake`, from any thread.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(wake))
    }
}

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Wake").finish()
    }
}

/// Those of a session's connections.
#[derive(Debug)]
pub(super) struct Wakes(Mutex<Vec<(MemberId, Wake)>>);

impl Wakes {
    /// That of the first connection.
    pub(super) fn new(wake: Wake) -> Self {
        Self(Mutex::new(vec![(0, wake)]))
    }

    /// Adds that of another one.
    pub(super) fn add(&self, id: MemberId, wake: Wake) {
        lock(&self.0).push((id, wake));
    }

    /// Removes that of one that has ended.
    pub(super) fn remove(&self, id: MemberId) {
        lock(&self.0).retain(|(other, _)| *other != id);
    }

    /// Wakes a connection.
    pub(super) fn wake(&self, id: MemberId) {
        lock(&self.0).iter().filter(|(other, _)| *other == id).for_each(|(_, wake)| (wake.0)());
    }

    /// Wakes all connections.
    pub(super) fn wake_all(&self) {
        lock(&self.0).iter().for_each(|(_, wake)| (wake.0)());
    }
}
