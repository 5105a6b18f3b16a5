//! Tests of the two machines alone, and against each other with arbitrarily split bytes.

use std::time::{Duration, Instant};

use weft_wire::mpa::frame::{self, Frame, Kind, Parsed};
use weft_wire::mpa::negotiate::{NegotiateError, Params, Request, RtrKinds};

use super::dialer::{Agreed, Answer, Awaits, Dialer, Effect, Failure, Path, Plan, Retry, Wanted};
use super::limits::{ASK_AT, ASK_LOCAL_TIMEOUT, ASK_TIMEOUT};
use super::responder::{self, Limits, Responder};
use crate::Errno;
use crate::hello::{self, Identity, TRAILER_LEN};

const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(40)];
const CONNECT_TIME: Duration = Duration::from_secs(10);
const REPLY_TIME: Duration = Duration::from_secs(30);
const LIMITS: Limits = Limits {
    private_data_max: frame::PRIVATE_DATA_MAX,
    request_time: Duration::from_secs(5),
    answer_time: Duration::from_secs(60),
};
const REMOTE: Path = Path { is_local: false, was_closed: false };
const MS: Duration = Duration::from_millis(1);

const PARAMS: Params = Params {
    crc: true,
    markers_wanted: false,
    ird: 4,
    ord: 7,
    enhanced: true,
    peer_to_peer: true,
    rtr: RtrKinds { send: false, write: true, read: true },
};

/// A dialler with the connection manager's plan.
fn once() -> Dialer {
    Dialer::new(Plan {
        connect_time: Some(CONNECT_TIME),
        reply_time: Some(REPLY_TIME),
        retry: Retry::Refused(&PAUSES),
        wanted: None,
    })
}

/// A dialler with the plan of queue pairs that are connected by number.
fn again_for(time: Duration) -> Dialer {
    Dialer::new(Plan {
        connect_time: None,
        reply_time: None,
        retry: Retry::Always { pause: PAUSES[0], time },
        wanted: Some(Wanted { peer: 0x12, own: 0x34 }),
    })
}

/// The machine's effects in a short form.
fn effects(dialer: &mut Dialer) -> Vec<String> {
    std::iter::from_fn(|| dialer.poll_effect())
        .map(|effect| match effect {
            Effect::Transmit(bytes) => format!("transmit {}", bytes.len()),
            Effect::Finished(Ok(agreed)) => format!("agreed, early {}", agreed.early.len()),
            other => format!("{other:?}"),
        })
        .collect()
}

/// Advances a dialler until it awaits the reply, and returns its request.
fn send_request(dialer: &mut Dialer, now: Instant, private_data: &[u8]) -> Vec<u8> {
    dialer.dial(now, None);
    assert_eq!(effects(dialer), ["Connect { port: None }"]);
    dialer.connected(now);
    assert_eq!(effects(dialer), ["Greet { weft: true }"]);
    dialer.send_request(now, PARAMS, private_data);
    let Some(Effect::Transmit(request)) = dialer.poll_effect() else { panic!("no request") };
    assert!(dialer.poll_effect().is_none());
    assert_eq!(dialer.awaits(), Awaits::Reply);
    request
}

fn requested(responder: &mut Responder) -> Request {
    let Some(responder::Effect::Requested(request)) = responder.poll_effect() else {
        panic!("no request")
    };
    assert!(responder.poll_effect().is_none());
    request
}

fn reply_to(request: &[u8], params: Params, private_data: &[u8]) -> Vec<u8> {
    let mut responder = Responder::new(Instant::now(), LIMITS);
    responder.received(Instant::now(), request);
    requested(&mut responder);
    responder.accept(params, private_data).expect("private data that fits");
    let Some(responder::Effect::Transmit(reply)) = responder.poll_effect() else {
        panic!("no reply")
    };
    reply
}

