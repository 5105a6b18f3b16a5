//! Queue pairs of type UD: delivery, dropped datagrams, completions, and states.

mod common;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use common::{Endpoint, Host, Memory, no_event, poll_one, poll_some, signalled, to_state};
use weft_engine::access::Access;
use weft_engine::channel::CompChannel;
use weft_engine::cq::Cq;
use weft_engine::limits::DATAGRAM_MAX;
use weft_engine::pd::Pd;
use weft_engine::qp::{AddressVector, AttrMask, GlobalRoute, QpAttr, QpState, QpType};
use weft_engine::srq::{Srq, SrqAttr};
use weft_engine::ud::AddressHandle;
use weft_engine::wc::{Completion, FLAG_GRH, FLAG_WITH_IMM, Opcode, Status};
use weft_engine::wr::{Data, Destination, Operation, RecvRequest, SendFlags, SendRequest};
use weft_engine::{Errno, device};
use weft_wire::datagram::{Header, MULTICAST_QP};

const QKEY: u32 = 0x1111_1111;
const GRH_LEN: usize = 40;

/// Creates a UD endpoint in RTS.
fn endpoint(host: &Host) -> Endpoint {
    ready(host.endpoint_of(|init| init.qp_type = QpType::Ud))
}

fn ready(end: Endpoint) -> Endpoint {
    to_init(&end);
    to_state(&end.qp, QpState::Rtr);
    let rts = QpAttr { qp_state: QpState::Rts, ..QpAttr::default() };
    end.qp.modify(&rts, AttrMask::STATE | AttrMask::SQ_PSN).expect("RTS");
    end
}

fn to_init(end: &Endpoint) {
    let init = QpAttr { qp_state: QpState::Init, qkey: QKEY, port_num: 1, ..QpAttr::default() };
    let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
    end.qp.modify(&init, mask).expect("INIT");
}

/// Creates an address handle for this host.
fn handle(host: &Host) -> Arc<AddressHandle> {
    let dgid = host.context.device().gids()[0];
    let global = Some(GlobalRoute { dgid, ..GlobalRoute::default() });
    let vector = AddressVector { global, port_num: 1, ..AddressVector::default() };
    AddressHandle::new(&host.pd, &vector).expect("an address handle")
}

fn to(host: &Host, end: &Endpoint) -> Operation {
    let to = Destination { ah: handle(host), qp_num: end.qp.number(), qkey: QKEY };
    Operation::Datagram { to, imm: None }
}

/// Sends a datagram to a queue pair from a new socket, as a program without Weft could.
fn send_as_stranger(end: &Endpoint, datagram: &[u8]) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let port = (end.qp.number() >> 8) as u16;
    socket.send_to(datagram, SocketAddr::from(([127, 0, 0, 1], port))).expect("sent");
}

fn status_of(completion: &Completion) -> (u64, Status) {
    (completion.wr_id, completion.status)
}

#[test]
fn a_datagram_arrives_after_its_global_routing_header() {
    let host = Host::new();
    let (a, b) = (endpoint(&host), endpoint(&host));
    let from = Memory::new(&host, 4096, Access::empty());
    let place = Memory::new(&host, 8192, Access::LOCAL_WRITE);
    from.fill(|i| (i * 7) as u8);
    b.receive(5, &[place.sge(0, 100), place.sge(100, 8000)]);
    a.post(&signalled(1, to(&host, &b), Data::Gather(&[from.sge(0, 96), from.sge(96, 4000)])));
    let received = poll_one(&b.recv_cq);
    assert_eq!(status_of(&received), (5, Status::Success));
    assert_eq!((received.opcode, received.byte_len), (Opcode::Recv, 4096 + 40));
    assert_eq!((received.src_qp, received.slid), (a.qp.number(), 1), "127.0.0.1");
    assert_eq!(received.wc_flags, FLAG_GRH);
    let bytes = place.bytes();
    assert_eq!(bytes[20], 0x45, "an IPv4 header");
    assert_eq!(bytes[32..40], [127, 0, 0, 1, 127, 0, 0, 1], "from and to");
    assert_eq!(bytes[GRH_LEN..GRH_LEN + 4096], from.bytes());
    let sent = poll_one(&a.send_cq);
    assert_eq!((sent.wr_id, sent.status, sent.opcode), (1, Status::Success, Opcode::Send));
}

