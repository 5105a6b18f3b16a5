//! The Terminate message: the last message on a stream, with the reason for its end.

use super::{Opcode, RdmapError, ReadRequest, queue};
use crate::bytes::{head, put16};
use crate::ddp::{self, FIRST_MSN};

/// Values of [`Terminate::layer`].
pub mod layer {
    /// RDMAP found the error.
    pub const RDMAP: u8 = 0;
    /// DDP found the error.
    pub const DDP: u8 = 1;
    /// The lower layer found the error: MPA or TCP.
    pub const LLP: u8 = 2;
}

/// Why the sender ends the stream, and the headers of the segment that caused it.
///
/// The copied headers are for the log: a peer that got a stream wrong may get these wrong too, so
/// those that do not decode are `None`, and only a missing control word is an error.
//= rfc5040#section-4.8
//# | Layer | EType | Error Code |HdrCt|
//= rfc5040#section-4.8
//# The following figure depicts a Terminate Header that MUST be used for the Terminate Message:
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terminate {
    /// The layer that found the error (see [`layer`]); 4 bits.
    pub layer: u8,
    /// The type of error within the layer; 4 bits.
    pub etype: u8,
    /// The error code within the type.
    pub code: u8,
    /// M: the length of the segment in error, in bytes.
    pub segment_len: Option<u16>,
    /// D: the DDP header of the segment in error.
    pub ddp_header: Option<ddp::Header>,
    /// R: the RDMA Read Request that the segment carried.
    pub read_request: Option<ReadRequest>,
}

const CONTROL_LEN: usize = 4;
const SEGMENT_LEN: usize = 2;
const FLAG_SEGMENT_LEN: u8 = 0x80;
const FLAG_DDP_HEADER: u8 = 0x40;
const FLAG_RDMAP_HEADER: u8 = 0x20;

impl Terminate {
    /// Maximum number of bytes that [`Self::emit`] writes.
    pub const LEN_MAX: usize = CONTROL_LEN + SEGMENT_LEN + ddp::UNTAGGED_LEN + ReadRequest::LEN;

    /// The DDP header of a Terminate.
    //= rfc5040#section-5.4
    //# A Terminate Message MUST reference an Untagged Buffer.
    //= rfc5040#section-5.4
    //# A Terminate Message references the Terminate Queue. That is, the Local Peer's RDMAP layer
    //# MUST request that the DDP layer set the Queue Number field to two.
    pub const HEADER: ddp::Header = ddp::Header::Untagged {
        last: true,
        ulp: Opcode::Terminate.control(),
        ulp_word: 0,
        qn: queue::TERMINATE,
        msn: FIRST_MSN,
        mo: 0,
    };

    /// Parses the payload of a Terminate.
    ///
    /// # Errors
    /// [`RdmapError::Length`] if even the control word is incomplete.
    pub fn parse(payload: &[u8]) -> Result<Self, RdmapError> {
        let Some((control, rest)) = payload.split_first_chunk::<CONTROL_LEN>() else {
            let received = payload.len();
            return Err(RdmapError::Length { received, expected: CONTROL_LEN });
        };
        let has = |flag| control[2] & flag != 0;
        let (length, rest) = match rest.split_first_chunk::<SEGMENT_LEN>() {
            Some((length, rest)) => (Some(u16::from_be_bytes(*length)), rest),
            None => (None, rest),
        };
        let copied = has(FLAG_DDP_HEADER).then(|| ddp::Header::parse(rest).ok()).flatten();
        let read_request = copied
            .filter(|_| has(FLAG_RDMAP_HEADER))
            .and_then(|(_, at)| ReadRequest::parse(rest.get(at..at + ReadRequest::LEN)?).ok());
        Ok(Self {
            layer: control[0] >> 4,
            etype: control[0] & 0x0f,
            code: control[1],
            segment_len: length.filter(|_| has(FLAG_SEGMENT_LEN)),
            ddp_header: copied.map(|(header, _)| header),
            read_request,
        })
    }

    /// Writes the payload to the start of `buf`, and returns its length.
    ///
    /// # Panics
    /// If `buf` is shorter than what is written, at most [`Self::LEN_MAX`].
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        // A Read Request can only be located behind a DDP header, which has its own length.
        let read_request = self.read_request.filter(|_| self.ddp_header.is_some());
        let flags = [
            (self.segment_len.is_some(), FLAG_SEGMENT_LEN),
            (self.ddp_header.is_some(), FLAG_DDP_HEADER),
            (read_request.is_some(), FLAG_RDMAP_HEADER),
        ];
        let flags = flags.iter().filter(|(set, _)| *set).fold(0, |all, (_, bit)| all | bit);
        *head::<CONTROL_LEN>(buf) = [(self.layer << 4) | (self.etype & 0x0f), self.code, flags, 0];
        let mut at = CONTROL_LEN;
        if flags != 0 {
            put16(head::<SEGMENT_LEN>(&mut buf[at..]), 0, self.segment_len.unwrap_or(0));
            at += SEGMENT_LEN;
        }
        if let Some(header) = &self.ddp_header {
            at += header.emit(&mut buf[at..]);
        }
        if let Some(read_request) = &read_request {
            at += read_request.emit(&mut buf[at..]);
        }
        at
    }
}
