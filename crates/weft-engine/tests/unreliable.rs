//! Unreliable connections (UC): which operations they support, and which messages they drop
//! silently.

mod common;

use std::sync::Arc;

use common::{Endpoint, Host, Memory, init_attr, init_mask, no_event, poll_one, poll_some, send};
use common::{signalled, to_state};
use weft_engine::Errno;
use weft_engine::access::Access;
use weft_engine::qp::{AddressVector, AttrMask, GlobalRoute, Qp, QpAttr, QpState, QpType};
use weft_engine::wc::{FLAG_WITH_IMM, Opcode, Status};
use weft_engine::wr::{Data, Operation, Sge};

const EMPTY: Data<'static> = Data::Gather(&[]);

fn to_rts(qp: &Arc<Qp>, peer: &Arc<Qp>) {
    let global = Some(GlobalRoute { dgid: peer.identity().gid, ..GlobalRoute::default() });
    let rtr = QpAttr {
        qp_state: QpState::Rtr,
        path_mtu: 5,
        dest_qp_num: peer.number(),
        ah_attr: AddressVector { global, port_num: 1, ..AddressVector::default() },
        ..QpAttr::default()
    };
    let peer = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    qp.modify(&rtr, AttrMask::STATE | peer).expect("RTR");
    let rts = QpAttr { qp_state: QpState::Rts, ..QpAttr::default() };
    qp.modify(&rts, AttrMask::STATE | AttrMask::SQ_PSN).expect("RTS");
}

fn pair(host: &Host) -> (Endpoint, Endpoint) {
    let unreliable = || host.endpoint_of(|init| init.qp_type = QpType::Uc);
    let (a, b) = (unreliable(), unreliable());
    for end in [&a, &b] {
        end.qp.modify(&init_attr(), init_mask()).expect("INIT");
    }
    to_rts(&a.qp, &b.qp);
    to_rts(&b.qp, &a.qp);
    (a, b)
}

fn write(to: &Memory, rkey: u32, imm: Option<u32>) -> Operation {
    Operation::Write { remote_addr: to.addr(0), rkey, imm }
}

/// Sends a message and waits until it arrives, so that the peer has processed all messages before
/// it.
fn probe(a: &Endpoint, b: &Endpoint) {
    b.receive(99, &[]);
    a.post(&send(98, EMPTY));
    let arrived = poll_one(&b.recv_cq);
    assert_eq!((arrived.wr_id, arrived.status), (99, Status::Success));
    assert_eq!(poll_one(&a.send_cq).wr_id, 98);
}