#[test]
fn a_queue_pair_sends_datagrams_of_the_longest_length_to_itself() {
    let host = Host::new();
    let a = endpoint(&host);
    let (from, place) = (
        Memory::new(&host, DATAGRAM_MAX as usize + 1, Access::empty()),
        Memory::new(&host, DATAGRAM_MAX as usize + GRH_LEN, Access::LOCAL_WRITE),
    );
    from.fill(|i| (i / 3) as u8);
    a.receive(5, &[place.sge(0, DATAGRAM_MAX as usize + GRH_LEN)]);
    let longest = [from.sge(0, DATAGRAM_MAX as usize)];
    a.post(&signalled(1, to(&host, &a), Data::Gather(&longest)));
    assert_eq!(poll_one(&a.recv_cq).byte_len, DATAGRAM_MAX + 40);
    assert_eq!(place.bytes()[GRH_LEN..], from.bytes()[..DATAGRAM_MAX as usize]);
    assert_eq!(poll_one(&a.send_cq).status, Status::Success);
    let too_long = [from.sge(0, DATAGRAM_MAX as usize + 1)];
    let request = signalled(2, to(&host, &a), Data::Gather(&too_long));
    assert_eq!(a.qp.start_post().push(&request), Err(Errno::INVAL));
}

#[test]
fn immediate_data_and_inline_data_arrive() {
    let host = Host::new();
    let (a, b) = (endpoint(&host), endpoint(&host));
    let place = Memory::new(&host, 64, Access::LOCAL_WRITE);
    b.receive(5, &[place.sge(0, 64)]);
    let Operation::Datagram { to, .. } = to(&host, &b) else { unreachable!() };
    let operation = Operation::Datagram { to, imm: Some(0xfeed_f00d) };
    a.post(&signalled(1, operation, Data::Inline(&[b"in", b"line"])));
    let received = poll_one(&b.recv_cq);
    assert_eq!((received.wc_flags, received.imm_data), (FLAG_GRH | FLAG_WITH_IMM, 0xfeed_f00d));
    assert_eq!(place.bytes()[GRH_LEN..GRH_LEN + 6], *b"inline");
}

#[test]
fn a_burst_of_datagrams_arrives_in_order() {
    let host = Host::new();
    let (a, b) = (endpoint(&host), endpoint(&host));
    let place = Memory::new(&host, 256 * 64, Access::LOCAL_WRITE);
    for i in 0..256 {
        b.receive(i, &[place.sge(64 * i as usize, 64)]);
    }
    let mut poster = a.qp.start_post();
    for i in 0..256u64 {
        // Every tenth datagram is shorter, which ends a batch of datagrams of equal length.
        let length = if i % 10 == 9 { 3 } else { 8 };
        let bytes = [&i.to_ne_bytes()[..length]];
        let request = SendRequest {
            wr_id: i,
            operation: to(&host, &b),
            flags: if i == 255 { SendFlags::SIGNALED } else { SendFlags::empty() },
            data: Data::Inline(&bytes),
        };
        poster.push(&request).expect("room");
    }
    drop(poster);
    for i in 0..256u64 {
        assert_eq!(status_of(&poll_one(&b.recv_cq)), (i, Status::Success));
        let at = 64 * i as usize + GRH_LEN;
        assert_eq!(place.bytes()[at..at + 3], i.to_ne_bytes()[..3]);
    }
    assert_eq!(status_of(&poll_one(&a.send_cq)), (255, Status::Success));
}

#[test]
fn undeliverable_datagrams_are_dropped_without_an_error() {
    let host = Host::new();
    let (a, b) = (endpoint(&host), endpoint(&host));
    let place = Memory::new(&host, 64, Access::LOCAL_WRITE);
    let Operation::Datagram { to, .. } = to(&host, &b) else { unreachable!() };
    let send = |wr_id, qkey, length: usize| {
        let to = Destination { qkey, ..to.clone() };
        let operation = Operation::Datagram { to, imm: None };
        a.post(&signalled(wr_id, operation, Data::Inline(&[&[wr_id as u8; 64][..length]])));
        assert_eq!(status_of(&poll_one(&a.send_cq)), (wr_id, Status::Success));
    };
    send(1, QKEY, 8); // No receive is posted.
    assert!(poll_some(&b.recv_cq, 1).is_empty());
    b.receive(5, &[place.sge(0, 64)]);
    send(2, QKEY + 1, 8);
    send(3, QKEY, 25); // One byte too long with the routing header.
    assert!(poll_some(&b.recv_cq, 1).is_empty());
    send(4, QKEY, 24);
    assert_eq!(poll_one(&b.recv_cq).byte_len, 64);
    assert_eq!(place.bytes()[GRH_LEN..], [4; 24]);
    b.receive(6, &[place.sge(0, 64)]);
    send(5, QKEY | 1 << 31, 8); // Bit 31 selects the sender's own Q_Key, which is the same.
    assert_eq!(status_of(&poll_one(&b.recv_cq)), (6, Status::Success));
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Rts));
}

