//! Commands for streams: elements that are ordered by time stamps.

use std::rc::Rc;

use super::words::{count, is, milliseconds, stamp};
use super::{Call, Pending, Problem, Step, arguments};
use crate::model::{
    Count, Criteria, ElementEnd, Fields, Item, Name, Operation, Order, Outcome, Rank, Refusal,
    Selection, Stamp, Sync, Tuple, Wait,
};
use crate::resp::reply::Replies;

/// The streams that an XREAD reads.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::resp) struct StreamNames(Vec<Name>);

impl StreamNames {
    /// Writes what was found in the streams.
    pub(super) fn reply(&self, replies: &mut Replies, found: &[(usize, Vec<Item>)]) {
        replies.array(found.len());
        for (at, items) in found {
            replies.array(2);
            replies.bulk(self.0.get(*at).map_or(&[], |name| name));
            replies.entries(items);
        }
    }
}

impl Call<'_> {
    /// Runs a command for streams. `None` if it is another one.
    pub(super) fn streams(
        &mut self,
        name: &str,
        words: &[Vec<u8>],
    ) -> Option<Result<Step, Problem>> {
        Some(match name {
            "xadd" => self.add(words),
            "xread" => self.read_streams(words),
            "xlen" => self.stream_length(words),
            "xrange" => self.stream_range(words),
            _ => return None,
        })
    }

    fn add(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let [element, id, fields @ ..] = words else { return Err(arguments()) };
        let is_option = ["NOMKSTREAM", "MAXLEN", "MINID"].iter().any(|word| is(id, word));
        if is_option {
            return Err(Problem::Syntax);
        }
        if fields.is_empty() || !fields.len().is_multiple_of(2) {
            return Err(arguments());
        }
        let element: Name = Rc::from(&element[..]);
        let last = self.stream(&element)?.map_or_else(Stamp::default, |it| it.last);
        let stamp = match &id[..] {
            b"*" => None,
            id => Some(match id.strip_suffix(b"-*") {
                Some(ms) => in_ms(stamp(ms, 0)?.ms, last)?,
                None => stamp(id, 0)?,
            }),
        };
        if stamp == Some(Stamp::default()) {
            return Err(Problem::Refused(Refusal::Stamp));
        }
        let tuple = Tuple { stamp, fields: Fields::from(fields), ..Tuple::default() };
        let criteria = Criteria { order: Order::Time, sync: Sync::Unbounded };
        let (tuples, end) = (vec![tuple], ElementEnd::Back);
        let put = Operation::Put { element, criteria, end, tuples, is_append: true };
        if let Outcome::Put(rank, _) = self.now(put)? {
            self.replies.stamp(rank.stamp);
        }
        Ok(Step::Replied)
    }

    fn read_streams(&mut self, mut words: &[Vec<u8>]) -> Result<Step, Problem> {
        let (mut most, mut wait) = (u32::MAX, Wait::No);
        loop {
            match words {
                [word, number, rest @ ..] if is(word, "COUNT") => {
                    // 0 is no limit.
                    most = Some(count(number)?).filter(|most| *most != 0).unwrap_or(u32::MAX);
                    words = rest;
                }
                [word, ms, rest @ ..] if is(word, "BLOCK") => {
                    wait = milliseconds(self.now, ms)?;
                    words = rest;
                }
                [word, rest @ ..] if is(word, "STREAMS") => {
                    words = rest;
                    break;
                }
                _ => return Err(Problem::Syntax),
            }
        }
        if words.is_empty() || !words.len().is_multiple_of(2) {
            return Err(arguments());
        }
        let (names, ids) = words.split_at(words.len() / 2);
        let names: Vec<Name> = names.iter().map(|name| Rc::from(&name[..])).collect();
        let mut elements = Vec::with_capacity(names.len());
        for (name, id) in names.iter().zip(ids) {
            let stream = self.stream(name)?;
            let stamp = match &id[..] {
                b"$" => stream.map_or_else(Stamp::default, |it| it.last),
                id => stamp(id, 0)?,
            };
            // Behind all tuples with this time stamp.
            let after = Rank { key: Vec::new(), stamp, position: i64::MAX };
            elements.push((Rc::clone(name), Some(after)));
        }
        let observe = Operation::Observe { elements, count: Count::AtMost(most) };
        self.wait(observe, wait, Pending::Read(StreamNames(names)))
    }

    fn stream_length(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let [element] = words else { return Err(arguments()) };
        let len = self.stream(&Rc::from(&element[..]))?.map_or(0, |it| it.len);
        self.replies.number(len);
        Ok(Step::Replied)
    }

    fn stream_range(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let (element, from, to, count) = match words {
            [element, from, to] => (element, from, to, u32::MAX),
            [element, from, to, word, number] if is(word, "COUNT") => {
                (element, from, to, count(number)?)
            }
            [_, _, _, ..] => return Err(Problem::Syntax),
            _ => return Err(arguments()),
        };
        let from = match &from[..] {
            b"-" => Stamp::default(),
            [b'(', from @ ..] => stamp(from, 0)?.next().ok_or(Problem::Stamp)?,
            from => stamp(from, 0)?,
        };
        let to = match &to[..] {
            b"+" => Stamp::LAST,
            [b'(', to @ ..] => before(stamp(to, 0)?)?,
            to => stamp(to, u64::MAX)?,
        };
        let element: Name = Rc::from(&element[..]);
        self.stream(&element)?;
        let selection = Selection::Stamps(from, to);
        if let Outcome::Read(items) = self.now(Operation::Read { element, selection, count })? {
            self.replies.entries(&items);
        }
        Ok(Step::Replied)
    }
}

/// Returns the next time stamp of a millisecond.
fn in_ms(ms: u64, last: Stamp) -> Result<Stamp, Problem> {
    let first = Stamp { ms, count: u64::from(ms == 0) };
    let next = last.next().ok_or(Problem::Refused(Refusal::Stamp))?;
    let stamp = if last.ms == ms { next } else { first };
    if stamp.ms == ms { Ok(stamp) } else { Err(Problem::Refused(Refusal::Stamp)) }
}

fn before(stamp: Stamp) -> Result<Stamp, Problem> {
    match (stamp.ms.checked_sub(1), stamp.count.checked_sub(1)) {
        (_, Some(count)) => Ok(Stamp { count, ..stamp }),
        (Some(ms), None) => Ok(Stamp { ms, count: u64::MAX }),
        (None, None) => Err(Problem::Stamp),
    }
}
