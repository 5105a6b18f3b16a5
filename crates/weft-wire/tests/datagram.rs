//! Tests of UD datagrams: bytes laid out by hand, and properties.

use proptest::prelude::*;
use weft_wire::crc::crc32c;
use weft_wire::datagram::{
    CRC_LEN, DatagramError, HEADER_LEN, Header, MULTICAST_QP, PAYLOAD_MAX, check_value,
};
use weft_wire::ddp::DdpError;
use weft_wire::rdmap::RdmapError;

fn emit(header: &Header, payload: &[u8], has_crc: bool) -> Vec<u8> {
    let mut datagram = vec![0xee; HEADER_LEN];
    header.emit(has_crc, &mut datagram);
    datagram.extend_from_slice(payload);
    if has_crc {
        let crc = check_value(&datagram);
        datagram.extend_from_slice(&crc);
    }
    datagram
}

const PLAIN: Header = Header {
    to: 0x00d0_3901,
    from: 0x00d0_4002,
    qkey: 0x1111_1111,
    msn: 7,
    imm: None,
    solicited: false,
};

#[test]
fn golden_datagrams_are_emitted_and_parsed() {
    let bytes = [
        0x41, // DDP: untagged, last, version 1
        0x43, // RDMAP: version 1, Send
        0, 0, 0, 0, // nothing to invalidate
        0, 0, 0, 0, // queue 0
        0, 0, 0, 7, // MSN
        0, 0, 0, 0, // offset
        0x10, 0xd0, 0x39, 0x01, // version 1, to
        0x00, 0xd0, 0x40, 0x02, // from
        0x11, 0x11, 0x11, 0x11, // Q_Key
        0, 0, 0, 0, // no immediate data
        b'h', b'i',
    ];
    assert_eq!(emit(&PLAIN, b"hi", false), bytes);
    assert_eq!(Header::parse(&bytes), Ok((PLAIN, b"hi".as_slice())));

    let full = Header { imm: Some([1, 2, 3, 4]), solicited: true, ..PLAIN };
    let mut bytes = bytes.to_vec();
    bytes[1] = 0x45; // Send with Solicited Event
    bytes[18] = 0x13; // immediate data and a CRC
    bytes[30..34].copy_from_slice(&[1, 2, 3, 4]);
    bytes.extend_from_slice(&crc32c(&bytes).to_le_bytes());
    assert_eq!(emit(&full, b"hi", true), bytes);
    assert_eq!(Header::parse(&bytes), Ok((full, b"hi".as_slice())));
}

#[test]
fn longest_datagram_fits_udp_over_ipv4() {
    assert_eq!(emit(&PLAIN, &vec![0; PAYLOAD_MAX], true).len(), 65_535 - 20 - 8);
    let all = Header { to: MULTICAST_QP, from: MULTICAST_QP, ..PLAIN };
    assert_eq!(Header::parse(&emit(&all, &[], false)), Ok((all, [].as_slice())));
}

#[test]
fn each_misbehaviour_has_its_error() {
    let sound = emit(&PLAIN, b"hi", false);
    let with = |at: usize, byte: u8| {
        let mut changed = sound.clone();
        changed[at] = byte;
        Header::parse(&changed).map(|(header, _)| header)
    };
    assert_eq!(with(0, 0x42), Err(DdpError::UntaggedVersion(2).into()));
    assert_eq!(with(0, 0xc1), Err(DatagramError::NoSend), "tagged");
    assert_eq!(with(0, 0x01), Err(DatagramError::NoSend), "not the last segment");
    assert_eq!(with(1, 0x83), Err(RdmapError::Version(2).into()));
    assert_eq!(with(1, 0x4c), Err(RdmapError::Opcode(12).into()));
    assert_eq!(with(1, 0x44), Err(DatagramError::NoSend), "with Invalidate");
    assert_eq!(with(9, 1), Err(DatagramError::NoSend), "queue 1");
    assert_eq!(with(17, 1), Err(DatagramError::NoSend), "offset 1");
    assert_eq!(with(18, 0x20), Err(DatagramError::Version(2)));
    assert_eq!(with(2, 0xff), Ok(PLAIN), "the STag of a Send is not looked at");
    assert_eq!(with(22, 0xff), Ok(PLAIN), "nor the byte that is zero");
    for len in 0..HEADER_LEN {
        let cut = Header::parse(&sound[..len]);
        let is_short = matches!(
            cut,
            Err(DatagramError::TooShort(_) | DatagramError::Ddp(DdpError::TooShort(_)))
        );
        assert!(is_short, "{len} bytes: {cut:?}");
    }
    let empty = emit(&PLAIN, &[], true);
    let cut = &empty[..empty.len() - 1];
    assert_eq!(Header::parse(cut), Err(DatagramError::TooShort(HEADER_LEN + CRC_LEN - 1)));
}

prop_compose! {
    fn headers()(
        to in 0..1_u32 << 24,
        from in 0..1_u32 << 24,
        qkey: u32,
        msn: u32,
        imm: Option<[u8; 4]>,
        solicited: bool,
    ) -> Header {
        Header { to, from, qkey, msn, imm, solicited }
    }
}

proptest! {
    #[test]
    fn emitted_datagram_parses(
        header in headers(),
        payload in prop::collection::vec(any::<u8>(), 0..200),
        has_crc: bool,
    ) {
        let bytes = emit(&header, &payload, has_crc);
        prop_assert_eq!(Header::parse(&bytes), Ok((header, payload.as_slice())));
    }

    #[test]
    fn crc_detects_a_flipped_bit(
        header in headers(),
        payload in prop::collection::vec(any::<u8>(), 0..200),
        at: prop::sample::Index,
        bit in 0..8_u8,
    ) {
        let mut bytes = emit(&header, &payload, true);
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        // The CRC cannot protect the flag that announces it.
        prop_assume!(!(at == 18 && bit == 1));
        prop_assert!(Header::parse(&bytes).is_err());
    }

    #[test]
    fn parser_does_not_panic_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let _ = Header::parse(&bytes);
    }
}
