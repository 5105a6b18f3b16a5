//! Bytes captured between siw hosts, or laid out by hand from the RFCs' figures.

#![allow(clippy::unwrap_used)] // Also in the helpers of the tests.

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
//# Initiator mode senders MUST set this field to the fixed value "MPA ID Req Frame" or (in byte
//# order) 4D 50 41 20 49 44 20 52 65 71 20 46 72 61 6D 65 (in hexadecimal).
//= rfc5044#section-7.1.1
//# Responder mode senders MUST set this field to the fixed value "MPA ID Rep Frame" or (in byte
//# order) 4D 50 41 20 49 44 20 52 65 70 20 46 72 61 6D 65 (in hexadecimal).
//= rfc6581#section-6
//# One, if the Private Data begins with the enhanced RDMA connection establishment data; 0
//# otherwise.
//= rfc6581#section-9
//# Note that this field MUST be sent in network byte order, with the IRD and ORD encoded as 14-bit
//# unsigned integers.
//= rfc6581#section-9
//# |A|B| IRD |C|D| ORD |
//= rfc6581#section-5
//# The RDMA connection initiator sends an MPA Request, as specified in [RFC5044]; the new format
//# defined here allows for: o Standardized negotiation of ORD and IRD.
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
//# It MUST be set to zero when sending, and not checked on reception.
//= rfc5044#section-7.1.1
//# This field MUST contain the length in octets of the Private Data field.
//= rfc5044#section-7.1.1
//# The Private Data field MUST be between 0 and 512 octets in length.
//= rfc5044#section-7.1.2
//# If a received "Key" does not match the expected value (see Section 7.1.1, MPA Request and Reply
//# Frame Format) the TCP/DDP connection MUST be closed, and an error returned to the ULP.
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
        "as soon as it can be known"
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
//# This is the number of octets of the contained ULPDU. It does not include the length of the FPDU
//# header itself, the pad, the CRC, or of any Markers that fall within the ULPDU.
//= rfc5044#section-4.4
//# After calculating the CRC-32c, the resultant value is placed into the CRC field at the end of
//# the FPDU.
//= rfc5044#section-4.1
//# When CRCs are not enabled, this field is still present, may contain any value, and MUST NOT be
//# checked.
//= rfc5040#section-4.3
//# The RDMA Write Message does not include an RDMAP header.
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
//# The following figure depicts the RDMA Read Request Header that MUST be used for all RDMA Read
//# Request Messages:
//= rfc5040#section-3.1
//# Queue Number 0 (used by RDMAP for Send, Send with Invalidate, Send with Solicited Event, and
//# Send with Solicited Event and Invalidate operations).
//= rfc5040#section-3.1
//# Queue Number 1 (used by RDMAP for RDMA Read operations).
//= rfc5040#section-3.1
//# Queue Number 2 (used by RDMAP for Terminate operations).
//= rfc5040#section-4.5
//# The RDMA Read Response Message does not include an RDMAP header.
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
//# The PAD field trails the ULPDU and contains between 0 and 3 octets of data.
//= rfc5044#section-4.1
//# The length of the pad is set so as to make the size of the FPDU an integral multiple of four.
//= rfc5044#section-4.1
//# The pad data MUST be set to zero by the sender and ignored by the receiver (except for CRC
//# checking).
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
//# The maximum ULPDU Length for a single ULPDU when Markers are present MUST be computed as: MULPDU
//# = EMSS - (6 + 4 * Ceiling(EMSS / 512) + EMSS mod 4)
//= rfc5044#section-4.5
//# The maximum ULPDU Length for a single ULPDU when Markers are NOT present MUST be computed as:
//# MULPDU = EMSS - (6 + EMSS mod 4)
//= rfc5044#section-3
//# MPA MUST provide information to DDP on the current maximum size of the record that is acceptable
//# to send (MULPDU).
//= rfc5044#section-3
//# The range of MULPDU values MUST be between 128 octets and 64768 octets, inclusive.
#[test]
fn mulpdu() {
    assert_eq!(fpdu::mulpdu(1448, false), 1442); // siw, MTU 1500
    assert_eq!(fpdu::mulpdu(8948, false), 8942);
    assert_eq!(fpdu::mulpdu(1447, false), 1438);
    assert_eq!(fpdu::mulpdu(1448, true), 1430);
    assert_eq!(fpdu::mulpdu(1 << 20, false), 64768);
    assert_eq!(fpdu::mulpdu(1 << 20, true), 64768);
    assert_eq!(fpdu::mulpdu(5, true), 128);
    for emss in 136..5000 {
        assert!(fpdu::total_len(fpdu::mulpdu(emss, false)) <= emss);
    }
}

