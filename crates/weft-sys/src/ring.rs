//! A ring of slots in shared memory, with one process that fills them and one that empties them.
//!
//! A slot is 128 bytes: two cache lines, which the CPU fetches together. Its first word contains
//! the lap of the ring that filled it. So the consumer finds a message by reading the line that
//! holds it, and the producer publishes it by one store: a small message costs one transfer of one
//! line. The consumer publishes a count of emptied slots in a line of its own, which the producer
//! reads only when the ring seems full.
//!
//! Neither side trusts what the other has written: an unexpected lap is not a message, and an
//! impossible count is an error. Bodies are copied out before they are inspected.

#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;

use crate::atomic::{AtomicU32, Ordering};

/// Length of a slot in bytes.
pub const SLOT_LEN: usize = 128;
/// Number of bytes of a slot that carry a message.
pub const SLOT_BODY_LEN: usize = SLOT_LEN - TAG_LEN;
/// A buffer for the message of a slot, which may be shorter.
pub type SlotBody = [u8; SLOT_BODY_LEN];

/// How many slots ahead a producer prefetches the lines that it will write.
const AHEAD: u32 = 8;

const TAG_LEN: usize = size_of::<u64>();
/// Number of bytes of a message that share a line with the tag.
#[cfg(not(loom))]
const FIRST_LINE_LEN: usize = SLOT_LEN / 2 - TAG_LEN;

/// The memory of a ring.
pub trait Slots {
    /// Number of slots, a power of two.
    fn count(&self) -> u32;
    /// The tag of a slot, with acquire ordering.
    fn tag(&self, slot: u32) -> u64;
    /// Sets the tag of a slot, with release ordering.
    fn set_tag(&self, slot: u32, tag: u64);
    /// Fills at least `len` bytes of `body` from the start of a slot's body.
    fn read(&self, slot: u32, len: usize, body: &mut SlotBody);
    /// Copies at least `len` bytes of `body` to the start of a slot's body.
    fn write(&self, slot: u32, len: usize, body: &SlotBody);
    /// Tells that a slot will soon be filled, so that its lines can be prefetched from the other
    /// core.
    fn prepare(&self, _slot: u32) {}
    /// Number of slots that the consumer has emptied since the start, with acquire ordering.
    fn emptied(&self) -> u32;
    /// Publishes that number, with release ordering.
    fn set_emptied(&self, count: u32);
}

/// The other side has violated the ring's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// The tag of the slot at a position. It differs from that of earlier laps, and from fresh memory.
fn tag(position: u32, info: u32) -> u64 {
    u64::from(position.wrapping_add(1)) << 32 | u64::from(info)
}

/// The end that fills slots. There must be only one.
#[derive(Debug)]
pub struct Producer<S> {
    slots: S,
    /// Number of slots filled since the start.
    filled: u32,
    /// Number of slots known to have been emptied.
    emptied: u32,
}

impl<S: Slots> Producer<S> {
    /// The producer of a fresh ring.
    pub fn new(slots: S) -> Self {
        debug_assert!(slots.count().is_power_of_two());
        Self { slots, filled: 0, emptied: 0 }
    }

    /// Number of slots that can be filled now. Reads the consumer's count only if fewer than
    /// `wanted` are known to be free.
    ///
    /// # Errors
    /// [`Broken`] if the consumer's count is impossible.
    #[inline]
    pub fn room(&mut self, wanted: u32) -> Result<u32, Broken> {
        let free = self.slots.count() - self.filled.wrapping_sub(self.emptied);
        if free >= wanted { Ok(free) } else { self.look() }
    }

    fn look(&mut self) -> Result<u32, Broken> {
        let emptied = self.slots.emptied();
        if emptied.wrapping_sub(self.emptied) > self.filled.wrapping_sub(self.emptied) {
            return Err(Broken);
        }
        self.emptied = emptied;
        Ok(self.slots.count() - self.filled.wrapping_sub(emptied))
    }

    /// Number of slots filled since the start.
    pub fn filled(&self) -> u32 {
        self.filled
    }

    /// Number of slots known to have been emptied.
    pub fn emptied(&self) -> u32 {
        self.emptied
    }

