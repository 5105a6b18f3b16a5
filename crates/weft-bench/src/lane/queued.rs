//! Lanes of verbs, whose events all come from one queue.

use std::time::Duration;

use anyhow::Result;

use super::{Deadline, Lane};

/// A lane that gets its completions and messages from one queue.
pub(super) trait Queued: Lane + Sized {
    /// Takes events from the queue. Returns whether there were any.
    fn take_next(&mut self) -> Result<bool>;

    /// Returns whether it polls again at once instead of sleeping.
    fn spins(&self) -> bool;

    /// Waits until `is_done`. Returns whether it became true in time.
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
