//! Every operation between two queue pairs of one process, and on a queue pair connected to itself,
//! completes as the verbs manual says.

mod common;

use common::{Host, Memory, connect, poll_one, poll_some, send};
use weft_engine::access::Access;
use weft_engine::qp::{AttrMask, QpAttr, QpState};
use weft_engine::wc::{FLAG_WITH_IMM, Opcode, Status};
use weft_engine::wr::{Data, Operation, SendFlags, SendRequest};

#[test]
fn a_send_arrives_in_its_receive() {
    let host = Host::new();
    let (a, b) = (host.endpoint(), host.endpoint());
    connect(&a, &b);
    let (from, to) = (
        Memory::new(&host, 100_000, Access::LOCAL_WRITE),
        Memory::new(&host, 100_000, Access::LOCAL_WRITE),
    );
    from.fill(|i| i as u8);
    b.receive(7, &[to.sge(0, 60_000), to.sge(60_000, 40_000)]);
    a.post(&send(1, Data::Gather(&[from.sge(0, 50_000), from.sge(50_000, 50_000)])));
    let received = poll_one(&b.recv_cq);
    assert_eq!(
        (received.wr_id, received.status, received.opcode),
        (7, Status::Success, Opcode::Recv)
    );
    assert_eq!(received.byte_len, 100_000);
    assert_eq!(poll_one(&a.send_cq).wr_id, 1);
    //= type=test
    //= rfc5041#section-5.3
    //# MUST Deliver a DDP Message to the ULP at most once,
    //= rfc5041#section-5.4
    //# all of the DDP Segments of the DDP Message have been Placed,
    assert_eq!(to.bytes(), from.bytes());
}

#[test]
fn a_send_waits_for_its_receive() {
    let host = Host::new();
    let (a, b) = (host.endpoint(), host.endpoint());
    connect(&a, &b);
    let to = Memory::new(&host, 64, Access::LOCAL_WRITE);
    for wr_id in 0..3 {
        a.post(&send(wr_id, Data::Inline(&[&[wr_id as u8; 8]])));
    }
    assert!(poll_some(&a.send_cq, 3).is_empty(), "nothing is complete before it is received");
    for wr_id in 0..3 {
        b.receive(10 + wr_id, &[to.sge(8 * wr_id as usize, 8)]);
    }
    //= type=test
    //= rfc5040#section-5.3
    //# A Send Message Type MUST reference an Untagged Buffer.
    //= rfc5040#section-5.3
    //# For a Send Message Type, the Local Peer's RDMAP layer MUST request that the DDP layer set
    //# the Queue Number field to zero.
    //= rfc5040#section-5.5
    //# Send Messages MUST be Delivered to the ULP at the Remote Peer after they are Delivered to
    //# RDMAP by DDP and in the order that they were Delivered to RDMAP.
    //= rfc5040#section-5.5
    //# RDMA Operations MUST be Completed at the Local Peer in the order that they were submitted by
    //# the ULP.
    for wr_id in 0..3 {
        assert_eq!(poll_one(&b.recv_cq).wr_id, 10 + wr_id);
        assert_eq!(poll_one(&a.send_cq).wr_id, wr_id);
    }
    assert_eq!(to.bytes()[..24], [[0u8; 8], [1; 8], [2; 8]].concat());
}

#[test]
fn write_read_and_atomics_access_remote_memory() {
    let host = Host::new();
    let (a, b) = (host.endpoint(), host.endpoint());
    connect(&a, &b);
    let all =
        Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let (local, remote) = (Memory::new(&host, 1 << 20, all), Memory::new(&host, 1 << 20, all));
    local.fill(|i| (i * 7) as u8);
    let (remote_addr, rkey) = (remote.addr(0), remote.key());
    let operation = Operation::Write { remote_addr, rkey, imm: None };
    let data = [local.sge(0, 1 << 20)];
    a.post(&SendRequest {
        wr_id: 1,
        operation,
        flags: SendFlags::SIGNALED,
        data: Data::Gather(&data),
    });
    let done = poll_one(&a.send_cq);
    assert_eq!((done.wr_id, done.status, done.opcode), (1, Status::Success, Opcode::RdmaWrite));
    //= type=test
    //= rfc5040#section-5.1
    //# An RDMA Write is used by the Data Source to transfer data to a previously Advertised Tagged
    //# Buffer at the Data Sink.
    //= rfc5041#section-5.1.1
    //# For the Placement of a DDP Message using the Tagged Buffer Model, the STag is used to
    //# identify the buffer, and the TO is used to identify the offset within the Tagged Buffer into
    //# which the ULP Payload is transferred.
    assert_eq!(remote.bytes(), local.bytes());

    remote.fill(|i| (i * 3) as u8);
    let operation = Operation::Read { remote_addr, rkey };
    a.post(&SendRequest {
        wr_id: 2,
        operation,
        flags: SendFlags::SIGNALED,
        data: Data::Gather(&data),
    });
    let done = poll_one(&a.send_cq);
    assert_eq!(
        (done.status, done.opcode, done.byte_len),
        (Status::Success, Opcode::RdmaRead, 1 << 20)
    );
    //= type=test
    //= rfc5040#section-5.2
    //# The RDMA Read operation MUST consist of a single RDMA Read Request Message and a single RDMA
    //# Read Response Message.
    //= rfc5040#section-5.2.2
    //# An RDMA Read Response Message MUST reference a Tagged Buffer. That is, the Data Source RDMAP
    //# layer MUST request that the DDP mark the Message as Tagged.
    //= rfc5040#section-5.5
    //# An RDMA Read operation MUST NOT be Completed at the Local Peer until the DDP layer Delivers
    //# the associated incoming RDMA Read Response Message.
    assert_eq!(remote.bytes(), local.bytes());

    remote.set_u64(0, 40);
    let old = [local.sge(0, 8)];
    let operation = Operation::FetchAdd { remote_addr, rkey, add: 2 };
    a.post(&SendRequest {
        wr_id: 3,
        operation,
        flags: SendFlags::SIGNALED,
        data: Data::Gather(&old),
    });
    assert_eq!(poll_one(&a.send_cq).opcode, Opcode::FetchAdd);
    assert_eq!((local.u64(0), remote.u64(0)), (40, 42));
    let operation = Operation::CompareSwap { remote_addr, rkey, compare: 42, swap: 7 };
    a.post(&SendRequest {
        wr_id: 4,
        operation,
        flags: SendFlags::SIGNALED,
        data: Data::Gather(&old),
    });
    assert_eq!(poll_one(&a.send_cq).opcode, Opcode::CompSwap);
    assert_eq!((local.u64(0), remote.u64(0)), (42, 7));
}