#[test]
fn weft_peer_is_asked_for_its_port_and_gets_a_request() {
    let (mut dialer, now) = (once(), Instant::now());
    dialer.dial(now, Some(REMOTE));
    assert_eq!(effects(&mut dialer), ["Ask { again: false }"]);
    assert_eq!(dialer.awaits(), Awaits::Answer);
    dialer.answered(now + MS, Answer::Port(77));
    assert_eq!(effects(&mut dialer), ["Connect { port: Some(77) }"]);
    assert_eq!(dialer.timeout(), Some(now + MS + CONNECT_TIME));
    dialer.connected(now + 2 * MS);
    assert_eq!(effects(&mut dialer), ["Greet { weft: true }"]);
    dialer.send_request(now + 3 * MS, PARAMS, b"hello");
    let length = frame::HEADER_LEN + frame::ENHANCED_LEN + 5;
    assert_eq!(effects(&mut dialer), [format!("transmit {length}")]);
    assert_eq!(dialer.timeout(), Some(now + 3 * MS + REPLY_TIME));
    dialer.timed_out(now + 3 * MS + REPLY_TIME);
    assert_eq!(
        effects(&mut dialer),
        ["Finished(Err(Unreachable(Os { code: 110, kind: TimedOut, \
                                       message: \"Connection timed out\" })))"]
    );
    assert_eq!((dialer.timeout(), dialer.awaits()), (None, Awaits::Nothing));
}

#[test]
fn port_query_is_repeated_until_its_timeout() {
    let (mut dialer, start) = (once(), Instant::now());
    dialer.dial(start, Some(REMOTE));
    assert_eq!(effects(&mut dialer), ["Ask { again: false }"]);
    for after in &ASK_AT[1..] {
        let due = start + *after;
        assert_eq!(dialer.timeout(), Some(due));
        dialer.timed_out(due - MS);
        assert!(effects(&mut dialer).is_empty(), "before its time");
        dialer.timed_out(due);
        assert_eq!(effects(&mut dialer), ["Ask { again: true }"]);
    }
    assert_eq!(dialer.timeout(), Some(start + ASK_TIMEOUT));
    dialer.timed_out(start + ASK_TIMEOUT);
    // A silent peer may run Weft behind a firewall.
    assert_eq!(effects(&mut dialer), ["Connect { port: None }"]);
    dialer.connected(start + ASK_TIMEOUT);
    assert_eq!(effects(&mut dialer), ["Greet { weft: true }"]);
}

#[test]
fn no_answer_after_a_closed_port_counts_as_closed() {
    for path in [Path { was_closed: true, ..REMOTE }, Path { is_local: true, ..REMOTE }] {
        let (mut dialer, start) = (once(), Instant::now());
        dialer.dial(start, Some(path));
        dialer.timed_out(start + ASK_LOCAL_TIMEOUT);
        assert_eq!(effects(&mut dialer), ["Ask { again: false }", "Connect { port: None }"]);
        dialer.connected(start + ASK_LOCAL_TIMEOUT);
        let expected =
            if path.was_closed { "Ask { again: false }" } else { "Greet { weft: true }" };
        assert_eq!(effects(&mut dialer), [expected]);
    }
}

#[test]
fn peer_with_closed_port_is_asked_again_once_tcp_is_connected() {
    for (answer, weft) in
        [(Answer::Port(7), true), (Answer::Closed, false), (Answer::Silence, false)]
    {
        let (mut dialer, now) = (once(), Instant::now());
        dialer.dial(now, Some(REMOTE));
        dialer.answered(now, Answer::Closed);
        dialer.connected(now);
        dialer.answered(now, answer);
        let all = effects(&mut dialer);
        assert_eq!(all[2..], ["Ask { again: false }".into(), format!("Greet {{ weft: {weft} }}")]);
    }
}

#[test]
fn refused_connection_is_retried_after_each_pause() {
    let (mut dialer, mut now) = (once(), Instant::now());
    dialer.dial(now, None);
    for pause in PAUSES {
        assert_eq!(effects(&mut dialer), ["Connect { port: None }"]);
        dialer.failed(now, Failure::NobodyListens);
        assert_eq!(effects(&mut dialer), ["HangUp(NobodyListens)"]);
        assert_eq!(dialer.timeout(), Some(now + pause));
        now += pause;
        dialer.timed_out(now);
        assert_eq!(effects(&mut dialer), ["Dial"]);
        dialer.dial(now, None);
    }
    dialer.failed(now, Failure::NobodyListens);
    let all = effects(&mut dialer);
    assert_eq!(all, ["Connect { port: None }", "Finished(Err(NobodyListens))"]);
}

