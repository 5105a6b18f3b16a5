//! Remote Direct Memory Access Protocol (RFC 5040), with atomics and immediate data (RFC 7306).
//!
//! RDMAP's header is the control byte that DDP carries in [`ddp::Header`]. Other parameters of an
//! operation are the payload of an untagged message. [`Opcode::of`] parses the control byte, and
//! checks that the operation came tagged, or on its queue.
//!
//! No `parse` panics; `emit` panics on a buffer shorter than the `LEN` of what it writes.

mod atomic;
mod immediate;
mod opcode;
mod read;
mod terminate;

use crate::ddp;
use crate::error::ProtocolError;
pub use atomic::{AtomicOp, AtomicRequest, AtomicResponse};
pub use immediate::Immediate;
use opcode::exactly;
pub use opcode::{Opcode, RdmapError, VERSION, queue};
pub use read::ReadRequest;
pub use terminate::{Terminate, layer};

impl Opcode {
    /// The operation of a segment. Fails if the segment is not tagged, or not on the queue, as the
    /// operation requires.
    ///
    /// # Errors
    /// [`ProtocolError`], which the corresponding Terminate reports.
    //= rfc5040#section-7.2
    //# The RDMA OpCode MUST be valid.
    //= rfc5040#section-7.2
    //# The RDMA Version MUST be valid.
    #[inline]
    pub fn of(header: &ddp::Header) -> Result<Self, ProtocolError> {
        let qn = match *header {
            ddp::Header::Tagged { .. } => None,
            //= rfc5041#section-7.1
            //# The QN is valid for this stream.
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
}
