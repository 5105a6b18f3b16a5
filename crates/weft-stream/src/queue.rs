//! The queue of one direction: a ring, or buffers with credits, depending on the flow control.

use std::sync::atomic::Ordering;

use weft_sys::Buffers;

use crate::credit::Credits;
use crate::flow::Flow;
use crate::limits::WRITABLE_LEN;
use crate::registry::Registry;
use crate::ring::{Broken, Ring};
use crate::words::{Direction, NONE, Role};

/// The bytes of one direction that have been put and not yet taken.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Queue {
    Packed(Ring),
    Credit(Credits),
}

impl Queue {
    /// The queue of the direction in which `from` sends.
    pub(crate) fn of(registry: &'static Registry, slot: usize, from: Role, flow: Flow) -> Self {
        match flow {
            Flow::Packed => Self::Packed(Ring::of(registry, slot, from)),
            Flow::Credit => Self::Credit(Credits::of(registry, slot, from)),
        }
    }

    #[inline]
    pub(crate) fn words(&self) -> &'static Direction {
        match self {
            Self::Packed(ring) => ring.words(),
            Self::Credit(credits) => credits.words(),
        }
    }

    /// Bytes that the reader may take.
    #[inline]
    pub(crate) fn available(&self) -> Result<usize, Broken> {
        let words = self.words();
        let tail = words.tail.load(Ordering::Relaxed);
        crate::ring::used(words.head.load(Ordering::Acquire), tail)
    }

    /// Bytes that the writer may put. A small ring counts as the big one that replaces it when
    /// full.
    #[inline]
    pub(crate) fn room(&self) -> Result<usize, Broken> {
        match self {
            Self::Packed(ring) => {
                let room = ring.room()?;
                let small = ring.words().grown_at.load(Ordering::Relaxed) == NONE;
                Ok(if small { room.max(WRITABLE_LEN) } else { room })
            }
            Self::Credit(credits) => credits.room(),
        }
    }

    /// Allocates memory for all room there is and returns it in bytes. The room of credits depends
    /// on how messages are cut, so none is guaranteed: 0. The caller holds the writer's lock.
    pub(crate) fn reserve(&self) -> usize {
        match self {
            Self::Packed(ring) if ring.reserve() => ring.room().unwrap_or(0),
            _ => 0,
        }
    }

    /// Whether the socket is reported as writable: a large part of the room is free. It is also
    /// reported if the words are corrupt, so that the program's next call gets the error.
    #[inline]
    pub(crate) fn is_writable(&self) -> bool {
        let enough = match self {
            Self::Packed(_) => WRITABLE_LEN,
            Self::Credit(_) => Credits::WRITABLE_LEN,
        };
        self.room().map_or(true, |room| room >= enough)
    }

    /// Puts as many bytes as there is room for, and returns how many. The caller holds the writer's
    /// lock.
    #[inline]
    pub(crate) fn put(&self, buffers: Buffers<'_>) -> Result<usize, Broken> {
        match self {
            Self::Packed(ring) => ring.put(buffers),
            Self::Credit(credits) => credits.put(buffers),
        }
    }

    /// Fills the buffers with unread bytes and returns how many; with `keep` the bytes stay in the
    /// queue. The caller holds the reader's lock.
    #[inline]
    pub(crate) fn take(&self, buffers: Buffers<'_>, keep: bool) -> Result<usize, Broken> {
        match self {
            Self::Packed(ring) => ring.take(buffers, keep),
            Self::Credit(credits) => credits.take(buffers, keep),
        }
    }

    /// Drops up to `len` bytes, and returns how many. The caller holds the reader's lock.
    pub(crate) fn skip(&self, len: usize) -> Result<usize, Broken> {
        match self {
            Self::Packed(ring) => ring.skip(len),
            Self::Credit(credits) => credits.skip(len),
        }
    }

    /// Whether what the reader has just taken has given the writer room.
    pub(crate) fn has_made_room(&self) -> bool {
        match self {
            Self::Packed(_) => true,
            Self::Credit(credits) => credits.room() != Ok(0),
        }
    }

    /// Returns pending credits to the writer at once. `false` if there were none.
    #[inline]
    pub(crate) fn acknowledge(&self) -> bool {
        match self {
            Self::Packed(_) => false,
            Self::Credit(credits) => credits.acknowledge(),
        }
    }

    /// A number that changes whenever the writer gets room.
    #[inline]
    pub(crate) fn returned(&self) -> u64 {
        match self {
            Self::Packed(ring) => ring.words().tail.load(Ordering::Acquire),
            Self::Credit(credits) => credits.words().acknowledged.load(Ordering::Acquire),
        }
    }

    /// Publishes that bytes of sources are about to be put, and no longer pulled. The caller holds
    /// the writer's lock.
    pub(crate) fn begin_withdrawal(&self) {
        let count = self.words().withdrawals.load(Ordering::Relaxed);
        // A process that was killed in between has left an odd number.
        self.words().withdrawals.store(count | 1, Ordering::SeqCst);
    }

    /// Publishes that they have been put, as far as there was room.
    pub(crate) fn end_withdrawal(&self) {
        let count = self.words().withdrawals.load(Ordering::Relaxed);
        self.words().withdrawals.store((count | 1).wrapping_add(1), Ordering::SeqCst);
    }

    /// Counts one message that the writer has put or named.
    #[inline]
    pub(crate) fn count_message(&self) {
        let messages = &self.words().messages;
        let sum = messages.load(Ordering::Relaxed).wrapping_add(1);
        messages.store(sum, Ordering::Relaxed);
    }

    /// Counts that the writer found no room, and how much of the memory held bytes at that time.
    #[cold]
    pub(crate) fn count_stall(&self) {
        let words = self.words();
        let add = |counter: &std::sync::atomic::AtomicU64, more: usize| {
            let sum = counter.load(Ordering::Relaxed).wrapping_add(more as u64);
            counter.store(sum, Ordering::Relaxed);
        };
        let allotted = match self {
            Self::Packed(ring) => ring.allotted(),
            Self::Credit(_) => Credits::LEN,
        };
        add(&words.stalls, 1);
        add(&words.stalled_used, self.available().unwrap_or(0));
        add(&words.stalled_allotted, allotted);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io::IoSliceMut;
    use std::net::SocketAddr;

    use proptest::prelude::*;
    use weft_testing::seeds::cases;

    use super::*;
    use crate::kernel::Linux;
    use crate::limits::{BIG_RING_LEN, CREDIT_LEN, CREDITS, SMALL_RING_LEN};
    use crate::sweep::take_slot;
    use crate::tuple::Tuple;

    /// A packed or credit queue in a registry of its own.
    fn queue(flow: Flow) -> Queue {
        let dir = tempfile::tempdir().expect("a directory");
        let registry: &'static Registry =
            Box::leak(Box::new(Registry::open(dir.path()).expect("a registry")));
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let (slot, _) =
            take_slot::<Linux>(registry, &Tuple::new(address(1), address(2))).expect("room");
        assert!(flow == Flow::Packed || registry.fill(slot, 0, 0) > 0);
        let queue = Queue::of(registry, slot, Role::Connector, flow);
        queue.words().reset();
        registry.leave();
        queue
    }

    /// Bytes that encode their position in a stream.
    fn pattern(at: usize, len: usize) -> Vec<u8> {
        (at..at + len).map(|position| (position % 251) as u8).collect()
    }

    fn put(queue: &Queue, bytes: &[u8], cut: usize) -> Result<usize, Broken> {
        let mut bytes = bytes.to_vec();
        let cut = cut.min(bytes.len());
        let (first, second) = bytes.split_at_mut(cut);
        queue.put(Buffers::of(&mut [IoSliceMut::new(first), IoSliceMut::new(second)]))
    }

    fn take(queue: &Queue, len: usize, cut: usize, keep: bool) -> Result<Vec<u8>, Broken> {
        let mut bytes = vec![0; len];
        let (first, second) = bytes.split_at_mut(cut.min(len));
        let slices = &mut [IoSliceMut::new(first), IoSliceMut::new(second)];
        let taken = queue.take(Buffers::of(slices), keep)?;
        bytes.truncate(taken);
        Ok(bytes)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Put { len: usize, cut: usize },
        Take { len: usize, cut: usize },
        Peek { len: usize, cut: usize },
        Skip { len: usize },
        Acknowledge,
    }

    /// Most messages are short, some fill a buffer or a ring exactly, a few are longer than either.
    fn len() -> impl Strategy<Value = usize> {
        prop_oneof![
            4 => 1..100_usize,
            2 => 1..20_000_usize,
            1 => CREDIT_LEN - 1..CREDIT_LEN + 2,
            1 => SMALL_RING_LEN - 1..SMALL_RING_LEN + 2,
            1 => 1..BIG_RING_LEN / 4,
        ]
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (len(), len()).prop_map(|(len, cut)| Step::Put { len, cut }),
            6 => (len(), len()).prop_map(|(len, cut)| Step::Take { len, cut }),
            1 => (len(), len()).prop_map(|(len, cut)| Step::Peek { len, cut }),
            1 => len().prop_map(|len| Step::Skip { len }),
            1 => Just(Step::Acknowledge),
        ]
    }

    fn follows_the_model(flow: Flow, steps: &[Step]) -> Result<(), TestCaseError> {
        let queue = queue(flow);
        let mut model = VecDeque::new();
        let mut sent = 0;
        for step in steps {
            match *step {
                Step::Put { len, cut } => {
                    let room = queue.room().expect("sound");
                    let bytes = pattern(sent, len);
                    let put = put(&queue, &bytes, cut).expect("sound");
                    prop_assert!(put >= len.min(room), "{put} of {len} where {room} were free");
                    prop_assert!(put <= len);
                    model.extend(&bytes[..put]);
                    sent += put;
                }
                Step::Take { len, cut } => {
                    let taken = take(&queue, len, cut, false).expect("sound");
                    let expected: Vec<u8> = model.drain(..len.min(model.len())).collect();
                    prop_assert!(taken == expected);
                }
                Step::Peek { len, cut } => {
                    let seen = take(&queue, len, cut, true).expect("sound");
                    prop_assert!(seen.iter().eq(model.iter().take(len)));
                }
                Step::Skip { len } => {
                    let skipped = queue.skip(len).expect("sound");
                    prop_assert_eq!(skipped, model.drain(..len.min(model.len())).count());
                }
                Step::Acknowledge => {
                    queue.acknowledge();
                }
            }
            prop_assert_eq!(queue.available(), Ok(model.len()));
            prop_assert!(!model.is_empty() || queue.room() != Ok(0), "empty and full");
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(cases(24)))]

        #[test]
        fn ring_delivers_bytes_in_order(steps in prop::collection::vec(step(), 1..120)) {
            follows_the_model(Flow::Packed, &steps)?;
        }

        #[test]
        fn credit_buffers_deliver_bytes_in_order(steps in prop::collection::vec(step(), 1..120)) {
            follows_the_model(Flow::Credit, &steps)?;
        }

        /// The peer may write any value into the words that both sides share.
        #[test]
        fn corrupt_words_cause_errors_and_no_panic(
            credit: bool,
            words in prop::collection::vec((0..9_usize, prop_oneof![
                any::<u64>(),
                0..70_000_u64,
                (0..4_u64).prop_map(|down| u64::MAX - down),
            ]), 1..6),
            steps in prop::collection::vec(step(), 1..12),
        ) {
            let queue = queue(if credit { Flow::Credit } else { Flow::Packed });
            put(&queue, &pattern(0, 40_000), 0).expect("sound");
            for (which, value) in words {
                corrupt(&queue, which, value);
            }
            for step in steps {
                match step {
                    Step::Put { len, cut } => drop(put(&queue, &pattern(0, len), cut)),
                    Step::Take { len, cut } => drop(take(&queue, len, cut, false)),
                    Step::Peek { len, cut } => drop(take(&queue, len, cut, true)),
                    Step::Skip { len } => drop(queue.skip(len)),
                    Step::Acknowledge => drop(queue.acknowledge()),
                }
                let _ = (queue.room(), queue.available(), queue.returned());
                queue.count_stall();
            }
        }
    }

    /// Overwrites one of the words that both sides share.
    fn corrupt(queue: &Queue, which: usize, value: u64) {
        let words = queue.words();
        let shared = [
            &words.head,
            &words.tail,
            &words.grown_at,
            &words.filled,
            &words.emptied,
            &words.acknowledged,
            &words.read_of_buffer,
        ];
        match (shared.get(which), queue) {
            (Some(word), _) => word.store(value, Ordering::Relaxed),
            (None, Queue::Credit(credits)) => {
                credits.length(value).store(value.rotate_left(17), Ordering::Relaxed);
            }
            (None, Queue::Packed(_)) => {}
        }
    }

    #[test]
    fn credits_are_returned_when_half_are_used_or_on_acknowledge() {
        let queue = queue(Flow::Credit);
        for _ in 0..CREDITS {
            assert_eq!(put(&queue, b"x", 0), Ok(1));
        }
        assert_eq!((put(&queue, b"x", 0), queue.available()), (Ok(0), Ok(CREDITS)));
        assert_eq!(take(&queue, CREDITS / 2 - 1, 0, false).map(|bytes| bytes.len()), Ok(15));
        assert_eq!(queue.room(), Ok(0), "not yet half of them");
        assert!(!queue.has_made_room() && !queue.is_writable());
        assert_eq!(take(&queue, 1, 0, false), Ok(vec![b'x']));
        assert_eq!(queue.room(), Ok(CREDITS / 2 * CREDIT_LEN));
        assert!(queue.is_writable());
        assert_eq!(take(&queue, 3, 0, false).map(|bytes| bytes.len()), Ok(3));
        assert!(queue.acknowledge(), "with what goes the other way");
        assert!(!queue.acknowledge());
        assert_eq!(queue.room(), Ok((CREDITS / 2 + 3) * CREDIT_LEN));
    }

    #[test]
    fn stalls_count_used_and_allotted_bytes() {
        for (flow, most) in [(Flow::Packed, SMALL_RING_LEN + BIG_RING_LEN), (Flow::Credit, 32)] {
            let queue = queue(flow);
            let len = if flow == Flow::Packed { 1_000 } else { 1 };
            while put(&queue, &[b'x'; 1_000][..len], 0) != Ok(0) {}
            queue.count_stall();
            let words = queue.words();
            let [used, allotted] = [&words.stalled_used, &words.stalled_allotted]
                .map(|word| word.load(Ordering::Relaxed));
            assert_eq!(used, most as u64, "{flow:?}");
            assert_eq!(allotted, if flow == Flow::Packed { used } else { Credits::LEN as u64 });
        }
    }
}
