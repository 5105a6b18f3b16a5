//! Attempts of a copy that goes on after its connection was lost.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use weft_transfer::end::EndError;

use crate::limits::{LOSSES_MAX, RETRY_PAUSES};

/// What an attempt has reached before it failed.
pub(super) struct Reached {
    /// Whether the other end has accepted the copy in this attempt.
    pub(super) is_open: bool,
    /// Bytes of all attempts.
    pub(super) bytes: u64,
}

/// Makes attempts until one does not lose its connection. After each loss, attempts are made for
/// `time`. The first attempt has to reach the other end, since otherwise its name may be wrong.
///
/// # Errors
/// The failure of the last attempt.
pub(super) fn attempt<T>(
    time: Duration,
    mut copy: impl FnMut() -> Result<T>,
    reached: impl Fn() -> Reached,
    report: impl Fn(&anyhow::Error),
) -> Result<T> {
    let (mut bytes, mut losses, mut end) = (0, 0, None);
    let mut pause = RETRY_PAUSES[0];
    loop {
        let error = match copy() {
            Err(error) if is_lost(&error) && !time.is_zero() => error,
            result => return result,
        };
        let now = reached();
        // A peer that accepts each connection, and does nothing, gets no more time.
        if now.is_open && (end.is_none() || now.bytes > bytes) && losses < LOSSES_MAX {
            report(&error);
            losses += 1;
            bytes = now.bytes;
            end = Some(Instant::now() + time);
            pause = RETRY_PAUSES[0];
        }
        match end {
            Some(end) if Instant::now() + pause < end => thread::sleep(pause),
            _ => return Err(error),
        }
        pause = (2 * pause).min(RETRY_PAUSES[1]);
    }
}

/// Whether the connection was lost, so that another one may help.
fn is_lost(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(EndError::is_lost)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const TIME: Duration = Duration::from_secs(2);

    /// Makes attempts, of which each gets its number, and returns their number and the result.
    fn attempts(
        time: Duration,
        copy: impl Fn(u32) -> Result<(), EndError>,
        reached: impl Fn(u32) -> Reached,
    ) -> (u32, u32, Result<()>) {
        let (made, reports) = (Cell::new(0), Cell::new(0));
        let copy = || {
            made.set(made.get() + 1);
            Ok(copy(made.get())?)
        };
        let report = |_: &anyhow::Error| reports.set(reports.get() + 1);
        let result = attempt(time, copy, || reached(made.get()), report);
        (made.get(), reports.get(), result)
    }

    fn lost() -> Result<(), EndError> {
        Err(EndError::Lost("cut".into()))
    }

    #[test]
    fn copy_goes_on_after_each_loss() {
        let copy = |made| if made < 4 { lost() } else { Ok(()) };
        let reached = |made| Reached { is_open: true, bytes: u64::from(made) };
        let (made, reports, result) = attempts(TIME, copy, reached);
        assert_eq!((made, reports), (4, 3));
        result.expect("the fourth attempt is whole");
    }

    #[test]
    fn other_end_that_was_never_reached_is_tried_once() {
        let reached = |_| Reached { is_open: false, bytes: 0 };
        let (made, reports, result) = attempts(TIME, |_| lost(), reached);
        assert_eq!((made, reports), (1, 0));
        result.expect_err("it is lost");
    }

    #[test]
    fn attempts_without_progress_end_in_time() {
        let start = Instant::now();
        let reached = |_| Reached { is_open: true, bytes: 7 };
        let (made, reports, result) = attempts(TIME, |_| lost(), reached);
        assert!(made > 1 && start.elapsed() < Duration::from_secs(240), "{made}");
        assert_eq!(reports, 1);
        result.expect_err("it is lost");
    }

    #[test]
    fn other_failures_and_no_time_end_the_copy() {
        let reached = |_| Reached { is_open: true, bytes: 7 };
        let refused = |_| Err(EndError::Peer("no".into()));
        assert_eq!(attempts(TIME, refused, reached).0, 1);
        assert_eq!(attempts(Duration::ZERO, |_| lost(), reached).0, 1);
    }
}
