//! Reliable datagrams over real sockets on loopback.

#![allow(clippy::unwrap_used, unsafe_code)] // The allowance for tests does not cover helpers.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weft_engine::access::Access;
use weft_engine::device::Device;
use weft_engine::mr::Mr;
use weft_engine::pd::Pd;
use weft_engine::rd::limits::SEND_LEN_MAX;
use weft_engine::rd::{
    AtomicOp, Buffer, Caller, Change, ConnectionEnd, Data, Endpoint, Event, Options, PeerAddress,
    Port, PortListener, Request, Room, Status,
};
use weft_engine::wc::{self, Completion};
use weft_engine::wr::{self, Operation, RecvRequest, SendFlags, SendRequest, Sge};
use weft_engine::{Context, Errno};
use weft_sys::{Region, wait_readable};
use weft_wire::rd::{HEADER_LEN, Header, Kind, RdEnd, Reason};

const TIMEOUT: Duration = Duration::from_secs(240);
const LOCALHOST: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn domain() -> Arc<Pd> {
    let device = Device {
        name: "weft_test".into(),
        interface: "test".into(),
        index: 1,
        loopback: true,
        addresses: vec![Ipv4Addr::LOCALHOST.into()],
    };
    Pd::new(&Context::open(&device).unwrap())
}

/// Registered memory, deregistered before it is freed.
struct Memory {
    cells: Box<[UnsafeCell<u8>]>,
    mr: Arc<Mr>,
}

impl Memory {
    fn new(pd: &Arc<Pd>, bytes: &[u8], access: Access) -> Self {
        let cells: Box<[_]> = bytes.iter().copied().map(UnsafeCell::new).collect();
        let first = cells.as_ptr() as usize;
        // SAFETY: the range is that of `cells`, which `drop` deregisters before they are freed;
        // cells may change behind shared references.
        let region = unsafe { Region::new(first, cells.len()) }.unwrap();
        Self { cells, mr: Mr::register(pd, region, 0x1000, access).unwrap() }
    }

    fn part(&self, at: usize, len: usize) -> Buffer {
        Buffer { key: self.mr.key(), addr: 0x1000 + at as u64, len: len as u32 }
    }

    fn bytes(&self) -> Vec<u8> {
        // SAFETY: the cells are alive and initialised, and the tests read them only after the
        // transfers to this memory have completed, so that nothing writes meanwhile.
        self.cells.iter().map(|cell| unsafe { *cell.get() }).collect()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.mr.deregister().unwrap();
    }
}

fn next(endpoint: &Endpoint) -> Event {
    endpoint.wait(Some(TIMEOUT)).unwrap().expect("an event in time")
}

fn completed(endpoint: &Endpoint, id: u64) -> Status {
    match next(endpoint) {
        Event::Completed { id: done, status } if done == id => status,
        other => panic!("{other:?} instead of the end of {id}"),
    }
}

fn received(endpoint: &Endpoint) -> (PeerAddress, Vec<u8>) {
    match next(endpoint) {
        Event::Received { from, bytes } => (from, bytes),
        other => panic!("{other:?} instead of a message"),
    }
}

