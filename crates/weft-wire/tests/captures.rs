//! Decodes captures of connections between two Linux siw hosts, from end to end.

#![allow(clippy::unwrap_used)] // Also in the helpers of the tests.

#[path = "support/pcap.rs"]
mod pcap;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use weft_wire::ddp::{Header, UntaggedQueue};
use weft_wire::mpa::fpdu::{self, Decoded};
use weft_wire::mpa::frame::{Frame, Kind, Parsed};
use weft_wire::mpa::negotiate::{
    Initiator, InitiatorOutcome, Limits, Negotiated, Params, Responder, RtrKind, RtrKinds,
};
use weft_wire::rdmap::{Opcode, ReadRequest, queue};

/// A capture file, its number of connections, and its number of segments by opcode: Write, Read
/// Request, Read Response, Send. The counts come from tshark.
const EXPECTED: [(&str, usize, [usize; 4]); 18] = [
    ("ib_read_bw", 2, [0, 5, 18, 18]),
    ("ib_read_lat", 2, [0, 32, 32, 20]),
    ("ib_send_bw", 2, [0, 0, 0, 40]),
    ("ib_send_lat", 2, [0, 0, 0, 76]),
    ("ib_write_bw", 2, [20, 0, 0, 18]),
    ("ib_write_bw_gso", 2, [4, 0, 0, 18]),
    ("ib_write_bw_mtu9000", 2, [6, 0, 0, 18]),
    ("ib_write_lat", 2, [57, 0, 0, 20]),
    ("rping", 1, [5, 5, 5, 20]),
    ("siw_crc", 1, [2, 2, 2, 8]),
    ("siw_crc_initiator_only", 1, [2, 2, 2, 8]),
    ("siw_crc_reject", 1, [0, 0, 0, 0]),
    ("siw_crc_responder_only", 1, [2, 2, 2, 8]),
    ("siw_gso", 1, [2, 2, 2, 8]),
    ("siw_p2p_both", 1, [3, 2, 2, 8]),
    ("siw_p2p_read", 1, [2, 3, 3, 8]),
    ("siw_p2p_write", 1, [3, 2, 2, 8]),
    ("siw_rev1", 1, [0, 0, 0, 1]),
];

//= type=test
//= rfc5040#section-4.6
//# The Send and Send with Solicited Event Messages do not include an RDMAP header.
#[test]
fn every_capture_decodes() {
    for (name, connections, segments) in EXPECTED {
        let mut counted = [0; 4];
        let found = read(name);
        assert_eq!(found.len(), connections, "{name}: connections");
        for connection in &found {
            let (request, data) = frame(Kind::Request, &connection.initiator);
            let (reply, answer) = frame(Kind::Reply, &connection.responder);
            let crc = request.crc || reply.crc;
            for stream in [data, answer] {
                for (opcode, count) in Receiver::default().receive(name, stream, crc) {
                    counted[opcode as usize] += count;
                }
            }
        }
        assert_eq!(counted, segments, "{name}: segments");
    }
}

#[test]
fn every_capture_file_is_listed() {
    let mut files: Vec<String> = fs::read_dir(directory())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|file| file.strip_suffix(".pcap").map(str::to_owned))
        .collect();
    files.sort_unstable();
    assert_eq!(files, EXPECTED.map(|(name, ..)| name));
}

/// The initiator interprets siw's reply, and the responder siw's request, as siw did.
#[test]
fn initiator_and_responder_accept_the_captured_exchanges() {
    for (name, ..) in EXPECTED.into_iter().filter(|(name, ..)| *name != "siw_crc_reject") {
        for connection in read(name) {
            let (request, data) = frame(Kind::Request, &connection.initiator);
            let (reply, _) = frame(Kind::Reply, &connection.responder);
            let params = params_of(&request);

            let mut initiator = Initiator::new(params, &request.private_data).unwrap();
            let sent = &connection.initiator[..initiator.request().len()];
            // siw's GSO bit is a reserved bit here.
            let gso = if name.contains("gso") { 0x08 } else { 0 };
            let mut ours = initiator.request().to_vec();
            ours[16] |= gso;
            assert_eq!(ours, sent, "{name}: request");
            let (_, outcome) = initiator.input(&connection.responder).unwrap();
            let Some(InitiatorOutcome::Accepted(ours)) = outcome else { panic!("{name}") };

            let mut responder = Responder::new(Limits { private_data_max: 256 });
            let (taken, _) = responder.input(&connection.initiator).unwrap();
            assert_eq!(taken, connection.initiator.len() - data.len(), "{name}");
            let (bytes, theirs) = responder.accept(params_of(&reply), &reply.private_data).unwrap();
            let mut captured = connection.responder[..bytes.len()].to_vec();
            captured[16] &= !gso;
            assert_eq!(bytes, captured, "{name}: reply");
            assert_eq!(
                (ours.crc, ours.rtr, ours.ird, ours.ord),
                (theirs.crc, theirs.rtr, theirs.ord, theirs.ird),
                "{name}"
            );
            check_rtr(name, &ours, data);
        }
    }
}

