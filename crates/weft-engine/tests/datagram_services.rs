//! Identifiers of the datagram port space: service ID resolution, its rejection and failure, and
//! multicast groups.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use weft_engine::Errno;
use weft_engine::cm::{Channel, ConnectParam, Event, EventKind, Id, PortSpace, Via, sidr_status};
use weft_engine::device::{self, address_of, gid_of};
use weft_engine::qp::QpState;

fn channel() -> Arc<Channel> {
    Channel::new().expect("a descriptor")
}

fn expect(channel: &Channel, kind: EventKind) -> Event {
    let event = channel.next_event(|_| ()).expect("an event");
    assert_eq!(event.kind, kind, "{event:?}");
    event
}

fn param(private_data: &[u8]) -> ConnectParam {
    ConnectParam { private_data: private_data.to_vec(), ..ConnectParam::default() }
}

fn service(channel: &Arc<Channel>, at: &str) -> (Arc<Id>, SocketAddr) {
    let id = Id::new(channel, PortSpace::Datagram);
    id.bind(at.parse().expect("an address")).expect("free");
    id.listen(0).expect("bound");
    let mut address = id.local().expect("bound");
    if address.ip().is_unspecified() {
        address.set_ip([127, 0, 0, 1].into());
    }
    (id, address)
}

fn client(channel: &Arc<Channel>, at: SocketAddr, private_data: &[u8]) -> Arc<Id> {
    let id = Id::new(channel, PortSpace::Datagram);
    id.resolve_address(None, at).expect("a route");
    expect(channel, EventKind::AddrResolved);
    id.resolve_route().expect("resolved");
    expect(channel, EventKind::RouteResolved);
    id.connect(&Via::External(1), &param(private_data)).expect("the call succeeds");
    id
}

#[test]
fn a_service_resolves_at_every_address() {
    for at in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0", "[::1]:0"] {
        let (passive, active) = (channel(), channel());
        let (listener, mut address) = service(&passive, at);
        if at == "[::1]:0" {
            address.set_ip("::1".parse().expect("an address"));
        }
        let id = client(&active, address, b"where?");
        let request = expect(&passive, EventKind::ConnectRequest);
        assert!(Arc::ptr_eq(request.owner(), &listener));
        assert_eq!(request.param.private_data, b"where?");
        assert_eq!(request.id.peer(), id.local());
        assert_eq!(request.id.local(), Some(address));
        request.id.accept(&Via::External(0x1234), &param(b"here")).expect("the call succeeds");
        assert_eq!(request.id.reject(b"").unwrap_err(), Errno::INVAL, "once");
        let found = expect(&active, EventKind::Established);
        assert_eq!((found.param.qp_num, found.status), (0x1234, 0));
        assert_eq!(found.param.private_data, b"here");
        let datagram = found.param.datagram.expect("where to send");
        let route = datagram.address.global.expect("a GID");
        // The source is an address of the loopback device, of the family of the service's address.
        let devices = device::list().expect("interfaces are listed");
        let own = devices[0].addresses[usize::from(route.sgid_index)];
        assert_eq!((address_of(route.dgid), own.is_ipv4()), (own, address.is_ipv4()));
        assert_ne!(datagram.qkey, 0);
        for id in [&id, &request.id, &listener] {
            id.destroy();
        }
    }
}

#[test]
fn a_rejection_is_reported_as_unreachable_with_its_status() {
    let (passive, active) = (channel(), channel());
    let (listener, address) = service(&passive, "127.0.0.1:0");
    let _first = client(&active, address, b"");
    expect(&passive, EventKind::ConnectRequest).id.reject(b"no").expect("the call succeeds");
    let refused = expect(&active, EventKind::Unreachable);
    assert_eq!((refused.status, refused.param.private_data), (sidr_status::REJECT, b"no".to_vec()));
    // A request that the program destroys unanswered is rejected, too.
    let _second = client(&active, address, b"");
    expect(&passive, EventKind::ConnectRequest).id.destroy();
    assert_eq!(expect(&active, EventKind::Unreachable).status, sidr_status::REJECT);
    listener.destroy();
}

#[test]
fn a_port_without_a_service_is_reported_as_unsupported() {
    let taken = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let address = taken.local_addr().expect("bound");
    // The port stays taken. Datagrams that do not come from this peer meet a closed port.
    taken.connect("127.0.0.1:9").expect("a route");
    let active = channel();
    let _id = client(&active, address, b"");
    let refused = expect(&active, EventKind::Unreachable);
    assert_eq!(refused.status, sidr_status::UNSUPPORTED);
}

