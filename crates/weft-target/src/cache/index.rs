//! Which block of a unit is in which slot of a partition: a hash table, the free slots, and the
//! order in which slots were used. Nothing is allocated after the start.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;

use super::layout::Key;
use crate::limits::{BARRED_MAX, VICTIMS_MAX};

/// The place of a block in a partition.
pub(super) type Slot = u32;

/// No slot: the end of a list.
const NONE: Slot = Slot::MAX;

/// The slots of a partition.
#[derive(Debug)]
pub(super) struct Index {
    /// The first slot of each list of keys with the same hash. Their number is a power of two.
    heads: Box<[Slot]>,
    entries: Box<[Entry]>,
    /// Secret, so that initiators cannot choose blocks with the same hash.
    hasher: RandomState,
    free: Slot,
    newest: Slot,
    oldest: Slot,
    used: u32,
    /// Blocks that are being written without a slot, and by how many.
    barred: Vec<(Key, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// `None` if the slot is free.
    key: Option<Key>,
    /// The next slot with the same hash, or the next free one.
    next: Slot,
    newer: Slot,
    older: Slot,
}

impl Index {
    /// Returns an index of this many free slots.
    pub(super) fn new(slots: u32) -> Self {
        let heads = vec![NONE; slots.max(1).next_power_of_two() as usize].into_boxed_slice();
        let free = Entry { key: None, next: NONE, newer: NONE, older: NONE };
        let mut index = Self {
            heads,
            entries: vec![free; slots as usize].into_boxed_slice(),
            hasher: RandomState::new(),
            free: NONE,
            newest: NONE,
            oldest: NONE,
            used: 0,
            barred: Vec::with_capacity(BARRED_MAX),
        };
        (0..slots).rev().for_each(|slot| index.add_free(slot));
        index
    }

    /// The slot of a block.
    pub(super) fn find(&self, key: Key) -> Option<Slot> {
        let mut slot = self.heads[self.head(key)];
        while slot != NONE {
            let entry = self.entry(slot);
            if entry.key == Some(key) {
                return Some(slot);
            }
            slot = entry.next;
        }
        None
    }

    /// Slots that have a block.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// The block of a slot.
    pub(super) fn key(&self, slot: Slot) -> Option<Key> {
        self.entry(slot).key
    }

    /// Notes that a slot is used.
    pub(super) fn touch(&mut self, slot: Slot) {
        if self.newest != slot {
            self.unlink(slot);
            self.link_newest(slot);
        }
    }

    /// Slots for a new block, the best first: a free one, then those that were not used for the
    /// longest time.
    pub(super) fn candidates(&self) -> impl Iterator<Item = Slot> + '_ {
        let free = (self.free != NONE).then_some(self.free);
        let mut slot = self.oldest;
        let oldest = std::iter::from_fn(move || {
            let this = (slot != NONE).then_some(slot)?;
            slot = self.entry(this).newer;
            Some(this)
        });
        free.into_iter().chain(oldest).take(VICTIMS_MAX)
    }

    /// Gives a candidate to a block that has no slot. The block that it had has none afterwards.
    pub(super) fn assign(&mut self, slot: Slot, key: Key) {
        if self.entry(slot).key.is_some() {
            self.release(slot);
        }
        debug_assert_eq!(self.free, slot, "candidates are free, or become the first free one");
        self.free = self.entry(slot).next;
        self.used += 1;
        let head = self.head(key);
        let next = std::mem::replace(&mut self.heads[head], slot);
        *self.entry_mut(slot) = Entry { key: Some(key), next, newer: NONE, older: NONE };
        self.link_newest(slot);
    }

    /// Makes the slot of a block free.
    pub(super) fn release(&mut self, slot: Slot) {
        let Some(key) = self.entry(slot).key else { return };
        let next = self.entry(slot).next;
        let head = self.head(key);
        if self.heads[head] == slot {
            self.heads[head] = next;
        } else {
            let mut before = self.heads[head];
            while self.entry(before).next != slot {
                before = self.entry(before).next;
            }
            self.entry_mut(before).next = next;
        }
        self.unlink(slot);
        self.used -= 1;
        self.add_free(slot);
    }

    /// While a block is barred it gets no slot.
    pub(super) fn bar(&mut self, key: Key) {
        match self.barred.iter_mut().find(|(other, _)| *other == key) {
            Some((_, count)) => *count += 1,
            None => self.barred.push((key, 1)),
        }
    }

