//! The interfaces of control and data channels.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::blocks::Block;
use crate::limits::HEAD_LEN_MAX;
use crate::wire::WireError;

/// Errors of a channel. The channel cannot be used after one.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// A system call failed.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The peer ended the connection within a message or block.
    #[error("the connection ended within a message or block")]
    Truncated,
    /// The channel made no progress for this time.
    #[error("no progress for {} s", .0.as_secs_f64())]
    Stalled(Duration),
    /// A control message exceeds its limit.
    #[error("a control message of {0} bytes is too long")]
    MessageTooLong(usize),
    /// The session refused the header of a block.
    #[error("{0}")]
    Refused(Refused),
    /// The peer sent an invalid preface or control message.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The peer violates the protocol, or does not speak it.
    #[error("the peer violates the protocol: {0}")]
    Protocol(&'static str),
    /// The security of the control channel failed.
    #[error(transparent)]
    Security(#[from] crate::secure::SecureError),
    /// This end has closed the channel.
    #[error("the channel is closed")]
    Closed,
}

/// The result of receiving on a control channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlEvent {
    /// A message has arrived and is in the buffer.
    Message,
    /// No message arrived in time.
    TimedOut,
    /// The peer has ended the connection after a whole message.
    Ended,
}

/// A bidirectional channel of short messages that keeps their order.
pub trait Control: Send + Sync {
    /// Sends a message with its header. Any thread may call it.
    ///
    /// # Errors
    /// If the channel has failed, or the message is too long.
    fn send(&self, message: &[u8]) -> Result<(), TransportError>;

    /// Receives the next message with its header, and replaces the contents of `message` by it.
    /// Sleeps for at most `wait`, or without a limit if that is `None`. Only one thread at a time
    /// may call it.
    ///
    /// # Errors
    /// If the channel has failed.
    fn receive(
        &self,
        message: &mut Vec<u8>,
        wait: Option<Duration>,
    ) -> Result<ControlEvent, TransportError>;

    /// Closes the channel from any thread, and wakes the threads that wait. Sent messages still
    /// arrive.
    fn close(&self);

    /// The shortest round trip to the peer that has been measured, if the transport measures it.
    fn round_trip(&self) -> Option<Duration> {
        None
    }
}

/// The address of a granted buffer that the source writes into by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The address in the sink's memory.
    pub address: u64,
    /// The key that permits the write.
    pub key: u64,
    /// The length of the buffer in bytes.
    pub len: u32,
}

/// The bytes of a block's header.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Head {
    bytes: [u8; HEAD_LEN_MAX],
    len: u8,
}

impl Head {
    /// Creates a header from its bytes.
    ///
    /// # Panics
    /// If they are more than `HEAD_LEN_MAX`.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        let mut head = Self { bytes: [0; HEAD_LEN_MAX], len: 0 };
        head.bytes[..bytes.len()].copy_from_slice(bytes);
        head.len = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
        head
    }

    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", self.bytes())
    }
}

/// The payload of a write.
#[derive(Debug)]
pub enum Payload {
    /// The first `len` bytes of a block.
    Block {
        /// The block.
        block: Block,
        /// The length of the payload.
        len: usize,
    },
    /// The first `prefix` bytes of a block, then one extent of a file. Only allowed if
    /// [`DataSource::takes_extents`] returns true.
    Extent {
        /// The block with the prefix.
        block: Block,
        /// The length of the prefix.
        prefix: usize,
        /// The file.
        file: Arc<OwnedFd>,
        /// The offset of the extent in the file.
        offset: u64,
        /// The length of the extent.
        len: usize,
    },
}

impl Payload {
    /// The length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // Nobody asks.
    pub fn len(&self) -> usize {
        match self {
            Self::Block { len, .. } => *len,
            Self::Extent { prefix, len, .. } => prefix + len,
        }
    }

    /// Returns the block for its next use.
    #[must_use]
    pub fn into_block(self) -> Block {
        match self {
            Self::Block { block, .. } | Self::Extent { block, .. } => block,
        }
    }
}

