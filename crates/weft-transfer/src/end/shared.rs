//! What both ends share: errors, progress, results, and how data channels come.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

use super::loads::Loads;
use super::note::{Outcome, Planned};
use crate::limits::{CHANNEL_WAIT, POOL_BLOCKS};
use crate::pipeline::Pool;
use crate::secure::SecureError;
use crate::session::Connection;
use crate::transport::{Control, DataSink, DataSource, TransportError};

/// Why a session did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// A channel failed.
    #[error("{0}")]
    Transport(#[from] TransportError),
    /// The keys of blocks failed.
    #[error("{0}")]
    Secure(#[from] SecureError),
    /// The peer has ended the session.
    #[error("the peer ended the copy: {0}")]
    Peer(String),
    /// The peer breaks the protocol.
    #[error("the peer breaks the protocol: {0}")]
    Protocol(String),
    /// This end cannot go on.
    #[error("{0}")]
    Here(String),
}

/// A session that has been opened, and what its ends need of it alike.
pub struct Opened {
    /// The control channel.
    pub control: Arc<dyn Control>,
    /// Its machine.
    pub connection: Connection,
    /// The moment that the machine counts from.
    pub epoch: Instant,
    /// The session.
    pub session: u32,
    /// Bytes of a block, with its seal.
    pub block_size: u32,
    /// Threads that read or write files.
    pub threads: usize,
    /// Where to show how far it is.
    pub progress: Arc<Progress>,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").finish_non_exhaustive()
    }
}

impl Opened {
    /// Memory for the session's blocks.
    pub(super) fn pool(&self) -> Result<Pool, EndError> {
        let pool = Pool::private(POOL_BLOCKS as usize, self.block_size as usize);
        pool.map_err(|error| EndError::Here(format!("memory for blocks: {error}")))
    }
}

/// Hears what is wrong with single entries. Any thread calls it.
pub trait Observer: Send + Sync {
    /// Something is wrong with the entry at this path. After a warning it is there nevertheless.
    fn problem(&self, path: &[u8], text: &str, is_warning: bool);

    /// In a dry run, this would happen.
    fn planned(&self, planned: &Planned) {
        let _ = planned;
    }
}

/// How far a copy has come.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes of blocks that are where they belong.
    pub bytes: AtomicU64,
    /// Bytes of files that the source has found so far, whether they are wanted or not.
    pub planned: AtomicU64,
    /// Entries that the source has found so far.
    pub entries: AtomicU64,
    /// Whether the source has found all.
    pub is_planned: AtomicBool,
}

impl Progress {
    pub(super) fn plan(&self, planned: crate::tree::source::Planned) {
        self.planned.store(planned.bytes, Relaxed);
        self.entries.store(planned.entries, Relaxed);
        self.is_planned.store(planned.is_complete, Relaxed);
    }
}

/// What a copy has come to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Finished {
    /// What the sink says.
    pub outcome: Outcome,
    /// How busy the source was.
    pub source: Loads,
    /// How busy the sink was.
    pub sink: Loads,
}

/// Data channels as they come up, with their numbers.
pub type Channels<C> = Receiver<(u16, C)>;
/// The source's ends of data channels.
pub type SourceChannel = Box<dyn DataSource>;
/// The sink's ends of data channels.
pub type SinkChannel = Box<dyn DataSink>;

/// The next data channel; none when no more come, or nothing more is to be done.
pub(super) fn next_channel<C>(channels: &Channels<C>, is_stopped: &AtomicBool) -> Option<(u16, C)> {
    while !is_stopped.load(Relaxed) {
        match channels.recv_timeout(CHANNEL_WAIT) {
            Ok(channel) => return Some(channel),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
    None
}
