//! Identifiers connect to each other, and to hand-written peers, over the loopback interface.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use weft_sys::Lock;

use super::connect::ConnectParam;
use super::endpoint::Endpoint;
use super::event::{EventKind, reject};
use super::handshake;
use super::id::{Channel, CmEnd, CmPhase, Event, Id, PortSpace};
use super::incoming;
use super::limits::{REPLY_TIMEOUT, UNREAD_WAIT, UNTAKEN_TIMEOUT};
use super::option::IdOption;
use crate::hello::Identity;
use crate::limits::{PRIVATE_DATA_MAX, WEFT_PRIVATE_DATA_MAX};
use crate::qp::{AttrMask, Connection, Monitor, QpAttr, QpState};
use crate::reactor::Source as _;
use crate::{Errno, Result};

/// What takes longer is a hang.
const HANG: Duration = Duration::from_secs(240);

/// A queue pair that records the calls it gets.
#[derive(Debug)]
struct Fake {
    identity: Identity,
    seen: Lock<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    connection: Option<Connection>,
    monitor: Option<Weak<dyn Monitor>>,
    states: Vec<QpState>,
    disconnected: bool,
    unread: bool,
}

impl Fake {
    fn new(qp_num: u32) -> Arc<Self> {
        let identity = Identity { qp_num, ack_stag: qp_num + 1, gid: [9; 16], process: [0; 16] };
        Arc::new(Self { identity, seen: Lock::new(Seen::default()) })
    }

    fn end(self: &Arc<Self>) -> CmEnd {
        CmEnd { endpoint: Arc::clone(self) as _, managed: true }
    }

    fn monitor(&self) -> Arc<dyn Monitor> {
        let monitor = self.seen.lock().monitor.clone();
        monitor.and_then(|monitor| monitor.upgrade()).expect("attached")
    }
}

impl Endpoint for Fake {
    fn identity(&self) -> Identity {
        self.identity
    }

    fn attach(&self, connection: Connection, monitor: Weak<dyn Monitor>) -> Result<()> {
        let mut seen = self.seen.lock();
        seen.connection = Some(connection);
        seen.monitor = Some(monitor);
        Ok(())
    }

    fn modify(&self, attr: &QpAttr, _: AttrMask) -> Result<()> {
        self.seen.lock().states.push(attr.qp_state);
        Ok(())
    }

    fn disconnect(&self) {
        let mut seen = self.seen.lock();
        seen.disconnected = true;
        seen.connection = None;
    }

    fn has_unread(&self) -> bool {
        self.seen.lock().unread
    }
}

fn channel() -> Arc<Channel> {
    Channel::new().expect("a descriptor")
}

fn next(channel: &Channel) -> Event {
    channel.next_event(|_| ()).expect("an event")
}

