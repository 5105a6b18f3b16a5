//! Access control for remote memory: rights and bounds of regions, queue pairs and windows, with
//! the status at both ends, and the guarantees of deregistration.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{
    Endpoint, Host, Memory, check_mapped, connect, connect_sharing, connect_with, init_attr,
    next_event, perhaps_alone, poll_one, poll_some, run_alone, send, settle_threads, signalled,
};
use weft_engine::Errno;
use weft_engine::access::Access;
use weft_engine::event::{Element, EventKind};
use weft_engine::mw::{Mw, WindowType};
use weft_engine::qp::{AttrMask, QpAttr, QpState};
use weft_engine::wc::{FLAG_WITH_INV, Status};
use weft_engine::wr::{Data, Operation, WindowBind};

const LEN: usize = 4096;

fn all() -> Access {
    Access::LOCAL_WRITE
        | Access::REMOTE_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_ATOMIC
        | Access::MW_BIND
}

/// The transport of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Stream,
    SharedMemory,
}

macro_rules! over_each {
    ($($test:ident)*) => {
        mod over_a_stream {
            $(#[test] fn $test() { super::$test(super::Over::Stream); })*
        }
        mod over_shared_memory {
            $(#[test] fn $test() {
                super::perhaps_alone(|| super::$test(super::Over::SharedMemory));
            })*
        }
        /// The same tests in processes with a single thread, whose registered memory peers can map.
        mod over_mapped_memory {
            $(#[test] fn $test() {
                super::run_alone(concat!("over_shared_memory::", stringify!($test)));
            })*
        }
    };
}

over_each! {
    each_right_is_needed_at_the_region_and_at_the_queue_pair
    bounds_are_exact
    a_message_of_no_bytes_needs_no_key
    invalid_local_lists_fail
    a_window_of_type_one_grants_its_part_until_bound_elsewhere
    a_window_ends_where_it_was_bound_to
    a_window_of_type_two_is_invalidated_by_either_side
    forbidden_bindings_fail
    a_window_of_type_two_serves_only_the_queue_pair_that_bound_it
    a_failed_request_does_not_fail_the_requests_before_it
    no_write_arrives_after_deregistration
    a_right_that_the_queue_pair_revokes_is_refused
    a_reregistered_region_keeps_its_key_and_loses_its_old_range
}

/// Two connected queue pairs, with remote memory at `b`.
struct Pair {
    host: Host,
    a: Endpoint,
    b: Endpoint,
    local: Memory,
    remote: Memory,
}

impl Pair {
    fn new(over: Over) -> Self {
        Self::with(over, all(), init_attr().qp_access_flags)
    }

    /// Creates a pair whose `remote` memory grants `region`, and whose queue pairs grant
    /// `qp_access_flags`.
    fn with(over: Over, region: Access, qp_access_flags: Access) -> Self {
        let host = Host::new();
        let (a, b) = (host.endpoint(), host.endpoint());
        let init = QpAttr { qp_access_flags, ..init_attr() };
        match over {
            Over::Stream => connect_with(&a, &b, &init, 7),
            Over::SharedMemory => connect_sharing(&a, &b, &init),
        }
        settle_threads();
        let local = Memory::new(&host, LEN, all());
        let remote = Memory::new(&host, LEN, region);
        local.fill(|i| i as u8);
        let pair = Self { host, a, b, local, remote };
        if over == Over::SharedMemory {
            let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            if region.intersects(remote) {
                check_mapped(&pair.remote);
            }
            pair.use_key(region & qp_access_flags);
        }
        pair
    }

    /// Uses the key until the peer has granted it, so that later requests access the memory
    /// directly.
    fn use_key(&self, rights: Access) {
        let (remote_addr, rkey) = (self.remote.addr(0), self.remote.key());
        let spare = Memory::new(&self.host, 8, Access::LOCAL_WRITE);
        let operation = if rights.contains(Access::REMOTE_WRITE) {
            Operation::Write { remote_addr, rkey, imm: None }
        } else if rights.contains(Access::REMOTE_READ) {
            Operation::Read { remote_addr, rkey }
        } else {
            return;
        };
        for _ in 0..3 {
            self.a.post(&signalled(1, operation.clone(), Data::Gather(&[spare.sge(0, 8)])));
            assert_eq!(poll_one(&self.a.send_cq).status, Status::Success);
            // Give the key request and its answer time to arrive.
            poll_some(&self.b.recv_cq, 1);
        }
    }

