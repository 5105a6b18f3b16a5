//! Errors of a peer, and the Terminate messages that report them.
//!
//! This module alone maps an error of any layer to the codes of RFC 5040, 5041, 5044, 6581 and
//! 7306. Each misbehaviour has its own variant; some share a code, because the RFCs define fewer.

use thiserror::Error;

use crate::ddp::{self, DdpError};
use crate::mpa::fpdu::FpduError;
use crate::mpa::frame::FrameError;
use crate::mpa::marker::MarkerError;
use crate::mpa::negotiate::NegotiateError;
use crate::rdmap::{RdmapError, ReadRequest, Terminate, layer};

/// A reason to end a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProtocolError {
    // MPA and TCP.
    /// The TCP connection was lost.
    #[error("the TCP connection was closed, terminated or lost")]
    StreamLost,
    /// An FPDU was changed in transit.
    #[error(transparent)]
    Fpdu(FpduError),
    /// A marker does not point to the start of its FPDU.
    #[error("MPA marker and ULPDU length disagree on the start of an FPDU")]
    FpduStart,
    /// The bytes are not an MPA Request or Reply.
    #[error(transparent)]
    Frame(FrameError),
    /// The local side cannot continue, for a reason in MPA that is not the peer's fault.
    #[error("local catastrophic error in MPA")]
    MpaCatastrophic,
    /// The peer wants more outstanding RDMA Reads than the local side can serve.
    #[error("insufficient IRD resources")]
    InsufficientIrd,
    /// There is no kind of ready-to-receive message that both sides support.
    #[error("no matching ready-to-receive option")]
    NoMatchingRtr,

    // DDP.
    /// A segment is invalid, or in the wrong place of its message.
    #[error(transparent)]
    Ddp(DdpError),
    /// The local side cannot continue, for a reason in DDP that is not the peer's fault.
    #[error("local catastrophic error in DDP")]
    DdpCatastrophic,
    /// A tagged segment names a buffer that does not exist.
    #[error("tagged segment to invalid STag {stag:#010x}")]
    TaggedInvalidStag {
        /// The STag in the segment.
        stag: u32,
    },
    /// A tagged segment exceeds its buffer.
    #[error("tagged segment outside of STag {stag:#010x}")]
    TaggedBounds {
        /// The STag in the segment.
        stag: u32,
    },
    /// A tagged segment names a buffer of another stream or protection domain.
    #[error("tagged segment to STag {stag:#010x}, which is not associated with this stream")]
    TaggedNotAssociated {
        /// The STag in the segment.
        stag: u32,
    },
    /// The end of a tagged segment exceeds 2^64.
    #[error("tagged offset wraps")]
    TaggedWrap,
    /// A segment names a queue that does not exist.
    #[error("untagged segment on queue {qn}")]
    InvalidQueue {
        /// The queue number in the segment.
        qn: u32,
    },
    /// No buffer is posted for a message; on queue 1, there are more Reads than the IRD.
    #[error("no buffer for an untagged message on queue {qn}")]
    NoBuffer {
        /// The queue.
        qn: u32,
    },

    // RDMAP.
    /// An RDMAP message is invalid.
    #[error(transparent)]
    Rdmap(RdmapError),
    /// The local side cannot continue, for a reason in RDMAP that is not the peer's fault.
    #[error("local catastrophic error in RDMAP")]
    RdmapCatastrophic,
    /// A request names a local buffer that does not exist.
    #[error("remote protection: invalid STag {stag:#010x}")]
    InvalidStag {
        /// The STag in the request.
        stag: u32,
    },
    /// A request exceeds a local buffer.
    #[error("remote protection: outside of STag {stag:#010x}")]
    Bounds {
        /// The STag in the request.
        stag: u32,
    },
    /// The buffer does not grant the right for a Write, Read or Atomic.
    #[error("remote protection: STag {stag:#010x} does not allow this access")]
    AccessRights {
        /// The STag in the request.
        stag: u32,
    },
    /// A request names a buffer of another stream or protection domain.
    #[error("remote protection: STag {stag:#010x} is not associated with this stream")]
    NotAssociated {
        /// The STag in the request.
        stag: u32,
    },
    /// The end of a request exceeds 2^64.
    #[error("remote protection: tagged offset wraps")]
    Wrap,
    /// Any other protection error.
    #[error("remote protection error")]
    Protection,
    /// A Send with Invalidate names a buffer that must not be invalidated over this stream.
    #[error("STag {stag:#010x} cannot be invalidated")]
    CannotInvalidate {
        /// The STag in the message.
        stag: u32,
    },
    /// A Read Response came without an outstanding Read Request.
    #[error("RDMA Read Response without a request")]
    UnexpectedReadResponse,
    /// A Read Response is not for the next byte of the outstanding request, or is too long.
    #[error("RDMA Read Response does not fit its request")]
    MismatchedReadResponse {
        /// The STag in the segment.
        stag: u32,
    },
    /// An Atomic Response came without an outstanding request, or with the wrong identifier.
    #[error("Atomic Response without a request")]
    UnexpectedAtomicResponse,
    /// The offset of an atomic operation is not a multiple of eight.
    #[error("Atomic Request on unaligned offset {to:#x}")]
    AtomicUnaligned {
        /// The offset in the request.
        to: u64,
    },
    /// Any other error after which this stream cannot continue.
    #[error("catastrophic error of this stream")]
    StreamCatastrophic,
    /// Any other error after which no stream of the local side can continue.
    #[error("catastrophic error of all streams")]
    GlobalCatastrophic,
    /// Any other error of a remote operation.
    #[error("remote operation error")]
    Operation,
}

