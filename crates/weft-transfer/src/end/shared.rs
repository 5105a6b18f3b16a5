//! The parts that both ends share: errors, progress, results, and the arrival of data channels.

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

/// Why a session failed.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// A channel failed.
    #[error("{0}")]
    Transport(#[from] TransportError),
    /// Encrypting or decrypting failed.
    #[error("{0}")]
    Secure(#[from] SecureError),
    /// The peer cancelled the session.
    #[error("the peer ended the copy: {0}")]
    Peer(String),
    /// The peer violated the protocol.
    #[error("the peer violates the protocol: {0}")]
    Protocol(String),
    /// This end failed.
    #[error("{0}")]
    Here(String),
}

/// An open session, with the settings that both ends need.
pub struct Opened {
    /// The control channel.
    pub control: Arc<dyn Control>,
    /// The state machine of the connection.
    pub connection: Connection,
    /// The moment from which the connection measures time.
    pub epoch: Instant,
    /// The session's number.
    pub session: u32,
    /// The block size in bytes, including the seal.
    pub block_size: u32,
    /// The number of threads that read or write files.
    pub threads: usize,
    /// The counters for progress displays.
    pub progress: Arc<Progress>,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").finish_non_exhaustive()
    }
}

impl Opened {
    /// Allocates the session's pool of blocks.
    pub(super) fn pool(&self) -> Result<Pool, EndError> {
        let pool = Pool::private(POOL_BLOCKS as usize, self.block_size as usize);
        pool.map_err(|error| EndError::Here(format!("memory for blocks: {error}")))
    }
}

/// Receives reports about single entries. Any thread calls it.
pub trait Observer: Send + Sync {
    /// Reports a problem with the entry at this path. After a warning, the entry exists
    /// nevertheless.
    fn problem(&self, path: &[u8], text: &str, is_warning: bool);

    /// Reports a change that a dry run predicts.
    fn planned(&self, planned: &Planned) {
        let _ = planned;
    }
}

/// The progress of a copy.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes of blocks that have been processed.
    pub bytes: AtomicU64,
    /// Bytes of the files that the source has found so far, wanted or not.
    pub planned: AtomicU64,
    /// The entries that the source has found so far.
    pub entries: AtomicU64,
    /// Whether the source has found all entries.
    pub is_planned: AtomicBool,
}

impl Progress {
    pub(super) fn plan(&self, planned: crate::tree::source::Planned) {
        self.planned.store(planned.bytes, Relaxed);
        self.entries.store(planned.entries, Relaxed);
        self.is_planned.store(planned.is_complete, Relaxed);
    }
}

/// The result of a copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Finished {
    /// The sink's result.
    pub outcome: Outcome,
    /// The source's load.
    pub source: Loads,
    /// The sink's load.
    pub sink: Loads,
}

/// New data channels with their numbers.
pub type Channels<C> = Receiver<(u16, C)>;
/// The source's ends of data channels.
pub type SourceChannel = Box<dyn DataSource>;
/// The sink's ends of data channels.
pub type SinkChannel = Box<dyn DataSink>;

/// Waits for the next data channel. Returns `None` when no more come or the session is over.
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
