//! A store behind a cache that several threads use at once.

use std::sync::Condvar;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use super::*;

/// Memory that gives way to other threads at each step. Reads wait while they are held up, and so
/// do writes that begin with [`WAITS`].
#[derive(Debug)]
struct Yielding {
    bytes: Mutex<Vec<u8>>,
    held: Mutex<Option<Calls>>,
    opened: Condvar,
    reads: AtomicU32,
    writes: AtomicU32,
}

const WAITS: u8 = 0xaa;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Calls {
    Reads,
    Writes,
}

impl Yielding {
    fn new(len: usize) -> Arc<Self> {
        let (held, opened, reads, writes) = Default::default();
        Arc::new(Self { bytes: Mutex::new(vec![0; len]), held, opened, reads, writes })
    }

    fn hold(&self, calls: Option<Calls>) {
        *lock(&self.held) = calls;
        self.opened.notify_all();
    }

    fn pass(&self, calls: Calls) {
        drop(self.opened.wait_while(lock(&self.held), |held| *held == Some(calls)).unwrap());
    }
}

impl Store for Arc<Yielding> {
    fn len(&self) -> u64 {
        lock(&self.bytes).len() as u64
    }

    fn medium_len(&self) -> io::Result<u64> {
        Ok(self.len())
    }

    fn resize(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.pass(Calls::Reads);
        thread::yield_now();
        buffer.copy_from_slice(&lock(&self.bytes)[offset as usize..][..buffer.len()]);
        thread::yield_now();
        Ok(())
    }

    fn writes_at_once(&self) -> bool {
        true
    }

    fn try_write(&self, offset: u64, bytes: &[u8]) -> Option<io::Result<()>> {
        Some(self.write(offset, bytes))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        if bytes.first() == Some(&WAITS) {
            self.pass(Calls::Writes);
        }
        thread::yield_now();
        lock(&self.bytes)[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        thread::yield_now();
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        thread::yield_now();
        lock(&self.bytes)[range.start as usize..range.end as usize].fill(0);
        thread::yield_now();
        Ok(())
    }

    fn extent(&self, _offset: u64) -> io::Result<(Extent, u64)> {
        Ok((Extent::Mapped, self.len()))
    }

    fn is_thin(&self) -> bool {
        true
    }
}

fn cached(store: &Arc<Yielding>, slots: u64) -> Cached {
    Cached::new(Box::new(Arc::clone(store)), small(1, slots)).unwrap()
}

#[test]
fn threads_that_miss_the_same_block_read_the_store_once() {
    let store = Yielding::new(64 * BLOCK);
    let cached = cached(&store, 4);
    store.hold(Some(Calls::Reads));
    thread::scope(|scope| {
        let read = || cached.read(3, &mut [0; 8]).unwrap();
        let readers: Vec<_> = (0..4).map(|_| scope.spawn(read)).collect();
        while store.reads.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        // Others that come now wait for the first one, and the thread that must not wait does not.
        let tried =
            (cached.try_read(3, &mut [0; 8]).is_none(), cached.try_write(3, &[0; 8]).is_none());
        store.hold(None);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_eq!(tried, (true, true));
    });
    assert_eq!(store.reads.load(Ordering::Relaxed), 1);
    assert_eq!(cached.cache_stats(), Some(CacheStats { hits: 3, misses: 1 }));
}

/// A block that is being written in part is kept neither by a read nor by a write of the whole
/// block, which could be before or behind it in the store.
#[test]
fn a_block_is_not_kept_while_a_part_of_it_is_being_written() {
    let store = Yielding::new(64 * BLOCK);
    let cached = cached(&store, 4);
    store.hold(Some(Calls::Writes));
    thread::scope(|scope| {
        let part = scope.spawn(|| cached.write(0, &[WAITS; BLOCK / 2]).unwrap());
        while store.writes.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        cached.read(0, &mut [0; BLOCK]).unwrap();
        cached.write(0, &[1; BLOCK]).unwrap();
        cached.read(0, &mut [0; BLOCK]).unwrap();
        store.hold(None);
        part.join().unwrap();
    });
    let mut bytes = [0; BLOCK];
    cached.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, lock(&store.bytes)[..BLOCK]);
    assert_eq!(bytes[0], WAITS);
}

