//! MPA Request and MPA Reply frames.
//!
//! ```text
//!  0                   1                   2                   3
//! |                key, 16 bytes: "MPA ID Req Frame" or "MPA ID Rep Frame"            |
//! |M|C|R|S| reserved | revision      | length of the private data                     |
//! |A|B| IRD, 14 bits                 |C|D| ORD, 14 bits          | with S only         |
//! |                the application's private data                                     |
//! ```
//!
//! [`Frame::parse`] never panics. [`Frame::emit`] panics only if the private data exceeds
//! [`PRIVATE_DATA_MAX`].

use thiserror::Error;

use crate::bytes::be16;
pub use crate::limits::{DEPTH_MAX, PRIVATE_DATA_MAX};

/// Length of the part before the private data.
pub const HEADER_LEN: usize = 20;

/// Length of [`Enhanced`] at the start of the private data.
pub const ENHANCED_LEN: usize = 4;

/// The value of IRD or ORD that means "not negotiated here".
//= rfc6581#section-9.1
//# An all ones value (0x3FFF) indicates that automatic negotiation of the IRD or ORD is not
//# desired, and that the ULP will be responsible for it.
pub const DEPTH_UNNEGOTIATED: u16 = 0x3fff;

const KEY_LEN: usize = 16;
const REQUEST_KEY: &[u8; KEY_LEN] = b"MPA ID Req Frame";
const REPLY_KEY: &[u8; KEY_LEN] = b"MPA ID Rep Frame";

const FLAG_MARKERS: u8 = 0x80;
const FLAG_CRC: u8 = 0x40;
const FLAG_REJECT: u8 = 0x20;
const FLAG_ENHANCED: u8 = 0x10;

const DEPTH_MASK: u16 = 0x3fff;
const IRD_PEER_TO_PEER: u16 = 0x8000;
const IRD_RTR_SEND: u16 = 0x4000;
const ORD_RTR_WRITE: u16 = 0x8000;
const ORD_RTR_READ: u16 = 0x4000;

/// The two kinds of frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// From the initiator.
    Request,
    /// From the responder.
    Reply,
}

/// An MPA Request or Reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Request or Reply.
    pub kind: Kind,
    /// M: the sender of this frame wants markers in what it receives.
    pub markers: bool,
    /// C: the sender of this frame wants CRCs, which then holds for both directions.
    pub crc: bool,
    /// R: the responder refuses the connection. Meaningless in a request.
    pub reject: bool,
    /// S and the four bytes that it announces. Revision 2 only.
    pub enhanced: Option<Enhanced>,
    /// MPA revision: 1 is RFC 5044, 2 is RFC 6581. It is not checked here.
    pub revision: u8,
    /// The application's private data, without the bytes of `enhanced`.
    pub private_data: Vec<u8>,
}

/// Read depths and ready-to-receive flags of RFC 6581.
//= rfc6581#section-9
//# Note that this field MUST be sent in network byte order, with the IRD and ORD encoded as 14-bit
//# unsigned integers.
//= rfc6581#section-9
//# |A|B| IRD |C|D| ORD |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Enhanced {
    /// Number of RDMA Reads that the sender of the frame can serve at once; 14 bits.
    pub ird: u16,
    /// Number of RDMA Reads that the sender of the frame wants to have outstanding; 14 bits.
    pub ord: u16,
    /// A: peer-to-peer setup, in which the initiator sends a ready-to-receive (RTR) message first.
    pub peer_to_peer: bool,
    /// B: the RTR may be a zero-length FPDU, which is an empty Send.
    pub rtr_send: bool,
    /// C: the RTR may be a zero-length RDMA Write.
    pub rtr_write: bool,
    /// D: the RTR may be a zero-length RDMA Read.
    pub rtr_read: bool,
}

/// Result of [`Frame::parse`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed {
    /// The frame is valid so far. Parse again when there are `needed` bytes from its start.
    Incomplete {
        /// Length of the frame, as far as known.
        needed: usize,
    },
    /// A complete frame, and its length.
    Complete {
        /// The frame.
        frame: Frame,
        /// Its length; bytes behind it are FPDUs.
        consumed: usize,
    },
}

/// Why bytes are not an MPA frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The first bytes are not the frame's key.
    #[error("not an MPA {0:?} frame: wrong key")]
    WrongKey(Kind),
    /// The private data is longer than RFC 5044 allows.
    #[error("{0} bytes of MPA private data, more than {PRIVATE_DATA_MAX}")]
    PrivateDataTooLong(u16),
    /// An enhanced frame has no room for its four bytes.
    #[error("enhanced MPA frame with only {0} bytes of private data")]
    EnhancedTooShort(u16),
}

