//! Body of the target for reliable datagrams: a hostile peer of a live endpoint.
//!
//! Epochs and keys are random, so the input refers to them indirectly. The input is a list of
//! records. Each becomes one datagram of a peer that has completed its introduction.
//!
//! ```text
//! | kind (low 2 bits) and FLAG_*, 1 | FIELD_*, 1 | sequence ahead, 1 | RDMAP opcode and LAST, 1 |
//! | key, 1 | offset, 2 | length of payload, 2 | payload |
//! ```

use std::cell::UnsafeCell;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use weft_engine::Context;
use weft_engine::access::Access;
use weft_engine::device::Device;
use weft_engine::mr::Mr;
use weft_engine::pd::Pd;
use weft_engine::rd::{Endpoint, Event, Options, Request, Status};
use weft_sys::Region;
use weft_wire::ddp::Header as Ddp;
use weft_wire::rd::{Acknowledgement, HEADER_LEN, Header, Kind, RdEnd, Reason, parse, seal};
use weft_wire::rdmap::{AtomicOp, AtomicRequest, Opcode, ReadRequest};

const RECORD_LEN: usize = 9;
const FLAG_SYN: u8 = 0x04;
const FLAG_PROBE: u8 = 0x08;
const FLAG_LOST: u8 = 0x10;
const FLAG_ACK: u8 = 0x20;
const FIELD_EPOCH: u8 = 0x01;
const FIELD_STREAM: u8 = 0x02;
const FIELD_TO_EPOCH: u8 = 0x04;
const FIELD_TO_STREAM: u8 = 0x08;
const FIELD_ACK: u8 = 0x10;
const FIELD_WINDOW: u8 = 0x20;
const LAST: u8 = 0x10;
/// Most records of one input. A socket buffer holds more.
const RECORDS_MAX: usize = 64;
const PAYLOAD_MAX: usize = 1_000;
/// An endpoint that has not processed all datagrams after this time hangs.
const TIMEOUT: Duration = Duration::from_secs(20);
const MEMORY_LEN: usize = 1_024;
const BASE: u64 = 0x1000;
const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

struct Stage {
    victim: Endpoint,
    honest: Endpoint,
    open: Memory,
    private: Memory,
}

/// The hostile peer's knowledge of the connection: both ends' identifiers and the next sequence
/// number.
#[derive(Clone, Copy)]
struct Known {
    own: RdEnd,
    victim: RdEnd,
    next_seq: u32,
}

/// Whatever the peer sends, the endpoint goes on serving others, and only memory that the peer may
/// write changes.
pub fn rd(data: &[u8]) {
    let stage = stage();
    let socket = UdpSocket::bind(ANY_PORT).expect("a socket");
    socket.connect(stage.victim.address().socket).expect("an address");
    socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    let number = u16::from(data.first().copied().unwrap_or(0));
    let Some(known) = introduce(&socket, number) else { panic!("the endpoint does not answer") };
    let mut rest = data;
    for _ in 0..RECORDS_MAX {
        let Some((record, behind)) = rest.split_first_chunk::<RECORD_LEN>() else { break };
        let len = usize::from(u16::from_be_bytes([record[7], record[8]])) % PAYLOAD_MAX;
        let (payload, behind) = behind.split_at(len.min(behind.len()));
        rest = behind;
        // A full socket drops the datagram.
        let _ = socket.send(&datagram(record, payload, known, stage));
    }
    honest_exchange(stage);
    assert!(stage.private.is(0), "memory that the peer may not write has changed");
}

