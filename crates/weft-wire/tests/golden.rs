//! Bytes seen on the wire between siw hosts, or laid out by hand after the RFCs' figures.

#![allow(clippy::unwrap_used)] // In the tests' helpers too.

use weft_wire::crc::crc32c;
use weft_wire::ddp::{DdpError, Header};
use weft_wire::error::ProtocolError;
use weft_wire::mpa::fpdu::{self, Decoded, FpduError};
use weft_wire::mpa::frame::{DEPTH_UNNEGOTIATED, Enhanced, Frame, FrameError, Kind, Parsed};
use weft_wire::rdmap::{
    AtomicOp, AtomicRequest, AtomicResponse, Immediate, Opcode, RdmapError, ReadRequest, Terminate,
    layer,
};

fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn frame(kind: Kind, revision: u8, enhanced: Option<Enhanced>) -> Frame {
    Frame {
        kind,
        markers: false,
        crc: false,
        reject: false,
        enhanced,
        revision,
        private_data: vec![],
    }
}

fn depths(ird: u16, ord: u16) -> Enhanced {
    Enhanced { ird, ord, ..Enhanced::default() }
}

const REQUEST: &str = "4d504120494420526571204672616d65";
const REPLY: &str = "4d504120494420526570204672616d65";

//= type=test
//= rfc5044#section-7.1.1
//# MPA ID Req Frame
//= rfc5044#section-7.1.1
//# MPA ID Rep Frame
//= rfc6581#section-6
//% S is defined for revision 2; in a frame of revision 1 the bit is reserved and not checked.
//= rfc6581#section-9
//% The first 32 bits of the private data of an enhanced frame are A, B, IRD, C, D and ORD.
//= rfc6581#section-5
//% Enhanced setup is the exchange of RFC 5044 with connection data before the private data.
#[test]
fn frames() {
    let both = Enhanced { rtr_write: true, rtr_read: true, peer_to_peer: true, ..depths(1, 1) };
    let write = Enhanced { rtr_read: false, ..both };
    let send = Enhanced { peer_to_peer: true, rtr_send: true, ..depths(2, 3) };
    let crc = Frame { crc: true, ..frame(Kind::Request, 2, Some(depths(1, 1))) };
    let reject = Frame { reject: true, ..frame(Kind::Reply, 2, Some(depths(0, 0))) };
    let reject_1 = Frame { reject: true, crc: true, ..frame(Kind::Reply, 1, None) };
    let private = Frame { private_data: vec![1, 2, 3], markers: true, ..crc.clone() };
    let table = [
        (frame(Kind::Request, 2, Some(depths(1, 1))), REQUEST, "1002 0004 0001 0001"),
        (frame(Kind::Reply, 2, Some(depths(1, 1))), REPLY, "1002 0004 0001 0001"),
        (frame(Kind::Request, 2, Some(depths(128, 128))), REQUEST, "1002 0004 0080 0080"),
        (frame(Kind::Request, 2, Some(depths(0x3fff, 0))), REQUEST, "1002 0004 3fff 0000"),
        (crc, REQUEST, "5002 0004 0001 0001"),
        (frame(Kind::Request, 2, Some(both)), REQUEST, "1002 0004 8001 c001"),
        (frame(Kind::Reply, 2, Some(write)), REPLY, "1002 0004 8001 8001"),
        (frame(Kind::Request, 2, Some(send)), REQUEST, "1002 0004 c002 0003"),
        (frame(Kind::Request, 1, None), REQUEST, "0001 0000"),
        (reject, REPLY, "3002 0004 0000 0000"),
        (reject_1, REPLY, "6001 0000"),
        (private, REQUEST, "d002 0007 0001 0001 010203"),
    ];
    for (frame, key, rest) in table {
        let bytes = hex(&format!("{key}{rest}"));
        let mut emitted = vec![];
        frame.emit(&mut emitted);
        assert_eq!(emitted, bytes);
        let consumed = bytes.len();
        assert_eq!(Frame::parse(frame.kind, &bytes), Ok(Parsed::Complete { frame, consumed }));
    }
    assert_eq!(DEPTH_UNNEGOTIATED, 0x3fff);
}

