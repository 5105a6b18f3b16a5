//! Commands for lists.

use std::rc::Rc;

use super::problem::{Problem, SYNTAX};
use super::words::{as_count, end, is, number, number_from, seconds};
use super::{Call, Pending, Step};
use crate::model::{Count, Criteria, ElementEnd, Name, Operation, Outcome, Selection, Tuple, Wait};

impl Call<'_> {
    /// `LPUSH` and `RPUSH`, and those that need an element.
    pub(super) fn push(
        &mut self,
        words: &[Vec<u8>],
        end: ElementEnd,
        needs_element: bool,
    ) -> Result<Step, Problem> {
        let [element, values @ ..] = words else { return Err(Problem::Arguments) };
        let element: Name = Rc::from(&element[..]);
        if self.list(&element)?.is_none() && needs_element {
            self.replies.number(0);
            return Ok(Step::Replied);
        }
        let tuples = values.iter().map(|value| Tuple::of(&value[..])).collect();
        let criteria = Criteria::default();
        let put = Operation::Put { element, criteria, end, tuples, is_append: false };
        if let Outcome::Put(_, len) = self.now(put)? {
            self.replies.number(len);
        }
        Ok(Step::Replied)
    }

    pub(super) fn pop(&mut self, words: &[Vec<u8>], end: ElementEnd) -> Result<Step, Problem> {
        let (element, wanted) = match words {
            [element] => (element, None),
            [element, wanted] => {
                let wanted = number_from(wanted, 0, "ERR value is out of range, must be positive")?;
                (element, Some(as_count(wanted)))
            }
            _ => return Err(Problem::Arguments),
        };
        let element: Name = Rc::from(&element[..]);
        let exists = self.list(&element)?.is_some_and(|it| it.len != 0);
        match (exists, wanted) {
            (false, None) => self.replies.null(),
            (false, Some(_)) => self.replies.null_array(),
            (true, Some(0)) => self.replies.array(0),
            (true, _) => {
                let count = Count::AtMost(wanted.unwrap_or(1));
                let taken = self.now(Operation::Take { elements: vec![element], end, count })?;
                match (taken, wanted) {
                    (Outcome::Taken(_, items), None) => {
                        items.iter().for_each(|item| self.replies.member(&item.fields));
                    }
                    (Outcome::Taken(_, items), Some(_)) => self.replies.members(&items),
                    // Others wait for it.
                    (_, None) => self.replies.null(),
                    (_, Some(_)) => self.replies.null_array(),
                }
            }
        }
        Ok(Step::Replied)
    }

    pub(super) fn length(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let [element] = words else { return Err(Problem::Arguments) };
        let len = self.list(&Rc::from(&element[..]))?.map_or(0, |it| it.len);
        self.replies.number(len);
        Ok(Step::Replied)
    }

    pub(super) fn range(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let [element, from, to] = words else { return Err(Problem::Arguments) };
        let selection = Selection::Places(number(from)?, number(to)?);
        let element: Name = Rc::from(&element[..]);
        self.list(&element)?;
        let read = Operation::Read { element, selection, count: u32::MAX };
        if let Outcome::Read(items) = self.now(read)? {
            self.replies.members(&items);
        }
        Ok(Step::Replied)
    }

    pub(super) fn index(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let [element, at] = words else { return Err(Problem::Arguments) };
        let element: Name = Rc::from(&element[..]);
        let Some(found) = self.list(&element)?.filter(|it| it.len != 0) else {
            self.replies.null();
            return Ok(Step::Replied);
        };
        let (at, len) = (number(at)?, found.len as i64);
        // A negative place beyond the first one is none, and not the first one.
        let place = if at < 0 { at.saturating_add(len) } else { at };
        let count = u32::from((0..len).contains(&place));
        let read = Operation::Read { element, selection: Selection::Places(place, place), count };
        match self.now(read)? {
            Outcome::Read(items) if items.len() == 1 => self.replies.member(&items[0].fields),
            _ => self.replies.null(),
        }
        Ok(Step::Replied)
    }

    pub(super) fn blocking_pop(
        &mut self,
        words: &[Vec<u8>],
        end: ElementEnd,
    ) -> Result<Step, Problem> {
        let [elements @ .., timeout] = words else { return Err(Problem::Arguments) };
        let wait = seconds(self.now, timeout)?;
        self.pop_first(elements, end, Count::AtMost(1), wait, Pending::Pop)
    }

    /// `LMPOP` and `BLMPOP`.
    pub(super) fn multi_pop(&mut self, words: &[Vec<u8>], waits: bool) -> Result<Step, Problem> {
        let (timeout, words) = match words {
            [timeout, words @ ..] if waits => (Some(timeout), words),
            words => (None, words),
        };
        let [keys, words @ ..] = words else { return Err(Problem::Arguments) };
        let keys = number_from(keys, 1, "ERR numkeys should be greater than 0")?;
        let keys = usize::try_from(keys).ok().filter(|keys| *keys < words.len()).ok_or(SYNTAX)?;
        let (elements, rest) = words.split_at(keys);
        let (side, options) = rest.split_first().ok_or(SYNTAX)?;
        let end = end(side)?;
        let count = match options {
            [] => 1,
            [word, count, rest @ ..] if is(word, "COUNT") => {
                let count = number_from(count, 1, "ERR count should be greater than 0")?;
                if !rest.is_empty() {
                    return Err(SYNTAX);
                }
                as_count(count)
            }
            _ => return Err(SYNTAX),
        };
        let wait = timeout.map_or(Ok(Wait::No), |timeout| seconds(self.now, timeout))?;
        self.pop_first(elements, end, Count::AtMost(count), wait, Pending::PopSeveral)
    }

    /// Takes from the first of several lists that has something. Redis looks at no list behind it.
    fn pop_first(
        &mut self,
        elements: &[Vec<u8>],
        end: ElementEnd,
        count: Count,
        wait: Wait,
        pending: fn(Vec<Name>) -> Pending,
    ) -> Result<Step, Problem> {
        let elements: Vec<Name> = elements.iter().map(|name| Rc::from(&name[..])).collect();
        for name in &elements {
            if self.list(name)?.is_some_and(|it| it.len != 0) {
                break;
            }
        }
        let pending = pending(elements.clone());
        self.wait(Operation::Take { elements, end, count }, wait, pending)
    }

    pub(super) fn moves(&mut self, words: &[Vec<u8>], waits: bool) -> Result<Step, Problem> {
        let [from, to, from_end, to_end, timeout @ ..] = words else {
            return Err(Problem::Arguments);
        };
        let (from_end, to_end) = (end(from_end)?, end(to_end)?);
        let wait = match timeout {
            [timeout] if waits => seconds(self.now, timeout)?,
            _ => Wait::No,
        };
        self.transfer((from, from_end), (to, to_end), wait)
    }

    pub(super) fn pops_and_pushes(
        &mut self,
        words: &[Vec<u8>],
        waits: bool,
    ) -> Result<Step, Problem> {
        let [from, to, timeout @ ..] = words else { return Err(Problem::Arguments) };
        let wait = match timeout {
            [timeout] if waits => seconds(self.now, timeout)?,
            _ => Wait::No,
        };
        self.transfer((from, ElementEnd::Back), (to, ElementEnd::Front), wait)
    }

    fn transfer(
        &mut self,
        (from, from_end): (&[u8], ElementEnd),
        (to, to_end): (&[u8], ElementEnd),
        wait: Wait,
    ) -> Result<Step, Problem> {
        let (from, to): (Name, Name) = (Rc::from(from), Rc::from(to));
        let is_empty = self.list(&from)?.is_none_or(|it| it.len == 0);
        if !is_empty {
            self.list(&to)?;
        }
        let transfer = Operation::Transfer { from: (from, from_end), to: (to, to_end) };
        if wait == Wait::No {
            match self.now(transfer)? {
                Outcome::Transferred(item) => self.replies.member(&item.fields),
                _ => self.replies.null(),
            }
            return Ok(Step::Replied);
        }
        self.wait(transfer, wait, Pending::Move)
    }
}
