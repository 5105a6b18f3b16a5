//! Connections that end before they gain by shared memory, by where they go.
//!
//! To take a connection into memory costs its two ends some tens of microseconds together:
//! offering, looking for offers, agreeing. A message by memory saves some. So a program that makes
//! a connection for each request, or whose peers are not on Weft, only loses. While one brief
//! connection to an address follows another the next ones stay on TCP, but for probes. The first
//! that gains or lasts, and a short time without any, end that.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher, Hash};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::limits::{
    BRIEF_BYTES_MAX, BRIEF_GAP_MS, BRIEF_MESSAGES_MAX, BRIEF_NS_MAX, BRIEF_PLACES, BRIEF_PROBE,
    BRIEF_REST_MS, BRIEF_RUN,
};

/// What this process's connections have come to.
pub(crate) static PLACES: Places = Places::new();

/// Where connections go, or at which port they arrive, among [`BRIEF_PLACES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u64);

impl Place {
    /// Of those that go to an address.
    pub(crate) fn to(peer: SocketAddr) -> Self {
        Self::of(peer)
    }

    /// Of those that have been accepted at an address: one that listens may have many.
    pub(crate) fn at(own: SocketAddr) -> Self {
        Self::of(own.port())
    }

    fn of(name: impl Hash) -> Self {
        Self(BuildHasherDefault::<DefaultHasher>::default().hash_one(name))
    }

    fn index(self) -> usize {
        self.0 as usize % BRIEF_PLACES
    }
}

/// Brief connections in a row, in one word: when the last one ended, in milliseconds, in the lower
/// half; above it how many there have been, and what tells the place from others of the word.
#[derive(Clone, Copy, Debug)]
struct Run {
    tag: u64,
    brief: u64,
    last_ms: u64,
}

impl Run {
    const MS: u64 = u32::MAX as u64;

    fn of(word: u64) -> Self {
        Self { tag: word >> 48, brief: word >> 32 & 0xffff, last_ms: word & Self::MS }
    }

    fn word(self) -> u64 {
        self.tag << 48 | self.brief << 32 | self.last_ms
    }

    /// Milliseconds since the last one ended.
    fn rest(self, now: u64) -> u64 {
        (now / 1_000_000).wrapping_sub(self.last_ms) & Self::MS
    }
}

/// A [`Run`] for each place. Of two lessons at a time one may be lost.
#[derive(Debug)]
pub(crate) struct Places {
    runs: [AtomicU64; BRIEF_PLACES],
    /// The program asks for more than TCP has: no connection stays there for being brief.
    is_off: AtomicBool,
}

/// What a connection has come to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Past {
    /// Nanoseconds.
    pub(crate) lived: u64,
    /// By memory, both ways.
    pub(crate) messages: u64,
    /// The same.
    pub(crate) bytes: u64,
}

impl Past {
    fn is_brief(self) -> bool {
        self.lived <= BRIEF_NS_MAX
            && self.messages < BRIEF_MESSAGES_MAX
            && self.bytes < BRIEF_BYTES_MAX
    }
}

impl Places {
    const fn new() -> Self {
        Self { runs: [const { AtomicU64::new(0) }; BRIEF_PLACES], is_off: AtomicBool::new(false) }
    }

    /// The program needs what only connections in memory have.
    pub(crate) fn turn_off(&self) {
        self.is_off.store(true, Ordering::Relaxed);
    }

    /// Whether a connection that begins `now`, in nanoseconds, is to stay on TCP.
    pub(crate) fn expects_brief(&self, place: Place, now: u64) -> bool {
        let run = self.run(place);
        let is_on = run.brief >= BRIEF_RUN && run.rest(now) < BRIEF_REST_MS;
        if !is_on || self.is_off.load(Ordering::Relaxed) {
            return false;
        }
        let is_probe = run.brief + 1 >= BRIEF_RUN + BRIEF_PROBE;
        let brief = if is_probe { BRIEF_RUN } else { run.brief + 1 };
        self.store(place, Run { brief, ..run });
        !is_probe
    }