fn expect(channel: &Channel, kind: EventKind) -> Event {
    let event = next(channel);
    assert_eq!(event.kind, kind, "{event:?}");
    event
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn listener_at(channel: &Arc<Channel>, at: &str) -> (Arc<Id>, SocketAddr) {
    let id = Id::new(channel, PortSpace::Connected);
    id.bind(address(at)).expect("free");
    id.listen(0).expect("bound");
    let local = id.local().expect("bound");
    (id, local)
}

fn resolved(channel: &Arc<Channel>, destination: SocketAddr) -> Arc<Id> {
    let id = Id::new(channel, PortSpace::Connected);
    id.resolve_address(None, destination).expect("a route");
    expect(channel, EventKind::AddrResolved);
    id.resolve_route().expect("resolved");
    expect(channel, EventKind::RouteResolved);
    id
}

fn param(private_data: &[u8]) -> ConnectParam {
    ConnectParam { private_data: private_data.to_vec(), responder_resources: 4, initiator_depth: 7 }
}

#[test]
fn connect_accept_and_disconnect_report_their_events() {
    for at in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"] {
        let (passive, active) = (channel(), channel());
        let (listener, at) = listener_at(&passive, at);
        let client = resolved(&active, at);
        let ours = Fake::new(0x0012_3401);
        client.connect_end(|_| ours.end(), &param(b"request")).expect("resolved");

        let request = expect(&passive, EventKind::ConnectRequest);
        assert!(Arc::ptr_eq(request.listener.as_ref().expect("a listener"), &listener));
        assert_eq!(request.param.private_data, b"request");
        assert_eq!((request.param.responder_resources, request.param.initiator_depth), (7, 4));
        assert_eq!(request.param.qp_num, 0x0012_3401);
        assert_eq!(request.id.local().expect("known").port(), at.port());
        assert_eq!(request.id.peer(), client.local());
        let theirs = Fake::new(0x0043_2102);
        let few = ConnectParam { responder_resources: 3, initiator_depth: 2, ..param(b"reply") };
        request.id.accept_end(|_| theirs.end(), &few).expect("requested");

        let established = expect(&active, EventKind::Established);
        assert_eq!(established.param.private_data, b"reply");
        assert_eq!(established.param.initiator_depth, 3);
        assert_eq!(established.param.qp_num, 0x0043_2102);
        assert_eq!(ours.seen.lock().states, [QpState::Rtr, QpState::Rts]);
        assert_eq!(theirs.seen.lock().states, [QpState::Rtr, QpState::Rts]);
        {
            let seen = ours.seen.lock();
            let connection = seen.connection.as_ref().expect("attached");
            assert!(connection.initiator && connection.early.is_empty());
            assert!(!connection.negotiated.crc, "on one host");
            assert!(connection.negotiated.rtr.is_some());
            assert_eq!(connection.peer_identity, Some(theirs.identity));
        }
        expect(&passive, EventKind::Established);

        client.disconnect().expect("connected");
        expect(&active, EventKind::Disconnected);
        assert!(ours.seen.lock().disconnected);
        assert_eq!(ours.seen.lock().states.last(), Some(&QpState::Err));
        // The disconnect waits for the completions, but only for a limited time.
        theirs.seen.lock().unread = true;
        let reported = Instant::now();
        theirs.monitor().disconnected();
        expect(&passive, EventKind::Disconnected);
        assert!(reported.elapsed() >= UNREAD_WAIT);
        theirs.monitor().disconnected();
        request.id.disconnect().expect("flushes");
        assert_eq!(theirs.seen.lock().states.last(), Some(&QpState::Err));
        expect(&active, EventKind::TimewaitExit);
        expect(&passive, EventKind::TimewaitExit);
        for id in [&client, &request.id, &listener] {
            id.destroy();
        }
    }
}

/// With both sides on one channel the order of their events shows that the passive side's is queued
/// before the peer can have the reply.
#[test]
fn established_is_reported_at_the_passive_side_first() {
    let channel = channel();
    let (listener, at) = listener_at(&channel, "127.0.0.1:0");
    let mut ids = vec![listener];
    for number in 1..=100 {
        let client = resolved(&channel, at);
        let (ours, theirs) = (Fake::new(number), Fake::new(1_000 + number));
        client.connect_end(|_| ours.end(), &param(b"")).expect("resolved");
        let request = expect(&channel, EventKind::ConnectRequest);
        request.id.accept_end(|_| theirs.end(), &param(b"")).expect("requested");
        let passive = expect(&channel, EventKind::Established);
        assert!(Arc::ptr_eq(&passive.id, &request.id), "connection {number}");
        let active = expect(&channel, EventKind::Established);
        assert!(Arc::ptr_eq(&active.id, &client), "connection {number}");
        ids.extend([client, request.id]);
    }
    ids.iter().for_each(|id| id.destroy());
}

