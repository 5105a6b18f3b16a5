use std::time::Duration;

use super::*;
use crate::limits::BLOCK_SIZE_MIN;
use crate::wire::{PipeSecret, Role, Token};

const ZERO: Duration = Duration::ZERO;

fn offer() -> Offer {
    Offer { channels: 4, block_size: BLOCK_SIZE_MIN * 4, features: 0b110, agent: "a".into() }
}

fn policy() -> Policy {
    let most = Terms {
        version: VERSION,
        channels: 2,
        block_size: BLOCK_SIZE_MIN * 2,
        features: 0b011,
        token: Token([3; 16]),
        agent: "b".into(),
    };
    Policy { most, block_size_min: BLOCK_SIZE_MIN, sessions: 2 }
}

/// Returns two ends that have agreed on terms.
fn pair() -> (Connection, Connection) {
    let mut initiator = Connection::initiate(offer(), ZERO);
    let mut acceptor = Connection::accept(policy(), ZERO);
    let hello = initiator.poll_control(ZERO).unwrap();
    let established = acceptor.handle_control(hello, ZERO).unwrap();
    assert!(matches!(established, Some(Event::Established(_))));
    let reply = acceptor.poll_control(ZERO).unwrap();
    initiator.handle_control(reply, ZERO).unwrap();
    (initiator, acceptor)
}

fn open() -> Open {
    Open { role: Role::Source, job: vec![1] }
}

#[test]
fn the_ends_agree_on_the_smaller_of_both_limits() {
    let (initiator, acceptor) = pair();
    let terms = initiator.terms().unwrap();
    assert_eq!((terms.channels, terms.block_size, terms.features), (2, BLOCK_SIZE_MIN * 2, 0b010));
    assert_eq!(terms.token, Token([3; 16]));
    assert_eq!((terms.agent.as_str(), acceptor.terms().unwrap().agent.as_str()), ("b", "a"));
}

#[test]
fn incompatible_versions_and_block_sizes_are_refused() {
    let refusal_of = |change: fn(&mut Hello)| {
        let mut acceptor = Connection::accept(policy(), ZERO);
        let mut message = Connection::initiate(offer(), ZERO).poll_control(ZERO).unwrap();
        let Body::Hello(hello) = &mut message.body else { panic!("no hello") };
        change(hello);
        let Ok(Some(Event::Refused { refusal, .. })) = acceptor.handle_control(message, ZERO)
        else {
            panic!("not refused")
        };
        assert!(acceptor.is_over());
        let mut initiator = Connection::initiate(offer(), ZERO);
        let reply = acceptor.poll_control(ZERO).unwrap();
        let refused = initiator.handle_control(reply, ZERO);
        assert!(matches!(refused, Ok(Some(Event::Refused { .. }))) && initiator.is_over());
        refusal
    };
    let newer = refusal_of(|hello| (hello.version_min, hello.version_max) = (2, 9));
    assert_eq!(newer, Refusal::Version);
    assert_eq!(refusal_of(|hello| hello.block_size = BLOCK_SIZE_MIN - 1), Refusal::BlockSize);
}

#[test]
fn terms_above_the_offer_are_a_fault() {
    let answer = |change: fn(&mut Terms)| {
        let mut terms = Terms { features: 0, ..policy().most };
        change(&mut terms);
        let mut initiator = Connection::initiate(offer(), ZERO);
        let reply = Message::of(0, Body::HelloReply(HelloReply::Accepted(terms)));
        initiator.handle_control(reply, ZERO)
    };
    assert!(answer(|_| {}).is_ok());
    assert_eq!(answer(|terms| terms.version = 2), Err(Fault::Answer("the version")));
    let more = Err(Fault::Answer("more than was asked for"));
    assert_eq!(answer(|terms| terms.channels = 5), more);
    assert_eq!(answer(|terms| terms.block_size = BLOCK_SIZE_MIN * 5), more);
    let features = Err(Fault::Answer("features that were not offered"));
    assert_eq!(answer(|terms| terms.features = 1), features);
}

