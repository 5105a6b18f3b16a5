//! Two connected links, without a queue pair, registered memory, a socket or a clock.

mod host;
mod memory;

use weft_wire::mpa::negotiate::{Negotiated, RtrKind};

use self::host::{Raised, TestHost};
use self::memory::FakeMemory;
use super::{Agreement, AwaitedPeer, Config, Link, RnrWait};
use crate::access::Access;
use crate::attr::{QpAttr, QpState, QpType};
use crate::event::EventKind;
use crate::limits::READ_DEPTH_MAX;
use crate::wc::{self, Opcode, Status};
use crate::wr::{Data, Operation, SendFlags};

/// A link and its host.
struct LinkEnd {
    host: TestHost,
    link: Link<TestHost>,
}

impl LinkEnd {
    fn new(number: u32, qp_type: QpType) -> Self {
        Self::of(number, qp_type, false)
    }

    fn of(number: u32, qp_type: QpType, shares_receives: bool) -> Self {
        let config = Config { number, ack_stag: ack_stag(number), qp_type, shares_receives };
        let mut end = Self { host: TestHost::new(number), link: Link::new(config) };
        end.set_state(QpState::Rts);
        end
    }

    fn set_state(&mut self, state: QpState) {
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let attr = QpAttr {
            qp_access_flags: remote,
            max_rd_atomic: READ_DEPTH_MAX,
            max_dest_rd_atomic: READ_DEPTH_MAX,
            min_rnr_timer: 12,
            ..QpAttr::default()
        };
        self.link.set_rules(&attr, state);
        self.link.check_drained(&self.host);
    }

    fn open(&mut self, initiator: bool, peer: Option<u32>) {
        let negotiated = Negotiated {
            revision: 2,
            crc: true,
            tx_markers: false,
            rx_markers: false,
            ird: READ_DEPTH_MAX.into(),
            ord: READ_DEPTH_MAX.into(),
            rtr: Some(RtrKind::Write),
            peer_private_data: Vec::new(),
        };
        let peer_ack_stag = peer.map(ack_stag);
        self.link.open(Agreement { initiator, negotiated, peer_ack_stag, mulpdu: 1_460 }, &[]);
    }

    fn post(&self, wr_id: u64, operation: Operation, data: Data<'_>) {
        self.host.post(wr_id, operation, data);
    }

    /// Moves the first bytes of the output to the other end, which has room for them.
    fn send_start_to(&mut self, other: &mut Self, count: usize) {
        assert!(self.link.output(&self.host));
        let room = other.link.rx_room().expect("room");
        room.extend_from_slice(&self.link.unsent()[..count]);
        other.link.input(&other.host);
    }

    /// Moves the output to the other end. Returns whether there was any.
    fn send_to(&mut self, other: &mut Self) -> bool {
        if !self.link.output(&self.host) {
            return false;
        }
        let bytes = self.link.unsent().to_vec();
        self.link.sent(bytes.len(), &self.host);
        let mut rest = &bytes[..];
        while let Some(room) = other.link.rx_room().filter(|_| !rest.is_empty()) {
            let count = rest.len().min(room.capacity() - room.len());
            room.extend_from_slice(&rest[..count]);
            rest = &rest[count..];
            other.link.input(&other.host);
        }
        true
    }
}

fn ack_stag(number: u32) -> u32 {
    0x1000_0000 | number
}

/// Creates two connected ends.
fn pair_of(qp_type: QpType, weft: bool) -> (LinkEnd, LinkEnd) {
    let (mut a, mut b) = (LinkEnd::new(1, qp_type), LinkEnd::new(2, qp_type));
    a.open(true, weft.then_some(2));
    b.open(false, weft.then_some(1));
    exchange(&mut a, &mut b);
    (a, b)
}

fn pair() -> (LinkEnd, LinkEnd) {
    pair_of(QpType::Rc, true)
}

/// Exchanges output until neither end has any.
fn exchange(a: &mut LinkEnd, b: &mut LinkEnd) {
    loop {
        let (there, back) = (a.send_to(b), b.send_to(a));
        if !there && !back {
            return;
        }
    }
}

