//! Body of the target for the receive path of `weft-engine`: a hostile peer of a live queue pair.
//!
//! Memory keys are random, so the input refers to them by index. The input is a list of records.
//! Each becomes one segment, in an FPDU unless `FLAG_RAW` is set.
//!
//! ```text
//! | RDMAP opcode, and FLAG_* , 1 | key, 1 | kind of address, 1 | offset, 2 | length, 2 | payload |
//! ```

use std::cell::UnsafeCell;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use weft_engine::Context;
use weft_engine::access::Access;
use weft_engine::cq::Cq;
use weft_engine::device::{Device, gid_of};
use weft_engine::hello::{Identity, ProcessId};
use weft_engine::mr::Mr;
use weft_engine::pd::Pd;
use weft_engine::qp::{
    AddressVector, AttrMask, Connection, GlobalRoute, Qp, QpAttr, QpCap, QpInit, QpState, QpType,
    pending,
};
use weft_engine::srq::{Srq, SrqAttr};
use weft_engine::wc::{Completion, Opcode as Completed, Status};
use weft_engine::wr::{Data, Operation, RecvRequest, SendFlags, SendRequest, Sge};
use weft_engine::xrc::{OpenMode, Xrcd};
use weft_sys::Region;
use weft_wire::ddp::Header;
use weft_wire::mpa::fpdu;
use weft_wire::mpa::negotiate::Negotiated;
use weft_wire::rdmap::{AtomicOp, AtomicRequest, AtomicResponse, ReadRequest};

pub(crate) const RECORD_LEN: usize = 7;
const FLAG_LAST: u8 = 0x10;
pub(crate) const FLAG_RAW: u8 = 0x20;
const FLAG_WRONG_NUMBER: u8 = 0x40;
const FLAG_WRONG_VERSION: u8 = 0x80;
/// Most bytes that are sent to the queue pair. A socket buffer holds more, so the write never
/// blocks.
const STREAM_LEN_MAX: usize = 64 << 10;
/// A queue pair that has not closed the stream after this time hangs.
const TIMEOUT: Duration = Duration::from_secs(20);
const MEMORY_LEN: usize = 1024;
const GUARD: u64 = 0xa5a5_a5a5_a5a5_a5a5;
const GUARD_WORDS: usize = 16;
pub(crate) const PEER: u32 = 1;
pub(crate) const PEER_ACK_STAG: u32 = 0x0acc_0001;

/// Whatever the peer sends, the process survives, the stream ends, and only memory that the peer
/// may write changes.
pub fn link(data: &[u8]) {
    link_of(QpType::Rc, data);
}

/// Runs the same test for a queue pair of another connected type that receives.
pub fn link_of(qp_type: QpType, data: &[u8]) {
    let context = context();
    let pd = Pd::new(context);
    let [open, private] = memories(&pd);
    let cq = Cq::new(context, 64, None).expect("a completion queue");
    let (qp, shared) = queue_pair(qp_type, &pd, &cq);
    let mut peer = connect(&qp, qp_type, None);
    match &shared {
        Some(srq) => receives(&open, |request| srq.post(request)),
        None => receives(&open, |request| qp.post_recv(request)),
    }
    if qp_type == QpType::Rc {
        post_work(&qp, &open);
    }

    // A message to an XRC target names its shared receive queue where others name a key.
    let number = shared.as_ref().and_then(|srq| srq.number()).unwrap_or(0x77);
    let keys = [open.mr.key(), private.mr.key(), qp.identity().ack_stag, number];
    let bytes = stream(data, keys, [&open, &private].map(Memory::addr));
    peer.write_all(&bytes).expect("the socket has room");
    peer.shutdown(Shutdown::Write).expect("a connected socket");
    drain(&mut peer, &cq);

    finish(&qp, &open, &private);
}

/// Returns memory with all access rights for the peer, and memory that the peer may only read.
pub(crate) fn memories(pd: &Arc<Pd>) -> [Memory; 2] {
    let everything =
        Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    [everything, Access::REMOTE_READ].map(|access| Memory::new(pd, access))
}

