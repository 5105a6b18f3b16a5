//! The sending rate to one peer.
//!
//! This is BBR (N. Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14(5),
//! 2016; delivery rate after draft-cheng-iccrg-delivery-rate-estimation). It measures two
//! properties of a path, its bandwidth and its shortest round trip; datagrams are paced at that
//! bandwidth, and about twice the product of both is in flight. Loss has no influence, so that a
//! path that loses datagrams for other reasons than congestion, or has a long delay, can be used.
//!
//! Implemented: start-up, drain, the cycle of gains, and probing for a shorter round trip. Not
//! implemented: policer detection, long-term sampling and ECN.

use super::limits::{QUANTUM_MAX, RTO_MAX};

/// Rounds of one window of the bandwidth maximum; the maximum covers two windows.
const WINDOW_ROUNDS: u8 = 5;
/// Rounds without growth that end start-up.
const FLAT_ROUNDS: u8 = 3;
/// Age of the shortest round trip, in microseconds, from which it is measured again.
const MIN_RTT_AGE: u64 = 10_000_000;
const MIN_RTT_PROBE: u64 = 200_000;
/// Datagrams in flight while the round trip is probed, and the minimum otherwise.
const DATAGRAMS_MIN: u64 = 4;
/// Datagrams in flight before the path has been measured.
const DATAGRAMS_INITIAL: u64 = 32;
/// How far datagrams may be sent ahead of their pacing, in microseconds: timers are coarse, and one
/// system call for several datagrams is cheaper.
const AHEAD: u64 = 1_000;
/// Gains in percent. 2/ln 2 doubles the rate each round.
const STARTUP_GAIN: u64 = 289;
const DRAIN_GAIN: u64 = 35;
const CYCLE: [u64; 8] = [125, 75, 100, 100, 100, 100, 100, 100];
const WINDOW_GAIN: u64 = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RatePhase {
    Startup,
    Drain,
    /// At this index of the cycle.
    Cruise(u8),
    ShorterRtt,
}

/// The measured state of one path.
#[derive(Debug)]
pub(super) struct Rate {
    /// Highest bandwidth in this window of rounds and in the last, in bytes per second.
    best: [u64; 2],
    /// Number of bytes delivered, and when the last were.
    delivered: u64,
    delivered_at: u64,
    /// When the datagram that was acknowledged last had been sent.
    first_sent_at: u64,
    /// The value of `delivered` that ends the current round.
    round_end: u64,
    /// When the phase started.
    phase_at: u64,
    next_send_at: u64,
    /// Bandwidth at which start-up last saw growth.
    full: u64,
    min_rtt_at: u64,
    /// 0 if unknown.
    min_rtt: u32,
    rounds: u8,
    flat: u8,
    phase: RatePhase,
}