fn stage() -> &'static Stage {
    static STAGE: OnceLock<Stage> = OnceLock::new();
    STAGE.get_or_init(|| {
        let device = Device {
            name: "weft_fuzz".into(),
            interface: "fuzz".into(),
            index: 1,
            loopback: true,
            addresses: vec![Ipv4Addr::LOCALHOST.into()],
        };
        let pd = Pd::new(&Context::open(&device).expect("a descriptor"));
        let bind =
            |number| Endpoint::bind(&pd, ANY_PORT, number, Options::default()).expect("a port");
        let everything = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        Stage {
            victim: bind(1),
            honest: bind(2),
            open: Memory::new(&pd, everything),
            private: Memory::new(&pd, Access::REMOTE_READ),
        }
    })
}

/// Sends a first message until the victim accepts it. Returns `None` if it never does.
fn introduce(socket: &UdpSocket, number: u16) -> Option<Known> {
    static EPOCH: AtomicU32 = AtomicU32::new(1);
    let own = RdEnd { endpoint: number, epoch: EPOCH.fetch_add(1, Ordering::Relaxed), stream: 1 };
    let mut victim = RdEnd { endpoint: 1, epoch: 0, stream: 0 };
    let (mut echo, mut buffer) = (0, [0; 2_048]);
    for _ in 0..100 {
        let header = Header {
            kind: Kind::Data,
            syn: true,
            probe: false,
            lost: false,
            source: own,
            destination: victim,
            window: 1024,
            sequence: 1,
            ack: None,
            timestamp: 1,
            echo,
        };
        let ddp = Ddp::Untagged {
            last: true,
            ulp: Opcode::Send.control(),
            ulp_word: 0,
            qn: 0,
            msn: 1,
            mo: 0,
        };
        let mut bytes = vec![0; HEADER_LEN + ddp.len()];
        header.emit(&mut bytes);
        ddp.emit(&mut bytes[HEADER_LEN..]);
        seal(&mut bytes);
        socket.send(&bytes).ok()?;
        let Ok(len) = socket.recv(&mut buffer) else { continue };
        let Ok((answer, _)) = parse(&buffer[..len]) else { continue };
        if answer.destination.epoch != own.epoch {
            continue;
        }
        (victim.epoch, victim.stream) = (answer.source.epoch, answer.source.stream);
        echo = answer.timestamp;
        if answer.kind != Kind::Challenge {
            return Some(Known { own, victim, next_seq: 2 });
        }
    }
    None
}

fn datagram(record: &[u8; RECORD_LEN], payload: &[u8], known: Known, stage: &Stage) -> Vec<u8> {
    let [kind, field, ahead, opcode, key, offset @ ..] = *record;
    let offset = u64::from(u16::from_be_bytes([offset[0], offset[1]]));
    let wrong = |flag| u32::from(field & flag != 0);
    let Known { own, victim, next_seq } = known;
    let header = Header {
        kind: match kind & 3 {
            0 | 1 => Kind::Data,
            2 => Kind::Ack,
            _ if field & FIELD_ACK != 0 => Kind::Challenge,
            _ => Kind::Reset(Reason::Bounds),
        },
        syn: kind & FLAG_SYN != 0,
        probe: kind & FLAG_PROBE != 0,
        lost: kind & FLAG_LOST != 0,
        source: RdEnd {
            epoch: own.epoch + wrong(FIELD_EPOCH),
            stream: own.stream + wrong(FIELD_STREAM),
            ..own
        },
        destination: RdEnd {
            epoch: victim.epoch * (1 - wrong(FIELD_TO_EPOCH)),
            stream: victim.stream + wrong(FIELD_TO_STREAM),
            ..victim
        },
        window: if field & FIELD_WINDOW != 0 { 0 } else { 1024 },
        sequence: next_seq.wrapping_add(ahead.into()),
        ack: (kind & FLAG_ACK != 0)
            .then_some(Acknowledgement { next: 1 + wrong(FIELD_ACK), selective: offset }),
        timestamp: 1,
        echo: u32::from(ahead),
    };
    let mut bytes = vec![0; HEADER_LEN];
    header.emit(&mut bytes);
    match header.kind {
        Kind::Data => segment(opcode, key, offset, payload, stage, &mut bytes),
        Kind::Ack => bytes.extend_from_slice(&payload[..payload.len() / 8 * 8]),
        Kind::Challenge | Kind::Reset(_) => {}
    }
    seal(&mut bytes);
    bytes
}