#[test]
fn other_failures_with_the_connection_managers_plan_are_final() {
    for failure in [Failure::Closed, Failure::System(Errno::NOBUFS)] {
        let (mut dialer, now) = (once(), Instant::now());
        send_request(&mut dialer, now, &[]);
        dialer.failed(now, failure.clone());
        assert_eq!(effects(&mut dialer), [format!("Finished(Err({failure:?}))")]);
        // Later inputs have no effect.
        dialer.failed(now, Failure::NobodyListens);
        dialer.received(now, b"MPA");
        dialer.timed_out(now + REPLY_TIME);
        assert!(effects(&mut dialer).is_empty());
    }
}

#[test]
fn dial_by_number_retries_any_failure_until_its_timeout() {
    let start = Instant::now();
    let (mut dialer, mut now) = (again_for(10 * PAUSES[0]), start);
    let until = start + 10 * PAUSES[0];
    loop {
        let request = send_request(&mut dialer, now, &[]);
        // The reply does not name a queue pair.
        dialer.received(now, &reply_to(&request, PARAMS, &[]));
        if now >= until {
            break;
        }
        assert_eq!(effects(&mut dialer), ["HangUp(WrongPeer)"]);
        now += PAUSES[0];
        dialer.timed_out(now);
        assert_eq!(effects(&mut dialer), ["Dial"]);
    }
    assert_eq!(effects(&mut dialer), ["Finished(Err(WrongPeer))"]);
    assert_eq!(now, until);
}

#[test]
fn only_the_answer_of_the_wanted_queue_pair_is_accepted() {
    let answer = |peer, own| {
        let now = Instant::now();
        let mut dialer = again_for(Duration::ZERO);
        let request = send_request(&mut dialer, now, &[]);
        let identity = Identity { qp_num: peer, ..Identity::default() };
        dialer.received(now, &reply_to(&request, PARAMS, &hello::append(&[], &identity, own)));
        effects(&mut dialer)
    };
    assert_eq!(answer(0x12, 0x34), ["agreed, early 0"]);
    assert_eq!(answer(0x13, 0x34), ["Finished(Err(WrongPeer))"]);
    assert_eq!(answer(0x12, 0x35), ["Finished(Err(WrongPeer))"]);
}

#[test]
fn bad_reply_is_answered_by_a_terminate_if_there_is_no_retry() {
    let now = Instant::now();
    // A reply with a greater read depth than we serve.
    let params = Params { ord: 5, ..PARAMS };
    let mut dialer = once();
    let asked = Params { ird: 4, ..PARAMS };
    dialer.dial(now, None);
    dialer.connected(now);
    dialer.send_request(now, asked, &[]);
    let request = std::iter::from_fn(|| dialer.poll_effect())
        .find_map(|effect| match effect {
            Effect::Transmit(request) => Some(request),
            _ => None,
        })
        .expect("a request");
    let Ok(Parsed::Complete { frame: reply, .. }) =
        Frame::parse(Kind::Reply, &reply_to(&request, params, &[]))
    else {
        panic!("no reply")
    };
    let mut greedy = reply;
    greedy.enhanced.as_mut().expect("of revision 2").ord = 5;
    let mut bytes = Vec::new();
    greedy.emit(&mut bytes);
    dialer.received(now, &bytes);
    let all = effects(&mut dialer);
    assert!(all[0].starts_with("transmit "), "{all:?}");
    assert_eq!(all[1], "Finished(Err(Protocol(InsufficientIrd { ord: 5, ird: 4 })))");
    // A dialler that retries only closes the connection.
    let mut dialer = again_for(CONNECT_TIME);
    send_request(&mut dialer, now, &[]);
    dialer.received(now, &bytes);
    let all = effects(&mut dialer);
    assert_eq!(all, ["HangUp(Protocol(InsufficientIrd { ord: 5, ird: 4 }))"]);
}

