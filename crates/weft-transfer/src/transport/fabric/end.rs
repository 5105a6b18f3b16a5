//! The two ends of a data channel over the fabric.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::io::{pread, retry_on_intr};
use weft_fabric::{Buffer, Endpoint, Error, Fabric, Operation, RemoteKey, Returned, Stop};
use weft_sys::lock;

use super::landing::Landing;
use crate::blocks::Block;
use crate::limits::{FABRIC_SLOTS, STALL_TIME};
use crate::transport::channel::{
    DataSink, DataSource, Grants, Payload, Received, TransportError, Write, Written,
};
use crate::transport::landed::{self, Landed};

/// An endpoint that other threads can close. When this end is done with it, nothing holds it any
/// more, so the connection has ended and no write of the peer is in progress.
#[derive(Debug)]
struct Line {
    endpoint: Mutex<Option<Endpoint>>,
    is_closed: AtomicBool,
}

impl Line {
    fn new(endpoint: &Endpoint) -> Arc<Self> {
        let endpoint = Mutex::new(Some(endpoint.clone()));
        Arc::new(Self { endpoint, is_closed: AtomicBool::new(false) })
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(SeqCst)
    }

    /// Forgets the endpoint.
    fn end(&self) {
        // It is dropped after the lock is released.
        let _endpoint = lock(&self.endpoint).take();
    }

    /// Returns `Closed` instead of the error if this end has closed the channel.
    fn explain(&self, error: Error) -> TransportError {
        if self.is_closed() { TransportError::Closed } else { error.into() }
    }

    fn closer(self: &Arc<Self>) -> Arc<dyn Fn() + Send + Sync> {
        let line = Arc::clone(self);
        Arc::new(move || {
            line.is_closed.store(true, SeqCst);
            if let Some(endpoint) = &*lock(&line.endpoint) {
                endpoint.abort();
            }
        })
    }
}

/// The source's end of a data channel over the fabric.
#[derive(Debug)]
pub struct FabricSource {
    /// `None` after a failure, and at the end.
    endpoint: Option<Endpoint>,
    line: Arc<Line>,
    fabric: Fabric,
    /// Buffers for blocks that are on their way.
    free: Vec<Buffer>,
    under_way: VecDeque<Operation<Buffer>>,
    block_len: usize,
}

impl FabricSource {
    pub(super) fn new(
        fabric: &Fabric,
        endpoint: Endpoint,
        block_len: usize,
    ) -> Result<Self, TransportError> {
        let free = (0..FABRIC_SLOTS).map(|_| fabric.alloc(block_len));
        let (free, line) = (free.collect::<Result<_, _>>()?, Line::new(&endpoint));
        let under_way = VecDeque::new();
        let (endpoint, fabric) = (Some(endpoint), fabric.clone());
        Ok(Self { endpoint, line, fabric, free, under_way, block_len })
    }

    /// Returns a free buffer. Sleeps until there is one.
    fn slot(&mut self) -> Result<Buffer, TransportError> {
        // The one that was used last may still be in the processor's cache.
        while let Some(ended) = self.under_way.front_mut().and_then(Operation::try_wait) {
            self.under_way.pop_front();
            self.free.push(ended.map_err(|error| self.line.explain(error))?);
        }
        match self.free.pop() {
            Some(buffer) => Ok(buffer),
            None => self.oldest(),
        }
    }

    /// Waits for the oldest write, and returns its buffer.
    fn oldest(&mut self) -> Result<Buffer, TransportError> {
        let mut write = self.under_way.pop_front().ok_or(TransportError::Closed)?;
        let ended = write.wait_for(STALL_TIME).ok_or(TransportError::Stalled(STALL_TIME))?;
        ended.map_err(|error| self.line.explain(error))
    }

    /// Sends a block and its header. Returns how much of an extent the file had, if it was less.
    fn send(&mut self, write: &Write) -> Result<Option<usize>, TransportError> {
        if self.line.is_closed() {
            return Err(TransportError::Closed);
        }
        let len = write.payload.len();
        if len > self.block_len {
            return Err(TransportError::Protocol("a block that cannot be sent"));
        }
        let place = write.place.ok_or(TransportError::Protocol("a credit without an address"))?;
        let mut slot = self.slot()?;
        let short = fill(&mut slot[..len], &write.payload);
        let key = u32::try_from(place.key).unwrap_or_default();
        let key = RemoteKey::from_raw(place.address, place.len.into(), key);
        let endpoint = self.endpoint.as_ref().ok_or(TransportError::Closed)?;
        let batch = endpoint.batch();
        let written = endpoint.write(slot, ..len, &key, 0);
        let written = written.map_err(|Returned { error, .. }| self.line.explain(error))?;
        // It arrives after the payload. Its end does not matter: the connection's would be seen.
        drop(endpoint.send(write.head.bytes()).map_err(|error| self.line.explain(error))?);
        drop(batch);
        self.under_way.push_back(written);
        Ok(short)
    }

