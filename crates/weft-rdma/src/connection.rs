//! Connections: reliable queue pairs.
//!
//! # Safety
//! A [`Connection`] owns its queue pair, and destroys it before its queue, its identifier and its
//! device. A device reads and writes only registered memory: a [`Region`] ends its registration
//! before its memory, so requests may outlive the region that they name.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_abi::{
    IBV_QPT_RC, IBV_SEND_SIGNALED, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_SEND,
    RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_ESTABLISHED, ibv_qp,
    ibv_qp_cap, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr,
    ibv_send_wr__bindgen_ty_2__bindgen_ty_1, ibv_sge, ibv_wr_opcode, rdma_conn_param,
};

use crate::device::Device;
use crate::id::{Id, check, wait_for};
use crate::limits::RETRIES;
use crate::queue::{Completion, Queue};
use crate::region::Region;
use crate::waker::Waker;

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The address in the peer's memory.
    pub address: u64,
    /// The key of the peer's region.
    pub key: u32,
}

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A request is complete.
    Completed(Completion),
    /// No request was complete in time, or the wait was interrupted.
    TimedOut,
    /// The connection has ended, and all completions before that have been returned.
    Ended,
}

/// A reliable connection, used by one thread at a time.
#[derive(Debug)]
pub struct Connection {
    qp: NonNull<ibv_qp>,
    queue: Queue,
    id: Id,
    device: Arc<Device>,
    waker: Waker,
    is_armed: bool,
    has_ended: bool,
}

// SAFETY: the queue pair belongs to the process, not to a thread, and `Connection` owns it.
unsafe impl Send for Connection {}

impl Connection {
    /// Prepares a connection from a device to a listener, with room for this many messages to send
    /// and to receive at a time. Post the first receives, then call [`Connection::connect`].
    ///
    /// # Errors
    /// If the device does not lead to that address, or has no resources.
    pub fn to(
        device: &Arc<Device>,
        listener: SocketAddr,
        sends: u32,
        receives: u32,
        time: Duration,
    ) -> io::Result<Self> {
        let mut id = Id::new(device.functions())?;
        let end = Instant::now() + time;
        id.resolve(Some(device.address()), listener, end)?;
        id.resolve_route(end)?;
        Self::on(device, id, sends, receives)
    }

    /// Creates the queue pair of an identifier.
    pub(crate) fn on(device: &Arc<Device>, id: Id, sends: u32, receives: u32) -> io::Result<Self> {
        if !device.has(&id) {
            return Err(io::Error::other("the connection is on another RDMA device"));
        }
        let waker = Waker::new()?;
        // Each message is one write, which is not reported, and one send.
        let queue = Queue::new(device, 2 * sends + receives)?;
        let mut attributes = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: queue.as_ptr(),
            recv_cq: queue.as_ptr(),
            srq: ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: 2 * sends.max(1),
                max_recv_wr: receives.max(1),
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: `id`, `device` and `queue` own the identifier, the protection domain and the
        // completion queue. The identifier is on that device, as checked above.
        let created = unsafe {
            (device.functions().rdma_create_qp)(id.as_ptr(), device.pd(), &raw mut attributes)
        };
        check(created)?;
        // SAFETY: `id` owns the identifier, and only `drop` changes this field from now on.
        let qp = unsafe { (*id.as_ptr()).qp };
        let qp = NonNull::new(qp).ok_or(io::ErrorKind::Other)?;
        let (device, is_armed, has_ended) = (Arc::clone(device), false, false);
        Ok(Self { qp, queue, id, device, waker, is_armed, has_ended })
    }

    /// Connects, with private data for the listener.
    ///
    /// # Errors
    /// `ConnectionRefused` if the listener refuses; other errors if it cannot be reached.
    pub fn connect(&mut self, private_data: &[u8], time: Duration) -> io::Result<()> {
        let mut param = parameters(private_data, 0);
        // SAFETY: `self.id` owns the identifier. The parameters and the private data are borrowed
        // during the call.
        check(unsafe { (self.device.functions().rdma_connect)(self.id.as_ptr(), &raw mut param) })?;
        self.id.expect(RDMA_CM_EVENT_ESTABLISHED, Instant::now() + time)
    }

