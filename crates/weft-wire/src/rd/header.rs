//! The header of a datagram, what is in it, and its check value.

use thiserror::Error;

use crate::bytes::{be16, be32, be64, head, put16, put32, put64};
use crate::crc::crc32c;
pub use crate::limits::{WINDOW_MAX, WORDS_MAX};

/// The first byte of every datagram.
pub const VERSION: u8 = 0xd1;
/// Bytes of the header.
pub const HEADER_LEN: usize = 48;
/// Bytes of the check value at the end.
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

/// What a datagram is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Brings a DDP segment.
    Data,
    /// Says what has arrived.
    Ack,
    /// Refuses a first datagram whose source may be forged: to be sent again, with this source
    /// epoch as its destination epoch.
    Challenge,
    /// Refuses to go on with a stream, for this reason.
    Reset(Reason),
}

/// Why a stream cannot go on. All but the first concern the message of the first sequence that is
/// not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reason {
    /// The receiver does not know the stream: it has restarted, or forgotten an idle peer.
    UnknownStream = 0,
    /// The key names no memory.
    Key = 1,
    /// The memory is not for this endpoint.
    Domain = 2,
    /// Outside of the memory.
    Bounds = 3,
    /// The memory does not grant the right.
    Rights = 4,
    /// The message is longer than the receiver takes, or has been coming in for too long while
    /// others waited for its room.
    TooLong = 5,
    /// The segment is wrong in itself or in its place in a message.
    Malformed = 6,
}

impl Reason {
    const ALL: [Self; 7] = [
        Self::UnknownStream,
        Self::Key,
        Self::Domain,
        Self::Bounds,
        Self::Rights,
        Self::TooLong,
        Self::Malformed,
    ];

    pub(super) fn of(code: u32) -> Result<Self, RdError> {
        let known = usize::try_from(code).ok().and_then(|code| Self::ALL.get(code));
        known.copied().ok_or(RdError::Reason(code))
    }
}

/// One end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct End {
    /// The endpoint, among those that share the address.
    pub endpoint: u16,
    /// The endpoint's name for itself towards the other; 0 if not known.
    pub epoch: u32,
    /// The numbering of what it sends.
    pub stream: u32,
}

/// What has been received of the destination's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Acknowledgement {
    /// The first sequence that has not been received.
    pub next: u32,
    /// Which of the 64 sequences behind `next` have been, from the lowest bit on.
    pub selective: u64,
}

/// The header of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What it is for.
    pub kind: Kind,
    /// The stream starts at sequence 1, and the destination has not yet acknowledged it.
    pub syn: bool,
    /// Asks for an Ack.
    pub probe: bool,
    /// What the destination awaits of an older stream will not come: the source gave up sending it.
    pub lost: bool,
    /// The sender.
    pub source: End,
    /// The receiver.
    pub destination: End,
    /// Sequences from the first missing one on that the source takes now; no meaning in a Reset.
    pub window: u16,
    /// The datagram's number; of a datagram that is not Data, the next one.
    pub sequence: u32,
    /// What the source has of the destination's stream; `None` if it does not know that stream.
    pub ack: Option<Acknowledgement>,
    /// The source's clock, in microseconds.
    pub timestamp: u32,
    /// The destination's clock when it sent what this answers, the time it waited for this answer
    /// added; 0 for none.
    pub echo: u32,
}

/// How a datagram is wrong. None of these has an answer: the datagram may be a stranger's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RdError {
    /// Shorter than a header and a check value.
    #[error("datagram of {0} bytes is shorter than its header")]
    TooShort(usize),
    /// Not a reliable datagram of this version.
    #[error("first byte {0:#04x}")]
    Version(u8),
    /// The check value is another.
    #[error("CRC32C {received:#010x} instead of {computed:#010x}")]
    Crc {
        /// As received.
        received: u32,
        /// Over what was received.
        computed: u32,
    },
    /// An unknown kind.
    #[error("kind {0}")]
    Kind(u8),
    /// An unknown reason of a Reset.
    #[error("reason {0}")]
    Reason(u32),
    /// A body that a datagram of its kind cannot have.
    #[error("body of {0} bytes")]
    Body(usize),
}

/// Checks a datagram and takes it apart: its header, and its body.
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
    // A fuzzer cannot guess check values; what is behind them is to be fuzzed, too.
    if received != computed && !cfg!(fuzzing) {
        return Err(RdError::Crc { received, computed });
    }
    let flags = h[1] & !(u8::MAX << KIND_SHIFT);
    let window = be16(h, 2);
    let kind = match h[1] >> KIND_SHIFT {
        KIND_DATA => Kind::Data,
        KIND_ACK => Kind::Ack,
        KIND_CHALLENGE => Kind::Challenge,
        KIND_RESET => Kind::Reset(Reason::of(window.into())?),
        other => return Err(RdError::Kind(other)),
    };
    let body_fits = match kind {
        Kind::Data => !body.is_empty(),
        Kind::Ack => body.len().is_multiple_of(WORD_LEN) && body.len() / WORD_LEN <= WORDS_MAX,
        Kind::Challenge | Kind::Reset(_) => body.is_empty(),
    };
    if !body_fits {
        return Err(RdError::Body(body.len()));
    }
    let ack = Acknowledgement { next: be32(h, 28), selective: be64(h, 32) };
    let header = Header {
        kind,
        syn: flags & SYN != 0,
        probe: flags & PROBE != 0,
        lost: flags & LOST != 0,
        source: End { endpoint: be16(h, 4), epoch: be32(h, 8), stream: be32(h, 16) },
        destination: End { endpoint: be16(h, 6), epoch: be32(h, 12), stream: be32(h, 20) },
        window: if matches!(kind, Kind::Reset(_)) { 0 } else { window },
        sequence: be32(h, 24),
        ack: (flags & ACK != 0).then_some(ack),
        timestamp: be32(h, 40),
        echo: be32(h, 44),
    };
    Ok((header, body))
}

impl Header {
    /// Writes the header to the start of `buf`; the body belongs at the length returned.
    ///
    /// # Panics
    /// When `buf` is shorter than [`HEADER_LEN`].
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

/// Appends the check value of everything before it.
pub fn seal(datagram: &mut Vec<u8>) {
    let crc = crc32c(datagram);
    datagram.extend_from_slice(&crc.to_be_bytes());
}

/// The words in the body of an Ack; word `n` covers the 64 sequences from `64 * (n + 1)` behind the
/// one after the first missing one.
pub fn words(body: &[u8]) -> impl Iterator<Item = u64> {
    body.as_chunks::<WORD_LEN>().0.iter().map(|&word| u64::from_be_bytes(word))
}
