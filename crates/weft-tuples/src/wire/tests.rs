//! Messages are read as they were written, and hostile ones are refused.

use std::rc::Rc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::limits::TOKEN_LEN_MAX;
use crate::model::{
    Count, Criteria, Description, ElementEnd, Item, Name, Operation, Order, Outcome, Rank, Refusal,
    Selection, Stamp, Sync, Tuple,
};

fn text() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..8)
}

fn name() -> impl Strategy<Value = Name> {
    text().prop_map(Rc::from)
}

fn stamp() -> impl Strategy<Value = Stamp> {
    any::<(u64, u64)>().prop_map(|(ms, count)| Stamp { ms, count })
}

fn rank() -> impl Strategy<Value = Rank> {
    (text(), stamp(), any::<i64>()).prop_map(|(key, stamp, position)| Rank { key, stamp, position })
}

fn items() -> impl Strategy<Value = Vec<Item>> {
    let item = (rank(), vec(text(), 0..3));
    vec(item.prop_map(|(rank, fields)| Item { rank, fields: fields.into() }), 0..3)
}

fn place() -> impl Strategy<Value = TailPlace> {
    any::<(u64, u64, u32, u64, u64)>().prop_map(|(address, len, key, offset, usage)| {
        let key = weft_fabric::RemoteKey::from_raw(address, len, key);
        TailPlace { key, offset, usage }
    })
}

fn end() -> impl Strategy<Value = ElementEnd> {
    prop_oneof![Just(ElementEnd::Front), Just(ElementEnd::Back)]
}

fn count() -> impl Strategy<Value = Count> {
    let exact = any::<u32>().prop_map(Count::Exactly);
    prop_oneof![any::<u32>().prop_map(Count::AtMost), exact]
}

fn criteria() -> impl Strategy<Value = Criteria> {
    let order = prop_oneof![Just(Order::Arrival), Just(Order::Key), Just(Order::Time)];
    let sync = prop_oneof![
        Just(Sync::Unbounded),
        any::<u32>().prop_map(Sync::Bound),
        any::<u32>().prop_map(Sync::Unread),
        any::<u32>().prop_map(Sync::Exactly),
    ];
    (order, sync).prop_map(|(order, sync)| Criteria { order, sync })
}

fn operation() -> impl Strategy<Value = Operation> {
    let tuple = (text(), proptest::option::of(stamp()), vec(text(), 0..3))
        .prop_map(|(key, stamp, fields)| Tuple { key, stamp, fields: fields.into() });
    let selection = prop_oneof![
        any::<(i64, i64)>().prop_map(|(from, to)| Selection::Places(from, to)),
        text().prop_map(Selection::Key),
        (stamp(), stamp()).prop_map(|(from, to)| Selection::Stamps(from, to)),
    ];
    let put = (name(), end(), vec(tuple, 0..3), any::<bool>());
    let place = || (name(), end());
    prop_oneof![
        (name(), criteria())
            .prop_map(|(element, criteria)| Operation::Create { element, criteria }),
        put.prop_map(|(element, end, tuples, is_append)| {
            Operation::Put { element, criteria: Criteria::default(), end, tuples, is_append }
        }),
        (vec(name(), 0..3), end(), count()).prop_map(|(elements, end, count)| Operation::Take {
            elements,
            end,
            count
        }),
        (vec((name(), proptest::option::of(rank())), 0..3), count())
            .prop_map(|(elements, count)| Operation::Observe { elements, count }),
        (place(), place()).prop_map(|(from, to)| Operation::Transfer { from, to }),
        (name(), selection, any::<u32>()).prop_map(|(element, selection, count)| Operation::Read {
            element,
            selection,
            count
        }),
        name().prop_map(|element| Operation::Describe { element }),
        Just(Operation::List),
        name().prop_map(|element| Operation::Delete { element }),
    ]
}

fn request() -> impl Strategy<Value = RequestFrame> {
    let wait = proptest::option::of((0..u64::MAX).prop_map(Duration::from_millis));
    let action = prop_oneof![
        8 => (operation(), wait).prop_map(|(operation, wait)| Action::Do(operation, wait)),
        1 => any::<u64>().prop_map(Action::Cancel),
        1 => Just(Action::Part),
        1 => name().prop_map(Action::Tail),
    ];
    (any::<u64>(), any::<u64>(), action).prop_map(|(number, confirmed, action)| RequestFrame {
        number,
        confirmed,
        action,
    })
}

fn answer() -> impl Strategy<Value = Answer> {
    let description = || {
        (name(), criteria(), any::<usize>(), stamp(), any::<usize>()).prop_map(
            |(name, criteria, len, last, waiting)| Description {
                name,
                criteria,
                len,
                last,
                waiting,
            },
        )
    };
    let at = || any::<u32>().prop_map(|at| at as usize);
    let outcome = prop_oneof![
        any::<bool>().prop_map(Outcome::Created),
        (rank(), any::<usize>()).prop_map(|(rank, len)| Outcome::Put(rank, len)),
        (at(), items()).prop_map(|(at, items)| Outcome::Taken(at, items)),
        vec((at(), items()), 0..3).prop_map(Outcome::Observed),
        (rank(), text()).prop_map(|(rank, field)| Outcome::Transferred(Item {
            rank,
            fields: [field].into_iter().collect()
        })),
        items().prop_map(Outcome::Read),
        proptest::option::of(description()).prop_map(Outcome::Described),
        vec(description(), 0..3).prop_map(Outcome::Listed),
        any::<bool>().prop_map(Outcome::Deleted),
        Just(Outcome::Nothing),
        Just(Outcome::Cancelled),
        Just(Outcome::Refused(Refusal::Window)),
    ];
    prop_oneof![
        8 => outcome.prop_map(Answer::Outcome),
        1 => any::<bool>().prop_map(Answer::Cancelled),
        1 => proptest::option::of(place()).prop_map(Answer::Tail),
    ]
}

