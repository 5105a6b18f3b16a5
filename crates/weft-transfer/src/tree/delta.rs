//! What two versions of a file have in common. The sink describes the blocks of its version, and
//! the source finds them at any offset of its own version. A part of the file is then sent as
//! operations: ranges of the sink's version, and the bytes between them.
//!
//! Format of the operations: for a range, its length u32 with the highest bit set, and its offset
//! u64; for bytes, their number u32, and they follow.
//!
//! Digests of blocks are short: they only find candidates. The digest of the part decides.

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::AsFd;

use rustix::io::{Errno, pread};

use crate::limits::{
    DELTA_BLOCK_LEN_MAX, DELTA_BLOCK_LEN_MIN, DELTA_BLOCKS_MAX, DELTA_BLOCKS_WAITING_MAX,
    DELTA_FILTER_BITS_MAX, DELTA_READ_LEN,
};
use crate::wire::record_bytes::{Reader, Short};

/// Length of a block's description.
pub(crate) const BLOCK_LEN: usize = WEAK_LEN + 8;
/// Length of the head of an operation that has bytes.
pub(crate) const BYTES_HEAD_LEN: usize = 4;
/// Bytes of a rolling hash that are sent.
const WEAK_LEN: usize = 6;
/// The bit that distinguishes ranges from bytes.
const RANGE: u32 = 1 << 31;
/// The multiplier of the rolling hash (the golden ratio, odd).
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// The description of a version of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signature {
    /// Bytes of each block. What is behind the last whole block is not described.
    pub(crate) block_len: u32,
    /// The rolling hash and the digest of each block.
    pub(crate) blocks: Vec<(u64, u64)>,
}

/// Returns the length of the blocks of a file of this size.
fn block_len(size: u64) -> u32 {
    // The blocks that a change touches are sent, and all are described: the fewest bytes are where
    // both are about the same.
    let quarter = (size.isqrt() / 4).next_power_of_two();
    let least = (size / DELTA_BLOCKS_MAX as u64).next_power_of_two();
    let len = quarter.max(least).max(DELTA_BLOCK_LEN_MIN.into());
    u32::try_from(len).unwrap_or(u32::MAX).min(DELTA_BLOCK_LEN_MAX)
}

/// Whether blocks may have this length.
pub(crate) fn is_block_len(len: u32) -> bool {
    (DELTA_BLOCK_LEN_MIN..=DELTA_BLOCK_LEN_MAX).contains(&len) && len.is_power_of_two()
}

impl Signature {
    /// Describes the first `size` bytes of a file.
    ///
    /// # Errors
    /// Those of reading, and `NODATA` if the file is shorter.
    pub(crate) fn of_file(file: impl AsFd, size: u64) -> Result<Self, Errno> {
        let block_len = block_len(size);
        let whole = size / u64::from(block_len);
        let count = usize::try_from(whole).unwrap_or(usize::MAX).min(DELTA_BLOCKS_MAX);
        let (mut blocks, mut buffer) = (Vec::with_capacity(count), vec![0; DELTA_READ_LEN]);
        let mut at = 0;
        while blocks.len() < count {
            let most = (count - blocks.len()) * block_len as usize;
            let read = most.min(buffer.len());
            read_exact(&file, &mut buffer[..read], at)?;
            blocks.extend(buffer[..read].chunks_exact(block_len as usize).map(described));
            at += read as u64;
        }
        Ok(Self { block_len, blocks })
    }

    /// Returns the bytes that describe some of the blocks.
    pub(crate) fn bytes_of(blocks: &[(u64, u64)]) -> Vec<u8> {
        let mut out = Vec::with_capacity(blocks.len() * BLOCK_LEN);
        for (weak, strong) in blocks {
            out.extend_from_slice(&weak.to_be_bytes()[..WEAK_LEN]);
            out.extend_from_slice(&strong.to_be_bytes());
        }
        out
    }

    /// Parses a peer's descriptions of blocks.
    ///
    /// # Errors
    /// If the bytes end within one.
    pub(crate) fn parse_blocks(bytes: &[u8]) -> Result<Vec<(u64, u64)>, Short> {
        let (mut from, mut blocks) = (Reader::new(bytes), Vec::new());
        while from.left() > 0 {
            let mut weak = [0; 8];
            weak[..WEAK_LEN].copy_from_slice(from.bytes(WEAK_LEN)?);
            blocks.push((u64::from_be_bytes(weak), from.u64()?));
        }
        Ok(blocks)
    }
}