fn pair() -> (Arc<Pd>, Endpoint, Endpoint) {
    let pd = domain();
    let bind = |number| Endpoint::bind(&pd, LOCALHOST, number, Options::default()).unwrap();
    let (a, b) = (bind(1), bind(2));
    (pd, a, b)
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

#[test]
fn messages_of_all_lengths_arrive_in_order_and_complete() {
    let (_pd, a, b) = pair();
    let lengths = [0, 1, 1382, 1383, 100_000, SEND_LEN_MAX as usize];
    for (id, &len) in lengths.iter().enumerate() {
        let bytes = pattern(id as u64, len).into();
        a.post(b.address(), id as u64, Request::Send(bytes)).unwrap();
    }
    for (id, &len) in lengths.iter().enumerate() {
        let (from, bytes) = received(&b);
        assert_eq!(from, a.address());
        assert!(bytes == pattern(id as u64, len), "message {id}");
    }
    for id in 0..lengths.len() as u64 {
        assert_eq!(completed(&a, id), Status::Success);
    }
    b.post(a.address(), 7, Request::Send(b"answer".as_slice().into())).unwrap();
    assert_eq!(received(&a), (b.address(), b"answer".to_vec()));
    assert_eq!(completed(&b, 7), Status::Success);
    let too_long = vec![0; SEND_LEN_MAX as usize + 1].into();
    assert_eq!(a.post(b.address(), 8, Request::Send(too_long)), Err(Errno::MSGSIZE));
}

#[test]
fn an_endpoint_sends_to_itself_over_ipv4_and_ipv6() {
    let pd = domain();
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    let Ok(endpoint) = Endpoint::bind(&pd, any, 3, Options::default()) else { return };
    let port = endpoint.address().socket.port();
    for ip in [Ipv6Addr::LOCALHOST.into(), std::net::IpAddr::from(Ipv4Addr::LOCALHOST)] {
        let own = PeerAddress { socket: SocketAddr::new(ip, port), endpoint: 3 };
        if UdpSocket::bind((ip, 0)).is_err() {
            continue;
        }
        endpoint.post(own, 1, Request::Send(b"me".as_slice().into())).unwrap();
        let (mut messages, mut ends) = (0, 0);
        while messages + ends < 2 {
            match next(&endpoint) {
                Event::Received { from, bytes } => {
                    assert_eq!((from, &bytes[..]), (own, &b"me"[..]));
                    messages += 1;
                }
                Event::Completed { status, .. } => {
                    assert_eq!(status, Status::Success);
                    ends += 1;
                }
            }
        }
    }
}

#[test]
fn writes_and_reads_obey_keys_and_bounds() {
    let (pd, a, b) = pair();
    let len = 300_000;
    let everything = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let target = Memory::new(&pd, &vec![0; len], everything);
    let private = Memory::new(&pd, &vec![0; len], Access::LOCAL_WRITE);
    let source = Memory::new(&pd, &pattern(1, len), Access::empty());
    let stranger = Memory::new(&domain(), &vec![0; len], everything);
    let write = |from: Buffer, to: Buffer| Request::Write {
        data: Data::Registered(from),
        key: to.key,
        addr: to.addr,
    };
    let read = |into: Buffer, from: Buffer| Request::Read { into, key: from.key, addr: from.addr };

    a.post(b.address(), 1, write(source.part(0, len - 10), target.part(10, 0))).unwrap();
    a.post(b.address(), 2, read(private.part(0, len), target.part(0, len))).unwrap();
    assert_eq!(completed(&a, 1), Status::Success);
    assert_eq!(completed(&a, 2), Status::Success);
    assert!(target.bytes()[10..] == pattern(1, len)[..len - 10]);
    assert!(private.bytes() == target.bytes());

    let (before, wrong_key) =
        (target.bytes(), Buffer { key: source.mr.key() ^ 1, ..target.part(0, 1) });
    let attempts = [
        (write(source.part(0, 9), target.part(len - 8, 0)), Status::Refused(Reason::Bounds)),
        (write(source.part(0, 9), private.part(0, 0)), Status::Refused(Reason::Rights)),
        (write(source.part(0, 9), stranger.part(0, 0)), Status::Refused(Reason::Domain)),
        (write(source.part(0, 9), wrong_key), Status::Refused(Reason::Key)),
        (write(source.part(len - 8, 9), target.part(0, 0)), Status::LocalAccess(Reason::Bounds)),
        (read(private.part(0, 9), private.part(0, 9)), Status::Refused(Reason::Rights)),
        (read(private.part(0, 9), target.part(len - 8, 9)), Status::Refused(Reason::Bounds)),
        (read(source.part(0, 9), target.part(0, 9)), Status::LocalAccess(Reason::Rights)),
    ];
    for (id, (request, expected)) in attempts.into_iter().enumerate() {
        let id = 10 + id as u64;
        a.post(b.address(), id, request).unwrap();
        // A refused request does not affect the next one.
        a.post(b.address(), 99, Request::Send(b"on".as_slice().into())).unwrap();
        let mut ends = HashMap::new();
        while ends.len() < 2 {
            let Event::Completed { id, status } = next(&a) else { panic!("a message") };
            ends.insert(id, status);
        }
        assert_eq!((ends[&id], ends[&99]), (expected, Status::Success));
        assert_eq!(received(&b).1, b"on");
    }
    assert!(target.bytes() == before, "a refused write has written");
}

#[test]
fn a_slow_receiver_loses_no_message() {
    let pd = domain();
    let options = Options { receive_bytes: 100_000, ..Options::default() };
    let slow = Endpoint::bind(&pd, LOCALHOST, 1, options).unwrap();
    let senders: Vec<_> =
        (2..5).map(|n| Endpoint::bind(&pd, LOCALHOST, n, Options::default()).unwrap()).collect();
    const COUNT: u64 = 20;
    const LEN: usize = 30_000;
    for (number, sender) in senders.iter().enumerate() {
        for id in 0..COUNT {
            let bytes = pattern(1000 * number as u64 + id, LEN).into();
            sender.post(slow.address(), id, Request::Send(bytes)).unwrap();
        }
    }
    std::thread::sleep(Duration::from_millis(100));
    let mut counts = HashMap::<u16, u64>::new();
    for _ in 0..COUNT * senders.len() as u64 {
        let (from, bytes) = received(&slow);
        let count = counts.entry(from.endpoint).or_default();
        let expected = pattern(1000 * (u64::from(from.endpoint) - 2) + *count, LEN);
        assert!(bytes == expected, "message {count} of {}", from.endpoint);
        *count += 1;
    }
    for sender in &senders {
        (0..COUNT).for_each(|id| assert_eq!(completed(sender, id), Status::Success));
    }
}

/// Relays datagrams between a client and `to`; loses, duplicates and delays some. Returns its
/// address and a thread that yields the number of lost datagrams.
fn relay(
    to: SocketAddr,
    seed: u64,
    stop: Arc<AtomicBool>,
) -> (SocketAddr, std::thread::JoinHandle<u64>) {
    let front = UdpSocket::bind(LOCALHOST).unwrap();
    let address = front.local_addr().unwrap();
    let back = UdpSocket::bind(LOCALHOST).unwrap();
    back.connect(to).unwrap();
    for socket in [&front, &back] {
        socket.set_nonblocking(true).unwrap();
    }
    let thread = std::thread::spawn(move || {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut client, mut held) = (None, Vec::<(Instant, bool, Vec<u8>)>::new());
        let mut buffer = vec![0; 65_536];
        let mut lost = 0;
        while !stop.load(Ordering::Relaxed) {
            let mut arrived = Vec::new();
            while let Ok((len, from)) = front.recv_from(&mut buffer) {
                client = Some(from);
                arrived.push((true, buffer[..len].to_vec()));
            }
            while let Ok(len) = back.recv(&mut buffer) {
                arrived.push((false, buffer[..len].to_vec()));
            }
            for (forth, bytes) in arrived {
                if rng.u8(..100) < 5 {
                    lost += 1;
                    continue;
                }
                for _ in 0..if rng.u8(..100) < 3 { 2 } else { 1 } {
                    let delay = if rng.u8(..100) < 10 { rng.u64(..3_000) } else { 0 };
                    let at = Instant::now() + Duration::from_micros(delay);
                    held.push((at, forth, bytes.clone()));
                }
            }
            let now = Instant::now();
            held.retain(|(at, forth, bytes)| {
                if *at <= now {
                    // A datagram lost to a full socket buffer is one more loss.
                    let _ = match (forth, client) {
                        (true, _) => back.send(bytes),
                        (false, Some(client)) => front.send_to(bytes, client),
                        (false, None) => Ok(0),
                    };
                }
                *at > now
            });
            std::thread::sleep(Duration::from_micros(200));
        }
        lost
    });
    (address, thread)
}

