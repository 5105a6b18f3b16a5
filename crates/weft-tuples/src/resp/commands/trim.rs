//! The options of `XADD` and `XTRIM`.

use super::problem::{Problem, SYNTAX};
use super::words::{integer, is, number, stamp};
use crate::model::{ElementEnd, Name, Now, Space, Stamp};

/// The entries of a node of Redis' streams.
const NODE_LEN: usize = 100;
/// The most entries that are removed approximately, unless the command says it.
const LIMIT: i64 = 100 * NODE_LEN as i64;

/// Which entries stay.
enum Kept {
    All,
    /// This many, the last ones.
    Last(usize),
    /// Those from a time stamp on.
    From(Stamp),
}

pub(super) struct Options {
    kept: Kept,
    /// Entries are removed by whole nodes of [`NODE_LEN`], as Redis does.
    is_approximate: bool,
    /// The most entries that are removed.
    limit: Option<i64>,
    /// Nothing is added if there is no stream.
    pub(super) needs_stream: bool,
}

impl Options {
    /// Parses options up to the first argument that is none. `XTRIM` allows no other argument.
    pub(super) fn parse(
        mut words: &[Vec<u8>],
        is_add: bool,
    ) -> Result<(Self, &[Vec<u8>]), Problem> {
        let mut options =
            Self { kept: Kept::All, is_approximate: false, limit: None, needs_stream: false };
        loop {
            words = match words {
                [word, rest @ ..] if is_add && is(word, "NOMKSTREAM") => {
                    options.needs_stream = true;
                    rest
                }
                [word, rest @ ..] if is(word, "MAXLEN") && !rest.is_empty() => {
                    options.strategy(rest, |argument| {
                        let len = usize::try_from(number(argument)?);
                        let len = len
                            .map_err(|_| Problem::Text("ERR The MAXLEN argument must be >= 0."))?;
                        Ok(Kept::Last(len))
                    })?
                }
                [word, rest @ ..] if is(word, "MINID") && !rest.is_empty() => {
                    options.strategy(rest, |argument| Ok(Kept::From(stamp(argument, 0)?)))?
                }
                [word, limit, rest @ ..] if is(word, "LIMIT") => {
                    let limit = integer(limit).ok_or(super::problem::INTEGER)?;
                    if limit < 0 {
                        return Err(Problem::Text("ERR The LIMIT argument must be >= 0."));
                    }
                    options.limit = Some(limit);
                    rest
                }
                [_, ..] if !is_add => return Err(SYNTAX),
                rest => return Ok((options, rest)),
            }
        }
    }

    /// Parses what comes behind `MAXLEN` or `MINID`.
    fn strategy<'a>(
        &mut self,
        words: &'a [Vec<u8>],
        parse: impl FnOnce(&[u8]) -> Result<Kept, Problem>,
    ) -> Result<&'a [Vec<u8>], Problem> {
        if self.trims() {
            return Err(Problem::Text(
                "ERR syntax error, MAXLEN and MINID options at the same time are not compatible",
            ));
        }
        let (argument, rest) = match words {
            [mark, argument, rest @ ..] if matches!(&mark[..], b"~" | b"=") => {
                self.is_approximate = mark == b"~";
                (argument, rest)
            }
            [argument, rest @ ..] => {
                self.is_approximate = false;
                (argument, rest)
            }
            [] => return Err(SYNTAX),
        };
        self.kept = parse(argument)?;
        Ok(rest)
    }

    pub(super) fn trims(&self) -> bool {
        !matches!(self.kept, Kept::All)
    }

    /// Checks that the options go together.
    pub(super) fn check(&self) -> Result<(), Problem> {
        match self.limit {
            Some(limit) if limit != 0 && !self.trims() => Err(Problem::Text(
                "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy",
            )),
            Some(_) if !self.is_approximate => Err(Problem::Text(
                "ERR syntax error, LIMIT cannot be used without the special ~ option",
            )),
            _ => Ok(()),
        }
    }

    /// Returns how many of the first `count` of `len` entries are in whole nodes, and within the
    /// limit.
    fn nodes(&self, count: usize, len: usize) -> usize {
        let limit = self.limit.unwrap_or(LIMIT);
        let most =
            if limit == 0 { usize::MAX } else { usize::try_from(limit).unwrap_or(usize::MAX) };
        // The last node has what is left.
        if count == len && len <= most {
            return len;
        }
        count.min(most) / NODE_LEN * NODE_LEN
    }

    /// Removes the entries that are not kept. Returns how many there were.
    pub(super) fn trim(&self, now: Now, space: &mut Space, stream: &Name) -> usize {
        let count = match self.kept {
            Kept::All => 0,
            Kept::Last(len) => space.len(stream).saturating_sub(len),
            Kept::From(first) => {
                space.tuples(stream).take_while(|(rank, _)| rank.stamp < first).count()
            }
        };
        let count = if self.is_approximate { self.nodes(count, space.len(stream)) } else { count };
        space.trim(now, stream, ElementEnd::Front, count)
    }
}