#[test]
fn malformed_and_misaddressed_datagrams_are_dropped() {
    let host = Host::new();
    let b = endpoint(&host);
    let place = Memory::new(&host, 128, Access::LOCAL_WRITE);
    b.receive(5, &[place.sge(0, 128)]);
    let header =
        Header { to: b.qp.number(), from: 7, qkey: QKEY, msn: 1, imm: None, solicited: false };
    let mut sound = vec![0; weft_wire::datagram::HEADER_LEN];
    header.emit(false, &mut sound);
    sound.extend_from_slice(b"hello");
    for length in 0..weft_wire::datagram::HEADER_LEN {
        send_as_stranger(&b, &sound[..length]);
    }
    let mut rng = fastrand::Rng::with_seed(7);
    for _ in 0..200 {
        let noise: Vec<u8> = (0..rng.usize(..2000)).map(|_| rng.u8(..)).collect();
        send_as_stranger(&b, &noise);
    }
    let mut elsewhere = Header { to: b.qp.number() ^ 0xff, ..header };
    let mut unknown = sound.clone();
    elsewhere.emit(false, &mut unknown);
    send_as_stranger(&b, &unknown);
    elsewhere.to = 0xff_ffff;
    elsewhere.emit(false, &mut unknown);
    send_as_stranger(&b, &unknown);
    assert!(poll_some(&b.recv_cq, 1).is_empty());
    send_as_stranger(&b, &sound);
    assert_eq!(poll_one(&b.recv_cq).src_qp, 7);
    assert_eq!(place.bytes()[GRH_LEN..GRH_LEN + 5], *b"hello");
}

#[test]
fn a_failed_send_stops_only_the_send_queue() {
    let host = Host::new();
    let (a, b) = (endpoint(&host), endpoint(&host));
    let place = Memory::new(&host, 128, Access::LOCAL_WRITE);
    let unregistered = weft_engine::wr::Sge { addr: 64, length: 8, lkey: 0x1234_5600 };
    b.receive(5, &[place.sge(0, 64)]);
    a.receive(9, &[place.sge(64, 64)]);
    let mut poster = a.qp.start_post();
    poster.push(&signalled(1, to(&host, &b), Data::Inline(&[b"good"]))).expect("room");
    poster.push(&signalled(2, to(&host, &b), Data::Gather(&[unregistered]))).expect("room");
    poster.push(&signalled(3, to(&host, &b), Data::Inline(&[b"late"]))).expect("room");
    drop(poster);
    assert_eq!(status_of(&poll_one(&a.send_cq)), (1, Status::Success));
    assert_eq!(status_of(&poll_one(&a.send_cq)), (2, Status::LocProtErr));
    assert_eq!(status_of(&poll_one(&a.send_cq)), (3, Status::WrFlushErr));
    assert_eq!(status_of(&poll_one(&b.recv_cq)), (5, Status::Success));
    assert_eq!(a.qp.state(), QpState::Sqe);
    a.post(&signalled(4, to(&host, &b), Data::Inline(&[b"late"])));
    assert_eq!(status_of(&poll_one(&a.send_cq)), (4, Status::WrFlushErr));
    b.post(&signalled(5, to(&host, &a), Data::Inline(&[b"still there?"])));
    assert_eq!(status_of(&poll_one(&a.recv_cq)), (9, Status::Success));
    to_state(&a.qp, QpState::Rts);
    b.receive(6, &[place.sge(0, 64)]);
    a.post(&signalled(6, to(&host, &b), Data::Inline(&[b"again"])));
    assert_eq!(status_of(&poll_one(&b.recv_cq)), (6, Status::Success));
}

#[test]
fn a_send_with_an_address_handle_of_another_domain_fails() {
    let host = Host::new();
    let a = endpoint(&host);
    let other = Host { context: Arc::clone(&host.context), pd: Pd::new(&host.context) };
    a.post(&signalled(1, to(&other, &a), Data::Inline(&[b"x"])));
    assert_eq!(status_of(&poll_one(&a.send_cq)), (1, Status::LocQpOpErr));
}

#[test]
fn a_receive_without_local_write_access_fails() {
    let host = Host::new();
    let (a, b) = (endpoint(&host), endpoint(&host));
    let place = Memory::new(&host, 128, Access::empty());
    b.receive(5, &[place.sge(0, 64)]);
    b.receive(6, &[place.sge(0, 64)]);
    a.post(&signalled(1, to(&host, &b), Data::Inline(&[b"x"])));
    assert_eq!(status_of(&poll_one(&b.recv_cq)), (5, Status::LocProtErr));
    assert_eq!(status_of(&poll_one(&b.recv_cq)), (6, Status::WrFlushErr));
    assert_eq!(b.qp.state(), QpState::Err);
}

