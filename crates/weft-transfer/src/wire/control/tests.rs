use proptest::collection::vec;
use proptest::prelude::*;

use super::super::{Code, Refusal, Token, WireError};
use super::*;

fn hello() -> Hello {
    Hello {
        version_min: 1,
        version_max: 1,
        channels: 4,
        block_size: 0x0010_0000,
        features: 0x8000_0000_0000_0001,
        agent: "weft".into(),
    }
}

fn terms() -> Terms {
    Terms {
        version: 1,
        channels: 2,
        block_size: 0x0008_0000,
        features: 1,
        token: Token([0xa5; 16]),
        agent: "weft".into(),
    }
}

/// Returns a message body of each type with its expected bytes in hexadecimal.
fn examples() -> Vec<(Body, String)> {
    let credits = Credits {
        cumulative: 5,
        ranges: vec![Range { from: 7, until: 9 }],
        credits: vec![Credit { buffer: 2, generation: 3, address: 0x1000, key: 4 }],
    };
    let zeros = |count| "0".repeat(count);
    let u64s = |number: u64| format!("{number:016x}");
    vec![
        (Body::Hello(hello()), "0001000100040000800000000000000100100000".to_owned() + "77656674"),
        (
            Body::HelloReply(HelloReply::Accepted(terms())),
            "00000000000100020000000000000001".to_owned()
                + "00080000"
                + &"a5".repeat(16)
                + "77656674",
        ),
        (
            Body::HelloReply(HelloReply::Refused { refusal: Refusal::Busy, text: "no".into() }),
            "000400006e6f".into(),
        ),
        (Body::Open(Open { role: Role::Sink, job: vec![9, 8] }), "000200000908".into()),
        (Body::OpenReply(OpenReply::Accepted { job: vec![7] }), "0000000007".into()),
        (
            Body::OpenReply(OpenReply::Refused { refusal: Refusal::NotFound, text: "?".into() }),
            "000600003f".into(),
        ),
        (Body::CreditRequest, String::new()),
        (
            Body::Credits(credits),
            u64s(5)
                + "0001000100000000"
                + &u64s(7)
                + &u64s(9)
                + "0000000200000003"
                + &u64s(0x1000)
                + "00000004",
        ),
        (
            Body::Notice(Notice { seq: 1, buffer: 2, generation: 3, len: 4 }),
            u64s(1) + "000000020000000300000004",
        ),
        (Body::Records(vec![1, 2, 3]), "010203".into()),
        (Body::RecordsTaken(300), u64s(300)),
        (Body::ChannelLost(0x0102), "01020000".into()),
        (Body::Complete(Complete { blocks: 10, bytes: 11 }), u64s(10) + &u64s(11)),
        (
            Body::Cancel(Cancel { code: Code::Space, text: "full".into() }),
            "0005".to_owned() + &zeros(4) + "66756c6c",
        ),
        (Body::Closed, String::new()),
        (Body::Ping(1), u64s(1)),
        (Body::Pong(2), u64s(2)),
        (Body::Listen, String::new()),
        (
            Body::ListenReply(ListenReply::Accepted {
                port: 0x1234,
                secret: PipeSecret([0xa5; 32]),
                address: "::1".into(),
            }),
            "0000000012340000".to_owned() + &"a5".repeat(32) + "3a3a31",
        ),
        (
            Body::ListenReply(ListenReply::Refused { refusal: Refusal::System, text: "?".into() }),
            "000800003f".into(),
        ),
        (Body::Grant([0xa5; 32]), "a5".repeat(32)),
    ]
}

fn session_of(body: &Body) -> u32 {
    u32::from(body.places().1) * 0x0a0b_0c0d
}

#[test]
fn each_type_has_the_specified_bytes() {
    for (body, expected) in examples() {
        let kind = body.kind();
        let message = Message::of(session_of(&body), body);
        let bytes = message.emit();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let head =
            format!("{:08x}{kind:04x}0000{:08x}00000000", message.session, expected.len() / 2);
        assert_eq!(hex, head + &expected, "{message:?}");
        assert_eq!(Message::parse(&bytes), Ok(message));
    }
}

#[test]
fn all_types_are_among_the_examples() {
    let mut kinds: Vec<u16> = examples().iter().map(|(body, _)| body.kind()).collect();
    kinds.dedup();
    assert!(kinds.into_iter().eq(1..19));
    assert_eq!(Body::parse(19, &[]), Err(WireError::Type(19)));
    assert_eq!(Body::parse(0, &[]), Err(WireError::Type(0)));
}

