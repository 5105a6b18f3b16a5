//! Tests of the MPA exchange, with every combination of what the two sides want.

use weft_wire::error::ProtocolError;
use weft_wire::mpa::frame::{DEPTH_MAX, Enhanced, Frame, FrameError, Kind, Parsed};
use weft_wire::mpa::negotiate::{
    Initiator, InitiatorOutcome, Limits, NegotiateError, Negotiated, Params, Request, Responder,
    RtrKind, RtrKinds,
};

const LIMITS: Limits = Limits { private_data_max: 512 };

const PLAIN: Params = Params {
    crc: false,
    markers_wanted: false,
    ird: 16,
    ord: 8,
    enhanced: true,
    peer_to_peer: false,
    rtr: RtrKinds { send: false, write: false, read: false },
};

fn connect(ours: Params, theirs: Params) -> Result<(Negotiated, Negotiated), NegotiateError> {
    let mut initiator = Initiator::new(ours, b"hello")?;
    let mut responder = Responder::new(LIMITS);
    let (_, request) = responder.input(initiator.request())?;
    assert_eq!(request.map(|r| r.private_data), Some(b"hello".to_vec()));
    let (reply, accepted) = responder.accept(theirs, b"welcome")?;
    match initiator.input(&reply)? {
        (taken, Some(InitiatorOutcome::Accepted(negotiated))) => {
            assert_eq!(taken, reply.len());
            Ok((negotiated, accepted))
        }
        other => panic!("{other:?}"),
    }
}

fn every_params() -> impl Iterator<Item = Params> + Clone {
    (0..128).map(|bits: u32| {
        let bit = |n: u32| bits >> n & 1 == 1;
        Params {
            crc: bit(0),
            markers_wanted: bit(1),
            enhanced: bit(2),
            peer_to_peer: bit(3),
            rtr: RtrKinds { send: bit(4), write: bit(5), read: bit(6) },
            ..PLAIN
        }
    })
}

//= type=test
//= rfc5044#section-7.1.1
//# When this bit is '1' in either the MPA Request Frame or MPA Reply Frame, CRCs MUST be generated
//# and checked by both endpoints.
//= rfc5044#section-7.1.1
//# For this version of the specification, senders MUST set this field to one.
//= rfc6581#section-6
//# To use any enhanced connection establishment feature, this MUST be set to two or higher.
//= rfc6581#section-9.2
//# Upon receiving the MPA Accept Frame with Control Flag A set to 1, the initiator MUST generate
//# one of the negotiated RTR indications. If the initiator is not able to generate any of the
//# responder-supported RTR indications, then it MUST send a TERM message to the responder
//# indicating failure to negotiate a mutually compatible connection model or RTR option, and
//# terminate the connection.
//= rfc6581#section-9.3
//# After the initiator modifies its ORD/IRD to match the responder's values as stated above, the
//# initiator sends the first message of the negotiated RTR indication option. If no matching RTR
//# indication option exists, then the initiator sends a TERM message.
//= rfc6581#section-9.2
//# For each initiator-supported RTR indication option, the responder SHOULD set the corresponding
//# Control Flag if the responder can support that option in an MPA reply. The responder is not
//# required to specify all RTR indication options it supports.
//= rfc6581#section-9.2
//# If Control Flag A is 1 in the MPA Request message, then the responder MUST set Control Flag A to
//# 1 in the MPA reply message.
//= rfc5044#section-7.1.1
//# Otherwise, the MPA receiver should pass the PD_Length value and Private Data to the ULP.
//= rfc5044#section-7.1.4.1
//# This document allows for small amounts of Private Data to be exchanged as part of the MPA
//# startup sequence.
//= rfc6581#section-10
//# If the responder receives an enhanced MPA message, it MUST respond with an enhanced MPA message.
//= rfc6581#section-10
//# If the responder receives an unenhanced MPA message ('S' is set to 0), it MUST respond with an
//# unenhanced MPA message.
#[test]
fn both_sides_agree_for_every_combination_of_parameters() {
    for (ours, theirs) in every_params().flat_map(|o| every_params().map(move |t| (o, t))) {
        let asks = ours.enhanced && ours.peer_to_peer;
        let offered = ours.rtr != RtrKinds::default();
        let common = [
            (ours.rtr.write && theirs.rtr.write, RtrKind::Write),
            (ours.rtr.read && theirs.rtr.read, RtrKind::Read),
            (ours.rtr.send && theirs.rtr.send, RtrKind::Send),
        ];
        let common = common.iter().find(|(both, _)| *both).map(|&(_, kind)| kind);
        let result = connect(ours, theirs);
        if asks && (!offered || theirs.peer_to_peer && common.is_none()) {
            assert_eq!(result, Err(NegotiateError::NoMatchingRtr), "{ours:?} {theirs:?}");
            continue;
        }
        let (initiator, responder) = result.unwrap();
        for (side, params, peer) in [(&initiator, &ours, &theirs), (&responder, &theirs, &ours)] {
            assert_eq!(side.revision, if ours.enhanced { 2 } else { 1 });
            assert_eq!(side.crc, ours.crc || theirs.crc);
            assert_eq!(
                (side.rx_markers, side.tx_markers),
                (params.markers_wanted, peer.markers_wanted)
            );
            assert_eq!(side.rtr, common.filter(|_| asks && theirs.peer_to_peer));
        }
        assert_eq!(initiator.peer_private_data, b"welcome");
        assert_eq!(responder.peer_private_data, b"hello");
    }
}

