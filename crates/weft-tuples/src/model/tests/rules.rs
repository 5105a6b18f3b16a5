//! One test for each rule.

use super::*;
use crate::limits::{NAME_LEN_MAX, TUPLE_LEN_MAX};
use crate::model::{Rank, Refusal, Selection, Space, Stamp, Wait};

const ONE: Count = Count::AtMost(1);

fn read(space: &mut Space, element: &str) -> Vec<String> {
    let selection = Selection::Places(0, -1);
    let read = Operation::Read { element: name(element), selection, count: 100 };
    values(&done(space.call(at(0), read, Wait::No)))
}

#[test]
fn takers_are_served_in_the_order_of_their_calls() {
    let mut space = Space::default();
    let first = waits(space.call(at(0), take("a", Count::Exactly(2)), Wait::Forever));
    let second = waits(space.call(at(0), take("a", ONE), Wait::Forever));
    done(space.call(at(0), put("a", &["1"]), Wait::No));
    assert_eq!(space.poll(), None, "the second must not overtake the first");
    assert_eq!(done(space.call(at(0), take("a", ONE), Wait::No)), Outcome::Nothing);
    done(space.call(at(0), put("a", &["2"]), Wait::No));
    done(space.call(at(0), put("a", &["3"]), Wait::No));
    let (ticket, outcome) = space.poll().unwrap();
    assert_eq!((ticket, values(&outcome)), (first, vec!["1".into(), "2".into()]));
    let (ticket, outcome) = space.poll().unwrap();
    assert_eq!((ticket, values(&outcome)), (second, vec!["3".into()]));
}

#[test]
fn a_cancelled_or_late_taker_lets_the_next_one_through() {
    for is_late in [false, true] {
        let mut space = Space::default();
        let until = Wait::Until(Duration::from_millis(5));
        let first = waits(space.call(at(0), take("a", Count::Exactly(2)), until));
        let second = waits(space.call(at(0), take("a", ONE), Wait::Forever));
        done(space.call(at(0), put("a", &["1"]), Wait::No));
        assert_eq!(space.next_deadline(), Some(Duration::from_millis(5)));
        if is_late {
            space.expire(at(4));
            assert_eq!(space.poll(), None);
            space.expire(at(5));
        } else {
            assert!(space.cancel(at(1), first));
            assert!(!space.cancel(at(1), first));
        }
        let ended = if is_late { Outcome::Nothing } else { Outcome::Cancelled };
        assert_eq!(space.poll(), Some((first, ended)));
        let (ticket, outcome) = space.poll().unwrap();
        assert_eq!((ticket, values(&outcome)), (second, vec!["1".into()]));
        assert_eq!((space.bytes(), space.waiting()), (0, 0));
    }
}

#[test]
fn bounded_element_pushes_back() {
    let mut space = Space::default();
    done(space.call(at(0), create("a", Order::Arrival, Sync::Bound(2)), Wait::No));
    done(space.call(at(0), put("a", &["1", "2"]), Wait::No));
    let full = done(space.call(at(0), put("a", &["3"]), Wait::No));
    assert_eq!(full, Outcome::Refused(Refusal::Full));
    let too_many = done(space.call(at(0), put("a", &["1", "2", "3"]), Wait::Forever));
    assert_eq!(too_many, Outcome::Refused(Refusal::Count));
    let first = waits(space.call(at(0), put("a", &["3", "4"]), Wait::Forever));
    let second = waits(space.call(at(0), put("a", &["5"]), Wait::Forever));
    done(space.call(at(0), take("a", ONE), Wait::No));
    assert_eq!(space.poll(), None, "one place is not enough for the first put");
    done(space.call(at(0), take("a", ONE), Wait::No));
    assert!(matches!(space.poll(), Some((ticket, Outcome::Put(_, 2))) if ticket == first));
    assert_eq!(space.poll(), None);
    done(space.call(at(0), take("a", ONE), Wait::No));
    assert!(matches!(space.poll(), Some((ticket, Outcome::Put(_, 2))) if ticket == second));
    assert_eq!(read(&mut space, "a"), ["4", "5"]);
}

