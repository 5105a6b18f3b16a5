//! A limit of a rate: a token bucket, to which the time is an argument.

use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A limit that several channels keep together.
pub type RateLimit = Arc<Mutex<TokenBucket>>;

/// Lets so many bytes a second pass, over times that are long beside the burst.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    bytes_per_second: u64,
    burst: u64,
    /// Bytes that may pass at `updated`; negative after more than that passed.
    tokens: i128,
    updated: u64,
}

/// Nanoseconds of a second.
const SECOND: u128 = 1_000_000_000;

impl TokenBucket {
    /// One that is full at `now` (nanoseconds of any clock).
    ///
    /// # Panics
    /// If nothing could pass.
    #[must_use]
    pub fn new(bytes_per_second: u64, burst: u64, now: u64) -> Self {
        assert!(bytes_per_second > 0, "a rate of nothing");
        Self { bytes_per_second, burst, tokens: i128::from(burst), updated: now }
    }

    /// Lets `bytes` pass at `now`, at any rate. Returns how long to wait before the next call.
    pub fn pass(&mut self, bytes: u64, now: u64) -> Duration {
        let elapsed = u128::from(now.saturating_sub(self.updated));
        let earned = elapsed * u128::from(self.bytes_per_second) / SECOND;
        if earned > 0 {
            // What is lost by rounding stays in the time.
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
    fn burst_passes_at_once_and_then_the_rate_holds() {
        let mut bucket = TokenBucket::new(1_000, 100, 0);
        assert_eq!(bucket.pass(100, 0), Duration::ZERO);
        assert_eq!(bucket.pass(50, 0), Duration::from_millis(50));
        assert_eq!(bucket.pass(10, 50_000_000), Duration::from_millis(10));
        // A long rest earns no more than the burst.
        assert_eq!(bucket.pass(100, 3_600_000_000_000), Duration::ZERO);
        assert_eq!(bucket.pass(1, 3_600_000_000_000), Duration::from_millis(1));
    }

    proptest! {
        #[test]
        fn obedient_sender_keeps_the_rate(
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