#[test]
fn captured_rejection_is_a_rejection() {
    for connection in read("siw_crc_reject") {
        let (request, _) = frame(Kind::Request, &connection.initiator);
        let mut initiator = Initiator::new(params_of(&request), &[]).unwrap();
        let (taken, outcome) = initiator.input(&connection.responder).unwrap();
        assert_eq!(taken, 24);
        assert_eq!(outcome, Some(InitiatorOutcome::Rejected { private_data: vec![] }));
    }
}

/// Checks that the negotiated RTR message comes first.
fn check_rtr(name: &str, negotiated: &Negotiated, data: &[u8]) {
    let expected = match name {
        "siw_p2p_both" | "siw_p2p_write" => Some(RtrKind::Write),
        "siw_p2p_read" => Some(RtrKind::Read),
        _ => None,
    };
    assert_eq!(negotiated.rtr, expected, "{name}");
    let Decoded::Fpdu { ulpdu, .. } = fpdu::decode(data, negotiated.crc).unwrap() else {
        panic!("{name}: no FPDU");
    };
    let (header, at) = Header::parse(ulpdu).unwrap();
    let first = Opcode::of(&header).unwrap();
    match expected {
        Some(RtrKind::Write) => assert_eq!((first, ulpdu.len()), (Opcode::Write, at)),
        Some(RtrKind::Read) => assert_eq!(ReadRequest::parse(&ulpdu[at..]).unwrap().size, 0),
        _ => assert!(ulpdu.len() > at, "{name}: {first:?}"),
    }
}

/// The parameters with which this side would send what siw sent in `frame`.
fn params_of(frame: &Frame) -> Params {
    let enhanced = frame.enhanced.unwrap_or_default();
    Params {
        crc: frame.crc,
        markers_wanted: frame.markers,
        ird: enhanced.ird,
        ord: enhanced.ord,
        enhanced: frame.enhanced.is_some(),
        peer_to_peer: enhanced.peer_to_peer,
        rtr: RtrKinds {
            send: enhanced.rtr_send,
            write: enhanced.rtr_write,
            read: enhanced.rtr_read,
        },
    }
}

/// The receiving side of a stream of FPDUs.
#[derive(Default)]
struct Receiver {
    queues: [UntaggedQueue; queue::COUNT],
    /// STag and next offset of the tagged message under way, by opcode.
    tagged: BTreeMap<u8, (u32, u64)>,
}

impl Receiver {
    /// Number of segments by opcode.
    fn receive(
        mut self,
        name: &str,
        mut stream: &[u8],
        crc: bool,
    ) -> impl Iterator<Item = (Opcode, usize)> {
        let mut counts: BTreeMap<u8, (Opcode, usize)> = BTreeMap::new();
        while let Decoded::Fpdu { ulpdu, consumed } = fpdu::decode(stream, crc).unwrap() {
            let (header, at) = Header::parse(ulpdu).unwrap();
            let opcode = self.segment(&header, &ulpdu[at..]);
            let (mut again, sent) = (vec![0; consumed], &stream[..consumed]);
            header.emit(&mut again[2..]);
            again[2 + at..2 + ulpdu.len()].copy_from_slice(&ulpdu[at..]);
            fpdu::seal(&mut again, ulpdu.len(), crc);
            let pad = 2 + ulpdu.len()..consumed - fpdu::CRC_LEN;
            if sent[pad.clone()].iter().all(|&byte| byte == 0) {
                assert_eq!(again, sent, "{name}: our FPDU");
            } else {
                // siw does not clear the pad bytes.
                assert_eq!(again[..pad.start], sent[..pad.start], "{name}: our FPDU");
            }
            counts.entry(opcode as u8).or_insert((opcode, 0)).1 += 1;
            stream = &stream[consumed..];
        }
        counts.into_values()
    }

    fn segment(&mut self, header: &Header, payload: &[u8]) -> Opcode {
        let opcode = Opcode::of(header).unwrap();
        match *header {
            Header::Tagged { last, stag, to, .. } => {
                if let Some(expected) = self.tagged.remove(&(opcode as u8)) {
                    assert_eq!((stag, to), expected, "segments in order");
                }
                if !last {
                    self.tagged.insert(opcode as u8, (stag, to + payload.len() as u64));
                }
            }
            Header::Untagged { last, qn, msn, mo, .. } => {
                let queue = &mut self.queues[qn as usize];
                queue.check(msn, mo, payload.len(), last, 1 << 20).unwrap();
                if opcode == Opcode::ReadRequest {
                    let mut again = [0; ReadRequest::LEN];
                    ReadRequest::parse(payload).unwrap().emit(&mut again);
                    assert_eq!(again, payload);
                }
            }
        }
        opcode
    }
}

fn frame(kind: Kind, stream: &[u8]) -> (Frame, &[u8]) {
    match Frame::parse(kind, stream).unwrap() {
        Parsed::Complete { frame, consumed } => (frame, &stream[consumed..]),
        Parsed::Incomplete { .. } => panic!("no MPA frame"),
    }
}

fn read(name: &str) -> Vec<pcap::Connection> {
    pcap::connections(&fs::read(directory().join(name).with_extension("pcap")).unwrap())
}

fn directory() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/captures"))
}
