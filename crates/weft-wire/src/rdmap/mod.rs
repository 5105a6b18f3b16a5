//! Remote Direct Memory Access Protocol (RFC 5040), with atomics and immediate data (RFC 7306).
//!
//! RDMAP's own header is the control byte that DDP carries in [`ddp::Header`]; what else an
//! operation needs is the payload of an untagged message. [`Opcode::of`] reads the control byte and
//! checks that the operation came the way it must.
//!
//! No `parse` panics; an `emit` does on a buffer shorter than the `LEN` of what it writes.

mod atomic;
mod immediate;
mod read;
mod terminate;

use thiserror::Error;

use crate::ddp;
use crate::error::ProtocolError;
pub use atomic::{AtomicOp, AtomicRequest, AtomicResponse};
pub use immediate::Immediate;
pub use read::ReadRequest;
pub use terminate::{Terminate, layer};

/// The untagged queues of RDMAP.
pub mod queue {
    /// Sends and Immediate Data.
    //= rfc7306#section-6.3
    //% Immediate Data is an untagged message on the queue of the Sends and takes its MSN among
    //% them.
    //= rfc5040#section-4.2
    //% Queue 0 is for Sends, queue 1 for RDMA Read Requests, queue 2 for Terminates.
    pub const SEND: u32 = 0;
    /// RDMA Read Requests and Atomic Requests.
    //= rfc7306#section-10.2
    //% Atomic Requests use queue 1, Atomic Responses queue 3, Immediate Data queue 0.
    pub const READ_REQUEST: u32 = 1;
    /// Terminates.
    pub const TERMINATE: u32 = 2;
    /// Atomic Responses.
    pub const ATOMIC_RESPONSE: u32 = 3;
    /// How many there are.
    pub const COUNT: usize = 4;
}

/// The RDMAP version of RFC 5040.
pub const VERSION: u8 = 1;

const VERSION_SHIFT: u32 = 6;
const OPCODE_MASK: u8 = 0x0f;

/// What a message does.
//= rfc5040#section-4.2
//% Opcodes 0 to 7.
//= rfc7306#section-4.2
//% Opcodes 8 to 11.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA Write.
    //= rfc5040#section-4.3
    //% RDMA Write has no header of its own behind DDP's tagged header.
    Write = 0,
    /// RDMA Read Request.
    ReadRequest = 1,
    /// RDMA Read Response.
    //= rfc5040#section-4.5
    //% RDMA Read Response has no header of its own behind DDP's tagged header.
    ReadResponse = 2,
    /// Send.
    //= rfc5040#section-4.6
    //% Send, with or without Solicited Event, has no header of its own behind DDP's untagged
    //% header.
    Send = 3,
    /// Send with Invalidate.
    //= rfc5040#section-4.7
    //% Send with Invalidate, with or without Solicited Event, has the STag to invalidate in DDP's
    //% untagged header and no header of its own behind it.
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

/// How an RDMAP message is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RdmapError {
    /// An unknown version.
    #[error("RDMAP version {0}")]
    Version(u8),
    /// An opcode that no RFC defines.
    #[error("RDMAP opcode {0:#x}")]
    Opcode(u8),
    /// A defined operation that came tagged though it is untagged, the reverse, or on another
    /// operation's queue.
    #[error("RDMAP {0:?} does not belong there")]
    Misplaced(Opcode),
    /// The payload of a Read Request, Atomic or Immediate Data is not as long as it must be.
    #[error("{received} bytes of RDMAP header, {expected} expected")]
    Length {
        /// As received.
        received: usize,
        /// As the RFC has it.
        expected: usize,
    },
    /// An atomic operation that no RFC defines.
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

    /// Reads the control byte.
    ///
    /// # Errors
    /// [`RdmapError::Version`], [`RdmapError::Opcode`].
    //= rfc5040#section-4.1
    //% The control field is the two bits of the version, two reserved bits that are not checked,
    //% and the four bits of the opcode.
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
    //= rfc5040#section-4.2
    //% RDMA Write and Read Response are tagged, all others are untagged, each with its queue.
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

    /// The operation of a segment, which came tagged or on the queue that the operation belongs to.
    ///
    /// # Errors
    /// [`ProtocolError`], with the Terminate that answers it.
    //= rfc5040#section-7.2
    //% An incoming message is checked for its RDMAP version, its opcode, and whether the opcode
    //% fits the queue.
    #[inline]
    pub fn of(header: &ddp::Header) -> Result<Self, ProtocolError> {
        let qn = match *header {
            ddp::Header::Tagged { .. } => None,
            //= rfc5041#section-7.1
            //% A queue number that is not in use is an error of its own.
            ddp::Header::Untagged { qn, .. } if qn as usize >= queue::COUNT => {
                return Err(ProtocolError::InvalidQueue { qn });
            }
            ddp::Header::Untagged { qn, .. } => Some(qn),
        };
        let opcode = Self::parse(header.ulp())?;
        if opcode.queue() != qn {
            return Err(RdmapError::Misplaced(opcode).into());
        }
        Ok(opcode)
    }

    /// The STag that a message of this kind invalidates at its receiver, from the word that DDP
    /// carries for RDMAP.
    //= rfc5040#section-4.1
    //% The Invalidate STag field is valid in Send with Invalidate, with or without Solicited Event,
    //% and ignored in all others.
    //= rfc7306#section-4.1
    //% Atomics and Immediate Data have the control field of RFC 5040, and their Invalidate STag
    //% field is zero when sent and ignored when received.
    #[inline]
    pub const fn invalidates(self, ulp_word: u32) -> Option<u32> {
        match self {
            Self::SendInv | Self::SendSeInv => Some(ulp_word),
            _ => None,
        }
    }

    /// Whether the message asks for a solicited event at its receiver.
    #[inline]
    pub const fn is_solicited(self) -> bool {
        matches!(self, Self::SendSe | Self::SendSeInv | Self::ImmediateSe)
    }
}

/// The payload as an array, if it is exactly that long.
#[inline]
fn exactly<const N: usize>(payload: &[u8]) -> Result<&[u8; N], RdmapError> {
    payload.try_into().map_err(|_| RdmapError::Length { received: payload.len(), expected: N })
}
