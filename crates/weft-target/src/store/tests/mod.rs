//! Tests of stores behind a cache.

mod coherence;
mod threads;

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use weft_sys::lock;

use super::{CacheStats, Cached, Extent, Store};
use crate::cache::{Cache, Layout, Origin, Topology};

/// Blocks of the tests in bytes: short, so that requests have many.
const BLOCK: usize = 16;

/// A cache with few slots in each partition.
fn small(nodes: usize, slots: u64) -> Arc<Cache> {
    let list: Vec<String> = (0..nodes).map(|node| format!("node cpus={}", 1_000 + node)).collect();
    let topology = Topology::parse(&list.join("\n")).unwrap();
    let layout = Layout { block_len: BLOCK, group: 2, partitions_per_node: 2, nodes };
    Arc::new(Cache::with_layout(topology, layout, slots).unwrap())
}