fn segment(code: u8, key: u8, offset: u64, payload: &[u8], stage: &Stage, bytes: &mut Vec<u8>) {
    let keys = [stage.open.mr.key(), stage.private.mr.key(), 0x77];
    let key = keys[usize::from(key) % keys.len()];
    let last = code & LAST != 0;
    let Ok(opcode) = Opcode::parse(0x40 | code & 0x0f) else {
        return bytes.extend_from_slice(payload);
    };
    let ddp = match opcode.queue() {
        None => Ddp::Tagged { last, ulp: opcode.control(), stag: key, to: BASE + offset },
        Some(qn) => Ddp::Untagged {
            last,
            ulp: opcode.control(),
            ulp_word: payload.len() as u32,
            qn,
            msn: if opcode == Opcode::Send { 2 } else { 1 },
            mo: 0,
        },
    };
    let start = bytes.len();
    bytes.resize(start + ddp.len(), 0);
    ddp.emit(&mut bytes[start..]);
    if opcode == Opcode::AtomicRequest {
        let start = bytes.len();
        bytes.resize(start + AtomicRequest::LEN, 0);
        let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
        let (remote_stag, remote_to) = (key, BASE + offset);
        let request = AtomicRequest { op, request_id: 1, remote_stag, remote_to };
        request.emit(&mut bytes[start..]);
    } else if opcode == Opcode::ReadRequest {
        let start = bytes.len();
        bytes.resize(start + ReadRequest::LEN, 0);
        let source_to = BASE + offset;
        let size = payload.len() as u32;
        let request = ReadRequest { sink_stag: 0, sink_to: 0, size, source_stag: key, source_to };
        request.emit(&mut bytes[start..]);
    } else {
        bytes.extend_from_slice(payload);
    }
}

/// Checks that a message between two honest endpoints gets through.
fn honest_exchange(stage: &Stage) {
    let Stage { victim, honest, .. } = stage;
    let to = victim.address();
    honest.post(to, 7, Request::Send(b"honest".as_slice().into())).expect("room");
    loop {
        match victim.wait(Some(TIMEOUT)).expect("no signal").expect("an event in time") {
            Event::Received { from, bytes } if from == honest.address() => {
                break assert_eq!(bytes, b"honest");
            }
            _ => {}
        }
    }
    let end = honest.wait(Some(TIMEOUT)).expect("no signal");
    assert_eq!(end, Some(Event::Completed { id: 7, status: Status::Success }));
}

/// Registered memory that is never freed.
struct Memory {
    cells: &'static [Cell],
    mr: Arc<Mr>,
}

#[repr(transparent)]
struct Cell(UnsafeCell<u8>);

// SAFETY: the bytes are read one by one with volatile reads, and the test accepts any value.
unsafe impl Sync for Cell {}

impl Memory {
    fn new(pd: &Arc<Pd>, access: Access) -> Self {
        let cells: Vec<Cell> = (0..MEMORY_LEN).map(|_| Cell(UnsafeCell::new(0))).collect();
        let cells: &'static [Cell] = cells.leak();
        let first = cells.as_ptr() as usize;
        // SAFETY: the cells are leaked, so they live forever, and they are `UnsafeCell`s, which may
        // change behind shared references.
        let region = unsafe { Region::new(first, cells.len()) }.expect("no wrap");
        let mr = Mr::register(pd, region, BASE, access).expect("room for a key");
        Self { cells, mr }
    }

    fn is(&self, value: u8) -> bool {
        // SAFETY: each cell is a live byte of this memory.
        self.cells.iter().all(|cell| unsafe { cell.0.get().read_volatile() } == value)
    }
}
