//! Helpers for the engine's tests: a device, guarded memory, connected queue pairs, and polling
//! with a deadline.
#![allow(unsafe_code, dead_code, unreachable_pub)]

pub mod local;
pub mod peer;
pub mod requests;
pub mod victim;

use std::cell::UnsafeCell;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_engine::access::Access;
use weft_engine::cq::Cq;
use weft_engine::event::AsyncEvent;
use weft_engine::mr::Mr;
use weft_engine::pd::Pd;
use weft_engine::qp::{
    AddressVector, AttrMask, Connection, GlobalRoute, Qp, QpAttr, QpCap, QpInit, QpState, QpType,
    pending, required,
};
use weft_engine::wc::{Completion, Opcode, Status};
use weft_engine::wr::{Data, Operation, RecvRequest, SendFlags, SendRequest, Sge};
use weft_engine::{Context, device};
use weft_sys::{Region, wait_readable};
use weft_wire::mpa::negotiate::Negotiated;

/// How long a test waits for a completion before it fails; generous, for busy machines.
const TIMEOUT: Duration = Duration::from_secs(240);

/// The loopback device, opened, with a protection domain.
pub struct Host {
    pub context: Arc<Context>,
    pub pd: Arc<Pd>,
}

impl Host {
    pub fn new() -> Self {
        let devices = device::list().expect("interfaces are listed");
        let loopback = devices.iter().find(|device| device.loopback).expect("a loopback interface");
        let context = Context::open(loopback).expect("the device opens");
        let pd = Pd::new(&context);
        Self { context, pd }
    }

    pub fn endpoint(&self) -> Endpoint {
        self.endpoint_of(|_| ())
    }

    /// Creates an endpoint whose attributes `change` has modified.
    pub fn endpoint_of(&self, change: impl FnOnce(&mut QpInit)) -> Endpoint {
        let cq = || Cq::new(&self.context, 1024, None).expect("a completion queue");
        let cap = QpCap {
            max_send_wr: 256,
            max_recv_wr: 256,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 256,
        };
        let mut init = QpInit {
            qp_type: QpType::Rc,
            send_cq: cq(),
            recv_cq: cq(),
            srq: None,
            xrcd: None,
            cap,
            sq_sig_all: false,
        };
        change(&mut init);
        let (send_cq, recv_cq) = (Arc::clone(&init.send_cq), Arc::clone(&init.recv_cq));
        let qp = Qp::new(&self.pd, init).expect("a queue pair");
        Endpoint { qp, send_cq, recv_cq }
    }
}

/// A queue pair with its completion queues.
pub struct Endpoint {
    pub qp: Arc<Qp>,
    pub send_cq: Arc<Cq>,
    pub recv_cq: Arc<Cq>,
}

impl Endpoint {
    pub fn post(&self, request: &SendRequest<'_>) {
        self.qp.start_post().push(request).expect("room in the send queue");
    }

    pub fn receive(&self, wr_id: u64, sges: &[Sge]) {
        self.qp.post_recv(&RecvRequest { wr_id, sges }).expect("room in the receive queue");
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.qp.destroy();
    }
}

/// Length of the guards before and after registered memory, which must never change.
const GUARD_LEN: usize = 64;
const PAGE: usize = 4096;
const GUARD: u8 = 0xa5;

/// Registered memory between two guards, which are checked when it is dropped. It starts at a page
/// boundary, so that a peer on the same host can map it.
pub struct Memory {
    bytes: Box<[UnsafeCell<u64>]>,
    start: usize,
    len: usize,
    pub mr: Arc<Mr>,
}

impl Memory {
    pub fn new(host: &Host, len: usize, access: Access) -> Self {
        Self::in_domain(&host.pd, len, access)
    }

