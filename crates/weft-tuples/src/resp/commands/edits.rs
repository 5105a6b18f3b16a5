//! Commands that look into lists and change them in the middle.

use std::rc::Rc;

use super::problem::{NO_KEY, Problem, SYNTAX};
use super::words::{is, number, number_from};
use super::{Call, Step};
use crate::model::{ElementEnd, Fields, Name, Rank};

/// What `LPOS` looks for.
struct Sought {
    /// The number of the first match that counts; a negative one from the back.
    rank: i64,
    /// How many places are wanted; 0 for all. `None` for one without an array.
    count: Option<i64>,
    /// How many tuples are compared; 0 for all.
    most: i64,
}

impl Sought {
    fn parse(mut words: &[Vec<u8>]) -> Result<Self, Problem> {
        let mut sought = Self { rank: 1, count: None, most: 0 };
        while let [word, argument, rest @ ..] = words {
            if is(word, "RANK") {
                sought.rank = number(argument)?;
                if sought.rank == 0 {
                    return Err(Problem::Text(
                        "ERR RANK can't be zero: use 1 to start from the first match, 2 from the \
                         second ... or use negative to start from the end of the list",
                    ));
                }
                if sought.rank == i64::MIN {
                    return Err(Problem::Text(
                        "ERR value is out of range, value must between -9223372036854775807 and \
                         9223372036854775807",
                    ));
                }
            } else if is(word, "COUNT") {
                sought.count = Some(number_from(argument, 0, "ERR COUNT can't be negative")?);
            } else if is(word, "MAXLEN") {
                sought.most = number_from(argument, 0, "ERR MAXLEN can't be negative")?;
            } else {
                return Err(SYNTAX);
            }
            words = rest;
        }
        if words.is_empty() { Ok(sought) } else { Err(SYNTAX) }
    }

    /// Returns the places of tuples that match, in the order in which they are found.
    fn places<'a>(
        &self,
        len: usize,
        tuples: impl DoubleEndedIterator<Item = (&'a Rank, &'a Fields)>,
        value: &[u8],
    ) -> Vec<usize> {
        let most = if self.most == 0 { usize::MAX } else { self.most as usize };
        let wanted = match self.count {
            None => 1,
            Some(0) => usize::MAX,
            Some(count) => count as usize,
        };
        let skipped = (self.rank.unsigned_abs() - 1) as usize;
        let is_match = |(_, (_, fields)): &(usize, (&Rank, &Fields))| is_value(fields, value);
        if self.rank > 0 {
            let found = tuples.enumerate().take(most).filter(is_match);
            found.skip(skipped).take(wanted).map(|(at, _)| at).collect()
        } else {
            let found = tuples.rev().enumerate().take(most).filter(is_match);
            found.skip(skipped).take(wanted).map(|(at, _)| len - 1 - at).collect()
        }
    }
}

/// Whether a tuple is a member of a list with this value.
fn is_value(fields: &Fields, value: &[u8]) -> bool {
    matches!(fields.as_slice(), [field] if field == value)
}