    /// Fills the next slot with at least `len` bytes of `body`, and publishes it. There must be a
    /// free slot.
    #[inline]
    pub fn push(&mut self, info: u32, len: usize, body: &SlotBody) {
        debug_assert!(self.filled.wrapping_sub(self.emptied) < self.slots.count());
        let slot = self.filled & (self.slots.count() - 1);
        self.slots.write(slot, len, body);
        self.slots.set_tag(slot, tag(self.filled, info));
        self.filled = self.filled.wrapping_add(1);
        self.slots.prepare(self.filled.wrapping_add(AHEAD) & (self.slots.count() - 1));
    }
}

/// The end that empties slots. Any thread may call [`Consumer::peek`]; only one at a time may call
/// the other methods.
#[derive(Debug)]
pub struct Consumer<S> {
    slots: S,
    /// Number of slots emptied since the start.
    emptied: AtomicU32,
}

impl<S: Slots> Consumer<S> {
    /// The consumer of a fresh ring.
    pub fn new(slots: S) -> Self {
        Self { slots, emptied: AtomicU32::new(0) }
    }

    /// The info of the next message, if there is one.
    #[inline]
    pub fn peek(&self) -> Option<u32> {
        let emptied = self.emptied.load(Ordering::Relaxed);
        let found = self.slots.tag(emptied & (self.slots.count() - 1));
        let [a, b, c, d, ..] = found.to_le_bytes();
        let info = u32::from_le_bytes([a, b, c, d]);
        (found == tag(emptied, info)).then_some(info)
    }

    /// Fills at least `len` bytes of `body` from the next message, which [`Consumer::peek`] has
    /// found.
    #[inline]
    pub fn read(&self, len: usize, body: &mut SlotBody) {
        let slot = self.emptied.load(Ordering::Relaxed) & (self.slots.count() - 1);
        self.slots.read(slot, len, body);
    }

    /// Advances to the next message.
    #[inline]
    pub fn advance(&self) {
        let emptied = self.emptied.load(Ordering::Relaxed);
        self.emptied.store(emptied.wrapping_add(1), Ordering::Relaxed);
    }

    /// Publishes the emptied slots to the producer.
    #[inline]
    pub fn release(&self) {
        self.slots.set_emptied(self.emptied.load(Ordering::Relaxed));
    }
}

#[cfg(not(loom))]
crate::shared_layout! {
    /// A slot in a shared segment.
    pub struct SharedSlot[128] {
        /// Which lap filled it, and with what.
        0: tag: AtomicU64,
        /// The message, which is accessed by copies.
        8: body: [AtomicU64; 15],
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<SharedSlot>() == SLOT_LEN);
    assert!(std::mem::offset_of!(SharedSlot, body) == TAG_LEN);
};

/// A ring in a shared segment.
#[cfg(not(loom))]
#[derive(Clone, Debug)]
pub struct SharedSlots {
    memory: std::sync::Arc<crate::SharedMemory>,
    slots_at: usize,
    emptied_at: usize,
    count: u32,
}

#[cfg(not(loom))]
impl SharedSlots {
    /// The ring of `count` slots at offset `slots_at`, whose consumer counts at offset
    /// `emptied_at`.
    ///
    /// # Panics
    /// If they do not lie inside the segment, or `count` is not a power of two.
    #[must_use]
    pub fn new(
        memory: std::sync::Arc<crate::SharedMemory>,
        slots_at: usize,
        emptied_at: usize,
        count: u32,
    ) -> Self {
        assert!(count.is_power_of_two() && slots_at.is_multiple_of(SLOT_LEN));
        assert!(slots_at + count as usize * SLOT_LEN <= memory.len() && emptied_at < memory.len());
        Self { memory, slots_at, emptied_at, count }
    }

    fn at(&self, slot: u32) -> usize {
        self.slots_at + slot as usize * SLOT_LEN
    }

    #[inline]
    fn slot(&self, slot: u32) -> &SharedSlot {
        self.memory.structure(self.at(slot))
    }
}

#[cfg(not(loom))]
impl Slots for SharedSlots {
    #[inline]
    fn count(&self) -> u32 {
        self.count
    }

    #[inline]
    fn tag(&self, slot: u32) -> u64 {
        self.slot(slot).tag.load(Ordering::Acquire)
    }

    #[inline]
    fn set_tag(&self, slot: u32, tag: u64) {
        self.slot(slot).tag.store(tag, Ordering::Release);
    }

