//! The bytes of a segment, wherever they are.

use smallvec::SmallVec;
use weft_sys::{Piece, Region, SharedMemory};

use crate::shm::Peer;
use crate::{Errno, Result};

/// The payload of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload<'a> {
    /// In a buffer of ours.
    Bytes(&'a [u8]),
    /// In memory that the peer may still change. The range lies inside.
    Shared { memory: &'a SharedMemory, at: usize, len: usize },
    /// In the peer's own memory, from where we fetch it.
    Remote { peer: &'a Peer, pieces: &'a [Piece], len: usize },
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

    /// The bytes of a message that is read by us and not placed: those are never elsewhere.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Shared { .. } | Self::Remote { .. } => &[],
        }
    }

    /// The peer's memory that has to be fetched from.
    pub(super) fn pieces(&self) -> &[Piece] {
        match self {
            Self::Remote { pieces, .. } => pieces,
            Self::Bytes(_) | Self::Shared { .. } => &[],
        }
    }

    /// Fills `target` from the bytes behind `offset`.
    ///
    /// # Errors
    /// What the kernel reports of the peer's memory.
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

    /// Appends what is not fetched from the peer's memory to `out`.
    pub(super) fn append_to(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Bytes(bytes) => out.extend_from_slice(bytes),
            Self::Shared { memory, at, len } => memory.append_to(at, len, out),
            Self::Remote { .. } => {}
        }
    }
}

/// The pieces that hold `len` bytes from `offset` on.
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

/// A piece of a message could not be put in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misplaced {
    /// By the fault of the list that says where.
    Target,
    /// By the fault of the peer, whose memory is not there.
    Source(Errno),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_pieces() {
        let pieces = [(100, 4), (200, 0), (300, 4)];
        assert_eq!(part(&pieces, 0, 8).as_slice(), [(100, 4), (300, 4)]);
        assert_eq!(part(&pieces, 3, 2).as_slice(), [(103, 1), (300, 1)]);
        assert_eq!(part(&pieces, 5, 2).as_slice(), [(301, 2)]);
        assert!(part(&pieces, 8, 0).is_empty());
    }
}
