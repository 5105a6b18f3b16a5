//! Round-trip time, and the retransmission timeout derived from it (RFC 6298).

use super::limits::{RTO_INITIAL, RTO_MAX, RTO_MIN};

/// The estimate, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rtt {
    /// 0 before the first measurement.
    smoothed: u32,
    variation: u32,
}

impl Rtt {
    /// Adds a measurement in microseconds.
    pub(super) fn measured(&mut self, rtt: u32) {
        let rtt = rtt.max(1);
        if self.smoothed == 0 {
            (self.smoothed, self.variation) = (rtt, rtt / 2);
            return;
        }
        let (smoothed, variation) = (u64::from(self.smoothed), u64::from(self.variation));
        let error = u64::from(self.smoothed.abs_diff(rtt));
        // RFC 6298, (2.3): alpha is 1/8, beta 1/4. Averages of 32-bit values fit in 32 bits.
        self.variation = ((3 * variation + error) / 4) as u32;
        self.smoothed = ((7 * smoothed + u64::from(rtt)) / 8).max(1) as u32;
    }

    /// The smoothed time; 0 before the first measurement.
    pub(super) fn smoothed(&self) -> u64 {
        self.smoothed.into()
    }

    /// The retransmission timeout, doubled `backoff` times.
    pub(super) fn timeout(&self, backoff: u8) -> u64 {
        let base = match self.smoothed {
            0 => RTO_INITIAL,
            smoothed => u64::from(smoothed) + 4 * u64::from(self.variation),
        };
        let base = base.max(RTO_MIN);
        (base << backoff.min(16)).min(RTO_MAX).max(base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_follows_the_measurements() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout(0), RTO_INITIAL);
        rtt.measured(100_000);
        assert_eq!((rtt.smoothed(), rtt.timeout(0)), (100_000, 300_000));
        for _ in 0..100 {
            rtt.measured(40_000);
        }
        assert!((40_000..41_000).contains(&rtt.smoothed()));
        assert!(rtt.timeout(0) < 50_000);
        assert_eq!(rtt.timeout(1), 2 * rtt.timeout(0));
        assert_eq!(rtt.timeout(u8::MAX), RTO_MAX);
        for _ in 0..100 {
            rtt.measured(0);
        }
        assert_eq!(rtt.timeout(0), RTO_MIN);
        // A slower path than `RTO_MAX` still gets its own timeout.
        for _ in 0..100 {
            rtt.measured(5_000_000);
        }
        assert!((5_000_000..6_000_000).contains(&rtt.timeout(3)));
    }
}
