//! Lanes of verbs, whose events all come from one queue.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{Arrival, Blocking, Deadline, Lane};
use crate::limits::SILENCE_MAX;

/// A lane that gets its completions and messages from one queue.
pub(super) trait Queued: Lane + Sized {
    /// Takes events from the queue. Returns whether there were any.
    fn take_next(&mut self) -> Result<bool>;

    /// Returns whether it polls again at once instead of sleeping.
    fn spins(&self) -> bool;

    /// Returns whether the events have brought messages that are not taken yet.
    fn has_arrivals(&self) -> bool;

    /// Takes the first of these messages.
    fn take_arrival(&mut self) -> Option<Arrival>;

    /// Looks for room, or waits until there is some. Returns whether there is.
    fn make_room(&mut self, blocking: Blocking, has_room: impl Fn(&Self) -> bool) -> Result<bool> {
        if !has_room(self) {
            match blocking {
                Blocking::Now => drop(self.take_next()?),
                Blocking::Wait => self.wait_for_completions(&has_room)?,
            }
        }
        Ok(has_room(self))
    }

    /// Waits until enough requests have completed.
    fn wait_for_completions(&mut self, are_enough: impl Fn(&Self) -> bool) -> Result<()> {
        let in_time = self.wait_until(SILENCE_MAX, are_enough)?;
        ensure!(in_time, "no request has completed for {SILENCE_MAX:?}");
        Ok(())
    }

    /// Returns the next message. `None` if there is none now, or none has come in time.
    fn next_arrival(&mut self, blocking: Blocking) -> Result<Option<Arrival>> {
        if !self.has_arrivals() {
            if blocking == Blocking::Now {
                self.take_next()?;
            } else {
                self.wait_until(self.silence(), Self::has_arrivals)?;
            }
        }
        Ok(self.take_arrival())
    }

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