#[test]
fn requests_complete_over_a_lossy_network() {
    let (pd, a, b) = pair();
    let stop = Arc::new(AtomicBool::new(false));
    let (address, thread) = relay(b.address().socket, 7, Arc::clone(&stop));
    let remote = PeerAddress { socket: address, endpoint: 2 };
    let everything = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let target = Memory::new(&pd, &vec![0; 400_000], everything);
    let own = Memory::new(&pd, &vec![0; 400_000], Access::LOCAL_WRITE);
    const COUNT: u64 = 300;
    let mut rng = fastrand::Rng::with_seed(3);
    let lengths: Vec<usize> = (0..COUNT).map(|_| rng.usize(..3_000)).collect();
    for (id, &len) in lengths.iter().enumerate() {
        let bytes = pattern(id as u64, len).into();
        a.post(remote, id as u64, Request::Send(bytes)).unwrap();
    }
    let data = Data::Bytes(pattern(77, 400_000).into());
    let place = target.part(0, 0);
    a.post(remote, COUNT, Request::Write { data, key: place.key, addr: place.addr }).unwrap();
    let into = own.part(0, 400_000);
    a.post(remote, COUNT + 1, Request::Read { into, key: place.key, addr: place.addr }).unwrap();
    for (id, &len) in lengths.iter().enumerate() {
        assert!(received(&b).1 == pattern(id as u64, len), "message {id}");
    }
    for id in 0..COUNT + 2 {
        assert_eq!(completed(&a, id), Status::Success, "request {id}");
    }
    assert!(own.bytes() == pattern(77, 400_000));
    stop.store(true, Ordering::Relaxed);
    assert_ne!(thread.join().unwrap(), 0, "the relay lost no datagram");
}

