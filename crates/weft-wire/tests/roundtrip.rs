//! Tests that whatever is emitted parses to the same value, however the stream is split.

use proptest::prelude::*;
use weft_wire::crc::Crc32c;
use weft_wire::ddp::{DdpError, Header, Placement, Segments, UntaggedQueue};
use weft_wire::mpa::fpdu::{self, Decoded, FpduError};
use weft_wire::mpa::frame::{Enhanced, Frame, Kind, Parsed};
use weft_wire::rdmap::{
    AtomicOp, AtomicRequest, AtomicResponse, Immediate, ReadRequest, Terminate,
};

prop_compose! {
    fn enhanced()(
        ird in 0..0x4000_u16,
        ord in 0..0x4000_u16,
        peer_to_peer: bool,
        rtr_send: bool,
        rtr_write: bool,
        rtr_read: bool,
    ) -> Enhanced {
        Enhanced { ird, ord, peer_to_peer, rtr_send, rtr_write, rtr_read }
    }
}

prop_compose! {
    fn frames()(
        request: bool,
        markers: bool,
        crc: bool,
        reject: bool,
        enhanced in prop::option::of(enhanced()),
        private_data in prop::collection::vec(any::<u8>(), 0..=508),
    ) -> Frame {
        let kind = if request { Kind::Request } else { Kind::Reply };
        let revision = if enhanced.is_some() { 2 } else { 1 };
        Frame { kind, markers, crc, reject, enhanced, revision, private_data }
    }
}

fn headers() -> impl Strategy<Value = Header> {
    let tagged = (any::<bool>(), any::<u8>(), any::<u32>(), any::<u64>())
        .prop_map(|(last, ulp, stag, to)| Header::Tagged { last, ulp, stag, to });
    let untagged =
        (any::<bool>(), any::<u8>(), any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>())
            .prop_map(|(last, ulp, ulp_word, qn, msn, mo)| Header::Untagged {
                last,
                ulp,
                ulp_word,
                qn,
                msn,
                mo,
            });
    prop_oneof![tagged, untagged]
}

prop_compose! {
    fn read_requests()(
        sink_stag: u32,
        sink_to: u64,
        size: u32,
        source_stag: u32,
        source_to: u64,
    ) -> ReadRequest {
        ReadRequest { sink_stag, sink_to, size, source_stag, source_to }
    }
}

fn atomic_ops() -> impl Strategy<Value = AtomicOp> {
    prop_oneof![
        any::<(u64, u64)>().prop_map(|(add, mask)| AtomicOp::FetchAdd { add, mask }),
        any::<[u64; 4]>().prop_map(|[swap, swap_mask, compare, compare_mask]| {
            AtomicOp::CmpSwap { swap, swap_mask, compare, compare_mask }
        }),
    ]
}