fn read_exact(file: impl AsFd, data: &mut [u8], offset: u64) -> Result<(), Errno> {
    let mut got = 0;
    while got < data.len() {
        match pread(&file, &mut data[got..], offset + got as u64) {
            Ok(0) => return Err(Errno::NODATA),
            Ok(read) => got += read,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn described(block: &[u8]) -> (u64, u64) {
    (sent(rolling(block)), digest(block))
}

/// Returns the rolling hash of some bytes: the sum of each byte times a power of the factor, modulo
/// 2^64.
fn rolling(bytes: &[u8]) -> u64 {
    let add = |hash: u64, byte: &u8| hash.wrapping_mul(FACTOR).wrapping_add(u64::from(*byte) + 1);
    bytes.iter().fold(0, add)
}

/// Returns the part of a rolling hash that is sent: its lowest bits depend on few bytes.
fn sent(hash: u64) -> u64 {
    hash & !(u64::MAX >> (8 * WEAK_LEN))
}

fn digest(block: &[u8]) -> u64 {
    u64::from_be_bytes(*blake3::hash(block).as_bytes().first_chunk().expect("32 bytes"))
}

/// The versions that a sink has of the files that were offered to it, as it describes them. They
/// take bounded memory, whatever it sends.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    /// Without blocks if there is no room for them.
    files: HashMap<u64, Signature>,
    blocks: usize,
}

impl Versions {
    /// Adds blocks of a file. Returns false if they are impossible.
    pub(crate) fn add(&mut self, file: u64, block_len: u32, blocks: &[(u64, u64)]) -> bool {
        if !is_block_len(block_len) || blocks.is_empty() {
            return false;
        }
        let is_first = !self.files.contains_key(&file);
        let version =
            self.files.entry(file).or_insert_with(|| Signature { block_len, blocks: Vec::new() });
        if version.block_len != block_len || version.blocks.len() + blocks.len() > DELTA_BLOCKS_MAX
        {
            return false;
        }
        if self.blocks + blocks.len() > DELTA_BLOCKS_WAITING_MAX {
            self.blocks -= version.blocks.len();
            version.blocks = Vec::new();
        } else if is_first || !version.blocks.is_empty() {
            version.blocks.extend_from_slice(blocks);
            self.blocks += blocks.len();
        }
        true
    }

    /// Removes the version of a file, and returns it if it is whole.
    pub(crate) fn take(&mut self, file: u64) -> Option<Signature> {
        let version = self.files.remove(&file)?;
        self.blocks -= version.blocks.len();
        (!version.blocks.is_empty()).then_some(version)
    }
}

/// The blocks of another version of a file, by their hashes.
#[derive(Debug)]
pub(crate) struct Index {
    block_len: usize,
    /// What the byte that leaves a block has been multiplied by.
    leaving: u64,
    /// Whether some block has a hash with these highest bits.
    filter: Box<[u64]>,
    filter_bits: u32,
    by_hash: HashMap<u64, u32>,
    digests: Box<[u64]>,
}

impl Index {
    pub(crate) fn new(signature: &Signature) -> Self {
        let block_len = signature.block_len as usize;
        let leaving = FACTOR.wrapping_pow(signature.block_len - 1);
        // A thirty-second of the hashes of other bytes pass it.
        let bits = (32 * signature.blocks.len()).next_power_of_two().ilog2();
        let filter_bits = bits.clamp(10, DELTA_FILTER_BITS_MAX);
        let mut filter = vec![0; 1 << (filter_bits - 6)].into_boxed_slice();
        let mut by_hash = HashMap::with_capacity(signature.blocks.len());
        for ((weak, _), number) in signature.blocks.iter().zip(0_u32..) {
            let bit = weak >> (64 - filter_bits);
            filter[(bit / 64) as usize] |= 1 << (bit % 64);
            // Of several blocks with one hash the first one is found.
            by_hash.entry(*weak).or_insert(number);
        }
        let digests = signature.blocks.iter().map(|(_, strong)| *strong).collect();
        Self { block_len, leaving, filter, filter_bits, by_hash, digests }
    }

    /// How many bytes before and behind a part help to find blocks that begin or end there.
    pub(crate) fn margin(&self) -> usize {
        self.block_len
    }

    fn candidate(&self, hash: u64) -> Option<u32> {
        let bit = hash >> (64 - self.filter_bits);
        if self.filter[(bit / 64) as usize] & 1 << (bit % 64) == 0 {
            return None;
        }
        self.by_hash.get(&sent(hash)).copied()
    }

    /// Appends the operations for a part of some bytes to `out`. They are at most
    /// [`BYTES_HEAD_LEN`] longer than the part.
    pub(crate) fn encode(&self, bytes: &[u8], part: Range<usize>, out: &mut Vec<u8>) {
        let begin = out.len();
        let mut done = part.start;
        let mut pending: Option<(u64, u32)> = None;
        for (at, number) in self.found(bytes) {
            // A block may begin before the part or end behind it.
            let (start, end) = (at.max(done), (at + self.block_len).min(part.end));
            if start >= end {
                continue;
            }
            let offset = u64::from(number) * self.block_len as u64 + (start - at) as u64;
            let len = (end - start) as u32;
            if start > done {
                push_range(out, pending.take());
                push_bytes(out, &bytes[done..start]);
            }
            pending = match pending {
                Some((from, before)) if from + u64::from(before) == offset => {
                    Some((from, before + len))
                }
                before => {
                    push_range(out, before);
                    Some((offset, len))
                }
            };
            done = end;
        }
        push_range(out, pending);
        push_bytes(out, &bytes[done..part.end]);
        if out.len() - begin > part.len() + BYTES_HEAD_LEN {
            out.truncate(begin);
            push_bytes(out, &bytes[part]);
        }
    }

    /// Returns where some bytes have blocks, and their numbers, in order and without overlaps.
    fn found(&self, bytes: &[u8]) -> Vec<(usize, u32)> {
        let len = self.block_len;
        let mut found: Vec<(usize, u32)> = Vec::new();
        // A peer can choose hashes that lead nowhere; comparisons are bounded.
        let mut budget = 4 * bytes.len();
        let (mut at, mut next, mut hash) = (0, None::<u32>, None);
        while at + len <= bytes.len() {
            let block = &bytes[at..at + len];
            // Behind a block most often comes the next one.
            if let Some(number) = next.take()
                && self.digests.get(number as usize) == Some(&digest(block))
            {
                found.push((at, number));
                (at, next) = (at + len, number.checked_add(1));
                continue;
            }
            let now = hash.take().unwrap_or_else(|| rolling(block));
            if let Some(number) = self.candidate(now)
                && budget >= len
            {
                if self.digests[number as usize] == digest(block) {
                    found.push((at, number));
                    (at, next) = (at + len, number.checked_add(1));
                    continue;
                }
                budget -= len;
            }
            let Some(&entering) = bytes.get(at + len) else { break };
            let left = (u64::from(bytes[at]) + 1).wrapping_mul(self.leaving);
            let rest = now.wrapping_sub(left).wrapping_mul(FACTOR);
            hash = Some(rest.wrapping_add(u64::from(entering) + 1));
            at += 1;
        }
        found
    }
}

fn push_range(out: &mut Vec<u8>, range: Option<(u64, u32)>) {
    if let Some((offset, len)) = range {
        out.extend_from_slice(&(len | RANGE).to_be_bytes());
        out.extend_from_slice(&offset.to_be_bytes());
    }
}

fn push_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    if !bytes.is_empty() {
        out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
        out.extend_from_slice(bytes);
    }
}

/// Carries out a peer's operations, with another version of the file. They make all of `out`.
///
/// # Errors
/// `BADMSG` if they are invalid, `NODATA` if the version is shorter, and those of reading.
pub(crate) fn decode(operations: &[u8], version: impl AsFd, out: &mut [u8]) -> Result<(), Errno> {
    let (mut from, mut done) = (Reader::new(operations), 0);
    let bad = |_: Short| Errno::BADMSG;
    while from.left() > 0 {
        let head = from.u32().map_err(bad)?;
        let len = (head & !RANGE) as usize;
        let to = out.get_mut(done..).and_then(|rest| rest.get_mut(..len));
        let to = to.filter(|_| len > 0).ok_or(Errno::BADMSG)?;
        if head & RANGE == 0 {
            to.copy_from_slice(from.bytes(len).map_err(bad)?);
        } else {
            let offset = from.u64().map_err(bad)?;
            let is_possible =
                i64::try_from(offset).is_ok_and(|it| it < i64::MAX - i64::from(RANGE));
            if !is_possible {
                return Err(Errno::BADMSG);
            }
            read_exact(&version, to, offset)?;
        }
        done += len;
    }
    if done == out.len() { Ok(()) } else { Err(Errno::BADMSG) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;
    use proptest::prelude::*;
    use std::fs::File;
    use std::io::Write as _;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().expect("room");
        file.write_all(bytes).expect("room");
        file
    }

    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        Rng::with_seed(seed).fill(&mut bytes);
        bytes
    }

    /// Sends a version in parts of this length. Returns the bytes of all operations.
    fn transfer(old: &[u8], new: &[u8], part_len: usize) -> usize {
        let version = file(old);
        let signature = Signature::of_file(&version, old.len() as u64).expect("a file");
        let bytes = Signature::bytes_of(&signature.blocks);
        assert_eq!(Signature::parse_blocks(&bytes).expect("whole"), signature.blocks);
        let index = Index::new(&signature);
        let mut sent = 0;
        for start in (0..new.len()).step_by(part_len) {
            let end = (start + part_len).min(new.len());
            let window =
                start.saturating_sub(index.margin())..(end + index.margin()).min(new.len());
            let (mut operations, mut got) = (Vec::new(), vec![0; end - start]);
            let part = start - window.start..end - window.start;
            index.encode(&new[window], part, &mut operations);
            assert!(operations.len() <= end - start + BYTES_HEAD_LEN);
            decode(&operations, &version, &mut got).expect("our own");
            assert!(got == new[start..end], "a part at {start} of {}", new.len());
            sent += operations.len();
        }
        sent
    }

    #[test]
    fn only_what_has_changed_is_sent() {
        let old = noise(1, 3_000_000);
        let with = |at: usize, removed: usize, added: &[u8]| {
            [&old[..at], added, &old[at + removed..]].concat()
        };
        for (new, most) in [
            (old.clone(), 20_000),
            (with(1_500_000, 0, b"x"), 40_000),
            (with(0, 0, b"in front of it"), 40_000),
            (with(7, 1_000_001, b""), 40_000),
            (with(2_999_999, 1, b"at the end"), 40_000),
            (with(1_000_000, 50_000, &noise(2, 50_000)), 90_000),
            ([&old[1_000_000..], &old[..1_000_000]].concat(), 40_000),
            (old[..100_000].to_vec(), 10_000),
            (noise(3, 200_000), 210_000),
            (Vec::new(), 0),
        ] {
            let sent = transfer(&old, &new, 1 << 19);
            assert!(sent <= most, "{sent} bytes of {}, at most {most}", new.len());
        }
    }

    #[test]
    fn blocks_have_possible_lengths() {
        for size in [1, 1 << 20, 1 << 30, 1 << 40, 1 << 50, u64::MAX] {
            let len = block_len(size);
            assert!(is_block_len(len), "{size}: {len}");
        }
        assert_eq!(block_len(1 << 30), 8 << 10);
        for wrong in [0, 1, 4_095, 4_097, 6_000, 1 << 21, u32::MAX] {
            assert!(!is_block_len(wrong), "{wrong}");
        }
    }

    #[test]
    fn hashes_that_lead_nowhere_cost_bounded_time() {
        // All blocks of zeros have this hash, and another digest.
        let zeros = vec![0; 1 << 20];
        let weak = sent(rolling(&zeros[..1 << 20]));
        let blocks = vec![(weak, 7); DELTA_BLOCKS_MAX];
        let signature = Signature { block_len: DELTA_BLOCK_LEN_MAX, blocks };
        let index = Index::new(&signature);
        let bytes = vec![0; 3 << 20];
        assert_eq!(index.found(&bytes), []);
        let mut out = Vec::new();
        index.encode(&bytes, 0..bytes.len(), &mut out);
        assert_eq!(out.len(), bytes.len() + BYTES_HEAD_LEN);
    }

    #[test]
    fn versions_that_a_peer_describes_take_bounded_memory() {
        let mut versions = Versions::default();
        let (len, some) = (DELTA_BLOCK_LEN_MIN, vec![(1, 2); DELTA_BLOCKS_MAX]);
        assert!(!versions.add(1, len + 1, &some) && !versions.add(1, len, &[]));
        assert!(versions.add(1, len, &some[..7]));
        assert!(!versions.add(1, 2 * len, &some[..1]) && !versions.add(1, len, &some));
        assert_eq!(versions.take(1).map(|it| it.blocks.len()), Some(7));
        assert_eq!(versions.take(1), None);
        let most = (DELTA_BLOCKS_WAITING_MAX / DELTA_BLOCKS_MAX) as u64;
        for file in 0..most {
            assert!(versions.add(file, len, &some));
        }
        // There is no room, now and when there would be room for the rest.
        assert!(versions.add(most, len, &some[..9]));
        assert!(versions.take(0).is_some());
        assert!(versions.add(most, len, &some[..9]));
        assert_eq!(versions.take(most), None);
        assert!(versions.add(most, len, &some[..9]) && versions.take(most).is_some());
    }

    #[test]
    fn operations_of_a_peer_are_checked() {
        let version = file(&[7; 100]);
        let range = |len: u32, offset: u64| {
            [&(len | RANGE).to_be_bytes()[..], &offset.to_be_bytes()].concat()
        };
        let bytes = |len: u32, bytes: &[u8]| [&len.to_be_bytes()[..], bytes].concat();
        let run = |operations: &[u8]| {
            let mut out = [0; 10];
            decode(operations, &version, &mut out).map(|()| out)
        };
        assert_eq!(run(&range(10, 90)), Ok([7; 10]));
        assert_eq!(
            run(&[range(4, 0), bytes(6, &[1; 6])].concat()),
            Ok([7, 7, 7, 7, 1, 1, 1, 1, 1, 1])
        );
        for (operations, error) in [
            (Vec::new(), Errno::BADMSG),
            (range(9, 0), Errno::BADMSG),
            (range(11, 0), Errno::BADMSG),
            (range(0, 0), Errno::BADMSG),
            (bytes(0, b""), Errno::BADMSG),
            (bytes(10, &[1; 9]), Errno::BADMSG),
            (bytes(u32::MAX >> 1, &[1; 10]), Errno::BADMSG),
            ([range(10, 0), range(1, 0)].concat(), Errno::BADMSG),
            (range(10, 0)[..11].to_vec(), Errno::BADMSG),
            (range(10, 91), Errno::NODATA),
            (range(10, 1 << 40), Errno::NODATA),
            (range(10, u64::MAX), Errno::BADMSG),
            (range(10, i64::MAX as u64), Errno::BADMSG),
        ] {
            assert_eq!(run(&operations), Err(error), "{operations:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_changes_give_the_new_version(
            seed in any::<u64>(),
            len in 0_usize..400_000,
            // Few different bytes make many equal blocks.
            values in 1_u8..4,
            changes in prop::collection::vec(
                (any::<prop::sample::Index>(), 0_usize..9_000, 0_usize..9_000),
                0..12,
            ),
            part_len in 1_usize..200,
        ) {
            let mut rng = Rng::with_seed(seed);
            let is_noise = rng.bool();
            let mut byte = || if is_noise { rng.u8(..) } else { rng.u8(..values) };
            let old: Vec<u8> = (0..len).map(|_| byte()).collect();
            let mut new = old.clone();
            for (at, removed, added) in changes {
                let at = at.index(new.len() + 1);
                let end = (at + removed).min(new.len());
                let added: Vec<u8> = (0..added).map(|_| byte()).collect();
                new.splice(at..end, added);
            }
            transfer(&old, &new, part_len * 1_024);
        }

        #[test]
        fn arbitrary_operations_never_panic(
            operations in prop::collection::vec(any::<u8>(), 0..60),
            len in 0_usize..100,
        ) {
            let mut out = vec![0; len];
            let _ = decode(&operations, file(&[1; 50]), &mut out);
            let _ = Signature::parse_blocks(&operations);
        }
    }
}