#[test]
fn posting_and_flushing_depend_on_the_state() {
    let host = Host::new();
    let end = host.endpoint_of(|init| init.qp_type = QpType::Ud);
    let place = Memory::new(&host, 64, Access::LOCAL_WRITE);
    let receive = RecvRequest { wr_id: 1, sges: &[place.sge(0, 64)] };
    assert_eq!(end.qp.post_recv(&receive), Err(Errno::INVAL), "in RESET");
    to_init(&end);
    end.receive(1, &[place.sge(0, 64)]);
    let request = signalled(2, to(&host, &end), Data::Inline(&[b"early"]));
    assert_eq!(end.qp.start_post().push(&request), Err(Errno::INVAL), "in INIT");
    let end = {
        to_state(&end.qp, QpState::Reset);
        ready(end)
    };
    assert!(poll_some(&end.recv_cq, 1).is_empty(), "a reset discards receives");
    end.receive(3, &[place.sge(0, 64)]);
    to_state(&end.qp, QpState::Err);
    assert_eq!(status_of(&poll_one(&end.recv_cq)), (3, Status::WrFlushErr));
    end.receive(4, &[place.sge(0, 64)]);
    assert_eq!(status_of(&poll_one(&end.recv_cq)), (4, Status::WrFlushErr));
    end.post(&request);
    assert_eq!(status_of(&poll_one(&end.send_cq)), (2, Status::WrFlushErr));
    to_state(&end.qp, QpState::Reset);
    let end = ready(end);
    end.receive(5, &[place.sge(0, 64)]);
    end.post(&request);
    assert_eq!(status_of(&poll_one(&end.recv_cq)), (5, Status::Success));
}

#[test]
fn requests_posted_in_sqd_wait_for_rts() {
    let host = Host::new();
    let end = endpoint(&host);
    let place = Memory::new(&host, 64, Access::LOCAL_WRITE);
    end.receive(1, &[place.sge(0, 64)]);
    let sqd = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: false, ..QpAttr::default() };
    end.qp.modify(&sqd, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY).expect("SQD");
    end.post(&signalled(2, to(&host, &end), Data::Inline(&[b"later"])));
    assert!(poll_some(&end.send_cq, 1).is_empty());
    assert!(no_event(&host.context));
    to_state(&end.qp, QpState::Rts);
    assert_eq!(poll_one(&end.send_cq).wr_id, 2);
    assert_eq!(poll_one(&end.recv_cq).wr_id, 1);
}

#[test]
fn a_request_of_another_queue_pair_type_is_rejected() {
    let host = Host::new();
    let (datagram, connected) = (endpoint(&host), host.endpoint());
    common::connect(&connected, &connected);
    let request = signalled(1, to(&host, &datagram), Data::Inline(&[b"x"]));
    assert_eq!(connected.qp.start_post().push(&request), Err(Errno::INVAL));
    let request = common::send(1, Data::Inline(&[b"x"]));
    assert_eq!(datagram.qp.start_post().push(&request), Err(Errno::INVAL));
}

#[test]
fn datagrams_take_receives_of_a_shared_receive_queue() {
    let host = Host::new();
    let attr = SrqAttr { max_wr: 8, max_sge: 2, srq_limit: 0 };
    let srq = Srq::new(&host.pd, attr).expect("a shared receive queue");
    let shared = |host: &Host| {
        ready(host.endpoint_of(|init| {
            init.qp_type = QpType::Ud;
            init.srq = Some(Arc::clone(&srq));
        }))
    };
    let (a, b) = (shared(&host), shared(&host));
    let place = Memory::new(&host, 128, Access::LOCAL_WRITE);
    for wr_id in 0..2 {
        let sges = [place.sge(64 * wr_id as usize, 64)];
        srq.post(&RecvRequest { wr_id, sges: &sges }).expect("room");
    }
    a.post(&signalled(1, to(&host, &b), Data::Inline(&[b"to b"])));
    assert_eq!(poll_one(&b.recv_cq).qp_num, b.qp.number());
    b.post(&signalled(1, to(&host, &a), Data::Inline(&[b"to a"])));
    assert_eq!(status_of(&poll_one(&a.recv_cq)), (1, Status::Success));
}

