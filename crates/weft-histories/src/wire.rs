//! The same operations and outcomes in the protocol of the tuple space.

use std::rc::Rc;

use weft_tuples::model::{self, Criteria, Item, Name, Order, Refusal, Tuple};

use crate::history::{Element, Operation, Outcome, Value};

fn name(element: Element) -> Name {
    Rc::from(format!("element {element}").as_bytes())
}

fn names(elements: &[Element]) -> Vec<Name> {
    elements.iter().map(|element| name(*element)).collect()
}

/// The operation as a server knows it.
pub(crate) fn operation(operation: &Operation) -> model::Operation {
    match operation {
        Operation::Create(element, sync) => model::Operation::Create {
            element: name(*element),
            criteria: Criteria { order: Order::Arrival, sync: *sync },
        },
        Operation::Put(element, end, values) => model::Operation::Put {
            element: name(*element),
            criteria: Criteria::default(),
            end: *end,
            tuples: values.iter().map(|value| Tuple::of(value.to_string())).collect(),
            is_append: false,
        },
        Operation::Take(elements, end, count) => {
            model::Operation::Take { elements: names(elements), end: *end, count: *count }
        }
        Operation::Observe(elements, count) => model::Operation::Observe {
            elements: elements.iter().map(|element| (name(*element), None)).collect(),
            count: *count,
        },
        Operation::Transfer((from, from_end), (to, to_end)) => {
            model::Operation::Transfer { from: (name(*from), *from_end), to: (name(*to), *to_end) }
        }
        Operation::Count(element) => model::Operation::Describe { element: name(*element) },
        Operation::Delete(element) => model::Operation::Delete { element: name(*element) },
    }
}

/// What a server has answered. `None` if that is no answer to an operation of a history.
pub(crate) fn outcome(outcome: model::Outcome) -> Option<Outcome> {
    Some(match outcome {
        model::Outcome::Created(is_new) => Outcome::Created(is_new),
        model::Outcome::Put(_, len) => Outcome::Put(len),
        model::Outcome::Taken(at, items) => Outcome::Taken(at, values(&items)?),
        model::Outcome::Observed(found) => {
            let found = found.iter().map(|(at, items)| Some((*at, values(items)?)));
            Outcome::Observed(found.collect::<Option<_>>()?)
        }
        model::Outcome::Transferred(item) => Outcome::Transferred(value(&item)?),
        model::Outcome::Described(it) => Outcome::Counted(it.map(|it| (it.len, it.waiting))),
        model::Outcome::Deleted(existed) => Outcome::Deleted(existed),
        model::Outcome::Nothing => Outcome::Nothing,
        model::Outcome::Refused(Refusal::Log) => return None,
        model::Outcome::Refused(refusal) => Outcome::Refused(refusal),
        model::Outcome::Read(_) | model::Outcome::Listed(_) | model::Outcome::Cancelled => {
            return None;
        }
    })
}

fn values(items: &[Item]) -> Option<Vec<Value>> {
    items.iter().map(value).collect()
}

fn value(item: &Item) -> Option<Value> {
    let [field] = item.fields.as_slice() else { return None };
    std::str::from_utf8(field).ok()?.parse().ok()
}