//= type=test
//= rfc5041#section-4.1
//# |T|L| Rsvd |DV |
//= rfc5041#section-4.1
//# This field MUST be set to zero on transmit, and not checked on receive.
//= rfc5041#section-4.2
//# Figure 4 shows the DDP Header format that MUST be used in all DDP Segments that target Tagged
//# Buffers.
//= rfc5041#section-4.3
//# Figure 5 shows the DDP Header format that MUST be used in all DDP Segments that target Untagged
//# Buffers.
//= rfc5041#section-4.4
//# Each DDP Segment MUST contain a DDP Header. Each DDP Segment may also contain ULP Payload.
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
//# |T|L| Resrv | DV| RV|Rsv| Opcode|
//= rfc5040#section-4.1
//# Bits 26-27; Reserved. MUST be set to zero by sender, ignored by the receiver.
//= rfc5040#section-4.1
//# Bits 32-63; Invalidate STag. However, this field is only valid for Send with Invalidate and Send
//# with Solicited Event and Invalidate Messages (see Figure 4).
//= rfc5040#section-4.1
//# Figure 4, "RDMA Usage of DDP Fields", MUST be used to define the value of the Tagged flag that
//# is handed to the DDP layer for each RDMA Message.
//= rfc5040#section-4.1
//# Figure 4 defines when the STag, Queue Number, and Tagged Offset fields MUST be provided for each
//# RDMA Message.
//= rfc7306#section-4.1
//# Figure 2 defines the new values of the RDMA Opcode field that are used for the RDMA Messages
//# defined in this specification.
//= rfc7306#section-4.2
//# The following figure defines which RDMA Headers are used on each new RDMA Message and which new
//# RDMA Messages are allowed to carry ULP payload.
//= rfc7306#section-5.2
//# Atomic Operation Request messages MUST use the same Queue Number as RDMA Read Requests (QN=1).
//= rfc7306#section-10.2
//# 0x00000003, Queue 3 (Atomic Response operations), this specification
//= rfc5040#section-7.2
//# The RDMA OpCode MUST be valid.
//= rfc5040#section-7.2
//# The RDMA Version MUST be valid.
//= rfc7306#section-4.1
//# Invalidate STag: Set to zero by the sender, ignored by the receiver.
//= rfc7306#section-6.3
//# For an Immediate Data or Immediate Data with SE Message, the Local Peer's RDMAP Layer MUST
//# request that the DDP layer set the Queue Number field to zero.
//= rfc5040#section-4.7
//# The Send with Invalidate and Send with Solicited Event and Invalidate Messages do not include an
//# RDMAP header. The RDMAP layer passes to the DDP layer an RDMAP Control Field and the Invalidate
//# STag field (see section 4.1 RDMAP Control and Invalidate STag Field).
//= rfc5040#section-4.1
//# Figure 4 defines the value of the RDMA Opcode field that MUST be used for each RDMA Message.
//= rfc5040#section-4.2
//# The following figure defines which RDMA Headers MUST be used on each RDMA Message and which RDMA
//# Messages are allowed to carry ULP Payload:
//= rfc5041#section-7.1
//# The QN is valid for this stream.
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
//# The following figure depicts the Atomic Operation Request Header that is used for all Atomic
//# Operation Request Messages:
//= rfc7306#section-5.2.2
//# The following figure depicts the Atomic Operation Response header that is used for all Atomic
//# Operation Response Messages:
//= rfc7306#section-6.2
//# The first 8 bytes of the data following the DDP header contains the Immediate Data.
//= rfc7306#section-6.3
//# The Remote Peer MUST check that Immediate Data and Immediate Data with SE Messages include
//# exactly 8 bytes of data from the DDP layer.
//= rfc7306#section-5
//# An RNIC that supports Atomic Operations as specified in this document MUST implement both the
//# FetchAdd operation as specified in Section 5.1.1 and the CmpSwap operation as specified in
//# Section 5.1.2.
//= rfc7306#section-10.1
//# 0x0, FetchAdd, this specification
//= rfc7306#section-10.1
//# 0x2, CmpSwap, this specification
#[test]
fn extensions() {
    let rest = "0000000000000001 0000000000000002 0000000000000003 0000000000000004";
    let ops = [
        (0, AtomicOp::FetchAdd { add: 1, mask: 2 }),
        (2, AtomicOp::CmpSwap { swap: 1, swap_mask: 2, compare: 3, compare_mask: 4 }),
    ];
    for (code, op) in ops {
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
        assert_eq!(emitted[4..36], bytes[4..36]);
        match op {
            AtomicOp::FetchAdd { .. } => {
                assert_eq!(emitted[36..], hex("0000000000000000 ffffffffffffffff"));
            }
            AtomicOp::CmpSwap { .. } => assert_eq!(emitted[36..], bytes[36..]),
        }
    }
    for reserved in [1, 3, 15] {
        let mut bad = [0; 52];
        bad[3] = reserved;
        assert_eq!(AtomicRequest::parse(&bad), Err(RdmapError::AtomicOp(reserved)));
    }

    let response = AtomicResponse { request_id: 7, original_value: 0x0102_0304_0506_0708 };
    assert_eq!(AtomicResponse::parse(&hex("00000007 0102030405060708")), Ok(response));
    assert_eq!(Immediate::parse(b"12345678"), Ok(Immediate(*b"12345678")));
    assert_eq!(Immediate::parse(b"1234"), Err(RdmapError::Length { received: 4, expected: 8 }));
}

