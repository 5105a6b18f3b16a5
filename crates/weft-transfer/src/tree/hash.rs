//! BLAKE3 of files whose parts are hashed separately and in any order.
//!
//! BLAKE3 is a tree over chunks of 1 KiB. A part of a file is split into whole subtrees, whose
//! values do not depend on the rest. The values of all parts together give the hash of the file.
//! The digest of a part, which is sent with its data, is the BLAKE3 of its subtrees' values.

use std::collections::BTreeMap;

use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, left_subtree_len, max_subtree_len, merge_subtrees_non_root,
    merge_subtrees_root,
};
use blake3::{CHUNK_LEN, Hasher};

/// The longest subtree before merging. So a longer file never consists of a single subtree.
const SUBTREE_LEN: u64 = 64 << 10;

/// The value of a node of BLAKE3's tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subtree {
    /// The number of bytes that it covers.
    pub len: u64,
    /// Its chaining value.
    pub value: ChainingValue,
}

/// The known subtrees of a file, by their offsets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subtrees {
    known: BTreeMap<u64, Subtree>,
}

/// Returns the digest of a part of a file that begins at `offset`, and its subtrees.
///
/// # Panics
/// If the offset is not a multiple of the chunk length.
#[must_use]
pub fn of_part(offset: u64, data: &[u8]) -> ([u8; 32], Subtrees) {
    assert!(offset.is_multiple_of(CHUNK_LEN as u64));
    let (mut subtrees, mut digest) = (Subtrees::default(), Hasher::new());
    let (mut at, mut rest) = (offset, data);
    while !rest.is_empty() {
        let max = max_subtree_len(at).unwrap_or(SUBTREE_LEN).min(SUBTREE_LEN);
        let left = rest.len() as u64;
        // Every subtree but the one at the end of the file has a power of two of bytes.
        let whole = if left < CHUNK_LEN as u64 { left } else { 1 << left.ilog2() };
        let len = max.min(whole).min(left);
        let (part, behind) = rest.split_at(len as usize);
        let value = Hasher::new().set_input_offset(at).update(part).finalize_non_root();
        digest.update(&value);
        subtrees.add(at, Subtree { len, value });
        (at, rest) = (at + len, behind);
    }
    (digest.finalize().into(), subtrees)
}

/// What is known about the bytes of a part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// The value of a subtree.
    Subtree(ChainingValue),
    /// BLAKE3 of the bytes.
    Digest([u8; 32]),
    /// They are zeros.
    Zeros,
}

impl Known {
    /// What a subtree at this offset says.
    pub(crate) fn subtree(offset: u64, subtree: Subtree) -> Self {
        debug_assert!(max_subtree_len(offset).is_none_or(|max| subtree.len <= max));
        Self::Subtree(subtree.value)
    }

    /// Returns the hasher of the part, which begins at this offset.
    pub(crate) fn hasher(&self, offset: u64) -> PartHasher {
        let mut hasher = Hasher::new();
        if matches!(self, Self::Subtree(_)) {
            hasher.set_input_offset(offset);
        }
        PartHasher { hasher, is_zeros: *self == Self::Zeros }
    }
}

/// Hashes a part of a file to compare it with what is known.
pub(crate) struct PartHasher {
    hasher: Hasher,
    is_zeros: bool,
}

impl PartHasher {
    /// Adds bytes. Returns false if they have to be zeros, and are not.
    pub(crate) fn update(&mut self, bytes: &[u8]) -> bool {
        if self.is_zeros {
            return bytes.iter().all(|&byte| byte == 0);
        }
        self.hasher.update(bytes);
        true
    }

    /// Whether the hash of the bytes is as known.
    pub(crate) fn is_as(&self, known: &Known) -> bool {
        match known {
            Known::Subtree(value) => self.hasher.finalize_non_root() == *value,
            Known::Digest(digest) => self.hasher.finalize() == *digest,
            Known::Zeros => true,
        }
    }
}

