//! Tests of reliable datagrams: bytes laid out by hand, and round trips.

#![allow(clippy::unwrap_used)] // Also in the helpers of the tests.

use proptest::prelude::*;
use weft_wire::crc::crc32c;
use weft_wire::ddp;
use weft_wire::rd::{
    self, Acknowledgement, CRC_LEN, HEADER_LEN, Header, Kind, RdEnd, RdError, ReadFailure, Reason,
    WORDS_MAX,
};
use weft_wire::rdmap::Opcode;

fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn datagram(header: &Header, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_LEN];
    assert_eq!(header.emit(&mut bytes), HEADER_LEN);
    bytes.extend_from_slice(body);
    rd::seal(&mut bytes);
    bytes
}

fn first() -> Header {
    Header {
        kind: Kind::Data,
        syn: true,
        probe: false,
        lost: false,
        source: RdEnd { endpoint: 1, epoch: 0x0a0b_0c0d, stream: 5 },
        destination: RdEnd { endpoint: 2, epoch: 0, stream: 0 },
        window: 1024,
        sequence: 1,
        ack: None,
        timestamp: 0x1122_3344,
        echo: 0,
    }
}

/// A Send of "hi" to an unknown peer, whole in its first datagram.
#[test]
fn first_datagram_to_an_unknown_peer_is_golden() {
    let segment = ddp::Header::Untagged {
        last: true,
        ulp: Opcode::Send.control(),
        ulp_word: 2,
        qn: 0,
        msn: 1,
        mo: 0,
    };
    let mut body = vec![0; segment.len()];
    segment.emit(&mut body);
    body.extend_from_slice(b"hi");
    let covered = hex("d1 11 0400  0001 0002  0a0b0c0d 00000000  00000005 00000000
         00000001 00000000 0000000000000000  11223344 00000000
         41 43 00000002 00000000 00000001 00000000 6869");
    let bytes = datagram(&first(), &body);
    let (crc, expected) = (crc32c(&covered).to_be_bytes(), covered.len());
    assert_eq!((&bytes[..expected], &bytes[expected..]), (&covered[..], &crc[..]));
    assert_eq!(rd::parse(&bytes), Ok((first(), &body[..])));
}

#[test]
fn acknowledgement_and_reset_are_golden() {
    let ack = Header {
        kind: Kind::Ack,
        probe: true,
        lost: true,
        syn: false,
        destination: RdEnd { endpoint: 2, epoch: 0xeeee_0001, stream: 9 },
        sequence: 7,
        ack: Some(Acknowledgement { next: 3, selective: 0x8000_0000_0000_0001 }),
        echo: 4,
        ..first()
    };
    let covered = hex("d1 2e 0400  0001 0002  0a0b0c0d eeee0001  00000005 00000009
         00000007 00000003 8000000000000001  11223344 00000004
         0000000000000010");
    let bytes = datagram(&ack, &16u64.to_be_bytes());
    assert_eq!(bytes[..covered.len()], covered);
    let (parsed, body) = rd::parse(&bytes).unwrap();
    assert_eq!((parsed, rd::words(body).collect::<Vec<_>>()), (ack, vec![16]));

    let reset =
        Header { kind: Kind::Reset(Reason::Bounds), window: 0, probe: false, lost: false, ..ack };
    let bytes = datagram(&reset, &[]);
    assert_eq!(bytes[..4], hex("d1 42 0003"));
    assert_eq!(rd::parse(&bytes), Ok((reset, &[][..])));
    let challenge = Header { kind: Kind::Challenge, ack: None, probe: false, lost: false, ..ack };
    assert_eq!(rd::parse(&datagram(&challenge, &[])), Ok((challenge, &[][..])));
}

#[test]
fn each_misbehaviour_has_its_error() {
    let error = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = datagram(&first(), b"body");
        bytes.truncate(bytes.len() - CRC_LEN);
        change(&mut bytes);
        rd::seal(&mut bytes);
        rd::parse(&bytes).map(|_| ()).unwrap_err()
    };
    assert_eq!(rd::parse(&[]), Err(RdError::TooShort(0)));
    assert_eq!(error(&|bytes| bytes.truncate(47)), RdError::TooShort(51));
    assert_eq!(error(&|bytes| bytes[0] = 0xd2), RdError::Version(0xd2));
    assert_eq!(error(&|bytes| bytes[1] = 0x50), RdError::Kind(5));
    assert_eq!(error(&|bytes| bytes[1] = 0x00), RdError::Kind(0));
    assert_eq!(error(&|bytes| bytes[1] = 0x40), RdError::Reason(1024));
    assert_eq!(error(&|bytes| bytes[1] = 0x20), RdError::Body(4));
    assert_eq!(error(&|bytes| bytes[1] = 0x30), RdError::Body(4));
    assert_eq!(error(&|bytes| bytes.truncate(HEADER_LEN)), RdError::Body(0));
    let too_many = |bytes: &mut Vec<u8>| {
        bytes[1] = 0x20;
        bytes.resize(HEADER_LEN + 8 * (WORDS_MAX + 1), 0);
    };
    assert_eq!(error(&too_many), RdError::Body(8 * (WORDS_MAX + 1)));
    let mut bytes = datagram(&first(), b"body");
    bytes[50] ^= 1;
    assert!(matches!(rd::parse(&bytes), Err(RdError::Crc { .. })));
    assert_eq!(ReadFailure::parse(&[0; 7]), Err(RdError::Body(7)));
    assert_eq!(ReadFailure::parse(&[0, 0, 0, 0, 1, 0, 0, 0]), Err(RdError::Reason(0x0100_0000)));
}

fn ends() -> impl Strategy<Value = RdEnd> {
    let parts = (any::<u16>(), any::<u32>(), any::<u32>());
    parts.prop_map(|(endpoint, epoch, stream)| RdEnd { endpoint, epoch, stream })
}

fn reasons() -> impl Strategy<Value = Reason> {
    prop::sample::select(vec![
        Reason::UnknownStream,
        Reason::Key,
        Reason::Domain,
        Reason::Bounds,
        Reason::Rights,
        Reason::TooLong,
        Reason::Malformed,
    ])
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Data),
        Just(Kind::Ack),
        Just(Kind::Challenge),
        reasons().prop_map(Kind::Reset),
    ]
}

