//! The victim of the tests with hostile peers on the same host: a queue pair that shares memory
//! with the peer, and the memory and connections that the peer must not affect.

use std::sync::{Mutex, MutexGuard, PoisonError};

use weft_engine::access::Access;
use weft_engine::event::Element;
use weft_engine::pd::Pd;
use weft_engine::qp::QpState;
use weft_engine::wc::Status;
use weft_engine::wr::{Data, Operation};
use weft_wire::rdmap::Opcode;

use super::local::{Local, Stranger};
use super::{
    Endpoint, Host, Memory, connect, init_attr, init_mask, next_event, no_event, peer, poll_one,
    send, signalled, to_rts,
};

pub const MEMORY_LEN: usize = 4096;
pub const RECEIVE_LEN: usize = 64;

/// Serialises the tests of a program, so that a leak can be attributed to one test.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A queue pair that the peer is connected to, with memory and connections that the peer must not
/// affect.
pub struct Victim {
    pub host: Host,
    pub end: Endpoint,
    /// Grants every right.
    pub memory: Memory,
    /// Grants no remote access.
    pub private: Memory,
    /// Grants every right, but in another protection domain.
    pub foreign: Memory,
    /// Grants remote reads only.
    pub readonly: Memory,
    pub receive: Memory,
    pub bystanders: (Endpoint, Endpoint),
}

impl Victim {
    /// Creates a victim that waits for the peer to dial, with one receive posted.
    pub fn new() -> Self {
        let victim = Self::idle();
        victim.end.qp.modify(&init_attr(), init_mask()).expect("INIT");
        to_rts(&victim.end.qp, peer::gid(), peer::NUMBER);
        victim.expect_send(7);
        victim
    }

    /// Creates a victim whose queue pair is not connected.
    pub fn idle() -> Self {
        let host = Host::new();
        let all = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::MW_BIND;
        let memory = Memory::new(&host, MEMORY_LEN, all);
        memory.fill(pattern);
        let private = Memory::new(&host, MEMORY_LEN, Access::LOCAL_WRITE);
        let foreign = Memory::in_domain(&Pd::new(&host.context), MEMORY_LEN, all);
        let readonly = Memory::new(&host, MEMORY_LEN, Access::REMOTE_READ);
        let receive = Memory::new(&host, RECEIVE_LEN, Access::LOCAL_WRITE);
        let end = host.endpoint();
        let bystanders = (host.endpoint(), host.endpoint());
        connect(&bystanders.0, &bystanders.1);
        Self { host, end, memory, private, foreign, readonly, receive, bystanders }
    }

    pub fn expect_send(&self, wr_id: u64) {
        self.end.receive(wr_id, &[self.receive.sge(0, RECEIVE_LEN)]);
    }

    pub fn post(&self, wr_id: u64, operation: Operation, len: usize) {
        let sges = [self.private.sge(0, len)];
        let sges = if len == 0 { &[][..] } else { &sges };
        self.end.post(&signalled(wr_id, operation, Data::Gather(sges)));
    }

    pub fn check_memory(&self) {
        let whole: Vec<u8> = (0..MEMORY_LEN).map(pattern).collect();
        assert_eq!(self.memory.bytes(), whole);
        for quiet in [&self.private, &self.foreign, &self.readonly] {
            assert_eq!(quiet.bytes(), vec![0; MEMORY_LEN]);
        }
        for memory in [&self.memory, &self.private, &self.foreign, &self.readonly, &self.receive] {
            memory.check_guards();
        }
    }

    pub fn check_bystanders(&self) {
        let (a, b) = &self.bystanders;
        b.receive(1, &[]);
        a.post(&send(2, Data::Inline(&[])));
        assert_eq!(poll_one(&b.recv_cq).status, Status::Success);
        assert_eq!(poll_one(&a.send_cq).status, Status::Success);
    }

    /// Checks that the victim has ended the connection, that its program was notified, and that
    /// nothing else was affected.
    pub fn check_refused(&self) {
        let received = poll_one(&self.end.recv_cq);
        assert_eq!((received.wr_id, received.status), (7, Status::WrFlushErr));
        let event = next_event(&self.host.context);
        assert!(
            matches!(event.element, Element::Qp(qp) if qp.is(&*self.end.qp)),
            "an event of the queue pair"
        );
        assert_eq!(self.end.qp.state(), QpState::Err);
        self.check_memory();
        self.check_bystanders();
    }

    /// Checks that the victim has lost the connection: requests and receives fail, and nothing else
    /// was affected.
    pub fn check_lost(&self) {
        self.end.post(&send(9, Data::Inline(&[])));
        let failed = poll_one(&self.end.send_cq);
        assert_eq!((failed.wr_id, failed.status), (9, Status::RetryExcErr));
        assert_eq!(poll_one(&self.end.recv_cq).status, Status::WrFlushErr);
        self.check_memory();
        self.check_bystanders();
    }

    /// Checks that an attack had no effect: a valid message over shared memory still arrives.
    pub fn check_well(&self, peer: &mut Local) {
        peer.send(b"sound");
        let received = poll_one(&self.end.recv_cq);
        assert_eq!((received.wr_id, received.status), (7, Status::Success));
        assert_eq!(&self.receive.bytes()[..5], b"sound");
        assert!(no_event(&self.host.context));
        self.check_memory();
        self.check_bystanders();
    }

    /// Checks that the connection continues over TCP, on which the peer has not sent anything yet.
    pub fn check_well_over_tcp(&self, stranger: &mut Stranger) {
        stranger.tcp.write(1, 0, &[]);
        stranger.tcp.untagged(Opcode::Send, 1, b"sound");
        let received = poll_one(&self.end.recv_cq);
        assert_eq!((received.wr_id, received.status), (7, Status::Success));
        assert_eq!(self.end.qp.transport(), "tcp");
        assert!(no_event(&self.host.context));
        self.check_memory();
        self.check_bystanders();
    }
}

pub fn pattern(at: usize) -> u8 {
    at.to_le_bytes()[0]
}

/// A named violation of the protocol by a peer that shares memory.
pub type Attack = (&'static str, fn(&Victim, &mut Local));

/// Checks that the victim ignores each attack.
pub fn ignored(attacks: &[Attack]) {
    for (what, attack) in attacks {
        eprintln!("{what}");
        let victim = Victim::new();
        let mut peer = Local::dial(&victim.end);
        attack(&victim, &mut peer);
        victim.check_well(&mut peer);
    }
}
