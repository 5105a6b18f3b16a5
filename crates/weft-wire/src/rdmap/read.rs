//! The RDMA Read Request.

use super::{RdmapError, exactly};
use crate::bytes::{be32, be64, head, put32, put64};

/// Asks the receiver to send back data from its memory.
//= rfc5040#section-4.4
//# The following figure depicts the RDMA Read Request Header that MUST be used for all RDMA Read
//# Request Messages:
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRequest {
    /// The STag of the requester's buffer, where the Read Response goes.
    pub sink_stag: u32,
    /// The offset in that buffer.
    pub sink_to: u64,
    /// Number of bytes to read.
    pub size: u32,
    /// The STag of the responder's buffer.
    pub source_stag: u32,
    /// The offset in that buffer.
    pub source_to: u64,
}

impl ReadRequest {
    /// Length of the request, which is the payload of its message.
    pub const LEN: usize = 28;

    /// Parses the payload of a Read Request.
    ///
    /// # Errors
    /// [`RdmapError::Length`].
    #[inline]
    pub fn parse(payload: &[u8]) -> Result<Self, RdmapError> {
        let b = exactly::<{ Self::LEN }>(payload)?;
        Ok(Self {
            sink_stag: be32(b, 0),
            sink_to: be64(b, 4),
            size: be32(b, 12),
            source_stag: be32(b, 16),
            source_to: be64(b, 20),
        })
    }

    /// Writes the payload to the start of `buf`, and returns its length.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let b = head::<{ Self::LEN }>(buf);
        put32(b, 0, self.sink_stag);
        put64(b, 4, self.sink_to);
        put32(b, 12, self.size);
        put32(b, 16, self.source_stag);
        put64(b, 20, self.source_to);
        Self::LEN
    }
}
