//! Datagram-iWARP: one DDP message in one UDP datagram, for queue pairs of type UD.
//!
//! ```text
//!  0        18            34
//!  +--------+-------------+---------+-------+
//!  | DDP    | queue pairs | payload | CRC32C|
//!  +--------+-------------+---------+-------+
//! ```
//!
//! The DDP header is the untagged one of a whole RDMAP Send (or Send with Solicited Event): queue
//! 0, the sender's message sequence number, offset 0, the last segment. There is no MPA, because
//! UDP preserves message boundaries, and no DDP segmentation: a datagram arrives whole or not at
//! all. iWARP streams belong to one queue pair each, so iWARP has no fields for what a UD queue
//! pair needs. It follows in 16 bytes:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 1 | version (1) in the upper four bits; 1: immediate data, 2: there is a CRC |
//! | 1 | 3 | queue pair that it is sent to |
//! | 4 | 1 | zero; not checked |
//! | 5 | 3 | queue pair that sent it |
//! | 8 | 4 | Q_Key |
//! | 12 | 4 | immediate data, or zero |
//!
//! The CRC32C, if present, covers all bytes before it, and is stored like MPA's.
//!
//! [`Header::parse`] never panics; [`Header::emit`] panics on a buffer shorter than [`HEADER_LEN`].

use thiserror::Error;

use crate::bytes::{be32, head, put32};
use crate::crc::crc32c;
use crate::ddp::{self, DdpError};
pub use crate::limits::PAYLOAD_MAX;
use crate::rdmap::{Opcode, RdmapError, queue};

/// Length of both headers in bytes.
pub const HEADER_LEN: usize = ddp::UNTAGGED_LEN + EXTENSION_LEN;
/// Length of the CRC in bytes.
pub const CRC_LEN: usize = 4;
const _: () = assert!(PAYLOAD_MAX + HEADER_LEN + CRC_LEN == 65_507);

/// The queue pair number that addresses all members of a multicast group.
pub const MULTICAST_QP: u32 = 0xff_ffff;

const EXTENSION_LEN: usize = 16;
const VERSION: u8 = 1;
const VERSION_SHIFT: u32 = 4;
const IMMEDIATE: u8 = 1;
const HAS_CRC: u8 = 1 << 1;
const QP_MASK: u32 = 0xff_ffff;

/// The headers of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The destination queue pair, 24 bits.
    pub to: u32,
    /// The source queue pair, 24 bits.
    pub from: u32,
    /// The Q_Key, which must equal that of the destination queue pair.
    pub qkey: u32,
    /// The sender's message sequence number.
    pub msn: u32,
    /// Immediate data for the receiver's completion.
    pub imm: Option<[u8; 4]>,
    /// Whether the sender asks for a solicited event.
    pub solicited: bool,
}

/// Why a datagram is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DatagramError {
    /// The datagram is shorter than its headers and, if present, its CRC.
    #[error("datagram of {0} bytes is shorter than its headers")]
    TooShort(usize),
    /// The datagram is not a valid DDP segment.
    #[error(transparent)]
    Ddp(#[from] DdpError),
    /// The datagram is not a valid RDMAP message.
    #[error(transparent)]
    Rdmap(#[from] RdmapError),
    /// The datagram is a tagged segment, not a Send, or only a part of a message.
    #[error("datagram that is not one whole Send")]
    NoSend,
    /// The version of the header is unknown.
    #[error("datagram version {0}")]
    Version(u8),
    /// The CRC does not match the bytes.
    #[error("datagram CRC {received:#010x}, {computed:#010x} computed")]
    Crc {
        /// The CRC in the datagram.
        received: u32,
        /// The CRC of the received bytes.
        computed: u32,
    },
}

impl Header {
    /// Parses a datagram into its headers and its payload.
    ///
    /// # Errors
    /// [`DatagramError`].
    pub fn parse(datagram: &[u8]) -> Result<(Self, &[u8]), DatagramError> {
        let too_short = DatagramError::TooShort(datagram.len());
        let (ddp, _) = ddp::Header::parse(datagram)?;
        let ddp::Header::Untagged { last: true, ulp, qn: queue::SEND, msn, mo: 0, .. } = ddp else {
            return Err(DatagramError::NoSend);
        };
        let solicited = match Opcode::parse(ulp)? {
            Opcode::Send => false,
            Opcode::SendSe => true,
            _ => return Err(DatagramError::NoSend),
        };
        let rest = datagram.get(ddp::UNTAGGED_LEN..).ok_or(too_short)?;
        let (h, rest) = rest.split_first_chunk::<EXTENSION_LEN>().ok_or(too_short)?;
        let version = h[0] >> VERSION_SHIFT;
        if version != VERSION {
            return Err(DatagramError::Version(version));
        }
        let payload = if h[0] & HAS_CRC == 0 {
            rest
        } else {
            let (payload, crc) = rest.split_last_chunk::<CRC_LEN>().ok_or(too_short)?;
            let received = u32::from_le_bytes(*crc);
            let computed = crc32c(&datagram[..datagram.len() - CRC_LEN]);
            if received != computed && !cfg!(fuzzing) {
                return Err(DatagramError::Crc { received, computed });
            }
            payload
        };
        let imm = (h[0] & IMMEDIATE != 0).then(|| be32(h, 12).to_be_bytes());
        let (to, from) = (be32(h, 0) & QP_MASK, be32(h, 4) & QP_MASK);
        Ok((Self { to, from, qkey: be32(h, 8), msn, imm, solicited }, payload))
    }

    /// Writes both headers to the start of `buf`. The payload belongs at [`HEADER_LEN`], followed
    /// by the [`check_value`] if there is to be a CRC.
    ///
    /// # Panics
    /// If `buf` is shorter than [`HEADER_LEN`].
    pub fn emit(&self, has_crc: bool, buf: &mut [u8]) {
        let opcode = if self.solicited { Opcode::SendSe } else { Opcode::Send };
        let ulp = opcode.control();
        let (qn, msn) = (queue::SEND, self.msn);
        ddp::Header::Untagged { last: true, ulp, ulp_word: 0, qn, msn, mo: 0 }.emit(buf);
        let h = head::<EXTENSION_LEN>(&mut buf[ddp::UNTAGGED_LEN..]);
        put32(h, 0, self.to);
        put32(h, 4, self.from & QP_MASK);
        put32(h, 8, self.qkey);
        put32(h, 12, u32::from_be_bytes(self.imm.unwrap_or_default()));
        h[0] = VERSION << VERSION_SHIFT
            | if self.imm.is_some() { IMMEDIATE } else { 0 }
            | if has_crc { HAS_CRC } else { 0 };
    }
}

/// The CRC field of a datagram whose preceding bytes are `bytes`.
#[must_use]
pub fn check_value(bytes: &[u8]) -> [u8; CRC_LEN] {
    crc32c(bytes).to_le_bytes()
}