#[test]
fn unread_tuples_are_bounded_until_they_are_observed() {
    let mut space = Space::default();
    done(space.call(at(0), create("a", Order::Arrival, Sync::Unread(1)), Wait::No));
    done(space.call(at(0), put("a", &["1"]), Wait::No));
    let second = waits(space.call(at(0), put("a", &["2"]), Wait::Forever));
    assert_eq!(read(&mut space, "a"), ["1"]);
    assert_eq!(space.poll(), None, "reading is not observing");
    let observe = Operation::Observe { elements: vec![(name("a"), None)], count: ONE };
    assert_eq!(values(&done(space.call(at(0), observe, Wait::No))), ["1"]);
    assert!(matches!(space.poll(), Some((ticket, Outcome::Put(_, 2))) if ticket == second));
}

#[test]
fn refused_observe_marks_nothing_as_read() {
    let mut space = Space::default();
    done(space.call(at(0), create("a", Order::Arrival, Sync::Unread(2)), Wait::No));
    done(space.call(at(0), create("b", Order::Arrival, Sync::Bound(1)), Wait::No));
    done(space.call(at(0), put("a", &["1", "2"]), Wait::No));
    waits(space.call(at(0), put("a", &["3"]), Wait::Forever));
    // The second element never has two tuples behind a place.
    let elements = vec![(name("a"), None), (name("b"), None)];
    let observe = Operation::Observe { elements, count: Count::Exactly(2) };
    let refused = done(space.call(at(0), observe, Wait::No));
    assert_eq!(refused, Outcome::Refused(Refusal::Count));
    assert_eq!(space.poll(), None, "the tuples are still unread");
}

#[test]
fn exactly_n_tuples_are_taken_as_a_group() {
    let mut space = Space::default();
    done(space.call(at(0), create("a", Order::Arrival, Sync::Exactly(2)), Wait::No));
    let one = done(space.call(at(0), take("a", ONE), Wait::Forever));
    assert_eq!(one, Outcome::Refused(Refusal::Count));
    let group = waits(space.call(at(0), take("a", Count::Exactly(2)), Wait::Forever));
    done(space.call(at(0), put("a", &["1"]), Wait::No));
    assert_eq!(space.poll(), None);
    done(space.call(at(0), put("a", &["2"]), Wait::No));
    let (ticket, outcome) = space.poll().unwrap();
    assert_eq!((ticket, values(&outcome)), (group, vec!["1".into(), "2".into()]));
}

#[test]
fn observer_sees_a_tuple_that_a_taker_waits_for() {
    let mut space = Space::default();
    let taker = waits(space.call(at(0), take("a", ONE), Wait::Forever));
    let elements = vec![(name("b"), None), (name("a"), None)];
    let observe = Operation::Observe { elements, count: ONE };
    let observer = waits(space.call(at(0), observe, Wait::Forever));
    done(space.call(at(0), put("a", &["1"]), Wait::No));
    let (ticket, outcome) = space.poll().unwrap();
    assert_eq!((ticket, values(&outcome)), (observer, vec!["1".into()]));
    let (ticket, outcome) = space.poll().unwrap();
    assert_eq!((ticket, values(&outcome)), (taker, vec!["1".into()]));
    assert_eq!(space.bytes(), 0);
}

#[test]
fn cursor_stays_valid_when_an_element_empties_and_fills_again() {
    let mut space = Space::default();
    let Outcome::Put(rank, _) = done(space.call(at(0), put("a", &["1"]), Wait::No)) else {
        panic!("not put");
    };
    done(space.call(at(0), take("a", ONE), Wait::No));
    done(space.call(at(0), put("a", &["2"]), Wait::No));
    let observe = Operation::Observe { elements: vec![(name("a"), Some(rank))], count: ONE };
    assert_eq!(values(&done(space.call(at(0), observe, Wait::No))), ["2"]);
}