#[test]
fn rejection_by_program_destroyed_listener_or_closed_port_is_reported() {
    let (passive, active) = (channel(), channel());
    let (listener, at) = listener_at(&passive, "127.0.0.1:0");
    let ours = Fake::new(1);

    let client = resolved(&active, at);
    client.connect_end(|_| ours.end(), &param(b"")).expect("resolved");
    let request = expect(&passive, EventKind::ConnectRequest);
    request.id.reject(b"go away").expect("requested");
    let rejected = expect(&active, EventKind::Rejected);
    assert_eq!(rejected.status, reject::CONSUMER_DEFINED);
    assert_eq!(rejected.param.private_data, b"go away");
    assert_eq!(ours.seen.lock().states, [QpState::Err]);
    assert_eq!(request.id.reject(b"").unwrap_err(), Errno::INVAL);

    // A destroyed listener rejects requests that its program has not taken.
    let client = resolved(&active, at);
    client.connect_end(|_| ours.end(), &param(b"")).expect("resolved");
    while is_empty(&passive) {
        std::thread::sleep(Duration::from_millis(1));
    }
    listener.destroy();
    assert_eq!(expect(&active, EventKind::Rejected).status, reject::CONSUMER_DEFINED);
    assert!(is_empty(&passive));

    let client = resolved(&active, at);
    client.connect_end(|_| ours.end(), &param(b"")).expect("resolved");
    assert_eq!(expect(&active, EventKind::Rejected).status, reject::INVALID_SERVICE_ID);
}

/// Whether no event is queued.
fn is_empty(channel: &Channel) -> bool {
    let all = channel.extract(|_| true);
    let empty = all.is_empty();
    all.into_iter().for_each(|event| channel.post(event));
    empty
}

/// libfabric turns a passive endpoint into an active one: it binds the identifier as if to listen,
/// and then resolves with a source besides, which has no effect on a bound identifier.
#[test]
fn bound_identifier_connects_from_its_address() {
    for any in ["127.0.0.1:0", "[::1]:0"] {
        let (passive, active) = (channel(), channel());
        let (_listener, at) = listener_at(&passive, any);
        let id = Id::new(&channel(), PortSpace::Connected);
        id.bind(address(any)).expect("free");
        let bound = id.local().expect("bound");
        id.resolve_address(Some(address(any)), at).expect("a route");
        assert_eq!(id.local(), Some(bound));
        id.migrate(&active);
        expect(&active, EventKind::AddrResolved);
        id.resolve_route().expect("resolved");
        expect(&active, EventKind::RouteResolved);
        let ours = Fake::new(0x0012_3401);
        id.connect_end(|_| ours.end(), &param(b"")).expect("resolved");
        let request = expect(&passive, EventKind::ConnectRequest);
        assert_eq!(request.id.peer(), Some(bound));
        assert_eq!(id.local(), Some(bound));
    }
}

#[test]
fn request_beyond_the_backlog_is_rejected() {
    let (passive, active) = (channel(), channel());
    let listener = Id::new(&passive, PortSpace::Connected);
    listener.bind(address("127.0.0.1:0")).expect("free");
    listener.listen(1).expect("bound");
    let at = listener.local().expect("bound");
    let ours = Fake::new(1);
    let first = resolved(&active, at);
    first.connect_end(|_| ours.end(), &param(b"")).expect("resolved");
    while is_empty(&passive) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let second = resolved(&active, at);
    second.connect_end(|_| ours.end(), &param(b"")).expect("resolved");
    expect(&active, EventKind::Rejected);
    expect(&passive, EventKind::ConnectRequest);
    let third = resolved(&active, at);
    third.connect_end(|_| ours.end(), &param(b"")).expect("resolved");
    expect(&passive, EventKind::ConnectRequest);
    for id in [first, second, third, listener] {
        id.destroy();
    }
}

#[test]
fn tcp_listener_of_the_program_is_not_dialled() {
    let (passive, active) = (channel(), channel());
    let own = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = own.local_addr().expect("bound");
    let listener = Id::new(&passive, PortSpace::Connected);
    listener.bind(at).expect("RDMA ports are others");
    listener.listen(0).expect("bound");
    let client = resolved(&active, at);
    let ours = Fake::new(1);
    client.connect_end(|_| ours.end(), &param(b"")).expect("resolved");
    expect(&passive, EventKind::ConnectRequest);
    own.set_nonblocking(true).expect("possible");
    assert!(own.accept().is_err());
    let second = Id::new(&passive, PortSpace::Connected);
    assert_eq!(second.bind(at).unwrap_err(), Errno::ADDRINUSE);
}