impl Call<'_> {
    pub(super) fn position(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let [element, value, options @ ..] = words else { return Err(Problem::Arguments) };
        let sought = Sought::parse(options)?;
        let element: Name = Rc::from(&element[..]);
        let len = self.list(&element)?.map_or(0, |it| it.len);
        let places = sought.places(len, self.space.tuples(&element), value);
        match (sought.count, places.first()) {
            (Some(_), _) => {
                self.replies.array(places.len());
                places.iter().for_each(|place| self.replies.number(*place));
            }
            (None, Some(place)) => self.replies.number(*place),
            (None, None) => self.replies.null(),
        }
        Ok(Step::Replied)
    }

    /// `LREM`.
    pub(super) fn remove_value(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let [element, count, value] = words else { return Err(Problem::Arguments) };
        let count = number(count)?;
        let element: Name = Rc::from(&element[..]);
        self.list(&element)?;
        let most = match usize::try_from(count.unsigned_abs()) {
            Ok(0) | Err(_) => usize::MAX,
            Ok(most) => most,
        };
        let tuples = self.space.tuples(&element);
        let is_match = |(_, fields): &(&Rank, &Fields)| is_value(fields, value);
        let rank = |(rank, _): (&Rank, &Fields)| rank.clone();
        let ranks: Vec<Rank> = if count < 0 {
            tuples.rev().filter(is_match).take(most).map(rank).collect()
        } else {
            tuples.filter(is_match).take(most).map(rank).collect()
        };
        let removed = self.space.remove(self.now, &element, &ranks);
        self.replies.number(removed);
        Ok(Step::Replied)
    }

    /// `LSET`.
    pub(super) fn set(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        const NO_PLACE: Problem = Problem::Text("ERR index out of range");
        let [element, at, value] = words else { return Err(Problem::Arguments) };
        let element: Name = Rc::from(&element[..]);
        let len = self.list(&element)?.filter(|it| it.len != 0).ok_or(NO_KEY)?.len;
        let at = number(at)?;
        let tuples = self.space.tuples(&element);
        let place = usize::try_from(if at < 0 { at.saturating_add(len as i64) } else { at });
        let place = place.ok().filter(|place| *place < len).ok_or(NO_PLACE)?;
        let rank = nth(tuples, place, len).ok_or(NO_PLACE)?;
        let replaced = self.space.replace(&element, &rank, Fields::from_iter([value.clone()]));
        replaced.map_err(Problem::Refused)?;
        self.replies.simple("OK");
        Ok(Step::Replied)
    }

    /// `LINSERT`.
    pub(super) fn insert(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let [element, side, pivot, value] = words else { return Err(Problem::Arguments) };
        let is_after = match side {
            side if is(side, "BEFORE") => false,
            side if is(side, "AFTER") => true,
            _ => return Err(SYNTAX),
        };
        let element: Name = Rc::from(&element[..]);
        if self.list(&element)?.is_none_or(|it| it.len == 0) {
            self.replies.number(0);
            return Ok(Step::Replied);
        }
        let mut from_pivot =
            self.space.tuples(&element).skip_while(|(_, fields)| !is_value(fields, pivot));
        let Some(pivot) = from_pivot.next().map(|(rank, _)| rank.clone()) else {
            self.replies.signed(-1);
            return Ok(Step::Replied);
        };
        let before = if is_after { from_pivot.next().map(|it| it.0.clone()) } else { Some(pivot) };
        drop(from_pivot);
        let Some(before) = before else {
            // Behind the last one.
            return self.push(&[words[0].clone(), value.clone()], ElementEnd::Back, true);
        };
        let fields = Fields::from_iter([value.clone()]);
        let inserted = self.space.insert_before(self.now, &element, &before, fields);
        self.replies.number(inserted.map_err(Problem::Refused)?.unwrap_or(0));
        Ok(Step::Replied)
    }

    /// `LTRIM`.
    pub(super) fn trim_list(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let [element, from, to] = words else { return Err(Problem::Arguments) };
        let (from, to) = (number(from)?, number(to)?);
        let element: Name = Rc::from(&element[..]);
        let len = self.list(&element)?.map_or(0, |it| it.len);
        let place = |at: i64| if at < 0 { at.saturating_add(len as i64).max(0) } else { at };
        // Both are from 0 to `len`.
        let start = place(from).min(len as i64) as usize;
        let is_behind_end = to < 0 && to.saturating_add(len as i64) < 0;
        let end = if is_behind_end { 0 } else { place(to).saturating_add(1).min(len as i64) };
        let end = (end as usize).max(start);
        if start == end {
            self.space.trim(self.now, &element, ElementEnd::Front, len);
        } else {
            self.space.trim(self.now, &element, ElementEnd::Back, len - end);
            self.space.trim(self.now, &element, ElementEnd::Front, start);
        }
        if len != 0 {
            self.space.note_change(&element);
        }
        self.replies.simple("OK");
        Ok(Step::Replied)
    }
}

/// Returns the rank at a place, counted from the nearer end.
fn nth<'a>(
    mut tuples: impl DoubleEndedIterator<Item = (&'a Rank, &'a Fields)>,
    place: usize,
    len: usize,
) -> Option<Rank> {
    let found = if place < len / 2 { tuples.nth(place) } else { tuples.nth_back(len - 1 - place) };
    found.map(|(rank, _)| rank.clone())
}