//= type=test
//= rfc6581#section-9.1
//# Upon receiving the MPA Accept Frame from the responder, the initiator MUST set its IRD at least
//# to the responder ORD and its ORD at most to the responder IRD. If the initiator does not have
//# sufficient resources for the required IRD, it MUST send a TERM message to the responder
//# indicating insufficient resources and terminate the connection due to insufficient resources.
//= rfc6581#section-9.1
//# The responder MUST set its ORD at most to the initiator IRD.
//= rfc6581#section-9.1
//# The responder IRD is the maximum number of simultaneous inbound RDMA Read Requests that the
//# responder actually can support for the requested connection.
//= rfc6581#section-9.1
//# An all ones value (0x3FFF) indicates that automatic negotiation of the IRD or ORD is not
//# desired, and that the ULP will be responsible for it.
#[test]
fn read_depths_are_limited_by_both_sides() {
    let with = |ird, ord| Params { ird, ord, ..PLAIN };
    let table = [
        // initiator (IRD, ORD), responder (IRD, ORD): initiator's, responder's
        ((16, 8), (128, 128), (16, 8), (8, 16)),
        ((16, 8), (4, 2), (16, 4), (4, 2)),
        ((0, 0), (128, 128), (0, 0), (0, 0)),
        ((1, 1), (1, 1), (1, 1), (1, 1)),
        // A depth beyond the field is reduced to the field's maximum.
        ((u16::MAX, u16::MAX), (128, 128), (u16::MAX, 128), (128, 128)),
        ((u16::MAX, u16::MAX), (u16::MAX, u16::MAX), (u16::MAX, DEPTH_MAX), (DEPTH_MAX, DEPTH_MAX)),
    ];
    for ((ird, ord), theirs, expected, accepted) in table {
        let (ours, answer) = connect(with(ird, ord), with(theirs.0, theirs.1)).unwrap();
        assert_eq!(((ours.ird, ours.ord), (answer.ird, answer.ord)), (expected, accepted));
        // Each side can serve what the other may have outstanding.
        assert!(ours.ord <= answer.ird && answer.ord <= ours.ird);
        // Revision 1 has no depths, so each side keeps its own.
        let basic = Params { enhanced: false, ..with(ird, ord) };
        let (ours, answer) = connect(basic, with(theirs.0, theirs.1)).unwrap();
        assert_eq!(((ours.ird, ours.ord), (answer.ird, answer.ord)), ((ird, ord), theirs));
    }
    assert_eq!(
        answer(PLAIN, &reply(Some(Enhanced { ord: 17, ..Enhanced::default() }))),
        Err(NegotiateError::InsufficientIrd { ord: 17, ird: 16 })
    );
    let unnegotiated = Enhanced { ird: 0x3fff, ord: 0x3fff, ..Enhanced::default() };
    let Ok(InitiatorOutcome::Accepted(kept)) = answer(PLAIN, &reply(Some(unnegotiated))) else {
        panic!("0x3fff says nothing");
    };
    assert_eq!((kept.ird, kept.ord), (16, 8));
    let (_, request) = request(&Frame { kind: Kind::Request, ..reply(Some(unnegotiated)) });
    let request = request.unwrap();
    assert_eq!((request.ird, request.ord), (None, None));
}