prop_compose! {
    fn headers()(
        kind in kinds(),
        syn: bool,
        probe: bool,
        lost: bool,
        source in ends(),
        destination in ends(),
        window: u16,
        sequence: u32,
        ack in prop::option::of((any::<u32>(), any::<u64>())),
        timestamp: u32,
        echo: u32,
    ) -> Header {
        let window = if matches!(kind, Kind::Reset(_)) { 0 } else { window };
        let ack = ack.map(|(next, selective)| Acknowledgement { next, selective });
        Header {
            kind, syn, probe, lost, source, destination, window, sequence, ack, timestamp, echo,
        }
    }
}

proptest! {
    #[test]
    fn emitted_datagram_parses(
        header in headers(),
        body in prop::collection::vec(any::<u8>(), 1..200),
    ) {
        let words = body.len() / 8 % WORDS_MAX;
        let body = match header.kind {
            Kind::Data => &body[..],
            Kind::Ack => &body[..words * 8],
            _ => &[],
        };
        let bytes = datagram(&header, body);
        prop_assert_eq!(rd::parse(&bytes), Ok((header, body)));
    }

    /// Any changed bit is detected.
    #[test]
    fn changed_bit_is_detected(
        header in headers(),
        body in prop::collection::vec(any::<u8>(), 1..200),
        at: usize,
    ) {
        let body = if header.kind == Kind::Data { &body[..] } else { &[] };
        let mut bytes = datagram(&header, body);
        let at = at % (bytes.len() * 8);
        bytes[at / 8] ^= 1 << (at % 8);
        prop_assert!(rd::parse(&bytes).is_err());
    }

    #[test]
    fn emitted_read_failure_parses(read: u32, reason in reasons()) {
        let failure = ReadFailure { read, reason };
        let mut bytes = [0; ReadFailure::LEN];
        prop_assert_eq!(failure.emit(&mut bytes), ReadFailure::LEN);
        prop_assert_eq!(ReadFailure::parse(&bytes), Ok(failure));
    }
}