const SEND: Operation = Operation::Send { imm: None, invalidate: None };

#[test]
fn send_completes_at_both_ends() {
    let (mut a, mut b) = pair();
    b.host.post_receive(7, (0, 16));
    a.post(1, Operation::Send { imm: Some(5), invalidate: None }, Data::Inline(&[b"hello"]));
    exchange(&mut a, &mut b);
    assert_eq!(a.host.sent(), [(1, Status::Success)]);
    let received = b.host.received();
    assert_eq!((received[0].wr_id, received[0].byte_len), (7, 5));
    assert_eq!((received[0].imm_data, received[0].wc_flags), (5, wc::FLAG_WITH_IMM));
    assert_eq!(b.host.memory().read((0, 5)), b"hello");
}

#[test]
fn send_is_not_complete_before_it_is_acknowledged() {
    let (mut a, mut b) = pair();
    b.host.post_receive(7, (0, 16));
    a.post(1, SEND, Data::Inline(&[b"hello"]));
    a.send_to(&mut b);
    assert!(a.host.sent().is_empty());
    b.send_to(&mut a);
    assert_eq!(a.host.sent(), [(1, Status::Success)]);
}

#[test]
fn send_to_a_foreign_peer_is_complete_once_the_stream_has_it() {
    let (mut a, mut b) = pair_of(QpType::Rc, false);
    b.host.post_receive(7, (0, 16));
    a.post(1, SEND, Data::Inline(&[b"hello"]));
    a.send_to(&mut b);
    assert_eq!(a.host.sent(), [(1, Status::Success)]);
}