impl Subtrees {
    /// Adds a subtree, and merges it with its siblings.
    pub fn add(&mut self, offset: u64, subtree: Subtree) {
        let (mut offset, mut subtree) = (offset, subtree);
        loop {
            let len = subtree.len;
            let is_whole = len.is_power_of_two() && len >= CHUNK_LEN as u64;
            // Subtrees whose parent begins at offset 0 are not merged here, because the last merge
            // must compute the root.
            let parent = offset & !len;
            if !is_whole || parent == 0 {
                break;
            }
            let sibling = offset ^ len;
            match self.known.get(&sibling) {
                Some(found) if found.len == len => {}
                _ => break,
            }
            let Some(found) = self.known.remove(&sibling) else { break };
            let (left, right) = if sibling < offset { (found, subtree) } else { (subtree, found) };
            let value = merge_subtrees_non_root(&left.value, &right.value, Mode::Hash);
            (offset, subtree) = (parent, Subtree { len: 2 * len, value });
        }
        self.known.insert(offset, subtree);
    }

    /// Adds all subtrees of another set.
    pub fn add_all(&mut self, other: &Self) {
        for (&offset, &subtree) in &other.known {
            self.add(offset, subtree);
        }
    }

    /// Iterates over the subtrees with their offsets.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u64, Subtree)> {
        self.known.iter().map(|(&offset, &subtree)| (offset, subtree))
    }

    /// Returns BLAKE3 of the file, if all of it is known and it has more than one subtree.
    #[must_use]
    pub fn root(&self, size: u64) -> Option<[u8; 32]> {
        if size <= CHUNK_LEN as u64 {
            return None;
        }
        let left = left_subtree_len(size);
        let (one, other) = (self.value(0, left)?, self.value(left, size - left)?);
        Some(merge_subtrees_root(&one, &other, Mode::Hash).into())
    }

    fn value(&self, offset: u64, len: u64) -> Option<ChainingValue> {
        match self.known.get(&offset) {
            Some(found) if found.len == len => return Some(found.value),
            _ if len <= CHUNK_LEN as u64 => return None,
            _ => {}
        }
        let left = left_subtree_len(len);
        let one = self.value(offset, left)?;
        let other = self.value(offset + left, len - left)?;
        Some(merge_subtrees_non_root(&one, &other, Mode::Hash))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Subtrees, of_part};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn parts_in_any_order_give_the_hash_of_the_file(
            size in 70_000_usize..600_000,
            part in 1_usize..200,
            seed: u64,
        ) {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut data = vec![0; size];
            rng.fill(&mut data);
            let mut parts: Vec<usize> = (0..size).step_by(part * 1024).collect();
            rng.shuffle(&mut parts);
            let mut subtrees = Subtrees::default();
            for &at in &parts {
                prop_assert_eq!(subtrees.root(size as u64), None);
                let end = size.min(at + part * 1024);
                subtrees.add_all(&of_part(at as u64, &data[at..end]).1);
            }
            let root = subtrees.root(size as u64);
            prop_assert_eq!(root, Some(blake3::hash(&data).into()));
        }
    }

    #[test]
    fn a_file_with_a_power_of_two_bytes_has_a_root() {
        let data = vec![7; 1 << 20];
        let mut subtrees = Subtrees::default();
        for at in (0..1 << 20).step_by(1 << 18) {
            subtrees.add_all(&of_part(at as u64, &data[at..at + (1 << 18)]).1);
        }
        assert_eq!(subtrees.root(1 << 20), Some(blake3::hash(&data).into()));
        assert!(subtrees.iter().len() <= 5);
    }

    #[test]
    fn the_digest_of_a_part_depends_on_all_of_it() {
        let data = vec![1; 100_000];
        let (digest, _) = of_part(0, &data);
        assert_ne!(of_part(1024, &data).0, digest);
        for at in [0, 1024, 65_536, 99_999] {
            let mut other = data.clone();
            other[at] ^= 1;
            assert_ne!(of_part(0, &other).0, digest);
        }
    }
}
