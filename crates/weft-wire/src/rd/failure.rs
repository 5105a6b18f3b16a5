//! The message that an RDMA Read cannot be completed.

use super::{RdError, Reason};
use crate::bytes::{be32, head, put32};

/// Payload of a message on the queue that iWARP reserves for Terminates. Datagram-iWARP has no
/// Terminate, because there is no connection to end: an error concerns one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadFailure {
    /// The read's number, which is the upper half of its sink offset.
    pub read: u32,
    /// What is wrong with the memory to be read.
    pub reason: Reason,
}

impl ReadFailure {
    /// Length of the payload in bytes.
    pub const LEN: usize = 8;

    /// Parses the payload.
    ///
    /// # Errors
    /// [`RdError::Body`], [`RdError::Reason`].
    pub fn parse(payload: &[u8]) -> Result<Self, RdError> {
        let b: &[u8; Self::LEN] = payload.try_into().map_err(|_| RdError::Body(payload.len()))?;
        Ok(Self { read: be32(b, 0), reason: Reason::of(be32(b, 4))? })
    }

    /// Writes the payload to the start of `buf`, and returns its length.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let b = head::<{ Self::LEN }>(buf);
        put32(b, 0, self.read);
        put32(b, 4, self.reason as u32);
        Self::LEN
    }
}
