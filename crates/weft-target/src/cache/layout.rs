//! Where a block of a unit is cached: its partition, and the node of the partition. It follows from
//! the block's number alone.

use std::ops::Range;

use crate::limits::NODES_MAX;

/// The sizes of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a block.
    pub block_len: usize,
    /// Neighbouring blocks that are in one partition, so that a request needs few locks.
    pub group: u64,
    /// Partitions of each node.
    pub partitions_per_node: usize,
    /// Nodes.
    pub nodes: usize,
}

/// A block among those of all units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The unit. Numbers are not used again.
    pub unit: u32,
    /// The block's number in the unit.
    pub number: u64,
}

/// The part of a request that is in one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The number of the block.
    pub number: u64,
    /// Where the part begins in the block, in bytes.
    pub at: usize,
    /// Its length in bytes.
    pub len: usize,
}

impl Layout {
    /// The number of partitions.
    #[must_use]
    pub fn partitions(&self) -> usize {
        self.partitions_per_node * self.nodes
    }

    /// The partition of a block. Units begin at different ones, so that their first blocks, which
    /// are used most, are spread.
    #[must_use]
    pub fn partition(&self, key: Key) -> usize {
        let group = (key.number / self.group).wrapping_add(key.unit.into());
        (group % self.partitions() as u64) as usize
    }

    /// The node of a partition.
    #[must_use]
    pub fn node(&self, partition: usize) -> usize {
        partition % self.nodes
    }

    /// The parts of a range of bytes, in their order.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Piece> + use<> {
        let block_len = self.block_len as u64;
        let mut start = range.start;
        std::iter::from_fn(move || {
            let (number, at) = (start / block_len, start % block_len);
            let len = (block_len - at).min(range.end.saturating_sub(start));
            start += len;
            (len > 0).then_some(Piece { number, at: at as usize, len: len as usize })
        })
    }

    /// The node that has most bytes of a request, where they are gathered. Of equal ones it is the
    /// first.
    #[must_use]
    pub fn closest(&self, unit: u32, range: Range<u64>) -> usize {
        let mut affinity = [0_u64; NODES_MAX];
        for piece in self.pieces(range) {
            let node = self.node(self.partition(Key { unit, number: piece.number }));
            affinity[node] += piece.len as u64;
        }
        let of_nodes = affinity[..self.nodes].iter().enumerate();
        of_nodes.rev().max_by_key(|(_, bytes)| **bytes).map_or(0, |(node, _)| node)
    }
}
