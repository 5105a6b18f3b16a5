//! Decides how often to defer sends of a program that writes to their buffers before they are
//! pulled. Each such write fault costs a copy, and the ring would have been cheaper.

use crate::limits::PAUSE_MAX;

/// Number of deferred sends after which the write faults among them are counted.
const WINDOW: u32 = 32;
/// More than one write fault in this many deferred sends is too many.
const TOLERATED: u32 = 4;
/// Messages that take another path after too many faults. Doubles each time in a row, up to
/// [`PAUSE_MAX`].
const PAUSE_MIN: u32 = 128;

/// The write faults of one connection.
#[derive(Debug, Default)]
pub struct FaultBackoff {
    deferred: u32,
    faults: u32,
    /// Messages that may not be deferred yet.
    left: u32,
    pause: u32,
}

impl FaultBackoff {
    /// Whether to defer the next message, given the number of `faults` since the last one.
    pub fn may_defer(&mut self, faults: u32) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        self.deferred += 1;
        self.faults = self.faults.saturating_add(faults);
        if self.faults > WINDOW / TOLERATED {
            self.pause = (2 * self.pause).clamp(PAUSE_MIN, PAUSE_MAX);
            (self.deferred, self.faults, self.left) = (0, 0, self.pause);
            return false;
        }
        if self.deferred >= WINDOW {
            (self.deferred, self.faults, self.pause) = (0, 0, 0);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the deferred sends among `messages`, when the program writes to one of `every`
    /// deferred.
    fn count_deferred(fault_backoff: &mut FaultBackoff, messages: u32, every: u32) -> u32 {
        let mut made = 0;
        let mut faults = 0;
        for _ in 0..messages {
            if fault_backoff.may_defer(std::mem::take(&mut faults)) {
                made += 1;
                faults = u32::from(made % every == 0);
            }
        }
        made
    }

    #[test]
    fn rare_write_faults_do_not_stop_deferral() {
        assert_eq!(count_deferred(&mut FaultBackoff::default(), 10_000, 5), 10_000);
    }

    #[test]
    fn frequent_write_faults_pause_deferral_ever_longer() {
        let mut fault_backoff = FaultBackoff::default();
        let first = count_deferred(&mut fault_backoff, 10_000, 1);
        assert!((50..200).contains(&first), "{first}");
        let later = count_deferred(&mut fault_backoff, 100_000, 1);
        assert!(later < 100, "{later}");
        assert!(
            count_deferred(&mut fault_backoff, 100_000, 100) > 80_000,
            "the program has changed"
        );
    }
}
