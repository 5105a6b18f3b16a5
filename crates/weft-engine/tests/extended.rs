//! Extended reliable connections (XRC): each message names its shared receive queue by number.

mod common;

use std::os::fd::AsFd;
use std::sync::Arc;

use common::{
    Endpoint, Host, Memory, bring_up, init_attr, init_mask, no_event, poll_one, poll_some, send,
};
use common::{next_event, signalled, to_state};
use weft_engine::Errno;
use weft_engine::access::Access;
use weft_engine::cq::Cq;
use weft_engine::event::EventKind;
use weft_engine::pd::Pd;
use weft_engine::qp::{AddressVector, AttrMask, GlobalRoute, Qp, QpAttr, QpState, QpType};
use weft_engine::srq::{Srq, SrqAttr};
use weft_engine::wc::{FLAG_WITH_IMM, Opcode, Status};
use weft_engine::wr::{Data, Operation, RecvRequest, SendRequest};
use weft_engine::xrc::{OpenMode, Xrcd};

const EMPTY: Data<'static> = Data::Gather(&[]);
const CREATE: OpenMode = OpenMode { create: true, exclusive: false };

fn domain(host: &Host) -> Arc<Xrcd> {
    Xrcd::open(&host.context, None, CREATE).expect("a domain")
}

/// A shared receive queue with its completion queue.
struct Queue {
    srq: Arc<Srq>,
    cq: Arc<Cq>,
    number: u32,
}

fn queue(host: &Host, pd: &Arc<Pd>, domain: &Arc<Xrcd>) -> Queue {
    let cq = Cq::new(&host.context, 64, None).expect("a completion queue");
    let attr = SrqAttr { max_wr: 16, max_sge: 2, srq_limit: 0 };
    let srq = Srq::new_xrc(pd, attr, domain, &cq).expect("a shared queue");
    let number = srq.number().expect("a shared receive queue of an XRC domain has a number");
    Queue { srq, cq, number }
}

impl Queue {
    fn receive(&self, request: &RecvRequest<'_>) {
        self.srq.post(request).expect("room");
    }
}

/// A target queue pair that is destroyed on drop.
struct Target(Arc<Qp>);

impl Drop for Target {
    fn drop(&mut self) {
        self.0.destroy();
    }
}

fn rtr(peer: &Arc<Qp>) -> QpAttr {
    let global = Some(GlobalRoute { dgid: peer.identity().gid, ..GlobalRoute::default() });
    QpAttr {
        qp_state: QpState::Rtr,
        path_mtu: 5,
        dest_qp_num: peer.number(),
        max_dest_rd_atomic: 16,
        min_rnr_timer: 12,
        ah_attr: AddressVector { global, port_num: 1, ..AddressVector::default() },
        ..QpAttr::default()
    }
}

/// Connects an initiator (XRC send) queue pair to a new target queue pair.
fn pair(host: &Host, domain: &Arc<Xrcd>) -> (Endpoint, Target) {
    let from = host.endpoint_of(|init| init.qp_type = QpType::XrcSend);
    let to = Target(Qp::new_target(&host.context, domain).expect("a target"));
    for qp in [&from.qp, &to.0] {
        qp.modify(&init_attr(), init_mask()).expect("INIT");
    }
    bring_up(&to.0, &rtr(&from.qp));
    bring_up(&from.qp, &rtr(&to.0));
    let (timeout, retry_cnt, rnr_retry, max_rd_atomic) = (14, 7, 7, 16);
    let qp_state = QpState::Rts;
    let rts =
        QpAttr { qp_state, timeout, retry_cnt, rnr_retry, max_rd_atomic, ..QpAttr::default() };
    bring_up(&from.qp, &rts);
    (from, to)
}

fn post(from: &Endpoint, request: &SendRequest<'_>, srqn: u32) {
    from.qp.start_post().push_to(request, srqn).expect("room in the send queue");
}