/// One write of a block into a granted buffer.
#[derive(Debug)]
pub struct Write {
    /// The granted buffer; `None` if the sink reads blocks into it itself.
    pub place: Option<Place>,
    /// The block's header.
    pub head: Head,
    /// The block's bytes.
    pub payload: Payload,
}

impl Write {
    /// Returns what has become of the write.
    pub(super) fn ended(self, result: Result<Option<usize>, TransportError>) -> Written {
        Written { block: self.payload.into_block(), result }
    }
}

/// What has become of a write.
#[derive(Debug)]
pub struct Written {
    /// The block, which the channel does not use any more. That it was written does not mean that
    /// it has arrived: keep its contents until they are acknowledged.
    pub block: Block,
    /// The bytes of an extent that the file had, if it was truncated after the caller looked. Zeros
    /// were sent for the rest. `None` if nothing was missing. An error means that the channel has
    /// failed, and an unknown part of the block was sent.
    pub result: Result<Option<usize>, TransportError>,
}

/// The source's end of a data channel, used by one thread at a time.
pub trait DataSource: Send {
    /// Whether it accepts [`Payload::Extent`].
    fn takes_extents(&self) -> bool {
        false
    }

    /// Writes a block. Sleeps until the channel does not use its memory any more: the kernel or
    /// memory of the transport has a copy, or the sink has the block.
    fn write(&mut self, write: Write) -> Written;

    /// Whether the connection is up, as far as this end sees that without a write.
    fn is_up(&mut self) -> bool {
        true
    }

    /// Ends the channel at once. Blocks that are on their way may not arrive.
    fn close(&mut self);

    /// Tells the sink that no block follows.
    ///
    /// # Errors
    /// If the channel has failed.
    fn finish(&mut self) -> Result<(), TransportError>;

    /// Returns a function that closes the channel from any thread and wakes the thread that waits.
    fn closer(&self) -> Arc<dyn Fn() + Send + Sync>;
}

/// The sink's decision about an announced block.
#[derive(Debug)]
pub enum Claim {
    /// The transport reads the block into a buffer.
    Into {
        /// The granted block that the header names.
        block: Block,
        /// The length of the payload.
        len: usize,
    },
    /// The block is obsolete: the transport reads and discards so many bytes of payload.
    Drop(usize),
}

/// The session refuses a header because it violates the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the session refused a block: {0}")]
pub struct Refused(pub &'static str);

/// The sink's table of granted buffers, which all of its data channels share.
pub trait Grants: Send + Sync {
    /// The length of each header.
    fn head_len(&self) -> usize;

    /// Checks an untrusted header, and returns the buffer that it names. The caller owns the buffer
    /// until it returns it.
    ///
    /// # Errors
    /// If the buffer is not granted, or the payload does not fit.
    fn claim(&self, head: &[u8]) -> Result<Claim, Refused>;

    /// Takes back the buffer of a block that did not arrive completely. The buffer remains granted.
    fn give_back(&self, head: &[u8], block: Block);
}

/// A block that has arrived completely.
#[derive(Debug)]
pub struct Arrival {
    /// Its header, as [`Grants::claim`] has accepted it.
    pub head: Head,
    /// The block.
    pub block: Block,
    /// The length of its payload.
    pub len: usize,
}

/// The result of receiving on a data channel.
#[derive(Debug)]
pub enum Received {
    /// A block.
    Block(Arrival),
    /// A block was read and discarded, as its claim required.
    Dropped,
    /// No block arrived in time.
    TimedOut,
    /// The source has ended the channel after a whole block.
    Ended,
}

/// The sink's end of a data channel, used by one thread at a time.
pub trait DataSink: Send {
    /// Receives the next block. Sleeps for at most `wait` until it begins to arrive, or without a
    /// limit if that is `None`.
    ///
    /// # Errors
    /// If the channel has failed. The buffer of an incomplete block has been given back.
    fn receive(
        &mut self,
        grants: &dyn Grants,
        wait: Option<Duration>,
    ) -> Result<Received, TransportError>;

    /// Returns a function that closes the channel from any thread and wakes the thread that waits.
    fn closer(&self) -> Arc<dyn Fn() + Send + Sync>;
}
