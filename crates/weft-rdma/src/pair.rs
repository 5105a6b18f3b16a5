//! Queue pairs for any number of threads, with all operations, whose owner drives them.
//!
//! # Safety
//! A [`Pair`] owns its queue pair, which is used and destroyed under its lock, and before the
//! queue, the identifier and the device. A device reads and writes only registered memory, and only
//! as long as that is registered: requests name it by address and key, and a wrong key fails the
//! request.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_abi::{
    IBV_QPT_RC, IBV_SEND_SIGNALED, IBV_WC_SUCCESS, IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_SEND,
    RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_DISCONNECTED,
    RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_UNREACHABLE, ibv_qp,
    ibv_qp_cap, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr,
    ibv_send_wr__bindgen_ty_2__bindgen_ty_1, ibv_send_wr__bindgen_ty_2__bindgen_ty_2, ibv_sge,
    ibv_wr_opcode, rdma_cm_id, rdma_conn_param,
};
use weft_sys::Lock;

use crate::connection::{Remote, result};
use crate::device::Device;
use crate::id::{Event, Id, check};
use crate::limits::{BATCH, READS_ANY, RETRIES};
use crate::queue::Queue;
use crate::region::{Access, Region};

/// The reason of a rejection by the peer's program (InfiniBand Architecture vol. 1, section
/// 12.6.7.2).
const CONSUMER_DEFINED: i32 = 28;
/// Set in the identifiers of receives, and in no others.
const RECEIVE: u64 = 1 << 63;

/// How much a pair has room for.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Requests to send, to write, to read.
    pub sends: u32,
    /// Receives.
    pub receives: u32,
    /// Bytes of a request by value.
    pub value: usize,
}

/// Registered memory of this process.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The address of the first byte.
    pub address: u64,
    /// The number of bytes.
    pub len: u32,
    /// The local key.
    pub key: u32,
}

/// What a request does.
#[derive(Clone, Copy, Debug)]
pub enum Verb {
    /// It sends a message.
    Send,
    /// It writes to the peer's memory.
    Write(Remote),
    /// It reads the peer's memory.
    Read(Remote),
    /// It adds to eight bytes of the peer.
    FetchAdd(Remote, u64),
    /// It replaces eight bytes of the peer that have the first value by the second.
    CompareSwap(Remote, u64, u64),
}

/// The bytes of a request.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Registered memory, at most two pieces.
    Pieces(&'a [Piece]),
    /// Bytes that are copied: at most [`Room::value`].
    Value(&'a [&'a [u8]]),
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Returned with its completion. The highest bit is free for the caller.
    pub id: u64,
    /// What it does.
    pub verb: Verb,
    /// Its bytes.
    pub data: Data<'a>,
    /// Whether its success is to be reported. A failure always is.
    pub is_reported: bool,
}

/// A request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The number of the request.
    pub id: u64,
    /// The length of a received message.
    pub len: u32,
    /// How it ended, as in `ibv_poll_cq(3)`: 0 is success.
    pub status: u32,
}

/// An event of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The connection is made. The bytes are the peer's private data, perhaps with zeros behind it.
    Established(Vec<u8>),
    /// The peer has refused.
    Refused {
        /// Whether its program has.
        by_program: bool,
        /// Its private data, perhaps with zeros behind it.
        private_data: Vec<u8>,
    },
    /// The connection cannot be made; the number is one of `errno(3)`.
    Failed(i32),
    /// The connection has ended.
    Disconnected,
    /// Something that changes nothing.
    Other,
}

/// A reliable queue pair. Any number of threads may use it.
#[derive(Debug)]
pub struct Pair {
    posting: Lock<Posting>,
    queue: Queue,
    /// For the events; `id_pointer` is the same.
    id: Lock<Id>,
    id_pointer: IdPointer,
    events_fd: RawFd,
    device: Arc<Device>,
}

/// The library's identifier, for functions that any thread may call.
#[derive(Clone, Copy, Debug)]
struct IdPointer(NonNull<rdma_cm_id>);

// SAFETY: an identifier belongs to the process, not to a thread.
unsafe impl Send for IdPointer {}
// SAFETY: all functions that take the identifier may be called by several threads at once.
unsafe impl Sync for IdPointer {}