/// Destroys a queue pair, and checks that only bytes that the peer may write have changed.
pub(crate) fn finish(qp: &Qp, open: &Memory, private: &Memory) {
    qp.destroy();
    for memory in [open, private] {
        memory.mr.deregister().expect("no window is bound");
        assert!(memory.guards_are_whole(), "memory beside a region has changed");
    }
    assert!(private.is(0), "memory that the peer may not write has changed");
    while context().next_event().is_ok() {}
}

pub(crate) fn context() -> &'static Arc<Context> {
    static CONTEXT: OnceLock<Arc<Context>> = OnceLock::new();
    CONTEXT.get_or_init(|| {
        let device = Device {
            name: "weft_fuzz".into(),
            interface: "fuzz".into(),
            index: 1,
            loopback: true,
            addresses: vec![Ipv4Addr::LOCALHOST.into()],
        };
        let context = Context::open(&device).expect("a descriptor");
        // SAFETY: the context owns the descriptor and is never dropped.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(context.async_fd()) };
        rustix::io::ioctl_fionbio(fd, true).expect("a descriptor");
        context
    })
}

/// Creates a queue pair, and the shared receive queue that an XRC target needs.
pub(crate) fn queue_pair(
    qp_type: QpType,
    pd: &Arc<Pd>,
    cq: &Arc<Cq>,
) -> (Arc<Qp>, Option<Arc<Srq>>) {
    if qp_type == QpType::XrcRecv {
        let mode = OpenMode { create: true, exclusive: false };
        let domain = Xrcd::open(context(), None, mode).expect("a domain");
        let attr = SrqAttr { max_wr: 4, max_sge: 1, srq_limit: 0 };
        let srq = Srq::new_xrc(pd, attr, &domain, cq).expect("a shared queue");
        return (Qp::new_target(context(), &domain).expect("a queue pair"), Some(srq));
    }
    let cap = QpCap {
        max_send_wr: 4,
        max_recv_wr: 4,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let (send_cq, recv_cq) = (Arc::clone(cq), Arc::clone(cq));
    let init = QpInit { qp_type, send_cq, recv_cq, srq: None, xrcd: None, cap, sq_sig_all: true };
    (Qp::new(pd, init).expect("a queue pair"), None)
}

/// Moves a queue pair to RTS and returns the peer's end of its connection. A peer that names its
/// process is the end that opened the connection.
pub(crate) fn connect(qp: &Qp, qp_type: QpType, process: Option<ProcessId>) -> UnixStream {
    let gid = gid_of(Ipv4Addr::LOCALHOST.into());
    let global = Some(GlobalRoute { dgid: gid, ..GlobalRoute::default() });
    let attr = QpAttr {
        path_mtu: 5,
        port_num: 1,
        dest_qp_num: PEER,
        qp_access_flags: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        ah_attr: AddressVector { global, port_num: 1, ..AddressVector::default() },
        ..QpAttr::default()
    };
    let (near, remote) = UnixStream::pair().expect("sockets");
    near.set_nonblocking(true).expect("a socket option");
    let negotiated = Negotiated {
        revision: 2,
        crc: false,
        tx_markers: false,
        rx_markers: false,
        ird: 4,
        ord: 4,
        rtr: None,
        peer_private_data: Vec::new(),
    };
    let connection = Connection {
        socket: near.into(),
        read_from: None,
        local: None,
        peer: process.map(|_| (Ipv4Addr::LOCALHOST, 1).into()),
        initiator: process.is_none(),
        negotiated,
        peer_identity: Some(Identity {
            qp_num: PEER,
            ack_stag: PEER_ACK_STAG,
            gid,
            process: process.unwrap_or_default(),
        }),
        early: Vec::new(),
    };
    let to = |qp_state, mask: AttrMask| {
        qp.modify(&QpAttr { qp_state, ..attr }, AttrMask::STATE | mask).expect("a transition");
    };
    to(QpState::Init, AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS);
    // Keeps the queue pair from resolving its peer itself.
    pending::expect((gid, PEER));
    let path = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let served = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    let retries = AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
    // The transition ignores attributes that an XRC target does not need.
    let (at_rtr, at_rts) = match qp_type {
        QpType::Uc => (path, AttrMask::SQ_PSN),
        _ => (path | served, retries | AttrMask::TIMEOUT | AttrMask::SQ_PSN),
    };
    to(QpState::Rtr, at_rtr);
    pending::unexpect((gid, PEER));
    to(QpState::Rts, at_rts);
    qp.attach(connection).expect("the first connection");
    remote
}

pub(crate) fn receives(
    memory: &Memory,
    post: impl Fn(&RecvRequest<'_>) -> weft_engine::Result<()>,
) {
    let sges = [Sge { addr: memory.addr(), length: 64, lkey: memory.mr.key() }];
    for wr_id in 0..3 {
        post(&RecvRequest { wr_id, sges: &sges }).expect("room");
    }
}

/// Posts a Send, which the peer can acknowledge, and a Read and an atomic, which it can answer.
pub(crate) fn post_work(qp: &Qp, memory: &Memory) {
    let sges = [Sge { addr: memory.addr(), length: 64, lkey: memory.mr.key() }];
    let word = [Sge { length: 8, ..sges[0] }];
    let (remote_addr, rkey) = (0x1000, 0x99);
    let mut poster = qp.start_post();
    for (operation, sges) in [
        (Operation::Send { imm: None, invalidate: None }, &sges),
        (Operation::Read { remote_addr, rkey }, &sges),
        (Operation::FetchAdd { remote_addr, rkey, add: 1 }, &word),
    ] {
        let (flags, data) = (SendFlags::empty(), Data::Gather(sges));
        poster.push(&SendRequest { wr_id: 9, operation, flags, data }).expect("room");
    }
}

/// Returns the bytes that the records describe.
fn stream(data: &[u8], keys: [u32; 4], addrs: [u64; 2]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut numbers = [1_u32; 4];
    let mut rest = data;
    while let Some((record, behind)) = rest.split_first_chunk::<RECORD_LEN>() {
        let [kind, key, address, at @ .., len_low, len_high] = *record;
        let len = usize::from(u16::from_le_bytes([len_low, len_high]) & 0xfff).min(behind.len());
        let (payload, next) = behind.split_at(len);
        rest = next;
        let at = u64::from(u16::from_le_bytes(at));
        let to = match address % 4 {
            0 => addrs[usize::from(key % 2)].wrapping_add(at),
            1 => at,
            2 => at << 32,
            _ => u64::MAX - at,
        };
        let key = keys[usize::from(key % 4)];
        let segment = segment(kind, key, to, payload, &mut numbers);
        if kind & FLAG_RAW != 0 {
            bytes.extend_from_slice(payload);
        } else {
            let start = bytes.len();
            bytes.resize(start + fpdu::total_len(segment.len()), 0);
            let frame = &mut bytes[start..];
            frame[fpdu::HEADER_LEN..fpdu::HEADER_LEN + segment.len()].copy_from_slice(&segment);
            fpdu::seal(frame, segment.len(), false);
        }
        if bytes.len() > STREAM_LEN_MAX {
            bytes.truncate(STREAM_LEN_MAX);
            break;
        }
    }
    bytes
}

pub(crate) fn segment(
    kind: u8,
    key: u32,
    to: u64,
    payload: &[u8],
    numbers: &mut [u32; 4],
) -> Vec<u8> {
    const READ_REQUEST: u8 = 1;
    const ATOMIC_REQUEST: u8 = 10;
    const ATOMIC_RESPONSE: u8 = 11;
    let (opcode, last) = (kind & 0xf, kind & FLAG_LAST != 0);
    let ulp = opcode | if kind & FLAG_WRONG_VERSION != 0 { 0x80 } else { 0x40 };
    let mut structured = Vec::new();
    match opcode {
        READ_REQUEST => {
            let size = payload.first().map_or(8, |&size| u32::from(size) * 8);
            let request =
                ReadRequest { sink_stag: 5, sink_to: 0, size, source_stag: key, source_to: to };
            structured.resize(ReadRequest::LEN, 0);
            request.emit(&mut structured);
        }
        ATOMIC_REQUEST => {
            let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
            let request = AtomicRequest { op, request_id: 5, remote_stag: key, remote_to: to };
            structured.resize(AtomicRequest::LEN, 0);
            request.emit(&mut structured);
        }
        ATOMIC_RESPONSE => {
            let request_id = payload.first().map_or(1, |&id| u32::from(id));
            structured.resize(AtomicResponse::LEN, 0);
            AtomicResponse { request_id, original_value: to }.emit(&mut structured);
        }
        _ => structured.extend_from_slice(payload),
    }
    let header = if matches!(opcode, 0 | 2) {
        Header::Tagged { last, ulp, stag: key, to }
    } else {
        let qn = match opcode {
            READ_REQUEST | ATOMIC_REQUEST => 1,
            7 => 2,
            ATOMIC_RESPONSE => 3,
            _ => 0,
        };
        let number = &mut numbers[qn as usize];
        let msn = number.wrapping_add(u32::from(kind & FLAG_WRONG_NUMBER != 0));
        *number = number.wrapping_add(u32::from(last));
        Header::Untagged { last, ulp, ulp_word: key, qn, msn, mo: 0 }
    };
    let mut bytes = vec![0; header.len()];
    header.emit(&mut bytes);
    bytes.extend_from_slice(&structured);
    bytes
}

/// Polls until the queue pair closes the stream.
pub(crate) fn drain(peer: &mut UnixStream, cq: &Arc<Cq>) {
    peer.set_nonblocking(true).expect("a socket option");
    let deadline = Instant::now() + TIMEOUT;
    let mut space = [Completion::new(0, Status::Success, Completed::Send, 0); 8];
    let mut bytes = [0; 4096];
    loop {
        cq.poll(&mut space);
        match peer.read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            Err(error) => panic!("{error}"),
        }
        assert!(Instant::now() < deadline, "the queue pair does not close the stream");
    }
}

/// Registered, zeroed memory between two guards.
pub(crate) struct Memory {
    words: Box<[UnsafeCell<u64>]>,
    pub(crate) mr: Arc<Mr>,
}

impl Memory {
    pub(crate) fn new(pd: &Arc<Pd>, access: Access) -> Self {
        let guard = [GUARD; GUARD_WORDS];
        let words = [&guard[..], &[0; MEMORY_LEN / 8], &guard].concat();
        let words: Box<[_]> = words.into_iter().map(UnsafeCell::new).collect();
        let first = words[GUARD_WORDS].get() as usize;
        // SAFETY: the words outlive the deregistration, and they are `UnsafeCell`s, which may
        // change behind shared references.
        let region = unsafe { Region::new(first, MEMORY_LEN) }.expect("no wrap");
        let mr = Mr::register(pd, region, first as u64, access).expect("a key");
        Self { words, mr }
    }

    pub(crate) fn addr(&self) -> u64 {
        self.words[GUARD_WORDS].get() as u64
    }

    fn word(&self, at: usize) -> u64 {
        // SAFETY: the pointer is valid, and the memory is deregistered, so nothing writes to it.
        unsafe { *self.words[at].get() }
    }

    pub(crate) fn guards_are_whole(&self) -> bool {
        let behind = GUARD_WORDS + MEMORY_LEN / 8;
        (0..GUARD_WORDS).chain(behind..self.words.len()).all(|at| self.word(at) == GUARD)
    }

    pub(crate) fn is(&self, value: u64) -> bool {
        (GUARD_WORDS..GUARD_WORDS + MEMORY_LEN / 8).all(|at| self.word(at) == value)
    }
}
