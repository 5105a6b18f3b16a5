//! Which of two ways to send long messages is faster here: that is measured, now and then again.
//!
//! What counts is the time from one long message to the next, so that everything that a way costs
//! is in it: the call, the peer's call, and the waiting of either.

use crate::limits::STAY_MAX;

/// A way to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Copied into the ring, and out of it again.
    Ring = 0,
    /// Named, and pulled by the receiver.
    Source = 1,
}

/// Messages of a trial that are not measured: what the other way has left is still on its way.
const WARM_UP: u32 = 8;
/// Bytes and messages of a trial.
const BYTES_MIN: u64 = 4 << 20;
const MESSAGES_MIN: u32 = 16;
/// A longer pause is the program's own.
const PAUSE_NS: u64 = 20_000_000;
/// Messages that go the faster way before both are tried again; twice as many each time that the
/// same one wins, up to [`STAY_MAX`].
const STAY_MIN: u32 = 256;
/// Lengths from which on messages are judged on their own.
const CLASSES: [usize; 2] = [512 << 10, 2 << 20];

/// What is known of the ways, for messages of each class of lengths.
#[derive(Debug, Default)]
pub struct PathSelector {
    classes: [Class; CLASSES.len() + 1],
    last: Option<Last>,
}

/// The message before.
#[derive(Clone, Copy, Debug)]
struct Last {
    class: usize,
    len: u64,
    at: u64,
}

#[derive(Debug, Default)]
struct Class {
    phase: Phase,
    /// Messages in this phase.
    messages: u32,
    /// Measured so far, of each way.
    bytes: [u64; 2],
    ns: [u64; 2],
    stay: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    TryRing,
    TrySource,
    Stay(Way),
}

impl PathSelector {
    /// How to send `len` bytes at the time `now`, in nanoseconds.
    pub fn choose(&mut self, len: usize, now: u64) -> Way {
        let class = CLASSES.iter().filter(|&&from| len >= from).count();
        if let Some(last) = self.last.take()
            && last.class == class
        {
            self.classes[class].learn(last.len, now.saturating_sub(last.at));
        }
        self.last = Some(Last { class, len: len as u64, at: now });
        self.classes[class].way()
    }
}

impl Class {
    fn way(&self) -> Way {
        match self.phase {
            Phase::TryRing => Way::Ring,
            Phase::TrySource => Way::Source,
            Phase::Stay(way) => way,
        }
    }

    fn learn(&mut self, len: u64, ns: u64) {
        self.messages += 1;
        if self.phase == Phase::Stay(self.way()) {
            if self.messages >= self.stay {
                self.begin(Phase::TryRing);
                (self.bytes, self.ns) = Default::default();
            }
            return;
        }
        if self.messages <= WARM_UP || ns > PAUSE_NS {
            return;
        }
        let way = self.way() as usize;
        self.bytes[way] += len;
        self.ns[way] += ns;
        if self.bytes[way] < BYTES_MIN || self.messages < WARM_UP + MESSAGES_MIN {
            return;
        }
        if self.phase == Phase::TryRing {
            return self.begin(Phase::TrySource);
        }
        // Compares times per byte; without a difference the way that costs less of both cores.
        let product = |ns: Way, bytes: Way| {
            u128::from(self.ns[ns as usize]) * u128::from(self.bytes[bytes as usize])
        };
        let source_wins = product(Way::Source, Way::Ring) <= product(Way::Ring, Way::Source);
        self.stay = (2 * self.stay).clamp(STAY_MIN, STAY_MAX);
        self.begin(Phase::Stay(if source_wins { Way::Source } else { Way::Ring }));
    }

    fn begin(&mut self, phase: Phase) {
        self.phase = phase;
        self.messages = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends messages that take this long each way; returns how many went as a source.
    fn run(
        path_selector: &mut PathSelector,
        len: usize,
        ns: [u64; 2],
        count: usize,
        now: &mut u64,
    ) -> usize {
        (0..count)
            .filter(|_| {
                let way = path_selector.choose(len, *now);
                *now += ns[way as usize];
                way == Way::Source
            })
            .count()
    }

    #[test]
    fn the_faster_way_wins() {
        let (mut path_selector, mut now) = (PathSelector::default(), 0);
        let sources = run(&mut path_selector, 1 << 20, [100, 50], 20_000, &mut now);
        assert!(sources > 19_000, "{sources}");
        let sources = run(&mut path_selector, 1 << 20, [50, 100], 40_000, &mut now);
        assert!(sources < 10_000, "learns anew: {sources}");
    }

    #[test]
    fn lengths_are_measured_separately() {
        let (mut path_selector, mut now) = (PathSelector::default(), 0);
        run(&mut path_selector, 1 << 20, [100, 50], 2_000, &mut now);
        let sources = run(&mut path_selector, 64 << 10, [50, 100], 10_000, &mut now);
        assert!(sources < 1_000, "{sources}");
        assert_eq!(path_selector.choose(1 << 20, now), Way::Source);
    }

    #[test]
    fn pauses_of_the_program_are_not_measured() {
        let (mut path_selector, mut now) = (PathSelector::default(), 0);
        let mut sources = 0;
        for message in 0..10_000 {
            sources += run(&mut path_selector, 1 << 20, [100, 50], 1, &mut now);
            now += if message % 7 == 0 { PAUSE_NS } else { 0 };
        }
        assert!(sources > 9_000, "{sources}");
    }
}