//= type=test
//= rfc6581#section-9.2
//# On reception, if Control Flag A is set to 0, then Control Flags B, C, and D MUST be ignored.
#[test]
fn rtr_flags_without_a_are_ignored() {
    let flags = Enhanced { rtr_write: true, rtr_read: true, ..Enhanced::default() };
    let (mut responder, asked) = request(&Frame { kind: Kind::Request, ..reply(Some(flags)) });
    assert_eq!(asked.unwrap().rtr, None);
    let p2p = Params { peer_to_peer: true, rtr: RtrKinds::ALL, ..PLAIN };
    let (bytes, negotiated) = responder.accept(p2p, &[]).unwrap();
    assert_eq!((negotiated.rtr, &bytes[20..]), (None, &[0; 4][..]));
}

#[test]
fn rtr_read_needs_a_depth_of_one() {
    let params =
        Params { peer_to_peer: true, ird: 0, ord: 0, rtr: RtrKinds::only(RtrKind::Read), ..PLAIN };
    let (ours, theirs) = connect(params, params).unwrap();
    assert_eq!((ours.rtr, ours.ord, theirs.ird), (Some(RtrKind::Read), 1, 1));
}

/// What siw sends and answers, from its captures and its source.
#[test]
fn exchange_with_siw_agrees() {
    let p2p = Params { peer_to_peer: true, rtr: RtrKinds::ALL, ird: 1, ord: 1, ..PLAIN };
    let siw_reply = |ird: u16, ord: u16, flags: u8, rest: &Enhanced| {
        let mut bytes = vec![];
        reply(Some(Enhanced { ird, ord, ..*rest })).emit(&mut bytes);
        bytes[16] |= flags;
        bytes
    };
    // With peer_to_peer=1 siw chooses Write if that is offered, else Read, and never Send.
    for (kind, enhanced) in [
        (RtrKind::Write, Enhanced { rtr_write: true, ..Enhanced::default() }),
        (RtrKind::Read, Enhanced { rtr_read: true, ..Enhanced::default() }),
    ] {
        let mut initiator = Initiator::new(p2p, &[]).unwrap();
        let bytes = siw_reply(1, 1, 0, &Enhanced { peer_to_peer: true, ..enhanced });
        let (_, Some(InitiatorOutcome::Accepted(negotiated))) = initiator.input(&bytes).unwrap()
        else {
            panic!("not accepted");
        };
        assert_eq!(negotiated.rtr, Some(kind));
    }
    // With peer_to_peer=0 its reply has no A, so there is no RTR.
    let mut initiator = Initiator::new(p2p, &[]).unwrap();
    let (_, outcome) = initiator.input(&siw_reply(1, 1, 0, &Enhanced::default())).unwrap();
    let Some(InitiatorOutcome::Accepted(negotiated)) = outcome else { panic!("not accepted") };
    assert_eq!(negotiated.rtr, None);
    // siw echoes reserved flags, and a request's R as its reply's R.
    let mut initiator = Initiator::new(PLAIN, &[]).unwrap();
    let echoed = siw_reply(1, 1, 0x0f, &Enhanced::default());
    assert!(matches!(initiator.input(&echoed), Ok((24, Some(InitiatorOutcome::Accepted(_))))));
    // siw refuses M=1, with M cleared.
    let mut initiator = Initiator::new(Params { markers_wanted: true, ..PLAIN }, &[]).unwrap();
    let refused = siw_reply(0, 0, 0x20, &Enhanced::default());
    assert_eq!(
        initiator.input(&refused),
        Ok((24, Some(InitiatorOutcome::Rejected { private_data: vec![] })))
    );
    // siw's own request, and CRCs wanted only by this side.
    let (mut responder, asked) = request(&Frame {
        kind: Kind::Request,
        ..reply(Some(Enhanced { ird: 1, ord: 1, ..Enhanced::default() }))
    });
    let asked = asked.unwrap();
    assert_eq!((asked.ird, asked.ord, asked.rtr), (Some(1), Some(1), None));
    let (bytes, negotiated) = responder.accept(Params { crc: true, ..p2p }, &[]).unwrap();
    assert_eq!(bytes[16..], [0x50, 2, 0, 4, 0, 1, 0, 1]);
    assert!(negotiated.crc && negotiated.rtr.is_none());
}

