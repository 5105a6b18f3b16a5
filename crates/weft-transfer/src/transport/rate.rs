//! A token bucket for rate limits. The caller passes the time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A rate limit that several channels share.
pub type RateLimit = Arc<Mutex<TokenBucket>>;

/// Limits the average rate. It allows a burst after idle time.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    bytes_per_second: u64,
    burst: u64,
    /// Bytes allowed at `updated`; negative if more have passed.
    tokens: i128,
    updated: u64,
}

/// Nanoseconds in a second.
const SECOND: u128 = 1_000_000_000;

impl TokenBucket {
    /// Creates a full bucket at `now`, in nanoseconds of any clock.
    ///
    /// # Panics
    /// If the rate is zero.
    #[must_use]
    pub fn new(bytes_per_second: u64, burst: u64, now: u64) -> Self {
        assert!(bytes_per_second > 0, "a rate of nothing");
        Self { bytes_per_second, burst, tokens: i128::from(burst), updated: now }
    }

    /// Counts `bytes` that pass at `now`, and returns how long to wait before the next call.
    pub fn pass(&mut self, bytes: u64, now: u64) -> Duration {
        let elapsed = u128::from(now.saturating_sub(self.updated));
        let earned = elapsed * u128::from(self.bytes_per_second) / SECOND;
        if earned > 0 {
            // `updated` advances only by the earned tokens, so rounding loses no time.
            let spent = earned * SECOND / u128::from(self.bytes_per_second);
            self.updated += u64::try_from(spent).unwrap_or(u64::MAX - self.updated);
            let earned = i128::try_from(earned).unwrap_or(i128::MAX);
            self.tokens = self.tokens.saturating_add(earned).min(i128::from(self.burst));
        }
        self.tokens -= i128::from(bytes);
        let owed = u128::try_from(-self.tokens).unwrap_or(0);
        let wait = owed * SECOND / u128::from(self.bytes_per_second);
        Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn burst_passes_at_once_and_then_the_rate_is_limited() {
        let mut bucket = TokenBucket::new(1_000, 100, 0);
        assert_eq!(bucket.pass(100, 0), Duration::ZERO);
        assert_eq!(bucket.pass(50, 0), Duration::from_millis(50));
        assert_eq!(bucket.pass(10, 50_000_000), Duration::from_millis(10));
        // A long idle time earns no more than the burst.
        assert_eq!(bucket.pass(100, 3_600_000_000_000), Duration::ZERO);
        assert_eq!(bucket.pass(1, 3_600_000_000_000), Duration::from_millis(1));
    }

    proptest! {
        #[test]
        fn sender_that_waits_keeps_the_rate(
            rate in 1_u64..10_000_000_000,
            blocks in prop::collection::vec(1_u64..2_000_000, 1..100),
        ) {
            let mut now = 77;
            let mut bucket = TokenBucket::new(rate, 0, now);
            for bytes in &blocks {
                now += u64::try_from(bucket.pass(*bytes, now).as_nanos()).expect("short") + 1;
            }
            let total: u64 = blocks.iter().sum();
            let least = u128::from(total) * SECOND / u128::from(rate);
            let took = u128::from(now - 77);
            prop_assert!(took >= least, "{} ns for {} bytes", took, total);
            let most = least + 3 * (blocks.len() as u128) * (1 + SECOND / u128::from(rate));
            prop_assert!(took <= most, "{} ns, not {}", took, most);
        }
    }
}