//= type=test
//= rfc7306#section-5.1.1
//# A bit set in the Add Mask field specifies the field boundary; for each field, a bit is set at
//# the most significant bit position for each field, causing any carry out of that bit position to
//# be discarded when the addition is performed.
//= rfc7306#section-5.2.1
//# The Add or Swap Data field specifies the 64-bit "Add Data" value in an Atomic FetchAdd Operation
//# or the 64-bit "Swap Data" value in an Atomic Swap or CmpSwap Operation.
//= rfc7306#section-5.1.2
//# If the two values are equal, the Responder is required to swap masked bits in the same ULP
//# Buffer address with the masked Swap Data. If the two masked compare values are not equal, the
//# contents of the Responder's memory are not changed.
#[test]
fn atomic_arithmetic() {
    let add = |original, add, mask| AtomicOp::FetchAdd { add, mask }.apply(original);
    assert_eq!(add(u64::MAX, 2, 0), 1);
    assert_eq!(add(0xffff_ffff, 1, 0), 0x1_0000_0000);
    assert_eq!(add(0xffff_ffff, 1, 0x8000_0000), 0, "no carry into the upper field");
    assert_eq!(add(0x0001_ffff, 0x0001_0001, 0x8000_8000), 0x0002_0000);
    // Bit by bit, as in the RFC's pseudo code.
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
//# | Layer | EType | Error Code |HdrCt|
//= rfc5040#section-4.8
//# The following figure depicts a Terminate Header that MUST be used for the Terminate Message:
//= rfc5040#section-5.4
//# A Terminate Message MUST reference an Untagged Buffer.
//= rfc5040#section-5.4
//# A Terminate Message references the Terminate Queue. That is, the Local Peer's RDMAP layer MUST
//# request that the DDP layer set the Queue Number field to two.
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

/// siw writes the bit fields of the control word in the opposite order within each byte. The parsed
/// values are wrong then, but they are parsed, and their nibbles contain what siw means.
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
