//! The header of a datagram, its body, and its CRC.

use thiserror::Error;

use crate::bytes::{be16, be32, be64, head, put16, put32, put64};
use crate::crc::crc32c;
pub use crate::limits::{WINDOW_MAX, WORDS_MAX};

/// The first byte of every datagram.
pub const VERSION: u8 = 0xd1;
/// Length of the header in bytes.
pub const HEADER_LEN: usize = 48;
/// Length of the CRC at the end in bytes.
pub const CRC_LEN: usize = 4;

const SYN: u8 = 0x01;
const ACK: u8 = 0x02;
const PROBE: u8 = 0x04;
const LOST: u8 = 0x08;
const KIND_SHIFT: u32 = 4;
const KIND_DATA: u8 = 1;
const KIND_ACK: u8 = 2;
const KIND_CHALLENGE: u8 = 3;
const KIND_RESET: u8 = 4;
const WORD_LEN: usize = 8;

/// The kind of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Carries a DDP segment.
    Data,
    /// Acknowledges received datagrams.
    Ack,
    /// Refuses a first datagram whose source may be forged. The sender has to repeat it, with this
    /// source epoch as its destination epoch.
    Challenge,
    /// Refuses to continue a stream, for this reason.
    Reset(Reason),
}

/// Why a stream cannot continue. All reasons except the first concern the message of the first
/// sequence that is not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reason {
    /// The receiver does not know the stream: it has restarted, or forgotten an idle peer.
    UnknownStream = 0,
    /// The key names no memory.
    Key = 1,
    /// The memory does not belong to this endpoint.
    Domain = 2,
    /// The access exceeds the memory.
    Bounds = 3,
    /// The memory does not grant the right.
    Rights = 4,
    /// The message is longer than the receiver accepts, or has been arriving for too long while
    /// others waited for its buffer.
    TooLong = 5,
    /// The segment is invalid, or in the wrong place of its message.
    Malformed = 6,
    /// The receiver's memory is for connected peers, and the sender is none, or none any more.
    NotConnected = 7,
}

impl Reason {
    const ALL: [Self; 8] = [
        Self::UnknownStream,
        Self::Key,
        Self::Domain,
        Self::Bounds,
        Self::Rights,
        Self::TooLong,
        Self::Malformed,
        Self::NotConnected,
    ];

    pub(super) fn of(code: u32) -> Result<Self, RdError> {
        let known = usize::try_from(code).ok().and_then(|code| Self::ALL.get(code));
        known.copied().ok_or(RdError::Reason(code))
    }
}

/// One end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RdEnd {
    /// The endpoint's index, among those that share the address.
    pub endpoint: u16,
    /// The endpoint's epoch towards the other one; 0 if not known.
    pub epoch: u32,
    /// The stream of the datagrams that it sends.
    pub stream: u32,
}

/// What has been received of the destination's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Acknowledgement {
    /// The first sequence that has not been received.
    pub next: u32,
    /// Which of the 64 sequences behind `next` have been received, from the lowest bit on.
    pub selective: u64,
}

/// The header of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The kind of datagram.
    pub kind: Kind,
    /// The stream starts at sequence 1, and the destination has not acknowledged it yet.
    pub syn: bool,
    /// The source asks for an Ack.
    pub probe: bool,
    /// The source has given up an older stream: what the destination still awaits of it will not
    /// come.
    pub lost: bool,
    /// The sender.
    pub source: RdEnd,
    /// The receiver.
    pub destination: RdEnd,
    /// Number of sequences, from the first missing one on, that the source accepts now. Meaningless
    /// in a Reset.
    pub window: u16,
    /// The datagram's sequence; in a datagram that is not Data, the next one.
    pub sequence: u32,
    /// What the source has received of the destination's stream; `None` if it does not know that
    /// stream.
    pub ack: Option<Acknowledgement>,
    /// The source's clock when it sent the datagram, in microseconds.
    pub timestamp: u32,
    /// The destination's timestamp that this answers, plus the time that it waited for the answer;
    /// 0 if there is none.
    pub echo: u32,
}

/// Why a datagram is invalid. It gets no answer, because it may be a stranger's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RdError {
    /// The datagram is shorter than a header and a CRC.
    #[error("datagram of {0} bytes is shorter than its header")]
    TooShort(usize),
    /// The first byte is not that of this version.
    #[error("first byte {0:#04x}")]
    Version(u8),
    /// The CRC does not match the bytes.
    #[error("CRC32C {received:#010x} instead of {computed:#010x}")]
    Crc {
        /// The CRC in the datagram.
        received: u32,
        /// The CRC of the received bytes.
        computed: u32,
    },
    /// The kind is unknown.
    #[error("kind {0}")]
    Kind(u8),
    /// The reason of a Reset is unknown.
    #[error("reason {0}")]
    Reason(u32),
    /// The body has a length that its kind does not allow.
    #[error("body of {0} bytes")]
    Body(usize),
}