/// What is recorded with each datagram that is sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    pub(super) at: u64,
    /// Length including headers.
    pub(super) len: u32,
    /// Whether less was in flight than allowed.
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
            phase: RatePhase::Startup,
        }
    }

    /// The shortest round trip in microseconds; 0 if unknown.
    pub(super) fn min_rtt(&self) -> u64 {
        self.min_rtt.into()
    }

    /// The measured bandwidth in bytes per second; 0 if unknown.
    fn bandwidth(&self) -> u64 {
        self.best[0].max(self.best[1])
    }

    fn pacing(&self) -> u64 {
        let gain = match self.phase {
            RatePhase::Startup => STARTUP_GAIN,
            RatePhase::Drain => DRAIN_GAIN,
            RatePhase::Cruise(at) => CYCLE[usize::from(at) % CYCLE.len()],
            RatePhase::ShorterRtt => 100,
        };
        self.bandwidth().saturating_mul(gain) / 100
    }

    /// The bandwidth-delay product in bytes.
    fn product(&self) -> u64 {
        self.bandwidth().saturating_mul(self.min_rtt.into()) / 1_000_000
    }

    /// Number of bytes that may be in flight, with datagrams of `datagram_len` bytes.
    pub(super) fn window(&self, datagram_len: u64) -> u64 {
        let least = DATAGRAMS_MIN * datagram_len;
        if self.bandwidth() == 0 || self.min_rtt == 0 {
            return DATAGRAMS_INITIAL * datagram_len;
        }
        let gain = match self.phase {
            RatePhase::Startup => STARTUP_GAIN,
            RatePhase::ShorterRtt => return least,
            RatePhase::Drain | RatePhase::Cruise(_) => WINDOW_GAIN,
        };
        let burst = self.pacing().saturating_mul(AHEAD) / 1_000_000;
        let quantum = burst.clamp(2 * datagram_len, QUANTUM_MAX.max(2 * datagram_len));
        (self.product().saturating_mul(gain) / 100 + 3 * quantum).max(least)
    }

    /// The earliest time for the next datagram; it may be in the past.
    pub(super) fn next_send_at(&self) -> u64 {
        self.next_send_at.saturating_sub(AHEAD)
    }

    /// Records that a datagram of `len` bytes is sent. `under_way` bytes are in flight before it;
    /// `idle` if the program has no more to send.
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

    /// Records that a datagram has arrived at the peer.
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

    /// Handles the end of a round.
    fn round(&mut self, idle: bool) {
        if !idle {
            self.rounds += 1;
        }
        if self.rounds >= WINDOW_ROUNDS {
            self.best = [0, self.best[0]];
            self.rounds = 0;
        }
        if self.phase != RatePhase::Startup || idle {
            return;
        }
        if self.bandwidth() >= self.full.saturating_mul(5) / 4 {
            (self.full, self.flat) = (self.bandwidth(), 0);
        } else {
            // `acknowledged`, which changes the phase, is not called if nothing is left in flight,
            // so stop counting here.
            self.flat = (self.flat + 1).min(FLAT_ROUNDS);
        }
    }

    /// Processes an acknowledgement. `rtt` is its round trip in microseconds, and `under_way` the
    /// bytes that are left in flight.
    pub(super) fn acknowledged(&mut self, now: u64, rtt: Option<u32>, under_way: u64) {
        let old = now.saturating_sub(self.min_rtt_at) > MIN_RTT_AGE;
        if let Some(rtt) = rtt
            && (self.min_rtt == 0 || rtt <= self.min_rtt || old)
        {
            (self.min_rtt, self.min_rtt_at) = (rtt.max(1), now);
        }
        let passed = now.saturating_sub(self.phase_at);
        let next = match self.phase {
            _ if old && self.phase != RatePhase::ShorterRtt => RatePhase::ShorterRtt,
            RatePhase::Startup if self.flat >= FLAT_ROUNDS => RatePhase::Drain,
            RatePhase::Drain if under_way <= self.product() => RatePhase::Cruise(0),
            RatePhase::Cruise(at) if passed > u64::from(self.min_rtt) => {
                RatePhase::Cruise((at + 1) % CYCLE.len() as u8)
            }
            RatePhase::ShorterRtt if passed > MIN_RTT_PROBE => match self.flat {
                FLAT_ROUNDS.. => RatePhase::Cruise(0),
                _ => RatePhase::Startup,
            },
            same => same,
        };
        if next != self.phase {
            (self.phase, self.phase_at) = (next, now);
        }
    }

    /// Keeps the measurements fresh over a time without traffic.
    pub(super) fn resume(&mut self, now: u64) {
        (self.min_rtt_at, self.phase_at) = (now, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn startup_may_last_any_number_of_rounds_without_an_acknowledgement() {
        let mut rate = Rate::new(0);
        for round in 1..1_000 {
            let sent = rate.sent(round * 100, 4_096, 0, false);
            rate.arrived(round * 100 + 50, &sent);
        }
        assert_eq!(rate.phase, RatePhase::Startup);
        rate.acknowledged(100_000, Some(50), 0);
        assert_eq!(rate.phase, RatePhase::Drain);
    }
}