    fn write(&self, rkey: u32, at: usize, len: usize) -> Status {
        let remote_addr = self.remote.addr(0) + at as u64;
        let operation = Operation::Write { remote_addr, rkey, imm: None };
        self.run(operation, len)
    }

    /// Runs a request with `len` bytes of `local`.
    fn run(&self, operation: Operation, len: usize) -> Status {
        let sges = [self.local.sge(0, len)];
        let sges = if len == 0 { &[][..] } else { &sges };
        self.a.post(&signalled(1, operation, Data::Gather(sges)));
        poll_one(&self.a.send_cq).status
    }

    fn bind(&self, window: &Arc<Mw>, rkey: u32, at: usize, length: usize) -> Status {
        let bind = WindowBind {
            region: Some(Arc::clone(&self.remote.mr)),
            addr: self.remote.addr(at),
            length: length as u64,
            access: Access::REMOTE_WRITE,
        };
        let operation = Operation::BindWindow { window: Arc::clone(window), rkey, bind };
        self.b.post(&signalled(2, operation, Data::Gather(&[])));
        poll_one(&self.b.send_cq).status
    }

    /// Checks that both ends are in error, with the right event for each, and that `remote` is
    /// unchanged.
    fn check_refused(&self) {
        let mut kinds = [next_event(&self.host.context), next_event(&self.host.context)];
        let is_at_a = |element: &Element| matches!(element, Element::Qp(qp) if qp.is(&*self.a.qp));
        kinds.sort_by_key(|event| !is_at_a(&event.element));
        assert_eq!(kinds.map(|event| event.kind), [EventKind::QpFatal, EventKind::QpAccessErr]);
        assert_eq!((self.a.qp.state(), self.b.qp.state()), (QpState::Err, QpState::Err));
        assert_eq!(self.remote.bytes(), vec![0; LEN], "nothing has been written");
    }
}

fn each_right_is_needed_at_the_region_and_at_the_queue_pair(over: Over) {
    let rights = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];
    let everything = init_attr().qp_access_flags;
    for right in rights {
        for (region, qp, expected) in [
            (all() - right, everything, Status::RemAccessErr),
            (all(), everything - right, Status::RemAccessErr),
            (all(), right, Status::Success),
            (Access::LOCAL_WRITE | right, everything, Status::Success),
        ] {
            let pair = Pair::with(over, region, qp);
            let (remote_addr, rkey) = (pair.remote.addr(0), pair.remote.key());
            let operation = match right {
                Access::REMOTE_WRITE => Operation::Write { remote_addr, rkey, imm: None },
                Access::REMOTE_READ => Operation::Read { remote_addr, rkey },
                _ => Operation::FetchAdd { remote_addr, rkey, add: 1 },
            };
            assert_eq!(pair.run(operation, 8), expected, "{right:?} of {region:?}, {qp:?}");
            if expected != Status::Success {
                pair.check_refused();
            }
        }
    }
}

fn bounds_are_exact(over: Over) {
    for (at, len, expected) in [
        (0, LEN, Status::Success),
        (LEN - 8, 8, Status::Success),
        (1, LEN, Status::RemAccessErr),
        (LEN - 7, 8, Status::RemAccessErr),
        (usize::MAX, 8, Status::RemAccessErr),
    ] {
        let pair = Pair::new(over);
        // `usize::MAX` is one byte before the region.
        let remote_addr = pair.remote.addr(0).wrapping_add(at as u64);
        let rkey = pair.remote.key();
        let write = Operation::Write { remote_addr, rkey, imm: None };
        assert_eq!(pair.run(write, len), expected, "write of {len} at {at}");
        if expected != Status::Success {
            pair.check_refused();
        }
        let pair = Pair::new(over);
        let remote_addr = pair.remote.addr(0).wrapping_add(at as u64);
        let read = Operation::Read { remote_addr, rkey: pair.remote.key() };
        assert_eq!(pair.run(read, len), expected, "read of {len} at {at}");
        if expected != Status::Success {
            pair.check_refused();
            let untouched: Vec<u8> = (0..LEN).map(|i| i as u8).collect();
            assert_eq!(pair.local.bytes(), untouched, "nothing has been read");
        }
    }
}

