//! Body of the target for the shared-memory rings: a hostile peer on the same host.
//!
//! The input is a list of records in the format of [`crate::engine`]. Each becomes one ring slot.
//! The upper half of the byte "kind of address" selects more:
//!
//! ```text
//! bits 4 and 5: where the payload is: in the slot, in bulk data, in the peer's memory; or (3) the
//!               payload is the slot itself: four bytes of info, and the body
//! bit 6:        the peer's count of placed messages is the offset, in the slot and in the header
//! bit 7:        the peer's count of consumed slots is the offset
//! ```

use std::fmt::Write as _;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, sendmsg, socket_with,
};
use weft_engine::cq::Cq;
use weft_engine::hello::ProcessId;
use weft_engine::pd::Pd;
use weft_engine::qp::{Qp, QpType};
use weft_engine::wc::{Completion, Opcode, Status};
use weft_sys::{OwnPresence, SLOT_BODY_LEN, SLOT_LEN, SharedMemory};
use weft_wire::ddp::{TAGGED_LEN, UNTAGGED_LEN};

use crate::engine::{self, FLAG_RAW, Memory, PEER, PEER_ACK_STAG, RECORD_LEN};

const PROCESS: ProcessId = [7; 16];

/// Constants of a segment's layout.
const SLOTS: usize = 128;
const PLACED_AT: usize = 4;
const PULLS_AT: usize = 8;
const SLOTS_AT: usize = 1_024;
const BULK_LEN: usize = 256 << 10;
const BULK_AT: usize = SLOTS_AT + SLOTS * SLOT_LEN;
const DIRECTION_LEN: usize = (BULK_AT + BULK_LEN).next_multiple_of(4_096);
/// The direction that the peer fills comes first.
const TX: usize = 0;
const RX: usize = DIRECTION_LEN;

const BULK: u32 = 1;
const PULL: u32 = 2;

/// Memory of the peer from which the victim can fetch data.
static SOURCE: [u8; 4_096] = [0x5c; 4_096];

/// Whatever the rings contain, the process survives, the connection ends, and only memory that the
/// peer may write changes.
pub fn shared(data: &[u8]) {
    let context = engine::context();
    let pd = Pd::new(context);
    let [open, private] = engine::memories(&pd);
    let cq = Cq::new(context, 64, None).expect("a completion queue");
    let (qp, _) = engine::queue_pair(QpType::Rc, &pd, &cq);
    let mut stream = engine::connect(&qp, QpType::Rc, Some(PROCESS));
    engine::receives(&open, |request| qp.post_recv(request));
    let (memory, session) = share(&qp, &cq);
    engine::post_work(&qp, &open);

    let keys = [open.mr.key(), private.mr.key(), qp.identity().ack_stag, 0x77];
    fill(&memory, data, keys, [&open, &private].map(Memory::addr));
    let _ = rustix::net::send(&session, &[3], SendFlags::NOSIGNAL);
    stream.shutdown(Shutdown::Write).expect("a connected socket");
    engine::drain(&mut stream, &cq);

    engine::finish(&qp, &open, &private);
}

/// Offers a segment, and waits until the queue pair uses it.
fn share(qp: &Arc<Qp>, cq: &Arc<Cq>) -> (SharedMemory, OwnedFd) {
    let (memory, segment) = SharedMemory::create(2 * DIRECTION_LEN).expect("memory");
    memory.word32(RX + PULLS_AT).store(1, Ordering::Relaxed);
    let presence = OwnPresence::new().expect("a page");
    let mut offer = vec![1, 2];
    for word in [qp.number(), PEER, PEER_ACK_STAG] {
        offer.extend_from_slice(&word.to_ne_bytes());
    }
    offer.extend_from_slice(&PROCESS);
    offer.extend_from_slice(&(&raw const PROBE as u64).to_ne_bytes());
    let session = knock(&qp.identity().process);
    send(&session, &offer, &[segment.as_fd(), presence.fd()]);
    let mut space = [Completion::new(0, Status::Success, Opcode::Send, 0)];
    while qp.transport() != "shm" {
        cq.poll(&mut space);
    }
    (memory, session)
}

/// The address in the peer's memory where the victim reads the peer's process identifier.
static PROBE: ProcessId = PROCESS;

