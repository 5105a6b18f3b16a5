//! The plain model: elements are lists, and whatever can be looked for is looked for.

use std::time::Duration;

use super::*;
use crate::model::{Fields, Item, Rank, Refusal, Selection, Stamp, Ticket, Wait};

#[derive(Clone, Debug, Default)]
struct List {
    criteria: Criteria,
    is_kept: bool,
    /// In their order, each with whether it is read.
    tuples: Vec<(Rank, Fields, bool)>,
    last: Stamp,
}

/// A space of lists, and what waits for them.
#[derive(Debug, Default)]
pub(super) struct Lists {
    lists: Vec<(Name, List)>,
    /// In the order of their calls.
    pub(super) waiting: Vec<(Ticket, Operation, Wait)>,
    /// Puts whose element was deleted.
    deleted: Vec<Ticket>,
    serial: i64,
}

impl List {
    fn exists(&self) -> bool {
        self.is_kept || !self.tuples.is_empty()
    }

    fn has_room(&self, more: usize) -> bool {
        let unread = self.tuples.iter().filter(|(.., is_read)| !is_read).count();
        match self.criteria.sync {
            Sync::Unbounded => true,
            Sync::Bound(bound) | Sync::Exactly(bound) => self.tuples.len() + more <= bound as usize,
            Sync::Unread(bound) => unread + more <= bound as usize,
        }
    }

    fn items(&self) -> Vec<Item> {
        let item = |(rank, fields, _): &(Rank, Fields, bool)| Item {
            rank: rank.clone(),
            fields: fields.clone(),
        };
        self.tuples.iter().map(item).collect()
    }

    fn is_group(&self) -> Option<bool> {
        match self.criteria.sync {
            Sync::Exactly(bound) => Some(self.tuples.len() == bound as usize),
            _ => None,
        }
    }

    /// The tuples that a take gets.
    fn taken(&self, end: ElementEnd, count: Count) -> Option<Vec<Item>> {
        let mut items = self.items();
        if end == ElementEnd::Back {
            items.reverse();
        }
        match (self.is_group(), count) {
            (Some(false), _) => return None,
            (Some(true), _) => {}
            (None, Count::AtMost(count)) => items.truncate(count as usize),
            (None, Count::Exactly(count)) if items.len() < count as usize => return None,
            (None, Count::Exactly(count)) => items.truncate(count as usize),
        }
        (!items.is_empty()).then_some(items)
    }

    /// The tuples that an observe gets.
    fn observed(&self, after: Option<&Rank>, count: Count) -> Option<Vec<Item>> {
        let mut items = self.items();
        items.retain(|item| after.is_none_or(|after| item.rank > *after));
        if self.is_group() == Some(false) {
            return None;
        }
        match count {
            Count::AtMost(count) => items.truncate(count as usize),
            Count::Exactly(count) if items.len() < count as usize => return None,
            Count::Exactly(count) => items.truncate(count as usize),
        }
        (!items.is_empty()).then_some(items)
    }

    fn allows(&self, count: Count, is_take: bool) -> bool {
        let (fewest, most) = match count {
            Count::AtMost(count) => (1, count),
            Count::Exactly(count) => (count, count),
        };
        match self.criteria.sync {
            Sync::Unbounded | Sync::Unread(_) => true,
            Sync::Bound(bound) => fewest <= bound,
            Sync::Exactly(bound) => fewest <= bound && (!is_take || bound <= most),
        }
    }
}

impl Lists {
    fn list(&self, name: &Name) -> List {
        let found = self.lists.iter().find(|(it, _)| it == name);
        found.map(|(_, list)| list.clone()).unwrap_or_default()
    }

    /// The ranks of an element in their order.
    pub(super) fn ranks(&self, name: &Name) -> Vec<Rank> {
        self.list(name).tuples.into_iter().map(|(rank, ..)| rank).collect()
    }

