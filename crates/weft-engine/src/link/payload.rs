//! The bytes of a segment, in a buffer or in memory.

use smallvec::SmallVec;
use weft_sys::{Piece, Region, SharedMemory};

use crate::shm::ShmPeer;
use crate::{Errno, Result};

/// The payload of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload<'a> {
    /// In a local buffer.
    Bytes(&'a [u8]),
    /// In shared memory, which the peer may still change. The range is within the memory.
    Shared { memory: &'a SharedMemory, at: usize, len: usize },
    /// In the peer's own memory, from which we copy it.
    Remote { peer: &'a ShmPeer, pieces: &'a [Piece], len: usize },
}

impl Payload<'_> {
    pub(super) fn len(&self) -> usize {
        match *self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Shared { len, .. } | Self::Remote { len, .. } => len,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of a message that the protocol itself reads; such a message is always in a buffer.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Shared { .. } | Self::Remote { .. } => &[],
        }
    }

    /// The pieces of the peer's memory that hold the payload.
    pub(super) fn pieces(&self) -> &[Piece] {
        match self {
            Self::Remote { pieces, .. } => pieces,
            Self::Bytes(_) | Self::Shared { .. } => &[],
        }
    }

    /// Fills `target` with payload bytes from `offset` on.
    ///
    /// # Errors
    /// The kernel's error if the peer's memory cannot be read.
    pub(super) fn copy_to(&self, offset: usize, target: &Region) -> Result<()> {
        match *self {
            Self::Bytes(bytes) => target.copy_in(&bytes[offset..offset + target.len()]),
            Self::Shared { memory, at, len } => {
                debug_assert!(offset + target.len() <= len);
                memory.copy_to(at + offset, target);
            }
            Self::Remote { peer, pieces, .. } => {
                peer.read(&part(pieces, offset, target.len()), target)?;
            }
        }
        Ok(())
    }

    /// Appends the payload to `out`, unless it is in the peer's memory.
    pub(super) fn append_to(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Bytes(bytes) => out.extend_from_slice(bytes),
            Self::Shared { memory, at, len } => memory.append_to(at, len, out),
            Self::Remote { .. } => {}
        }
    }
}

/// The pieces that hold the `len` bytes from `offset` on.
fn part(pieces: &[Piece], offset: usize, len: usize) -> SmallVec<[Piece; 8]> {
    let (mut skip, mut rest) = (offset, len);
    let mut part = SmallVec::new();
    for &(addr, piece) in pieces {
        let skipped = skip.min(piece);
        let taken = (piece - skipped).min(rest);
        if taken != 0 {
            part.push((addr.wrapping_add(skipped as u64), taken));
        }
        skip -= skipped;
        rest -= taken;
    }
    part
}

/// Why a payload could not be copied to its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misplaced {
    /// The scatter list is invalid.
    Target,
    /// The peer's memory could not be read.
    Source(Errno),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_covers_the_requested_range() {
        let pieces = [(100, 4), (200, 0), (300, 4)];
        assert_eq!(part(&pieces, 0, 8).as_slice(), [(100, 4), (300, 4)]);
        assert_eq!(part(&pieces, 3, 2).as_slice(), [(103, 1), (300, 1)]);
        assert_eq!(part(&pieces, 5, 2).as_slice(), [(301, 2)]);
        assert!(part(&pieces, 8, 0).is_empty());
    }
}
