//! The parts that both ends share: errors, progress and results.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::loads::{Loads, Stages};
use super::note::{Found, Outcome, Planned};
use crate::blocks::Pool;
use crate::compress::Compression;
use crate::placement::Placement;
use crate::secure::{Cipher, SecureError};
use crate::session::Connection;
use crate::transport::tcp::Congestion;
use crate::transport::{Control, DataSink, DataSource, TransportError};
use crate::tree::direct::When;

/// Why a session failed.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// A channel failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// Encrypting or decrypting failed.
    #[error(transparent)]
    Secure(#[from] SecureError),
    /// The connection to the peer is lost.
    #[error("{0}")]
    Lost(String),
    /// The peer cancelled the session.
    #[error("{0}")]
    Peer(String),
    /// The peer violated the protocol.
    #[error("the peer violates the protocol: {0}")]
    Protocol(String),
    /// This end failed.
    #[error("{0}")]
    Here(String),
}

impl EndError {
    /// Whether the other end does not accept this end's key.
    #[must_use]
    pub fn is_key_refused(&self) -> bool {
        matches!(self, Self::Transport(TransportError::Security(SecureError::Refused)))
    }

    /// Whether nothing answers at the address of the other end.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        use std::io::ErrorKind::{
            ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut,
        };
        let Self::Transport(TransportError::System(error)) = self else { return false };
        let kinds = [ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut];
        kinds.contains(&error.kind())
    }

    /// Whether a new connection may help, because this one was lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        use TransportError::{Closed, Security, Stalled, System, Truncated};
        match self {
            Self::Lost(_) => true,
            Self::Transport(Security(error)) => {
                matches!(error, SecureError::Cut | SecureError::TimedOut | SecureError::System(_))
            }
            Self::Transport(error) => matches!(error, System(_) | Truncated | Stalled(_) | Closed),
            _ => false,
        }
    }

    /// Returns this error as that of one of two peers.
    pub(super) fn of(self, peer: &str) -> Self {
        let text = format!("{peer}: {self}");
        if self.is_lost() { Self::Lost(text) } else { Self::Here(text) }
    }
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
    /// The number of blocks in this end's pool.
    pub blocks: u32,
    /// The number of threads that read or write files.
    pub threads: usize,
    /// The counters for progress displays.
    pub progress: Arc<Progress>,
    /// Connects other data channels if all have failed.
    pub spare: Option<Spare>,
    /// Whether the two ends are servers, between which a client passes the control messages.
    pub is_bridged: bool,
}

/// Connects other data channels in the place of those that have failed, and passes them to the end.
pub type Spare = Box<dyn FnOnce() + Send>;

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").finish_non_exhaustive()
    }
}

impl Opened {
    /// Creates a session of a connection that measures time from `epoch`, with the block size and
    /// the number of blocks.
    #[must_use]
    pub fn new(
        control: Arc<dyn Control>,
        (connection, epoch): (Connection, Instant),
        session: u32,
        (block_size, blocks): (u32, u32),
        threads: usize,
        progress: Arc<Progress>,
    ) -> Self {
        Self {
            control,
            connection,
            epoch,
            session,
            block_size,
            blocks,
            threads,
            progress,
            spare: None,
            is_bridged: false,
        }
    }

    /// Allocates the session's pool of blocks.
    pub(super) fn pool(&self) -> Result<Pool, EndError> {
        let pool = Pool::new(self.blocks as usize, self.block_size as usize);
        pool.map_err(|error| EndError::Here(format!("memory for blocks: {error}")))
    }
}

/// What carries the blocks of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// Memory that processes of one host share.
    Memory,
    /// Connections of the fabric between hosts.
    Fabric,
    /// RDMA connections.
    Rdma,
    /// TCP connections.
    Tcp,
    /// The streams of a remote shell.
    Shell,
    /// TCP connections from one server to another one.
    Direct,
    /// TCP connections of two servers to this host.
    Relay,
}