proptest! {
    #[test]
    fn emitted_frame_parses(frame in frames(), tail in prop::collection::vec(any::<u8>(), 0..20)) {
        let mut bytes = vec![];
        frame.emit(&mut bytes);
        let len = bytes.len();
        for cut in 0..len {
            let parsed = Frame::parse(frame.kind, &bytes[..cut]);
            let needed = if cut < 20 { 20 } else { len };
            prop_assert_eq!(parsed, Ok(Parsed::Incomplete { needed }));
        }
        bytes.extend_from_slice(&tail);
        let complete = Parsed::Complete { frame: frame.clone(), consumed: len };
        prop_assert_eq!(Frame::parse(frame.kind, &bytes), Ok(complete));
    }

    #[test]
    fn emitted_ddp_header_parses(
        header in headers(),
        payload in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = vec![0; header.len()];
        prop_assert_eq!(header.emit(&mut bytes), header.len());
        for cut in 1..header.len() {
            prop_assert_eq!(Header::parse(&bytes[..cut]), Err(DdpError::TooShort(cut)));
        }
        bytes.extend_from_slice(&payload);
        prop_assert_eq!(Header::parse(&bytes), Ok((header, header.len())));
    }

    #[test]
    fn emitted_operations_parse(
        read in read_requests(),
        op in atomic_ops(),
        (request_id, remote_stag, remote_to, original_value) in any::<(u32, u32, u64, u64)>(),
        immediate: [u8; 8],
    ) {
        let mut buf = [0; 64];
        let len = read.emit(&mut buf);
        prop_assert_eq!(ReadRequest::parse(&buf[..len]), Ok(read));
        let atomic = AtomicRequest { op, request_id, remote_stag, remote_to };
        let len = atomic.emit(&mut buf);
        prop_assert_eq!(AtomicRequest::parse(&buf[..len]), Ok(atomic));
        let response = AtomicResponse { request_id, original_value };
        let len = response.emit(&mut buf);
        prop_assert_eq!(AtomicResponse::parse(&buf[..len]), Ok(response));
        let len = Immediate(immediate).emit(&mut buf);
        prop_assert_eq!(Immediate::parse(&buf[..len]), Ok(Immediate(immediate)));
    }

    #[test]
    fn emitted_terminate_parses(
        (layer, etype, code) in (0..16_u8, 0..16_u8, any::<u8>()),
        segment in prop::option::of((any::<u16>(), headers())),
        read in prop::option::of(read_requests()),
    ) {
        let terminate = Terminate {
            layer,
            etype,
            code,
            segment_len: segment.map(|(len, _)| len),
            ddp_header: segment.map(|(_, header)| header),
            read_request: read.filter(|_| segment.is_some()),
        };
        let mut buf = [0; Terminate::LEN_MAX];
        let len = terminate.emit(&mut buf);
        prop_assert_eq!(Terminate::parse(&buf[..len]), Ok(terminate));
        for cut in 4..len {
            let cut_off = Terminate::parse(&buf[..cut]).unwrap();
            prop_assert_eq!((cut_off.layer, cut_off.etype, cut_off.code), (layer, etype, code));
        }
    }

    //= type=test
    //= rfc5044#section-6
    //# In an ordered TCP stream, the ULPDU Length field in the current FPDU when FPDU has a valid
    //# CRC, can be used to identify the beginning of the next FPDU.
    //= rfc5044#section-6
    //# The ULPDU Length field (see Section 4) MUST be used to determine if the entire FPDU is
    //# present before forwarding the ULPDU to DDP.
    //= rfc5044#section-5.2
    //# MPA receivers will get TCP data in the usual ordered stream. The receivers MUST identify
    //# FPDU boundaries by using the ULPDU_LENGTH field, as described in Section 6.
    #[test]
    fn fpdus_decode_from_a_stream_split_anywhere(
        ulpdus in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..10),
        crc: bool,
        cut in 1..200_usize,
    ) {
        let mut stream = vec![];
        for ulpdu in &ulpdus {
            let start = stream.len();
            stream.resize(start + fpdu::total_len(ulpdu.len()), 0xcc);
            stream[start + 2..][..ulpdu.len()].copy_from_slice(ulpdu);
            fpdu::seal(&mut stream[start..], ulpdu.len(), crc);
        }
        let (mut buf, mut found) = (vec![], vec![]);
        for piece in stream.chunks(cut) {
            buf.extend_from_slice(piece);
            while let Decoded::Fpdu { ulpdu, consumed } = fpdu::decode(&buf, crc).unwrap() {
                found.push(ulpdu.to_vec());
                buf.drain(..consumed);
            }
        }
        prop_assert_eq!(found, ulpdus);
        prop_assert!(buf.is_empty());
    }

    /// A sender that gathers and a receiver that scatters do the same as [`fpdu::seal`].
    #[test]
    fn gathered_fpdu_equals_a_sealed_one(
        ulpdu in prop::collection::vec(any::<u8>(), 0..300),
        crc: bool,
        at: usize,
    ) {
        let mut whole = vec![0; fpdu::total_len(ulpdu.len())];
        whole[2..2 + ulpdu.len()].copy_from_slice(&ulpdu);
        fpdu::seal(&mut whole, ulpdu.len(), crc);
        let (header, payload) = ulpdu.split_at(at % (ulpdu.len() + 1));
        let length = fpdu::header(ulpdu.len());
        let mut digest = Crc32c::new();
        let zeros = &[0; 3][..fpdu::pad_len(ulpdu.len())];
        [&length[..], header, payload, zeros].iter().for_each(|piece| digest.update(piece));
        let (trailer, len) = fpdu::trailer(ulpdu.len(), crc.then(|| digest.value()));
        prop_assert_eq!([&length[..], header, payload, &trailer[..len]].concat(), whole);
        if crc {
            let mut field = [0; 4];
            field.copy_from_slice(&trailer[len - 4..len]);
            prop_assert_eq!(fpdu::check_crc(digest.value(), field), Ok(()));
            field[0] ^= 1;
            prop_assert!(fpdu::check_crc(digest.value(), field).is_err());
        }
    }

    #[test]
    fn crc_detects_a_wrong_bit(ulpdu in prop::collection::vec(any::<u8>(), 0..100), bit: usize) {
        let mut fpdu = vec![0; fpdu::total_len(ulpdu.len())];
        fpdu[2..2 + ulpdu.len()].copy_from_slice(&ulpdu);
        fpdu::seal(&mut fpdu, ulpdu.len(), true);
        let bit = 16 + bit % (fpdu.len() * 8 - 16);
        fpdu[bit / 8] ^= 1 << (bit % 8);
        let is_crc_error = matches!(fpdu::decode(&fpdu, true), Err(FpduError::Crc { .. }));
        prop_assert!(is_crc_error);
    }

    //= type=test
    //= rfc5041#section-5.2
    //# At the Data Source, the DDP layer MUST segment the data contained in a ULP message into a
    //# series of DDP Segments, where each DDP Segment contains a DDP Header and ULP Payload, and
    //# MUST be no larger than the MULPDU value Advertised by the LLP.
    //= rfc5041#section-5.2
    //# A zero-length DDP Message is allowed and MUST consume exactly one DDP Segment.
    //= rfc5041#section-4.1
    //# It MUST be set to one on the last DDP Segment of every DDP Message. It MUST NOT be set to
    //# one on any other DDP Segment.
    #[test]
    fn queue_accepts_the_segments_of_a_message(
        lens in prop::collection::vec(0..5000_usize, 1..5),
        mulpdu in 19..1500_usize,
    ) {
        let mut queue = UntaggedQueue::new();
        for (msn, len) in (1..).zip(lens) {
            let (mut next, mut ended) = (0, false);
            for segment in Segments::new(len, mulpdu, 18) {
                prop_assert!(!ended && segment.offset == next && segment.len <= mulpdu - 18);
                let offset = segment.offset as u32;
                let placed = queue.check(msn, offset, segment.len, segment.last, len as u64);
                let last = segment.last;
                prop_assert_eq!(placed, Ok(Placement { msn, offset, first: next == 0, last }));
                next += segment.len;
                ended = segment.last;
                prop_assert_eq!(queue.is_inside_message(), !ended);
            }
            prop_assert!(ended && next == len);
        }
    }
}