    /// Accepts the connection of a request with this many reads at a time, and waits until it is
    /// established.
    pub(crate) fn accept(&mut self, reads: u8, time: Duration) -> io::Result<()> {
        let mut param = parameters(&[], reads);
        // SAFETY: `self.id` owns the identifier, which waits for an answer, and the parameters are
        // borrowed during the call.
        check(unsafe { (self.device.functions().rdma_accept)(self.id.as_ptr(), &raw mut param) })?;
        self.id.expect(RDMA_CM_EVENT_ESTABLISHED, Instant::now() + time)
    }

    /// Returns the object by which other threads close the connection.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Posts a receive of a message of up to `len` bytes at `offset` of a region. Its completion
    /// has this number.
    ///
    /// # Errors
    /// If the queue pair has no room.
    ///
    /// # Panics
    /// If the range does not lie inside the region.
    pub fn post_receive(
        &mut self,
        id: u64,
        region: &Region,
        offset: usize,
        len: usize,
    ) -> io::Result<()> {
        let mut part = element(region, offset, len);
        let mut request =
            ibv_recv_wr { wr_id: id, next: ptr::null_mut(), sg_list: &raw mut part, num_sge: 1 };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live, and the request is valid during the call, which copies
        // it. It names registered memory.
        let posted = unsafe {
            (self.device.operations().post_recv)(self.qp.as_ptr(), &raw mut request, &raw mut bad)
        };
        result(posted)
    }

    /// Posts a write of the first `len` bytes at `offset` of a region to the peer's memory, and
    /// behind it a message of the `message` bytes that follow them. Both are complete together,
    /// under this number, and the peer receives the message after the written bytes.
    ///
    /// # Errors
    /// If the queue pair has no room.
    ///
    /// # Panics
    /// If the bytes do not lie inside the region.
    pub fn post_write(
        &mut self,
        id: u64,
        region: &Region,
        offset: usize,
        len: usize,
        to: Remote,
        message: usize,
    ) -> io::Result<()> {
        let mut parts = [element(region, offset, len), element(region, offset + len, message)];
        let [payload, head] = &mut parts;
        let mut send = request(IBV_WR_SEND, id, head);
        send.send_flags = IBV_SEND_SIGNALED;
        if len == 0 {
            return self.post(&mut send);
        }
        let mut write = transfer(IBV_WR_RDMA_WRITE, id, payload, to);
        write.next = &raw mut send;
        self.post(&mut write)
    }

    /// Posts a write of `len` bytes at `offset` of a region to the peer's memory. What is sent
    /// later arrives after it.
    ///
    /// # Errors
    /// If the queue pair has no room.
    ///
    /// # Panics
    /// If the bytes do not lie inside the region.
    pub fn post_put(
        &mut self,
        id: u64,
        region: &Region,
        offset: usize,
        len: usize,
        to: Remote,
    ) -> io::Result<()> {
        self.post_transfer(IBV_WR_RDMA_WRITE, id, element(region, offset, len), to)
    }

    /// Posts a read of `len` bytes of the peer's memory to `offset` of a region, which has to be
    /// one of [`Access::Remote`](crate::Access::Remote): iWARP delivers what was read as a peer's
    /// write.
    ///
    /// # Errors
    /// If the queue pair has no room.
    ///
    /// # Panics
    /// If the bytes do not lie inside the region.
    pub fn post_get(
        &mut self,
        id: u64,
        region: &Region,
        offset: usize,
        len: usize,
        from: Remote,
    ) -> io::Result<()> {
        self.post_transfer(IBV_WR_RDMA_READ, id, element(region, offset, len), from)
    }

    fn post_transfer(
        &mut self,
        opcode: ibv_wr_opcode,
        id: u64,
        mut part: ibv_sge,
        remote: Remote,
    ) -> io::Result<()> {
        let mut send = transfer(opcode, id, &mut part, remote);
        send.send_flags = IBV_SEND_SIGNALED;
        self.post(&mut send)
    }

    /// Posts a request, and those that it links to. Their parts and links must be valid, which
    /// those that [`request`] and [`transfer`] have made are.
    fn post(&mut self, first: &mut ibv_send_wr) -> io::Result<()> {
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live, and the callers above keep the requests and their parts
        // on their stacks during the call, which copies them. The parts name registered memory.
        let posted =
            unsafe { (self.device.operations().post_send)(self.qp.as_ptr(), first, &raw mut bad) };
        result(posted)
    }

    /// Returns a completed request without waiting.
    ///
    /// # Errors
    /// If a request has failed.
    pub fn poll(&mut self) -> io::Result<Option<Completion>> {
        self.queue.poll()
    }

