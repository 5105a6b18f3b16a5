//! A store behind a cache is like one without it.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;

use super::*;
use crate::limits::CACHE_BLOCK_LEN;

const LEN: usize = 9 * BLOCK + 5;

/// Memory that fails when it is asked to.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) bytes: Mutex<Vec<u8>>,
    /// Writes fail after half of their bytes, reads at once.
    pub(super) is_broken: AtomicBool,
    /// What is tried without a wait does a half, and then would wait.
    pub(super) is_busy: AtomicBool,
    pub(super) origin: Option<Origin>,
}

impl Memory {
    pub(super) fn new(len: usize) -> Self {
        let bytes = Mutex::new(vec![0; len]);
        let [is_broken, is_busy] = [false, false].map(AtomicBool::new);
        Self { bytes, is_broken, is_busy, origin: None }
    }

    fn failure(&self) -> io::Result<()> {
        if self.is_broken.load(Relaxed) { Err(io::Error::other("broken")) } else { Ok(()) }
    }
}

impl Store for Arc<Memory> {
    fn len(&self) -> u64 {
        lock(&self.bytes).len() as u64
    }

    fn medium_len(&self) -> io::Result<u64> {
        Ok(self.len())
    }

    fn resize(&self, len: u64) -> io::Result<()> {
        lock(&self.bytes).resize(len as usize, 0);
        Ok(())
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.failure()?;
        buffer.copy_from_slice(&lock(&self.bytes)[offset as usize..][..buffer.len()]);
        Ok(())
    }

    fn writes_at_once(&self) -> bool {
        true
    }