    pub(super) fn remove(&mut self, name: &Name, ranks: &[Rank]) {
        self.list_mut(name).tuples.retain(|(rank, ..)| !ranks.contains(rank));
    }

    pub(super) fn replace(&mut self, name: &Name, rank: &Rank, fields: &Fields) {
        for tuple in self.list_mut(name).tuples.iter_mut().filter(|(it, ..)| it == rank) {
            tuple.1.clone_from(fields);
        }
    }

    /// Puts a tuple before one. Returns whether the element has a place for it.
    pub(super) fn insert_before(&mut self, name: &Name, rank: &Rank, fields: &Fields) -> bool {
        let turn = self.is_its_turn(name, true, None);
        let list = self.list_mut(name);
        let Some(at) = list.tuples.iter().position(|(it, ..)| it == rank) else { return true };
        if list.criteria.order != Order::Arrival || !turn || !list.has_room(1) {
            return false;
        }
        let mut wanted = rank.position - 1;
        for (before, ..) in list.tuples[..at].iter_mut().rev() {
            if before.position != wanted {
                break;
            }
            before.position -= 1;
            wanted -= 1;
        }
        let place = Rank { position: rank.position - 1, ..Rank::default() };
        list.tuples.insert(at, (place, fields.clone(), false));
        true
    }

    fn list_mut(&mut self, name: &Name) -> &mut List {
        if !self.lists.iter().any(|(it, _)| it == name) {
            self.lists.push((Rc::clone(name), List::default()));
        }
        let found = self.lists.iter_mut().find(|(it, _)| it == name);
        &mut found.expect("it was added").1
    }

    /// Whether no earlier operation waits to take from an element, or to put into it.
    fn is_its_turn(&self, name: &Name, is_put: bool, ticket: Option<Ticket>) -> bool {
        let waits_here = |operation: &Operation| match operation {
            Operation::Put { element, .. } => is_put && element == name,
            Operation::Take { elements, .. } => !is_put && elements.contains(name),
            Operation::Transfer { from, .. } => !is_put && from.0 == *name,
            _ => false,
        };
        let first = self.waiting.iter().find(|(_, operation, _)| waits_here(operation));
        first.is_none_or(|(first, ..)| Some(*first) == ticket)
    }