    /// A connection has ended `now`, in nanoseconds.
    pub(crate) fn ended(&self, place: Place, now: u64, past: Past) {
        let run = self.run(place);
        let brief = match run.brief {
            _ if !past.is_brief() => 0,
            BRIEF_RUN.. => run.brief,
            brief if run.rest(now) <= BRIEF_GAP_MS => brief + 1,
            _ => 1,
        };
        self.store(place, Run { brief, last_ms: (now / 1_000_000) & Run::MS, ..run });
    }

    fn run(&self, place: Place) -> Run {
        let known = Run::of(self.runs[place.index()].load(Ordering::Relaxed));
        let tag = place.0 >> 48;
        if known.tag == tag { known } else { Run { tag, brief: 0, last_ms: 0 } }
    }

    fn store(&self, place: Place, run: Run) {
        self.runs[place.index()].store(run.word(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const BRIEF: Past =
        Past { lived: BRIEF_NS_MAX, messages: BRIEF_MESSAGES_MAX - 1, bytes: BRIEF_BYTES_MAX - 1 };

    fn place(port: u16) -> Place {
        Place::to(SocketAddr::from(([127, 0, 0, 1], port)))
    }

    /// After a run of brief connections to port 80, and when that was.
    fn after_a_run(gap: u64) -> (Places, u64) {
        let places = Places::new();
        let mut now = 1_000 * MS;
        for _ in 0..BRIEF_RUN {
            now += gap;
            assert!(!places.expects_brief(place(80), now));
            places.ended(place(80), now, BRIEF);
        }
        (places, now)
    }

    #[test]
    fn run_of_brief_ones_leaves_the_next_on_tcp_but_for_probes() {
        let (places, now) = after_a_run(BRIEF_GAP_MS * MS);
        for _ in 0..3 {
            let stays = |_: &u64| places.expects_brief(place(80), now);
            assert_eq!((0..BRIEF_PROBE).filter(stays).count() as u64, BRIEF_PROBE - 1);
            places.ended(place(80), now, Past::default());
        }
    }

    #[test]
    fn those_that_come_now_and_then_are_offered() {
        let (places, now) = after_a_run((BRIEF_GAP_MS + 1) * MS);
        assert!(!places.expects_brief(place(80), now));
    }

    #[test]
    fn one_that_gains_or_lasts_ends_the_run() {
        for past in [
            Past { lived: BRIEF_NS_MAX + 1, ..Past::default() },
            Past { messages: BRIEF_MESSAGES_MAX, ..Past::default() },
            Past { bytes: BRIEF_BYTES_MAX, ..Past::default() },
        ] {
            let (places, now) = after_a_run(MS);
            assert!(places.expects_brief(place(80), now));
            places.ended(place(80), now, past);
            assert!(!places.expects_brief(place(80), now), "{past:?}");
        }
    }

    #[test]
    fn time_without_any_ends_the_run() {
        let (places, now) = after_a_run(MS);
        assert!(places.expects_brief(place(80), now + (BRIEF_REST_MS - 1) * MS));
        assert!(!places.expects_brief(place(80), now + BRIEF_REST_MS * MS));
    }

    #[test]
    fn millisecond_clock_wraps() {
        let places = Places::new();
        let last = (Run::MS + 1) * MS - 1;
        for now in last - BRIEF_RUN..last {
            places.ended(place(80), now, BRIEF);
        }
        assert!(places.expects_brief(place(80), last + 1));
    }

    #[test]
    fn places_do_not_learn_for_each_other() {
        let (places, now) = after_a_run(MS);
        for port in 1_000..3_000 {
            assert!(!places.expects_brief(place(port), now), "port {port}");
        }
        let own = SocketAddr::from(([127, 0, 0, 1], 80));
        assert!(!places.expects_brief(Place::at(own), now), "they arrive, and do not go there");
    }

    #[test]
    fn program_that_asks_for_more_than_tcp_gets_it() {
        let (places, now) = after_a_run(MS);
        places.turn_off();
        assert!(!places.expects_brief(place(80), now));
    }
}
