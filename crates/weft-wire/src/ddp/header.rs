//! The header of a DDP segment, and the errors of a segment.

use thiserror::Error;

use crate::bytes::{be32, be64, head, put32, put64};

/// Length of a tagged header in bytes.
pub const TAGGED_LEN: usize = 14;
/// Length of an untagged header in bytes.
pub const UNTAGGED_LEN: usize = 18;

/// The only DDP version.
pub const VERSION: u8 = 1;

/// The message sequence number of the first message on each queue.
//= rfc5041#section-4.3
//# The initial value for MSN MUST be one.
pub const FIRST_MSN: u32 = 1;

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const VERSION_MASK: u8 = 0x03;

/// The header of a DDP segment.
//= rfc5041#section-4.1
//# |T|L| Rsvd |DV |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// Header of a segment for memory that the sender names.
    //= rfc5041#section-4.2
    //# Figure 4 shows the DDP Header format that MUST be used in all DDP Segments that target
    //# Tagged Buffers.
    Tagged {
        /// Whether this is the last segment of its message.
        last: bool,
        /// Eight bits for RDMAP: its control byte.
        ulp: u8,
        /// The STag of the buffer.
        stag: u32,
        /// The tagged offset: where this segment's payload goes in the buffer.
        to: u64,
    },
    /// Header of a segment for the next buffer of a queue of the receiver.
    //= rfc5041#section-4.3
    //# Figure 5 shows the DDP Header format that MUST be used in all DDP Segments that target
    //# Untagged Buffers.
    Untagged {
        /// Whether this is the last segment of its message.
        last: bool,
        /// First eight bits for RDMAP: its control byte.
        ulp: u8,
        /// Further 32 bits for RDMAP: the STag to invalidate.
        ulp_word: u32,
        /// Queue number.
        qn: u32,
        /// Message sequence number.
        msn: u32,
        /// Offset of this segment's payload in the message.
        mo: u32,
    },
}

/// Why a DDP segment is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DdpError {
    /// The segment is shorter than its header.
    #[error("DDP segment of {0} bytes is shorter than its header")]
    TooShort(usize),
    /// A tagged segment has an unknown version.
    #[error("DDP version {0} in a tagged segment")]
    TaggedVersion(u8),
    /// An untagged segment has an unknown version.
    #[error("DDP version {0} in an untagged segment")]
    UntaggedVersion(u8),
    /// The message is not the next one of its queue.
    #[error("message {received} on a queue that awaits message {expected}")]
    Msn {
        /// The message sequence number in the segment.
        received: u32,
        /// The expected message sequence number.
        expected: u32,
    },
    /// The offset is not the next one of its message.
    #[error("message offset {received}, {expected} must come next")]
    Mo {
        /// The offset in the segment.
        received: u32,
        /// The expected offset.
        expected: u32,
    },
    /// The message is longer than its buffer.
    #[error("message of at least {length} bytes for a buffer of {limit}")]
    MessageTooLong {
        /// Length of the message up to the end of this segment.
        length: u64,
        /// Length of the buffer in bytes.
        limit: u64,
    },
}

impl Header {
    /// Parses the header at the start of a segment. The payload begins at the returned length.
    ///
    /// # Errors
    /// [`DdpError::TooShort`], [`DdpError::TaggedVersion`], [`DdpError::UntaggedVersion`].
    //= rfc5041#section-4.4
    //# Each DDP Segment MUST contain a DDP Header. Each DDP Segment may also contain ULP Payload.
    #[inline]
    pub fn parse(ulpdu: &[u8]) -> Result<(Self, usize), DdpError> {
        let Some(&control) = ulpdu.first() else { return Err(DdpError::TooShort(0)) };
        //= rfc5041#section-4.1
        //# This field MUST be set to zero on transmit, and not checked on receive.
        let (last, version) = (control & LAST != 0, control & VERSION_MASK);
        if control & TAGGED != 0 {
            if version != VERSION {
                return Err(DdpError::TaggedVersion(version));
            }
            let Some(h) = ulpdu.first_chunk::<TAGGED_LEN>() else {
                return Err(DdpError::TooShort(ulpdu.len()));
            };
            Ok((Self::Tagged { last, ulp: h[1], stag: be32(h, 2), to: be64(h, 6) }, TAGGED_LEN))
        } else {
            if version != VERSION {
                return Err(DdpError::UntaggedVersion(version));
            }
            let Some(h) = ulpdu.first_chunk::<UNTAGGED_LEN>() else {
                return Err(DdpError::TooShort(ulpdu.len()));
            };
            let (ulp, ulp_word) = (h[1], be32(h, 2));
            let (qn, msn, mo) = (be32(h, 6), be32(h, 10), be32(h, 14));
            Ok((Self::Untagged { last, ulp, ulp_word, qn, msn, mo }, UNTAGGED_LEN))
        }
    }

    /// Writes the header to the start of `buf`. The payload belongs at the returned length.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Header::len`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let control = |tagged, last| tagged | if last { LAST } else { 0 } | VERSION;
        match *self {
            Self::Tagged { last, ulp, stag, to } => {
                let h = head::<TAGGED_LEN>(buf);
                h[0] = control(TAGGED, last);
                h[1] = ulp;
                put32(h, 2, stag);
                put64(h, 6, to);
                TAGGED_LEN
            }
            Self::Untagged { last, ulp, ulp_word, qn, msn, mo } => {
                let h = head::<UNTAGGED_LEN>(buf);
                h[0] = control(0, last);
                h[1] = ulp;
                put32(h, 2, ulp_word);
                put32(h, 6, qn);
                put32(h, 10, msn);
                put32(h, 14, mo);
                UNTAGGED_LEN
            }
        }
    }

    /// Length of this header in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // A header is never empty.
    pub fn len(&self) -> usize {
        match self {
            Self::Tagged { .. } => TAGGED_LEN,
            Self::Untagged { .. } => UNTAGGED_LEN,
        }
    }

    /// The byte that DDP carries for RDMAP: its control byte.
    #[inline]
    pub fn ulp(&self) -> u8 {
        match *self {
            Self::Tagged { ulp, .. } | Self::Untagged { ulp, .. } => ulp,
        }
    }

    /// Whether this is the last segment of its message.
    #[inline]
    pub fn is_last(&self) -> bool {
        match *self {
            Self::Tagged { last, .. } | Self::Untagged { last, .. } => last,
        }
    }
}
