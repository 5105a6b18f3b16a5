//! Measures how many bytes a connection holds.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::Tally;
use crate::lane::{Blocking, Lane};
use crate::limits::FILL_MAX;
use crate::plan::Operation;

/// How long there must be no room: bytes in flight in the kernel may still make some.
const QUIET: Duration = Duration::from_millis(10);

/// Sends to a peer that reads nothing, until there is no room.
///
/// # Errors
/// If the connection breaks.
pub(crate) fn fill(lane: &mut dyn Lane, duration: Duration) -> Result<Tally> {
    let mut tally = Tally::new();
    let end = Instant::now() + duration + FILL_MAX;
    let mut full_since = None;
    while Instant::now() < end {
        if lane.send(0, Operation::Send, false, Blocking::Now)? {
            tally.started += 1;
            full_since = None;
        } else if full_since.get_or_insert_with(Instant::now).elapsed() >= QUIET {
            break;
        } else {
            std::thread::sleep(QUIET / 10);
        }
    }
    Ok(tally)
}