//= type=test
//= rfc5044#section-7.1.1
//% The reserved bits of the flags are zero when sent and not checked when received.
//= rfc5044#section-7.1.1
//% PD_Length is the length in octets of the private data; more than 512 octets is invalid.
//= rfc5044#section-7.1.1
//% The key must be the one of the frame that is awaited; otherwise the frame is invalid.
#[test]
fn frames_that_are_odd_or_wrong() {
    let parse = |rest: &str| Frame::parse(Kind::Request, &hex(&format!("{REQUEST}{rest}")));
    let Ok(Parsed::Complete { frame, consumed: 24 }) = parse("0f01 0004 0001 0001") else {
        panic!("reserved bits are to be ignored");
    };
    assert_eq!((frame.enhanced, &frame.private_data[..]), (None, &[0, 1, 0, 1][..]));
    let Ok(Parsed::Complete { frame, .. }) = parse("1001 0000") else {
        panic!("S is a reserved bit in revision 1");
    };
    assert_eq!(frame.enhanced, None);

    assert_eq!(parse("1002 0003 000000"), Err(FrameError::EnhancedTooShort(3)));
    assert_eq!(parse("0001 0201"), Err(FrameError::PrivateDataTooLong(513)));
    assert_eq!(parse("0001 0200"), Ok(Parsed::Incomplete { needed: 532 }));
    assert_eq!(Frame::parse(Kind::Reply, &hex(REQUEST)), Err(FrameError::WrongKey(Kind::Reply)));
    assert_eq!(
        Frame::parse(Kind::Reply, b"MPA ID Rex"),
        Err(FrameError::WrongKey(Kind::Reply)),
        "as soon as it can be told"
    );
    assert_eq!(Frame::parse(Kind::Reply, &[]), Ok(Parsed::Incomplete { needed: 20 }));
}

#[test]
#[should_panic(expected = "513 bytes of MPA private data")]
fn emitting_too_much_private_data_is_the_callers_fault() {
    Frame { private_data: vec![0; 509], ..frame(Kind::Request, 2, Some(depths(0, 0))) }
        .emit(&mut vec![]);
}

const RTR_WRITE: &str = "000e c1 40 00000001 0000000000000000";
const RTR_READ: &str = "002e 41 41 00000000 00000001 00000001 00000000
     00000000 0000000000000000 00000000 00000001 0000000000000000";

//= type=test
//= rfc5044#section-4.1
//% ULPDU_Length is the number of octets of the contained ULPDU; it does not include the header,
//% the pad, the CRC or any markers.
//= rfc5044#section-4.4
//% The CRC is sent as iSCSI sends its digests: the least significant octet of the value first.
//= rfc5044#section-4.4
//% When CRCs are not in use the CRC field is valid whatever it holds.
//= rfc5040#section-4.3
//% RDMA Write has no header of its own behind DDP's tagged header.
#[test]
fn rtr_write() {
    let header = Header::Tagged { last: true, ulp: 0x40, stag: 1, to: 0 };
    assert_eq!(Opcode::of(&header), Ok(Opcode::Write));
    for (crc, field) in [(true, "ebd34c5f"), (false, "00000000")] {
        let bytes = hex(&format!("{RTR_WRITE}{field}"));
        let mut sealed = [0xff; 20];
        let len = header.emit(&mut sealed[2..]);
        fpdu::seal(&mut sealed, len, crc);
        assert_eq!(sealed, bytes[..]);
        let Ok(Decoded::Fpdu { ulpdu, consumed: 20 }) = fpdu::decode(&bytes, crc) else {
            panic!("not an FPDU");
        };
        assert_eq!(Header::parse(ulpdu), Ok((header, 14)));
    }
    let odd = hex(&format!("{RTR_WRITE}deadbeef"));
    assert!(matches!(fpdu::decode(&odd, false), Ok(Decoded::Fpdu { .. })));
    assert_eq!(
        fpdu::decode(&odd, true),
        Err(FpduError::Crc { received: 0xefbe_adde, computed: 0x5f4c_d3eb })
    );
}