/// A sender notices that the peer at an address has been restarted, and can then send to the new
/// one.
#[test]
fn a_restarted_peer_is_recognised() {
    let (pd, a, b) = pair();
    let address = b.address();
    a.post(address, 1, Request::Send(b"old".as_slice().into())).unwrap();
    assert_eq!(received(&b).1, b"old");
    assert_eq!(completed(&a, 1), Status::Success);
    drop(b);
    let limit = Instant::now() + TIMEOUT;
    let b = loop {
        match Endpoint::bind(&pd, address.socket, 2, Options::default()) {
            // Another test may have been given the port.
            Err(Errno::ADDRINUSE) if Instant::now() < limit => {
                std::thread::sleep(Duration::from_millis(10));
            }
            bound => break bound.unwrap(),
        }
    };
    a.post(address, 2, Request::Send(b"lost".as_slice().into())).unwrap();
    assert_eq!(completed(&a, 2), Status::PeerRestarted);
    a.post(address, 3, Request::Send(b"new".as_slice().into())).unwrap();
    assert_eq!(received(&b).1, b"new");
    assert_eq!(completed(&a, 3), Status::Success);
}

#[test]
fn an_unverified_peer_gets_at_most_three_times_what_it_sent() {
    let pd = domain();
    let endpoint = Endpoint::bind(&pd, LOCALHOST, 1, Options::default()).unwrap();
    let memory = Memory::new(&pd, &vec![7; 100_000], Access::REMOTE_READ);
    let socket = UdpSocket::bind(LOCALHOST).unwrap();
    // A read request in the first datagram of a source that never confirms its address.
    let header = Header {
        kind: Kind::Data,
        syn: true,
        probe: false,
        lost: false,
        source: RdEnd { endpoint: 9, epoch: 1, stream: 1 },
        destination: RdEnd { endpoint: 1, epoch: 0, stream: 0 },
        window: 1024,
        sequence: 1,
        ack: None,
        timestamp: 1,
        echo: 0,
    };
    let ddp = weft_wire::ddp::Header::Untagged {
        last: true,
        ulp: weft_wire::rdmap::Opcode::ReadRequest.control(),
        ulp_word: 0,
        qn: 1,
        msn: 1,
        mo: 0,
    };
    let place = memory.part(0, 100_000);
    let read = weft_wire::rdmap::ReadRequest {
        sink_stag: 0,
        sink_to: 0,
        size: place.len,
        source_stag: place.key,
        source_to: place.addr,
    };
    let mut datagram = vec![0; HEADER_LEN + ddp.len() + weft_wire::rdmap::ReadRequest::LEN];
    header.emit(&mut datagram);
    ddp.emit(&mut datagram[HEADER_LEN..]);
    read.emit(&mut datagram[HEADER_LEN + ddp.len()..]);
    weft_wire::rd::seal(&mut datagram);
    socket.send_to(&datagram, endpoint.address().socket).unwrap();
    let mut buffer = [0; 65_536];
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut answered = socket.recv(&mut buffer).expect("an acknowledgement");
    // More than this would come within a second.
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end {
        answered += socket.recv(&mut buffer).unwrap_or(0);
    }
    assert!(answered <= 3 * datagram.len(), "{answered} bytes for {}", datagram.len());
}

