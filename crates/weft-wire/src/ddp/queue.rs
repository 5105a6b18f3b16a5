//! The receiving side of one untagged queue.

use super::{DdpError, FIRST_MSN};

/// The expected next segment of a queue. A TCP stream delivers in order, so anything but the next
/// byte of the queue is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UntaggedQueue {
    msn: u32,
    mo: u32,
    /// Whether a segment of message `msn` has come. `mo` may still be 0, because a segment may be
    /// empty.
    started: bool,
}

/// Where an untagged segment's payload goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The message's sequence number on its queue.
    pub msn: u32,
    /// Offset of the payload in the message's buffer.
    pub offset: u32,
    /// Whether this is the first segment of its message.
    pub first: bool,
    /// Whether this is the last segment, so that the message is complete.
    pub last: bool,
}

impl UntaggedQueue {
    /// A queue that has received nothing.
    pub const fn new() -> Self {
        Self { msn: FIRST_MSN, mo: 0, started: false }
    }

    /// The number of the message that is under way or comes next.
    #[inline]
    pub fn msn(&self) -> u32 {
        self.msn
    }

    /// Whether a message has begun and not ended.
    #[inline]
    pub fn is_inside_message(&self) -> bool {
        self.started
    }

    /// Checks a segment of `payload_len` bytes against the expected one, and against `limit`, the
    /// length of the message's buffer in bytes; then advances.
    ///
    /// # Errors
    /// [`DdpError::Msn`], [`DdpError::Mo`], [`DdpError::MessageTooLong`]. The queue does not
    /// advance then.
    //= rfc5041#section-7.1
    //# The MO falls in the range of legal offsets associated with the Untagged Buffer.
    //= rfc5041#section-7.1
    //# The sum of the DDP Segment payload length and the MO falls in the range of legal offsets
    //# associated with the Untagged Buffer.
    //= rfc5041#section-7.1
    //# The Message Sequence Number falls in the range of legal Message Sequence Numbers, for the
    //# queue defined by the QN.
    #[inline]
    pub fn check(
        &mut self,
        msn: u32,
        mo: u32,
        payload_len: usize,
        last: bool,
        limit: u64,
    ) -> Result<Placement, DdpError> {
        //= rfc5041#section-5.3
        //# MUST Deliver DDP Messages to the ULP in the order they were sent by the Data Source.
        if msn != self.msn {
            return Err(DdpError::Msn { received: msn, expected: self.msn });
        }
        if mo != self.mo {
            return Err(DdpError::Mo { received: mo, expected: self.mo });
        }
        // The offset, a 32-bit field, cannot wrap: a slice is shorter than that, and the limit is
        // capped.
        let end = u64::from(mo) + payload_len as u64;
        let limit = limit.min(u64::from(u32::MAX));
        if end > limit {
            return Err(DdpError::MessageTooLong { length: end, limit });
        }
        let first = !self.started;
        self.started = !last;
        if last {
            //= rfc5041#section-5.1.2
            //# The DDP Message Sequence Number can be used by the Data Sink to identify the
            //# specific Untagged Buffer.
            //= rfc5041#section-4.3
            //# The Message Sequence Number specifies a sequence number that MUST be increased by
            //# one (modulo 2^32) with each DDP Message targeting the specific Queue Number on the
            //# DDP Stream associated with this DDP Segment.
            //= rfc5041#section-4.3
            //# The MSN value MUST wrap to 0 after a value of 0xFFFFFFFF.
            self.msn = self.msn.wrapping_add(1);
            self.mo = 0;
        } else {
            self.mo = end as u32;
        }
        Ok(Placement { msn, offset: mo, first, last })
    }
}

impl Default for UntaggedQueue {
    fn default() -> Self {
        Self::new()
    }
}