//= type=test
//= rfc5040#section-4.4
//% Data Sink STag, 32 bits; Data Sink TO, 64 bits; RDMA Read Message Size, 32 bits; Data Source
//% STag, 32 bits; Data Source TO, 64 bits.
//= rfc5040#section-4.2
//% Queue 0 is for Sends, queue 1 for RDMA Read Requests, queue 2 for Terminates.
//= rfc5040#section-4.5
//% RDMA Read Response has no header of its own behind DDP's tagged header.
#[test]
fn rtr_read() {
    let header = Header::Untagged { last: true, ulp: 0x41, ulp_word: 0, qn: 1, msn: 1, mo: 0 };
    let request = ReadRequest { sink_stag: 0, sink_to: 0, size: 0, source_stag: 1, source_to: 0 };
    let mut sealed = [0; 52];
    let at = 2 + header.emit(&mut sealed[2..]);
    let len = at + request.emit(&mut sealed[at..]) - 2;
    fpdu::seal(&mut sealed, len, false);
    assert_eq!(sealed, hex(&format!("{RTR_READ}00000000"))[..]);
    assert_eq!(Header::parse(&sealed[2..]), Ok((header, 18)));
    assert_eq!(Opcode::of(&header), Ok(Opcode::ReadRequest));
    assert_eq!(ReadRequest::parse(&sealed[20..48]), Ok(request));
    assert_eq!(
        ReadRequest::parse(&sealed[20..47]),
        Err(RdmapError::Length { received: 27, expected: 28 })
    );
    // siw's answer.
    let answer = hex("c142 00000000 0000000000000000");
    let (header, 14) = Header::parse(&answer).unwrap() else { panic!("a tagged header") };
    assert_eq!(Opcode::of(&header), Ok(Opcode::ReadResponse));
}

#[test]
fn crc_of_a_send() {
    let mut covered = hex("0022 4143 00000000 00000000 00000001 00000000");
    covered.resize(covered.len() + 16, 0);
    assert_eq!(crc32c(&covered).to_le_bytes()[..], hex("84609a12"));
}

//= type=test
//= rfc5044#section-4.1
//% The PAD field trails the ULPDU and holds between zero and three octets, so that the size of the
//% FPDU is an integral multiple of four.
//= rfc5044#section-4.1
//% The pad is set to zero by the sender.
//= rfc5044#section-4.1
//% The content of the pad is not checked.
#[test]
fn pads() {
    for (ulpdu_len, pad_len, total_len) in [(0, 2, 8), (1, 1, 8), (2, 0, 8), (3, 3, 12), (4, 2, 12)]
    {
        assert_eq!(fpdu::pad_len(ulpdu_len), pad_len);
        assert_eq!(fpdu::total_len(ulpdu_len), total_len);
        let mut buf = [0xee; 16];
        fpdu::seal(&mut buf, ulpdu_len, false);
        assert_eq!(buf[2 + ulpdu_len..total_len], vec![0; pad_len + 4][..]);
        assert_eq!(buf[total_len..], vec![0xee; 16 - total_len][..]);
        buf[2 + ulpdu_len..][..pad_len].fill(0xdd);
        assert!(matches!(fpdu::decode(&buf, false), Ok(Decoded::Fpdu { .. })));
        let crc = crc32c(&buf[..total_len - 4]);
        buf[total_len - 4..total_len].copy_from_slice(&crc.to_le_bytes());
        assert!(matches!(fpdu::decode(&buf, true), Ok(Decoded::Fpdu { .. })));
    }
}

//= type=test
//= rfc5044#section-4.5
//% MULPDU = EMSS - (6 + 4 * Ceiling(EMSS / 512) + EMSS mod 4) with markers, and
//% MULPDU = EMSS - (6 + EMSS mod 4) without.
//= rfc5044#section-3
//% MPA tells DDP the largest ULPDU that fits one FPDU in one segment, the MULPDU.
#[test]
fn mulpdu() {
    assert_eq!(fpdu::mulpdu(1448, false), 1442); // siw, MTU 1500
    assert_eq!(fpdu::mulpdu(8948, false), 8942);
    assert_eq!(fpdu::mulpdu(1447, false), 1438);
    assert_eq!(fpdu::mulpdu(1448, true), 1430);
    assert_eq!(fpdu::mulpdu(1 << 20, false), 65535);
    assert_eq!(fpdu::mulpdu(1 << 20, true), 64768);
    assert_eq!(fpdu::mulpdu(5, true), 0);
    for emss in 6..5000 {
        assert!(fpdu::total_len(fpdu::mulpdu(emss, false)) <= emss.max(8));
    }
}

