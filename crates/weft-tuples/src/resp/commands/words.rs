//! Arguments of commands, as strict and as lenient as Redis is.

use std::time::Duration;

use super::problem::{INTEGER, Problem, STAMP, SYNTAX};
use crate::model::{ElementEnd, Now, Stamp, Wait};

/// Whether an argument is a word, in capitals or not.
pub(super) fn is(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

/// Parses a number of 64 bits. It has no sign but `-`, and no zeros in front.
pub(super) fn integer(argument: &[u8]) -> Option<i64> {
    let digits = argument.strip_prefix(b"-").unwrap_or(argument);
    let is_plain = argument == b"0" || matches!(digits.first(), Some(b'1'..=b'9'));
    std::str::from_utf8(argument).ok().filter(|_| is_plain)?.parse().ok()
}

pub(super) fn number(argument: &[u8]) -> Result<i64, Problem> {
    integer(argument).ok_or(INTEGER)
}

/// Parses a number that is at least `least`. Any other argument is the error `text`.
pub(super) fn number_from(argument: &[u8], least: i64, text: &'static str) -> Result<i64, Problem> {
    integer(argument).filter(|it| *it >= least).ok_or(Problem::Text(text))
}

/// A number of tuples: a larger one than there can be means all, a negative one none.
pub(super) fn as_count(number: i64) -> u32 {
    u32::try_from(number.max(0)).unwrap_or(u32::MAX)
}

/// Parses a time to wait in seconds; 0 is for ever.
pub(super) fn seconds(now: Now, argument: &[u8]) -> Result<Wait, Problem> {
    const WRONG: Problem = Problem::Text("ERR timeout is not a float or out of range");
    let text = std::str::from_utf8(argument).map_err(|_| WRONG)?;
    let seconds: f64 = text.parse().map_err(|_| WRONG)?;
    if seconds.is_nan() {
        return Err(WRONG);
    }
    let ms = (seconds * 1_000.0).ceil();
    // Redis, too, takes a time that is too long for a negative one.
    until(now, if ms < i64::MAX as f64 { ms as i64 } else { -1 })
}

/// Parses a time to wait in milliseconds; 0 is for ever.
pub(super) fn milliseconds(now: Now, argument: &[u8]) -> Result<Wait, Problem> {
    let ms = integer(argument);
    until(now, ms.ok_or(Problem::Text("ERR timeout is not an integer or out of range"))?)
}

fn until(now: Now, ms: i64) -> Result<Wait, Problem> {
    let ms = u64::try_from(ms).map_err(|_| Problem::Text("ERR timeout is negative"))?;
    if ms == 0 {
        return Ok(Wait::Forever);
    }
    // A time beyond the clock is for ever.
    let deadline = now.clock.checked_add(Duration::from_millis(ms));
    Ok(deadline.map_or(Wait::Forever, Wait::Until))
}

/// Parses LEFT or RIGHT.
pub(super) fn end(argument: &[u8]) -> Result<ElementEnd, Problem> {
    match argument {
        word if is(word, "LEFT") => Ok(ElementEnd::Front),
        word if is(word, "RIGHT") => Ok(ElementEnd::Back),
        _ => Err(SYNTAX),
    }
}

/// Parses a time stamp: `MS` or `MS-COUNT`. The count is `count` if there is none.
pub(super) fn stamp(argument: &[u8], count: u64) -> Result<Stamp, Problem> {
    let text = std::str::from_utf8(argument).map_err(|_| STAMP)?;
    let parse = |text: &str| text.parse::<u64>().map_err(|_| STAMP);
    let (ms, count) = match text.split_once('-') {
        Some((ms, count)) => (parse(ms)?, parse(count)?),
        None => (parse(text)?, count),
    };
    Ok(Stamp { ms, count })
}

/// Parses a time stamp, or `-` for the first one of all and `+` for the last one.
pub(super) fn any_stamp(argument: &[u8], count: u64) -> Result<Stamp, Problem> {
    match argument {
        b"-" => Ok(Stamp::default()),
        b"+" => Ok(Stamp::LAST),
        _ => stamp(argument, count),
    }
}

#[cfg(test)]
mod tests {
    use super::integer;

    #[test]
    fn integers_are_as_strict_as_those_of_redis() {
        for (text, number) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("+1", None),
            ("01", None),
            ("-0", None),
            ("-", None),
            ("", None),
            (" 1", None),
        ] {
            assert_eq!(integer(text.as_bytes()), number, "{text}");
        }
    }
}