    /// The result that an operation must have now. `None`: it has to wait.
    pub(super) fn outcome(
        &self,
        now: Now,
        operation: &Operation,
        ticket: Option<Ticket>,
    ) -> Option<Outcome> {
        if ticket.is_some_and(|ticket| self.deleted.contains(&ticket)) {
            return Some(Outcome::Refused(Refusal::Deleted));
        }
        match operation {
            Operation::Create { element, criteria } => {
                let list = self.list(element);
                let differs = list.exists() && list.criteria != *criteria;
                let outcome = Outcome::Created(!list.is_kept);
                Some(if differs { Outcome::Refused(Refusal::Exists) } else { outcome })
            }
            Operation::Put { element, end, tuples, is_append, .. } => {
                let mut list = self.list(element);
                if !list.exists() {
                    list.criteria = Criteria::default();
                }
                let refused = |refusal| Some(Outcome::Refused(refusal));
                let order = list.criteria.order;
                let is_wrong = |tuple: &Tuple| {
                    (!tuple.key.is_empty() && order != Order::Key)
                        || (tuple.stamp.is_some() && order != Order::Time)
                };
                if tuples.iter().any(is_wrong)
                    || (*end == ElementEnd::Front && order != Order::Arrival)
                {
                    return refused(Refusal::Order);
                }
                match list.criteria.sync {
                    Sync::Bound(bound) | Sync::Unread(bound) | Sync::Exactly(bound)
                        if tuples.len() > bound as usize =>
                    {
                        return refused(Refusal::Count);
                    }
                    _ => {}
                }
                if !self.is_its_turn(element, true, ticket) || !list.has_room(tuples.len()) {
                    return None;
                }
                let mut after = self.placed(now, &list, *end, tuples);
                let old = list.last;
                let falls_back = after.iter().scan(old, |last, (rank, ..)| {
                    let falls = rank.stamp <= *last;
                    *last = rank.stamp.max(*last);
                    Some(falls)
                });
                if *is_append && order == Order::Time && falls_back.into_iter().any(|it| it) {
                    return refused(Refusal::Stamp);
                }
                let last = after.pop()?.0;
                Some(Outcome::Put(last, list.tuples.len() + tuples.len()))
            }
            Operation::Take { elements, end, count } => {
                for (at, name) in elements.iter().enumerate() {
                    let list = self.list(name);
                    if list.exists() && !list.allows(*count, true) {
                        return Some(Outcome::Refused(Refusal::Count));
                    }
                    let items = list.taken(*end, *count);
                    if let Some(items) = items.filter(|_| self.is_its_turn(name, false, ticket)) {
                        return Some(Outcome::Taken(at, items));
                    }
                }
                None
            }
            Operation::Observe { elements, count } => {
                let mut found = Vec::new();
                for (at, (name, after)) in elements.iter().enumerate() {
                    let list = self.list(name);
                    if list.exists() && !list.allows(*count, false) {
                        return Some(Outcome::Refused(Refusal::Count));
                    }
                    found.extend(list.observed(after.as_ref(), *count).map(|items| (at, items)));
                }
                (!found.is_empty()).then_some(Outcome::Observed(found))
            }
            Operation::Transfer { from, to } => {
                let (source, target) = (self.list(&from.0), self.list(&to.0));
                if source.exists() && !source.allows(Count::Exactly(1), true) {
                    return Some(Outcome::Refused(Refusal::Count));
                }
                let mut items = source.taken(from.1, Count::Exactly(1))?;
                if !self.is_its_turn(&from.0, false, ticket) {
                    return None;
                }
                if source.criteria.order != Order::Arrival {
                    return Some(Outcome::Refused(Refusal::Order));
                }
                if target.exists() && target.criteria.order != Order::Arrival {
                    return Some(Outcome::Refused(Refusal::Order));
                }
                let accepts = if from.0 == to.0 {
                    !matches!(source.criteria.sync, Sync::Unread(_)) || source.has_room(1)
                } else {
                    self.is_its_turn(&to.0, true, None) && target.has_room(1)
                };
                let moved = Outcome::Transferred(items.pop()?);
                Some(if accepts { moved } else { Outcome::Refused(Refusal::Full) })
            }
            Operation::Read { element, selection, count } => {
                let list = self.list(element);
                let mut items = list.items();
                let needed = match selection {
                    Selection::Places(..) => list.criteria.order,
                    Selection::Key(_) => Order::Key,
                    Selection::Stamps(..) => Order::Time,
                };
                if list.exists() && list.criteria.order != needed {
                    return Some(Outcome::Refused(Refusal::Order));
                }
                match selection {
                    Selection::Places(from, to) => {
                        let len = items.len() as i64;
                        let place = |at: i64| if at < 0 { at + len } else { at };
                        let mut at = -1;
                        items.retain(|_| {
                            at += 1;
                            (place(*from)..=place(*to)).contains(&at)
                        });
                    }
                    Selection::Key(key) => items.retain(|item| item.rank.key == *key),
                    Selection::Stamps(from, to) => {
                        items.retain(|item| (*from..=*to).contains(&item.rank.stamp));
                    }
                }
                items.truncate(*count as usize);
                Some(Outcome::Read(items))
            }
            Operation::Delete { element } => Some(Outcome::Deleted(self.list(element).exists())),
            Operation::Describe { .. } | Operation::List => unreachable!("not of the model"),
        }
    }