    /// The endpoint, for peers that break the rules.
    #[cfg(test)]
    pub(super) fn endpoint(&self) -> &Endpoint {
        self.endpoint.as_ref().expect("open")
    }

    /// Ends the connection at once.
    fn end(&mut self) {
        self.line.end();
        self.endpoint = None;
        self.under_way.clear();
    }
}

/// Fills the memory of a block that is to be sent. Returns how much of an extent the file had, if
/// it was less.
fn fill(slot: &mut [u8], payload: &Payload) -> Option<usize> {
    match payload {
        Payload::Block { block, .. } => {
            slot.copy_from_slice(&block.bytes()[..slot.len()]);
            None
        }
        Payload::Extent { block, prefix, file, offset, len } => {
            let (before, extent) = slot.split_at_mut(*prefix);
            before.copy_from_slice(&block.bytes()[..*prefix]);
            let mut had = 0;
            while had < *len {
                let at = offset + had as u64;
                match retry_on_intr(|| pread(file.as_fd(), &mut extent[had..], at)) {
                    // The sink still expects the whole block.
                    Ok(0) | Err(_) => break,
                    Ok(read) => had += read,
                }
            }
            extent[had..].fill(0);
            (had < *len).then_some(had)
        }
    }
}

impl DataSource for FabricSource {
    fn takes_extents(&self) -> bool {
        true
    }

    fn write(&mut self, write: Write) -> Written {
        let sent = self.send(&write);
        if sent.is_err() {
            self.end();
        }
        write.ended(sent)
    }

    fn close(&mut self) {
        self.end();
    }

    fn finish(&mut self) -> Result<(), TransportError> {
        while !self.under_way.is_empty() {
            let buffer = self.oldest()?;
            self.free.push(buffer);
        }
        let endpoint = self.endpoint.take().ok_or(TransportError::Closed)?;
        // The sink gets all headers before it learns that the connection has ended.
        let in_time = Stop::new().at(Instant::now() + STALL_TIME);
        let closed = self.fabric.wait_until(endpoint.close(), &in_time);
        self.end();
        let closed = closed.ok_or(TransportError::Stalled(STALL_TIME))?;
        closed.map_err(|error| self.line.explain(error))
    }

    fn closer(&self) -> Arc<dyn Fn() + Send + Sync> {
        self.line.closer()
    }
}

/// The sink's end of a data channel over the fabric.
#[derive(Debug)]
pub struct FabricSink {
    /// `None` after a failure, and at the end.
    endpoint: Option<Endpoint>,
    line: Arc<Line>,
    landing: Arc<Landing>,
}

impl FabricSink {
    pub(super) fn new(endpoint: Endpoint, landing: Arc<Landing>) -> Self {
        let line = Line::new(&endpoint);
        Self { endpoint: Some(endpoint), line, landing }
    }
}

impl Landed for FabricSink {
    fn receive_head(
        &mut self,
        head: &mut [u8],
        wait: Option<Duration>,
    ) -> Result<Option<Received>, TransportError> {
        let Some(endpoint) = &self.endpoint else { return Ok(Some(Received::Ended)) };
        let received = match wait {
            Some(time) => match endpoint.receive().wait_for(time) {
                Some(received) => received,
                None => return Ok(Some(Received::TimedOut)),
            },
            None => endpoint.receive().wait(),
        };
        match received {
            Ok(message) if message.len() == head.len() && message.immediate().is_none() => {
                head.copy_from_slice(&message);
                Ok(None)
            }
            Ok(_) => Err(TransportError::Protocol("a header of another length")),
            Err(Error::Closed { .. }) if !self.line.is_closed() => Ok(Some(Received::Ended)),
            Err(error) => Err(self.line.explain(error)),
        }
    }

    fn take_payload(&self, block: &mut Block, len: usize) -> bool {
        self.landing.take(block, len)
    }
}

impl DataSink for FabricSink {
    fn receive(
        &mut self,
        grants: &dyn Grants,
        wait: Option<Duration>,
    ) -> Result<Received, TransportError> {
        let received = landed::receive(self, grants, wait);
        if matches!(received, Ok(Received::Ended) | Err(_)) {
            // Without the endpoint nothing on this channel reaches a buffer.
            self.line.end();
            self.endpoint = None;
        }
        received
    }

    fn closer(&self) -> Arc<dyn Fn() + Send + Sync> {
        self.line.closer()
    }
}
