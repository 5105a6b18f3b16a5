//! Lanes of verbs, which have one queue for what they wait for.

use std::time::Duration;

use anyhow::Result;

use super::{Deadline, Lane};

/// A lane that learns what has ended, and what has come, from one queue.
pub(super) trait Queued: Lane + Sized {
    /// Takes from the queue. Returns whether there was anything.
    fn take_next(&mut self) -> Result<bool>;

    /// Whether it looks again at once instead of sleeping.
    fn spins(&self) -> bool;

    /// Waits until `is_done`. Returns whether it was in time.
    fn wait_until(&mut self, limit: Duration, is_done: impl Fn(&Self) -> bool) -> Result<bool> {
        let mut deadline = Deadline::new(limit, self.spins());
        while !is_done(self) {
            if !self.take_next()? {
                if deadline.is_over() {
                    return Ok(false);
                }
                self.wait()?;
            }
        }
        Ok(true)
    }
}
