//! Immediate Data.

use super::{RdmapError, exactly};

/// Eight bytes from application to application, which take a posted receive.
//= rfc7306#section-6.2
//# The first 8 bytes of the data following the DDP header contains the Immediate Data.
//= rfc7306#section-6.3
//# The Remote Peer MUST check that Immediate Data and Immediate Data with SE Messages include
//# exactly 8 bytes of data from the DDP layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Immediate(pub [u8; 8]);

impl Immediate {
    /// Bytes of the payload of its message.
    pub const LEN: usize = 8;

    /// Reads the payload of Immediate Data.
    ///
    /// # Errors
    /// [`RdmapError::Length`].
    #[inline]
    pub fn parse(payload: &[u8]) -> Result<Self, RdmapError> {
        exactly::<{ Self::LEN }>(payload).map(|&data| Self(data))
    }

    /// Writes the payload to the start of `buf`, and says how long it is.
    ///
    /// # Panics
    /// When `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        buf[..Self::LEN].copy_from_slice(&self.0);
        Self::LEN
    }
}