#[test]
fn rejection_carries_the_programs_data_without_the_trailer() {
    let (mut dialer, now) = (once(), Instant::now());
    let request = send_request(&mut dialer, now, &[]);
    let mut responder = Responder::new(now, LIMITS);
    responder.received(now, &request);
    requested(&mut responder);
    responder.reject(&hello::append(b"no", &Identity::default(), 0));
    let Some(responder::Effect::Transmit(reply)) = responder.poll_effect() else {
        panic!("no reply")
    };
    dialer.received(now, &reply);
    assert_eq!(effects(&mut dialer), ["Finished(Err(Rejected([110, 111])))"]);
}

#[test]
fn cancelled_machine_has_no_effects_and_no_timeout() {
    let (mut dialer, now) = (once(), Instant::now());
    dialer.dial(now, Some(REMOTE));
    dialer.cancel();
    dialer.answered(now, Answer::Silence);
    dialer.timed_out(now + ASK_TIMEOUT);
    assert!(effects(&mut dialer).is_empty() && dialer.timeout().is_none());
    let mut responder = Responder::new(now, LIMITS);
    responder.cancel();
    responder.ended();
    responder.timed_out(now + LIMITS.request_time);
    assert!(responder.poll_effect().is_none() && responder.timeout().is_none());
}

#[test]
fn slow_or_malformed_request_ends_the_connection() {
    let now = Instant::now();
    let request = send_request(&mut once(), now, b"data");
    let is_ended = |step: &dyn Fn(&mut Responder)| {
        let mut responder = Responder::new(now, LIMITS);
        step(&mut responder);
        matches!(responder.poll_effect(), Some(responder::Effect::Ended))
            && responder.poll_effect().is_none()
            && responder.is_done()
    };
    assert!(is_ended(&|responder| responder.timed_out(now + LIMITS.request_time)));
    assert!(!is_ended(&|responder| responder.timed_out(now + LIMITS.request_time - MS)));
    assert!(is_ended(&|responder| responder.received(now, b"GET / HTTP/1.1")));
    assert!(is_ended(&|responder| responder.ended()));
    // Bytes behind the request, at once or later.
    assert!(is_ended(&|responder| responder.received(now, &[&request[..], &[0]].concat())));
    assert!(is_ended(&|responder| {
        responder.received(now, &request);
        requested(responder);
        responder.received(now, &[0]);
    }));
}

#[test]
fn overdue_request_can_still_be_accepted() {
    let now = Instant::now();
    let request = send_request(&mut once(), now, &[]);
    let mut responder = Responder::new(now, LIMITS);
    responder.received(now + MS, &request);
    requested(&mut responder);
    let due = now + MS + LIMITS.answer_time;
    assert_eq!(responder.timeout(), Some(due));
    responder.timed_out(due);
    assert!(matches!(responder.poll_effect(), Some(responder::Effect::Overdue)));
    assert_eq!(responder.timeout(), None);
    assert!(responder.is_waiting());
    responder.accept(PARAMS, &[]).expect("still there");
}

#[test]
fn request_still_waits_when_its_answer_cannot_be_sent() {
    let now = Instant::now();
    let request = send_request(&mut once(), now, &[]);
    let mut responder = Responder::new(now, LIMITS);
    assert_eq!(responder.accept(PARAMS, &[]), Err(NegotiateError::NoRequest));
    responder.received(now, &request);
    requested(&mut responder);
    let too_long = vec![0; frame::PRIVATE_DATA_MAX];
    let refused = responder.accept(PARAMS, &too_long);
    assert!(matches!(refused, Err(NegotiateError::PrivateData { .. })), "{refused:?}");
    assert!(responder.is_waiting() && responder.poll_effect().is_none());
    let other = Params { rtr: RtrKinds { send: true, write: false, read: false }, ..PARAMS };
    assert_eq!(responder.accept(other, &[]), Err(NegotiateError::NoMatchingRtr));
    responder.accept(PARAMS, &[]).expect("the request is still there");
    assert!(responder.is_done());
    assert_eq!(responder.accept(PARAMS, &[]), Err(NegotiateError::NoRequest), "only once");
}