    // Copy whole lines: the compiler copies a constant number of bytes by a few instructions.

    #[inline]
    fn read(&self, slot: u32, len: usize, body: &mut SlotBody) {
        let at = self.at(slot) + TAG_LEN;
        if len <= FIRST_LINE_LEN {
            self.memory.copy_out(at, &mut body[..FIRST_LINE_LEN]);
        } else {
            self.memory.copy_out(at, body);
        }
    }

    #[inline]
    fn write(&self, slot: u32, len: usize, body: &SlotBody) {
        let at = self.at(slot) + TAG_LEN;
        if len <= FIRST_LINE_LEN {
            self.memory.copy_in(at, &body[..FIRST_LINE_LEN]);
        } else {
            self.memory.copy_in(at, body);
        }
    }

    #[inline]
    fn prepare(&self, slot: u32) {
        let at = self.at(slot);
        self.memory.prefetch_for_writing(at);
        self.memory.prefetch_for_writing(at + SLOT_LEN / 2);
    }

    #[inline]
    fn emptied(&self) -> u32 {
        self.memory.word32(self.emptied_at).load(Ordering::Acquire)
    }

    #[inline]
    fn set_emptied(&self, count: u32) {
        self.memory.word32(self.emptied_at).store(count, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::SharedMemory;
    use std::collections::VecDeque;
    use std::sync::Arc;

    const COUNT: u32 = 8;
    const SLOTS_AT: usize = 128;

    fn ring() -> (Producer<SharedSlots>, Consumer<SharedSlots>, Arc<SharedMemory>) {
        let (memory, _fd) = SharedMemory::create(4_096).expect("memory");
        let memory = Arc::new(memory);
        let slots = SharedSlots::new(Arc::clone(&memory), SLOTS_AT, 0, COUNT);
        (Producer::new(slots.clone()), Consumer::new(slots), memory)
    }

    fn pop(consumer: &Consumer<SharedSlots>) -> Option<Vec<u8>> {
        let len = consumer.peek()? as usize;
        let mut body = [0; SLOT_BODY_LEN];
        consumer.read(len, &mut body);
        consumer.advance();
        consumer.release();
        Some(body[..len].to_vec())
    }

    /// Random pushes and pops, compared with a queue of the standard library.
    #[test]
    fn ring_behaves_like_a_queue() {
        let (mut producer, consumer, _memory) = ring();
        let mut model = VecDeque::new();
        let mut state = 1u32;
        for serial in 0..100_000u32 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if state & 0x8000_0000 != 0 {
                let room = producer.room(1).expect("nobody cheats");
                assert_eq!(room != 0, model.len() < COUNT as usize);
                if room != 0 {
                    let len = (serial % 121) as usize;
                    let body = [serial.to_le_bytes()[0]; SLOT_BODY_LEN];
                    producer.push(serial % 121, len, &body);
                    model.push_back(body[..len].to_vec());
                }
            } else {
                assert_eq!(pop(&consumer), model.pop_front());
            }
        }
    }

    #[test]
    fn messages_pass_between_threads_in_order() {
        const MESSAGES: u64 = 20_000;
        let (mut producer, consumer, _memory) = ring();
        let filler = std::thread::spawn(move || {
            for serial in 0..MESSAGES {
                while producer.room(1).expect("nobody cheats") == 0 {
                    std::thread::yield_now();
                }
                let mut body = [0; SLOT_BODY_LEN];
                body[..8].copy_from_slice(&serial.to_le_bytes());
                producer.push(8, 8, &body);
            }
        });
        for serial in 0..MESSAGES {
            let body = loop {
                match pop(&consumer) {
                    Some(body) => break body,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(body, serial.to_le_bytes());
        }
        filler.join().expect("no panic");
    }

    #[test]
    fn impossible_count_is_an_error() {
        let (mut producer, _consumer, memory) = ring();
        for _ in 0..COUNT {
            producer.push(0, 0, &[0; SLOT_BODY_LEN]);
        }
        for lie in [COUNT + 1, u32::MAX, 1 << 31] {
            memory.word32(0).store(lie, Ordering::Relaxed);
            assert_eq!(producer.room(1), Err(Broken));
        }
        memory.word32(0).store(3, Ordering::Relaxed);
        assert_eq!(producer.room(1), Ok(3));
        memory.word32(0).store(2, Ordering::Relaxed);
        assert_eq!(producer.room(4), Err(Broken), "a count never goes back");
    }

    #[test]
    fn undefined_ring_bytes_are_no_message() {
        let (_producer, consumer, memory) = ring();
        for garbage in [1, 2 << 32, u64::MAX, 0xdead_beef] {
            memory.word64(SLOTS_AT).store(garbage, Ordering::Relaxed);
            assert_eq!(consumer.peek(), None);
        }
    }
}

/// Model checks of all interleavings of the two ends: `make test` runs them with `--cfg loom`.
#[cfg(all(test, loom))]
#[allow(unsafe_code)] // loom's cells report every access that is not ordered.
mod models {
    use super::*;
    use crate::presence::{begin_sleep, end_sleep, is_asleep};
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    struct Model {
        slots: [(AtomicU64, UnsafeCell<u8>); 2],
        emptied: AtomicU32,
    }

    #[derive(Clone)]
    struct SharedModel(Arc<Model>);

    impl Slots for SharedModel {
        fn count(&self) -> u32 {
            2
        }
        fn tag(&self, slot: u32) -> u64 {
            self.0.slots[slot as usize].0.load(Ordering::Acquire)
        }
        fn set_tag(&self, slot: u32, tag: u64) {
            self.0.slots[slot as usize].0.store(tag, Ordering::Release);
        }
        fn read(&self, slot: u32, _: usize, body: &mut SlotBody) {
            // SAFETY: loom reports a write that is not ordered with this access.
            body[0] = self.0.slots[slot as usize].1.with(|byte| unsafe { *byte });
        }
        fn write(&self, slot: u32, _: usize, body: &SlotBody) {
            // SAFETY: loom reports an access that is not ordered with this write.
            self.0.slots[slot as usize].1.with_mut(|byte| unsafe { *byte = body[0] });
        }
        fn emptied(&self) -> u32 {
            self.0.emptied.load(Ordering::Acquire)
        }
        fn set_emptied(&self, count: u32) {
            self.0.emptied.store(count, Ordering::Release);
        }
    }

    fn ring() -> (Producer<SharedModel>, Consumer<SharedModel>) {
        let slot = || (AtomicU64::new(0), UnsafeCell::new(0));
        let shared =
            SharedModel(Arc::new(Model { slots: [slot(), slot()], emptied: AtomicU32::new(0) }));
        (Producer::new(shared.clone()), Consumer::new(shared))
    }

    fn push(producer: &mut Producer<SharedModel>, byte: u8) {
        while producer.room(1).expect("nobody cheats") == 0 {
            thread::yield_now();
        }
        producer.push(1, 1, &[byte; SLOT_BODY_LEN]);
    }

    fn pop(consumer: &Consumer<SharedModel>) -> Option<u8> {
        consumer.peek()?;
        let mut body = [0; SLOT_BODY_LEN];
        consumer.read(1, &mut body);
        consumer.advance();
        consumer.release();
        Some(body[0])
    }

    /// No slot is read before it is filled, nor filled again before it has been read.
    #[test]
    fn slots_are_read_after_they_are_filled_and_before_they_are_reused() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let (mut producer, consumer) = ring();
            let filler = thread::spawn(move || (1..=3).for_each(|byte| push(&mut producer, byte)));
            for byte in 1..=3 {
                let got = loop {
                    match pop(&consumer) {
                        Some(got) => break got,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!(got, byte);
            }
            filler.join().expect("no panic");
        });
    }

    /// A consumer that goes to sleep either sees the message or is seen asleep.
    #[test]
    fn no_message_is_missed_by_a_sleeper() {
        loom::model(|| {
            let (mut producer, consumer) = ring();
            let sleepers = Arc::new(AtomicU32::new(0));
            let seen = Arc::clone(&sleepers);
            let filler = thread::spawn(move || {
                push(&mut producer, 1);
                is_asleep(&seen)
            });
            begin_sleep(&sleepers);
            let found = pop(&consumer).is_some();
            if found {
                end_sleep(&sleepers);
            }
            let woken = filler.join().expect("no panic");
            assert!(found || woken);
        });
    }
}