//= type=test
//= rfc5041#section-4.1
//% The control field is T (tagged), L (last), four reserved bits and the two bits of the version.
//= rfc5041#section-4.1
//% The reserved bits are not checked by the receiver.
//= rfc5041#section-4.2
//% T, L, reserved, DV; eight bits for the ULP; STag, 32 bits; TO, 64 bits.
//= rfc5041#section-4.3
//% T, L, reserved, DV; 40 bits for the ULP; QN, MSN and MO, 32 bits each.
//= rfc5041#section-4.4
//% A DDP segment is a header and, directly behind it, payload, which may be empty.
#[test]
fn ddp_headers() {
    let tagged = hex("bd42 01020304 1112131415161718");
    assert_eq!(
        Header::parse(&tagged),
        Ok((
            Header::Tagged { last: false, ulp: 0x42, stag: 0x0102_0304, to: 0x1112_1314_1516_1718 },
            14
        ))
    );
    let untagged = hex("7d44 01020304 00000000 21222324 31323334");
    let header = Header::Untagged {
        last: true,
        ulp: 0x44,
        ulp_word: 0x0102_0304,
        qn: 0,
        msn: 0x2122_2324,
        mo: 0x3132_3334,
    };
    assert_eq!(Header::parse(&untagged), Ok((header, 18)));
    assert_eq!((header.len(), header.ulp(), header.is_last()), (18, 0x44, true));
    assert_eq!(Header::parse(&[]), Err(DdpError::TooShort(0)));
    assert_eq!(Header::parse(&tagged[..13]), Err(DdpError::TooShort(13)));
    assert_eq!(Header::parse(&untagged[..17]), Err(DdpError::TooShort(17)));
    assert_eq!(Header::parse(&[0x80]), Err(DdpError::TaggedVersion(0)));
    assert_eq!(Header::parse(&[0x42]), Err(DdpError::UntaggedVersion(2)));
}

//= type=test
//= rfc5040#section-4.1
//% The control field is the two bits of the version, two reserved bits that are not checked, and
//% the four bits of the opcode.
//= rfc5040#section-4.1
//% The Invalidate STag field is valid in Send with Invalidate, with or without Solicited Event,
//% and ignored in all others.
//= rfc5040#section-4.2
//% RDMA Write and Read Response are tagged, all others are untagged, each with its queue.
//= rfc7306#section-4.2
//% Opcodes 8 to 11.
//= rfc7306#section-10.2
//% Atomic Requests use queue 1, Atomic Responses queue 3, Immediate Data queue 0.
//= rfc5040#section-7.2
//% An incoming message is checked for its RDMAP version, its opcode, and whether the opcode fits
//% the queue.
//= rfc7306#section-4.1
//% Atomics and Immediate Data have the control field of RFC 5040, and their Invalidate STag field
//% is zero when sent and ignored when received.
//= rfc7306#section-6.3
//% Immediate Data is an untagged message on the queue of the Sends and takes its MSN among them.
//= rfc5040#section-4.7
//% Send with Invalidate, with or without Solicited Event, has the STag to invalidate in DDP's
//% untagged header and no header of its own behind it.
//= rfc5040#section-4.2
//% Opcodes 0 to 7.
//= rfc5041#section-7.1
//% A queue number that is not in use is an error of its own.
#[test]
fn opcodes() {
    let queues = [
        None,
        Some(1),
        None,
        Some(0),
        Some(0),
        Some(0),
        Some(0),
        Some(2),
        Some(0),
        Some(0),
        Some(1),
        Some(3),
    ];
    for (code, queue) in (0..).zip(queues) {
        let opcode = Opcode::parse(0x40 | code).unwrap();
        assert_eq!((opcode as u8, opcode.control(), opcode.queue()), (code, 0x40 | code, queue));
        assert_eq!(Opcode::parse(0x70 | code), Ok(opcode));
        let invalidates = if code == 4 || code == 6 { Some(9) } else { None };
        assert_eq!(opcode.invalidates(9), invalidates);
        assert_eq!(opcode.is_solicited(), matches!(code, 5 | 6 | 9));
        for qn in 0..4 {
            let header =
                Header::Untagged { last: true, ulp: 0x40 | code, ulp_word: 0, qn, msn: 1, mo: 0 };
            let right = queue == Some(qn);
            let expected =
                if right { Ok(opcode) } else { Err(RdmapError::Misplaced(opcode).into()) };
            assert_eq!(Opcode::of(&header), expected);
        }
        let tagged = Header::Tagged { last: true, ulp: 0x40 | code, stag: 0, to: 0 };
        assert_eq!(Opcode::of(&tagged).is_ok(), queue.is_none());
    }
    let header = Header::Untagged { last: true, ulp: 0x43, ulp_word: 0, qn: 4, msn: 1, mo: 0 };
    assert_eq!(Opcode::of(&header), Err(ProtocolError::InvalidQueue { qn: 4 }));
    for code in 12..16 {
        assert_eq!(Opcode::parse(0x40 | code), Err(RdmapError::Opcode(code)));
    }
    assert_eq!(Opcode::parse(0x03), Err(RdmapError::Version(0)));
    assert_eq!(Opcode::parse(0xc3), Err(RdmapError::Version(3)));
}