    /// The tuples of a put with their ranks.
    fn placed(
        &self,
        now: Now,
        list: &List,
        end: ElementEnd,
        tuples: &[Tuple],
    ) -> Vec<(Rank, Fields, bool)> {
        let mut first = list.tuples.first().map(|(rank, ..)| rank.position);
        let mut last = list.last;
        let mut placed = Vec::new();
        for (at, tuple) in tuples.iter().enumerate() {
            let back = self.serial + at as i64;
            let position = match (end, first) {
                (ElementEnd::Front, Some(first)) => first - 1,
                _ => back,
            };
            first = Some(position);
            let own = last.next().unwrap().max(Stamp { ms: now.ms, count: 0 });
            let is_timed = list.criteria.order == Order::Time;
            let stamp = if is_timed { tuple.stamp.unwrap_or(own) } else { Stamp::default() };
            last = last.max(stamp);
            let rank = Rank { key: tuple.key.clone(), stamp, position };
            placed.push((rank, tuple.fields.clone(), false));
        }
        placed
    }

    /// Does what an operation has to do when it has this outcome.
    pub(super) fn apply(&mut self, now: Now, operation: &Operation, outcome: &Outcome) {
        match (operation, outcome) {
            (Operation::Create { element, criteria }, Outcome::Created(_)) => {
                let list = self.list_mut(element);
                list.criteria = *criteria;
                list.is_kept = true;
            }
            (Operation::Put { element, end, tuples, .. }, Outcome::Put(..)) => {
                self.insert(now, element, *end, tuples);
            }
            (Operation::Take { elements, .. }, Outcome::Taken(at, items)) => {
                let list = self.list_mut(&elements[*at]);
                list.tuples.retain(|(rank, ..)| items.iter().all(|item| item.rank != *rank));
                self.forget_empty(&elements[*at]);
            }
            (Operation::Observe { elements, .. }, Outcome::Observed(found)) => {
                for (at, items) in found {
                    for (rank, _, is_read) in &mut self.list_mut(&elements[*at].0).tuples {
                        *is_read |= items.iter().any(|item| item.rank == *rank);
                    }
                }
            }
            (Operation::Transfer { from, to }, Outcome::Transferred(item)) => {
                self.list_mut(&from.0).tuples.retain(|(rank, ..)| *rank != item.rank);
                let tuple = Tuple { fields: item.fields.clone(), ..Tuple::default() };
                self.insert(now, &to.0, to.1, &[tuple]);
                self.forget_empty(&from.0);
            }
            (Operation::Delete { element }, Outcome::Deleted(_)) => {
                self.lists.retain(|(name, _)| name != element);
                let puts = self.waiting.iter().filter(|(_, operation, _)| {
                    matches!(operation, Operation::Put { element: name, .. } if name == element)
                });
                self.deleted.extend(puts.map(|(ticket, ..)| *ticket));
            }
            _ => {}
        }
    }

    fn insert(&mut self, now: Now, name: &Name, end: ElementEnd, tuples: &[Tuple]) {
        let list = self.list(name);
        let placed = self.placed(now, &list, end, tuples);
        self.serial += tuples.len() as i64;
        let list = self.list_mut(name);
        for (rank, fields, is_read) in placed {
            list.last = list.last.max(rank.stamp);
            list.tuples.push((rank, fields, is_read));
        }
        list.tuples.sort();
    }

    /// A list that nobody has created exists only while it has tuples.
    fn forget_empty(&mut self, name: &Name) {
        self.lists.retain(|(it, list)| it != name || list.exists());
    }

    /// An operation that waits although it need not, or longer than it may.
    pub(super) fn neglected(&self, now: Now) -> Option<String> {
        let neglected = self.waiting.iter().find(|(ticket, operation, wait)| {
            matches!(wait, Wait::Until(deadline) if *deadline <= now.clock)
                || self.outcome(now, operation, Some(*ticket)).is_some()
        });
        neglected.map(|it| format!("waits although it need not: {it:?}"))
    }

    /// The earliest deadline.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let deadline = |(_, _, wait): &(Ticket, Operation, Wait)| match wait {
            Wait::Until(deadline) => Some(*deadline),
            Wait::No | Wait::Forever => None,
        };
        self.waiting.iter().filter_map(deadline).min()
    }
}