/// What posting changes.
#[derive(Debug)]
struct Posting {
    /// `None` when the pair has ended.
    qp: Option<QpPointer>,
    /// The requests under way, by the number under which the device has them.
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// A place for each slot, for bytes by value.
    values: Region,
    stride: usize,
}

#[derive(Debug)]
struct QpPointer(NonNull<ibv_qp>);

// SAFETY: a queue pair belongs to the process, not to a thread.
unsafe impl Send for QpPointer {}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    id: u64,
    is_reported: bool,
}

impl Pair {
    /// Prepares a connection from a device to a listener. It waits until the address and the route
    /// are found. Post the first receives, then call [`Pair::connect`].
    ///
    /// # Errors
    /// If the device does not lead to that address, or has no resources.
    pub fn to(
        device: &Arc<Device>,
        listener: SocketAddr,
        room: &Room,
        time: Duration,
    ) -> io::Result<Self> {
        let mut id = Id::new(device.functions())?;
        let end = Instant::now() + time;
        id.resolve(None, listener, end)?;
        id.resolve_route(end)?;
        Self::on(device, id, room)
    }

    /// Creates the queue pair of an identifier.
    pub(crate) fn on(device: &Arc<Device>, id: Id, room: &Room) -> io::Result<Self> {
        if !device.has(&id) {
            let text = "the connection is on another RDMA device";
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, text));
        }
        let sends = room.sends.max(1);
        let queue = Queue::new(device, sends + room.receives)?;
        let stride = room.value.next_multiple_of(64);
        let values = Region::new(device, stride * sends as usize, Access::Local)?;
        let cap = ibv_qp_cap {
            max_send_wr: sends,
            max_recv_wr: room.receives.max(1),
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut attributes = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: queue.as_ptr(),
            recv_cq: queue.as_ptr(),
            srq: ptr::null_mut(),
            cap,
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: `id`, `device` and `queue` own the identifier, the protection domain and the
        // completion queue. The identifier is on that device, as checked above.
        let created = unsafe {
            (device.functions().rdma_create_qp)(id.as_ptr(), device.pd(), &raw mut attributes)
        };
        check(created)?;
        // SAFETY: `id` owns the identifier, and only `end` changes this field from now on.
        let qp = unsafe { (*id.as_ptr()).qp };
        let qp = NonNull::new(qp).ok_or(io::ErrorKind::Other)?;
        let id_pointer = IdPointer(NonNull::new(id.as_ptr()).ok_or(io::ErrorKind::Other)?);
        let slots = vec![Slot::default(); sends as usize];
        let free = (0..sends).collect();
        let posting = Posting { qp: Some(QpPointer(qp)), slots, free, values, stride };
        let (events_fd, device) = (id.fd().as_raw_fd(), Arc::clone(device));
        let (posting, id) = (Lock::new(posting), Lock::new(id));
        Ok(Self { posting, queue, id, id_pointer, events_fd, device })
    }

    /// Begins to connect, with private data for the listener.
    ///
    /// # Errors
    /// If the private data is longer than the transport carries, or there is no way to connect.
    pub fn connect(&self, private_data: &[u8]) -> io::Result<()> {
        let mut param = parameters(private_data);
        let functions = self.device.functions();
        // SAFETY: `self` owns the identifier. The parameters and the private data are borrowed
        // during the call.
        check(unsafe { (functions.rdma_connect)(self.id_pointer.0.as_ptr(), &raw mut param) })
    }

    /// Accepts the connection of a request, with private data for the peer.
    ///
    /// # Errors
    /// If the private data is longer than the transport carries, or the peer has gone.
    pub fn accept(&self, private_data: &[u8]) -> io::Result<()> {
        let mut param = parameters(private_data);
        let functions = self.device.functions();
        // SAFETY: `self` owns the identifier, which waits for an answer. The parameters and the
        // private data are borrowed during the call.
        check(unsafe { (functions.rdma_accept)(self.id_pointer.0.as_ptr(), &raw mut param) })
    }

    /// Readable when there is an event of the connection.
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the identifier's channel, which `self.id` owns
        // until `self` is dropped.
        unsafe { BorrowedFd::borrow_raw(self.events_fd) }
    }

    /// The next event of the connection, if there is one.
    ///
    /// # Errors
    /// If there will be none.
    pub fn change(&self) -> io::Result<Option<Change>> {
        Ok(self.id.lock().event()?.map(change_of))
    }

    /// Ends the connection. It fails silently if there is none.
    pub fn disconnect(&self) {
        // It fails if the connection was not established or has ended.
        // SAFETY: `self` owns the identifier.
        let _ = unsafe { (self.device.functions().rdma_disconnect)(self.id_pointer.0.as_ptr()) };
    }

    /// Destroys the queue pair: afterwards the device does not access memory for its requests, and
    /// new ones are refused.
    pub fn end(&self) {
        let mut posting = self.posting.lock();
        if posting.qp.take().is_some() {
            self.disconnect();
            // SAFETY: `self` owns the identifier, for which `on` has created the queue pair. All
            // that use the queue pair hold the lock, and find it no more.
            unsafe { (self.device.functions().rdma_destroy_qp)(self.id_pointer.0.as_ptr()) };
        }
    }

    /// Posts a receive of a message into registered memory. Its number has the highest bit set.
    ///
    /// # Errors
    /// If there is no room, or the pair has ended.
    pub fn receive(&self, id: u64, piece: Piece) -> io::Result<()> {
        let posting = self.posting.lock();
        let Some(QpPointer(qp)) = &posting.qp else { return Err(ended()) };
        let mut part = element(&piece);
        let mut request = ibv_recv_wr {
            wr_id: id | RECEIVE,
            next: ptr::null_mut(),
            sg_list: &raw mut part,
            num_sge: 1,
        };
        let mut bad = ptr::null_mut();
        let post = self.device.operations().post_recv;
        // SAFETY: the queue pair is live as long as the lock is held, and the request is valid
        // during the call, which copies it. It names registered memory.
        result(unsafe { post(qp.as_ptr(), &raw mut request, &raw mut bad) })
    }

    /// Posts a request.
    ///
    /// # Errors
    /// If there is no room, the device has no such operation, or the pair has ended.
    pub fn post(&self, request: &Request<'_>) -> io::Result<()> {
        let mut posting = self.posting.lock();
        let posting = &mut *posting;
        let Some(QpPointer(qp)) = &posting.qp else { return Err(ended()) };
        let number = *posting.free.last().ok_or(io::ErrorKind::StorageFull)?;
        let mut parts = [ibv_sge { addr: 0, length: 0, lkey: 0 }; 2];
        let count = match request.data {
            Data::Pieces(pieces) => {
                // Some devices take a length of zero for 2 GiB.
                let pieces = pieces.iter().filter(|piece| piece.len != 0);
                let mut count = 0;
                for piece in pieces {
                    let part = parts.get_mut(count).ok_or(io::ErrorKind::InvalidInput)?;
                    *part = element(piece);
                    count += 1;
                }
                count
            }
            Data::Value(bytes) => {
                let start = number as usize * posting.stride;
                let mut end = start;
                for bytes in bytes {
                    if end - start + bytes.len() > posting.stride {
                        return Err(io::ErrorKind::InvalidInput.into());
                    }
                    posting.values.copy_in(end, bytes);
                    end += bytes.len();
                }
                let address = posting.values.address(start);
                let length = u32::try_from(end - start).unwrap_or(u32::MAX);
                parts[0] = ibv_sge { addr: address, length, lkey: posting.values.local_key() };
                1
            }
        };
        // SAFETY: the structure consists of integers, pointers and unions of them: zero is valid.
        let mut send: ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        (send.wr_id, send.sg_list) = (number.into(), parts.as_mut_ptr());
        send.num_sge = count as i32; // At most two.
        send.opcode = fill(&mut send, request.verb);
        // Each is reported, so that its slot becomes free.
        send.send_flags = IBV_SEND_SIGNALED;
        posting.slots[number as usize] = Slot { id: request.id, is_reported: request.is_reported };
        let mut bad = ptr::null_mut();
        let post = self.device.operations().post_send;
        // SAFETY: the queue pair is live as long as the lock is held. The request and its parts
        // are on this stack during the call, which copies them, and name registered memory.
        result(unsafe { post(qp.as_ptr(), &raw mut send, &raw mut bad) })?;
        posting.free.pop();
        Ok(())
    }

    /// Calls `each` for up to `max` requests that have ended, and returns how many there were,
    /// those that are not reported included. Fewer than `max` were all.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn poll(&self, max: usize, mut each: impl FnMut(Ended)) -> io::Result<usize> {
        let mut space = [const { MaybeUninit::uninit() }; BATCH];
        let entries = self.queue.take(&mut space[..max.min(BATCH)])?;
        for entry in entries {
            let (status, len) = (entry.status, entry.byte_len);
            if entry.wr_id & RECEIVE != 0 {
                each(Ended { id: entry.wr_id, len, status });
                continue;
            }
            let slot = {
                let mut posting = self.posting.lock();
                let number = u32::try_from(entry.wr_id).unwrap_or(u32::MAX);
                let slot = posting.slots.get(number as usize).copied();
                let Some(slot) = slot else { continue };
                posting.free.push(number);
                slot
            };
            if slot.is_reported || status != IBV_WC_SUCCESS {
                each(Ended { id: slot.id, len, status });
            }
        }
        Ok(entries.len())
    }

    /// Readable when a request has ended after [`Pair::arm`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.queue.fd()
    }

    /// Makes [`Pair::fd`] readable when the next request has ended.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn arm(&self) -> io::Result<()> {
        self.queue.arm()
    }

    /// Takes an event that has made [`Pair::fd`] readable, without waiting. Returns whether there
    /// was one.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn take_event(&self) -> io::Result<bool> {
        self.queue.take_event()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.end();
    }
}