//= type=test
//= rfc7306#section-5.2.1
//% 28 reserved bits and the operation code, 4 bits; Request Identifier, 32 bits; Remote STag, 32
//% bits; Remote TO, 64 bits; Add or Swap Data, Add or Swap Mask, Compare Data and Compare Mask, 64
//% bits each.
//= rfc7306#section-5.2.2
//% Original Request Identifier, 32 bits; Original Remote Data Value, 64 bits.
//= rfc7306#section-6.2
//% The payload of Immediate Data is 64 bits, which RDMAP does not interpret.
//= rfc7306#section-10.1
//% Atomic operation codes: 0 FetchAdd, 1 Swap, 2 CmpSwap.
#[test]
fn extensions() {
    let rest = "0000000000000001 0000000000000002 0000000000000003 0000000000000004";
    let ops = [
        AtomicOp::FetchAdd { add: 1, mask: 2 },
        AtomicOp::Swap { swap: 1, mask: 2 },
        AtomicOp::CmpSwap { swap: 1, swap_mask: 2, compare: 3, compare_mask: 4 },
    ];
    for (code, op) in (0..).zip(ops) {
        // The reserved bits are ignored.
        let bytes = hex(&format!("fffffff{code:x} 00000007 00000099 1112131415161718 {rest}"));
        let request = AtomicRequest {
            op,
            request_id: 7,
            remote_stag: 0x99,
            remote_to: 0x1112_1314_1516_1718,
        };
        assert_eq!(AtomicRequest::parse(&bytes), Ok(request));
        let mut emitted = [0xff; 52];
        request.emit(&mut emitted);
        assert_eq!(emitted[..4], [0, 0, 0, code]);
        let compare = if code == 2 { 52 } else { 36 };
        assert_eq!(emitted[4..compare], bytes[4..compare]);
    }
    let mut bad = [0; 52];
    bad[3] = 3;
    assert_eq!(AtomicRequest::parse(&bad), Err(RdmapError::AtomicOp(3)));

    let response = AtomicResponse { request_id: 7, original_value: 0x0102_0304_0506_0708 };
    assert_eq!(AtomicResponse::parse(&hex("00000007 0102030405060708")), Ok(response));
    assert_eq!(Immediate::parse(b"12345678"), Ok(Immediate(*b"12345678")));
    assert_eq!(Immediate::parse(b"1234"), Err(RdmapError::Length { received: 4, expected: 8 }));
}

//= type=test
//= rfc7306#section-5.1.1
//% FetchAdd adds with carries cut at the bits that the Add Mask sets.
//= rfc7306#section-5.1.2
//% Swap replaces the bits that the Swap Mask selects.
//= rfc7306#section-5.1.3
//% CmpSwap compares under the Compare Mask and, if equal, replaces under the Swap Mask.
#[test]
fn atomic_arithmetic() {
    let add = |original, add, mask| AtomicOp::FetchAdd { add, mask }.apply(original);
    assert_eq!(add(u64::MAX, 2, 0), 1);
    assert_eq!(add(0xffff_ffff, 1, 0), 0x1_0000_0000);
    assert_eq!(add(0xffff_ffff, 1, 0x8000_0000), 0, "no carry into the upper field");
    assert_eq!(add(0x0001_ffff, 0x0001_0001, 0x8000_8000), 0x0002_0000);
    // Bit for bit, as the RFC's pseudo code has it.
    let mut rng = fastrand::Rng::with_seed(7);
    for _ in 0..10_000 {
        let (a, b, mask) = (rng.u64(..), rng.u64(..), rng.u64(..) & rng.u64(..) & rng.u64(..));
        let (mut sum, mut carry) = (0, 0);
        for bit in 0..64 {
            let total = (a >> bit & 1) + (b >> bit & 1) + carry;
            sum |= (total & 1) << bit;
            carry = if mask >> bit & 1 == 1 { 0 } else { total >> 1 };
        }
        assert_eq!(add(a, b, mask), sum, "{a:#x} + {b:#x}, mask {mask:#x}");
    }
    assert_eq!(AtomicOp::Swap { swap: 0xabcd, mask: 0xff }.apply(0x1234), 0x12cd);
    let cmp = |original| {
        let op = AtomicOp::CmpSwap {
            swap: 0xffff,
            swap_mask: 0x0ff0,
            compare: 0x0034,
            compare_mask: 0x00ff,
        };
        op.apply(original)
    };
    assert_eq!(cmp(0x1234), 0x1ff4);
    assert_eq!(cmp(0x1235), 0x1235);
}

