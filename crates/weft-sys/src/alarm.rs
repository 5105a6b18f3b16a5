//! One alarm for all that a thread sleeps for: the first peer that brings something wakes it, and
//! it looks at everything; the others see that it has been woken, and need not. Drivers of network
//! cards do so, whose interrupts are off from the first to the end of the poll that it begins
//! (Salim, Olsson and Kuznetsov, "Beyond Softnet", 2001).
//!
//! The alarm's word is the number of the sleep, which is odd, and one more from when the sleeper
//! has been woken until it sleeps again. What may bring something has a [`Tag`] that names alarm
//! and sleep. The sleeper promises to look at all that has the tag of a sleep when that is over.
//!
//! The peer that wakes the sleeper does so first, and records it then ([`Alarm::has_woken`]): if
//! the peer is stopped in between, others wake the sleeper once more.

use crate::atomic::{AtomicU64, Ordering, fence};

/// Bits of a tag that hold the sleep's number.
const SLEEP_BITS: u32 = 48;
const SLEEPS: u64 = (1 << SLEEP_BITS) - 1;

/// The word of an alarm. It may have any value: peers can write it.
#[derive(Clone, Copy, Debug)]
pub struct Alarm<'a>(&'a AtomicU64);

/// Which sleep, and by which alarm it ends. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(u64);

/// How far a sleep is, as a peer sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The sleeper is to be woken.
    Asleep,
    /// It has been woken, and looks at whatever has the tag.
    Woken,
    /// Another sleep has followed, or this one has not begun: the tag says nothing.
    Other,
}

impl Tag {
    /// A sleep's, by the alarm of this index.
    fn new(index: u16, sleep: u64) -> Self {
        Self(u64::from(index) << SLEEP_BITS | sleep & SLEEPS)
    }

    /// As a word says it; `None` for zero.
    #[must_use]
    pub fn from_word(word: u64) -> Option<Self> {
        (word != 0).then_some(Self(word))
    }

    /// For a word that peers read.
    #[must_use]
    pub fn to_word(self) -> u64 {
        self.0
    }

    /// Which alarm.
    #[must_use]
    pub fn index(self) -> usize {
        (self.0 >> SLEEP_BITS) as usize
    }

    fn sleep(self) -> u64 {
        self.0 & SLEEPS
    }
}

/// Of the sleeper.
impl<'a> Alarm<'a> {
    /// On a word that nobody else sleeps by.
    #[must_use]
    pub fn on(word: &'a AtomicU64) -> Self {
        Self(word)
    }

    /// The tag of the sleep that is to begin next, by this alarm, whose index that is.
    #[must_use]
    pub fn next(self, index: u16) -> Tag {
        let odd = (self.0.load(Ordering::Relaxed) | 1).wrapping_add(2);
        Tag::new(index, odd)
    }

    /// The sleep begins: all that may wake the sleeper has its tag. The calling thread must look
    /// once more before it sleeps.
    pub fn begin(self, tag: Tag) {
        self.0.store(tag.sleep(), Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// The sleep is over: from here on the calling thread looks at whatever has the tag. No barrier
    /// is needed: what comes behind that look is found by the one at the next sleep's beginning.
    pub fn end(self, tag: Tag) {
        self.0.store(tag.sleep().wrapping_add(1), Ordering::Release);
    }
}

/// Of the peers.
impl Alarm<'_> {
    /// Asked by one who has brought something, behind a full barrier.
    #[must_use]
    pub fn stage(self, tag: Tag) -> Stage {
        match self.0.load(Ordering::Acquire).wrapping_sub(tag.sleep()) {
            0 => Stage::Asleep,
            1 => Stage::Woken,
            _ => Stage::Other,
        }
    }

    /// The sleeper has been woken, which others need not do any more.
    pub fn has_woken(self, tag: Tag) {
        let sleep = tag.sleep();
        let woken = sleep.wrapping_add(1);
        // If it sleeps again by now, that is another sleep.
        let _ = self.0.compare_exchange(sleep, woken, Ordering::AcqRel, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_of_one_sleep() {
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
    fn whatever_a_peer_writes_a_sleep_has_a_tag_of_its_own() {
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
