//! Counters of a copy.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The counters of a copy. Each has one writer.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    units: AtomicU64,
    buffers_in: AtomicU64,
    bytes_in: AtomicU64,
    buffers_out: AtomicU64,
    bytes_out: AtomicU64,
    waited_in: AtomicU64,
    waited_out: AtomicU64,
    queued_most: AtomicU64,
}

/// A copy's counters at some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Units of work that it has ended.
    pub units: u64,
    /// Buffers that it has begun to process.
    pub buffers_in: u64,
    /// Bytes of these.
    pub bytes_in: u64,
    /// Buffers that it has sent, once for each stream.
    pub buffers_out: u64,
    /// Bytes of these.
    pub bytes_out: u64,
    /// Nanoseconds of waiting for input.
    pub waited_in: u64,
    /// Nanoseconds of waiting for consumers.
    pub waited_out: u64,
    /// The most buffers that waited at a time.
    pub queued_most: u64,
    /// Nanoseconds since it was connected.
    pub elapsed: u64,
}

impl Counts {
    /// Nanoseconds that it has neither waited for input nor for consumers.
    #[must_use]
    pub fn busy(&self) -> u64 {
        self.elapsed.saturating_sub(self.waited_in + self.waited_out)
    }
}

impl Counters {
    pub(crate) fn took(&self, bytes: usize) {
        self.buffers_in.fetch_add(1, Relaxed);
        self.bytes_in.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.buffers_out.fetch_add(1, Relaxed);
        self.bytes_out.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn ended_unit(&self) {
        self.units.fetch_add(1, Relaxed);
    }

    pub(crate) fn queued(&self, buffers: usize) {
        self.queued_most.fetch_max(buffers as u64, Relaxed);
    }

    pub(crate) fn waited_in(&self, time: Duration) {
        self.waited_in.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    pub(crate) fn waited_out(&self, time: Duration) {
        self.waited_out.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    pub(crate) fn counts(&self, elapsed: Duration) -> Counts {
        Counts {
            units: self.units.load(Relaxed),
            buffers_in: self.buffers_in.load(Relaxed),
            bytes_in: self.bytes_in.load(Relaxed),
            buffers_out: self.buffers_out.load(Relaxed),
            bytes_out: self.bytes_out.load(Relaxed),
            waited_in: self.waited_in.load(Relaxed),
            waited_out: self.waited_out.load(Relaxed),
            queued_most: self.queued_most.load(Relaxed),
            elapsed: elapsed.as_nanos() as u64,
        }
    }
}