fn a_message_of_no_bytes_needs_no_key(over: Over) {
    let pair = Pair::new(over);
    assert_eq!(pair.write(0x77, 0, 0), Status::Success);
    let read = Operation::Read { remote_addr: 0, rkey: 0x77 };
    assert_eq!(pair.run(read, 0), Status::Success);
}

/// An error in a local scatter/gather list is found before anything is sent or placed.
fn invalid_local_lists_fail(over: Over) {
    let pair = Pair::new(over);
    let mut sge = pair.local.sge(0, 8);
    sge.lkey ^= 1;
    pair.a.post(&send(1, Data::Gather(&[sge])));
    assert_eq!(poll_one(&pair.a.send_cq).status, Status::LocProtErr);

    let pair = Pair::new(over);
    let mut sge = pair.local.sge(0, 8);
    sge.addr = pair.local.addr(LEN - 4);
    pair.a.post(&send(1, Data::Gather(&[sge])));
    assert_eq!(poll_one(&pair.a.send_cq).status, Status::LocProtErr);

    let pair = Pair::new(over);
    let readonly = Memory::new(&pair.host, 64, Access::REMOTE_READ);
    let (remote_addr, rkey) = (pair.remote.addr(0), pair.remote.key());
    let data = [readonly.sge(0, 8)];
    pair.a.post(&signalled(1, Operation::Read { remote_addr, rkey }, Data::Gather(&data)));
    assert_eq!(poll_one(&pair.a.send_cq).status, Status::LocProtErr);

    // A receive into memory without local write access fails, and so does the peer's Send.
    let pair = Pair::new(over);
    let readonly = Memory::new(&pair.host, 64, Access::REMOTE_READ);
    pair.b.receive(5, &[readonly.sge(0, 8)]);
    pair.a.post(&send(1, Data::Inline(&[b"bytes"])));
    assert_eq!(poll_one(&pair.b.recv_cq).status, Status::LocProtErr);
    assert_eq!(poll_one(&pair.a.send_cq).status, Status::RemOpErr);
    assert_eq!(readonly.bytes(), [0; 64]);

    // A receive that is too short fails as well.
    let pair = Pair::new(over);
    pair.b.receive(5, &[pair.remote.sge(0, 4)]);
    pair.a.post(&send(1, Data::Inline(&[b"bytes"])));
    assert_eq!(poll_one(&pair.b.recv_cq).status, Status::LocLenErr);
    assert_eq!(poll_one(&pair.a.send_cq).status, Status::RemInvReqErr);
}

fn a_window_of_type_one_grants_its_part_until_bound_elsewhere(over: Over) {
    let pair = Pair::with(over, all() - Access::REMOTE_WRITE, init_attr().qp_access_flags);
    let window = Mw::allocate(&pair.host.pd, WindowType::One).expect("a key");
    let first = window.next_key();
    assert_eq!(pair.bind(&window, first, 64, 128), Status::Success);
    assert_eq!(window.key(), first);
    assert_eq!(pair.write(first, 64, 128), Status::Success);
    assert_eq!(pair.remote.bytes()[64..192], pair.local.bytes()[..128]);
    assert_eq!(pair.remote.mr.deregister(), Err(Errno::BUSY), "a window is bound to it");
    let second = window.next_key();
    assert_eq!(pair.bind(&window, second, 256, 8), Status::Success);
    assert_ne!(first, second);
    assert_eq!(pair.write(second, 256, 8), Status::Success);
    pair.remote.fill(|_| 0);
    assert_eq!(pair.write(first, 64, 8), Status::RemAccessErr, "the old key");
    pair.check_refused();
    window.deallocate();
    assert_eq!(pair.remote.mr.deregister(), Ok(()));
}