#[test]
fn sessions_are_opened_answered_and_ended() {
    let (mut initiator, mut acceptor) = pair();
    let session = initiator.open(open()).unwrap();
    assert_eq!(acceptor.open(open()), Err(Misuse::Over));
    let message = initiator.poll_control(ZERO).unwrap();
    let event = acceptor.handle_control(message, ZERO).unwrap();
    assert_eq!(event, Some(Event::Open { session, open: open() }));
    let early = Message::of(session, Body::CreditRequest);
    assert_eq!(acceptor.handle(early.clone()), Err(Fault::Message(5)));
    let reply = || OpenReply::Accepted { job: vec![2] };
    acceptor.answer(session, reply()).unwrap();
    assert_eq!(acceptor.answer(session, reply()), Err(Misuse::Number(session)));
    let message = acceptor.poll_control(ZERO).unwrap();
    let event = initiator.handle_control(message.clone(), ZERO).unwrap();
    assert_eq!(event, Some(Event::OpenReply { session, reply: reply() }));
    assert_eq!(acceptor.handle(early.clone()), Ok(Some(Event::Session(early.clone()))));
    acceptor.session_ended(session);
    assert_eq!(acceptor.handle(early), Ok(None));
    assert_eq!(
        acceptor.handle(Message::of(session + 1, Body::Closed)),
        Err(Fault::NoSession(session + 1))
    );
    let again = initiator.handle_control(message, ZERO);
    assert_eq!(again, Err(Fault::Answer("a reply to an opening")));
    assert!(initiator.is_over());
}

#[test]
fn listener_is_asked_for_once_and_before_the_first_session() {
    let reply = || ListenReply::Accepted {
        port: 7,
        secret: PipeSecret([1; 32]),
        address: "192.0.2.1".into(),
    };
    let (mut initiator, mut acceptor) = pair();
    let early = initiator.handle(Message::of(0, Body::ListenReply(reply())));
    assert_eq!(early, Err(Fault::Message(17)));
    assert_eq!(acceptor.ask_to_listen(), Err(Misuse::Over));
    assert_eq!(acceptor.answer_listen(reply()), Err(Misuse::Over));
    initiator.ask_to_listen().unwrap();
    assert_eq!(initiator.ask_to_listen(), Err(Misuse::Over));
    let message = initiator.poll_control(ZERO).unwrap();
    assert_eq!(initiator.handle(message.clone()), Err(Fault::Message(16)));
    assert_eq!(acceptor.handle(message.clone()), Ok(Some(Event::Listen)));
    assert_eq!(acceptor.handle(message.clone()), Err(Fault::Message(16)));
    acceptor.answer_listen(reply()).unwrap();
    assert_eq!(acceptor.answer_listen(reply()), Err(Misuse::Over));
    let answer = acceptor.poll_control(ZERO).unwrap();
    assert_eq!(initiator.handle(answer.clone()), Ok(Some(Event::ListenReply(reply()))));
    assert_eq!(initiator.handle(answer), Err(Fault::Message(17)));
    let (mut initiator, mut acceptor) = pair();
    initiator.open(open()).unwrap();
    assert_eq!(initiator.ask_to_listen(), Err(Misuse::Over));
    acceptor.handle(initiator.poll_control(ZERO).unwrap()).unwrap();
    assert_eq!(acceptor.handle(message), Err(Fault::Message(16)));
}

#[test]
fn grant_is_asked_for_in_the_place_of_a_listener() {
    let reply = ListenReply::Refused { refusal: Refusal::System, text: "no".into() };
    let (mut initiator, mut acceptor) = pair();
    assert_eq!(acceptor.ask_for_grant([1; 32]), Err(Misuse::Over));
    initiator.ask_for_grant([1; 32]).unwrap();
    assert_eq!(initiator.ask_for_grant([2; 32]), Err(Misuse::Over));
    assert_eq!(initiator.ask_to_listen(), Err(Misuse::Over));
    let message = initiator.poll_control(ZERO).unwrap();
    assert_eq!(initiator.handle(message.clone()), Err(Fault::Message(18)));
    assert_eq!(acceptor.handle(message.clone()), Ok(Some(Event::Grant([1; 32]))));
    assert_eq!(acceptor.handle(message.clone()), Err(Fault::Message(18)));
    acceptor.answer_listen(reply.clone()).unwrap();
    let answer = acceptor.poll_control(ZERO).unwrap();
    assert_eq!(initiator.handle(answer), Ok(Some(Event::ListenReply(reply))));
    // A session cannot get one later.
    let (mut initiator, mut acceptor) = pair();
    initiator.open(open()).unwrap();
    assert_eq!(initiator.ask_for_grant([1; 32]), Err(Misuse::Over));
    acceptor.handle(initiator.poll_control(ZERO).unwrap()).unwrap();
    assert_eq!(acceptor.handle(message), Err(Fault::Message(18)));
}