#[test]
fn truncated_or_overlong_messages_are_refused() {
    for (body, _) in examples() {
        let bytes = Message::of(session_of(&body), body).emit();
        for len in 0..bytes.len() {
            assert!(matches!(Message::parse(&bytes[..len]), Err(WireError::Truncated(_))));
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(Message::parse(&longer), Err(WireError::TrailingBytes(1)));
    }
}

#[test]
fn only_messages_of_a_session_name_a_session() {
    for (body, _) in examples() {
        let kind = body.kind();
        let (of_connection, of_session) = body.places();
        let session = if of_connection { 7 } else { 0 };
        let parsed = Message::parse(&Message::of(session, body).emit());
        if of_connection && of_session {
            assert!(parsed.is_ok());
        } else {
            assert_eq!(parsed, Err(WireError::Session { kind, session }));
        }
    }
}

#[test]
fn each_invalid_field_is_named() {
    let changed = |body: Body, at: usize, bytes: &[u8]| {
        let mut message = Message::of(session_of(&body), body).emit();
        message[at..at + bytes.len()].copy_from_slice(bytes);
        Message::parse(&message)
    };
    let too_large = |parsed| matches!(parsed, Err(WireError::TooLarge { .. }));
    let too_small = |parsed| matches!(parsed, Err(WireError::TooSmall { .. }));
    let hello = || Body::Hello(hello());
    assert_eq!(changed(hello(), 7, &[1]), Err(WireError::Reserved("the flags of a message")));
    assert!(too_large(changed(hello(), 8, &[0, 1])));
    assert_eq!(changed(hello(), 16, &[0, 2]), Err(WireError::Versions(2, 1)));
    assert!(too_small(changed(hello(), 20, &[0, 0])));
    assert!(too_large(changed(hello(), 20, &[1, 1])));
    assert!(too_large(changed(hello(), 32, &[4, 0, 0, 1])));
    assert!(too_small(changed(hello(), 32, &[0, 0, 0xf, 0xff])));
    assert_eq!(changed(hello(), 36, &[0xff]), Err(WireError::Text("the agent")));
    let open = Body::Open(Open { role: Role::Source, job: Vec::new() });
    let role = WireError::Value { field: "the role", value: 3 };
    assert_eq!(changed(open, 17, &[3]), Err(role));
    let credits = |cumulative, from, until| {
        let ranges = vec![Range { from: 3, until: 5 }, Range { from, until }];
        let body = Body::Credits(Credits { cumulative, ranges, credits: Vec::new() });
        Message::parse(&Message::of(1, body).emit())
    };
    assert!(credits(2, 6, 7).is_ok());
    assert_eq!(credits(3, 6, 7), Err(WireError::Range(3, 5)));
    assert_eq!(credits(2, 5, 7), Err(WireError::Range(5, 7)));
    assert_eq!(credits(2, 7, 7), Err(WireError::Range(7, 7)));
    let cancel = Body::Cancel(Cancel { code: Code::Stopped, text: String::new() });
    let code = WireError::Value { field: "the code of an end", value: 0 };
    assert_eq!(changed(cancel, 17, &[0]), Err(code));
    let empty = Message { session: 1, body: Body::Records(Vec::new()) };
    assert!(too_small(Message::parse(&empty.emit())));
}

#[test]
fn codes_round_trip_and_have_texts() {
    for code in Code::ALL {
        assert_eq!(Code::of(code.number()), *code);
        assert_eq!(code.to_string(), code.text());
    }
    for refusal in Refusal::ALL {
        assert_eq!(Refusal::of(refusal.number()), *refusal);
    }
    assert_eq!(Code::of(999), Code::Other(999));
    assert_eq!(Code::Other(999).to_string(), "code 999");
}

proptest! {
    #[test]
    fn parsed_bodies_are_emitted_unchanged(
        kind in 0_u16..19,
        session in 0_u32..2,
        mut body in vec(any::<u8>(), 0..80),
        is_plausible: bool,
    ) {
        if is_plausible {
            // Small numbers and ASCII text make it likelier that the body is valid.
            for (at, byte) in body.iter_mut().enumerate() {
                *byte = if at % 8 == 7 || at > 20 { *byte & 0x7f } else { 0 };
            }
        }
        let len = body.len() as u32;
        let mut bytes = ControlHeader { session, kind, len }.emit().to_vec();
        bytes.extend_from_slice(&body);
        if let Ok(message) = Message::parse(&bytes) {
            prop_assert_eq!(message.emit(), bytes);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic_the_parser(bytes in vec(any::<u8>(), 0..200)) {
        if let Ok(message) = Message::parse(&bytes) {
            prop_assert_eq!(message.emit(), bytes);
        }
    }
}