    fn try_write(&self, offset: u64, bytes: &[u8]) -> Option<io::Result<()>> {
        if self.is_busy.load(Relaxed) {
            let half = &bytes[..bytes.len() / 2];
            lock(&self.bytes)[offset as usize..][..half.len()].copy_from_slice(half);
            return None;
        }
        Some(self.write(offset, bytes))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let failure = self.failure();
        let bytes = if failure.is_err() { &bytes[..bytes.len() / 2] } else { bytes };
        lock(&self.bytes)[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        failure
    }

    fn flush(&self) -> io::Result<()> {
        let failure = self.failure();
        if failure.is_err() {
            // What was not safe is lost.
            lock(&self.bytes).fill(0xee);
        }
        failure
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        self.failure()?;
        lock(&self.bytes)[range.start as usize..range.end as usize].fill(0);
        Ok(())
    }

    fn extent(&self, _offset: u64) -> io::Result<(Extent, u64)> {
        Ok((Extent::Mapped, self.len()))
    }

    fn is_thin(&self) -> bool {
        true
    }

    fn origin(&self) -> Option<Origin> {
        self.origin
    }
}

#[derive(Clone, Debug)]
enum Step {
    Read { at: usize, len: usize, tries: bool },
    Write { at: usize, len: usize, tries: bool },
    Discard { at: usize, len: usize },
    Resize(usize),
    Flush,
    Break(bool),
    Busy(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let range = || (0..LEN + BLOCK, 0..5 * BLOCK);
    prop_oneof![
        6 => (range(), any::<bool>())
            .prop_map(|((at, len), tries)| Step::Read { at, len, tries }),
        6 => (range(), any::<bool>())
            .prop_map(|((at, len), tries)| Step::Write { at, len, tries }),
        // Whole blocks.
        4 => (0..9_usize, 1..4_usize, any::<bool>())
            .prop_map(|(at, len, tries)| Step::Write { at: at * BLOCK, len: len * BLOCK, tries }),
        1 => range().prop_map(|(at, len)| Step::Discard { at, len }),
        1 => (1..2 * LEN).prop_map(Step::Resize),
        1 => Just(Step::Flush),
        1 => any::<bool>().prop_map(Step::Break),
        1 => any::<bool>().prop_map(Step::Busy),
    ]
}

/// Whether each block of the cache is like that of the store.
fn check(cached: &Cached, store: &Memory) -> Result<(), TestCaseError> {
    let bytes = lock(&store.bytes).clone();
    for (number, block) in bytes.chunks(BLOCK).enumerate() {
        let mut copy = vec![0; block.len()];
        if cached.try_read((number * BLOCK) as u64, &mut copy).is_some() {
            prop_assert_eq!(copy, block, "block {}", number);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_store_behind_a_cache_is_like_one_without(
        steps in prop::collection::vec(step(), 1..120),
        nodes in 1..3_usize,
    ) {
        let store = Arc::new(Memory::new(LEN));
        let cache = small(nodes, 4);
        let cached = Cached::new(Box::new(Arc::clone(&store)), Arc::clone(&cache)).unwrap();
        let mut number = 0_u8;
        for step in steps {
            let end = |at: usize, len: usize| at + len <= lock(&store.bytes).len();
            match step {
                Step::Read { at, len, tries } => {
                    let mut buffer = vec![1; len];
                    let read = match tries {
                        true => cached.try_read(at as u64, &mut buffer),
                        false => Some(cached.read(at as u64, &mut buffer)),
                    };
                    match read {
                        Some(Ok(())) => prop_assert_eq!(buffer, &lock(&store.bytes)[at..][..len]),
                        Some(Err(_)) => {
                            prop_assert!(!end(at, len) || store.is_broken.load(Relaxed));
                        }
                        None => prop_assert!(tries),
                    }
                }
                Step::Write { at, len, tries } => {
                    number = number.wrapping_add(1);
                    let (bytes, fits) = (vec![number; len], end(at, len));
                    let is_broken = store.is_broken.load(Relaxed);
                    let written = match tries {
                        true => cached.try_write(at as u64, &bytes),
                        false => Some(cached.write(at as u64, &bytes)),
                    };
                    match written {
                        Some(Ok(())) => {
                            prop_assert!(fits);
                            prop_assert_eq!(&lock(&store.bytes)[at..][..len], bytes);
                        }
                        Some(Err(_)) => prop_assert!(!fits || is_broken),
                        None => prop_assert!(tries),
                    }
                }
                Step::Discard { at, len } if end(at, len) => {
                    let discarded = cached.discard(at as u64..(at + len) as u64);
                    prop_assert_eq!(discarded.is_err(), store.is_broken.load(Relaxed));
                }
                Step::Discard { .. } => {}
                Step::Resize(len) => cached.resize(len as u64).unwrap(),
                Step::Flush => {
                    prop_assert_eq!(cached.flush().is_err(), store.is_broken.load(Relaxed));
                }
                Step::Break(is_broken) => store.is_broken.store(is_broken, Relaxed),
                Step::Busy(is_busy) => store.is_busy.store(is_busy, Relaxed),
            }
            check(&cached, &store)?;
        }
        drop(cached);
        prop_assert_eq!(cache.used(), 0, "blocks of a unit that is gone");
    }
}

#[test]
fn what_was_used_last_is_kept() {
    let store = Arc::new(Memory::new(64 * BLOCK));
    let cached = Cached::new(Box::new(Arc::clone(&store)), small(1, 4)).unwrap();
    let read = |number: u64| cached.read(number * BLOCK as u64, &mut [0; BLOCK]).unwrap();
    // Blocks 0, 1, 4, 5, 8, 9 are in one partition, which has four slots.
    for number in [0, 1, 4, 5, 0, 8] {
        read(number);
    }
    assert_eq!(cached.cache_stats(), Some(CacheStats { hits: 1, misses: 5 }));
    // Block 1 has made place for 8.
    let is_there = |number: u64| cached.try_read(number * BLOCK as u64, &mut [0; 1]).is_some();
    assert_eq!([0, 1, 4, 5, 8].map(is_there), [true, false, true, true, true]);
}

/// A sequence that is shorter than the cache is in it afterwards, wherever it begins.
#[test]
fn a_sequence_is_kept_as_a_whole() {
    for (cache_len, len) in [(1 << 20, 1 << 20), (16 << 20, 12 << 20)] {
        let cache = Arc::new(Cache::new(Topology::of_one_node(), cache_len).unwrap());
        let store = Arc::new(Memory::new(20 << 20));
        let cached = Cached::new(Box::new(store), cache).unwrap();
        for _ in 0..2 {
            cached.read(3 << 20, &mut vec![0; len]).unwrap();
        }
        let blocks = (len / CACHE_BLOCK_LEN) as u64;
        assert_eq!(cached.cache_stats(), Some(CacheStats { hits: blocks, misses: blocks }));
    }
}

#[test]
fn whole_blocks_are_kept_when_they_are_written_and_parts_are_not() {
    let store = Arc::new(Memory::new(64 * BLOCK));
    let cached = Cached::new(Box::new(Arc::clone(&store)), small(1, 4)).unwrap();
    cached.write(BLOCK as u64 / 2, &[7; 2 * BLOCK]).unwrap();
    let is_there = |number: u64| cached.try_read(number * BLOCK as u64, &mut [0; BLOCK]).is_some();
    assert_eq!([0, 1, 2].map(is_there), [false, true, false]);
}

#[test]
fn a_file_is_in_the_cache_once() {
    let cache = small(1, 4);
    let origin = Some(Origin { device: 1, file: Some(2) });
    let open = || {
        let store = Arc::new(Memory { origin, ..Memory::new(LEN) });
        Cached::new(Box::new(store), Arc::clone(&cache))
    };
    let first = open().unwrap();
    assert_eq!(open().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    drop(first);
    assert!(open().is_ok());
    // Memory is nobody else's.
    let other = || Cached::new(Box::new(Arc::new(Memory::new(LEN))), Arc::clone(&cache));
    let _both = (other().unwrap(), other().unwrap());
}

#[test]
fn long_requests_go_to_the_node_that_has_most_of_them() {
    let layout = Layout { block_len: 32 << 10, group: 4, partitions_per_node: 1, nodes: 2 };
    // No thread runs on these processors: all count as of the first node.
    let topology = Topology::parse("node cpus=1022\nnode cpus=1023").unwrap();
    let cache = Arc::new(Cache::with_layout(topology, layout, 8).unwrap());
    let cached = Cached::new(Box::new(Arc::new(Memory::new(1 << 20))), cache).unwrap();
    let (near, remote) = (0, 128 << 10);
    for (offset, node) in [(near, 0), (remote, 1)] {
        let mut buffer = vec![1; 64 << 10];
        assert_eq!(cached.closest_node(offset, 64 << 10), node);
        cached.read(offset, &mut buffer).unwrap();
        cached.read(offset, &mut buffer).unwrap();
        assert_eq!(cached.try_read(offset, &mut buffer).is_some(), node == 0);
        // A short one is copied where it is asked for.
        assert!(cached.try_read(offset, &mut buffer[..4_096]).is_some());
    }
    assert_eq!(cached.cache_stats().unwrap().misses, 4);
}
