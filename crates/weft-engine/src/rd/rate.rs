//! How fast datagrams may go to one peer.
//!
//! BBR (N. Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14(5), 2016;
//! delivery rate after draft-cheng-iccrg-delivery-rate-estimation): the two properties of a path,
//! its bandwidth and its shortest round trip, are measured; datagrams leave at that bandwidth, and
//! about twice the product of both is under way. Loss plays no part, so that a path which loses
//! datagrams for other reasons than congestion, or has a long delay, can be used.
//!
//! Kept: start-up, drain, the cycle of gains, the look for a shorter round trip. Left out: what
//! concerns policers, long-term sampling and ECN.

use super::limits::{QUANTUM_MAX, RTO_MAX};

/// Rounds over which the highest bandwidth counts, twice: it is that of two windows.
const WINDOW_ROUNDS: u8 = 5;
/// Rounds without growth that end the start-up.
const FLAT_ROUNDS: u8 = 3;
/// A shortest round trip that old, in microseconds, is looked for again, for so long.
const MIN_RTT_AGE: u64 = 10_000_000;
const MIN_RTT_PROBE: u64 = 200_000;
/// Datagrams under way meanwhile, and at least.
const DATAGRAMS_MIN: u64 = 4;
/// Datagrams under way before anything is known of the path.
const DATAGRAMS_INITIAL: u64 = 32;
/// Datagrams may be ahead of their time by so much, in microseconds: timers are coarse, and system
/// calls that take several datagrams cheap.
const AHEAD: u64 = 1_000;
/// Gains in hundredths. 2/ln 2 doubles the rate each round.
const STARTUP_GAIN: u64 = 289;
const DRAIN_GAIN: u64 = 35;
const CYCLE: [u64; 8] = [125, 75, 100, 100, 100, 100, 100, 100];
const WINDOW_GAIN: u64 = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Startup,
    Drain,
    /// At this place of the cycle.
    Cruise(u8),
    ShorterRtt,
}

/// The state of one path.
#[derive(Debug)]
pub(super) struct Rate {
    /// Highest bandwidth of this window of rounds and of the last, in bytes per second.
    best: [u64; 2],
    /// Bytes delivered in all, and when the last were.
    delivered: u64,
    delivered_at: u64,
    /// When the datagram that was acknowledged last had been sent.
    first_sent_at: u64,
    /// A round ends when what is sent from now on is delivered.
    round_end: u64,
    /// When the phase began.
    phase_at: u64,
    next_send_at: u64,
    /// Bandwidth at which the start-up last grew.
    full: u64,
    min_rtt_at: u64,
    /// 0 for unknown.
    min_rtt: u32,
    rounds: u8,
    flat: u8,
    phase: Phase,
}

/// What is remembered of each datagram under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    pub(super) at: u64,
    /// With its headers.
    pub(super) len: u32,
    /// Less was under way than could be.
    idle: bool,
    delivered: u64,
    delivered_at: u64,
    first_sent_at: u64,
}

impl Rate {
    pub(super) fn new(now: u64) -> Self {
        Self {
            best: [0; 2],
            delivered: 0,
            delivered_at: now,
            first_sent_at: now,
            round_end: 0,
            phase_at: now,
            next_send_at: 0,
            full: 0,
            min_rtt_at: now,
            min_rtt: 0,
            rounds: 0,
            flat: 0,
            phase: Phase::Startup,
        }
    }

    /// The shortest round trip in microseconds, 0 for unknown.
    pub(super) fn min_rtt(&self) -> u64 {
        self.min_rtt.into()
    }

    /// In bytes per second, 0 for unknown.
    fn bandwidth(&self) -> u64 {
        self.best[0].max(self.best[1])
    }

    fn pacing(&self) -> u64 {
        let gain = match self.phase {
            Phase::Startup => STARTUP_GAIN,
            Phase::Drain => DRAIN_GAIN,
            Phase::Cruise(at) => CYCLE[usize::from(at) % CYCLE.len()],
            Phase::ShorterRtt => 100,
        };
        self.bandwidth().saturating_mul(gain) / 100
    }

    /// Bandwidth times round trip, in bytes.
    fn product(&self) -> u64 {
        self.bandwidth().saturating_mul(self.min_rtt.into()) / 1_000_000
    }

    /// Bytes that may be under way, with datagrams of `datagram_len`.
    pub(super) fn window(&self, datagram_len: u64) -> u64 {
        let least = DATAGRAMS_MIN * datagram_len;
        if self.bandwidth() == 0 || self.min_rtt == 0 {
            return DATAGRAMS_INITIAL * datagram_len;
        }
        let gain = match self.phase {
            Phase::Startup => STARTUP_GAIN,
            Phase::ShorterRtt => return least,
            Phase::Drain | Phase::Cruise(_) => WINDOW_GAIN,
        };
        let burst = self.pacing().saturating_mul(AHEAD) / 1_000_000;
        let quantum = burst.clamp(2 * datagram_len, QUANTUM_MAX.max(2 * datagram_len));
        (self.product().saturating_mul(gain) / 100 + 3 * quantum).max(least)
    }

