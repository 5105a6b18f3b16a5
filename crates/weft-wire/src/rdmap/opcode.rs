//! The operations of RDMAP: control byte and queue of each.

use thiserror::Error;

/// The untagged queues of RDMAP.
pub mod queue {
    /// Sends and Immediate Data.
    //= rfc7306#section-6.3
    //# For an Immediate Data or Immediate Data with SE Message, the Local Peer's RDMAP Layer MUST
    //# request that the DDP layer set the Queue Number field to zero.
    //= rfc5040#section-3.1
    //# Queue Number 0 (used by RDMAP for Send, Send with Invalidate, Send with Solicited Event, and
    //# Send with Solicited Event and Invalidate operations).
    //= rfc5040#section-3.1
    //# Queue Number 1 (used by RDMAP for RDMA Read operations).
    //= rfc5040#section-3.1
    //# Queue Number 2 (used by RDMAP for Terminate operations).
    pub const SEND: u32 = 0;
    /// RDMA Read Requests and Atomic Requests.
    //= rfc7306#section-5.2
    //# Atomic Operation Request messages MUST use the same Queue Number as RDMA Read Requests
    //# (QN=1).
    //= rfc7306#section-10.2
    //# 0x00000003, Queue 3 (Atomic Response operations), this specification
    pub const READ_REQUEST: u32 = 1;
    /// Terminates.
    pub const TERMINATE: u32 = 2;
    /// Atomic Responses.
    pub const ATOMIC_RESPONSE: u32 = 3;
    /// Number of queues.
    pub const COUNT: usize = 4;
}

/// The RDMAP version of RFC 5040.
pub const VERSION: u8 = 1;

const VERSION_SHIFT: u32 = 6;
const OPCODE_MASK: u8 = 0x0f;

/// An RDMAP operation.
//= rfc5040#section-4.1
//# Figure 4 defines the value of the RDMA Opcode field that MUST be used for each RDMA Message.
//= rfc5040#section-4.2
//# The following figure defines which RDMA Headers MUST be used on each RDMA Message and which RDMA
//# Messages are allowed to carry ULP Payload:
//= rfc7306#section-4.1
//# Figure 2 defines the new values of the RDMA Opcode field that are used for the RDMA Messages
//# defined in this specification.
//= rfc7306#section-4.2
//# The following figure defines which RDMA Headers are used on each new RDMA Message and which new
//# RDMA Messages are allowed to carry ULP payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA Write.
    //= rfc5040#section-4.3
    //# The RDMA Write Message does not include an RDMAP header.
    Write = 0,
    /// RDMA Read Request.
    ReadRequest = 1,
    /// RDMA Read Response.
    //= rfc5040#section-4.5
    //# The RDMA Read Response Message does not include an RDMAP header.
    ReadResponse = 2,
    /// Send.
    //= rfc5040#section-4.6
    //# The Send and Send with Solicited Event Messages do not include an RDMAP header.
    Send = 3,
    /// Send with Invalidate.
    //= rfc5040#section-4.7
    //# The Send with Invalidate and Send with Solicited Event and Invalidate Messages do not
    //# include an RDMAP header. The RDMAP layer passes to the DDP layer an RDMAP Control Field and
    //# the Invalidate STag field (see section 4.1 RDMAP Control and Invalidate STag Field).
    SendInv = 4,
    /// Send with Solicited Event.
    SendSe = 5,
    /// Send with Solicited Event and Invalidate.
    SendSeInv = 6,
    /// Terminate.
    Terminate = 7,
    /// Immediate Data.
    Immediate = 8,
    /// Immediate Data with Solicited Event.
    ImmediateSe = 9,
    /// Atomic Request.
    AtomicRequest = 10,
    /// Atomic Response.
    AtomicResponse = 11,
}

