//! Operations that clients repeat.

use super::*;
use crate::limits::{ANSWERS_MAX, CLIENT_AWAY_TIME_MAX};
use crate::model::{ClientId, Refusal, Request, Service, Wait};

const ID: ClientId = [1; 16];
const ONE: Count = Count::AtMost(1);

fn request(number: u64, operation: Operation) -> Request {
    Request { number, confirmed: 0, operation, wait: Wait::Forever }
}

#[test]
fn a_repeated_operation_takes_effect_once() {
    let mut service = Service::default();
    service.enter(at(0), ID, false).unwrap();
    let first = done(service.call(at(0), ID, request(1, put("a", &["1", "2"]))));
    let taken = done(service.call(at(0), ID, request(2, take("a", ONE))));
    service.leave(at(1), ID);
    service.enter(at(2), ID, true).unwrap();
    assert_eq!(done(service.call(at(2), ID, request(1, put("a", &["1", "2"])))), first);
    assert_eq!(done(service.call(at(2), ID, request(2, take("a", ONE)))), taken);
    let next = done(service.call(at(2), ID, request(3, take("a", ONE))));
    assert_eq!(values(&next), ["2"]);
    let confirmed = Request { confirmed: 3, ..request(4, take("a", ONE)) };
    waits(service.call(at(2), ID, confirmed));
    let stale = Outcome::Refused(Refusal::Stale);
    assert_eq!(done(service.call(at(2), ID, request(3, take("a", ONE)))), stale);
}

#[test]
fn an_operation_that_waits_is_joined_by_its_repetition_and_cancelled_with_the_connection() {
    let mut service = Service::default();
    service.enter(at(0), ID, false).unwrap();
    let ticket = waits(service.call(at(0), ID, request(1, take("a", ONE))));
    assert_eq!(waits(service.call(at(0), ID, request(1, take("a", ONE)))), ticket);
    waits(service.call(at(0), ID, request(2, take("a", ONE))));
    service.leave(at(1), ID);
    while service.poll().is_some() {}
    done(service.space().call(at(1), put("a", &["1", "2"]), Wait::No));
    assert_eq!(service.poll(), None, "nothing is taken for a client that is away");
    service.enter(at(2), ID, true).unwrap();
    assert_eq!(values(&done(service.call(at(2), ID, request(1, take("a", ONE))))), ["1"]);
    assert_eq!(values(&done(service.call(at(2), ID, request(2, take("a", ONE))))), ["2"]);
}

fn observe(element: &str) -> Operation {
    Operation::Observe { elements: vec![(name(element), None)], count: ONE }
}

/// Otherwise the first tuple would count as read though nobody has got it, and the second one
/// as well.
#[test]
fn a_repeated_observe_gets_the_tuples_that_it_has_marked_as_read() {
    for waits_first in [false, true] {
        let mut service = Service::default();
        service.enter(at(0), ID, false).unwrap();
        let space = service.space();
        done(space.call(at(0), create("a", Order::Arrival, Sync::Unread(1)), Wait::No));
        if !waits_first {
            done(space.call(at(0), put("a", &["1"]), Wait::No));
        }
        let called = service.call(at(0), ID, request(1, observe("a")));
        if waits_first {
            waits(called);
            done(service.space().call(at(0), put("a", &["1"]), Wait::No));
            while service.poll().is_some() {}
        }
        // The answer is lost, the tuple is taken, and another one comes.
        service.leave(at(1), ID);
        done(service.space().call(at(1), take("a", ONE), Wait::No));
        done(service.space().call(at(1), put("a", &["2"]), Wait::No));
        service.enter(at(2), ID, true).unwrap();
        let again = done(service.call(at(2), ID, request(1, observe("a"))));
        assert_eq!(values(&again), ["1"]);
        let full = service.space().call(at(2), put("a", &["3"]), Wait::No);
        assert_eq!(done(full), Outcome::Refused(Refusal::Full), "the second one is unread");
        let next = Request { confirmed: 1, ..request(2, observe("a")) };
        assert_eq!(values(&done(service.call(at(2), ID, next))), ["2"]);
    }
}

/// Observes of other elements change nothing, and are done again.
#[test]
fn a_repeated_observe_that_marks_nothing_sees_what_is_there() {
    let mut service = Service::default();
    service.enter(at(0), ID, false).unwrap();
    done(service.space().call(at(0), put("a", &["1"]), Wait::No));
    assert_eq!(values(&done(service.call(at(0), ID, request(1, observe("a"))))), ["1"]);
    done(service.space().call(at(0), take("a", ONE), Wait::No));
    done(service.space().call(at(0), put("a", &["2"]), Wait::No));
    assert_eq!(values(&done(service.call(at(0), ID, request(1, observe("a"))))), ["2"]);
}

#[test]
fn an_outcome_that_the_client_has_not_seen_is_kept() {
    let mut service = Service::default();
    service.enter(at(0), ID, false).unwrap();
    let ticket = waits(service.call(at(0), ID, request(1, take("a", ONE))));
    done(service.space().call(at(0), put("a", &["1"]), Wait::No));
    // Served, but the outcome was not polled before the connection was lost.
    service.leave(at(1), ID);
    assert_eq!(service.poll().unwrap().0, ticket);
    service.enter(at(2), ID, true).unwrap();
    assert_eq!(values(&done(service.call(at(2), ID, request(1, take("a", ONE))))), ["1"]);
}

#[test]
fn an_answer_is_not_kept_for_another_client_of_the_same_name() {
    let mut service = Service::default();
    service.enter(at(0), ID, false).unwrap();
    waits(service.call(at(0), ID, request(1, take("a", ONE))));
    done(service.space().call(at(0), put("a", &["1"]), Wait::No));
    // Served, but the outcome was not polled before the client parted.
    service.part(at(1), ID);
    service.enter(at(1), ID, false).unwrap();
    while service.poll().is_some() {}
    done(service.space().call(at(1), put("a", &["2"]), Wait::No));
    assert_eq!(values(&done(service.call(at(1), ID, request(1, take("a", ONE))))), ["2"]);
}

#[test]
fn answers_and_clients_are_bounded() {
    let mut service = Service::default();
    assert_eq!(service.enter(at(0), ID, true), Err(Refusal::Stale));
    service.enter(at(0), ID, false).unwrap();
    for number in 1..=ANSWERS_MAX as u64 {
        done(service.call(at(0), ID, request(number, put("a", &["1"]))));
    }
    let next = ANSWERS_MAX as u64 + 1;
    let window = Outcome::Refused(Refusal::Window);
    assert_eq!(done(service.call(at(0), ID, request(next, put("a", &["1"])))), window);
    let confirmed = Request { confirmed: 1, ..request(next, put("a", &["1"])) };
    assert!(matches!(done(service.call(at(0), ID, confirmed)), Outcome::Put(..)));
    service.leave(at(0), ID);
    let mut id = [0; 16];
    for number in 1..crate::limits::CLIENTS_MAX as u64 {
        id[..8].copy_from_slice(&number.to_ne_bytes());
        service.enter(at(1), id, false).unwrap();
    }
    assert_eq!(service.enter(at(1), [9; 16], false), Err(Refusal::Busy));
    let later = at(CLIENT_AWAY_TIME_MAX.as_millis() as u64);
    service.enter(later, [9; 16], false).unwrap();
    assert_eq!(service.enter(later, ID, true), Err(Refusal::Stale), "it was forgotten");
}
