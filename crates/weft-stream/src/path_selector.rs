//! Measures which of two paths for long messages is faster, and repeats the measurement now and
//! then.
//!
//! It measures the time from one long message to the next, which includes all costs of a path: the
//! call, the peer's call, and the waiting of both.

use crate::limits::STAY_MAX;

/// A path for long messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Copied into the ring, and out of it again.
    Ring = 0,
    /// Named by a source, and pulled by the receiver.
    Source = 1,
}

/// Messages at the start of a trial that are not measured, because the other path's last messages
/// are still under way.
const WARM_UP: u32 = 8;
/// Bytes and messages that a trial measures at least.
const BYTES_MIN: u64 = 4 << 20;
const MESSAGES_MIN: u32 = 16;
/// A pause longer than this is the program's own.
const PAUSE_NS: u64 = 20_000_000;
/// Messages that take the faster path before both are tried again. Doubles each time that the same
/// path wins, up to [`STAY_MAX`].
const STAY_MIN: u32 = 256;
/// Lengths that separate the classes of messages; each class is measured on its own.
const CLASSES: [usize; 2] = [512 << 10, 2 << 20];

/// Measurements of the paths for each class of message lengths.
#[derive(Debug, Default)]
pub struct PathSelector {
    classes: [Class; CLASSES.len() + 1],
    last: Option<Last>,
}

/// The previous message.
#[derive(Clone, Copy, Debug)]
struct Last {
    class: usize,
    len: u64,
    at: u64,
}

#[derive(Debug, Default)]
struct Class {
    phase: TrialPhase,
    /// Messages sent in this phase.
    messages: u32,
    /// Bytes and nanoseconds measured so far, for each path.
    bytes: [u64; 2],
    ns: [u64; 2],
    stay: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TrialPhase {
    #[default]
    TryRing,
    TrySource,
    Stay(Way),
}

impl PathSelector {
    /// Chooses the path for `len` bytes sent at the time `now`, in nanoseconds.
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
            TrialPhase::TryRing => Way::Ring,
            TrialPhase::TrySource => Way::Source,
            TrialPhase::Stay(way) => way,
        }
    }

    fn learn(&mut self, len: u64, ns: u64) {
        self.messages += 1;
        if self.phase == TrialPhase::Stay(self.way()) {
            if self.messages >= self.stay {
                self.begin(TrialPhase::TryRing);
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
        if self.phase == TrialPhase::TryRing {
            return self.begin(TrialPhase::TrySource);
        }
        // Compares times per byte. A tie goes to the source, which costs both cores less.
        let product = |ns: Way, bytes: Way| {
            u128::from(self.ns[ns as usize]) * u128::from(self.bytes[bytes as usize])
        };
        let source_wins = product(Way::Source, Way::Ring) <= product(Way::Ring, Way::Source);
        self.stay = (2 * self.stay).clamp(STAY_MIN, STAY_MAX);
        self.begin(TrialPhase::Stay(if source_wins { Way::Source } else { Way::Ring }));
    }

    fn begin(&mut self, phase: TrialPhase) {
        self.phase = phase;
        self.messages = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends `count` messages that take `ns` nanoseconds on each path; returns how many went as a
    /// source.
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
    fn faster_path_wins() {
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