    /// Looks for the next completed request for `time`, without sleeping. `None` if there is none.
    ///
    /// # Errors
    /// As [`Connection::next`].
    pub fn look_for(&mut self, time: Duration) -> io::Result<Option<Next>> {
        let begin = Instant::now();
        loop {
            let found = self.look()?;
            if found.is_some() || begin.elapsed() >= time {
                return Ok(found);
            }
            std::hint::spin_loop();
        }
    }

    fn look(&mut self) -> io::Result<Option<Next>> {
        if self.waker.is_closed() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        match self.queue.poll() {
            Ok(completion) => Ok(completion.map(Next::Completed)),
            // The receives that were left when the connection ended.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(Some(Next::Ended)),
            Err(error) => Err(error),
        }
    }

    /// Waits for the next completed request, for at most `wait`, or without a limit if that is
    /// `None`.
    ///
    /// # Errors
    /// If a request or the device has failed; `NotConnected` if the connection was closed here.
    pub fn next(&mut self, wait: Option<Duration>) -> io::Result<Next> {
        let end = wait.and_then(|wait| Instant::now().checked_add(wait));
        loop {
            if let Some(next) = self.look()? {
                return Ok(next);
            }
            if self.has_ended {
                return Ok(Next::Ended);
            }
            if !self.is_armed {
                self.queue.arm()?;
                self.is_armed = true;
                // A completion may have come before that.
                continue;
            }
            let fds = [self.queue.fd(), self.id.fd(), self.waker.fd()];
            let [has_completed, has_event, is_interrupted] = wait_for(fds, end)?;
            if has_completed {
                let _ = self.queue.take_event()?;
                self.is_armed = false;
            }
            if has_event && let Some(event) = self.id.event()? {
                match event.kind {
                    RDMA_CM_EVENT_DISCONNECTED => self.has_ended = true,
                    RDMA_CM_EVENT_DEVICE_REMOVAL => return Err(event.error()),
                    // Others do not end the connection.
                    _ => {}
                }
            }
            if is_interrupted {
                self.waker.clear();
                if !self.waker.is_closed() {
                    return Ok(Next::TimedOut);
                }
            }
            if !has_completed && !has_event && !is_interrupted {
                return Ok(Next::TimedOut);
            }
        }
    }
}

/// Returns connection parameters. This end has `reads` requests to read the peer's memory under way
/// at a time; the peer reads nothing, and neither uses atomics.
fn parameters(private_data: &[u8], reads: u8) -> rdma_conn_param {
    rdma_conn_param {
        private_data: private_data.as_ptr().cast(),
        private_data_len: u8::try_from(private_data.len()).unwrap_or(u8::MAX),
        responder_resources: 0,
        initiator_depth: reads,
        flow_control: 1,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
        srq: 0,
        qp_num: 0,
    }
}

fn element(region: &Region, offset: usize, len: usize) -> ibv_sge {
    let addr = region.at(offset, len).as_ptr() as u64;
    ibv_sge { addr, length: u32::try_from(len).unwrap_or(u32::MAX), lkey: region.local_key() }
}

/// Returns a request with one part, valid as long as that.
fn request(opcode: ibv_wr_opcode, id: u64, part: &mut ibv_sge) -> ibv_send_wr {
    // SAFETY: the structure consists of integers, pointers and unions of them: zero is valid.
    let mut request: ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
    (request.wr_id, request.sg_list, request.num_sge) = (id, ptr::from_mut(part), 1);
    request.opcode = opcode;
    request
}

/// Returns a request that writes or reads the peer's memory, valid as long as its part.
fn transfer(opcode: ibv_wr_opcode, id: u64, part: &mut ibv_sge, peer: Remote) -> ibv_send_wr {
    let mut request = request(opcode, id, part);
    request.wr.rdma =
        ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: peer.address, rkey: peer.key };
    request
}

/// Returns the error of a call that returns an error number.
pub(crate) fn result(posted: i32) -> io::Result<()> {
    if posted == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(posted.abs())) }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let functions = self.device.functions();
        // It fails if the connection was not established or has ended.
        // SAFETY: `self.id` owns the identifier, and is dropped after this.
        let _ = unsafe { (functions.rdma_disconnect)(self.id.as_ptr()) };
        // SAFETY: `self.id` owns the identifier, for which `on` has created the queue pair. Calls
        // that use the queue pair borrow `self`, so none is in progress.
        unsafe { (functions.rdma_destroy_qp)(self.id.as_ptr()) };
    }
}