#[test]
fn keys_and_time_stamps_order_tuples() {
    let mut space = Space::default();
    done(space.call(at(0), create("k", Order::Key, Sync::Unbounded), Wait::No));
    done(space.call(at(0), create("t", Order::Time, Sync::Unbounded), Wait::No));
    let mut put = |element: &str, key: &str, ms: Option<u64>, is_append| {
        let stamp = ms.map(|ms| Stamp { ms, count: 0 });
        let value = if key.is_empty() { format!("{ms:?}") } else { key.to_owned() };
        let tuples = vec![Tuple { key: key.into(), stamp, ..Tuple::of(value) }];
        let (criteria, end) = (Criteria::default(), ElementEnd::Back);
        let operation = Operation::Put { element: name(element), criteria, end, tuples, is_append };
        done(space.call(at(0), operation, Wait::No))
    };
    for key in ["b", "a", "c", "a"] {
        put("k", key, None, false);
    }
    for ms in [Some(5), Some(3), None] {
        put("t", "", ms, false);
    }
    assert_eq!(put("t", "", Some(4), true), Outcome::Refused(Refusal::Stamp));
    assert_eq!(put("t", "x", Some(4), false), Outcome::Refused(Refusal::Order));
    assert_eq!(put("k", "x", Some(4), false), Outcome::Refused(Refusal::Order));
    assert_eq!(read(&mut space, "k"), ["a", "a", "b", "c"]);
    assert_eq!(read(&mut space, "t"), ["Some(3)", "Some(5)", "None"]);
    let select = |element: &str, selection| Operation::Read {
        element: name(element),
        selection,
        count: 100,
    };
    let of_key = select("k", Selection::Key(b"a".to_vec()));
    assert_eq!(values(&done(space.call(at(0), of_key, Wait::No))), ["a", "a"]);
    let stamps = Selection::Stamps(Stamp { ms: 4, count: 0 }, Stamp { ms: 9, count: 0 });
    let of_time = select("t", stamps);
    assert_eq!(values(&done(space.call(at(0), of_time, Wait::No))), ["Some(5)"]);
}

#[test]
fn transfer_moves_or_changes_nothing() {
    let mut space = Space::default();
    let transfer = |from: &str, to: &str| Operation::Transfer {
        from: (name(from), ElementEnd::Back),
        to: (name(to), ElementEnd::Front),
    };
    done(space.call(at(0), create("b", Order::Arrival, Sync::Bound(1)), Wait::No));
    done(space.call(at(0), put("a", &["1", "2"]), Wait::No));
    let moved = done(space.call(at(0), transfer("a", "b"), Wait::No));
    assert_eq!(values(&moved), ["2"]);
    let full = done(space.call(at(0), transfer("a", "b"), Wait::Forever));
    assert_eq!(full, Outcome::Refused(Refusal::Full));
    assert_eq!(
        (read(&mut space, "a"), read(&mut space, "b")),
        (vec!["1".into()], vec!["2".into()])
    );
    // A full element has a place for its own tuple.
    assert_eq!(values(&done(space.call(at(0), transfer("b", "b"), Wait::No))), ["2"]);
    let waiting = waits(space.call(at(0), transfer("c", "a"), Wait::Forever));
    done(space.call(at(0), put("c", &["3"]), Wait::No));
    assert!(matches!(space.poll(), Some((ticket, Outcome::Transferred(_))) if ticket == waiting));
    assert_eq!(read(&mut space, "a"), ["3", "1"]);
}

#[test]
fn deleting_refuses_puts_that_wait_and_leaves_takers() {
    let mut space = Space::default();
    done(space.call(at(0), create("a", Order::Arrival, Sync::Bound(1)), Wait::No));
    done(space.call(at(0), put("a", &["1"]), Wait::No));
    let putter = waits(space.call(at(0), put("a", &["2"]), Wait::Forever));
    let delete = Operation::Delete { element: name("a") };
    assert_eq!(done(space.call(at(0), delete.clone(), Wait::No)), Outcome::Deleted(true));
    assert_eq!(space.poll(), Some((putter, Outcome::Refused(Refusal::Deleted))));
    assert_eq!(done(space.call(at(0), delete, Wait::No)), Outcome::Deleted(false));
    assert_eq!(space.bytes(), 0);
    let taker = waits(space.call(at(0), take("a", Count::Exactly(3)), Wait::Forever));
    done(space.call(at(0), create("a", Order::Arrival, Sync::Bound(2)), Wait::No));
    assert_eq!(space.poll(), Some((taker, Outcome::Refused(Refusal::Count))));
    let other = create("a", Order::Key, Sync::Unbounded);
    assert_eq!(done(space.call(at(0), other, Wait::No)), Outcome::Refused(Refusal::Exists));
}