fn change_of(event: Event) -> Change {
    match event.kind {
        RDMA_CM_EVENT_ESTABLISHED => Change::Established(event.private_data),
        RDMA_CM_EVENT_REJECTED => Change::Refused {
            by_program: event.status == CONSUMER_DEFINED,
            private_data: event.private_data,
        },
        RDMA_CM_EVENT_UNREACHABLE | RDMA_CM_EVENT_CONNECT_ERROR => {
            Change::Failed(event.status.saturating_abs())
        }
        RDMA_CM_EVENT_DISCONNECTED | RDMA_CM_EVENT_DEVICE_REMOVAL => Change::Disconnected,
        _ => Change::Other,
    }
}

fn ended() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

fn element(piece: &Piece) -> ibv_sge {
    ibv_sge { addr: piece.address, length: piece.len, lkey: piece.key }
}

/// Fills in what the peer's memory is to a request, and returns the operation.
fn fill(send: &mut ibv_send_wr, verb: Verb) -> ibv_wr_opcode {
    let rdma = |peer: Remote| ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
        remote_addr: peer.address,
        rkey: peer.key,
    };
    let atomic = |peer: Remote, compare_add, swap| ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
        remote_addr: peer.address,
        compare_add,
        swap,
        rkey: peer.key,
    };
    match verb {
        Verb::Send => IBV_WR_SEND,
        Verb::Write(peer) => {
            send.wr.rdma = rdma(peer);
            IBV_WR_RDMA_WRITE
        }
        Verb::Read(peer) => {
            send.wr.rdma = rdma(peer);
            IBV_WR_RDMA_READ
        }
        Verb::FetchAdd(peer, add) => {
            send.wr.atomic = atomic(peer, add, 0);
            IBV_WR_ATOMIC_FETCH_AND_ADD
        }
        Verb::CompareSwap(peer, compare, swap) => {
            send.wr.atomic = atomic(peer, compare, swap);
            IBV_WR_ATOMIC_CMP_AND_SWP
        }
    }
}

/// Connection parameters, with as many Reads and atomics at a time as both devices can have.
fn parameters(private_data: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: private_data.as_ptr().cast(),
        private_data_len: u8::try_from(private_data.len()).unwrap_or(u8::MAX),
        responder_resources: READS_ANY,
        initiator_depth: READS_ANY,
        flow_control: 1,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
        srq: 0,
        qp_num: 0,
    }
}