impl Frame {
    /// Parses the frame at the start of `bytes`.
    ///
    /// A wrong key is detected at its first wrong byte, before the header is complete.
    ///
    /// # Errors
    /// [`FrameError`]. The connection has to be closed then.
    pub fn parse(kind: Kind, bytes: &[u8]) -> Result<Parsed, FrameError> {
        //= rfc5044#section-7.1.2
        //# If a received "Key" does not match the expected value (see Section 7.1.1, MPA Request
        //# and Reply Frame Format) the TCP/DDP connection MUST be closed, and an error returned to
        //# the ULP.
        let key = kind.key();
        let seen = bytes.len().min(KEY_LEN);
        if bytes[..seen] != key[..seen] {
            return Err(FrameError::WrongKey(kind));
        }
        let Some(header) = bytes.first_chunk::<HEADER_LEN>() else {
            return Ok(Parsed::Incomplete { needed: HEADER_LEN });
        };
        let (flags, revision, length) = (header[16], header[17], be16(header, 18));
        if usize::from(length) > PRIVATE_DATA_MAX {
            return Err(FrameError::PrivateDataTooLong(length));
        }
        //= rfc6581#section-6
        //# One, if the Private Data begins with the enhanced RDMA connection establishment data; 0
        //# otherwise.
        let is_enhanced = revision >= 2 && flags & FLAG_ENHANCED != 0;
        if is_enhanced && usize::from(length) < ENHANCED_LEN {
            return Err(FrameError::EnhancedTooShort(length));
        }
        let consumed = HEADER_LEN + usize::from(length);
        let Some(data) = bytes.get(HEADER_LEN..consumed) else {
            return Ok(Parsed::Incomplete { needed: consumed });
        };
        let (enhanced, private_data) = match data.split_first_chunk::<ENHANCED_LEN>() {
            Some((head, rest)) if is_enhanced => (Some(Enhanced::from_bytes(head)), rest),
            _ => (None, data),
        };
        //= rfc5044#section-7.1.1
        //# It MUST be set to zero when sending, and not checked on reception.
        let frame = Self {
            kind,
            markers: flags & FLAG_MARKERS != 0,
            crc: flags & FLAG_CRC != 0,
            reject: flags & FLAG_REJECT != 0,
            enhanced,
            revision,
            private_data: private_data.to_vec(),
        };
        Ok(Parsed::Complete { frame, consumed })
    }

    /// Appends the frame to `out`.
    ///
    /// # Panics
    /// If the private data, including the four bytes of `enhanced`, is longer than
    /// [`PRIVATE_DATA_MAX`].
    pub fn emit(&self, out: &mut Vec<u8>) {
        let enhanced_len = if self.enhanced.is_some() { ENHANCED_LEN } else { 0 };
        let length = enhanced_len + self.private_data.len();
        assert!(length <= PRIVATE_DATA_MAX, "{length} bytes of MPA private data");
        let flags = [
            (self.markers, FLAG_MARKERS),
            (self.crc, FLAG_CRC),
            (self.reject, FLAG_REJECT),
            (self.enhanced.is_some(), FLAG_ENHANCED),
        ];
        let flags = flags.iter().filter(|(set, _)| *set).fold(0, |all, (_, bit)| all | bit);
        out.extend_from_slice(self.kind.key());
        out.extend_from_slice(&[flags, self.revision]);
        out.extend_from_slice(&(length as u16).to_be_bytes());
        if let Some(enhanced) = &self.enhanced {
            out.extend_from_slice(&enhanced.to_bytes());
        }
        out.extend_from_slice(&self.private_data);
    }
}

impl Kind {
    //= rfc5044#section-7.1.1
    //# Initiator mode senders MUST set this field to the fixed value "MPA ID Req Frame" or (in byte
    //# order) 4D 50 41 20 49 44 20 52 65 71 20 46 72 61 6D 65 (in hexadecimal).
    //= rfc5044#section-7.1.1
    //# Responder mode senders MUST set this field to the fixed value "MPA ID Rep Frame" or (in byte
    //# order) 4D 50 41 20 49 44 20 52 65 70 20 46 72 61 6D 65 (in hexadecimal).
    fn key(self) -> &'static [u8; KEY_LEN] {
        match self {
            Self::Request => REQUEST_KEY,
            Self::Reply => REPLY_KEY,
        }
    }
}

impl Enhanced {
    fn from_bytes(bytes: &[u8; ENHANCED_LEN]) -> Self {
        let (ird, ord) = (be16(bytes, 0), be16(bytes, 2));
        Self {
            ird: ird & DEPTH_MASK,
            ord: ord & DEPTH_MASK,
            peer_to_peer: ird & IRD_PEER_TO_PEER != 0,
            rtr_send: ird & IRD_RTR_SEND != 0,
            rtr_write: ord & ORD_RTR_WRITE != 0,
            rtr_read: ord & ORD_RTR_READ != 0,
        }
    }

    fn to_bytes(self) -> [u8; ENHANCED_LEN] {
        let bit = |set: bool, bit: u16| if set { bit } else { 0 };
        let ird = self.ird & DEPTH_MASK
            | bit(self.peer_to_peer, IRD_PEER_TO_PEER)
            | bit(self.rtr_send, IRD_RTR_SEND);
        let ord = self.ord & DEPTH_MASK
            | bit(self.rtr_write, ORD_RTR_WRITE)
            | bit(self.rtr_read, ORD_RTR_READ);
        let ([a, b], [c, d]) = (ird.to_be_bytes(), ord.to_be_bytes());
        [a, b, c, d]
    }
}