/// How a copy is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decisions {
    /// What carries the blocks; `None` within one process.
    pub carrier: Option<Carrier>,
    /// The most data channels.
    pub channels: u16,
    /// The block size in bytes.
    pub block_size: u32,
    /// Blocks in the pool of each end.
    pub blocks: u32,
    /// The round trip between the ends, if it is known.
    pub round_trip: Option<Duration>,
    /// The threads of this end that read or write files.
    pub threads: usize,
    /// Where the threads of this end run.
    pub placement: Placement,
    /// The cipher that seals blocks.
    pub cipher: Option<Cipher>,
    /// When blocks are compressed.
    pub compression: Compression,
    /// The congestion control of the source's end, over TCP.
    pub congestion: Congestion,
    /// Which files bypass the page cache at this end.
    pub direct: When,
    /// Whether the kernel copies the data of large files.
    pub is_copied_by_kernel: bool,
}

/// Receives reports about a copy and its entries. Any thread calls it.
pub trait Observer: Send + Sync {
    /// Reports a problem with the entry at this path. After a warning, the entry exists
    /// nevertheless.
    fn problem(&self, path: &[u8], text: &str, is_warning: bool);

    /// Reports that the entry at this path is to be copied once more; an empty path means all of
    /// them.
    fn again(&self, path: &[u8]) {
        let _ = path;
    }

    /// Reports what carries the blocks, and why nothing faster does. If there is no choice, it is
    /// not called.
    fn chosen(&self, carrier: Carrier, why: Option<&str>) {
        let _ = (carrier, why);
    }

    /// Reports how the copy is made, before the first block.
    fn decided(&self, decisions: &Decisions) {
        let _ = decisions;
    }

    /// Reports an entry that the source has, while it is listed.
    fn found(&self, found: &Found) {
        let _ = found;
    }

    /// Reports a change that a dry run predicts, or that was made if changes are listed.
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
    /// The effect of compression; zero if the ends have not agreed on it.
    pub compressed: Compressed,
    /// What the threads of this end did; nothing if it only passes blocks or messages on.
    pub stages: Stages,
}

/// The effect of compression on the payloads of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compressed {
    /// Bytes before compression.
    pub plain: u64,
    /// Bytes that went over the network, without headers and seals.
    pub sent: u64,
}

/// Counts the effect of compression.
#[derive(Debug, Default)]
pub(super) struct CompressedCount {
    plain: AtomicU64,
    sent: AtomicU64,
}

impl CompressedCount {
    /// Counts a payload.
    pub(super) fn add(&self, plain: usize, sent: usize) {
        self.plain.fetch_add(plain as u64, Relaxed);
        self.sent.fetch_add(sent as u64, Relaxed);
    }

    pub(super) fn get(&self) -> Compressed {
        Compressed { plain: self.plain.load(Relaxed), sent: self.sent.load(Relaxed) }
    }
}

/// New data channels with their numbers.
pub type Channels<C> = Receiver<(u16, C)>;
/// The source's ends of data channels.
pub type SourceChannel = Box<dyn DataSource>;
/// The sink's ends of data channels.
pub type SinkChannel = Box<dyn DataSink>;

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::io;

    use super::*;

    #[test]
    fn losses_and_refusals_differ() {
        let reset = || io::Error::from_raw_os_error(104);
        let key = crate::secure::Identity::generate().expect("a key").public();
        for (error, is_lost) in [
            (TransportError::System(reset()), true),
            (TransportError::Truncated, true),
            (TransportError::Security(SecureError::Cut), true),
            // A server that is stopped takes connections, and says nothing.
            (TransportError::Security(SecureError::TimedOut), true),
            (TransportError::Security(SecureError::System(reset())), true),
            (TransportError::Security(SecureError::NotAccepted(key)), false),
            (TransportError::Security(SecureError::Refused), false),
            (TransportError::Protocol("no preface"), false),
        ] {
            let text = error.to_string();
            assert_eq!(EndError::from(error).is_lost(), is_lost, "{text}");
        }
        assert!(EndError::Lost("cut".into()).of("the source").is_lost());
        assert!(!EndError::Here("full".into()).of("the source").is_lost());
        assert!(!EndError::Peer("no".into()).is_lost());
    }

    #[test]
    fn an_error_says_its_cause_once() {
        let lost = TransportError::from(io::Error::from_raw_os_error(32));
        let error = EndError::from(lost);
        let (mut texts, mut next) = (Vec::new(), Some(&error as &dyn Error));
        while let Some(error) = next {
            texts.push(error.to_string());
            next = error.source();
        }
        assert_eq!(texts, ["Broken pipe (os error 32)"]);
    }
}