#[test]
fn a_solicited_datagram_raises_an_event_for_a_solicited_arming() {
    let host = Host::new();
    let channel = CompChannel::new(&host.context).expect("a channel");
    let cq = Cq::new(&host.context, 16, Some(channel)).expect("a completion queue");
    let b = ready(host.endpoint_of(|init| {
        init.qp_type = QpType::Ud;
        init.recv_cq = Arc::clone(&cq);
    }));
    let a = endpoint(&host);
    let place = Memory::new(&host, 64, Access::LOCAL_WRITE);
    b.receive(1, &[place.sge(0, 64)]);
    b.receive(2, &[place.sge(0, 64)]);
    cq.arm(true);
    let plain = signalled(1, to(&host, &b), Data::Inline(&[b"psst"]));
    a.post(&plain);
    assert_eq!(poll_one(&b.recv_cq).wr_id, 1);
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    a.post(&SendRequest { flags, ..plain });
    let channel = cq.channel().expect("the queue was created with one");
    let event = channel.next_event().expect("an event");
    assert!(event.is(&*cq));
    assert_eq!(poll_one(&b.recv_cq).wr_id, 2);
}

#[test]
fn an_address_handle_needs_a_valid_address_vector() {
    let host = Host::new();
    let make = |vector: AddressVector| AddressHandle::new(&host.pd, &vector).map(|_| ());
    let route = GlobalRoute { dgid: device::gid_of([10, 0, 0, 1].into()), ..Default::default() };
    let good = AddressVector { global: Some(route), port_num: 1, ..AddressVector::default() };
    assert_eq!(make(good), Ok(()));
    assert_eq!(make(AddressVector { port_num: 2, ..good }), Err(Errno::INVAL));
    let unknown = GlobalRoute { sgid_index: 200, ..route };
    assert_eq!(make(AddressVector { global: Some(unknown), ..good }), Err(Errno::INVAL));
    let nowhere = GlobalRoute { dgid: [0; 16], ..route };
    assert_eq!(make(AddressVector { global: Some(nowhere), ..good }), Err(Errno::INVAL));
    assert_eq!(make(AddressVector { global: None, ..good }), Err(Errno::INVAL), "LID 0");
    assert_eq!(make(AddressVector { global: None, dlid: 7, ..good }), Ok(()));
}

/// Addresses a multicast group on this host's loopback device.
fn group(host: &Host, gid: [u8; 16]) -> Operation {
    let global = Some(GlobalRoute { dgid: gid, ..GlobalRoute::default() });
    let vector = AddressVector { global, port_num: 1, ..AddressVector::default() };
    let ah = AddressHandle::new(&host.pd, &vector).expect("an address handle");
    let to = Destination { ah, qp_num: MULTICAST_QP, qkey: QKEY };
    Operation::Datagram { to, imm: None }
}

// This tests IPv4 only: the loopback interface has no route for IPv6 multicast.
#[test]
fn a_datagram_to_a_group_reaches_all_members_but_the_sender() {
    let host = Host::new();
    let ends = [(); 3].map(|()| endpoint(&host));
    let place = Memory::new(&host, 128, Access::LOCAL_WRITE);
    let gid = device::gid_of([239, 255, 70, 1].into());
    for end in &ends {
        end.receive(1, &[place.sge(0, 128)]);
    }
    for end in &ends[..2] {
        end.qp.attach_multicast(gid).expect("a group");
        end.qp.attach_multicast(gid).expect("again");
    }
    ends[0].post(&signalled(2, group(&host, gid), Data::Inline(&[b"all"])));
    let received = poll_one(&ends[1].recv_cq);
    assert_eq!(received.src_qp, ends[0].qp.number());
    assert_eq!(place.bytes()[GRH_LEN..GRH_LEN + 3], *b"all");
    assert!(poll_some(&ends[0].recv_cq, 1).is_empty(), "the sender got its own datagram");
    assert!(poll_some(&ends[2].recv_cq, 1).is_empty(), "not a member");
    ends[2].post(&signalled(3, group(&host, gid), Data::Inline(&[b"from outside"])));
    assert_eq!(poll_one(&ends[0].recv_cq).src_qp, ends[2].qp.number());
    ends[0].qp.detach_multicast(gid).expect("attached");
    assert_eq!(ends[0].qp.detach_multicast(gid), Err(Errno::INVAL));

    let unicast = device::gid_of([10, 0, 0, 1].into());
    assert_eq!(ends[0].qp.attach_multicast(unicast), Err(Errno::INVAL));
    let connected = host.endpoint();
    assert_eq!(connected.qp.attach_multicast(gid), Err(Errno::INVAL));
}