//= type=test
//= rfc5044#section-7.1.2
//# The Responder SHOULD return an MPA Reply Frame with the "Reject Connection" bit set to '1' if
//# the validation of the Private Data is not acceptable to the ULP.
//= rfc5044#section-7.1.2
//# If the MPA Reply Frame is properly formatted but is the Private Data is not acceptable, or if
//# the Rejected Connection bit is set to '1', the implementation MUST exit MPA, leaving the TCP
//# connection open. The ULP may close TCP or use the connection for other purposes.
#[test]
fn rejection_is_reported_with_its_private_data() {
    for enhanced in [true, false] {
        let params = Params { enhanced, ..PLAIN };
        let mut initiator = Initiator::new(params, &[]).unwrap();
        let mut responder = Responder::new(LIMITS);
        responder.input(initiator.request()).unwrap();
        let reply = responder.reject(b"busy").unwrap();
        // An enhanced reply always has its four bytes: siw's kernel crashes without them.
        assert_eq!(reply.len(), if enhanced { 28 } else { 24 });
        let rejected = InitiatorOutcome::Rejected { private_data: b"busy".to_vec() };
        assert_eq!(initiator.input(&reply), Ok((reply.len(), Some(rejected))));
        assert_eq!(responder.reject(&[]), Err(NegotiateError::NoRequest));
    }
    let revision_1 = Frame { reject: true, revision: 1, ..reply(None) };
    assert!(matches!(answer(PLAIN, &revision_1), Ok(InitiatorOutcome::Rejected { .. })));
}

//= type=test
//= rfc6581#section-10
//# an unenhanced responder treats the enhanced request as incorrectly formatted and closes the TCP
//# connection.
//= rfc6581#section-10
//# If the responder receives an enhanced MPA message, it MUST respond with an enhanced MPA message.
//= rfc5044#section-7.1.1
//# If the MPA receiver cannot interoperate with the received version, then it MUST close the
//# connection and report an error locally.
#[test]
fn unsupported_revisions_are_errors() {
    let basic = Params { enhanced: false, ..PLAIN };
    let revision = |received, expected| Err(NegotiateError::Revision { received, expected });
    assert_eq!(answer(PLAIN, &Frame { revision: 1, ..reply(None) }), revision(1, 2));
    assert_eq!(answer(PLAIN, &Frame { revision: 3, ..reply(None) }), revision(3, 2));
    assert_eq!(answer(basic, &reply(Some(Enhanced::default()))), revision(2, 1));
    assert_eq!(answer(PLAIN, &reply(None)), Err(NegotiateError::NotEnhanced));
    for received in [0, 3, 255] {
        let frame = Frame { kind: Kind::Request, revision: received, ..reply(None) };
        let error = NegotiateError::Revision { received, expected: 2 };
        assert_eq!(request(&frame).1, Err(error));
    }
    let plain_2 = Frame { kind: Kind::Request, ..reply(None) };
    let (mut responder, asked) = request(&plain_2);
    assert_eq!(
        (asked.unwrap().revision, responder.accept(PLAIN, &[]).unwrap().0[16..].to_vec()),
        (2, vec![0, 2, 0, 0])
    );
}

