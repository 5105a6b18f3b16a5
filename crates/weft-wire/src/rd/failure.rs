//! The notice that an RDMA Read cannot be answered to its end.

use super::{RdError, Reason};
use crate::bytes::{be32, head, put32};

/// The payload of a message on the queue that iWARP keeps for Terminates. Datagram-iWARP has none
/// of those, for there is no connection to end: an error concerns one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadFailure {
    /// The read's number, which is the upper half of its sink offset.
    pub read: u32,
    /// What is wrong with the memory that was to be read.
    pub reason: Reason,
}

impl ReadFailure {
    /// Bytes of the payload.
    pub const LEN: usize = 8;

    /// Reads the payload.
    ///
    /// # Errors
    /// [`RdError::Body`], [`RdError::Reason`].
    pub fn parse(payload: &[u8]) -> Result<Self, RdError> {
        let b: &[u8; Self::LEN] = payload.try_into().map_err(|_| RdError::Body(payload.len()))?;
        Ok(Self { read: be32(b, 0), reason: Reason::of(be32(b, 4))? })
    }

    /// Writes the payload to the start of `buf`, and says how long it is.
    ///
    /// # Panics
    /// When `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let b = head::<{ Self::LEN }>(buf);
        put32(b, 0, self.read);
        put32(b, 4, self.reason as u32);
        Self::LEN
    }
}