/// A fill that began before its block was discarded leaves nothing behind.
#[test]
fn a_block_that_is_discarded_while_it_is_filled_is_forgotten() {
    let store = Yielding::new(64 * BLOCK);
    let cached = cached(&store, 4);
    lock(&store.bytes).fill(7);
    store.hold(Some(Calls::Reads));
    thread::scope(|scope| {
        let fill = scope.spawn(|| cached.read(0, &mut [0; BLOCK]).unwrap());
        while store.reads.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        let discard = scope.spawn(|| cached.discard(0..BLOCK as u64).unwrap());
        while lock(&store.bytes)[0] != 0 {
            thread::yield_now();
        }
        store.hold(None);
        fill.join().unwrap();
        discard.join().unwrap();
    });
    assert!(cached.try_read(0, &mut [0; BLOCK]).is_none(), "it is kept");
}

/// Bytes of the store that one thread writes: they are in two blocks.
const REGION: usize = 24;
const REGIONS: usize = 12;
const ROUNDS: u32 = 1_500;

/// The writes of a region that have begun, and those that have ended.
#[derive(Default)]
struct Progress {
    begun: AtomicU32,
    ended: AtomicU32,
}

#[test]
fn what_is_read_is_not_older_than_the_last_write_that_ended() {
    let store = Yielding::new(REGIONS * REGION);
    let cached = cached(&store, 4);
    let regions: Vec<Progress> = (0..REGIONS).map(|_| Progress::default()).collect();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = |first: usize| {
            for round in 1..=ROUNDS {
                let at = (round as usize * 7 + first) % REGIONS / 2 * 2 + first;
                let region = &regions[at];
                region.begun.store(round, Ordering::SeqCst);
                let bytes: Vec<u8> = round.to_ne_bytes().repeat(REGION / 4);
                let tried =
                    (round % 2 == 0).then(|| cached.try_write((at * REGION) as u64, &bytes));
                match tried.flatten() {
                    Some(written) => written.unwrap(),
                    None => cached.write((at * REGION) as u64, &bytes).unwrap(),
                }
                region.ended.store(round, Ordering::SeqCst);
            }
        };
        let reader = |first: usize| {
            let mut at = first;
            while !is_over.load(Ordering::SeqCst) {
                at = (at + 5) % REGIONS;
                let ended = regions[at].ended.load(Ordering::SeqCst);
                let mut bytes = [0; REGION];
                cached.read((at * REGION) as u64, &mut bytes).unwrap();
                let begun = regions[at].begun.load(Ordering::SeqCst);
                for word in bytes.chunks(4) {
                    let round = u32::from_ne_bytes(word.try_into().unwrap());
                    assert!((ended..=begun).contains(&round), "{ended} <= {round} <= {begun}");
                }
            }
        };
        let end_at_panic = EndAtDrop(&is_over);
        let readers: Vec<_> = (0..2).map(|first| scope.spawn(move || reader(first))).collect();
        let writers: Vec<_> = (0..2).map(|first| scope.spawn(move || writer(first))).collect();
        let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        drop(end_at_panic);
        results.into_iter().for_each(|result| result.unwrap());
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

/// Ends other threads with this one, so that a test fails and does not hang.
struct EndAtDrop<'a>(&'a AtomicBool);

impl Drop for EndAtDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn threads_that_write_the_same_bytes_leave_them_the_same_in_cache_and_store() {
    let store = Yielding::new(8 * BLOCK);
    let cached = cached(&store, 4);
    for round in 0..300_u32 {
        thread::scope(|scope| {
            for thread in 0..3_u32 {
                let cached = &cached;
                scope.spawn(move || {
                    let byte = (round * 3 + thread) as u8;
                    let (at, len) = match (round + thread) % 3 {
                        0 => (0, 2 * BLOCK),
                        1 => (BLOCK / 2, BLOCK),
                        _ => (BLOCK, 3 * BLOCK),
                    };
                    cached.write(at as u64, &vec![byte; len]).unwrap();
                    cached.read(0, &mut [0; 4 * BLOCK]).unwrap();
                });
            }
        });
        let mut bytes = [0; 4 * BLOCK];
        cached.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, lock(&store.bytes)[..4 * BLOCK], "round {round}");
    }
}

#[test]
fn what_is_discarded_is_not_read_again() {
    let store = Yielding::new(8 * BLOCK);
    let cached = cached(&store, 4);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = EndAtDrop(&is_over);
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    cached.read(0, &mut [0; 4 * BLOCK]).unwrap();
                }
            });
        }
        for round in 0..100_u32 {
            let mut bytes = [0; 3 * BLOCK];
            let written = [round as u8 | 1; 3 * BLOCK];
            cached.write(5, &written).unwrap();
            cached.read(5, &mut bytes).unwrap();
            assert_eq!(bytes, written);
            cached.discard(5..(5 + 3 * BLOCK) as u64).unwrap();
            cached.read(5, &mut bytes).unwrap();
            assert_eq!(bytes, [0; 3 * BLOCK]);
        }
    });
}
