//! Finds addresses whose connections end before shared memory pays, and keeps those on TCP.
//!
//! Taking a connection into memory costs its two ends some tens of microseconds together: offering,
//! looking for offers, agreeing. Each message by memory saves a few. So a program that makes a
//! connection for each request, or whose peers do not run on Weft, only loses. After a run of brief
//! connections to an address the next ones stay on TCP, except for probes. The run ends with the
//! first connection that gains or lasts, or after a short time without any.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher, Hash};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::limits::{
    BRIEF_BYTES_MAX, BRIEF_GAP_MS, BRIEF_MESSAGES_MAX, BRIEF_NS_MAX, BRIEF_PLACES, BRIEF_PROBE,
    BRIEF_REST_MS, BRIEF_RUN,
};

/// The history of this process's connections.
pub(crate) static PLACES: Places = Places::new();

/// A class of connections: by destination address, or by the local port of accepted ones. Hashed
/// into one of [`BRIEF_PLACES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u64);

impl Place {
    /// Returns the class of connections to the address `peer`.
    pub(crate) fn to(peer: SocketAddr) -> Self {
        Self::of(peer)
    }

    /// Returns the class of connections accepted at a port. A listener may have many local
    /// addresses.
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

/// A run of brief connections, packed into one word: the low half holds when the last one ended, in
/// milliseconds; above it stand their number and a tag that tells classes with the same slot apart.
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

    /// Returns the milliseconds since the last one ended.
    fn idle_ms(self, now: u64) -> u64 {
        (now / 1_000_000).wrapping_sub(self.last_ms) & Self::MS
    }
}

/// A [`Run`] for each class. Of two simultaneous updates one may be lost.
#[derive(Debug)]
pub(crate) struct Places {
    runs: [AtomicU64; BRIEF_PLACES],
    /// The program needs what TCP lacks: no connection stays on TCP for being brief.
    is_off: AtomicBool,
}

/// What a finished connection has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Past {
    /// Its lifetime in nanoseconds.
    pub(crate) lived: u64,
    /// Messages through shared memory, in both directions.
    pub(crate) messages: u64,
    /// Bytes through shared memory, in both directions.
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

    /// Turns this off, for a program that needs what only connections in memory have.
    pub(crate) fn turn_off(&self) {
        self.is_off.store(true, Ordering::Relaxed);
    }

    /// Returns whether a connection that begins at `now` (nanoseconds) should stay on TCP.
    pub(crate) fn expects_brief(&self, place: Place, now: u64) -> bool {
        let run = self.run(place);
        let is_on = run.brief >= BRIEF_RUN && run.idle_ms(now) < BRIEF_REST_MS;
        if !is_on || self.is_off.load(Ordering::Relaxed) {
            return false;
        }
        let is_probe = run.brief + 1 >= BRIEF_RUN + BRIEF_PROBE;
        let brief = if is_probe { BRIEF_RUN } else { run.brief + 1 };
        self.store(place, Run { brief, ..run });
        !is_probe
    }

    /// Records that a connection has ended at `now` (nanoseconds).
    pub(crate) fn ended(&self, place: Place, now: u64, past: Past) {
        let run = self.run(place);
        let brief = match run.brief {
            _ if !past.is_brief() => 0,
            BRIEF_RUN.. => run.brief,
            brief if run.idle_ms(now) <= BRIEF_GAP_MS => brief + 1,
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

    /// Returns the state after a run of brief connections to port 80, and the time then.
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
    fn after_a_run_of_brief_connections_all_but_probes_stay_on_tcp() {
        let (places, now) = after_a_run(BRIEF_GAP_MS * MS);
        for _ in 0..3 {
            let stays = |_: &u64| places.expects_brief(place(80), now);
            assert_eq!((0..BRIEF_PROBE).filter(stays).count() as u64, BRIEF_PROBE - 1);
            places.ended(place(80), now, Past::default());
        }
    }

    #[test]
    fn rare_brief_connections_are_still_offered() {
        let (places, now) = after_a_run((BRIEF_GAP_MS + 1) * MS);
        assert!(!places.expects_brief(place(80), now));
    }

    #[test]
    fn connection_that_gains_or_lasts_ends_the_run() {
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
    fn idle_time_ends_the_run() {
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
        assert!(
            !places.expects_brief(Place::at(own), now),
            "accepted connections have a class of their own"
        );
    }

    #[test]
    fn turning_it_off_overrides_a_run() {
        let (places, now) = after_a_run(MS);
        places.turn_off();
        assert!(!places.expects_brief(place(80), now));
    }
}