mod etype {
    pub(super) const RDMAP_CATASTROPHIC: u8 = 0;
    pub(super) const RDMAP_PROTECTION: u8 = 1;
    pub(super) const RDMAP_OPERATION: u8 = 2;
    pub(super) const DDP_CATASTROPHIC: u8 = 0;
    pub(super) const DDP_TAGGED: u8 = 1;
    pub(super) const DDP_UNTAGGED: u8 = 2;
    pub(super) const LLP_MPA: u8 = 0;
}

impl ProtocolError {
    /// The layer, error type and error code of the Terminate that reports this error.
    //= rfc5040#section-4.8
    //# Figure 9, "Terminate Control Field Values", defines the valid values that MUST be used for
    //# this field.
    //= rfc5041#section-7.2
    //# The following error numbers MUST be used when reporting errors to the ULP.
    //= rfc5044#section-8
    //# The following errors MUST be detected by MPA and the codes SHOULD be provided to DDP or
    //# other Consumer:
    //= rfc6581#section-8
    //# Enhanced RDMA connection establishment extends the error codes defined in [RFC5044] by
    //# adding three new error codes.
    //= rfc7306#section-8.2
    //# On incoming Atomic Requests, Atomic Responses, Immediate Data, and Immediate Data with
    //# Solicited Event, the following MUST be validated: o The DDP layer MUST validate all DDP
    //# Segment fields. o The RDMA OpCode MUST be valid. o The RDMA Version MUST be valid.
    //= rfc7306#section-8.2
    //# In the case of an error, the RDMAP layer MUST generate a Terminate Message indicating RDMA
    //# Layer Remote Operation Error with Error Code Name "Catastrophic error, localized to RDMAP
    //# Stream" as described in Section 4.8 of RFC 5040.
    pub fn terminate_code(&self) -> (u8, u8, u8) {
        const OPERATION: (u8, u8) = (layer::RDMAP, etype::RDMAP_OPERATION);
        const PROTECTION: (u8, u8) = (layer::RDMAP, etype::RDMAP_PROTECTION);
        const TAGGED: (u8, u8) = (layer::DDP, etype::DDP_TAGGED);
        const UNTAGGED: (u8, u8) = (layer::DDP, etype::DDP_UNTAGGED);
        const MPA: (u8, u8) = (layer::LLP, etype::LLP_MPA);
        let ((layer, etype), code) = match *self {
            Self::StreamLost => (MPA, 0x01),
            Self::Fpdu(FpduError::Crc { .. }) => (MPA, 0x02),
            Self::FpduStart => (MPA, 0x03),
            Self::Frame(_) => (MPA, 0x04),
            Self::MpaCatastrophic => (MPA, 0x05),
            Self::InsufficientIrd => (MPA, 0x06),
            Self::NoMatchingRtr => (MPA, 0x07),

            Self::DdpCatastrophic => ((layer::DDP, etype::DDP_CATASTROPHIC), 0x00),
            Self::TaggedInvalidStag { .. } => (TAGGED, 0x00),
            Self::TaggedBounds { .. } | Self::MismatchedReadResponse { .. } => (TAGGED, 0x01),
            Self::TaggedNotAssociated { .. } => (TAGGED, 0x02),
            Self::TaggedWrap => (TAGGED, 0x03),
            Self::Ddp(DdpError::TaggedVersion(_)) => (TAGGED, 0x04),
            Self::InvalidQueue { .. } => (UNTAGGED, 0x01),
            Self::NoBuffer { .. } => (UNTAGGED, 0x02),
            Self::Ddp(DdpError::Msn { .. }) => (UNTAGGED, 0x03),
            Self::Ddp(DdpError::Mo { .. }) => (UNTAGGED, 0x04),
            Self::Ddp(DdpError::MessageTooLong { .. }) => (UNTAGGED, 0x05),
            Self::Ddp(DdpError::UntaggedVersion(_)) => (UNTAGGED, 0x06),

            Self::RdmapCatastrophic => ((layer::RDMAP, etype::RDMAP_CATASTROPHIC), 0x00),
            Self::InvalidStag { .. } => (PROTECTION, 0x00),
            Self::Bounds { .. } => (PROTECTION, 0x01),
            Self::AccessRights { .. } => (PROTECTION, 0x02),
            Self::NotAssociated { .. } => (PROTECTION, 0x03),
            Self::Wrap => (PROTECTION, 0x04),
            Self::Protection => (PROTECTION, 0xff),
            Self::Rdmap(RdmapError::Version(_)) => (OPERATION, 0x05),
            Self::Rdmap(
                RdmapError::Opcode(_) | RdmapError::Misplaced(_) | RdmapError::AtomicOp(_),
            )
            | Self::UnexpectedReadResponse
            | Self::UnexpectedAtomicResponse => (OPERATION, 0x06),
            Self::StreamCatastrophic | Self::AtomicUnaligned { .. } => (OPERATION, 0x07),
            Self::GlobalCatastrophic => (OPERATION, 0x08),
            Self::CannotInvalidate { .. } => (OPERATION, 0x09),
            // No RFC defines a code for a segment or message that is shorter than its header.
            Self::Ddp(DdpError::TooShort(_))
            | Self::Rdmap(RdmapError::Length { .. })
            | Self::Operation => (OPERATION, 0xff),
        };
        (layer, etype, code)
    }