//= type=test
//= rfc5040#section-4.8
//% Terminate Control is Layer, 4 bits; EType, 4 bits; Error Code, 8 bits; HdrCt, 3 bits M, D and R;
//% 13 reserved bits. DDP Segment Length, 16 bits, the terminated DDP header and the terminated
//% RDMAP header follow as M, D and R say.
//= rfc5040#section-5.4
//% A Terminate is one untagged segment on queue 2 with MSN 1 and MO 0; a stream carries at most
//% one in each direction.
#[test]
fn terminates() {
    let read_request =
        ReadRequest { sink_stag: 1, sink_to: 2, size: 3, source_stag: 4, source_to: 5 };
    let untagged = Header::Untagged { last: true, ulp: 0x41, ulp_word: 0, qn: 1, msn: 1, mo: 0 };
    let tagged = Header::Tagged { last: true, ulp: 0x40, stag: 1, to: 2 };
    let bare = Terminate {
        layer: layer::LLP,
        etype: 0,
        code: 2,
        segment_len: None,
        ddp_header: None,
        read_request: None,
    };
    let bounds = Terminate {
        layer: layer::DDP,
        etype: 1,
        code: 1,
        segment_len: Some(30),
        ddp_header: Some(tagged),
        ..bare
    };
    let protection = Terminate {
        layer: layer::RDMAP,
        etype: 1,
        code: 0,
        segment_len: Some(46),
        ddp_header: Some(untagged),
        read_request: Some(read_request),
    };
    let table = [
        (bare, "20020000"),
        (bounds, "1101c000 001e c140 00000001 0000000000000002"),
        (
            protection,
            "0100e000 002e 4141 00000000 00000001 00000001 00000000
             00000001 0000000000000002 00000003 00000004 0000000000000005",
        ),
    ];
    for (terminate, bytes) in table {
        let mut emitted = [0xff; Terminate::LEN_MAX];
        let len = terminate.emit(&mut emitted);
        assert_eq!(emitted[..len], hex(bytes));
        assert_eq!(Terminate::parse(&emitted[..len]), Ok(terminate));
    }
    assert_eq!(Opcode::of(&Terminate::HEADER), Ok(Opcode::Terminate));
    let mut header = [0; 18];
    Terminate::HEADER.emit(&mut header);
    assert_eq!(header[..], hex("4147 00000000 00000002 00000001 00000000"));
    assert_eq!(Terminate::parse(&[0; 3]), Err(RdmapError::Length { received: 3, expected: 4 }));
}

/// siw writes the control word's bit fields the other way round within each byte. What we read from
/// that is wrong, but it is read, and its nibbles hold what siw means.
#[test]
fn siw_terminates() {
    let siw = [
        ("02020000", (layer::LLP, 0, 0x02)),
        ("02060000", (layer::LLP, 0, 0x06)),
        ("21030300", (layer::DDP, 2, 0x03)),
        ("11010300", (layer::DDP, 1, 0x01)),
        ("10000700", (layer::RDMAP, 1, 0x00)),
        ("20090300", (layer::RDMAP, 2, 0x09)),
        ("01000300", (layer::DDP, 0, 0x00)),
    ];
    for (bytes, meaning) in siw {
        let read = Terminate::parse(&hex(bytes)).unwrap();
        assert_eq!((read.etype, read.layer, read.code), meaning);
        assert_eq!(read.ddp_header, None);
    }
}
