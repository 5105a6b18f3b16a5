//! The state of a slot in shared memory, with the generation of its owner.
//!
//! Several processes may decide at the same time that a slot has no owner any more: the two ends of
//! a connection, and a sweeper, which looks for what killed processes have left behind. Every
//! transition is one compare-and-swap on a word that holds state *and* generation. So one of them
//! frees the slot, and no process frees a slot that has a new owner meanwhile.

use crate::atomic::{AtomicU64, Ordering};

/// The slot has no owner.
const FREE: u64 = 0;
/// The owner fills the slot; no other process knows it.
const PREPARED: u64 = 1;
/// The slot is in use.
const LIVE: u64 = 2;
/// One process cleans the slot up.
const RELEASING: u64 = 3;

const GENERATION_SHIFT: u32 = 32;

/// The word of a slot. It may have any value, because other processes write it.
#[derive(Clone, Copy, Debug)]
pub struct SlotState<'a>(&'a AtomicU64);

impl<'a> SlotState<'a> {
    /// The state in `word`. Zero is a free slot.
    #[must_use]
    pub fn on(word: &'a AtomicU64) -> Self {
        Self(word)
    }

    /// Begins the next generation, and returns it. Only the process that has reserved the slot (by
    /// its bit in a bitmap) calls this.
    #[must_use]
    pub fn prepare(self) -> u32 {
        let next = self.generation().wrapping_add(1);
        self.0.store(word(PREPARED, next), Ordering::Release);
        next
    }

    /// Puts a prepared slot into use: from here on others may find and free it.
    pub fn publish(self, generation: u32) {
        self.0.store(word(LIVE, generation), Ordering::Release);
    }

    /// The generation of a slot that is in use.
    #[must_use]
    pub fn live(self) -> Option<u32> {
        let word = self.0.load(Ordering::Acquire);
        (word & STATE_MASK == LIVE).then_some((word >> GENERATION_SHIFT) as u32)
    }

    /// Number of owners that the slot has had.
    #[inline]
    #[must_use]
    pub fn generation(self) -> u32 {
        (self.0.load(Ordering::Acquire) >> GENERATION_SHIFT) as u32
    }

    /// Begins to free the slot if it still has this generation. Returns `true` to one caller, which
    /// cleans the slot up and then calls [`SlotState::free`].
    #[must_use]
    pub fn release(self, generation: u32) -> bool {
        let to = word(RELEASING, generation);
        [LIVE, PREPARED].into_iter().any(|state| {
            let from = word(state, generation);
            self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    /// Ends what [`SlotState::release`] began, before the slot's bit is cleared.
    pub fn free(self, generation: u32) {
        self.0.store(word(FREE, generation), Ordering::Release);
    }
}

const STATE_MASK: u64 = (1 << GENERATION_SHIFT) - 1;

fn word(state: u64, generation: u32) -> u64 {
    u64::from(generation) << GENERATION_SHIFT | state
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn slot_is_freed_once_for_each_generation() {
        let word = AtomicU64::new(0);
        let slot = SlotState::on(&word);
        assert_eq!((slot.live(), slot.generation()), (None, 0));
        assert!(!slot.release(0), "a free slot");
        let first = slot.prepare();
        assert_eq!(slot.live(), None, "nobody else knows it yet");
        slot.publish(first);
        assert_eq!(slot.live(), Some(first));
        assert!(slot.release(first) && !slot.release(first));
        slot.free(first);
        let second = slot.prepare();
        slot.publish(second);
        assert!(!slot.release(first), "an owner of before");
        assert_eq!(slot.live(), Some(second));
    }

    #[test]
    fn unpublished_slot_can_be_released() {
        let word = AtomicU64::new(0);
        let slot = SlotState::on(&word);
        let generation = slot.prepare();
        assert!(slot.release(generation));
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// A slot, the bit that reserves it, and the number of threads that believe they own it.
    struct SlotModel {
        state: AtomicU64,
        bit: AtomicU64,
        owners: AtomicU64,
    }

    fn take(shared: &SlotModel) -> Option<u32> {
        let taken = shared.bit.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
        taken.ok()?;
        assert_eq!(shared.owners.fetch_add(1, Ordering::AcqRel), 0, "one owner at a time");
        let slot = SlotState::on(&shared.state);
        let generation = slot.prepare();
        slot.publish(generation);
        Some(generation)
    }

    fn free(shared: &SlotModel, generation: u32) {
        let slot = SlotState::on(&shared.state);
        if slot.release(generation) {
            shared.owners.fetch_sub(1, Ordering::AcqRel);
            slot.free(generation);
            shared.bit.store(0, Ordering::Release);
        }
    }

    /// Two sweepers free the slot of a dead process, while a third process takes the slot as soon
    /// as it is free, and must keep it.
    #[test]
    fn sweepers_never_free_a_later_owner() {
        loom::model(|| {
            let shared = Arc::new(SlotModel {
                state: AtomicU64::new(0),
                bit: AtomicU64::new(0),
                owners: AtomicU64::new(0),
            });
            let dead = take(&shared).expect("a free slot");
            let sweepers: Vec<_> = (0..2)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || free(&shared, dead))
                })
                .collect();
            let taken = take(&shared);
            sweepers.into_iter().for_each(|sweeper| sweeper.join().expect("no panic"));
            let owners = shared.owners.load(Ordering::Acquire);
            match taken {
                Some(generation) => {
                    assert_eq!(SlotState::on(&shared.state).live(), Some(generation));
                    assert_eq!((owners, shared.bit.load(Ordering::Acquire)), (1, 1));
                }
                None => assert_eq!((owners, shared.bit.load(Ordering::Acquire)), (0, 0)),
            }
        });
    }
}
