//! RDMA: data channels are reliable queue pairs; the control channel is a TCP connection.
//!
//! The sink has a *landing zone*: one registered buffer for each of its blocks, whose addresses and
//! key are in its credits. The source writes the payload of a block into the granted buffer, and
//! sends the block's header behind it on the same queue pair. A queue pair delivers in order, so
//! the payload is in the buffer when the header arrives. Completed writes would not tell that: on
//! iWARP they only mean that the network has the data.
//!
//! A peer that has the key may write into the landing zone at any time, so the sink copies each
//! payload out of it once, and uses the copy. The source copies payloads into registered slots, so
//! several blocks are on their way while the caller reuses its own.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use weft_rdma::{Access, Connection, Device, Next, Region, Remote, Request, Waker};

use super::channel::{
    DataSink, DataSource, Grants, Payload, Received, TransportError, Write, Written,
};
use super::landed::{self, Landed};
use crate::blocks::Block;
use crate::limits::{
    HEAD_LEN_MAX, RDMA_ALIGNMENT, RDMA_CONNECT_TIME, RDMA_SLOTS, STALL_TIME, VERSION,
};
use crate::session::RemoteBuffer;
use crate::wire::{Kind, Mode, Preface, Token};

/// Returns the RDMA address that belongs to a server's TCP address: the next port, because an iWARP
/// device may share the ports of TCP. The last port has none.
#[must_use]
pub fn address(mut tcp: SocketAddr) -> Option<SocketAddr> {
    tcp.set_port(tcp.port().checked_add(1)?);
    Some(tcp)
}

fn preface(token: Token, channel: u16) -> [u8; Preface::LEN] {
    let kind = Kind::Data { token, channel };
    Preface { version_min: VERSION, version_max: VERSION, kind, mode: Mode::Clear }.emit()
}

/// Returns the distance of buffers for blocks of this length.
fn stride(block_len: usize) -> usize {
    (block_len + HEAD_LEN_MAX).next_multiple_of(RDMA_ALIGNMENT)
}

/// The memory of a sink that its source writes to.
#[derive(Debug)]
pub struct Landing {
    region: Region,
    block_len: usize,
    count: u32,
}

impl Landing {
    /// Registers buffers for `count` blocks.
    ///
    /// # Errors
    /// If there is no memory, or the device refuses it.
    pub fn new(device: &Arc<Device>, count: u32, block_len: usize) -> io::Result<Arc<Self>> {
        let len = count as usize * stride(block_len);
        let region = Region::new(device, len, Access::Remote)?;
        Ok(Arc::new(Self { region, block_len, count }))
    }

    /// Returns what credits say of the buffers.
    #[must_use]
    pub fn buffers(&self) -> Vec<RemoteBuffer> {
        let key = self.region.remote_key();
        let address = |index| self.region.address(index as usize * stride(self.block_len));
        (0..self.count).map(|index| RemoteBuffer { address: address(index), key }).collect()
    }

    /// Copies the payload that was written for a block into the block. Returns false if the landing
    /// zone has no such payload, or the block no private memory.
    fn take(&self, block: &mut Block, len: usize) -> bool {
        let index = block.index();
        let bytes = block.bytes_mut().get_mut(..len);
        match bytes {
            Some(bytes) if index < self.count && len <= self.block_len => {
                self.region.copy_out(index as usize * stride(self.block_len), bytes);
                true
            }
            _ => false,
        }
    }
}

/// A connection request with a valid preface. Dropping it refuses the connection.
#[derive(Debug)]
pub struct Incoming {
    request: Request,
    /// The token of the data channel.
    pub token: Token,
    /// The number of the data channel.
    pub channel: u16,
}

impl Incoming {
    /// Reads the preface of a request.
    ///
    /// # Errors
    /// If it is not that of a data channel.
    pub fn new(request: Request) -> Result<Self, TransportError> {
        let bytes = request.private_data().first_chunk();
        match Preface::parse(bytes.ok_or(TransportError::Truncated)?)? {
            Preface { kind: Kind::Data { token, channel }, mode: Mode::Clear, .. } => {
                Ok(Self { request, token, channel })
            }
            _ => Err(TransportError::Protocol("only data channels go over RDMA")),
        }
    }

    /// Accepts the connection as the source's end.
    ///
    /// # Errors
    /// If the device or the peer fails.
    pub fn into_source(
        self,
        device: &Arc<Device>,
        block_len: usize,
    ) -> Result<RdmaSource, TransportError> {
        let slots = Slots::new(device, block_len)?;
        let depths = (RDMA_SLOTS, 1);
        let connection = self.request.accept(device, depths, RDMA_CONNECT_TIME, |_| Ok(()))?;
        Ok(RdmaSource::new(connection, slots))
    }