/// With any parameters and private data, and arbitrarily split bytes, both sides negotiate the
/// same.
#[test]
fn both_sides_negotiate_the_same_however_bytes_are_split() {
    for seed in 0..2_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        agree(&mut random);
    }
}

fn agree(random: &mut fastrand::Rng) {
    let now = Instant::now();
    let params = |random: &mut fastrand::Rng| Params {
        crc: random.bool(),
        markers_wanted: random.bool(),
        ird: random.u16(..0x3fff),
        ord: random.u16(..0x3fff),
        enhanced: random.bool(),
        peer_to_peer: random.bool(),
        rtr: RtrKinds { write: true, send: random.bool(), read: random.bool() },
    };
    let (asked, offered) = (params(random), params(random));
    let data = |random: &mut fastrand::Rng| -> Vec<u8> {
        let len = random.usize(..500);
        std::iter::repeat_with(|| random.u8(..)).take(len).collect()
    };
    let (question, answer, behind) = (data(random), data(random), data(random));
    let mut dialer = once();
    dialer.dial(now, None);
    dialer.connected(now);
    dialer.send_request(now, asked, &question);
    let request = std::iter::from_fn(|| dialer.poll_effect()).last();
    let Some(Effect::Transmit(request)) = request else { panic!("{request:?}") };
    let mut responder = Responder::new(now, LIMITS);
    for piece in cut(&request, random) {
        assert!(responder.poll_effect().is_none(), "before the request is whole");
        responder.received(now, piece);
    }
    let Request { private_data, .. } = requested(&mut responder);
    assert_eq!(private_data, question);
    let theirs = responder.accept(offered, &answer).expect("kinds in common");
    let Some(responder::Effect::Transmit(mut reply)) = responder.poll_effect() else {
        panic!("no reply")
    };
    reply.extend_from_slice(&behind);
    let mut early = Vec::new();
    let mut ours = None;
    for piece in cut(&reply, random) {
        if ours.is_some() {
            early.extend_from_slice(piece);
            continue;
        }
        dialer.received(now, piece);
        match dialer.poll_effect() {
            None => {}
            Some(Effect::Finished(Ok(agreed))) => {
                early.clone_from(&agreed.early);
                ours = Some(agreed);
            }
            other => {
                // The responder may require more reads than we serve; no other failure is possible
                // here.
                let frame = matches!(other, Some(Effect::Transmit(_)));
                assert!(frame && theirs.ord > asked.ird, "{other:?}");
                return;
            }
        }
    }
    let Agreed { negotiated: ours, .. } = ours.expect("a whole reply");
    assert_eq!(early, behind);
    assert_eq!(ours.peer_private_data, answer);
    assert_eq!((ours.revision, ours.crc, ours.rtr), (theirs.revision, theirs.crc, theirs.rtr));
    assert_eq!(
        (ours.tx_markers, ours.rx_markers),
        (theirs.rx_markers, theirs.tx_markers),
        "each side's own wish"
    );
}

/// Splits bytes randomly into non-empty pieces.
fn cut<'a>(mut bytes: &'a [u8], random: &mut fastrand::Rng) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    while !bytes.is_empty() {
        let most = if random.bool() { 3 } else { bytes.len() };
        let (piece, rest) = bytes.split_at(random.usize(1..=most.min(bytes.len())));
        pieces.push(piece);
        bytes = rest;
    }
    pieces
}

#[test]
fn longest_request_of_a_weft_peer_fits_one_read() {
    let now = Instant::now();
    let programs = [7; frame::PRIVATE_DATA_MAX - frame::ENHANCED_LEN - TRAILER_LEN];
    let data = hello::append(&programs, &Identity::default(), 0);
    let request = send_request(&mut once(), now, &data);
    assert_eq!(request.len() + 1, super::limits::REQUEST_READ_LEN);
}
