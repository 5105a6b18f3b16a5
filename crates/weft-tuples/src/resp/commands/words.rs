//! Arguments of commands.

use std::time::Duration;

use super::problem::Problem;
use crate::model::{ElementEnd, Now, Stamp, Wait};

/// Whether an argument is a word, in capitals or not.
pub(super) fn is(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

pub(super) fn number<N: std::str::FromStr>(argument: &[u8]) -> Result<N, Problem> {
    let text = std::str::from_utf8(argument).map_err(|_| Problem::Integer)?;
    text.parse().map_err(|_| Problem::Integer)
}

/// Parses a number of tuples. A larger one than there can be means all.
pub(super) fn count(argument: &[u8]) -> Result<u32, Problem> {
    let count: i64 = number(argument)?;
    u64::try_from(count)
        .map(|count| u32::try_from(count).unwrap_or(u32::MAX))
        .map_err(|_| Problem::Integer)
}

/// Parses a time to wait in seconds; 0 is for ever.
pub(super) fn seconds(now: Now, argument: &[u8]) -> Result<Wait, Problem> {
    let text = std::str::from_utf8(argument).map_err(|_| Problem::Timeout)?;
    let seconds: f64 = text.parse().map_err(|_| Problem::Timeout)?;
    if seconds < 0.0 {
        return Err(Problem::NegativeTimeout);
    }
    until(now, Duration::try_from_secs_f64(seconds).map_err(|_| Problem::Timeout)?)
}

/// Parses a time to wait in milliseconds; 0 is for ever.
pub(super) fn milliseconds(now: Now, argument: &[u8]) -> Result<Wait, Problem> {
    let ms: i64 = number(argument)?;
    until(now, Duration::from_millis(u64::try_from(ms).map_err(|_| Problem::NegativeTimeout)?))
}

fn until(now: Now, time: Duration) -> Result<Wait, Problem> {
    if time.is_zero() {
        return Ok(Wait::Forever);
    }
    now.clock.checked_add(time).map(Wait::Until).ok_or(Problem::Timeout)
}

/// Parses LEFT or RIGHT.
pub(super) fn end(argument: &[u8]) -> Result<ElementEnd, Problem> {
    match argument {
        word if is(word, "LEFT") => Ok(ElementEnd::Front),
        word if is(word, "RIGHT") => Ok(ElementEnd::Back),
        _ => Err(Problem::Syntax),
    }
}

/// Parses a time stamp: `MS` or `MS-COUNT`. The count is `count` if there is none.
pub(super) fn stamp(argument: &[u8], count: u64) -> Result<Stamp, Problem> {
    let text = std::str::from_utf8(argument).map_err(|_| Problem::Stamp)?;
    let parse = |text: &str| text.parse::<u64>().map_err(|_| Problem::Stamp);
    let (ms, count) = match text.split_once('-') {
        Some((ms, count)) => (parse(ms)?, parse(count)?),
        None => (parse(text)?, count),
    };
    Ok(Stamp { ms, count })
}
