//! Sinks whose source writes blocks into memory of theirs, and sends each header behind its block.

use std::time::Duration;

use super::channel::{Arrival, Claim, Grants, Head, Received, TransportError};
use crate::blocks::Block;
use crate::limits::HEAD_LEN_MAX;

/// A sink whose source writes to its memory.
pub(super) trait Landed {
    /// Waits for a header, and copies it to `head`. Returns what has come instead, if it is none.
    fn receive_head(
        &mut self,
        head: &mut [u8],
        wait: Option<Duration>,
    ) -> Result<Option<Received>, TransportError>;

    /// Copies the payload that was written for a block into the block. Returns false if the memory
    /// has no such payload, or the block no private memory.
    fn take_payload(&self, block: &mut Block, len: usize) -> bool;
}

/// Receives the next block of such a sink.
pub(super) fn receive(
    sink: &mut impl Landed,
    grants: &dyn Grants,
    wait: Option<Duration>,
) -> Result<Received, TransportError> {
    let mut head = [0; HEAD_LEN_MAX];
    let head = &mut head[..grants.head_len()];
    if let Some(other) = sink.receive_head(head, wait)? {
        return Ok(other);
    }
    match grants.claim(head).map_err(TransportError::Refused)? {
        // The payload is in a buffer that nobody reads.
        Claim::Drop(_) => Ok(Received::Dropped),
        Claim::Into { mut block, len } => {
            if !sink.take_payload(&mut block, len) {
                grants.give_back(head, block);
                return Err(TransportError::Protocol("a block without a buffer"));
            }
            Ok(Received::Block(Arrival { head: Head::new(head), block, len }))
        }
    }
}
