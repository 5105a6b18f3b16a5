//! How often to promise messages of a program that writes to their buffers before they have been
//! pulled: each such touch costs a page fault and a copy, and the ring would have been cheaper.

use crate::limits::PAUSE_MAX;

/// Promises after which the touches among them are looked at.
const WINDOW: u32 = 32;
/// More than one touch in so many promises are too many.
const TOLERATED: u32 = 4;
/// Messages that go another way then; twice as many each time in a row, up to [`PAUSE_MAX`].
const PAUSE_MIN: u32 = 128;

/// What is known of a connection's program.
#[derive(Debug, Default)]
pub struct Patience {
    promised: u32,
    touched: u32,
    /// Messages for which nothing is promised yet.
    left: u32,
    pause: u32,
}

impl Patience {
    /// Whether to promise the next message, after so many `touches` since the last one.
    pub fn may_promise(&mut self, touches: u32) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        self.promised += 1;
        self.touched = self.touched.saturating_add(touches);
        if self.touched > WINDOW / TOLERATED {
            self.pause = (2 * self.pause).clamp(PAUSE_MIN, PAUSE_MAX);
            (self.promised, self.touched, self.left) = (0, 0, self.pause);
            return false;
        }
        if self.promised >= WINDOW {
            (self.promised, self.touched, self.pause) = (0, 0, 0);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promises made for so many messages, of which each one of `every` is touched.
    fn promises(patience: &mut Patience, messages: u32, every: u32) -> u32 {
        let mut made = 0;
        let mut touches = 0;
        for _ in 0..messages {
            if patience.may_promise(std::mem::take(&mut touches)) {
                made += 1;
                touches = u32::from(made % every == 0);
            }
        }
        made
    }

    #[test]
    fn few_touches_are_tolerated() {
        assert_eq!(promises(&mut Patience::default(), 10_000, 5), 10_000);
    }

    #[test]
    fn many_end_it_for_ever_longer() {
        let mut patience = Patience::default();
        let first = promises(&mut patience, 10_000, 1);
        assert!((50..200).contains(&first), "{first}");
        let later = promises(&mut patience, 100_000, 1);
        assert!(later < 100, "{later}");
        assert!(promises(&mut patience, 100_000, 100) > 80_000, "the program has changed");
    }
}