#[test]
fn connection_without_a_queue_pair_of_ours_connects_and_disconnects() {
    let (passive, active) = (channel(), channel());
    let (_listener, at) = listener_at(&passive, "127.0.0.1:0");
    let client = resolved(&active, at);
    let via = super::Via::External(0x77);
    client.connect(&via, &param(b"hello")).expect("resolved");
    let request = expect(&passive, EventKind::ConnectRequest);
    assert_eq!(request.param.qp_num, 0x77);
    let (attr, _) = request.id.qp_attributes(QpState::Rtr).expect("the peer is known");
    assert_eq!((attr.dest_qp_num, attr.max_dest_rd_atomic), (0x77, 7));
    request.id.accept(&super::Via::External(0x88), &param(b"welcome")).expect("requested");
    let response = expect(&active, EventKind::ConnectResponse);
    assert_eq!(response.param.private_data, b"welcome");
    let (attr, mask) = client.qp_attributes(QpState::Rts).expect("the peer is known");
    assert_eq!(attr.max_rd_atomic, 4);
    assert!(mask.contains(AttrMask::STATE | AttrMask::MAX_QP_RD_ATOMIC));
    expect(&passive, EventKind::Established);
    client.establish().expect("responded");
    request.id.disconnect().expect("connected");
    expect(&passive, EventKind::Disconnected);
    expect(&active, EventKind::Disconnected);
}

#[test]
fn active_side_may_reject_after_the_peer_accepted() {
    let (passive, active) = (channel(), channel());
    let (_listener, at) = listener_at(&passive, "127.0.0.1:0");
    let client = resolved(&active, at);
    client.connect(&super::Via::External(5), &param(b"")).expect("resolved");
    let request = expect(&passive, EventKind::ConnectRequest);
    request.id.accept(&super::Via::External(6), &param(b"")).expect("requested");
    expect(&active, EventKind::ConnectResponse);
    client.reject(b"").expect("responded");
    expect(&passive, EventKind::Established);
    expect(&passive, EventKind::Disconnected);
}

#[test]
fn queued_events_move_with_a_migrated_identifier() {
    let (first, second, active) = (channel(), channel(), channel());
    let (listener, at) = listener_at(&first, "127.0.0.1:0");
    let client = resolved(&active, at);
    client.connect(&super::Via::External(5), &param(b"")).expect("resolved");
    while is_empty(&first) {
        std::thread::sleep(Duration::from_millis(1));
    }
    listener.migrate(&second);
    assert!(is_empty(&first));
    let request = expect(&second, EventKind::ConnectRequest);
    request.id.accept(&super::Via::External(6), &param(b"")).expect("requested");
    expect(&active, EventKind::ConnectResponse);
    client.establish().expect("responded");
    expect(&second, EventKind::Established);
}

#[test]
fn nonblocking_channel_without_events_is_eagain() {
    let channel = channel();
    let flags = fcntl_getfl(channel.as_fd()).expect("open");
    fcntl_setfl(channel.as_fd(), flags | OFlags::NONBLOCK).expect("open");
    assert_eq!(channel.next_event(|_| ()).unwrap_err(), Errno::AGAIN);
}