#[test]
fn atomics_obey_keys_and_are_carried_out_once_over_a_lossy_network() {
    const TIMES: u64 = 200;
    let (pd, a, b) = pair();
    let everything = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    // The words of a region begin where its memory does.
    let target = Memory::new(&pd, &[0; 64], everything);
    let written = Memory::new(&pd, &[0; 64], Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let own = Memory::new(&pd, &[0; 8 * TIMES as usize], Access::LOCAL_WRITE);
    let first = target.cells.as_ptr() as usize;
    let aligned = first.next_multiple_of(8) - first;
    let add = AtomicOp::FetchAdd { add: 3, mask: 0 };
    let atomic =
        |op, into: Buffer, at: Buffer| Request::Atomic { op, into, key: at.key, addr: at.addr };
    let attempts = [
        (written.part(aligned, 8), Status::Refused(Reason::Rights)),
        (target.part(aligned + 1, 8), Status::Refused(Reason::Malformed)),
        (target.part(60, 8), Status::Refused(Reason::Bounds)),
        (Buffer { key: 0xbad, ..target.part(aligned, 8) }, Status::Refused(Reason::Key)),
    ];
    for (at, expected) in attempts {
        a.post(b.address(), 1, atomic(add, own.part(0, 8), at)).unwrap();
        assert_eq!(completed(&a, 1), expected);
    }
    assert!(target.bytes() == [0; 64] && own.bytes().iter().all(|&byte| byte == 0));
    for len in [0, 7, 9] {
        let posted = a.post(b.address(), 1, atomic(add, own.part(0, len), target.part(aligned, 8)));
        assert_eq!(posted, Err(Errno::MSGSIZE));
    }

    let stop = Arc::new(AtomicBool::new(false));
    let (address, thread) = relay(b.address().socket, 8, Arc::clone(&stop));
    let remote = PeerAddress { socket: address, endpoint: 2 };
    for id in 0..TIMES {
        let into = own.part(8 * id as usize, 8);
        a.post(remote, id, atomic(add, into, target.part(aligned, 8))).unwrap();
    }
    let swap = AtomicOp::CmpSwap { swap: 9, swap_mask: !0, compare: 0, compare_mask: !0 };
    for _ in 0..TIMES {
        assert!(matches!(next(&a), Event::Completed { status: Status::Success, .. }));
    }
    let old = |at: usize| u64::from_ne_bytes(own.bytes()[at..at + 8].try_into().unwrap());
    for id in 0..TIMES {
        assert_eq!(old(8 * id as usize), 3 * id, "the value before addition {id}");
    }
    for expected in [0, 9] {
        a.post(remote, 1, atomic(swap, own.part(0, 8), target.part(aligned + 8, 8))).unwrap();
        assert_eq!(completed(&a, 1), Status::Success);
        assert_eq!(old(0), expected);
    }
    let bytes = target.bytes();
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!((word(aligned), word(aligned + 8)), (3 * TIMES, 9));
    stop.store(true, Ordering::Relaxed);
    assert_ne!(thread.join().unwrap(), 0, "the relay lost no datagram");
}

const ROOM: Room = Room { sends: 16, receives: 4 };

fn sge(buffer: Buffer) -> Sge {
    Sge { addr: buffer.addr, length: buffer.len, lkey: buffer.key }
}

/// Posts a request with this number, of bytes by value or of registered memory.
fn post(end: &ConnectionEnd, wr_id: u64, operation: Operation, data: wr::Data<'_>) {
    let flags = SendFlags::SIGNALED;
    end.post(&SendRequest { wr_id, operation, flags, data }).unwrap();
}

fn send(end: &ConnectionEnd, wr_id: u64, bytes: &[u8]) {
    let operation = Operation::Send { imm: None, invalidate: None };
    post(end, wr_id, operation, wr::Data::Inline(&[bytes]));
}

/// The next completion.
fn completion(end: &ConnectionEnd) -> (u64, wc::Status) {
    let mut space = [Completion::new(0, wc::Status::Success, wc::Opcode::Send, 0)];
    let limit = Instant::now() + TIMEOUT;
    while end.poll(&mut space) == 0 {
        end.arm();
        if end.poll(&mut space) != 0 {
            break;
        }
        assert!(Instant::now() < limit, "no completion");
        end.await_event(Some(TIMEOUT));
    }
    (space[0].wr_id, space[0].status)
}

fn change(end: &ConnectionEnd) -> Change {
    let limit = Instant::now() + TIMEOUT;
    loop {
        if let Some(change) = end.change() {
            return change;
        }
        assert!(Instant::now() < limit, "no change");
        wait_readable([end.changes_fd()], Some(TIMEOUT)).unwrap();
    }
}

fn call(listener: &PortListener) -> (Caller, Vec<u8>) {
    let limit = Instant::now() + TIMEOUT;
    loop {
        if let Some(call) = listener.next_call() {
            return call;
        }
        assert!(Instant::now() < limit, "no call");
        wait_readable([listener.fd()], Some(TIMEOUT)).unwrap();
    }
}

/// Connects two ends, whose receives are in the first bytes of the memory: 4 of 1,000 bytes.
fn connected(
    client: &Arc<Port>,
    to: SocketAddr,
    listener: &PortListener,
    memory: [&Memory; 2],
) -> [ConnectionEnd; 2] {
    let with_receives = |end: ConnectionEnd, memory: &Memory| {
        for place in 0..ROOM.receives {
            let sges = [sge(memory.part(1_000 * place, 1_000))];
            end.post_receive(&RecvRequest { wr_id: place as u64, sges: &sges }).unwrap();
        }
        end
    };
    let dialled = with_receives(client.end_to(to, ROOM).unwrap(), memory[0]);
    dialled.connect(b"hello").unwrap();
    let (caller, private_data) = call(listener);
    assert_eq!(private_data, b"hello");
    let accepted = with_receives(caller.end(ROOM).unwrap(), memory[1]);
    accepted.accept(b"welcome").unwrap();
    assert_eq!(change(&dialled), Change::Established(b"welcome".to_vec()));
    [dialled, accepted]
}

#[test]
fn connections_carry_everything_over_a_lossy_network() {
    const LEN: usize = 200_000;
    let pd = domain();
    let [client, server] = [(); 2].map(|()| Port::bind(&pd, LOCALHOST).unwrap());
    let listener = server.listen().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (address, thread) = relay(server.address(), 10, Arc::clone(&stop));
    let everything =
        Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let memory = [(); 2].map(|()| Memory::new(&pd, &[0; 4_000], Access::LOCAL_WRITE));
    let source = Memory::new(&pd, &pattern(5, LEN), Access::LOCAL_WRITE);
    let target = Memory::new(&pd, &[0; LEN], everything);
    let back = Memory::new(&pd, &[0; LEN], Access::LOCAL_WRITE);
    let [dialled, accepted] = connected(&client, address, &listener, [&memory[0], &memory[1]]);

    for number in 0..100_u64 {
        let bytes = pattern(number, (number as usize * 37) % 1_000);
        send(&dialled, number, &bytes);
        let (place, status) = completion(&accepted);
        assert_eq!((place, status), (number % 4, wc::Status::Success));
        let start = 1_000 * place as usize;
        assert!(memory[1].bytes()[start..start + bytes.len()] == bytes, "message {number}");
        let sges = [sge(memory[1].part(start, 1_000))];
        accepted.post_receive(&RecvRequest { wr_id: place, sges: &sges }).unwrap();
        assert_eq!(completion(&dialled), (number, wc::Status::Success));
    }
    let first = target.cells.as_ptr() as usize;
    let aligned = first.next_multiple_of(8) - first;
    let at = |offset: usize| (target.part(offset, 0).addr, target.mr.key());
    let (remote_addr, rkey) = at(0);
    let all = [sge(source.part(0, LEN))];
    post(&dialled, 1, Operation::Write { remote_addr, rkey, imm: None }, wr::Data::Gather(&all));
    assert_eq!(completion(&dialled), (1, wc::Status::Success));
    assert!(target.bytes() == source.bytes());
    let all = [sge(back.part(0, LEN))];
    post(&dialled, 2, Operation::Read { remote_addr, rkey }, wr::Data::Gather(&all));
    assert_eq!(completion(&dialled), (2, wc::Status::Success));
    assert!(back.bytes() == source.bytes());
    let (remote_addr, rkey) = at(aligned);
    let word = [sge(back.part(0, 8))];
    let before = u64::from_ne_bytes(source.bytes()[aligned..aligned + 8].try_into().unwrap());
    for number in 0..50 {
        let add = Operation::FetchAdd { remote_addr, rkey, add: 3 };
        post(&dialled, number, add, wr::Data::Gather(&word));
        assert_eq!(completion(&dialled), (number, wc::Status::Success));
        let old = u64::from_ne_bytes(back.bytes()[..8].try_into().unwrap());
        assert_eq!(old, before.wrapping_add(3 * number), "addition {number}");
    }

    // What is wrong ends the connection, and nothing that follows it is carried out.
    let before = target.bytes();
    let wrong = Operation::Write { remote_addr, rkey: rkey ^ 1, imm: None };
    post(&dialled, 60, wrong, wr::Data::Inline(&[b"wrong"]));
    let right = Operation::Write { remote_addr, rkey, imm: None };
    post(&dialled, 61, right, wr::Data::Inline(&[b"behind it"]));
    assert_eq!(completion(&dialled), (60, wc::Status::RemAccessErr));
    assert_eq!(change(&dialled), Change::Disconnected);
    assert_eq!(change(&accepted), Change::Disconnected);
    assert!(target.bytes() == before);
    stop.store(true, Ordering::Relaxed);
    assert_ne!(thread.join().unwrap(), 0, "the relay lost no datagram");
}

#[test]
fn a_port_that_is_closed_is_known_at_once() {
    let pd = domain();
    for address in [LOCALHOST, "[::1]:0".parse().unwrap()] {
        let gone = Port::bind(&pd, address).unwrap().address();
        let client = Port::bind(&pd, "[::]:0".parse().unwrap()).unwrap();
        let end = client.end_to(gone, ROOM).unwrap();
        end.connect(b"").unwrap();
        assert_eq!(change(&end), Change::Failed(Errno::CONNREFUSED));
    }
}

#[test]
fn memory_of_a_port_is_for_those_that_it_has_accepted() {
    let pd = domain();
    let server = Port::bind(&pd, LOCALHOST).unwrap();
    let to = PeerAddress { socket: server.address(), endpoint: 0 };
    let everything =
        Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let memory = Memory::new(&pd, &[7; 8_000], everything);
    let own = Memory::new(&pd, &[0; 8_000], Access::LOCAL_WRITE);
    let stranger = Endpoint::bind(&pd, LOCALHOST, 9, Options::default()).unwrap();
    let (key, addr, into) = (memory.mr.key(), memory.part(8, 0).addr, own.part(0, 8));
    let attack = || {
        let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
        for request in [
            Request::Write { data: Data::Bytes(b"hostile".as_slice().into()), key, addr },
            Request::Read { into, key, addr },
            Request::Atomic { op, into, key, addr },
        ] {
            stranger.post(to, 1, request).unwrap();
            let status = loop {
                match next(&stranger) {
                    Event::Completed { id: 1, status } => break status,
                    Event::Completed { .. } | Event::Received { .. } => {}
                }
            };
            assert_eq!(status, Status::Refused(Reason::NotConnected));
        }
        assert!(memory.bytes() == [7; 8_000] && own.bytes() == [0; 8_000]);
    };
    attack();
    // Nobody listens.
    let client = Port::bind(&pd, LOCALHOST).unwrap();
    let end = client.end_to(server.address(), ROOM).unwrap();
    end.connect(b"").unwrap();
    assert_eq!(change(&end), Change::Refused { by_program: false, private_data: Vec::new() });
    // A call that is not accepted yet, and messages that are none of the protocol.
    let listener = server.listen().unwrap();
    for frame in [&b"\x01\x01hello"[..], b"", b"\x00message", b"\x02", b"\x07", b"\x01\x02"] {
        stranger.post(to, 2, Request::Send(frame.into())).unwrap();
    }
    let (caller, private_data) = call(&listener);
    assert_eq!(private_data, b"hello");
    attack();
    drop(caller);
    attack();
    // Others are served, and a message without a receive ends the connection of its sender alone.
    let [dialled, accepted] = connected(&client, server.address(), &listener, [&own, &memory]);
    let [other, its_peer] = connected(&client, server.address(), &listener, [&own, &memory]);
    for number in 0..=ROOM.receives as u64 {
        send(&dialled, number, b"too many");
    }
    assert_eq!(change(&dialled), Change::Disconnected);
    assert_eq!(change(&accepted), Change::Disconnected);
    send(&other, 7, b"goes on");
    assert_eq!(completion(&its_peer), (0, wc::Status::Success));
    assert_eq!(completion(&other), (7, wc::Status::Success));
    // A peer that leaves.
    drop(other);
    assert_eq!(change(&its_peer), Change::Disconnected);
}