fn a_window_ends_where_it_was_bound_to(over: Over) {
    for (at, len) in [(63, 8), (64 + 121, 8), (64, 129)] {
        let pair = Pair::new(over);
        let window = Mw::allocate(&pair.host.pd, WindowType::Two).expect("a key");
        assert_eq!(pair.bind(&window, window.next_key(), 64, 128), Status::Success);
        assert_eq!(pair.write(window.key(), at, len), Status::RemAccessErr, "{len} at {at}");
        pair.check_refused();
        window.deallocate();
    }
}

fn a_window_of_type_two_is_invalidated_by_either_side(over: Over) {
    let pair = Pair::new(over);
    let window = Mw::allocate(&pair.host.pd, WindowType::Two).expect("a key");
    assert_eq!(pair.bind(&window, window.next_key(), 0, LEN), Status::Success);
    // By the side that bound it.
    let operation = Operation::LocalInvalidate { rkey: window.key() };
    pair.b.post(&signalled(3, operation, Data::Gather(&[])));
    assert_eq!(poll_one(&pair.b.send_cq).status, Status::Success);
    // By the peer.
    assert_eq!(pair.bind(&window, window.next_key(), 0, LEN), Status::Success);
    assert_eq!(pair.write(window.key(), 0, 8), Status::Success);
    pair.remote.fill(|_| 0);
    pair.b.receive(9, &[]);
    let operation = Operation::Send { imm: None, invalidate: Some(window.key()) };
    assert_eq!(pair.run(operation, 0), Status::Success);
    let received = poll_one(&pair.b.recv_cq);
    assert_eq!((received.wc_flags, received.imm_data), (FLAG_WITH_INV, window.key()));
    assert_eq!(pair.write(window.key(), 0, 8), Status::RemAccessErr);
    pair.check_refused();
    window.deallocate();
}

fn forbidden_bindings_fail(over: Over) {
    type Make = fn(&Pair) -> (Arc<Mw>, u32);
    let make: [(&str, Access, Make); 3] = [
        ("a region that may not be bound to", all() - Access::MW_BIND, |pair| {
            let window = Mw::allocate(&pair.host.pd, WindowType::Two).expect("a key");
            let rkey = window.next_key();
            (window, rkey)
        }),
        ("a window of type two that is bound", all(), |pair| {
            let window = Mw::allocate(&pair.host.pd, WindowType::Two).expect("a key");
            assert_eq!(pair.bind(&window, window.next_key(), 0, 8), Status::Success);
            let rkey = window.next_key();
            (window, rkey)
        }),
        ("a key of another window", all(), |pair| {
            let window = Mw::allocate(&pair.host.pd, WindowType::Two).expect("a key");
            let rkey = window.key() ^ 0x100;
            (window, rkey)
        }),
    ];
    for (what, access, make) in make {
        let pair = Pair::with(over, access, init_attr().qp_access_flags);
        let (window, rkey) = make(&pair);
        assert_eq!(pair.bind(&window, rkey, 0, 8), Status::MwBindErr, "{what}");
        window.deallocate();
    }
    let pair = Pair::new(over);
    let window = Mw::allocate(&pair.host.pd, WindowType::Two).expect("a key");
    let status = pair.bind(&window, window.next_key(), 8, LEN);
    assert_eq!(status, Status::MwBindErr, "a range past the end");
}

fn a_window_of_type_two_serves_only_the_queue_pair_that_bound_it(over: Over) {
    let pair = Pair::new(over);
    let (c, d) = (pair.host.endpoint(), pair.host.endpoint());
    match over {
        Over::Stream => connect(&c, &d),
        Over::SharedMemory => connect_sharing(&c, &d, &init_attr()),
    }
    let window = Mw::allocate(&pair.host.pd, WindowType::Two).expect("a key");
    assert_eq!(pair.bind(&window, window.next_key(), 0, LEN), Status::Success);
    let operation =
        Operation::Write { remote_addr: pair.remote.addr(0), rkey: window.key(), imm: None };
    c.post(&signalled(1, operation, Data::Inline(&[b"never"])));
    assert_eq!(poll_one(&c.send_cq).status, Status::RemAccessErr);
    assert_eq!(pair.remote.bytes(), vec![0; LEN]);
    assert_eq!(
        pair.write(window.key(), 0, 8),
        Status::Success,
        "the peer of the binding queue pair may write"
    );
    window.deallocate();
}