//= type=test
//= rfc5041#section-7.1
//# The MO falls in the range of legal offsets associated with the Untagged Buffer.
//= rfc5041#section-7.1
//# The sum of the DDP Segment payload length and the MO falls in the range of legal offsets
//# associated with the Untagged Buffer.
//= rfc5041#section-7.1
//# The Message Sequence Number falls in the range of legal Message Sequence Numbers, for the queue
//# defined by the QN.
//= rfc5041#section-5.1.2
//# The DDP Message Sequence Number can be used by the Data Sink to identify the specific Untagged
//# Buffer.
//= rfc5041#section-4.3
//# The Message Sequence Number specifies a sequence number that MUST be increased by one (modulo
//# 2^32) with each DDP Message targeting the specific Queue Number on the DDP Stream associated
//# with this DDP Segment.
//= rfc5041#section-4.3
//# The MSN value MUST wrap to 0 after a value of 0xFFFFFFFF.
//= rfc5041#section-4.3
//# The initial value for MSN MUST be one.
//= rfc5041#section-5.3
//# MUST Deliver DDP Messages to the ULP in the order they were sent by the Data Source.
#[test]
fn queue_accepts_only_the_next_segment() {
    let mut queue = UntaggedQueue::new();
    let msn = |received, expected| Err(DdpError::Msn { received, expected });
    assert_eq!(queue.check(0, 0, 1, true, 10), msn(0, 1));
    assert_eq!(queue.check(2, 0, 1, true, 10), msn(2, 1));
    let mo = Err(DdpError::Mo { received: 1, expected: 0 });
    assert_eq!(queue.check(1, 1, 1, true, 10), mo);
    let long = |length, limit| Err(DdpError::MessageTooLong { length, limit });
    assert_eq!(queue.check(1, 0, 11, true, 10), long(11, 10));
    assert!(queue.check(1, 0, 6, false, 10).is_ok());
    assert_eq!(queue.check(1, 6, 5, true, 10), long(11, 10));
    assert_eq!(queue.check(2, 0, 1, true, 10), msn(2, 1), "the first message is not over");
    // An empty segment is not the start of a second message.
    assert!(queue.check(1, 6, 0, false, 10).is_ok_and(|placed| !placed.first));
    assert!(queue.check(1, 6, 4, true, 10).is_ok());
    assert!(queue.check(2, 0, 0, false, 0).is_ok_and(|placed| placed.first));
    assert!(queue.check(2, 0, 0, true, 0).is_ok_and(|placed| !placed.first && placed.last));
    assert_eq!(queue.msn(), 3);
}

#[test]
fn message_of_4_gib_does_not_wrap_its_offset() {
    let mut queue = UntaggedQueue::new();
    let (step, mut mo) = (1 << 30, 0);
    for _ in 0..3 {
        queue.check(1, mo, step, false, u64::MAX).unwrap();
        mo += step as u32;
    }
    queue.check(1, mo, step - 1, false, u64::MAX).unwrap();
    let limit = u64::from(u32::MAX);
    let error = DdpError::MessageTooLong { length: limit + 1, limit };
    assert_eq!(queue.check(1, u32::MAX, 1, true, u64::MAX), Err(error));
}