#[test]
fn each_message_takes_a_receive_of_the_queue_that_it_names() {
    let host = Host::new();
    let domain = domain(&host);
    let pd = Pd::new(&host.context);
    let queues = [queue(&host, &host.pd, &domain), queue(&host, &pd, &domain)];
    let (from, to) = pair(&host, &domain);
    let domains = [&host.pd, &pd];
    let memory = domains.map(|pd| Memory::in_domain(pd, 60_000, Access::LOCAL_WRITE));
    for (queue, memory) in queues.iter().zip(&memory) {
        queue.receive(&RecvRequest { wr_id: 1, sges: &[memory.sge(0, 60_000)] });
        queue.receive(&RecvRequest { wr_id: 2, sges: &[] });
    }
    let source = Memory::new(&host, 60_000, Access::LOCAL_WRITE);
    source.fill(|at| (at / 3) as u8);
    let data = [source.sge(0, 60_000)];
    for at in [1, 0] {
        post(&from, &send(3, Data::Gather(&data)), queues[at].number);
        let got = poll_one(&queues[at].cq);
        assert_eq!((got.wr_id, got.status, got.byte_len), (1, Status::Success, 60_000));
        assert_eq!((got.qp_num, got.src_qp), (to.0.number(), from.qp.number()));
        assert_eq!(memory[at].bytes(), source.bytes());
        let operation = Operation::Send { imm: Some(9), invalidate: None };
        post(&from, &signalled(4, operation, EMPTY), queues[at].number);
        let got = poll_one(&queues[at].cq);
        assert_eq!((got.wr_id, got.imm_data, got.wc_flags), (2, 9, FLAG_WITH_IMM));
        for wr_id in [3, 4] {
            let done = poll_one(&from.send_cq);
            assert_eq!((done.wr_id, done.status), (wr_id, Status::Success));
        }
    }
}

#[test]
fn one_sided_operations_access_the_protection_domain_of_the_named_queue() {
    let host = Host::new();
    let domain = domain(&host);
    let served = Pd::new(&host.context);
    let other = Pd::new(&host.context);
    let queue = queue(&host, &served, &domain);
    let (from, to) = pair(&host, &domain);
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let rights = rights | Access::REMOTE_ATOMIC;
    let open = Memory::in_domain(&served, 64, rights);
    let closed = Memory::in_domain(&other, 64, rights);
    let own = Memory::new(&host, 64, Access::LOCAL_WRITE);
    let (remote_addr, rkey) = (open.addr(0), open.key());
    queue.receive(&RecvRequest { wr_id: 7, sges: &[] });
    let write = Operation::Write { remote_addr, rkey, imm: Some(5) };
    post(&from, &signalled(1, write, Data::Inline(&[&[3; 64]])), queue.number);
    let got = poll_one(&queue.cq);
    assert_eq!((got.wr_id, got.opcode, got.imm_data), (7, Opcode::RecvRdmaWithImm, 5));
    assert_eq!(open.bytes(), [3; 64]);
    let read = Operation::Read { remote_addr, rkey };
    post(&from, &signalled(2, read, Data::Gather(&[own.sge(0, 64)])), queue.number);
    let add = Operation::FetchAdd { remote_addr, rkey, add: 1 };
    post(&from, &signalled(3, add, Data::Gather(&[own.sge(0, 8)])), queue.number);
    for wr_id in 1..4 {
        let done = poll_one(&from.send_cq);
        assert_eq!((done.wr_id, done.status), (wr_id, Status::Success));
    }
    assert_eq!(own.bytes(), [3; 64]);
    assert_eq!(open.bytes()[0], 4);
    let write = Operation::Write { remote_addr: closed.addr(0), rkey: closed.key(), imm: None };
    post(&from, &signalled(4, write, Data::Inline(&[&[3; 64]])), queue.number);
    assert_eq!(poll_one(&from.send_cq).status, Status::RemAccessErr);
    assert_eq!(closed.bytes(), [0; 64]);
    assert_eq!(to.0.state(), QpState::Err);
    assert_eq!(next_event(&host.context).kind, EventKind::QpAccessErr);
}

#[test]
fn a_message_to_an_unknown_queue_number_is_refused() {
    let host = Host::new();
    let domain = domain(&host);
    let elsewhere = Xrcd::open(&host.context, None, CREATE).expect("a domain");
    let foreign = queue(&host, &host.pd, &elsewhere);
    for number in [0, 0x00ff_fff0, foreign.number] {
        let (from, _to) = pair(&host, &domain);
        foreign.receive(&RecvRequest { wr_id: 1, sges: &[] });
        post(&from, &send(2, EMPTY), number);
        assert_eq!(poll_one(&from.send_cq).status, Status::RemInvReqErr);
    }
    assert!(poll_some(&foreign.cq, 1).is_empty());
}

#[test]
fn a_message_waits_for_a_receive_of_its_own_queue() {
    let host = Host::new();
    let domain = domain(&host);
    let queues = [queue(&host, &host.pd, &domain), queue(&host, &host.pd, &domain)];
    let (from, _to) = pair(&host, &domain);
    for round in 0..3 {
        for queue in &queues {
            post(&from, &send(round, EMPTY), queue.number);
        }
        // The connection keeps its order: the second message waits until the first has a receive.
        queues[1].receive(&RecvRequest { wr_id: 11, sges: &[] });
        assert!(poll_some(&queues[1].cq, 1).is_empty());
        queues[0].receive(&RecvRequest { wr_id: 10, sges: &[] });
        for (queue, wr_id) in queues.iter().zip([10, 11]) {
            assert_eq!(poll_one(&queue.cq).wr_id, wr_id);
            assert_eq!(poll_one(&from.send_cq).status, Status::Success);
        }
    }
    assert!(no_event(&host.context));
}