#[test]
fn limits_are_enforced() {
    let mut space = Space::new(10_000);
    let long = "n".repeat(NAME_LEN_MAX + 1);
    let limit = Outcome::Refused(Refusal::Limit);
    assert_eq!(done(space.call(at(0), take(&long, ONE), Wait::Forever)), limit);
    assert_eq!(done(space.call(at(0), take("a", Count::AtMost(0)), Wait::Forever)), limit);
    assert_eq!(done(space.call(at(0), put("a", &[]), Wait::No)), limit);
    let large = "v".repeat(TUPLE_LEN_MAX + 1);
    assert_eq!(done(space.call(at(0), put("a", &[&large]), Wait::No)), limit);
    let value = "v".repeat(5_000);
    assert!(matches!(done(space.call(at(0), put("a", &[&value]), Wait::No)), Outcome::Put(..)));
    let memory = Outcome::Refused(Refusal::Memory);
    assert_eq!(done(space.call(at(0), put("a", &[&value]), Wait::No)), memory);
    done(space.call(at(0), take("a", ONE), Wait::No));
    assert!(matches!(done(space.call(at(0), put("a", &[&value]), Wait::No)), Outcome::Put(..)));
    // Fields without contents count.
    let fields = std::iter::repeat_n(Vec::new(), 200).collect();
    let tuples = vec![Tuple { fields, ..Tuple::default() }];
    let (criteria, end) = (Criteria::default(), ElementEnd::Back);
    let put_fields = Operation::Put { element: name("c"), criteria, end, tuples, is_append: false };
    assert_eq!(done(space.call(at(0), put_fields, Wait::No)), memory);
    // Puts that wait count, too.
    done(space.call(at(0), create("b", Order::Arrival, Sync::Bound(1)), Wait::No));
    done(space.call(at(0), put("b", &["1"]), Wait::No));
    assert_eq!(done(space.call(at(0), put("b", &[&value]), Wait::Forever)), memory);
}

proptest::proptest! {
    #[test]
    fn ranks_are_ordered_by_key_then_stamp_then_position(
        one in (proptest::collection::vec(0_u8..2, 0..2), 0_u64..2, 0_u64..2, -1_i64..2),
        other in (proptest::collection::vec(0_u8..2, 0..2), 0_u64..2, 0_u64..2, -1_i64..2),
    ) {
        let rank = |(key, ms, count, position): &(Vec<u8>, u64, u64, i64)| Rank {
            key: key.clone(),
            stamp: Stamp { ms: *ms, count: *count },
            position: *position,
        };
        proptest::prop_assert_eq!(rank(&one).cmp(&rank(&other)), one.cmp(&other));
    }
}

/// A transfer puts a tuple into an element for which the next take of its source waits, too.
#[test]
fn observes_see_a_tuple_that_was_moved_before_it_can_be_taken() {
    let mut space = Space::default();
    let from = (name("a"), ElementEnd::Front);
    let to = (name("b"), ElementEnd::Back);
    let transfer = waits(space.call(at(0), Operation::Transfer { from, to }, Wait::Forever));
    let elements = vec![name("a"), name("b")];
    let either = Operation::Take { elements, end: ElementEnd::Front, count: ONE };
    let taker = waits(space.call(at(0), either, Wait::Forever));
    let observe = Operation::Observe { elements: vec![(name("b"), None)], count: ONE };
    let observer = waits(space.call(at(0), observe, Wait::Forever));
    done(space.call(at(0), put("a", &["1"]), Wait::No));
    let served: Vec<_> = std::iter::from_fn(|| space.poll()).map(|(ticket, _)| ticket).collect();
    assert_eq!(served, [transfer, observer, taker]);
}
