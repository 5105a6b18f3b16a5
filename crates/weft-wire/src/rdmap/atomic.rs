//! Atomic Request and Atomic Response.

use super::{RdmapError, exactly};
use crate::bytes::{be32, be64, head, put32, put64};

/// An operation on the 64 bits at the target of an Atomic Request. The response carries the old
/// value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicOp {
    /// Adds. A set bit of the mask is the top bit of a field, and no carry leaves a field.
    //= rfc7306#section-5.1.1
    //# A bit set in the Add Mask field specifies the field boundary; for each field, a bit is set
    //# at the most significant bit position for each field, causing any carry out of that bit
    //# position to be discarded when the addition is performed.
    FetchAdd {
        /// The value to add.
        add: u64,
        /// The top bits of the fields; 0 for one field of 64 bits.
        mask: u64,
    },
    /// Replaces the bits in `swap_mask` if the bits in `compare_mask` are equal.
    //= rfc7306#section-5.2.1
    //# The Add or Swap Data field specifies the 64-bit "Add Data" value in an Atomic FetchAdd
    //# Operation or the 64-bit "Swap Data" value in an Atomic Swap or CmpSwap Operation.
    //= rfc7306#section-5.1.2
    //# If the two values are equal, the Responder is required to swap masked bits in the same ULP
    //# Buffer address with the masked Swap Data. If the two masked compare values are not equal,
    //# the contents of the Responder's memory are not changed.
    CmpSwap {
        /// The new bits.
        swap: u64,
        /// The bits to replace.
        swap_mask: u64,
        /// The value to compare with.
        compare: u64,
        /// The bits to compare.
        compare_mask: u64,
    },
}

/// Requests an atomic operation on the receiver's memory.
//= rfc7306#section-5.2.1
//# The following figure depicts the Atomic Operation Request Header that is used for all Atomic
//# Operation Request Messages:
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicRequest {
    /// The operation.
    pub op: AtomicOp,
    /// An identifier that the response repeats.
    pub request_id: u32,
    /// The STag of the responder's buffer.
    pub remote_stag: u32,
    /// The offset in that buffer.
    pub remote_to: u64,
}

/// Returns the value that an atomic operation found.
//= rfc7306#section-5.2.2
//# The following figure depicts the Atomic Operation Response header that is used for all Atomic
//# Operation Response Messages:
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicResponse {
    /// The request's identifier.
    pub request_id: u32,
    /// The value before the operation.
    pub original_value: u64,
}

//= rfc7306#section-5
//# An RNIC that supports Atomic Operations as specified in this document MUST implement both the
//# FetchAdd operation as specified in Section 5.1.1 and the CmpSwap operation as specified in
//# Section 5.1.2.
//= rfc7306#section-10.1
//# 0x0, FetchAdd, this specification
//= rfc7306#section-10.1
//# 0x2, CmpSwap, this specification
const CODE_FETCH_ADD: u8 = 0;
const CODE_CMP_SWAP: u8 = 2;
const CODE_MASK: u8 = 0x0f;

impl AtomicOp {
    /// The value that the operation leaves in place of `original`.
    #[inline]
    pub const fn apply(self, original: u64) -> u64 {
        match self {
            Self::FetchAdd { add, mask } => {
                // Add the top bit of each field without its carry.
                let low = (original & !mask).wrapping_add(add & !mask);
                low ^ ((original ^ add) & mask)
            }
            Self::CmpSwap { swap, swap_mask, compare, compare_mask } => {
                if (original ^ compare) & compare_mask != 0 {
                    return original;
                }
                (original & !swap_mask) | (swap & swap_mask)
            }
        }
    }
}

impl AtomicRequest {
    /// Length of the request, which is the payload of its message.
    pub const LEN: usize = 52;

    /// Parses the payload of an Atomic Request.
    ///
    /// # Errors
    /// [`RdmapError::Length`], [`RdmapError::AtomicOp`].
    #[inline]
    pub fn parse(payload: &[u8]) -> Result<Self, RdmapError> {
        let b = exactly::<{ Self::LEN }>(payload)?;
        let (data, mask) = (be64(b, 20), be64(b, 28));
        let op = match b[3] & CODE_MASK {
            CODE_FETCH_ADD => AtomicOp::FetchAdd { add: data, mask },
            CODE_CMP_SWAP => AtomicOp::CmpSwap {
                swap: data,
                swap_mask: mask,
                compare: be64(b, 36),
                compare_mask: be64(b, 44),
            },
            code => return Err(RdmapError::AtomicOp(code)),
        };
        Ok(Self { op, request_id: be32(b, 4), remote_stag: be32(b, 8), remote_to: be64(b, 12) })
    }

    /// Writes the payload to the start of `buf`, and returns its length.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let (code, data, mask, compare, compare_mask) = match self.op {
            //= rfc7306#section-5.2.1
            //# For Atomic Operations FetchAdd and Swap, this field is set to ffffffffffffffffh on
            //# transmit and ignored by the receiver.
            AtomicOp::FetchAdd { add, mask } => (CODE_FETCH_ADD, add, mask, 0, u64::MAX),
            AtomicOp::CmpSwap { swap, swap_mask, compare, compare_mask } => {
                (CODE_CMP_SWAP, swap, swap_mask, compare, compare_mask)
            }
        };
        let b = head::<{ Self::LEN }>(buf);
        put32(b, 0, u32::from(code));
        put32(b, 4, self.request_id);
        put32(b, 8, self.remote_stag);
        put64(b, 12, self.remote_to);
        put64(b, 20, data);
        put64(b, 28, mask);
        put64(b, 36, compare);
        put64(b, 44, compare_mask);
        Self::LEN
    }
}

impl AtomicResponse {
    /// Length of the response, which is the payload of its message.
    pub const LEN: usize = 12;

    /// Parses the payload of an Atomic Response.
    ///
    /// # Errors
    /// [`RdmapError::Length`].
    #[inline]
    pub fn parse(payload: &[u8]) -> Result<Self, RdmapError> {
        let b = exactly::<{ Self::LEN }>(payload)?;
        Ok(Self { request_id: be32(b, 0), original_value: be64(b, 4) })
    }

    /// Writes the payload to the start of `buf`, and returns its length.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let b = head::<{ Self::LEN }>(buf);
        put32(b, 0, self.request_id);
        put64(b, 4, self.original_value);
        Self::LEN
    }
}