    pub fn in_domain(pd: &Arc<Pd>, len: usize, access: Access) -> Self {
        let words = (len + PAGE + 2 * GUARD_LEN).div_ceil(8);
        let guard = u64::from_ne_bytes([GUARD; 8]);
        let bytes: Box<[_]> = (0..words).map(|_| UnsafeCell::new(guard)).collect();
        let base = bytes.as_ptr() as usize;
        let first = (base + GUARD_LEN).next_multiple_of(PAGE);
        // SAFETY: `drop` deregisters the region before it frees the memory, and the cells
        // allow it to change behind shared references.
        let region = unsafe { Region::new(first, len) }.expect("no wrap");
        let mr = Mr::register(pd, region, first as u64, access).expect("registered");
        let memory = Self { bytes, start: first - base, len, mr };
        memory.fill(|_| 0);
        memory
    }

    pub fn key(&self) -> u32 {
        self.mr.key()
    }

    pub fn addr(&self, offset: usize) -> u64 {
        (self.bytes.as_ptr() as usize + self.start + offset) as u64
    }

    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge { addr: self.addr(offset), length: length as u32, lkey: self.key() }
    }

    /// The registered range, for another registration.
    pub fn region(&self) -> Region {
        // SAFETY: `drop` deregisters the region before it frees the memory, and the cells
        // allow it to change behind shared references.
        unsafe { Region::new(self.addr(0) as usize, self.len) }.expect("no wrap")
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.with_guards()[self.start..self.start + self.len].to_vec()
    }

    fn with_guards(&self) -> Vec<u8> {
        // SAFETY: the slice covers exactly `bytes`, which this value owns and keeps initialised;
        // the tests call this only after the transfers to the memory have completed, so that
        // nothing writes meanwhile.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.bytes.len() * 8) }
            .to_vec()
    }

    pub fn fill(&self, value: impl Fn(usize) -> u8) {
        let bytes: Vec<u8> = (0..self.len).map(value).collect();
        self.write(0, &bytes);
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len);
        let place = self.addr(offset) as *mut u8;
        // SAFETY: the range is in bounds (asserted), and the tests write only while no transfer
        // uses it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) }
    }

    pub fn u64(&self, offset: usize) -> u64 {
        let bytes = self.bytes();
        u64::from_ne_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"))
    }

    pub fn set_u64(&self, offset: usize, value: u64) {
        self.write(offset, &value.to_ne_bytes());
    }

    /// Checks that nothing beside the registered bytes has changed.
    pub fn check_guards(&self) {
        let all = self.with_guards();
        let guards = all[..self.start].iter().chain(&all[self.start + self.len..]);
        assert!(guards.copied().all(|byte| byte == GUARD), "memory outside the region has changed");
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // The test may have deregistered it already.
        let _ = self.mr.deregister();
        if !std::thread::panicking() {
            self.check_guards();
        }
    }
}

/// Connects two queue pairs: brings both to RTS with each other as peer.
pub fn connect(a: &Endpoint, b: &Endpoint) {
    connect_with(a, b, &init_attr(), 7);
}

/// Connects two queue pairs with the given INIT attributes and number of RNR retries.
pub fn connect_with(a: &Endpoint, b: &Endpoint, init: &QpAttr, rnr_retry: u8) {
    for end in [a, b] {
        end.qp.modify(init, init_mask()).expect("INIT");
        if std::ptr::eq(a, b) {
            break;
        }
    }
    for (end, peer) in [(a, b), (b, a)] {
        to_rts_with(&end.qp, peer.qp.identity().gid, peer.qp.number(), rnr_retry);
        if std::ptr::eq(a, b) {
            break;
        }
    }
}

