//! What is complete is safe: a store that forgets what was not flushed, as a disk does that loses
//! power.

use std::io;
use std::ops::Range;
use std::sync::Mutex;

use super::aborts::{initiator, whole};
use super::*;
use crate::cache::{Cache, Layout, Topology};
use crate::store::{Cached, Extent, Store};

const BLOCK: usize = 512;
const BLOCKS: usize = 32;

/// Memory that keeps only what was flushed when the power fails.
#[derive(Clone, Debug)]
struct Volatile {
    now: Arc<Mutex<Vec<u8>>>,
    safe: Arc<Mutex<Vec<u8>>>,
}

impl Volatile {
    fn new() -> Self {
        let zeros = || Arc::new(Mutex::new(vec![0; BLOCKS * BLOCK]));
        Self { now: zeros(), safe: zeros() }
    }
}

impl Store for Volatile {
    fn len(&self) -> u64 {
        (BLOCKS * BLOCK) as u64
    }

    fn medium_len(&self) -> io::Result<u64> {
        Ok(self.len())
    }

    fn resize(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        buffer.copy_from_slice(&self.now.lock().unwrap()[offset as usize..][..buffer.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.now.lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.safe.lock().unwrap().copy_from_slice(&self.now.lock().unwrap());
        Ok(())
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        self.now.lock().unwrap()[range.start as usize..range.end as usize].fill(0);
        Ok(())
    }

    fn extent(&self, _offset: u64) -> io::Result<(Extent, u64)> {
        Ok((Extent::Mapped, self.len()))
    }

    fn is_thin(&self) -> bool {
        true
    }
}

/// A cache that has place for half of the blocks, two of which are one of its own.
fn small_cache() -> Arc<Cache> {
    let layout = Layout { block_len: 2 * BLOCK, group: 2, partitions_per_node: 2, nodes: 1 };
    Arc::new(Cache::with_layout(Topology::of_one_node(), layout, 4).unwrap())
}

/// A change of a range of blocks, or of what makes changes safe.
#[derive(Clone, Debug)]
enum Change {
    Write { force: bool },
    WriteAndVerify,
    WriteSame,
    CompareAndWrite { force: bool },
    OrWrite { force: bool },
    Unmap,
    Flush,
    CachingMode { write_back: bool },
}

fn change() -> impl Strategy<Value = (Change, usize, usize)> {
    let force = || any::<bool>();
    let change = prop_oneof![
        4 => force().prop_map(|force| Change::Write { force }),
        1 => Just(Change::WriteAndVerify),
        1 => Just(Change::WriteSame),
        1 => force().prop_map(|force| Change::CompareAndWrite { force }),
        1 => force().prop_map(|force| Change::OrWrite { force }),
        1 => Just(Change::Unmap),
        1 => Just(Change::Flush),
        1 => any::<bool>().prop_map(|write_back| Change::CachingMode { write_back }),
    ];
    (change, 0..BLOCKS - 4, 1_usize..=4)
}

/// The unit, and what each block may have after a loss of power: the last value is the one that is
/// read now.
struct Disk {
    client: Client,
    blocks: Vec<Vec<u8>>,
    write_back: bool,
    number: u8,
}

impl Disk {
    fn new(store: &Volatile, write_back: bool, is_cached: bool) -> Self {
        let options = Options { write_back, ..Options::default() };
        let store: Box<dyn Store> = match is_cached {
            true => Box::new(Cached::new(Box::new(store.clone()), small_cache()).unwrap()),
            false => Box::new(store.clone()),
        };
        let unit = Unit::new("volatile".into(), options, store);
        let device = Device::new(NAME.into(), BTreeMap::from([(0, Arc::new(unit))]));
        let target = Target::new(Arc::new(device), Access::default());
        let portal = Arc::new(Portal::new(vec![target], Access::default(), Random(fill)));
        let client = initiator(&portal, "one");
        Self { client, blocks: vec![vec![0]; BLOCKS], write_back, number: 0 }
    }

    /// Sends a command with data. It must succeed.
    fn send(&mut self, cdb: &[u8], data: &[u8]) {
        assert_eq!(self.client.write(cdb, data, &whole(data.len())), 0, "{cdb:?}");
    }

    /// Changes blocks, each of which has the same byte throughout.
    fn run(&mut self, change: &Change, first: usize, count: usize) {
        self.number = self.number.wrapping_add(1);
        let (number, range) = (self.number, first..first + count);
        let now = |disk: &Self, block: usize| *disk.blocks[block].last().unwrap();
        let long = |opcode: u8, force: bool| {
            let mut cdb = [0; 16];
            (cdb[0], cdb[1], cdb[9], cdb[13]) =
                (opcode, u8::from(force) << 3, first as u8, count as u8);
            cdb
        };
        let short = |opcode: u8, flags: u8| {
            let mut cdb = write10(first, count);
            (cdb[0], cdb[1]) = (opcode, flags);
            cdb
        };
        let data = vec![number; count * BLOCK];
        // What becomes of a block that has this value.
        let mut new: fn(u8, u8) -> u8 = |_, number| number;
        let mut is_forced = false;
        match *change {
            Change::Write { force } => {
                is_forced = force;
                self.send(&short(0x2a, u8::from(force) << 3), &data);
            }
            Change::WriteAndVerify => {
                is_forced = true;
                self.send(&short(0x2e, 0), &data);
            }
            Change::WriteSame => self.send(&short(0x41, 0), &data[..BLOCK]),
            Change::CompareAndWrite { force } => {
                is_forced = force;
                let expected = range.clone().flat_map(|block| [now(self, block); BLOCK]);
                let both: Vec<u8> = expected.chain(data).collect();
                self.send(&long(0x89, force), &both);
            }
            Change::OrWrite { force } => {
                is_forced = force;
                self.send(&long(0x8b, force), &data);
                new = |before, number| before | number;
            }
            Change::Unmap => {
                let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
                list.extend((first as u64).to_be_bytes());
                list.extend((count as u32).to_be_bytes());
                list.extend([0; 4]);
                self.send(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list);
                new = |_, _| 0;
            }
            Change::Flush => {
                assert_eq!(self.client.read(&short(0x35, 0), 0).0, 0);
                return self.all_is_safe();
            }
            Change::CachingMode { write_back } => {
                let mut list = vec![0; 4 + 20];
                (list[4], list[5], list[6]) = (0x08, 18, u8::from(write_back) << 2);
                self.send(&[0x15, 0x10, 0, 0, 24, 0], &list);
                if self.write_back && !write_back {
                    self.all_is_safe();
                }
                self.write_back = write_back;
                return;
            }
        }
        for block in range {
            let new = new(now(self, block), number);
            if is_forced || !self.write_back {
                self.blocks[block].clear();
            }
            self.blocks[block].push(new);
        }
    }

    /// The first byte of each block, as initiators read it.
    fn read(&mut self) -> Vec<u8> {
        let mut cdb = write10(0, BLOCKS);
        cdb[0] = 0x28;
        let (status, bytes) = self.client.read(&cdb, (BLOCKS * BLOCK) as u32);
        assert_eq!(status, 0);
        bytes.iter().copied().step_by(BLOCK).collect()
    }

    fn all_is_safe(&mut self) {
        self.blocks.iter_mut().for_each(|values| drop(values.drain(..values.len() - 1)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// After a loss of power each block has the last value that was to be safe, or a later one. A
    /// cache changes nothing of that, nor of what is read.
    #[test]
    fn a_change_that_was_to_be_safe_survives_a_loss_of_power(
        changes in prop::collection::vec(change(), 1..40),
        write_back in any::<bool>(),
        is_cached in any::<bool>(),
    ) {
        let store = Volatile::new();
        let mut disk = Disk::new(&store, write_back, is_cached);
        for (change, first, count) in changes {
            disk.run(&change, first, count);
            let last: Vec<u8> =
                disk.blocks.iter().filter_map(|values| values.last().copied()).collect();
            prop_assert_eq!(disk.read(), last);
            let safe = store.safe.lock().unwrap();
            let now = store.now.lock().unwrap();
            for (block, values) in disk.blocks.iter().enumerate() {
                let of = |image: &[u8]| image[block * BLOCK];
                prop_assert!(values.contains(&of(&safe)), "block {}: {:?}", block, values);
                prop_assert_eq!(values.last(), Some(&of(&now)));
            }
        }
    }
}
