//! Reads a capture into the two byte streams of each of its TCP connections. It supports classic
//! pcap, Ethernet, IPv4 and TCP, which is enough for the captures beside these tests, and skips
//! everything else.

use std::collections::{BTreeMap, HashMap};

/// One TCP connection.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    /// Data from the side that sent the SYN.
    pub(crate) initiator: Vec<u8>,
    /// Data from the other side.
    pub(crate) responder: Vec<u8>,
}

type Address = ([u8; 4], u16);

#[derive(Default)]
struct Direction {
    /// Sequence number of the first byte of data.
    start: u32,
    /// Data, by offset in the stream.
    pieces: BTreeMap<u32, Vec<u8>>,
}

/// The connections of a capture, in the order of their SYNs.
pub(crate) fn connections(file: &[u8]) -> Vec<Connection> {
    let mut order: Vec<(Address, Address)> = Vec::new();
    let mut directions: HashMap<(Address, Address), Direction> = HashMap::new();
    for packet in packets(file) {
        let Some(segment) = Segment::parse(packet) else { continue };
        let key = (segment.source, segment.destination);
        if segment.syn {
            if !segment.ack && !order.contains(&key) {
                order.push(key);
            }
            directions.entry(key).or_default().start = segment.seq.wrapping_add(1);
        } else if let Some(direction) = directions.get_mut(&key)
            && !segment.data.is_empty()
        {
            let offset = segment.seq.wrapping_sub(direction.start);
            let piece = direction.pieces.entry(offset).or_default();
            if piece.len() < segment.data.len() {
                *piece = segment.data.to_vec();
            }
        }
    }
    let mut stream = |key| directions.remove(&key).map(Direction::join).unwrap_or_default();
    order
        .into_iter()
        .map(|(a, b)| Connection { initiator: stream((a, b)), responder: stream((b, a)) })
        .collect()
}

impl Direction {
    /// The stream up to its first gap.
    fn join(self) -> Vec<u8> {
        let mut stream = Vec::new();
        for (offset, piece) in self.pieces {
            let Some(known) = stream.len().checked_sub(offset as usize) else { break };
            stream.extend_from_slice(piece.get(known..).unwrap_or_default());
        }
        stream
    }
}

struct Segment<'a> {
    source: Address,
    destination: Address,
    seq: u32,
    syn: bool,
    ack: bool,
    data: &'a [u8],
}

impl<'a> Segment<'a> {
    fn parse(frame: &'a [u8]) -> Option<Self> {
        let (ethernet, ip) = frame.split_at_checked(14)?;
        if ethernet[12..] != [0x08, 0x00] || *ip.first()? >> 4 != 4 || *ip.get(9)? != 6 {
            return None;
        }
        let ip_len = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        let tcp = ip.get(usize::from(ip[0] & 0x0f) * 4..ip_len)?;
        let header: &[u8; 20] = tcp.first_chunk()?;
        let port = |at| u16::from_be_bytes([header[at], header[at + 1]]);
        let address = |at: usize| [ip[at], ip[at + 1], ip[at + 2], ip[at + 3]];
        Some(Self {
            source: (address(12), port(0)),
            destination: (address(16), port(2)),
            seq: u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
            syn: header[13] & 0x02 != 0,
            ack: header[13] & 0x10 != 0,
            data: tcp.get(usize::from(header[12] >> 4) * 4..)?,
        })
    }
}

fn packets(file: &[u8]) -> impl Iterator<Item = &[u8]> {
    assert_eq!(file[..4], 0xa1b2_c3d4_u32.to_le_bytes(), "a little-endian pcap file");
    assert_eq!(file[20..24], 1_u32.to_le_bytes(), "of Ethernet frames");
    let mut rest = &file[24..];
    std::iter::from_fn(move || {
        let (record, after) = rest.split_at_checked(16)?;
        let len = u32::from_le_bytes([record[8], record[9], record[10], record[11]]);
        let (packet, after) = after.split_at_checked(len as usize)?;
        rest = after;
        Some(packet)
    })
}