#[test]
fn too_many_sessions_and_reused_session_numbers_are_refused() {
    let (_, mut acceptor) = pair();
    for session in 1..=2 {
        let event = acceptor.handle(Message::of(session, Body::Open(open())));
        assert!(matches!(event, Ok(Some(Event::Open { .. }))));
    }
    assert_eq!(acceptor.handle(Message::of(3, Body::Open(open()))), Ok(None));
    let Some(Message { session: 3, body: Body::OpenReply(OpenReply::Refused { refusal, .. }) }) =
        acceptor.poll_control(ZERO)
    else {
        panic!("not refused")
    };
    assert_eq!((refusal, acceptor.sessions()), (Refusal::Busy, 2));
    let again = acceptor.handle(Message::of(3, Body::Open(open())));
    assert_eq!(again, Err(Fault::NoSession(3)));
}

#[test]
fn unread_answers_are_bounded() {
    let (_, mut acceptor) = pair();
    let refused = (1..10_000)
        .map(|session| acceptor.handle(Message::of(session, Body::Open(open()))))
        .find(Result::is_err);
    assert_eq!(refused, Some(Err(Fault::Sessions)));
}

#[test]
fn a_silent_peer_is_pinged_and_then_considered_gone() {
    let (mut initiator, mut acceptor) = pair();
    assert_eq!(initiator.timeout(), PING_INTERVAL);
    assert_eq!(initiator.poll_control(PING_INTERVAL / 2), None);
    let ping = initiator.poll_control(PING_INTERVAL).unwrap();
    assert_eq!(initiator.poll_control(PING_INTERVAL), None);
    assert_eq!(acceptor.handle_control(ping, PING_INTERVAL), Ok(None));
    let pong = acceptor.poll_control(PING_INTERVAL).unwrap();
    assert!(!initiator.is_silent(SILENCE_MAX - PING_INTERVAL));
    assert!(initiator.is_silent(SILENCE_MAX));
    assert_eq!(initiator.handle_control(pong, SILENCE_MAX / 2), Ok(None));
    assert!(!initiator.is_silent(SILENCE_MAX));
    let wrong = Message::of(0, Body::Pong(99));
    assert_eq!(initiator.handle_control(wrong, SILENCE_MAX), Err(Fault::Answer("a pong")));
}

#[test]
fn caller_says_how_long_a_peer_may_be_silent() {
    for (silence, ping) in [(4, 1), (20, 5), (400, 10)] {
        let (silence, ping) = (Duration::from_secs(silence), Duration::from_secs(ping));
        let (mut initiator, mut acceptor) = pair();
        initiator.allow_silence(silence);
        assert_eq!(initiator.timeout(), ping);
        let message = initiator.poll_control(ping).unwrap();
        assert_eq!(acceptor.handle_control(message, ping), Ok(None));
        let pong = acceptor.poll_control(ping).unwrap();
        let almost = silence - Duration::from_millis(1);
        assert!(!initiator.is_silent(almost) && initiator.is_silent(silence));
        assert_eq!(initiator.handle_control(pong, almost), Ok(None));
        assert!(!initiator.is_silent(almost + almost) && initiator.is_silent(almost + silence));
    }
}

#[test]
fn cancelling_the_connection_ends_all_sessions() {
    let (mut initiator, mut acceptor) = pair();
    initiator.open(open()).unwrap();
    while initiator.poll_control(ZERO).is_some() {}
    let cancel = Cancel { code: crate::wire::Code::Stopped, text: "bye".into() };
    initiator.cancel(cancel.clone());
    assert_eq!((initiator.sessions(), initiator.is_over()), (0, true));
    let message = initiator.poll_control(ZERO).unwrap();
    let event = acceptor.handle_control(message, ZERO);
    assert_eq!(event, Ok(Some(Event::Cancelled(cancel))));
    assert!(acceptor.is_over() && acceptor.poll_control(ZERO).is_none());
}
