//! An alarm for a thread that sleeps for many connections. The first peer that brings something
//! wakes the thread, which then checks all of them; other peers see that it has been woken, and do
//! nothing. Network drivers work like this: their interrupts are off from the first one to the end
//! of the poll that it starts (Salim, Olsson and Kuznetsov, "Beyond Softnet", 2001).
//!
//! The alarm's word is the number of the sleep, which is odd, plus one from when the sleeper has
//! been woken until it sleeps again. Each connection has a [`Tag`] that names alarm and sleep. When
//! a sleep is over the sleeper checks every connection that has its tag.
//!
//! The peer that wakes the sleeper records it only afterwards ([`Alarm::has_woken`]): if the peer
//! is stopped in between, another one wakes the sleeper once more.

use crate::atomic::{AtomicU64, Ordering, fence};

/// Number of bits of a tag that hold the sleep's number.
const SLEEP_BITS: u32 = 48;
const SLEEPS: u64 = (1 << SLEEP_BITS) - 1;

/// The word of an alarm. It may have any value, because peers can write it.
#[derive(Clone, Copy, Debug)]
pub struct Alarm<'a>(&'a AtomicU64);

/// Names a sleep and its alarm. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(u64);

/// How far a sleep has come, as a peer sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The sleeper has to be woken.
    Asleep,
    /// The sleeper has been woken, and checks every connection that has the tag.
    Woken,
    /// Another sleep has followed, or this one has not begun: the tag means nothing.
    Other,
}

impl Tag {
    /// The tag of a sleep by the alarm with this index.
    fn new(index: u16, sleep: u64) -> Self {
        Self(u64::from(index) << SLEEP_BITS | sleep & SLEEPS)
    }

    /// The tag in a shared word; `None` for zero.
    #[must_use]
    pub fn from_word(word: u64) -> Option<Self> {
        (word != 0).then_some(Self(word))
    }

    /// The value for a word that peers read.
    #[must_use]
    pub fn to_word(self) -> u64 {
        self.0
    }

    /// The alarm's index.
    #[must_use]
    pub fn index(self) -> usize {
        (self.0 >> SLEEP_BITS) as usize
    }

    fn sleep(self) -> u64 {
        self.0 & SLEEPS
    }
}

/// Methods of the sleeper.
impl<'a> Alarm<'a> {
    /// The alarm with this word, which no other alarm uses.
    #[must_use]
    pub fn on(word: &'a AtomicU64) -> Self {
        Self(word)
    }

    /// The tag of the next sleep. `index` is this alarm's index.
    #[must_use]
    pub fn next(self, index: u16) -> Tag {
        let odd = (self.0.load(Ordering::Relaxed) | 1).wrapping_add(2);
        Tag::new(index, odd)
    }

    /// Begins the sleep. All connections that may wake the sleeper have its tag. The calling thread
    /// must check them once more before it sleeps.
    pub fn begin(self, tag: Tag) {
        self.0.store(tag.sleep(), Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Ends the sleep. From here on the calling thread checks the connections that have the tag. No
    /// barrier is needed: what comes after that check is found by the check when the next sleep
    /// begins.
    pub fn end(self, tag: Tag) {
        self.0.store(tag.sleep().wrapping_add(1), Ordering::Release);
    }
}

/// Methods of the peers.
impl Alarm<'_> {
    /// The stage of a sleep. A peer asks after it has brought something and executed a full
    /// barrier.
    #[must_use]
    pub fn stage(self, tag: Tag) -> Stage {
        match self.0.load(Ordering::Acquire).wrapping_sub(tag.sleep()) {
            0 => Stage::Asleep,
            1 => Stage::Woken,
            _ => Stage::Other,
        }
    }

    /// Records that the sleeper has been woken, so that other peers need not wake it.
    pub fn has_woken(self, tag: Tag) {
        let sleep = tag.sleep();
        let woken = sleep.wrapping_add(1);
        // Fails if the sleeper sleeps again by now, which is another sleep.
        let _ = self.0.compare_exchange(sleep, woken, Ordering::AcqRel, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn tag_belongs_to_one_sleep() {
        let word = AtomicU64::new(7);
        let alarm = Alarm::on(&word);
        let first = alarm.next(3);
        assert_eq!((first.index(), alarm.stage(first)), (3, Stage::Other));
        alarm.begin(first);
        assert_eq!(alarm.stage(first), Stage::Asleep);
        alarm.has_woken(first);
        assert_eq!(alarm.stage(first), Stage::Woken);
        alarm.end(first);
        assert_eq!(alarm.stage(first), Stage::Woken);
        let second = alarm.next(3);
        assert_ne!(first, second);
        alarm.begin(second);
        assert_eq!((alarm.stage(first), alarm.stage(second)), (Stage::Other, Stage::Asleep));
        alarm.has_woken(first);
        assert_eq!(alarm.stage(second), Stage::Asleep, "that was another sleep");
    }

    #[test]
    fn sleep_has_its_own_tag_whatever_a_peer_writes() {
        for value in [0, 1, u64::MAX, u64::MAX - 1, SLEEPS] {
            let word = AtomicU64::new(value);
            let alarm = Alarm::on(&word);
            let tag = alarm.next(u16::MAX);
            assert_eq!(Tag::from_word(tag.to_word()), Some(tag));
            alarm.begin(tag);
            assert_eq!(alarm.stage(tag), Stage::Asleep);
        }
    }
}