fn a_failed_request_does_not_fail_the_requests_before_it(over: Over) {
    let pair = Pair::new(over);
    let (remote_addr, rkey) = (pair.local.addr(0), pair.local.key());
    let sges = [pair.remote.sge(0, LEN)];
    for wr_id in 0..16 {
        let read = Operation::Read { remote_addr, rkey };
        pair.b.post(&signalled(wr_id, read, Data::Gather(&sges)));
    }
    let operation = Operation::LocalInvalidate { rkey: 0x77 };
    pair.b.post(&signalled(16, operation, Data::Gather(&[])));
    for wr_id in 0..16 {
        let done = poll_one(&pair.b.send_cq);
        assert_eq!((done.wr_id, done.status), (wr_id, Status::Success));
    }
    let failed = poll_one(&pair.b.send_cq);
    assert_eq!((failed.wr_id, failed.status), (16, Status::LocProtErr));
}

/// After deregistration has returned, no byte changes any more (ibv_dereg_mr(3)).
fn no_write_arrives_after_deregistration(over: Over) {
    for _ in 0..10 {
        let pair = Pair::new(over);
        let target = Memory::new(&pair.host, 1 << 20, all());
        let source = Memory::new(&pair.host, 1 << 20, Access::LOCAL_WRITE);
        let (remote_addr, rkey) = (target.addr(0), target.key());
        let a = &pair.a;
        let posted = &AtomicU32::new(0);
        let then = std::thread::scope(|scope| {
            scope.spawn(move || {
                for wr_id in 0_u8.. {
                    source.fill(|_| wr_id);
                    let operation = Operation::Write { remote_addr, rkey, imm: None };
                    let data = [source.sge(0, 1 << 20)];
                    a.post(&signalled(wr_id.into(), operation, Data::Gather(&data)));
                    posted.fetch_add(1, Ordering::Relaxed);
                    match poll_one(&a.send_cq).status {
                        Status::Success => {}
                        Status::RemAccessErr => break,
                        other => panic!("{other:?}"),
                    }
                }
            });
            // The first write has succeeded, and the second one is under way.
            while posted.load(Ordering::Relaxed) < 2 {
                std::thread::yield_now();
            }
            target.mr.deregister().expect("no window");
            target.bytes()
        });
        // The writer has ended with an error.
        assert!(then == target.bytes(), "a write after deregistration");
    }
}

fn a_right_that_the_queue_pair_revokes_is_refused(over: Over) {
    let pair = Pair::new(over);
    assert_eq!(pair.write(pair.remote.key(), 0, 8), Status::Success);
    pair.remote.fill(|_| 0);
    let attr = QpAttr { qp_access_flags: Access::REMOTE_READ, ..init_attr() };
    pair.b.qp.modify(&attr, AttrMask::ACCESS_FLAGS).expect("allowed in RTS");
    let read = Operation::Read { remote_addr: pair.remote.addr(0), rkey: pair.remote.key() };
    assert_eq!(pair.run(read, 8), Status::Success);
    assert_eq!(pair.write(pair.remote.key(), 0, 8), Status::RemAccessErr);
    pair.check_refused();
}

fn a_reregistered_region_keeps_its_key_and_loses_its_old_range(over: Over) {
    let pair = Pair::new(over);
    let other = Memory::new(&pair.host, LEN, all());
    let (rkey, pd) = (pair.remote.key(), Arc::clone(&pair.host.pd));
    let fresh = pair.remote.mr.reregister(&pd, other.region(), other.addr(0), all());
    let fresh = fresh.expect("no window");
    let operation = Operation::Write { remote_addr: other.addr(8), rkey, imm: None };
    for _ in 0..3 {
        assert_eq!(pair.run(operation.clone(), 8), Status::Success);
        poll_some(&pair.b.recv_cq, 1);
    }
    assert_eq!(other.bytes()[8..16], pair.local.bytes()[..8]);
    assert_eq!(pair.write(rkey, 0, 8), Status::RemAccessErr, "the old range");
    pair.check_refused();
    fresh.deregister().expect("no window");
}
