//! Data channels of any transport that share a rate limit.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::channel::{DataSink, DataSource, Grants, Received, TransportError, Write, Written};
use super::rate::{RateLimit, TokenBucket};
use crate::clock::Clock;
use crate::limits::RATE_SLEEP_MAX;
use weft_sys::lock;

/// A rate limit that several channels share.
#[derive(Clone, Debug)]
pub struct Limit {
    bucket: RateLimit,
    clock: Clock,
}

impl Limit {
    /// Creates a limit in bytes of blocks and headers per second.
    ///
    /// # Panics
    /// If the limit is zero.
    #[must_use]
    pub fn new(bytes_per_second: u64, clock: Clock) -> Self {
        let bucket = TokenBucket::new(bytes_per_second, 0, clock.now());
        Self { bucket: Arc::new(Mutex::new(bucket)), clock }
    }

    /// Sleeps until the limit allows these bytes, or the channel is closed.
    fn pass(&self, bytes: usize, is_closed: &AtomicBool) {
        let mut wait = lock(&self.bucket).pass(bytes as u64, self.clock.now());
        while !wait.is_zero() && !is_closed.load(SeqCst) {
            let slice = wait.min(RATE_SLEEP_MAX);
            thread::sleep(slice);
            wait -= slice;
        }
    }
}

/// An end of a data channel with a rate limit.
pub struct Limited<C> {
    channel: C,
    limit: Limit,
    is_closed: Arc<AtomicBool>,
}

impl<C> fmt::Debug for Limited<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limited").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl<C> Limited<C> {
    /// Puts a channel under a limit.
    #[must_use]
    pub fn new(channel: C, limit: Limit) -> Self {
        Self { channel, limit, is_closed: Arc::default() }
    }

    /// Returns a function that closes the channel and ends a sleep.
    fn closing(&self, close: Arc<dyn Fn() + Send + Sync>) -> Arc<dyn Fn() + Send + Sync> {
        let is_closed = Arc::clone(&self.is_closed);
        Arc::new(move || {
            is_closed.store(true, SeqCst);
            close();
        })
    }
}

impl DataSource for Limited<Box<dyn DataSource>> {
    fn takes_extents(&self) -> bool {
        self.channel.takes_extents()
    }

    fn write(&mut self, write: Write) -> Written {
        self.limit.pass(write.head.bytes().len() + write.payload.len(), &self.is_closed);
        self.channel.write(write)
    }

    fn is_up(&mut self) -> bool {
        self.channel.is_up()
    }

    fn close(&mut self) {
        self.channel.close();
    }

    fn finish(&mut self) -> Result<(), TransportError> {
        self.channel.finish()
    }

    fn closer(&self) -> Arc<dyn Fn() + Send + Sync> {
        self.closing(self.channel.closer())
    }
}

impl DataSink for Limited<Box<dyn DataSink>> {
    fn receive(
        &mut self,
        grants: &dyn Grants,
        wait: Option<Duration>,
    ) -> Result<Received, TransportError> {
        let received = self.channel.receive(grants, wait)?;
        if let Received::Block(arrival) = &received {
            // While this thread sleeps it reads nothing, so the source has to wait for room.
            self.limit.pass(arrival.head.bytes().len() + arrival.len, &self.is_closed);
        }
        Ok(received)
    }

    fn closer(&self) -> Arc<dyn Fn() + Send + Sync> {
        self.closing(self.channel.closer())
    }
}