#[test]
fn calls_in_a_wrong_state_or_with_a_wrong_address_fail() {
    let channel = channel();
    let id = Id::new(&channel, PortSpace::Connected);
    assert_eq!(id.resolve_route().unwrap_err(), Errno::INVAL);
    assert_eq!(id.connect(&super::Via::External(1), &param(b"")).unwrap_err(), Errno::INVAL);
    assert_eq!(id.establish().unwrap_err(), Errno::INVAL);
    assert_eq!(id.disconnect().unwrap_err(), Errno::INVAL);
    assert_eq!(id.bind(address("192.0.2.1:0")).unwrap_err(), Errno::ADDRNOTAVAIL);
    id.bind(address("127.0.0.1:0")).expect("free");
    assert_eq!(id.bind(address("127.0.0.1:0")).unwrap_err(), Errno::INVAL);
    assert_eq!(id.resolve_address(None, address("[::1]:5")).unwrap_err(), Errno::INVAL);
    id.resolve_address(None, address("127.0.0.1:5")).expect("a route");
    assert_eq!(id.listen(0).unwrap_err(), Errno::INVAL);
    assert_eq!(id.set_option(IdOption::ReuseAddress(true)).unwrap_err(), Errno::INVAL);
    id.resolve_route().expect("resolved");
    let long = ConnectParam { private_data: vec![0; 509], ..ConnectParam::default() };
    assert_eq!(id.connect(&super::Via::External(1), &long).unwrap_err(), Errno::INVAL);
    let deep = ConnectParam { initiator_depth: 129, ..ConnectParam::default() };
    assert_eq!(id.connect(&super::Via::External(1), &deep).unwrap_err(), Errno::INVAL);
}

#[test]
fn reuseaddr_and_af_only_decide_which_ports_can_be_shared() {
    let channel = channel();
    let reuse = || {
        let id = Id::new(&channel, PortSpace::Connected);
        id.set_option(IdOption::ReuseAddress(true)).expect("idle");
        id
    };
    let (first, second) = (reuse(), reuse());
    let (_listener, taken) = listener_at(&channel, "127.0.0.1:0");
    first.bind(taken).expect("shared until somebody listens");
    second.bind(taken).expect("shared until somebody listens");
    assert_eq!(first.listen(0).unwrap_err(), Errno::ADDRINUSE);

    let four = Id::new(&channel, PortSpace::Connected);
    four.bind(address("0.0.0.0:0")).expect("free");
    four.listen(0).expect("bound");
    let mut any = address("[::]:0");
    any.set_port(four.local().expect("bound").port());
    let six = Id::new(&channel, PortSpace::Connected);
    assert_eq!(six.bind(any).unwrap_err(), Errno::ADDRINUSE);
    six.set_option(IdOption::AfOnly(true)).expect("idle");
    six.set_option(IdOption::Tos(0x10)).expect("any time");
    six.bind(any).expect("another family");
    six.listen(0).expect("bound");
}

/// Sends the request of rping on siw, from a capture, and checks the reply to this foreign peer.
#[test]
fn reply_to_a_foreign_peer_has_no_trailer() {
    let passive = channel();
    let (_listener, at) = listener_at(&passive, "127.0.0.1:0");
    let mut peer = TcpStream::connect(at).expect("the RDMA port itself");
    peer.write_all(b"MPA ID Req Frame\x10\x02\0\x04\0\x01\0\x01").expect("connected");
    let request = expect(&passive, EventKind::ConnectRequest);
    assert_eq!((request.param.responder_resources, request.param.initiator_depth), (1, 1));
    assert!(request.param.private_data.is_empty());
    assert!((2..256).contains(&request.param.qp_num));
    let ours = Fake::new(1);
    request.id.accept_end(|_| ours.end(), &param(b"yes")).expect("requested");
    let mut reply = [0; 27];
    peer.read_exact(&mut reply).expect("a reply");
    assert_eq!(&reply, b"MPA ID Rep Frame\x10\x02\0\x07\0\x01\0\x01yes");
}

