//! The plain model: elements are lists, and the calls that wait have one order.

use std::collections::BTreeMap;

use weft_tuples::model::{Count, ElementEnd, Refusal, Sync};

use crate::history::{Element, Operation, Outcome, Value};

/// A call, by its place in the list of all calls.
pub(crate) type CallId = u32;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct List {
    sync: Sync,
    /// It exists without tuples.
    is_kept: bool,
    tuples: Vec<Value>,
}

/// A space of lists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Spec {
    /// The lists that exist.
    lists: BTreeMap<Element, List>,
    /// The calls that wait, in the order in which they came.
    pub(crate) waiting: Vec<CallId>,
}

impl List {
    fn has_room(&self, more: usize) -> bool {
        match self.sync {
            Sync::Unbounded | Sync::Unread(_) => true,
            Sync::Bound(bound) | Sync::Exactly(bound) => self.tuples.len() + more <= bound as usize,
        }
    }

    fn allows(&self, count: Count, is_take: bool) -> bool {
        match self.sync {
            Sync::Unbounded | Sync::Unread(_) => true,
            Sync::Bound(bound) => count.fewest() <= bound,
            Sync::Exactly(bound) => count.fewest() <= bound && (!is_take || bound <= count.most()),
        }
    }

    /// How many tuples a take or an observe gets.
    fn gets(&self, count: Count, is_take: bool) -> Option<usize> {
        let len = self.tuples.len();
        let is_group = match self.sync {
            Sync::Exactly(bound) if len != bound as usize => return None,
            Sync::Exactly(_) => true,
            _ => false,
        };
        let wanted = if is_group && is_take { len } else { len.min(count.most() as usize) };
        (len != 0 && len >= count.fewest() as usize).then_some(wanted)
    }

    fn at_end(&self, end: ElementEnd, count: usize) -> Vec<Value> {
        match end {
            ElementEnd::Front => self.tuples.iter().take(count).copied().collect(),
            ElementEnd::Back => self.tuples.iter().rev().take(count).copied().collect(),
        }
    }

    fn put(&mut self, end: ElementEnd, value: Value) {
        match end {
            ElementEnd::Front => self.tuples.insert(0, value),
            ElementEnd::Back => self.tuples.push(value),
        }
    }
}

/// Whether an operation that waits to take from an element, or to put into it, is in the way of
/// later ones.
fn waits_for(operation: &Operation, element: Element, is_put: bool) -> bool {
    match operation {
        Operation::Put(it, ..) => is_put && *it == element,
        Operation::Take(elements, ..) => !is_put && elements.contains(&element),
        Operation::Transfer((from, _), _) => !is_put && *from == element,
        _ => false,
    }
}

/// The elements for which an operation waits.
fn awaited(operation: &Operation, element: Element) -> bool {
    match operation {
        Operation::Observe(elements, _) => elements.contains(&element),
        other => waits_for(other, element, true) || waits_for(other, element, false),
    }
}

impl Spec {
    /// The result that an operation has now. `None`: it has to wait. `earlier` are the operations
    /// that wait and came before it, and `all` those that wait at all.
    pub(crate) fn outcome<'a>(
        &self,
        operation: &Operation,
        earlier: impl Iterator<Item = &'a Operation> + Clone,
        all: impl Iterator<Item = &'a Operation> + Clone,
    ) -> Option<Outcome> {
        let is_turn = |element: Element, is_put: bool| {
            !earlier.clone().any(|other| waits_for(other, element, is_put))
        };
        let refused = |refusal| Some(Outcome::Refused(refusal));
        match operation {
            Operation::Create(element, sync) => match self.lists.get(element) {
                Some(list) if list.sync != *sync => refused(Refusal::Exists),
                list => Some(Outcome::Created(list.is_none_or(|list| !list.is_kept))),
            },
            Operation::Put(element, _, values) => {
                let new = List::default();
                let list = self.lists.get(element).unwrap_or(&new);
                match list.sync {
                    Sync::Bound(bound) | Sync::Exactly(bound) if values.len() > bound as usize => {
                        return refused(Refusal::Count);
                    }
                    _ => {}
                }
                let is_served = is_turn(*element, true) && list.has_room(values.len());
                is_served.then(|| Outcome::Put(list.tuples.len() + values.len()))
            }
            Operation::Take(elements, end, count) => {
                for (at, element) in elements.iter().enumerate() {
                    let Some(list) = self.lists.get(element) else { continue };
                    if !list.allows(*count, true) {
                        return refused(Refusal::Count);
                    }
                    if let Some(count) =
                        list.gets(*count, true).filter(|_| is_turn(*element, false))
                    {
                        return Some(Outcome::Taken(at, list.at_end(*end, count)));
                    }
                }
                None
            }
            Operation::Observe(elements, count) => {
                let mut found = Vec::new();
                for (at, element) in elements.iter().enumerate() {
                    let Some(list) = self.lists.get(element) else { continue };
                    if !list.allows(*count, false) {
                        return refused(Refusal::Count);
                    }
                    let count = list.gets(*count, false);
                    found.extend(count.map(|it| (at, list.at_end(ElementEnd::Front, it))));
                }
                (!found.is_empty()).then_some(Outcome::Observed(found))
            }
            Operation::Transfer((from, end), (to, _)) => {
                let source = self.lists.get(from)?;
                if !source.allows(Count::Exactly(1), true) {
                    return refused(Refusal::Count);
                }
                if !is_turn(*from, false) {
                    return None;
                }
                source.gets(Count::Exactly(1), true)?;
                let accepts = from == to
                    || !all.clone().any(|other| waits_for(other, *to, true))
                        && self.lists.get(to).is_none_or(|list| list.has_room(1));
                let moved = source.at_end(*end, 1).pop().map(Outcome::Transferred);
                if accepts { moved } else { refused(Refusal::Full) }
            }
            Operation::Count(element) => {
                let waiting = all.filter(|other| awaited(other, *element)).count();
                let list = self.lists.get(element);
                Some(Outcome::Counted(list.map(|list| (list.tuples.len(), waiting))))
            }
            Operation::Delete(element) => Some(Outcome::Deleted(self.lists.contains_key(element))),
        }
    }

    /// Does what an operation does when it has this outcome.
    pub(crate) fn apply(&mut self, operation: &Operation, outcome: &Outcome) {
        match (operation, outcome) {
            (Operation::Create(element, sync), Outcome::Created(_)) => {
                let list = self.lists.entry(*element).or_default();
                (list.sync, list.is_kept) = (*sync, true);
            }
            (Operation::Put(element, end, values), Outcome::Put(_)) => {
                let list = self.lists.entry(*element).or_default();
                values.iter().for_each(|value| list.put(*end, *value));
            }
            (Operation::Take(elements, ..), Outcome::Taken(at, values)) => {
                if let Some(element) = elements.get(*at) {
                    self.remove(*element, values);
                }
            }
            (Operation::Transfer((from, _), (to, end)), Outcome::Transferred(value)) => {
                // A list that exists only while it has tuples begins anew within one element, too.
                self.remove(*from, &[*value]);
                self.lists.entry(*to).or_default().put(*end, *value);
            }
            (Operation::Delete(element), Outcome::Deleted(_)) => {
                self.lists.remove(element);
            }
            _ => {}
        }
    }

    fn remove(&mut self, element: Element, values: &[Value]) {
        if let Some(list) = self.lists.get_mut(&element) {
            list.tuples.retain(|value| !values.contains(value));
            if list.tuples.is_empty() && !list.is_kept {
                self.lists.remove(&element);
            }
        }
    }
}