    /// Accepts the connection as the sink's end.
    ///
    /// # Errors
    /// If the device or the peer fails.
    pub fn into_sink(self, landing: &Arc<Landing>) -> Result<RdmaSink, TransportError> {
        let device = landing.region.device();
        let heads = Heads::new(landing)?;
        let depths = (1, landing.count);
        let connection = self
            .request
            .accept(device, depths, RDMA_CONNECT_TIME, |connection| heads.post_all(connection))?;
        Ok(RdmaSink::new(connection, heads, landing))
    }
}

/// Connects the source's end of a data channel to a server's RDMA address.
///
/// # Errors
/// If the device or the server refuses, or does not answer in time.
pub fn connect_source(
    device: &Arc<Device>,
    server: SocketAddr,
    (token, channel): (Token, u16),
    block_len: usize,
) -> Result<RdmaSource, TransportError> {
    let slots = Slots::new(device, block_len)?;
    let mut connection = Connection::to(device, server, RDMA_SLOTS, 1, RDMA_CONNECT_TIME)?;
    connection.connect(&preface(token, channel), RDMA_CONNECT_TIME)?;
    Ok(RdmaSource::new(connection, slots))
}

/// Connects the sink's end of a data channel to a server's RDMA address.
///
/// # Errors
/// If the device or the server refuses, or does not answer in time.
pub fn connect_sink(
    landing: &Arc<Landing>,
    server: SocketAddr,
    (token, channel): (Token, u16),
) -> Result<RdmaSink, TransportError> {
    let device = landing.region.device();
    let heads = Heads::new(landing)?;
    let mut connection = Connection::to(device, server, 1, landing.count, RDMA_CONNECT_TIME)?;
    heads.post_all(&mut connection)?;
    connection.connect(&preface(token, channel), RDMA_CONNECT_TIME)?;
    Ok(RdmaSink::new(connection, heads, landing))
}

fn closer(waker: &Waker) -> Arc<dyn Fn() + Send + Sync> {
    let waker = waker.clone();
    Arc::new(move || waker.close())
}

/// Returns `Closed` instead of the error if this end has closed the channel.
fn explain(waker: &Waker, error: io::Error) -> TransportError {
    if waker.is_closed() { TransportError::Closed } else { error.into() }
}

/// The registered copies of a source's blocks that are on their way.
#[derive(Debug)]
struct Slots {
    region: Region,
    block_len: usize,
    free: Vec<u64>,
}

impl Slots {
    fn new(device: &Arc<Device>, block_len: usize) -> io::Result<Self> {
        let region = Region::new(device, RDMA_SLOTS as usize * stride(block_len), Access::Local)?;
        Ok(Self { region, block_len, free: (0..u64::from(RDMA_SLOTS)).collect() })
    }
}

/// The source's end of a data channel over RDMA.
pub struct RdmaSource {
    /// `None` after a failure.
    connection: Option<Connection>,
    slots: Slots,
    waker: Waker,
}

impl fmt::Debug for RdmaSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaSource").field("connection", &self.connection).finish_non_exhaustive()
    }
}

impl RdmaSource {
    fn new(connection: Connection, slots: Slots) -> Self {
        let waker = connection.waker();
        Self { connection: Some(connection), slots, waker }
    }

    /// Returns a free slot. Sleeps until there is one.
    fn slot(&mut self) -> Result<u64, TransportError> {
        let connection = self.connection.as_mut().ok_or(TransportError::Closed)?;
        while let Some(done) = connection.poll().map_err(|error| explain(&self.waker, error))? {
            self.slots.free.push(done.id);
        }
        self.wait_for_slots(1)?;
        self.slots.free.pop().ok_or(TransportError::Closed)
    }

    /// Sleeps until so many slots are free.
    fn wait_for_slots(&mut self, count: usize) -> Result<(), TransportError> {
        let connection = self.connection.as_mut().ok_or(TransportError::Closed)?;
        while self.slots.free.len() < count {
            match connection.next(Some(STALL_TIME)) {
                Ok(Next::Completed(done)) => self.slots.free.push(done.id),
                Ok(Next::TimedOut) => return Err(TransportError::Stalled(STALL_TIME)),
                Ok(Next::Ended) => return Err(TransportError::Truncated),
                Err(error) => return Err(explain(&self.waker, error)),
            }
        }
        Ok(())
    }

