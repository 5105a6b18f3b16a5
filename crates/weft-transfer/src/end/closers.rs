//! Closes the data channels of an end.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use weft_sys::lock;

/// Closes a channel from any thread, and wakes the thread that waits for it.
pub(super) type Closer = Arc<dyn Fn() + Send + Sync>;

/// The closers of an end's data channels, by their numbers.
#[derive(Default)]
pub(super) struct Closers {
    all: Mutex<BTreeMap<u16, Closer>>,
    is_stopped: AtomicBool,
}

impl Closers {
    pub(super) fn add(&self, channel: u16, closer: Closer) {
        lock(&self.all).insert(channel, closer);
    }

    /// The number of channels that there have been.
    pub(super) fn count(&self) -> usize {
        lock(&self.all).len()
    }

    /// Whether the session is over.
    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(SeqCst)
    }

    pub(super) fn close(&self, channel: u16) {
        let closer = lock(&self.all).get(&channel).cloned();
        if let Some(closer) = closer {
            closer();
        }
    }

    /// Closes all channels at the end of the session. Returns false if that was done before.
    pub(super) fn stop(&self) -> bool {
        if self.is_stopped.swap(true, SeqCst) {
            return false;
        }
        for closer in lock(&self.all).values() {
            closer();
        }
        true
    }
}