    /// The Terminate that reports this error. `segment` is the DDP segment in error: its length
    /// without MPA's framing, and its header. `read_request` is the request that it carried, if
    /// known.
    //= rfc5040#section-4.8
    //# The DDP Header is not present if the Terminate Error Type is a Local Catastrophic Error.
    //= rfc5040#section-4.8
    //# The Terminated RDMA Header is only sent back if the terminate is associated with an RDMA
    //# Read Request Message.
    pub fn terminate(
        &self,
        segment: Option<(u16, ddp::Header)>,
        read_request: Option<ReadRequest>,
    ) -> Terminate {
        let (layer, etype, code) = self.terminate_code();
        // EType 0 is the local catastrophic error of RDMAP and DDP, and MPA's only error type.
        let segment = segment.filter(|_| etype != 0);
        Terminate {
            layer,
            etype,
            code,
            segment_len: segment.map(|(len, _)| len),
            ddp_header: segment.map(|(_, header)| header),
            read_request: read_request.filter(|_| segment.is_some() && layer == layer::RDMAP),
        }
    }

    /// The error with which an initiator ends a connection. `None` if it only closes, because the
    /// peer is not at fault or does not understand a Terminate yet.
    //= rfc6581#section-8
    //# Any enhanced RDMA connection establishment error generates an MPA termination message to a
    //# peer.
    pub fn from_negotiate(error: &NegotiateError) -> Option<Self> {
        match *error {
            NegotiateError::Frame(frame) => Some(Self::Frame(frame)),
            NegotiateError::InsufficientIrd { .. } => Some(Self::InsufficientIrd),
            NegotiateError::NoMatchingRtr => Some(Self::NoMatchingRtr),
            NegotiateError::Revision { .. }
            | NegotiateError::NotEnhanced
            | NegotiateError::PeerPrivateData { .. }
            | NegotiateError::PrivateData { .. }
            | NegotiateError::NoRequest => None,
        }
    }
}

impl From<FpduError> for ProtocolError {
    fn from(error: FpduError) -> Self {
        Self::Fpdu(error)
    }
}

impl From<MarkerError> for ProtocolError {
    fn from(error: MarkerError) -> Self {
        match error {
            MarkerError::Fpdu(error) => Self::Fpdu(error),
            MarkerError::Pointer { .. } => Self::FpduStart,
        }
    }
}

impl From<FrameError> for ProtocolError {
    fn from(error: FrameError) -> Self {
        Self::Frame(error)
    }
}

impl From<DdpError> for ProtocolError {
    fn from(error: DdpError) -> Self {
        Self::Ddp(error)
    }
}

impl From<RdmapError> for ProtocolError {
    fn from(error: RdmapError) -> Self {
        Self::Rdmap(error)
    }
}