//= type=test
//= rfc6581#section-8
//# Any enhanced RDMA connection establishment error generates an MPA termination message to a peer.
#[test]
fn faults_of_a_reply_are_named() {
    let p2p = Params { peer_to_peer: true, rtr: RtrKinds::only(RtrKind::Write), ..PLAIN };
    let other = Enhanced { peer_to_peer: true, rtr_read: true, ..Enhanced::default() };
    let error = answer(p2p, &reply(Some(other))).unwrap_err();
    assert_eq!(error, NegotiateError::NoMatchingRtr);
    let code = |error| ProtocolError::from_negotiate(&error).map(|e| e.terminate_code());
    assert_eq!(code(error), Some((2, 0, 7)));
    assert_eq!(code(NegotiateError::InsufficientIrd { ord: 1, ird: 0 }), Some((2, 0, 6)));
    let mut initiator = Initiator::new(PLAIN, &[]).unwrap();
    let error = initiator.input(b"HTTP/1.1").unwrap_err();
    assert_eq!(error, NegotiateError::Frame(FrameError::WrongKey(Kind::Reply)));
    assert_eq!(code(error), Some((2, 0, 4)));
    assert_eq!(code(NegotiateError::NotEnhanced), None);
}

//= type=test
//= rfc6581#section-9.2
//# The initiator MUST set each Control Flag B, C, and D to 1 for each of the options it supports,
//# if Control Flag A is set to 1.
#[test]
fn invalid_parameters_are_errors() {
    let asks = Params { peer_to_peer: true, ..PLAIN };
    assert_eq!(Initiator::new(asks, &[]).err(), Some(NegotiateError::NoMatchingRtr));
    for (enhanced, limit) in [(true, 508), (false, 512)] {
        let params = Params { enhanced, ..PLAIN };
        assert!(Initiator::new(params, &vec![0; limit]).is_ok());
        let error = NegotiateError::PrivateData { length: limit + 1, limit };
        assert_eq!(Initiator::new(params, &vec![0; limit + 1]).err(), Some(error));
    }
    let mut responder = Responder::new(Limits { private_data_max: 4 });
    let asks_much = Initiator::new(PLAIN, b"12345").unwrap();
    assert_eq!(
        responder.input(asks_much.request()),
        Err(NegotiateError::PeerPrivateData { received: 5, limit: 4 })
    );
}

//= type=test
//= rfc5044#section-7.1.2
//# When MPA is started in the Initiator mode, the MPA implementation MUST send a valid MPA Request
//# Frame.
//= rfc5044#section-7.1.2
//# MPA Initiator mode implementations MUST receive and validate an MPA Reply Frame.
#[test]
fn bytes_behind_the_frame_are_not_taken() {
    let mut initiator = Initiator::new(PLAIN, b"private").unwrap();
    let mut responder = Responder::new(LIMITS);
    let mut bytes = initiator.request().to_vec();
    let len = bytes.len();
    bytes.extend_from_slice(b"an FPDU");
    for at in 0..len - 1 {
        assert_eq!(responder.input(&bytes[at..=at]), Ok((1, None)));
    }
    let (1, Some(_)) = responder.input(&bytes[len - 1..]).unwrap() else {
        panic!("the request's last byte completes it");
    };
    assert_eq!(responder.input(&bytes[len..]), Ok((0, None)));
    let (mut reply, _) = responder.accept(PLAIN, &[]).unwrap();
    let len = reply.len();
    reply.extend_from_slice(b"an FPDU");
    assert!(matches!(initiator.input(&reply), Ok((taken, Some(_))) if taken == len));
    assert_eq!(initiator.input(&reply[len..]), Ok((0, None)));
}

fn reply(enhanced: Option<Enhanced>) -> Frame {
    Frame {
        kind: Kind::Reply,
        markers: false,
        crc: false,
        reject: false,
        enhanced,
        revision: 2,
        private_data: vec![],
    }
}

/// The initiator's outcome for a reply.
fn answer(params: Params, reply: &Frame) -> Result<InitiatorOutcome, NegotiateError> {
    let mut bytes = vec![];
    reply.emit(&mut bytes);
    let (_, outcome) = Initiator::new(params, &[])?.input(&bytes)?;
    Ok(outcome.expect("a whole reply"))
}

/// The responder's result for a request.
fn request(frame: &Frame) -> (Responder, Result<Request, NegotiateError>) {
    let mut bytes = vec![];
    frame.emit(&mut bytes);
    assert!(matches!(Frame::parse(Kind::Request, &bytes), Ok(Parsed::Complete { .. })));
    let mut responder = Responder::new(LIMITS);
    let outcome = responder.input(&bytes).map(|(_, request)| request.expect("a whole request"));
    (responder, outcome)
}