    /// When the next datagram may leave; a time that has passed if at once.
    pub(super) fn next_send_at(&self) -> u64 {
        self.next_send_at.saturating_sub(AHEAD)
    }

    /// A datagram of `len` bytes leaves; `under_way` bytes are before it, and `idle` says that the
    /// program has no more.
    pub(super) fn sent(&mut self, now: u64, len: u32, under_way: u64, idle: bool) -> Sent {
        if under_way == 0 {
            (self.first_sent_at, self.delivered_at) = (now, now);
        }
        if let Some(time) = (u64::from(len) * 1_000_000).checked_div(self.pacing()) {
            // A bandwidth that was measured too low must not stop the path.
            self.next_send_at = self.next_send_at.max(now) + time.min(RTO_MAX);
        }
        Sent {
            at: now,
            len,
            idle,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
        }
    }

    /// A datagram has arrived at the peer.
    pub(super) fn arrived(&mut self, now: u64, sent: &Sent) {
        self.delivered += u64::from(sent.len);
        self.delivered_at = now;
        self.first_sent_at = sent.at;
        let elapsed = now
            .saturating_sub(sent.delivered_at)
            .max(sent.at.saturating_sub(sent.first_sent_at))
            .max(u64::from(self.min_rtt))
            .max(1);
        let bandwidth = (self.delivered - sent.delivered).saturating_mul(1_000_000) / elapsed;
        if bandwidth > self.best[0] && (!sent.idle || bandwidth > self.bandwidth()) {
            self.best[0] = bandwidth;
        }
        if sent.delivered >= self.round_end {
            self.round_end = self.delivered;
            self.round(sent.idle);
        }
    }

    /// A round trip is over.
    fn round(&mut self, idle: bool) {
        if !idle {
            self.rounds += 1;
        }
        if self.rounds >= WINDOW_ROUNDS {
            self.best = [0, self.best[0]];
            self.rounds = 0;
        }
        if self.phase != Phase::Startup || idle {
            return;
        }
        if self.bandwidth() >= self.full.saturating_mul(5) / 4 {
            (self.full, self.flat) = (self.bandwidth(), 0);
        } else {
            // An acknowledgement of all that was under way does not ask for the next phase.
            self.flat = (self.flat + 1).min(FLAT_ROUNDS);
        }
    }

    /// An acknowledgement has been dealt with; `rtt` microseconds is the round trip that it tells
    /// of, and `under_way` bytes are left.
    pub(super) fn acknowledged(&mut self, now: u64, rtt: Option<u32>, under_way: u64) {
        let old = now.saturating_sub(self.min_rtt_at) > MIN_RTT_AGE;
        if let Some(rtt) = rtt
            && (self.min_rtt == 0 || rtt <= self.min_rtt || old)
        {
            (self.min_rtt, self.min_rtt_at) = (rtt.max(1), now);
        }
        let passed = now.saturating_sub(self.phase_at);
        let next = match self.phase {
            _ if old && self.phase != Phase::ShorterRtt => Phase::ShorterRtt,
            Phase::Startup if self.flat >= FLAT_ROUNDS => Phase::Drain,
            Phase::Drain if under_way <= self.product() => Phase::Cruise(0),
            Phase::Cruise(at) if passed > u64::from(self.min_rtt) => {
                Phase::Cruise((at + 1) % CYCLE.len() as u8)
            }
            Phase::ShorterRtt if passed > MIN_RTT_PROBE => match self.flat {
                FLAT_ROUNDS.. => Phase::Cruise(0),
                _ => Phase::Startup,
            },
            same => same,
        };
        if next != self.phase {
            (self.phase, self.phase_at) = (next, now);
        }
    }

    /// After a time without traffic, what is known is not old for that reason.
    pub(super) fn resume(&mut self, now: u64) {
        (self.min_rtt_at, self.phase_at) = (now, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_rounds_may_pass_before_an_acknowledgement_leaves_something_under_way() {
        let mut rate = Rate::new(0);
        for round in 1..1_000 {
            let sent = rate.sent(round * 100, 4_096, 0, false);
            rate.arrived(round * 100 + 50, &sent);
        }
        assert_eq!(rate.phase, Phase::Startup);
        rate.acknowledged(100_000, Some(50), 0);
        assert_eq!(rate.phase, Phase::Drain);
    }
}
