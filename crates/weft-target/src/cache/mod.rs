//! A cache of blocks in memory that knows NUMA nodes. It does no input and output: a caller learns
//! which blocks are missing, and fills them.
//!
//! The cache is divided into partitions, several at each node. A partition has a lock, an index and
//! blocks of its own. The number of a block says which partition it belongs to; neighbours belong
//! to the same one, so that a request needs few locks. All units share the cache, and all memory is
//! allocated at the start, by a thread of its node.
//!
//! A block has a lock, too. The thread that fills a block holds it, and others that want the same
//! block wait for that thread instead of the store. A thread that writes holds the blocks that it
//! writes until both store and cache have the bytes. It takes all of them without a wait, or none:
//! no thread that holds a block waits for another one.

mod index;
mod layout;
mod partition;
mod topology;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rustix::thread::sched_getcpu;
use weft_sys::lock;

pub use layout::{Key, Layout, Piece};
use partition::Partition;
pub use partition::{Bar, Claim, Opened, Owned};
pub use topology::{Topology, TopologyError};

use crate::limits::{
    CACHE_BLOCK_LEN, CACHE_GROUP, PARTITION_BLOCKS, PARTITION_BLOCKS_MAX, PARTITION_BLOCKS_MIN,
    PARTITIONS_PER_NODE,
};
use crate::workers::bind;

/// A cache.
#[derive(Debug)]
pub struct Cache {
    layout: Layout,
    topology: Topology,
    partitions: Vec<Partition>,
    last_unit: AtomicU32,
    /// The files and devices of the units.
    origins: Mutex<HashSet<Origin>>,
}

/// A file or device, whatever its paths are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The device: that of the file system, or the device itself.
    pub device: u64,
    /// The file. `None` if the device is meant.
    pub file: Option<u64>,
}

impl Cache {
    /// Returns a cache of about `len` bytes for a machine.
    ///
    /// # Errors
    ///
    /// If it would have too few blocks or too many, or if the machine has no thread left.
    pub fn new(topology: Topology, len: u64) -> io::Result<Self> {
        let nodes = topology.nodes();
        let block_len = CACHE_BLOCK_LEN;
        let blocks = len / block_len as u64 / nodes as u64;
        let partitions_per_node =
            ((blocks / PARTITION_BLOCKS) as usize).clamp(1, PARTITIONS_PER_NODE);
        let layout = Layout { block_len, group: CACHE_GROUP, partitions_per_node, nodes };
        Self::with_layout(topology, layout, blocks / partitions_per_node as u64)
    }

    /// Returns a cache with this many blocks in each partition.
    ///
    /// # Errors
    ///
    /// As above.
    pub(crate) fn with_layout(topology: Topology, layout: Layout, blocks: u64) -> io::Result<Self> {
        let limits = u64::from(PARTITION_BLOCKS_MIN)..=u64::from(PARTITION_BLOCKS_MAX);
        if !limits.contains(&blocks) {
            let what = format!(
                "a cache has {} to {} blocks of {} bytes at each node",
                *limits.start(),
                PARTITIONS_PER_NODE as u64 * limits.end(),
                layout.block_len
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let partitions = allocate(&topology, layout, blocks as u32)?;
        let (last_unit, origins) = (AtomicU32::new(0), Mutex::default());
        Ok(Self { layout, topology, partitions, last_unit, origins })
    }

    /// Its sizes.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.slots() * self.layout.block_len as u64
    }

    /// It has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the blocks that are used.
    #[must_use]
    pub fn used(&self) -> u64 {
        let used: u64 = self.partitions.iter().map(|partition| u64::from(partition.used())).sum();
        used * self.layout.block_len as u64
    }

    /// The machine.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The node on which this thread runs now.
    #[must_use]
    pub fn current_node(&self) -> usize {
        if self.layout.nodes == 1 {
            return 0;
        }
        self.topology.node_of_cpu(sched_getcpu()).unwrap_or(0)
    }

    /// Adds a unit whose blocks are of a file or device, if of one. Returns its number.
    ///
    /// # Errors
    ///
    /// If another unit has the same blocks: the one would not see what the other writes.
    pub fn attach(&self, origin: Option<Origin>) -> io::Result<u32> {
        if origin.is_some_and(|origin| !lock(&self.origins).insert(origin)) {
            let what = "another unit of the cache has the same blocks";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
        }
        Ok(self.last_unit.fetch_add(1, Ordering::Relaxed))
    }

    /// Removes a unit that nobody uses any more.
    pub fn detach(&self, unit: u32, origin: Option<Origin>) {
        self.forget(unit, 0..u64::MAX);
        if let Some(origin) = origin {
            lock(&self.origins).remove(&origin);
        }
    }

    /// Copies bytes of a block that is there, without a wait. Returns whether that was done.
    pub fn copy(&self, key: Key, at: usize, into: &mut [u8]) -> bool {
        self.partition(key).copy(key, at, into)
    }

    /// Copies bytes of a block, or lets the caller fill it. Waits for another thread that does.
    pub fn open(&self, key: Key, at: usize, into: &mut [u8]) -> Opened<'_> {
        self.partition(key).open(key, at, into)
    }

    /// Takes a block that is going to be written; `is_whole` if all of it is. `None` if that would
    /// take a wait.
    #[must_use]
    pub fn try_own(&self, key: Key, is_whole: bool) -> Option<Owned<'_>> {
        self.partition(key).try_own(key, is_whole)
    }

    /// Waits for the thread that uses a block, if there is one. The caller holds no block: the slot
    /// may belong to another block by now, whose thread could wait for the caller.
    pub fn wait_for(&self, key: Key) {
        self.partition(key).wait_for(key);
    }

    /// Forgets blocks of a unit. Waits for threads that fill or write them, and forgets that, too.
    pub fn forget(&self, unit: u32, numbers: Range<u64>) {
        if numbers.end.saturating_sub(numbers.start) <= self.slots() {
            for number in numbers {
                let key = Key { unit, number };
                self.partition(key).forget(key);
            }
            return;
        }
        for partition in &self.partitions {
            let wanted = |key: Key| key.unit == unit && numbers.contains(&key.number);
            partition.keys(wanted).into_iter().for_each(|key| partition.forget(key));
        }
    }

    fn slots(&self) -> u64 {
        self.partitions.iter().map(|partition| partition.blocks() as u64).sum()
    }

    fn partition(&self, key: Key) -> &Partition {
        &self.partitions[self.layout.partition(key)]
    }
}

/// Allocates the partitions, each at its node.
fn allocate(topology: &Topology, layout: Layout, blocks: u32) -> io::Result<Vec<Partition>> {
    let of_node = |node: usize| {
        bind(topology.cpus(node));
        let new = |_| Partition::new(blocks, layout.block_len);
        (0..layout.partitions_per_node).map(new).collect::<Vec<_>>()
    };
    let of_nodes = thread::scope(|scope| {
        let start = |node| thread::Builder::new().spawn_scoped(scope, move || of_node(node));
        let started: Vec<_> = (0..layout.nodes).map(start).collect::<io::Result<_>>()?;
        let lost = |_| io::Error::other("a thread has ended early");
        started
            .into_iter()
            .map(|thread| thread.join().map_err(lost))
            .collect::<io::Result<Vec<_>>>()
    })?;
    let mut of_nodes: Vec<_> = of_nodes.into_iter().map(Vec::into_iter).collect();
    // Partition by partition, from each node in turn, as the layout has it.
    let turns = (0..layout.partitions_per_node).flat_map(|_| 0..layout.nodes);
    Ok(turns.filter_map(|node| of_nodes[node].next()).collect())
}
