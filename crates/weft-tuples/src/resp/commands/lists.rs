//! Commands for lists.

use std::rc::Rc;

use super::words::{count, end, is, number, seconds};
use super::{Call, Pending, Problem, Step, arguments};
use crate::model::{Count, Criteria, ElementEnd, Name, Operation, Outcome, Selection, Tuple, Wait};

impl Call<'_> {
    /// Runs a command for lists. `None` if it is another one.
    pub(super) fn lists(&mut self, name: &str, words: &[Vec<u8>]) -> Option<Result<Step, Problem>> {
        Some(match name {
            "lpush" => self.push(words, ElementEnd::Front),
            "rpush" => self.push(words, ElementEnd::Back),
            "lpop" => self.pop(words, ElementEnd::Front),
            "rpop" => self.pop(words, ElementEnd::Back),
            "llen" => self.length(words),
            "lrange" => self.range(words),
            "lindex" => self.index(words),
            "blpop" => self.blocking_pop(words, ElementEnd::Front),
            "brpop" => self.blocking_pop(words, ElementEnd::Back),
            "lmove" | "blmove" => self.moves(words, name == "blmove"),
            "rpoplpush" | "brpoplpush" => self.pops_and_pushes(words, name == "brpoplpush"),
            _ => return None,
        })
    }

    fn push(&mut self, words: &[Vec<u8>], end: ElementEnd) -> Result<Step, Problem> {
        let [element, values @ ..] = words else { return Err(arguments()) };
        if values.is_empty() {
            return Err(arguments());
        }
        let element: Name = Rc::from(&element[..]);
        self.list(&element)?;
        let tuples = values.iter().map(|value| Tuple::of(&value[..])).collect();
        let criteria = Criteria::default();
        let put = Operation::Put { element, criteria, end, tuples, is_append: false };
        if let Outcome::Put(_, len) = self.now(put)? {
            self.replies.number(len);
        }
        Ok(Step::Replied)
    }

    fn pop(&mut self, words: &[Vec<u8>], end: ElementEnd) -> Result<Step, Problem> {
        let (element, wanted) = match words {
            [element] => (element, None),
            [element, wanted] => (element, Some(count(wanted)?)),
            _ => return Err(arguments()),
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

    fn length(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let [element] = words else { return Err(arguments()) };
        let len = self.list(&Rc::from(&element[..]))?.map_or(0, |it| it.len);
        self.replies.number(len);
        Ok(Step::Replied)
    }

    fn read(&mut self, element: &[u8], from: i64, to: i64) -> Result<Outcome, Problem> {
        let element: Name = Rc::from(element);
        self.list(&element)?;
        let selection = Selection::Places(from, to);
        self.now(Operation::Read { element, selection, count: u32::MAX })
    }

    fn range(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let [element, from, to] = words else { return Err(arguments()) };
        if let Outcome::Read(items) = self.read(element, number(from)?, number(to)?)? {
            self.replies.members(&items);
        }
        Ok(Step::Replied)
    }

    fn index(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let [element, at] = words else { return Err(arguments()) };
        let at = number(at)?;
        match self.read(element, at, at)? {
            Outcome::Read(items) if items.len() == 1 => self.replies.member(&items[0].fields),
            _ => self.replies.null(),
        }
        Ok(Step::Replied)
    }

    fn blocking_pop(&mut self, words: &[Vec<u8>], end: ElementEnd) -> Result<Step, Problem> {
        let [elements @ .., timeout] = words else { return Err(arguments()) };
        if elements.is_empty() {
            return Err(arguments());
        }
        let wait = seconds(self.now, timeout)?;
        let elements: Vec<Name> = elements.iter().map(|name| Rc::from(&name[..])).collect();
        for name in &elements {
            self.list(name)?;
        }
        let pending = Pending::Pop(elements.clone());
        self.wait(Operation::Take { elements, end, count: Count::AtMost(1) }, wait, pending)
    }

    fn moves(&mut self, words: &[Vec<u8>], waits: bool) -> Result<Step, Problem> {
        match words {
            [from, to, from_end, to_end] if !waits => {
                self.transfer((from, end(from_end)?), (to, end(to_end)?), Wait::No)
            }
            [from, to, from_end, to_end, timeout] if waits => {
                let wait = seconds(self.now, timeout)?;
                self.transfer((from, end(from_end)?), (to, end(to_end)?), wait)
            }
            _ => Err(arguments()),
        }
    }

    fn pops_and_pushes(&mut self, words: &[Vec<u8>], waits: bool) -> Result<Step, Problem> {
        let (from, to, wait) = match words {
            [from, to] if !waits => (from, to, Wait::No),
            [from, to, timeout] if waits => (from, to, seconds(self.now, timeout)?),
            _ => return Err(arguments()),
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

    /// `DEL` and `EXISTS`: the number of elements that there are.
    pub(super) fn each(&mut self, words: &[Vec<u8>], name: &str) -> Result<Step, Problem> {
        if words.is_empty() {
            return Err(arguments());
        }
        let mut found = 0;
        for element in words {
            let element: Name = Rc::from(&element[..]);
            found += usize::from(if is(name.as_bytes(), "exists") {
                self.describe(&element)?.is_some()
            } else {
                self.now(Operation::Delete { element })? == Outcome::Deleted(true)
            });
        }
        self.replies.number(found);
        Ok(Step::Replied)
    }
}