/// Checks a datagram, and splits it into its header and its body.
///
/// # Errors
/// [`RdError`], one variant for each misbehaviour.
pub fn parse(datagram: &[u8]) -> Result<(Header, &[u8]), RdError> {
    let too_short = RdError::TooShort(datagram.len());
    let Some((covered, crc)) = datagram.split_last_chunk::<CRC_LEN>() else {
        return Err(too_short);
    };
    let Some((h, body)) = covered.split_first_chunk::<HEADER_LEN>() else {
        return Err(too_short);
    };
    if h[0] != VERSION {
        return Err(RdError::Version(h[0]));
    }
    let (received, computed) = (u32::from_be_bytes(*crc), crc32c(covered));
    // A fuzzer cannot guess CRCs, and the code behind this check has to be fuzzed, too.
    if received != computed && !cfg!(fuzzing) {
        return Err(RdError::Crc { received, computed });
    }
    let header = header(h)?;
    let body_fits = match header.kind {
        Kind::Data => !body.is_empty(),
        Kind::Ack => body.len().is_multiple_of(WORD_LEN) && body.len() / WORD_LEN <= WORDS_MAX,
        Kind::Challenge | Kind::Reset(_) => body.is_empty(),
    };
    if !body_fits {
        return Err(RdError::Body(body.len()));
    }
    Ok((header, body))
}

/// The header of a datagram of which only the beginning is known, as when a host has answered that
/// nobody takes it (ICMP). No CRC protects it.
///
/// # Errors
/// [`RdError::TooShort`], [`RdError::Version`], [`RdError::Kind`] and [`RdError::Reason`].
pub fn quoted(beginning: &[u8]) -> Result<Header, RdError> {
    let h = beginning.first_chunk().ok_or(RdError::TooShort(beginning.len()))?;
    if h[0] != VERSION {
        return Err(RdError::Version(h[0]));
    }
    header(h)
}

/// The header of a datagram of this version.
fn header(h: &[u8; HEADER_LEN]) -> Result<Header, RdError> {
    let flags = h[1] & !(u8::MAX << KIND_SHIFT);
    let window = be16(h, 2);
    let kind = match h[1] >> KIND_SHIFT {
        KIND_DATA => Kind::Data,
        KIND_ACK => Kind::Ack,
        KIND_CHALLENGE => Kind::Challenge,
        KIND_RESET => Kind::Reset(Reason::of(window.into())?),
        other => return Err(RdError::Kind(other)),
    };
    let ack = Acknowledgement { next: be32(h, 28), selective: be64(h, 32) };
    Ok(Header {
        kind,
        syn: flags & SYN != 0,
        probe: flags & PROBE != 0,
        lost: flags & LOST != 0,
        source: RdEnd { endpoint: be16(h, 4), epoch: be32(h, 8), stream: be32(h, 16) },
        destination: RdEnd { endpoint: be16(h, 6), epoch: be32(h, 12), stream: be32(h, 20) },
        window: if matches!(kind, Kind::Reset(_)) { 0 } else { window },
        sequence: be32(h, 24),
        ack: (flags & ACK != 0).then_some(ack),
        timestamp: be32(h, 40),
        echo: be32(h, 44),
    })
}

impl Header {
    /// Writes the header to the start of `buf`. The body belongs at the returned length.
    ///
    /// # Panics
    /// If `buf` is shorter than [`HEADER_LEN`].
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let h = head::<HEADER_LEN>(buf);
        let (kind, word) = match self.kind {
            Kind::Data => (KIND_DATA, self.window),
            Kind::Ack => (KIND_ACK, self.window),
            Kind::Challenge => (KIND_CHALLENGE, self.window),
            Kind::Reset(reason) => (KIND_RESET, u16::from(reason as u8)),
        };
        let flag = |set, flag| if set { flag } else { 0 };
        h[0] = VERSION;
        h[1] = kind << KIND_SHIFT
            | flag(self.syn, SYN)
            | flag(self.ack.is_some(), ACK)
            | flag(self.probe, PROBE)
            | flag(self.lost, LOST);
        put16(h, 2, word);
        put16(h, 4, self.source.endpoint);
        put16(h, 6, self.destination.endpoint);
        put32(h, 8, self.source.epoch);
        put32(h, 12, self.destination.epoch);
        put32(h, 16, self.source.stream);
        put32(h, 20, self.destination.stream);
        put32(h, 24, self.sequence);
        let ack = self.ack.unwrap_or_default();
        put32(h, 28, ack.next);
        put64(h, 32, ack.selective);
        put32(h, 40, self.timestamp);
        put32(h, 44, self.echo);
        HEADER_LEN
    }
}

/// Appends the CRC of all preceding bytes.
pub fn seal(datagram: &mut Vec<u8>) {
    let crc = crc32c(datagram);
    datagram.extend_from_slice(&crc.to_be_bytes());
}

/// The words in the body of an Ack. Word `n` covers the 64 sequences from `64 * (n + 1)` behind the
/// one after the first missing one.
pub fn words(body: &[u8]) -> impl Iterator<Item = u64> {
    body.as_chunks::<WORD_LEN>().0.iter().map(|&word| u64::from_be_bytes(word))
}
