//! Commands for streams: elements that are ordered by time stamps.

use std::rc::Rc;

use super::problem::{NO_KEY, Problem, SYNTAX};
use super::trim::Options;
use super::words::{any_stamp, as_count, is, milliseconds, number, stamp};
use super::{Call, Pending, Step};
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
        if replies.is_resp3 {
            replies.map(found.len());
        } else {
            replies.array(found.len());
        }
        for (at, items) in found {
            if !replies.is_resp3 {
                replies.array(2);
            }
            replies.bulk(self.0.get(*at).map_or(&[], |name| name));
            replies.entries(items);
        }
    }
}

/// The time stamp of an entry that is added.
enum EntryId {
    /// The next one.
    Auto,
    /// The next one in this millisecond.
    In(u64),
    Is(Stamp),
}

impl EntryId {
    fn parse(argument: &[u8]) -> Result<Self, Problem> {
        Ok(match argument {
            b"*" => Self::Auto,
            id => match id.strip_suffix(b"-*") {
                Some(ms) if !ms.contains(&b'-') => Self::In(stamp(ms, 0)?.ms),
                _ => Self::Is(stamp(id, 0)?),
            },
        })
    }

    /// Returns the time stamp, which has to follow `last`. `None` for that of the server.
    fn after(&self, last: Stamp) -> Result<Option<Stamp>, Problem> {
        match *self {
            Self::Auto => Ok(None),
            Self::Is(stamp) => Ok(Some(stamp)),
            Self::In(ms) if ms == last.ms => {
                let next = last.count.checked_add(1).ok_or(Problem::Refused(Refusal::Stamp))?;
                Ok(Some(Stamp { ms, count: next }))
            }
            Self::In(ms) => Ok(Some(Stamp { ms, count: 0 })),
        }
    }
}