/// Why an RDMAP message is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RdmapError {
    /// The version is unknown.
    #[error("RDMAP version {0}")]
    Version(u8),
    /// No RFC defines the opcode.
    #[error("RDMAP opcode {0:#x}")]
    Opcode(u8),
    /// An untagged operation came tagged, a tagged one untagged, or an operation on the wrong
    /// queue.
    #[error("RDMAP {0:?} does not belong there")]
    Misplaced(Opcode),
    /// The payload of a Read Request, Atomic or Immediate Data has the wrong length.
    #[error("{received} bytes of RDMAP header, {expected} expected")]
    Length {
        /// The length received.
        received: usize,
        /// The length that the RFC requires.
        expected: usize,
    },
    /// No RFC defines the atomic operation.
    #[error("atomic operation code {0:#x}")]
    AtomicOp(u8),
}

impl Opcode {
    const ALL: [Self; 12] = [
        Self::Write,
        Self::ReadRequest,
        Self::ReadResponse,
        Self::Send,
        Self::SendInv,
        Self::SendSe,
        Self::SendSeInv,
        Self::Terminate,
        Self::Immediate,
        Self::ImmediateSe,
        Self::AtomicRequest,
        Self::AtomicResponse,
    ];

    /// Parses the control byte.
    ///
    /// # Errors
    /// [`RdmapError::Version`], [`RdmapError::Opcode`].
    //= rfc5040#section-4.1
    //# |T|L| Resrv | DV| RV|Rsv| Opcode|
    //= rfc5040#section-4.1
    //# Bits 26-27; Reserved. MUST be set to zero by sender, ignored by the receiver.
    #[inline]
    pub fn parse(control: u8) -> Result<Self, RdmapError> {
        let version = control >> VERSION_SHIFT;
        if version != VERSION {
            return Err(RdmapError::Version(version));
        }
        let code = control & OPCODE_MASK;
        Self::ALL.get(usize::from(code)).copied().ok_or(RdmapError::Opcode(code))
    }

    /// The control byte.
    #[inline]
    pub const fn control(self) -> u8 {
        (VERSION << VERSION_SHIFT) | self as u8
    }

    /// The queue of an untagged operation; `None` for a tagged one.
    //= rfc5040#section-4.1
    //# Figure 4, "RDMA Usage of DDP Fields", MUST be used to define the value of the Tagged flag
    //# that is handed to the DDP layer for each RDMA Message.
    //= rfc5040#section-4.1
    //# Figure 4 defines when the STag, Queue Number, and Tagged Offset fields MUST be provided for
    //# each RDMA Message.
    #[inline]
    pub const fn queue(self) -> Option<u32> {
        match self {
            Self::Write | Self::ReadResponse => None,
            Self::Send | Self::SendInv | Self::SendSe | Self::SendSeInv => Some(queue::SEND),
            Self::Immediate | Self::ImmediateSe => Some(queue::SEND),
            Self::ReadRequest | Self::AtomicRequest => Some(queue::READ_REQUEST),
            Self::Terminate => Some(queue::TERMINATE),
            Self::AtomicResponse => Some(queue::ATOMIC_RESPONSE),
        }
    }

    /// The STag that a message of this kind invalidates at its receiver, taken from DDP's word for
    /// RDMAP.
    //= rfc5040#section-4.1
    //# Bits 32-63; Invalidate STag. However, this field is only valid for Send with Invalidate and
    //# Send with Solicited Event and Invalidate Messages (see Figure 4).
    //= rfc7306#section-4.1
    //# Invalidate STag: Set to zero by the sender, ignored by the receiver.
    #[inline]
    pub const fn invalidates(self, ulp_word: u32) -> Option<u32> {
        match self {
            Self::SendInv | Self::SendSeInv => Some(ulp_word),
            _ => None,
        }
    }

    /// Whether the message requests a solicited event at its receiver.
    #[inline]
    pub const fn is_solicited(self) -> bool {
        matches!(self, Self::SendSe | Self::SendSeInv | Self::ImmediateSe)
    }
}

/// The payload as an array, if it has exactly that length.
#[inline]
pub(super) fn exactly<const N: usize>(payload: &[u8]) -> Result<&[u8; N], RdmapError> {
    payload.try_into().map_err(|_| RdmapError::Length { received: payload.len(), expected: N })
}