    /// The reverse of one `bar`.
    pub(super) fn unbar(&mut self, key: Key) {
        let Some(at) = self.barred.iter().position(|(other, _)| *other == key) else { return };
        self.barred[at].1 -= 1;
        if self.barred[at].1 == 0 {
            self.barred.swap_remove(at);
        }
    }

    /// Whether a block is barred.
    pub(super) fn is_barred(&self, key: Key) -> bool {
        self.barred.iter().any(|(other, _)| *other == key)
    }

    fn head(&self, key: Key) -> usize {
        self.hasher.hash_one(key) as usize & (self.heads.len() - 1)
    }

    fn entry(&self, slot: Slot) -> &Entry {
        &self.entries[slot as usize]
    }

    fn entry_mut(&mut self, slot: Slot) -> &mut Entry {
        &mut self.entries[slot as usize]
    }

    fn add_free(&mut self, slot: Slot) {
        let next = std::mem::replace(&mut self.free, slot);
        *self.entry_mut(slot) = Entry { key: None, next, newer: NONE, older: NONE };
    }

    fn unlink(&mut self, slot: Slot) {
        let Entry { newer, older, .. } = *self.entry(slot);
        match newer {
            NONE => self.newest = older,
            newer => self.entry_mut(newer).older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.entry_mut(older).newer = newer,
        }
    }

    fn link_newest(&mut self, slot: Slot) {
        let older = std::mem::replace(&mut self.newest, slot);
        let entry = self.entry_mut(slot);
        (entry.newer, entry.older) = (NONE, older);
        match older {
            NONE => self.oldest = slot,
            older => self.entry_mut(older).newer = slot,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SLOTS: usize = 5;

    #[derive(Clone, Debug)]
    enum Step {
        Use(u64),
        Insert { number: u64, candidate: usize },
        Release(u64),
        Bar(u64),
        Unbar(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let number = || 0..9_u64;
        prop_oneof![
            4 => number().prop_map(Step::Use),
            4 => (number(), 0..SLOTS)
                .prop_map(|(number, candidate)| Step::Insert { number, candidate }),
            1 => number().prop_map(Step::Release),
            1 => number().prop_map(Step::Bar),
            1 => number().prop_map(Step::Unbar),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// The index knows the same blocks as a list in the order of their use.
        #[test]
        fn index_is_like_a_list(steps in prop::collection::vec(step(), 1..200)) {
            let mut index = Index::new(SLOTS as u32);
            // The oldest first.
            let mut list: Vec<(u64, Slot)> = Vec::new();
            let mut barred = [0_u32; 9];
            let key = |number| Key { unit: 1, number };
            for step in steps {
                match step {
                    Step::Use(number) => {
                        if let Some(at) = list.iter().position(|(other, _)| *other == number) {
                            index.touch(list[at].1);
                            let used = list.remove(at);
                            list.push(used);
                        }
                    }
                    Step::Insert { number, candidate } => {
                        if list.iter().any(|(other, _)| *other == number) {
                            continue;
                        }
                        let candidates: Vec<Slot> = index.candidates().collect();
                        let has_free = list.len() < SLOTS;
                        let oldest = list.iter().map(|(_, slot)| *slot);
                        let expected: Vec<Slot> =
                            has_free.then(|| candidates[0]).into_iter().chain(oldest).collect();
                        prop_assert_eq!(&candidates, &expected);
                        let slot = candidates[candidate % candidates.len()];
                        index.assign(slot, key(number));
                        list.retain(|(_, other)| *other != slot);
                        list.push((number, slot));
                    }
                    Step::Release(number) => {
                        if let Some(slot) = index.find(key(number)) {
                            index.release(slot);
                        }
                        list.retain(|(other, _)| *other != number);
                    }
                    Step::Bar(number) => {
                        index.bar(key(number));
                        barred[number as usize] += 1;
                    }
                    Step::Unbar(number) => {
                        index.unbar(key(number));
                        barred[number as usize] = barred[number as usize].saturating_sub(1);
                    }
                }
                prop_assert_eq!(index.used(), list.len() as u32);
                for number in 0..9 {
                    let slot = list.iter().find(|(other, _)| *other == number);
                    prop_assert_eq!(index.find(key(number)), slot.map(|(_, slot)| *slot));
                    prop_assert_eq!(index.find(Key { unit: 2, number }), None);
                    prop_assert_eq!(index.is_barred(key(number)), barred[number as usize] > 0);
                }
            }
        }
    }
}