#[test]
fn a_lost_request_is_retransmitted_and_a_duplicate_is_delivered_once() {
    // A relay drops the first request and sends the second one three times.
    let (passive, active) = (channel(), channel());
    let (listener, address) = service(&passive, "127.0.0.1:0");
    let relay = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let at = relay.local_addr().expect("bound");
    let (sent, all_sent) = std::sync::mpsc::channel();
    let relaying = std::thread::spawn(move || {
        let mut buffer = [0; 512];
        let (_, client) = relay.recv_from(&mut buffer).expect("the first request");
        let (length, _) = relay.recv_from(&mut buffer).expect("the second request");
        // Put the service's port into the request, so that the service accepts it.
        buffer[10..12].copy_from_slice(&address.port().to_be_bytes());
        for _ in 0..3 {
            relay.send_to(&buffer[..length], address).expect("sent");
        }
        sent.send(()).expect("the test waits");
        // The client repeats its request until it has the reply.
        let length = loop {
            let (length, from) = relay.recv_from(&mut buffer).expect("a reply");
            if from == address {
                break length;
            }
        };
        relay.send_to(&buffer[..length], client).expect("sent");
    });
    let _id = client(&active, at, b"");
    let request = expect(&passive, EventKind::ConnectRequest);
    // A later request is delivered next, so the duplicates before it were not.
    all_sent.recv().expect("the relay has sent all");
    let _later = client(&channel(), address, b"later");
    let later = expect(&passive, EventKind::ConnectRequest);
    assert_eq!(later.param.private_data, b"later", "a duplicate of the request was delivered");
    later.id.destroy();
    request.id.accept(&Via::External(7), &param(b"")).expect("the call succeeds");
    assert_eq!(expect(&active, EventKind::Established).param.qp_num, 7);
    relaying.join().expect("relayed");
    listener.destroy();
}

#[test]
fn garbage_is_not_answered() {
    let passive = channel();
    let (listener, address) = service(&passive, "127.0.0.1:0");
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let mut rng = fastrand::Rng::with_seed(3);
    for _ in 0..300 {
        let noise: Vec<u8> = (0..rng.usize(..600)).map(|_| rng.u8(..)).collect();
        stranger.send_to(&noise, address).expect("sent");
    }
    let active = channel();
    let _id = client(&active, address, b"sound");
    let request = expect(&passive, EventKind::ConnectRequest);
    assert_eq!(request.param.private_data, b"sound");
    stranger.set_nonblocking(true).expect("a socket");
    assert!(stranger.recv(&mut [0; 1]).is_err(), "garbage was answered");
    request.id.destroy();
    listener.destroy();
}

#[test]
fn a_group_is_joined_once_and_left_once() {
    let channel = channel();
    let id = Id::new(&channel, PortSpace::Datagram);
    let group = IpAddr::from([239, 255, 3, 4]);
    assert_eq!(id.join_multicast(group, false, 0), Err(Errno::INVAL), "no device yet");
    id.bind("127.0.0.1:0".parse().expect("an address")).expect("free");
    assert_eq!(id.join_multicast([10, 0, 0, 1].into(), false, 0), Err(Errno::INVAL));
    id.join_multicast(group, true, 0x77).expect("a group");
    assert_eq!(id.join_multicast(group, false, 0), Err(Errno::ADDRINUSE));
    let joined = expect(&channel, EventKind::MulticastJoin);
    assert_eq!(joined.param.qp_num, 0xff_ffff);
    let datagram = joined.param.datagram.expect("where to send");
    assert_eq!(datagram.address.global.expect("a GID").dgid, gid_of(group));
    assert_eq!((datagram.context, datagram.sends_only), (0x77, true));
    id.leave_multicast(group).expect("a member");
    assert_eq!(id.leave_multicast(group), Err(Errno::ADDRNOTAVAIL));
    id.destroy();
}

#[test]
fn calls_in_a_wrong_state_fail() {
    let channel = channel();
    let id = Id::new(&channel, PortSpace::Datagram);
    assert_eq!(id.connect(&Via::External(1), &param(b"")).unwrap_err(), Errno::INVAL);
    assert_eq!(id.accept(&Via::External(1), &param(b"")).unwrap_err(), Errno::INVAL);
    assert_eq!(id.reject(b"").unwrap_err(), Errno::INVAL);
    let (first, address) = service(&channel, "127.0.0.1:0");
    let second = Id::new(&channel, PortSpace::Datagram);
    assert_eq!(second.bind(address).unwrap_err(), Errno::ADDRINUSE);
    assert_eq!(first.listen(0).unwrap_err(), Errno::INVAL);
    for (state, has_attributes) in
        [(QpState::Init, true), (QpState::Rtr, true), (QpState::Rts, true), (QpState::Sqd, false)]
    {
        assert_eq!(first.qp_attributes(state).is_ok(), has_attributes);
    }
    let long = param(&[0; 197]);
    let id = Id::new(&channel, PortSpace::Datagram);
    id.resolve_address(None, address).expect("a route");
    expect(&channel, EventKind::AddrResolved);
    id.resolve_route().expect("resolved");
    assert_eq!(id.connect(&Via::External(1), &long).unwrap_err(), Errno::INVAL);
    first.destroy();
    second.destroy();
}