impl Call<'_> {
    pub(super) fn add(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let [element, arguments @ ..] = words else { return Err(Problem::Arguments) };
        // Redis checks the identity before it counts the fields.
        let (options, rest) = Options::parse(arguments, true)?;
        let id = rest.first().map(|id| EntryId::parse(id)).transpose()?;
        options.check()?;
        let (Some(id), [_, fields @ ..]) = (id, rest) else { return Err(Problem::Arguments) };
        if fields.is_empty() || !fields.len().is_multiple_of(2) {
            return Err(Problem::Arguments);
        }
        if matches!(id, EntryId::Is(stamp) if stamp == Stamp::default()) {
            return Err(Problem::Text("ERR The ID specified in XADD must be greater than 0-0"));
        }
        let element: Name = Rc::from(&element[..]);
        let found = self.stream(&element)?;
        if found.is_none() && options.needs_stream {
            self.replies.null();
            return Ok(Step::Replied);
        }
        let last = found.map_or_else(Stamp::default, |it| it.last);
        if last == Stamp::LAST {
            return Err(Problem::Text(
                "ERR The stream has exhausted the last possible ID, unable to add more items",
            ));
        }
        let stamp = id.after(last)?;
        if stamp.is_some_and(|stamp| stamp <= last) {
            return Err(Problem::Refused(Refusal::Stamp));
        }
        let tuple = Tuple { stamp, fields: Fields::from(fields), ..Tuple::default() };
        let criteria = Criteria { order: Order::Time, sync: Sync::Unbounded };
        let (tuples, end) = (vec![tuple], ElementEnd::Back);
        let put =
            Operation::Put { element: Rc::clone(&element), criteria, end, tuples, is_append: true };
        if let Outcome::Put(rank, _) = self.now(put)? {
            self.replies.stamp(rank.stamp);
            options.trim(self.now, self.space, &element);
        }
        Ok(Step::Replied)
    }

    pub(super) fn trim_stream(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let [element, arguments @ ..] = words else { return Err(Problem::Arguments) };
        let (options, rest) = Options::parse(arguments, false)?;
        options.check()?;
        if !rest.is_empty() || !options.trims() {
            return Err(SYNTAX);
        }
        let element: Name = Rc::from(&element[..]);
        self.stream(&element)?;
        let removed = options.trim(self.now, self.space, &element);
        self.replies.number(removed);
        Ok(Step::Replied)
    }

    pub(super) fn delete_entries(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let [element, ids @ ..] = words else { return Err(Problem::Arguments) };
        let element: Name = Rc::from(&element[..]);
        if self.stream(&element)?.is_none() {
            self.replies.number(0);
            return Ok(Step::Replied);
        }
        let stamps = ids.iter().map(|id| stamp(id, 0)).collect::<Result<Vec<Stamp>, Problem>>()?;
        let mut ranks = Vec::new();
        for stamp in stamps {
            let selection = Selection::Stamps(stamp, stamp);
            let element = Rc::clone(&element);
            let read = Operation::Read { element, selection, count: u32::MAX };
            if let Outcome::Read(items) = self.now(read)? {
                ranks.extend(items.into_iter().map(|item| item.rank));
            }
        }
        let removed = self.space.remove(self.now, &element, &ranks);
        self.replies.number(removed);
        Ok(Step::Replied)
    }

    pub(super) fn read_streams(&mut self, mut words: &[Vec<u8>]) -> Result<Step, Problem> {
        let (mut most, mut wait) = (u32::MAX, Wait::No);
        loop {
            match words {
                [word, ms, rest @ ..] if is(word, "BLOCK") => {
                    wait = milliseconds(self.now, ms)?;
                    words = rest;
                }
                [word, count, rest @ ..] if is(word, "COUNT") => {
                    // 0 is no limit.
                    most = match as_count(number(count)?) {
                        0 => u32::MAX,
                        most => most,
                    };
                    words = rest;
                }
                [word, rest @ ..] if is(word, "STREAMS") && !rest.is_empty() => {
                    words = rest;
                    break;
                }
                [word, _, ..] if is(word, "GROUP") => {
                    return Err(Problem::Text(
                        "ERR The GROUP option is only supported by XREADGROUP. You called XREAD \
                         instead.",
                    ));
                }
                [word, ..] if is(word, "NOACK") => {
                    return Err(Problem::Text(
                        "ERR The NOACK option is only supported by XREADGROUP. You called XREAD \
                         instead.",
                    ));
                }
                _ => return Err(SYNTAX),
            }
        }
        if !words.len().is_multiple_of(2) {
            return Err(Problem::Text(
                "ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be \
                 specified.",
            ));
        }
        let (names, ids) = words.split_at(words.len() / 2);
        let names: Vec<Name> = names.iter().map(|name| Rc::from(&name[..])).collect();
        let mut elements = Vec::with_capacity(names.len());
        for (name, id) in names.iter().zip(ids) {
            let stream = self.stream(name)?;
            let stamp = match &id[..] {
                b"$" => stream.map_or_else(Stamp::default, |it| it.last),
                b">" => {
                    return Err(Problem::Text(
                        "ERR The > ID can be specified only when calling XREADGROUP using the \
                         GROUP <group> <consumer> option.",
                    ));
                }
                id => stamp(id, 0)?,
            };
            // Behind all tuples with this time stamp.
            let after = Rank { key: Vec::new(), stamp, position: i64::MAX };
            elements.push((Rc::clone(name), Some(after)));
        }
        let observe = Operation::Observe { elements, count: Count::AtMost(most) };
        self.wait(observe, wait, Pending::Read(StreamNames(names)))
    }

    pub(super) fn stream_length(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let [element] = words else { return Err(Problem::Arguments) };
        let len = self.stream(&Rc::from(&element[..]))?.map_or(0, |it| it.len);
        self.replies.number(len);
        Ok(Step::Replied)
    }

    /// `XRANGE` and `XREVRANGE`.
    pub(super) fn stream_range(
        &mut self,
        words: &[Vec<u8>],
        is_reverse: bool,
    ) -> Result<Step, Problem> {
        let [element, one, other, options @ ..] = words else { return Err(Problem::Arguments) };
        let (from, to) = if is_reverse { (other, one) } else { (one, other) };
        let from = match &from[..] {
            [b'(', from @ ..] if !from.is_empty() => stamp(from, 0)?
                .next()
                .ok_or(Problem::Text("ERR invalid start ID for the interval"))?,
            from => any_stamp(from, 0)?,
        };
        let to = match &to[..] {
            [b'(', to @ ..] if !to.is_empty() => before(stamp(to, u64::MAX)?)
                .ok_or(Problem::Text("ERR invalid end ID for the interval"))?,
            to => any_stamp(to, u64::MAX)?,
        };
        let mut count = None;
        let mut rest = options;
        while let [word, more @ ..] = rest {
            let ([argument, more @ ..], true) = (more, is(word, "COUNT")) else {
                return Err(SYNTAX);
            };
            count = Some(as_count(number(argument)?));
            rest = more;
        }
        let element: Name = Rc::from(&element[..]);
        match (self.stream(&element)?, count) {
            (None, _) => self.replies.array(0),
            (Some(_), Some(0)) => self.replies.null_array(),
            (Some(_), _) => {
                let items = {
                    let count = count.unwrap_or(u32::MAX);
                    self.selected(&element, (from, to), count, is_reverse)?
                };
                self.replies.entries(&items);
            }
        }
        Ok(Step::Replied)
    }

    fn selected(
        &mut self,
        element: &Name,
        (from, to): (Stamp, Stamp),
        count: u32,
        is_reverse: bool,
    ) -> Result<Vec<Item>, Problem> {
        if is_reverse {
            return self.space.read_back(element, from, to, count).map_err(Problem::Refused);
        }
        let selection = Selection::Stamps(from, to);
        let read = Operation::Read { element: Rc::clone(element), selection, count };
        match self.now(read)? {
            Outcome::Read(items) => Ok(items),
            _ => Ok(Vec::new()),
        }
    }

    /// `XINFO STREAM`: what this server has of it.
    pub(super) fn stream_info(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let [sub, arguments @ ..] = words else { return Err(Problem::Arguments) };
        if !is(sub, "STREAM") {
            return Err(Problem::unknown_sub("XINFO", sub));
        }
        let [element, options @ ..] = arguments else {
            return Err(Problem::sub_arguments("xinfo", "stream"));
        };
        let element: Name = Rc::from(&element[..]);
        let found = self.stream(&element)?.ok_or(NO_KEY)?;
        if !options.is_empty() {
            return Err(SYNTAX);
        }
        self.replies.map(5);
        self.replies.bulk(b"length");
        self.replies.number(found.len);
        self.replies.bulk(b"last-generated-id");
        self.replies.stamp(found.last);
        self.replies.bulk(b"groups");
        self.replies.number(0);
        let mut tuples = self.space.tuples(&element);
        let first = tuples.next();
        let last = tuples.next_back().or(first);
        for (name, entry) in [("first-entry", first), ("last-entry", last)] {
            self.replies.bulk(name.as_bytes());
            match entry {
                Some((rank, fields)) => self.replies.entry(rank.stamp, fields),
                None => self.replies.null(),
            }
        }
        Ok(Step::Replied)
    }
}

fn before(stamp: Stamp) -> Option<Stamp> {
    match (stamp.ms.checked_sub(1), stamp.count.checked_sub(1)) {
        (_, Some(count)) => Some(Stamp { count, ..stamp }),
        (Some(ms), None) => Some(Stamp { ms, count: u64::MAX }),
        (None, None) => None,
    }
}
