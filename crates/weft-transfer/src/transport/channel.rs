//! The interfaces of control and data channels.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::limits::HEAD_LEN_MAX;
use crate::pipeline::Block;
pub use crate::session::Arrivals;
use crate::wire::WireError;

/// Why a channel failed. The channel is of no more use then.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The kernel says so.
    #[error("{0}")]
    System(#[from] io::Error),
    /// The peer ended the connection within a message or block.
    #[error("the connection ended within a message")]
    Truncated,
    /// Nothing came, or went, for too long.
    #[error("no progress for {} s", .0.as_secs_f64())]
    Stalled(Duration),
    /// A control message is longer than any may be.
    #[error("a control message of {0} bytes")]
    MessageTooLong(usize),
    /// The session has refused the header of a block.
    #[error("{0}")]
    Refused(Refused),
    /// What the peer sends is no preface or no control message.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The peer is no peer of this protocol, or says something that it must not.
    #[error("not the protocol: {0}")]
    Protocol(&'static str),
    /// The security of the control channel failed.
    #[error("{0}")]
    Security(#[from] crate::secure::SecureError),
    /// This end has closed the channel.
    #[error("the channel is closed")]
    Closed,
}

/// What came on a control channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlEvent {
    /// A message, which is in the buffer.
    Message,
    /// None came in time.
    TimedOut,
    /// The peer has ended the connection, between two messages.
    Ended,
}

/// A channel of short messages, in order, both ways.
pub trait Control: Send + Sync {
    /// Sends a message, with its header, from any thread.
    ///
    /// # Errors
    /// When the channel has failed, or the message is too long.
    fn send(&self, message: &[u8]) -> Result<(), TransportError>;

    /// Receives the next message, with its header, into `message`, instead of what is in it. Sleeps
    /// for at most `wait`, or without end. One thread at a time receives.
    ///
    /// # Errors
    /// When the channel has failed.
    fn receive(
        &self,
        message: &mut Vec<u8>,
        wait: Option<Duration>,
    ) -> Result<ControlEvent, TransportError>;

    /// Ends the channel, from any thread: those that wait return. What has been sent arrives.
    fn close(&self);
}

/// A granted buffer, as the source's side of a transport needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// The address in the sink's memory, or the offset in what it has passed.
    pub address: u64,
    /// The key that allows to write there.
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
    /// A header of these bytes.
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

    /// The bytes.
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

/// What goes behind a header.
#[derive(Debug)]
pub enum Payload {
    /// The first `len` bytes of a block.
    Block {
        /// The block.
        block: Block,
        /// How many bytes of it.
        len: usize,
    },
    /// The first `prefix` bytes of a block, and then one extent of a file. Only where
    /// [`DataSource::takes_extents`] says so.
    Extent {
        /// The block with the prefix.
        block: Block,
        /// How many bytes of it.
        prefix: usize,
        /// The file.
        file: Arc<OwnedFd>,
        /// Where in the file the extent begins.
        offset: u64,
        /// How long it is.
        len: usize,
    },
}

impl Payload {
    /// How many bytes it has.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // Nobody asks.
    pub fn len(&self) -> usize {
        match self {
            Self::Block { len, .. } => *len,
            Self::Extent { prefix, len, .. } => prefix + len,
        }
    }

    /// The block, for the next use.
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
    /// What the completion names.
    pub id: u64,
    /// Where the block goes.
    pub place: Place,
    /// The block's header.
    pub head: Head,
    /// The block's bytes.
    pub payload: Payload,
}

/// A write has ended.
#[derive(Debug)]
pub struct Completion {
    /// The write, with its block, which is free for other use. That the write is completed does not
    /// mean that the block has arrived, where the sink sees arrivals: keep it until it is
    /// acknowledged.
    pub write: Write,
    /// Of an extent, how many bytes the file had: it may have become shorter since it was looked
    /// at. The rest was sent as zeros. None where nothing was missing.
    pub short: Option<usize>,
}

/// The source's end of a data channel. One thread at a time uses it.
pub trait DataSource: Send {
    /// Whether the sink sees arrivals.
    fn arrivals(&self) -> Arrivals;

    /// Whether [`Payload::Extent`] is taken.
    fn takes_extents(&self) -> bool;

    /// How many writes may be outstanding.
    fn depth(&self) -> usize;

    /// Begins a write; sleeps while there is no room for it.
    ///
    /// # Errors
    /// When the channel has failed: the write with its block, and why. Others that are outstanding
    /// come from [`DataSource::abandon`].
    fn post(&mut self, write: Write) -> Result<(), (Box<Write>, TransportError)>;

    /// The next completion, in order of posting or not. Sleeps for at most `wait` until there is
    /// one.
    ///
    /// # Errors
    /// When the channel has failed.
    fn completion(&mut self, wait: Duration) -> Result<Option<Completion>, TransportError>;

    /// Gives back what is outstanding after a failure. Nobody touches the blocks any more.
    fn abandon(&mut self) -> Vec<Write>;

    /// Tells the sink that no block follows, when all writes are completed.
    ///
    /// # Errors
    /// When the channel has failed.
    fn finish(&mut self) -> Result<(), TransportError>;

    /// Ends the channel, from any thread: a thread that waits returns.
    fn closer(&self) -> Arc<dyn Fn() + Send + Sync>;
}

/// What a sink says of a block that is about to arrive.
#[derive(Debug)]
pub enum Claim {
    /// It goes into a buffer.
    Into {
        /// The granted block that the header names.
        block: Block,
        /// How many bytes of payload come.
        len: usize,
    },
    /// It is of no more use: so many bytes of payload are read and dropped.
    Drop(usize),
}

/// The session refuses a header: the peer breaks the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("refused a block: {0}")]
pub struct Refused(pub &'static str);

/// The sink's table of granted buffers, which all data channels ask.
pub trait Grants: Send + Sync {
    /// How long each header is.
    fn head_len(&self) -> usize;

    /// Looks at a header, which is hostile, and hands out the buffer that it names. Nobody else
    /// gets it until it is given back.
    ///
    /// # Errors
    /// If nothing like that has been granted, or the payload does not fit.
    fn claim(&self, head: &[u8]) -> Result<Claim, Refused>;

    /// Takes a buffer back whose block did not arrive wholly: it remains granted.
    fn give_back(&self, head: &[u8], block: Block);
}

/// A whole block.
#[derive(Debug)]
pub struct Arrival {
    /// Its header, as [`Grants::claim`] has accepted it.
    pub head: Head,
    /// The block.
    pub block: Block,
    /// How many bytes of payload it has.
    pub len: usize,
}

/// What came on a data channel.
#[derive(Debug)]
pub enum Received {
    /// A block.
    Block(Arrival),
    /// A block came that was dropped, as its claim said.
    Dropped,
    /// None came in time.
    TimedOut,
    /// The source has ended the channel, between two blocks.
    Ended,
}

/// The sink's end of a data channel, where it sees arrivals. One thread at a time uses it.
pub trait DataSink: Send {
    /// Receives the next block. Sleeps for at most `wait` until it begins to come, or without end.
    ///
    /// # Errors
    /// When the channel has failed. The buffer of a block that came in part has been given back.
    fn receive(
        &mut self,
        grants: &dyn Grants,
        wait: Option<Duration>,
    ) -> Result<Received, TransportError>;

    /// Ends the channel, from any thread: a thread that waits returns.
    fn closer(&self) -> Arc<dyn Fn() + Send + Sync>;
}