#[test]
fn sends_and_writes_arrive_in_order() {
    let host = Host::new();
    let (a, b) = pair(&host);
    let from = Memory::new(&host, 100_000, Access::LOCAL_WRITE);
    let to = Memory::new(&host, 100_000, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    from.fill(|at| at as u8);
    b.receive(1, &[to.sge(50_000, 50_000)]);
    b.receive(2, &[]);
    a.post(&signalled(3, write(&to, to.key(), None), Data::Gather(&[from.sge(0, 50_000)])));
    a.post(&send(4, Data::Gather(&[from.sge(50_000, 50_000)])));
    a.post(&signalled(5, write(&to, to.key(), Some(77)), Data::Gather(&[from.sge(0, 8)])));
    let sent = poll_one(&b.recv_cq);
    assert_eq!((sent.wr_id, sent.opcode, sent.byte_len), (1, Opcode::Recv, 50_000));
    let written = poll_one(&b.recv_cq);
    assert_eq!((written.wr_id, written.opcode), (2, Opcode::RecvRdmaWithImm));
    assert_eq!((written.imm_data, written.wc_flags), (77, FLAG_WITH_IMM));
    assert_eq!(to.bytes(), from.bytes());
    for wr_id in 3..6 {
        let done = poll_one(&a.send_cq);
        assert_eq!((done.wr_id, done.status), (wr_id, Status::Success));
    }
}

#[test]
fn operations_that_need_a_response_are_rejected() {
    let host = Host::new();
    let (a, _b) = pair(&host);
    let memory = Memory::new(&host, 8, Access::LOCAL_WRITE);
    let sges = [memory.sge(0, 8)];
    let (remote_addr, rkey) = (memory.addr(0), memory.key());
    for operation in [
        Operation::Read { remote_addr, rkey },
        Operation::FetchAdd { remote_addr, rkey, add: 1 },
        Operation::CompareSwap { remote_addr, rkey, compare: 0, swap: 1 },
    ] {
        let request = signalled(1, operation, Data::Gather(&sges));
        assert_eq!(a.qp.start_post().push(&request), Err(Errno::INVAL));
    }
}

#[test]
fn a_message_without_a_receive_is_dropped() {
    let host = Host::new();
    let (a, b) = pair(&host);
    let to = Memory::new(&host, 8, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    for wr_id in 0..3 {
        a.post(&send(wr_id, EMPTY));
        assert_eq!(poll_one(&a.send_cq).status, Status::Success);
    }
    // A Write with immediate data places its bytes; only the immediate data is dropped.
    a.post(&signalled(3, write(&to, to.key(), Some(5)), Data::Inline(&[&[9; 8]])));
    assert_eq!(poll_one(&a.send_cq).status, Status::Success);
    while to.bytes() != [9; 8] {
        assert!(poll_some(&b.recv_cq, 1).is_empty());
    }
    probe(&a, &b);
    assert!(no_event(&host.context));
}

#[test]
fn a_message_waits_a_short_time_for_a_receive() {
    let host = Host::new();
    let (a, b) = pair(&host);
    a.post(&send(1, EMPTY));
    assert_eq!(poll_one(&a.send_cq).status, Status::Success);
    b.receive(2, &[]);
    assert_eq!(poll_one(&b.recv_cq).wr_id, 2);
}

#[test]
fn a_message_longer_than_its_receive_is_dropped_and_leaves_the_receive() {
    let host = Host::new();
    let (a, b) = pair(&host);
    let to = Memory::new(&host, 4, Access::LOCAL_WRITE);
    b.receive(1, &[to.sge(0, 4)]);
    a.post(&send(2, Data::Inline(&[&[1; 5]])));
    a.post(&send(3, Data::Inline(&[&[2; 3]])));
    let arrived = poll_one(&b.recv_cq);
    assert_eq!((arrived.wr_id, arrived.byte_len, arrived.status), (1, 3, Status::Success));
    assert_eq!(to.bytes()[..3], [2; 3]);
    probe_after(&a, &b, 2);
}

/// Takes the completions of `before` requests, then does what [`probe`] does.
fn probe_after(a: &Endpoint, b: &Endpoint, before: usize) {
    for _ in 0..before {
        assert_eq!(poll_one(&a.send_cq).status, Status::Success);
    }
    probe(a, b);
}

#[test]
fn a_write_without_the_right_is_dropped_alone() {
    let host = Host::new();
    let (a, b) = pair(&host);
    let guarded = Memory::new(&host, 100_000, Access::LOCAL_WRITE);
    let from = Memory::new(&host, 100_000, Access::LOCAL_WRITE);
    from.fill(|_| 1);
    b.receive(1, &[]);
    let data = [from.sge(0, 100_000)];
    for (wr_id, rkey) in [(2, guarded.key()), (3, 0xdead)] {
        let operation = write(&guarded, rkey, Some(1));
        a.post(&signalled(wr_id, operation, Data::Gather(&data)));
    }
    a.post(&send(4, EMPTY));
    assert_eq!(poll_one(&b.recv_cq).opcode, Opcode::Recv, "a dropped Write took the receive");
    assert!(guarded.bytes().iter().all(|&byte| byte == 0));
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Rts));
    assert!(no_event(&host.context));
    probe_after(&a, &b, 3);
}

#[test]
fn a_side_sends_on_while_its_peer_is_in_error() {
    let host = Host::new();
    let (a, b) = pair(&host);
    probe(&a, &b);
    to_state(&b.qp, QpState::Err);
    for wr_id in 0..50 {
        a.post(&send(wr_id, EMPTY));
        let done = poll_one(&a.send_cq);
        assert_eq!((done.wr_id, done.status), (wr_id, Status::Success));
    }
    assert_eq!(a.qp.state(), QpState::Rts);
    assert!(no_event(&host.context));
}

#[test]
fn a_receive_with_a_wrong_key_fails_only_its_own_side() {
    let host = Host::new();
    let (a, b) = pair(&host);
    b.receive(1, &[Sge { addr: 4096, length: 8, lkey: 0xdead }]);
    a.post(&send(2, Data::Inline(&[&[1; 8]])));
    assert_eq!(poll_one(&b.recv_cq).status, Status::LocProtErr);
    assert_eq!(b.qp.state(), QpState::Err);
    assert_eq!(poll_one(&a.send_cq).status, Status::Success);
    a.post(&send(3, EMPTY));
    assert_eq!(poll_one(&a.send_cq).status, Status::Success);
}

/// A failed request stops sending, but not receiving, until the program moves the queue pair back
/// to RTS.
#[test]
fn a_failed_request_leads_to_the_sqe_state() {
    let host = Host::new();
    let (a, b) = pair(&host);
    let wrong = [Sge { addr: 4096, length: 8, lkey: 0xdead }];
    a.post(&send(1, Data::Gather(&wrong)));
    assert_eq!(poll_one(&a.send_cq).status, Status::LocProtErr);
    assert_eq!(a.qp.state(), QpState::Sqe);
    a.post(&send(2, EMPTY));
    assert_eq!(poll_one(&a.send_cq).status, Status::WrFlushErr);
    a.receive(3, &[]);
    b.post(&send(4, EMPTY));
    assert_eq!(poll_one(&a.recv_cq).wr_id, 3);
    to_state(&a.qp, QpState::Rts);
    probe(&a, &b);
}