#[test]
fn a_message_to_a_destroyed_queue_is_refused() {
    let host = Host::new();
    let domain = domain(&host);
    let queue = queue(&host, &host.pd, &domain);
    let (from, _to) = pair(&host, &domain);
    queue.receive(&RecvRequest { wr_id: 1, sges: &[] });
    assert_eq!(queue.cq.check_unused(), Err(Errno::BUSY));
    queue.srq.destroy().expect("no queue pair holds it");
    queue.cq.check_unused().expect("the shared queue held it");
    post(&from, &send(2, EMPTY), queue.number);
    assert_eq!(poll_one(&from.send_cq).status, Status::RemInvReqErr);
}

#[test]
fn posting_fails_on_the_queues_that_a_side_does_not_have() {
    let host = Host::new();
    let domain = domain(&host);
    let (from, to) = pair(&host, &domain);
    let receive = RecvRequest { wr_id: 1, sges: &[] };
    assert_eq!(from.qp.post_recv(&receive), Err(Errno::INVAL));
    assert_eq!(to.0.post_recv(&receive), Err(Errno::INVAL));
    let timeout = AttrMask::STATE | AttrMask::TIMEOUT | AttrMask::SQ_PSN;
    to.0.modify(&QpAttr { qp_state: QpState::Rts, ..QpAttr::default() }, timeout).expect("RTS");
    assert_eq!(to.0.start_post().push(&send(1, EMPTY)), Err(Errno::INVAL));
    let operation = Operation::Send { imm: None, invalidate: Some(1) };
    let invalidates = signalled(1, operation, EMPTY);
    assert_eq!(from.qp.start_post().push_to(&invalidates, 1), Err(Errno::INVAL));
}

#[test]
fn a_target_opened_twice_works_until_both_handles_are_destroyed() {
    let host = Host::new();
    let domain = domain(&host);
    let queue = queue(&host, &host.pd, &domain);
    let (from, to) = pair(&host, &domain);
    let other = Xrcd::open(&host.context, None, CREATE).expect("a domain");
    let number = to.0.number();
    assert!(Qp::open_target(&other, number).is_none());
    assert!(Qp::open_target(&domain, from.qp.number()).is_none());
    let again = Qp::open_target(&domain, number).expect("it is of this domain");
    drop(to);
    queue.receive(&RecvRequest { wr_id: 1, sges: &[] });
    post(&from, &send(2, EMPTY), queue.number);
    assert_eq!(poll_one(&queue.cq).status, Status::Success);
    again.destroy();
    assert!(Qp::open_target(&domain, number).is_none());
}

#[test]
fn opening_a_file_again_finds_its_domain() {
    let host = Host::new();
    let directory = std::env::temp_dir().join(format!("weft-xrcd-{}", std::process::id()));
    let file = std::fs::File::create(&directory).expect("a file");
    let same = std::fs::File::open(&directory).expect("a file");
    std::fs::remove_file(&directory).expect("a file");
    let open = |file: &std::fs::File, mode| Xrcd::open(&host.context, Some(file.as_fd()), mode);
    let existing = OpenMode::default();
    assert_eq!(open(&file, existing).err(), Some(Errno::AGAIN));
    let first = open(&file, CREATE).expect("made");
    assert!(Arc::ptr_eq(&first, &open(&same, existing).expect("found")));
    let exclusive = OpenMode { create: true, exclusive: true };
    assert_eq!(open(&same, exclusive).err(), Some(Errno::INVAL));
    drop(first);
    open(&same, exclusive).expect("made anew");
}

#[test]
fn an_error_at_the_target_fails_the_senders_request() {
    let host = Host::new();
    let domain = domain(&host);
    let queue = queue(&host, &host.pd, &domain);
    let (from, to) = pair(&host, &domain);
    queue.receive(&RecvRequest { wr_id: 1, sges: &[] });
    post(&from, &send(2, Data::Inline(&[&[1]])), queue.number);
    assert_eq!(poll_one(&queue.cq).status, Status::LocLenErr);
    assert_eq!(poll_one(&from.send_cq).status, Status::RemInvReqErr);
    assert_eq!(to.0.state(), QpState::Err);
    to_state(&to.0, QpState::Reset);
}