fn knock(process: &ProcessId) -> OwnedFd {
    let name = process.iter().fold(String::from("weft-shm."), |mut name, byte| {
        let _ = write!(name, "{byte:02x}");
        name
    });
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a short name");
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let socket = socket.expect("a socket");
    connect(&socket, &address).expect("the victim listens");
    socket
}

fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "room for descriptors");
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    assert_eq!(sent, Ok(bytes.len()));
}

/// Fills slots as the records describe, until the records or the slots run out.
fn fill(memory: &SharedMemory, data: &[u8], keys: [u32; 4], addrs: [u64; 2]) {
    let mut numbers = [1_u32; 4];
    let mut rest = data;
    for slot in 0..SLOTS {
        let Some((record, behind)) = rest.split_first_chunk::<RECORD_LEN>() else { break };
        let [kind, key, address, at @ .., len_low, len_high] = *record;
        let len = usize::from(u16::from_le_bytes([len_low, len_high]) & 0xfff).min(behind.len());
        let (payload, next) = behind.split_at(len);
        rest = next;
        let at = u16::from_le_bytes(at);
        let to = match address % 4 {
            0 => addrs[usize::from(key % 2)].wrapping_add(at.into()),
            1 => at.into(),
            2 => u64::from(at) << 32,
            _ => u64::MAX - u64::from(at),
        };
        let key = keys[usize::from(key % 4)];
        let segment = engine::segment(kind & !FLAG_RAW, key, to, payload, &mut numbers);
        let placed = if address & 0x40 != 0 { u32::from(at) } else { 0 };
        let (info, body) = match address >> 4 & 3 {
            0 => body(0, placed, &segment),
            3 => raw(payload),
            where_ => {
                let header_len = if segment[0] & 0x80 == 0 { UNTAGGED_LEN } else { TAGGED_LEN };
                let (header, bytes) = segment.split_at(header_len);
                let kind = u32::from(where_);
                let place = if kind == BULK { bulk(memory, at, bytes) } else { pieces(bytes) };
                debug_assert!(kind == BULK || kind == PULL);
                body(kind, placed, &[header, &place].concat())
            }
        };
        if address & 0x40 != 0 {
            memory.word32(RX + PLACED_AT).store(at.into(), Ordering::Release);
        }
        if address & 0x80 != 0 {
            memory.word32(RX).store(at.into(), Ordering::Release);
        }
        let place = TX + SLOTS_AT + slot * SLOT_LEN;
        memory.copy_in(place + 8, &body);
        let tag = (slot as u64 + 1) << 32 | u64::from(info);
        memory.word64(place).store(tag, Ordering::Release);
    }
}

fn body(kind: u32, placed: u32, rest: &[u8]) -> (u32, Vec<u8>) {
    let mut body = placed.to_ne_bytes().to_vec();
    body.extend_from_slice(rest);
    body.truncate(SLOT_BODY_LEN);
    (kind << 8 | body.len() as u32, body)
}

fn raw(payload: &[u8]) -> (u32, Vec<u8>) {
    let (info, body) = payload.split_at(payload.len().min(4));
    let mut word = [0; 4];
    word[..info.len()].copy_from_slice(info);
    (u32::from_le_bytes(word), body[..body.len().min(SLOT_BODY_LEN)].to_vec())
}

/// Puts the payload into bulk data if it fits. Returns the slot's reference to it in either case.
fn bulk(memory: &SharedMemory, at: u16, payload: &[u8]) -> Vec<u8> {
    let at = usize::from(at) * 5;
    if at + payload.len() <= BULK_LEN {
        memory.copy_in(TX + BULK_AT + at, payload);
    }
    [(at as u32).to_ne_bytes(), (payload.len() as u32).to_ne_bytes()].concat()
}

/// Returns a list of pieces of the peer's memory. Three bytes of payload describe each: whether the
/// piece exists, and its length.
fn pieces(payload: &[u8]) -> Vec<u8> {
    let mut list = Vec::new();
    for piece in payload.chunks_exact(3) {
        let len = u32::from(u16::from_le_bytes([piece[1], piece[2]]) & 0xfff);
        let addr = match piece[0] % 4 {
            0 | 1 => SOURCE.as_ptr() as u64,
            2 => u64::from(piece[0]),
            _ => u64::MAX - u64::from(piece[0]),
        };
        list.extend_from_slice(&addr.to_ne_bytes());
        list.extend_from_slice(&len.to_ne_bytes());
    }
    list
}
