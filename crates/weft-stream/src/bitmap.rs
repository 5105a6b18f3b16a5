//! A bitmap of the slots of a file that are taken, in memory that processes share.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use weft_sys::SharedMemory;

const BITS: usize = u64::BITS as usize;

/// The bits of `slots` slots, a multiple of 64, from offset `at` on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bitmap<'a> {
    memory: &'a SharedMemory,
    at: usize,
    slots: usize,
}

impl<'a> Bitmap<'a> {
    pub(crate) fn new(memory: &'a SharedMemory, at: usize, slots: usize) -> Self {
        debug_assert!(slots.is_multiple_of(BITS));
        Self { memory, at, slots }
    }

    /// Takes the lowest free slot, whose memory is the most likely to be in the caches.
    pub(crate) fn take(self) -> Option<usize> {
        self.words().enumerate().find_map(|(index, word)| {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != u64::MAX {
                let bit = bits.trailing_ones();
                let more = bits | 1 << bit;
                match word.compare_exchange(bits, more, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => return Some(index * BITS + bit as usize),
                    Err(now) => bits = now,
                }
            }
            None
        })
    }

    /// Frees a slot. The process that takes it next sees everything that was done to the slot
    /// before.
    pub(crate) fn give(self, slot: usize) {
        fence(Ordering::SeqCst);
        let word = self.memory.word64(self.at + size_of::<u64>() * (slot / BITS));
        word.fetch_and(!(1 << (slot % BITS)), Ordering::AcqRel);
    }

    /// The slots that are taken. Each word is read when the iterator reaches it.
    pub(crate) fn taken(self) -> impl Iterator<Item = usize> + use<'a> {
        self.words().enumerate().flat_map(|(index, word)| {
            let bits = word.load(Ordering::Acquire);
            (0..BITS).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| index * BITS + bit)
        })
    }

    /// Number of slots that are taken.
    pub(crate) fn count(self) -> usize {
        self.words().map(|word| word.load(Ordering::Relaxed).count_ones() as usize).sum()
    }

    fn words(self) -> impl Iterator<Item = &'a AtomicU64> {
        let count = self.slots / BITS;
        (0..count).map(move |index| self.memory.word64(self.at + size_of::<u64>() * index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_free_slot_is_taken_once() {
        const SLOTS: usize = 128;
        let (memory, _fd) = SharedMemory::create(4_096).expect("memory");
        let bitmap = Bitmap::new(&memory, 64, SLOTS);
        assert!((0..SLOTS).all(|slot| bitmap.take() == Some(slot)));
        assert_eq!((bitmap.take(), bitmap.count()), (None, SLOTS));
        for slot in [100, 3] {
            bitmap.give(slot);
            assert!(!bitmap.taken().any(|taken| taken == slot));
        }
        assert_eq!(bitmap.count(), SLOTS - 2);
        assert_eq!([bitmap.take(), bitmap.take(), bitmap.take()], [Some(3), Some(100), None]);
    }
}