/// Connects two queue pairs over TCP as if they belonged to two processes, and waits until they
/// share memory.
pub fn connect_sharing(a: &Endpoint, b: &Endpoint, init: &QpAttr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let (remote, _) = listener.accept().expect("it has been dialled");
    for (end, peer) in [(a, b), (b, a)] {
        end.qp.modify(init, init_mask()).expect("INIT");
        // Keep the queue pair from looking for its peer itself: the test attaches the connection.
        let name = (peer.qp.identity().gid, peer.qp.number());
        pending::expect(name);
        to_rts(&end.qp, name.0, name.1);
        pending::unexpect(name);
    }
    // Attach the responder first: the initiator may offer memory at once.
    for (end, peer, socket, initiator) in [(b, a, remote, false), (a, b, near, true)] {
        socket.set_nonblocking(true).expect("a socket option");
        let depth = 16;
        let negotiated = Negotiated {
            revision: 2,
            crc: false,
            tx_markers: false,
            rx_markers: false,
            ird: depth,
            ord: depth,
            rtr: None,
            peer_private_data: Vec::new(),
        };
        let connection = Connection {
            local: socket.local_addr().ok(),
            peer: socket.peer_addr().ok(),
            socket: socket.into(),
            read_from: None,
            initiator,
            negotiated,
            peer_identity: Some(peer.qp.identity()),
            early: Vec::new(),
        };
        end.qp.attach(connection).expect("the first connection");
    }
    let deadline = Instant::now() + TIMEOUT;
    while a.qp.transport() != "shm" || b.qp.transport() != "shm" {
        poll_some(&a.send_cq, 1);
        assert!(Instant::now() < deadline, "the queue pairs do not share memory");
    }
}

/// Runs a test of this program in a process with a single thread, so that peers can map the memory
/// that it registers.
///
/// # Panics
/// If the test fails there, or does not exist.
pub fn run_alone(test: &str) {
    run_again(test, ALONE, "1");
}

/// Runs a test of this program in a new process with an environment variable that Weft reads only
/// once per process.
///
/// # Panics
/// If the test fails there, or does not exist.
pub fn run_again(test: &str, name: &str, value: &str) {
    let program = std::env::current_exe().expect("the test itself");
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture"]).env(name, value);
    let output = command.output().expect("it runs again");
    let log = [output.stdout, output.stderr].concat();
    let log = String::from_utf8_lossy(&log);
    assert!(output.status.success() && log.contains("1 passed"), "{log}");
}

/// Runs the body of a test; under [`run_alone`] in a forked child, which does not have the threads
/// of the test runner.
pub fn perhaps_alone(body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_none() {
        return body();
    }
    // SAFETY: the process runs this one test, and the test runner's main thread only waits for it,
    // so that no other thread holds a lock (of the allocator, for example) that the child needs.
    // The child ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err();
        // SAFETY: `_exit` has no preconditions; it ends the child without running exit handlers of
        // the parent.
        unsafe { libc::_exit(i32::from(failed)) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid local variable, and `child` was forked above and has not been
    // waited for.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((ended, status), (child, 0), "the child failed");
}

/// The environment variable that marks a process started by [`run_alone`].
const ALONE: &str = "WEFT_TEST_ALONE";

/// Waits until no thread of the program is left, in a test that [`run_alone`] runs. The kernel
/// lists a thread that begins before Weft counts it, and one that was joined for a moment longer;
/// memory that is registered meanwhile is not put into a segment.
pub fn settle_threads() {
    let deadline = Instant::now() + TIMEOUT;
    while std::env::var_os(ALONE).is_some() && weft_sys::is_alone() != Ok(true) {
        assert!(Instant::now() < deadline, "other threads stay");
        std::thread::yield_now();
    }
}

/// Checks that memory is in a segment that peers can map, in a test that [`run_alone`] runs. The
/// segment may outlive its registration: with several threads in the process, deregistration leaves
/// it in place.
pub fn check_mapped(memory: &Memory) {
    if std::env::var_os(ALONE).is_none() {
        return;
    }
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a list");
    let covers = |line: &&str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let parse = |text| u64::from_str_radix(text, 16).ok();
        Some((parse(start)?..parse(end)?).contains(&memory.addr(0)))
    };
    let line = maps.lines().find(|line| covers(line) == Some(true)).expect("it is there");
    assert!(line.contains("/memfd:weft-region"), "{line}");
}