/// A program that has seen a readable channel gets that event even if the peer acts meanwhile:
/// otherwise the program would wait for another event, which may never come.
#[test]
fn queued_request_stays_when_its_peer_gives_up() {
    let passive = channel();
    let (_listener, at) = listener_at(&passive, "127.0.0.1:0");
    let ask = || {
        let mut peer = TcpStream::connect(at).expect("listening");
        peer.write_all(b"MPA ID Req Frame\x10\x02\0\x04\0\x01\0\x01").expect("connected");
        peer
    };
    let wait_until = |is_so: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < HANG, "it never comes");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    // The peer's close may be noticed a little later.
    let accept_until_it_is_over = |request: &Event| {
        let ours = Fake::new(1);
        wait_until(&|| match request.id.accept_end(|_| ours.end(), &param(b"")) {
            Err(error) => error == Errno::CONNRESET,
            Ok(()) => true,
        });
        request.id.destroy();
    };
    let (before, after) = (ask(), ask());
    wait_until(&|| !is_empty(&passive));
    drop(before);
    accept_until_it_is_over(&expect(&passive, EventKind::ConnectRequest));
    let request = expect(&passive, EventKind::ConnectRequest);
    drop(after);
    accept_until_it_is_over(&request);

    // A request whose event the program does not take for a long time is rejected.
    let mut silent = ask();
    wait_until(&|| !is_empty(&passive));
    let queued = passive.extract(|_| true);
    let incoming = queued.iter().map(|event| incoming_of(&event.id)).next().expect("the request");
    queued.into_iter().for_each(|event| passive.post(event));
    // Call the timer's function for a time that is too far off to wait for.
    incoming.expired(Instant::now() + UNTAKEN_TIMEOUT);
    silent.set_read_timeout(Some(HANG)).expect("possible");
    let mut reject = Vec::new();
    silent.read_to_end(&mut reject).expect("the end behind a reject");
    assert!(reject.starts_with(b"MPA ID Rep Frame"), "{reject:?}");
    assert!(!is_empty(&passive), "what it has seen is still there");
    let request = expect(&passive, EventKind::ConnectRequest);
    let refused = request.id.accept_end(|_| Fake::new(1).end(), &param(b""));
    assert_eq!(refused.expect_err("it is over"), Errno::CONNRESET);
    request.id.destroy();
}

/// Returns the connection of a request that has not been answered.
fn incoming_of(request: &Id) -> Arc<incoming::Incoming> {
    match &request.lock().phase {
        CmPhase::Requested { incoming, .. } => Arc::clone(incoming),
        _ => panic!("a request"),
    }
}

/// Malformed bytes end their own connection and nothing else.
#[test]
fn malformed_request_closes_only_its_own_connection() {
    let (passive, active) = (channel(), channel());
    let (_listener, at) = listener_at(&passive, "127.0.0.1:0");
    let good = b"MPA ID Req Frame\x10\x02\0\x04\0\x01\0\x01";
    let mut bad: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"MPA ID Rep Frame\x10\x02\0\x04\0\x01\0\x01".to_vec(),
        b"MPA ID Req Frame\x10\x02\xff\xff\0\x01\0\x01".to_vec(),
        b"MPA ID Req Frame\x10\x03\0\x04\0\x01\0\x01".to_vec(),
        b"MPA ID Req Frame\x10\x02\0\x02\0\x01".to_vec(),
        [good.as_slice(), b"early"].concat(),
    ];
    bad.push((0..100_000).map(|i| (i % 251) as u8).collect());
    for bytes in &bad {
        let mut peer = TcpStream::connect(at).expect("listening");
        // The listener may close before it has received all bytes.
        let _ = peer.write_all(bytes);
        assert_closed(peer);
    }
    // An incomplete request is closed after a timeout; half a request and a reset at once.
    let mut slow = TcpStream::connect(at).expect("listening");
    slow.write_all(&good[..10]).expect("connected");
    assert_closed(slow);
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(TcpStream::connect(at).expect("the kernel's queue has room"));
    }
    let client = resolved(&active, at);
    client.connect(&super::Via::External(5), &param(b"")).expect("resolved");
    let start = Instant::now();
    expect(&passive, EventKind::ConnectRequest);
    // One after the other, the timeouts of the idle ones would take four times as long.
    assert!(start.elapsed() < HANG);
    drop(idle);
}

