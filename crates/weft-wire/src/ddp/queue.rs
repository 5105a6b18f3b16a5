//! The receiving side of one untagged queue.

use super::{DdpError, FIRST_MSN};

/// What the next segment of a queue must be. A TCP stream delivers in order, so anything else than
/// the next byte of the queue is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UntaggedQueue {
    msn: u32,
    mo: u32,
    /// A segment of message `msn` has come; `mo` can still be 0, for a segment may be empty.
    started: bool,
}

/// Where an untagged segment's payload goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The message's number on its queue.
    pub msn: u32,
    /// Offset of the payload in the message's buffer.
    pub offset: u32,
    /// The first segment of its message.
    pub first: bool,
    /// The last one: the message is complete.
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

    /// Checks a segment of `payload_len` bytes against what must come next, and against the `limit`
    /// of the message's buffer in bytes; then moves on.
    ///
    /// # Errors
    /// [`DdpError::Msn`], [`DdpError::Mo`], [`DdpError::MessageTooLong`]. The queue has not moved.
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
        // Neither a slice nor a limit above 4 GiB lets the offset, a 32-bit field, wrap.
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