#[test]
fn immediate_data_arrives_with_sends_and_writes() {
    let host = Host::new();
    let (a, b) = (host.endpoint(), host.endpoint());
    connect(&a, &b);
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let to = Memory::new(&host, 64, all);
    b.receive(1, &[to.sge(0, 16)]);
    b.receive(2, &[]);
    let operation = Operation::Send { imm: Some(0x0102_0304), invalidate: None };
    let data = Data::Inline(&[b"hello"]);
    a.post(&SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, data });
    let operation = Operation::Write { remote_addr: to.addr(32), rkey: to.key(), imm: Some(9) };
    a.post(&SendRequest { wr_id: 2, operation, flags: SendFlags::SIGNALED, data });
    let first = poll_one(&b.recv_cq);
    assert_eq!((first.wr_id, first.opcode, first.byte_len), (1, Opcode::Recv, 5));
    assert_eq!((first.wc_flags, first.imm_data), (FLAG_WITH_IMM, 0x0102_0304));
    let second = poll_one(&b.recv_cq);
    assert_eq!((second.wr_id, second.opcode, second.byte_len), (2, Opcode::RecvRdmaWithImm, 5));
    assert_eq!((second.wc_flags, second.imm_data), (FLAG_WITH_IMM, 9));
    //= type=test
    //= rfc7306#section-6.1
    //# If the Immediate Data operation is Completed successfully, the RDMAP Layer passes the
    //# following information to the ULP Layer: * 8 bytes of Immediate Data
    //= rfc7306#section-6.3
    //# One Immediate Data or Immediate Data with SE Message MUST consume one Untagged Buffer.
    //= rfc7306#section-6.4
    //# Ordering and completion rules for Immediate Data are the same as those for a Send operation
    //# as described in Section 5.5 of RFC 5040.
    assert_eq!(&to.bytes()[32..37], b"hello");
    assert_eq!(poll_one(&a.send_cq).wr_id, 1);
    assert_eq!(poll_one(&a.send_cq).wr_id, 2);
}

#[test]
fn a_write_without_the_right_puts_both_sides_into_error() {
    let host = Host::new();
    let (a, b) = (host.endpoint(), host.endpoint());
    connect(&a, &b);
    let to = Memory::new(&host, 64, Access::LOCAL_WRITE);
    b.receive(5, &[to.sge(0, 16)]);
    let operation = Operation::Write { remote_addr: to.addr(0), rkey: to.key(), imm: None };
    let data = Data::Inline(&[b"no right to write here"]);
    a.post(&SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, data });
    assert_eq!(poll_one(&a.send_cq).status, Status::RemAccessErr);
    let flushed = poll_one(&b.recv_cq);
    assert_eq!((flushed.wr_id, flushed.status), (5, Status::WrFlushErr));
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Err, QpState::Err));
    assert_eq!(to.bytes(), vec![0; 64]);
}

#[test]
fn a_queue_pair_sends_to_itself() {
    let host = Host::new();
    let a = host.endpoint();
    connect(&a, &a);
    let to = Memory::new(&host, 64, Access::LOCAL_WRITE);
    a.receive(2, &[to.sge(0, 64)]);
    a.post(&send(1, Data::Inline(&[b"echo"])));
    assert_eq!(poll_one(&a.recv_cq).wr_id, 2);
    assert_eq!(poll_one(&a.send_cq).wr_id, 1);
    assert_eq!(&to.bytes()[..4], b"echo");
}

#[test]
fn err_flushes_work_and_reset_discards_it() {
    let host = Host::new();
    let (a, b) = (host.endpoint(), host.endpoint());
    connect(&a, &b);
    a.receive(1, &[]);
    let state = |qp_state| QpAttr { qp_state, ..QpAttr::default() };
    a.qp.modify(&state(QpState::Err), AttrMask::STATE).expect("always allowed");
    assert_eq!(poll_one(&a.recv_cq).status, Status::WrFlushErr);
    a.post(&send(3, Data::Inline(&[])));
    assert_eq!(poll_one(&a.send_cq).status, Status::WrFlushErr);
    a.receive(4, &[]);
    a.qp.modify(&state(QpState::Reset), AttrMask::STATE).expect("always allowed");
    assert!(poll_some(&a.recv_cq, 1).is_empty(), "completions of a reset queue pair are gone");
}