#[test]
fn write_then_read_returns_the_bytes() {
    let (mut a, mut b) = pair();
    let (remote_addr, rkey) = (b.host.memory().addr(4_096), b.host.memory().key());
    a.post(1, Operation::Write { remote_addr, rkey, imm: None }, Data::Inline(&[b"written"]));
    let into = a.host.memory().sge((8_192, 7));
    a.post(2, Operation::Read { remote_addr, rkey }, Data::Gather(&[into]));
    exchange(&mut a, &mut b);
    assert_eq!(a.host.sent(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(b.host.memory().read((4_096, 7)), b"written");
    assert_eq!(a.host.memory().read((8_192, 7)), b"written");
    assert!(b.host.received().is_empty(), "a Write takes no receive");
}

#[test]
fn atomic_changes_the_peers_word_and_returns_the_old_one() {
    let (mut a, mut b) = pair();
    b.host.memory().write(0, &40_u64.to_ne_bytes());
    let (remote_addr, rkey) = (b.host.memory().addr(0), b.host.memory().key());
    let into = a.host.memory().sge((0, 8));
    a.post(1, Operation::FetchAdd { remote_addr, rkey, add: 2 }, Data::Gather(&[into]));
    exchange(&mut a, &mut b);
    assert_eq!(a.host.sent(), [(1, Status::Success)]);
    assert_eq!(b.host.memory().read((0, 8)), 42_u64.to_ne_bytes());
    assert_eq!(a.host.memory().read((0, 8)), 40_u64.to_ne_bytes());
}

#[test]
fn send_without_a_receive_waits_and_starts_the_rnr_timer() {
    let (mut a, mut b) = pair();
    a.post(1, SEND, Data::Inline(&[b"early"]));
    exchange(&mut a, &mut b);
    assert_eq!(a.link.notices.rnr, Some(Some(RnrWait { timer: 12 })));
    assert!(a.host.sent().is_empty() && b.link.wants_receive());
    b.host.post_receive(7, (0, 16));
    b.link.retry_waiting(&b.host);
    exchange(&mut a, &mut b);
    assert_eq!(a.link.notices.rnr, Some(None), "the timer is stopped");
    assert_eq!(a.host.sent(), [(1, Status::Success)]);
    assert_eq!(b.host.received()[0].byte_len, 5);
}

#[test]
fn rnr_timer_that_expires_fails_the_send() {
    let (mut a, mut b) = pair();
    a.post(1, SEND, Data::Inline(&[b"early"]));
    a.post(2, SEND, Data::Inline(&[b"behind"]));
    exchange(&mut a, &mut b);
    a.link.give_up_waiting(&a.host);
    assert_eq!(a.host.sent(), [(1, Status::RnrRetryExcErr), (2, Status::WrFlushErr)]);
    assert_eq!(a.host.states(), [QpState::Err]);
    assert!(a.link.notices.disconnected);
}

#[test]
fn write_beyond_its_rights_ends_the_connection_at_both_ends() {
    let (mut a, mut b) = pair();
    b.host.post_receive(7, (0, 16));
    let (remote_addr, rkey) = (b.host.memory().addr(0), b.host.memory().readonly_key());
    a.post(1, Operation::Write { remote_addr, rkey, imm: None }, Data::Inline(&[b"never"]));
    exchange(&mut a, &mut b);
    assert_eq!(b.host.states(), [QpState::Err]);
    assert_eq!(b.host.raised(), [Raised::Event(EventKind::QpAccessErr)]);
    assert_eq!(b.host.received()[0].status, Status::WrFlushErr);
    assert_eq!(a.host.sent(), [(1, Status::RemAccessErr)], "the Terminate message says why");
    assert_eq!(a.host.raised(), [Raised::Event(EventKind::QpFatal)]);
    assert!(a.link.phase.is_closing() && b.link.phase.is_closing());
    assert_ne!(b.host.memory().read((0, 5)), b"never");
}

/// Executes a request for the peer's memory and returns its status.
fn status_of(operation: Operation, into: (usize, usize)) -> Status {
    let (mut a, mut b) = pair();
    let sges = [a.host.memory().sge(into)];
    a.post(1, operation, Data::Gather(&sges));
    exchange(&mut a, &mut b);
    a.host.sent()[0].1
}

#[test]
fn request_for_memory_that_is_not_granted_fails() {
    let memory = FakeMemory::new(2);
    let (remote_addr, rkey) = (memory.addr(8), memory.key());
    let end = memory.addr(FakeMemory::LEN);
    let write = |remote_addr, rkey| Operation::Write { remote_addr, rkey, imm: None };
    let read = |remote_addr, rkey| Operation::Read { remote_addr, rkey };
    let add = |remote_addr, rkey| Operation::FetchAdd { remote_addr, rkey, add: 1 };
    for (operation, expected) in [
        (write(remote_addr, rkey), Status::Success),
        (write(end - 8, rkey), Status::Success),
        (write(end - 7, rkey), Status::RemAccessErr),
        (write(remote_addr, rkey + 2), Status::RemAccessErr),
        (read(end - 8, rkey), Status::Success),
        (read(end - 7, rkey), Status::RemAccessErr),
        (read(remote_addr, memory.readonly_key()), Status::Success),
        (read(remote_addr, rkey + 2), Status::RemAccessErr),
        (add(remote_addr, rkey), Status::Success),
        (add(remote_addr + 4, rkey), Status::RemOpErr),
        (add(end - 4, rkey), Status::RemAccessErr),
        (add(remote_addr, memory.readonly_key()), Status::RemAccessErr),
    ] {
        assert_eq!(status_of(operation.clone(), (0, 8)), expected, "{operation:?}");
    }
}

#[test]
fn list_beyond_its_memory_fails_without_the_peer() {
    let memory = FakeMemory::new(2);
    let read = Operation::Read { remote_addr: memory.addr(0), rkey: memory.key() };
    assert_eq!(status_of(read, (FakeMemory::LEN - 4, 8)), Status::LocProtErr);
}

#[test]
fn message_longer_than_its_receive_fails_both() {
    let (mut a, mut b) = pair();
    b.host.post_receive(7, (0, 4));
    a.post(1, SEND, Data::Inline(&[b"too long"]));
    exchange(&mut a, &mut b);
    assert_eq!(b.host.received()[0].status, Status::LocLenErr);
    assert_eq!(a.host.sent(), [(1, Status::RemInvReqErr)]);
}

#[test]
fn requests_to_a_lost_peer_wait_before_they_fail() {
    let (mut a, b) = pair();
    b.host.post_receive(7, (0, 16));
    a.post(1, SEND, Data::Inline(&[b"lost"]));
    assert!(a.link.output(&a.host));
    a.link.lost(&a.host, 104);
    assert_eq!(a.link.notices.awaited, Some(AwaitedPeer::Gone));
    assert!(a.host.sent().is_empty() && a.link.notices.disconnected);
    a.link.give_up_waiting(&a.host);
    assert_eq!(a.host.sent(), [(1, Status::RetryExcErr)]);
    assert_eq!(a.host.vendor_err(), 104);
}

#[test]
fn requests_before_the_connection_wait_for_the_peer() {
    let mut a = LinkEnd::new(1, QpType::Rc);
    a.post(1, SEND, Data::Inline(&[b"early"]));
    a.link.await_peer(&a.host);
    assert_eq!(a.link.notices.awaited, Some(AwaitedPeer::NotYetThere));
    let mut b = LinkEnd::new(2, QpType::Rc);
    b.host.post_receive(7, (0, 16));
    a.open(true, Some(2));
    b.open(false, Some(1));
    assert_eq!(a.link.notices.rnr, Some(None), "the timer is stopped");
    exchange(&mut a, &mut b);
    assert_eq!(a.host.sent(), [(1, Status::Success)]);
}

#[test]
fn drained_queue_is_reported_once() {
    let (mut a, mut b) = pair();
    b.host.post_receive(7, (0, 16));
    a.post(1, SEND, Data::Inline(&[b"last"]));
    a.send_to(&mut b);
    a.set_state(QpState::Sqd);
    assert!(a.host.raised().is_empty(), "one is on its way");
    exchange(&mut a, &mut b);
    a.link.check_drained(&a.host);
    assert_eq!(a.host.raised(), [Raised::Drained]);
    a.post(2, SEND, Data::Inline(&[b"held"]));
    assert!(!a.send_to(&mut b), "nothing is sent meanwhile");
}

#[test]
fn close_sends_what_is_due_first() {
    let (mut a, mut b) = pair();
    b.host.post_receive(7, (0, 16));
    a.post(1, SEND, Data::Inline(&[b"last"]));
    assert!(a.link.output(&a.host));
    a.link.close();
    assert!(!a.link.is_drained());
    a.send_to(&mut b);
    assert!(a.link.is_drained());
    assert_eq!(b.host.received()[0].byte_len, 4);
}

#[test]
fn unreliable_message_without_a_receive_is_dropped_after_a_while() {
    let (mut a, mut b) = pair_of(QpType::Uc, true);
    a.post(1, SEND, Data::Inline(&[b"lost"]));
    exchange(&mut a, &mut b);
    assert_eq!(a.host.sent(), [(1, Status::Success)], "nothing is acknowledged");
    assert!(matches!(b.link.notices.rnr, Some(Some(_))) && b.link.wants_receive());
    b.link.give_up_waiting(&b.host);
    b.link.input(&b.host);
    assert_eq!(b.link.messages_dropped(), 1);
    b.host.post_receive(7, (0, 16));
    a.post(2, SEND, Data::Inline(&[b"comes"]));
    exchange(&mut a, &mut b);
    assert_eq!(b.host.received()[0].byte_len, 5);
}

#[test]
fn refused_unreliable_write_does_not_end_the_connection() {
    let (mut a, mut b) = pair_of(QpType::Uc, true);
    let (remote_addr, rkey) = (b.host.memory().addr(0), b.host.memory().readonly_key());
    a.post(1, Operation::Write { remote_addr, rkey, imm: None }, Data::Inline(&[b"never"]));
    exchange(&mut a, &mut b);
    assert_eq!(b.link.messages_dropped(), 1);
    assert!(a.host.states().is_empty() && b.host.states().is_empty());
}

#[test]
fn extended_message_goes_to_its_numbered_queue() {
    let (mut a, mut b) = (LinkEnd::new(1, QpType::XrcSend), LinkEnd::new(2, QpType::XrcRecv));
    a.open(true, Some(2));
    b.open(false, Some(1));
    b.host.add_queue(3);
    b.host.post_named_receive(3, 7, (0, 16));
    a.host.post_to(3, 1, SEND, Data::Inline(&[b"named"]));
    exchange(&mut a, &mut b);
    assert_eq!(a.host.sent(), [(1, Status::Success)]);
    assert_eq!(b.host.received_by(3)[0].wr_id, 7);
    a.host.post_to(4, 2, SEND, Data::Inline(&[b"nobody"]));
    exchange(&mut a, &mut b);
    assert_eq!(a.host.sent()[1], (2, Status::RemInvReqErr), "there is no such queue");
}

/// How a connection ends after a part of a message has arrived.
type Ending = fn(&mut LinkEnd);
const ENDINGS: [Ending; 3] = [
    |end| end.link.lost(&end.host, 104),
    |end| end.link.fail(&end.host, None, 0),
    |end| end.link.give_back_receive(&end.host), // The queue pair is destroyed.
];
/// More than one segment.
const LONG: (usize, usize) = (0, 2_000);

#[test]
fn message_that_does_not_arrive_whole_gives_its_shared_receive_back() {
    for ending in ENDINGS {
        let (mut a, mut b) = (LinkEnd::new(1, QpType::Rc), LinkEnd::of(2, QpType::Rc, true));
        a.open(true, Some(2));
        b.open(false, Some(1));
        exchange(&mut a, &mut b);
        [7, 8].iter().for_each(|&wr_id| b.host.post_receive(wr_id, LONG));
        a.post(1, SEND, Data::Gather(&[a.host.memory().sge(LONG)]));
        a.send_start_to(&mut b, 1_600);
        assert_eq!(b.host.receives_left(), [8], "the message is being received");
        ending(&mut b);
        assert_eq!(b.host.receives_left(), [7, 8]);
        assert!(b.host.received().is_empty());
    }
}

#[test]
fn message_that_does_not_arrive_whole_gives_its_numbered_receive_back() {
    for ending in ENDINGS {
        let (mut a, mut b) = (LinkEnd::new(1, QpType::XrcSend), LinkEnd::new(2, QpType::XrcRecv));
        a.open(true, Some(2));
        b.open(false, Some(1));
        exchange(&mut a, &mut b);
        b.host.add_queue(3);
        b.host.post_named_receive(3, 7, LONG);
        a.host.post_to(3, 1, SEND, Data::Gather(&[a.host.memory().sge(LONG)]));
        a.send_start_to(&mut b, 1_600);
        assert_eq!(b.host.named_receives_left(3), []);
        ending(&mut b);
        assert_eq!(b.host.named_receives_left(3), [7]);
        assert!(b.host.received_by(3).is_empty());
    }
}

#[test]
fn own_receive_of_a_message_that_does_not_arrive_whole_is_flushed() {
    let (mut a, mut b) = pair();
    b.host.post_receive(7, LONG);
    a.post(1, SEND, Data::Gather(&[a.host.memory().sge(LONG)]));
    a.send_start_to(&mut b, 1_600);
    b.link.fail(&b.host, None, 0);
    assert_eq!(b.host.received()[0].status, Status::WrFlushErr);
}

#[test]
fn send_with_invalidate_invalidates_and_reports_the_key() {
    let (mut a, mut b) = pair();
    b.host.post_receive(7, (0, 16));
    let key = b.host.memory().key();
    let operation = Operation::Send { imm: None, invalidate: Some(key) };
    a.post(1, operation, Data::Inline(&[b"bye"]));
    exchange(&mut a, &mut b);
    let received = b.host.received();
    assert_eq!((received[0].wc_flags, received[0].imm_data), (wc::FLAG_WITH_INV, key));
    assert_eq!(received[0].opcode, Opcode::Recv);
    assert_eq!(b.host.raised(), [Raised::Invalidated(key)]);
}

#[test]
fn unsignaled_request_completes_without_a_completion() {
    let (mut a, mut b) = pair();
    b.host.post_receive(7, (0, 16));
    a.host.post_with(SendFlags::empty(), 0, 1, SEND, Data::Inline(&[b"quiet"]));
    exchange(&mut a, &mut b);
    assert!(a.host.sent().is_empty() && !b.host.received().is_empty());
    assert_eq!(a.host.requests_left(), 0);
}
