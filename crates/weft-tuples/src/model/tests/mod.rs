//! Tests of the model: single rules, and random operations against a plain model of lists.

mod clients;
mod list;
mod random;
mod rules;

use std::rc::Rc;
use std::time::Duration;

use super::{
    Called, Count, Criteria, ElementEnd, Name, Now, Operation, Order, Outcome, Sync, Tuple,
};

/// The time after this many milliseconds.
fn at(ms: u64) -> Now {
    Now { clock: Duration::from_millis(ms), ms: 1_000 + ms }
}

fn name(text: &str) -> Name {
    Rc::from(text.as_bytes())
}

fn create(element: &str, order: Order, sync: Sync) -> Operation {
    Operation::Create { element: name(element), criteria: Criteria { order, sync } }
}

fn put(element: &str, values: &[&str]) -> Operation {
    let tuples = values.iter().map(|value| Tuple::of(*value)).collect();
    let (criteria, end) = (Criteria::default(), ElementEnd::Back);
    Operation::Put { element: name(element), criteria, end, tuples, is_append: false }
}

fn take(element: &str, count: Count) -> Operation {
    Operation::Take { elements: vec![name(element)], end: ElementEnd::Front, count }
}

fn done(called: Called) -> Outcome {
    match called {
        Called::Done(outcome) => outcome,
        Called::Waits(ticket) => panic!("{ticket} waits"),
    }
}

fn waits(called: Called) -> u64 {
    match called {
        Called::Waits(ticket) => ticket,
        Called::Done(outcome) => panic!("{outcome:?}"),
    }
}

/// The first fields of the tuples of an outcome.
fn values(outcome: &Outcome) -> Vec<String> {
    let items = match outcome {
        Outcome::Taken(_, items) | Outcome::Read(items) => items.clone(),
        Outcome::Observed(all) => all.iter().flat_map(|(_, items)| items.clone()).collect(),
        Outcome::Transferred(item) => vec![item.clone()],
        other => panic!("{other:?}"),
    };
    items.iter().map(|item| String::from_utf8_lossy(&item.fields[0]).into_owned()).collect()
}