proptest! {
    #[test]
    fn requests_are_read_as_written(request in request()) {
        let bytes = request.encode();
        let frame = split(&bytes, RequestFrame::LEN_MAX).unwrap().unwrap();
        prop_assert_eq!(RequestFrame::decode(frame), Ok(request));
        for len in 0..bytes.len() {
            prop_assert_eq!(split(&bytes[..len], RequestFrame::LEN_MAX), Ok(None));
        }
        for len in 0..frame.len() {
            prop_assert!(RequestFrame::decode(&frame[..len]).is_err());
        }
    }

    #[test]
    fn answers_are_read_as_written(number: u64, answer in answer()) {
        let bytes = frame(number, &answer);
        prop_assert_eq!(Answer::decode(&bytes[4..]), Ok((number, answer)));
    }

    #[test]
    fn changed_greetings_are_read_or_refused(
        token in vec(any::<u8>(), 0..40),
        changes in vec((any::<prop::sample::Index>(), 0_u8..4), 1..4),
    ) {
        let mut bytes = Hello { id: [7; 16], returns: false, token }.encode();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(Some((hello, len))) = Hello::split(&bytes) {
            // An empty token is as good as none.
            let same = if hello.token.is_empty() { Hello::LEN } else { len };
            let again = hello.encode();
            prop_assert_eq!(again.len(), same);
            prop_assert_eq!(Hello::split(&again), Ok(Some((hello, same))));
        }
    }

    #[test]
    fn changed_requests_are_read_or_refused(
        request in request(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = request.encode();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(Some(frame)) = split(&bytes, RequestFrame::LEN_MAX)
            && let Ok(request) = RequestFrame::decode(frame)
        {
            prop_assert_eq!(RequestFrame::decode(&request.encode()[4..]), Ok(request));
        }
        let _ = Answer::decode(&bytes);
    }
}

#[test]
fn greetings_are_read_as_written_and_others_are_refused() {
    for returns in [false, true] {
        let hello = Hello { id: [7; 16], returns, ..Hello::default() };
        assert_eq!(Hello::split(&hello.encode()), Ok(Some((hello.clone(), Hello::LEN))));
        assert_eq!(hello.encode().len(), Hello::LEN);
        let hello = Hello { token: b"0123456789abcdef".to_vec(), ..hello };
        let bytes = hello.encode();
        for len in 0..bytes.len() {
            assert_eq!(Hello::split(&bytes[..len]), Ok(None), "{len} bytes");
        }
        let more = [&bytes[..], b"more"].concat();
        assert_eq!(Hello::split(&more), Ok(Some((hello, bytes.len()))));
    }
    for welcome in [Welcome(Ok(())), Welcome(Err(Refusal::Stale))] {
        assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
        assert_eq!(welcome.encode().len(), Welcome::LEN);
    }
    let hello = Hello { id: [7; 16], returns: true, token: vec![b'a'; TOKEN_LEN_MAX] };
    assert!(matches!(Hello::split(&hello.encode()), Ok(Some(_))));
    for (at, what) in [(0, "no greeting"), (5, "another version"), (6, "flag"), (7, "flag")] {
        let mut other = hello.encode();
        other[at] += 2;
        assert_eq!(Hello::split(&other), Err(Malformed), "{what}");
    }
    let long = Hello { token: vec![b'a'; TOKEN_LEN_MAX + 1], ..hello };
    assert_eq!(Hello::split(&long.encode()[..Hello::LEN + 4]), Err(Malformed), "too long a token");
    assert_eq!(split(&[0xff; 9], RequestFrame::LEN_MAX), Err(Malformed), "too long a frame");
}

/// The example of `docs/tuples-protocol.md`.
#[test]
fn bytes_are_those_of_the_documentation() {
    let put = Operation::Put {
        element: Rc::from(&b"a"[..]),
        criteria: Criteria::default(),
        end: ElementEnd::Back,
        tuples: vec![Tuple::of("hi")],
        is_append: false,
    };
    let request = RequestFrame { number: 1, confirmed: 0, action: Action::Do(put, None) };
    let mut expected = vec![0, 0, 0, 51];
    expected.extend([0, 0, 0, 0, 0, 0, 0, 1]);
    expected.extend([0; 8]);
    expected.extend([2, 0, 0, 0, 1, b'a', 1, 0]);
    expected.extend([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, b'h', b'i']);
    expected.extend([0xff; 8]);
    assert_eq!(request.encode(), expected);
}