    fn send(&mut self, write: &Write) -> Result<(), TransportError> {
        if self.waker.is_closed() {
            return Err(TransportError::Closed);
        }
        let Payload::Block { block, len } = &write.payload else {
            return Err(TransportError::Protocol("RDMA channels do not take extents"));
        };
        let bytes = block.bytes().get(..*len);
        let bytes = bytes.filter(|bytes| bytes.len() <= self.slots.block_len);
        let bytes = bytes.ok_or(TransportError::Protocol("a block that cannot be sent"))?;
        let place = write.place.ok_or(TransportError::Protocol("a credit without an address"))?;
        let key = u32::try_from(place.key).unwrap_or_default();
        let to = Remote { address: place.address, key };
        let slot = self.slot()?;
        let (at, head) = (slot as usize * stride(self.slots.block_len), write.head.bytes());
        self.slots.region.copy_in(at, bytes);
        self.slots.region.copy_in(at + bytes.len(), head);
        let connection = self.connection.as_mut().ok_or(TransportError::Closed)?;
        let region = &self.slots.region;
        let posted = connection.post_write(slot, region, at, bytes.len(), to, head.len());
        posted.map_err(|error| explain(&self.waker, error))
    }
}

impl DataSource for RdmaSource {
    fn write(&mut self, write: Write) -> Written {
        let sent = self.send(&write);
        if sent.is_err() {
            self.connection = None;
        }
        write.ended(sent.map(|()| None))
    }

    fn is_up(&mut self) -> bool {
        let Some(connection) = &mut self.connection else { return false };
        loop {
            match connection.next(Some(Duration::ZERO)) {
                Ok(Next::Completed(done)) => self.slots.free.push(done.id),
                Ok(Next::TimedOut) => return true,
                Ok(Next::Ended) | Err(_) => break,
            }
        }
        self.connection = None;
        false
    }

    fn close(&mut self) {
        self.connection = None;
    }

    fn finish(&mut self) -> Result<(), TransportError> {
        // The sink gets all blocks before it learns that the connection has ended.
        self.wait_for_slots(RDMA_SLOTS as usize)?;
        self.connection = None;
        Ok(())
    }

    fn closer(&self) -> Arc<dyn Fn() + Send + Sync> {
        closer(&self.waker)
    }
}

/// The receives of a sink's channel, one for each block that may be on its way.
#[derive(Debug)]
struct Heads {
    region: Region,
    count: u32,
}

impl Heads {
    fn new(landing: &Landing) -> io::Result<Self> {
        let (device, count) = (landing.region.device(), landing.count);
        let region = Region::new(device, count as usize * HEAD_LEN_MAX, Access::Local)?;
        Ok(Self { region, count })
    }

    fn post_all(&self, connection: &mut Connection) -> io::Result<()> {
        (0..self.count).try_for_each(|index| self.post(connection, u64::from(index)))
    }

    fn post(&self, connection: &mut Connection, index: u64) -> io::Result<()> {
        connection.post_receive(index, &self.region, index as usize * HEAD_LEN_MAX, HEAD_LEN_MAX)
    }
}

/// The sink's end of a data channel over RDMA.
pub struct RdmaSink {
    /// `None` after the end or a failure.
    connection: Option<Connection>,
    heads: Heads,
    landing: Arc<Landing>,
    waker: Waker,
}

impl fmt::Debug for RdmaSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaSink").field("connection", &self.connection).finish_non_exhaustive()
    }
}

impl RdmaSink {
    fn new(connection: Connection, heads: Heads, landing: &Arc<Landing>) -> Self {
        let waker = connection.waker();
        Self { connection: Some(connection), heads, landing: Arc::clone(landing), waker }
    }
}

impl Landed for RdmaSink {
    fn receive_head(
        &mut self,
        head: &mut [u8],
        wait: Option<Duration>,
    ) -> Result<Option<Received>, TransportError> {
        let connection = self.connection.as_mut().ok_or(TransportError::Closed)?;
        match connection.next(wait).map_err(|error| explain(&self.waker, error))? {
            Next::TimedOut => Ok(Some(Received::TimedOut)),
            Next::Ended => Ok(Some(Received::Ended)),
            Next::Completed(done) if done.len as usize == head.len() => {
                self.heads.region.copy_out(done.id as usize * HEAD_LEN_MAX, head);
                // The source sends no header without a credit, and gets the block's next one only
                // after this. So there is a receive for each header.
                let posted = self.heads.post(connection, done.id);
                posted.map_err(|error| explain(&self.waker, error))?;
                Ok(None)
            }
            Next::Completed(_) => Err(TransportError::Protocol("a header of another length")),
        }
    }

    fn take_payload(&self, block: &mut Block, len: usize) -> bool {
        self.landing.take(block, len)
    }
}

impl DataSink for RdmaSink {
    fn receive(
        &mut self,
        grants: &dyn Grants,
        wait: Option<Duration>,
    ) -> Result<Received, TransportError> {
        let received = landed::receive(self, grants, wait);
        if matches!(received, Ok(Received::Ended) | Err(_)) {
            // Without the queue pair nothing on this channel reaches a buffer.
            self.connection = None;
        }
        received
    }

    fn closer(&self) -> Arc<dyn Fn() + Send + Sync> {
        closer(&self.waker)
    }
}