fn assert_closed(mut peer: TcpStream) {
    peer.set_read_timeout(Some(HANG)).expect("possible");
    let mut rest = Vec::new();
    match peer.read_to_end(&mut rest) {
        Ok(_) => assert!(rest.is_empty(), "{rest:?}"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
    }
}

/// A dialler reports how a peer fails to answer.
#[test]
fn dialler_reports_peers_that_close_or_do_not_speak_mpa() {
    let active = channel();
    let own = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = own.local_addr().expect("bound");
    let dial = || {
        let client = resolved(&active, at);
        client.connect(&super::Via::External(5), &param(b"")).expect("resolved");
        let (mut peer, _) = own.accept().expect("a connection");
        let mut request = [0; 24];
        peer.read_exact(&mut request).expect("a request");
        // The request has no trailer, because a peer whose UDP port is closed does not run Weft.
        assert_eq!(request[16..24], [0x10, 2, 0, 4, 0x80, 4, 0xc0, 7], "S; A, IRD 4; C, D, ORD 7");
        (client, peer)
    };
    let (_client, peer) = dial();
    drop(peer);
    assert_eq!(expect(&active, EventKind::Rejected).status, reject::CONSUMER_DEFINED);

    let (_client, mut peer) = dial();
    peer.write_all(b"220 mail.example SMTP").expect("connected");
    assert_eq!(expect(&active, EventKind::ConnectError).status, -Errno::PROTO.raw_os_error());

    let (client, peer) = dial();
    let dialling = match &client.lock().phase {
        CmPhase::Dialling { dial, .. } => Arc::clone(dial),
        _ => panic!("no reply yet"),
    };
    // Call the timer's function for a time that is too far off to wait for.
    dialling.expired(Instant::now() + REPLY_TIMEOUT);
    let silent = expect(&active, EventKind::Unreachable);
    assert_eq!(silent.status, -Errno::TIMEDOUT.raw_os_error());
    drop(peer);

    let (client, peer) = dial();
    client.destroy();
    assert_closed(peer);
    assert!(is_empty(&active));
}

/// Starts a listener on a port that its program has named, and may therefore also want as a TCP
/// port.
fn named_listener(channel: &Arc<Channel>) -> (Arc<Id>, SocketAddr) {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let chosen = free.local_addr().expect("bound");
    drop(free);
    let id = Id::new(channel, PortSpace::Connected);
    id.bind(chosen).expect("free again");
    id.listen(0).expect("bound");
    (id, chosen)
}

#[test]
fn foreign_peer_is_served_at_once_and_program_gets_the_tcp_port() {
    super::claim::announce();
    let passive = channel();
    let (_listener, at) = named_listener(&passive);
    let mut foreign = TcpStream::connect(at).expect("open from the start");
    foreign.write_all(b"MPA ID Req Frame\x00\x01\x00\x00").expect("room");
    expect(&passive, EventKind::ConnectRequest);

    TcpListener::bind(at).expect_err("taken");
    assert!(!super::claim::release(1), "nobody has it");
    assert!(super::claim::release(at.port()));
    let program = TcpListener::bind(at).expect("given up");
    assert!(!super::claim::release(at.port()), "the program's own");
    drop(program);
    // Weft peers have their own port.
    let active = channel();
    let client = resolved(&active, at);
    client.connect_end(|_| Fake::new(5).end(), &param(b"")).expect("resolved");
    expect(&passive, EventKind::ConnectRequest);
}

/// A server that serves one client after another must see the end of each connection.
#[test]
fn foreign_peer_that_closes_after_the_reply_is_reported_as_disconnected() {
    let passive = channel();
    let (_listener, at) = listener_at(&passive, "127.0.0.1:0");
    let mut peer = TcpStream::connect(at).expect("the RDMA port itself");
    // Offers a zero-length Write, which it then does not send.
    peer.write_all(b"MPA ID Req Frame\x10\x02\0\x04\x80\x01\x80\x01").expect("connected");
    let request = expect(&passive, EventKind::ConnectRequest);
    request.id.accept(&super::Via::External(6), &param(b"")).expect("requested");
    peer.read_exact(&mut [0; 24]).expect("a reply");
    drop(peer);
    expect(&passive, EventKind::Established);
    expect(&passive, EventKind::Disconnected);
}

#[test]
fn private_data_may_fill_the_frame() {
    let (passive, active) = (channel(), channel());
    let data: Vec<u8> = (0..PRIVATE_DATA_MAX).map(|i| i as u8).collect();
    let frame = [b"\x10\x02\x02\0\0\x01\0\x01".as_slice(), &data].concat();

    // To a foreign listener and back.
    let own = TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = resolved(&active, own.local_addr().expect("bound"));
    client.connect(&super::Via::External(5), &param(&data)).expect("it fits");
    let (mut peer, _) = own.accept().expect("a connection");
    let mut request = vec![0; 16 + frame.len()];
    peer.read_exact(&mut request).expect("a request");
    assert_eq!(request[18..20], [2, 0], "512 bytes");
    assert_eq!(request[24..], data);
    peer.write_all(&[b"MPA ID Rep Frame".as_slice(), &frame].concat()).expect("connected");
    assert_eq!(expect(&active, EventKind::ConnectResponse).param.private_data, data);

    // From a foreign peer and back.
    let (_listener, at) = listener_at(&passive, "127.0.0.1:0");
    let mut peer = TcpStream::connect(at).expect("the RDMA port itself");
    peer.write_all(&[b"MPA ID Req Frame".as_slice(), &frame].concat()).expect("connected");
    let request = expect(&passive, EventKind::ConnectRequest);
    assert_eq!(request.param.private_data, data);
    request.id.accept_end(|_| Fake::new(1).end(), &param(&data)).expect("it fits");
    let mut reply = vec![0; 16 + frame.len()];
    peer.read_exact(&mut reply).expect("a reply");
    assert_eq!(reply[24..], data);
    expect(&passive, EventKind::Established);

    // The trailer of a Weft peer needs a part of the frame.
    let weft = &data[..WEFT_PRIVATE_DATA_MAX];
    let client = resolved(&active, at);
    client.connect(&super::Via::External(5), &param(weft)).expect("it fits");
    let request = expect(&passive, EventKind::ConnectRequest);
    assert_eq!(request.param.private_data, weft);
    let long = request.id.accept(&super::Via::External(6), &param(&data));
    assert_eq!(long.unwrap_err(), Errno::INVAL);
    request.id.accept(&super::Via::External(6), &param(weft)).expect("it fits");
    assert_eq!(expect(&active, EventKind::ConnectResponse).param.private_data, weft);
    let client = resolved(&active, at);
    client.connect(&super::Via::External(5), &param(&data)).expect("nobody knows yet");
    let status = expect(&active, EventKind::ConnectError).status;
    assert_eq!(status, -Errno::INVAL.raw_os_error());
}

#[test]
fn request_still_waits_when_the_answer_does_not_fit() {
    let channel = channel();
    let (listener, at) = listener_at(&channel, "127.0.0.1:0");
    let client = resolved(&channel, at);
    let (ours, theirs) = (Fake::new(0x0012_3401), Fake::new(0x0056_7801));
    client.connect_end(|_| ours.end(), &param(&[])).expect("resolved");
    let request = expect(&channel, EventKind::ConnectRequest).id;
    let incoming = incoming_of(&request);
    let params = handshake::params(at.ip(), at.ip(), 1, 1, handshake::RTR_OFFERED);
    let too_long = incoming::accept(&incoming, params, &[0; PRIVATE_DATA_MAX + 1]);
    assert_eq!(too_long.err(), Some(Errno::INVAL));
    request.accept_end(|_| theirs.end(), &param(b"again")).expect("the request still waits");
    expect(&channel, EventKind::Established);
    assert_eq!(expect(&channel, EventKind::Established).param.private_data, b"again");
    client.destroy();
    request.destroy();
    listener.destroy();
}