pub fn init_attr() -> QpAttr {
    let qp_access_flags = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    QpAttr { qp_state: QpState::Init, qp_access_flags, port_num: 1, ..QpAttr::default() }
}

pub fn init_mask() -> AttrMask {
    AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS
}

pub fn to_rts(qp: &Arc<Qp>, dgid: [u8; 16], dest_qp_num: u32) {
    to_rts_with(qp, dgid, dest_qp_num, 7);
}

fn to_rts_with(qp: &Arc<Qp>, dgid: [u8; 16], dest_qp_num: u32, rnr_retry: u8) {
    let global = Some(GlobalRoute { dgid, ..GlobalRoute::default() });
    let rtr = QpAttr {
        qp_state: QpState::Rtr,
        path_mtu: 5,
        dest_qp_num,
        max_dest_rd_atomic: 16,
        min_rnr_timer: 12,
        ah_attr: AddressVector { global, port_num: 1, ..AddressVector::default() },
        ..QpAttr::default()
    };
    bring_up(qp, &rtr);
    let rts = QpAttr {
        qp_state: QpState::Rts,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry,
        max_rd_atomic: 16,
        ..QpAttr::default()
    };
    bring_up(qp, &rts);
}

/// Brings a queue pair up to the next state, with the attributes that this requires.
pub fn bring_up(qp: &Arc<Qp>, attr: &QpAttr) {
    let to = attr.qp_state;
    let mask = required(qp.qp_type(), to).expect("a transition");
    qp.modify(attr, mask).unwrap_or_else(|error| panic!("{to:?}: {error}"));
}

pub fn to_state(qp: &Arc<Qp>, qp_state: QpState) {
    qp.modify(&QpAttr { qp_state, ..QpAttr::default() }, AttrMask::STATE).expect("allowed");
}

/// Builds a signalled request.
pub fn signalled(wr_id: u64, operation: Operation, data: Data<'_>) -> SendRequest<'_> {
    SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, data }
}

/// Builds a signalled Send.
pub fn send(wr_id: u64, data: Data<'_>) -> SendRequest<'_> {
    signalled(wr_id, Operation::Send { imm: None, invalidate: None }, data)
}

/// Waits for the next asynchronous event.
pub fn next_event(context: &Context) -> AsyncEvent {
    // SAFETY: the descriptor belongs to the context, which outlives this call.
    let fd = unsafe { BorrowedFd::borrow_raw(context.async_fd()) };
    let ready = wait_readable([fd], Some(TIMEOUT)).expect("no signal");
    assert_eq!(ready, [true], "no asynchronous event in time");
    context.next_event().expect("an event")
}

/// Whether no asynchronous event is pending.
pub fn no_event(context: &Context) -> bool {
    // SAFETY: the descriptor belongs to the context, which outlives this call.
    let fd = unsafe { BorrowedFd::borrow_raw(context.async_fd()) };
    wait_readable([fd], Some(Duration::ZERO)).expect("no signal") == [false]
}

/// Waits for the next completion.
pub fn poll_one(cq: &Arc<Cq>) -> Completion {
    let deadline = Instant::now() + TIMEOUT;
    let mut space = [Completion::new(0, Status::Success, Opcode::Send, 0)];
    while cq.poll(&mut space) == 0 {
        assert!(Instant::now() < deadline, "no completion in time");
    }
    space[0]
}

/// Collects at most `count` completions that arrive within a short time.
pub fn poll_some(cq: &Arc<Cq>, count: usize) -> Vec<Completion> {
    let deadline = Instant::now() + Duration::from_millis(50);
    let mut found = Vec::new();
    let mut space = [Completion::new(0, Status::Success, Opcode::Send, 0)];
    while found.len() < count && Instant::now() < deadline {
        if cq.poll(&mut space) == 1 {
            found.push(space[0]);
        }
    }
    found
}
