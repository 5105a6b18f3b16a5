//! The Immediate Data message.

use super::{RdmapError, exactly};

/// Eight bytes for the peer's application, which consume a posted receive.
//= rfc7306#section-6.2
//# The first 8 bytes of the data following the DDP header contains the Immediate Data.
//= rfc7306#section-6.3
//# The Remote Peer MUST check that Immediate Data and Immediate Data with SE Messages include
//# exactly 8 bytes of data from the DDP layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Immediate(pub [u8; 8]);

impl Immediate {
    /// Length of the message's payload in bytes.
    pub const LEN: usize = 8;

    /// Parses the payload of an Immediate Data message.
    ///
    /// # Errors
    /// [`RdmapError::Length`].
    #[inline]
    pub fn parse(payload: &[u8]) -> Result<Self, RdmapError> {
        exactly::<{ Self::LEN }>(payload).map(|&data| Self(data))
    }

    /// Writes the payload to the start of `buf`, and returns its length.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        buf[..Self::LEN].copy_from_slice(&self.0);
        Self::LEN
    }
}
