//! A hostile peer against a real queue pair over TCP. After each violation the victim ends this
//! connection with the Terminate that the RFCs prescribe, and its program gets an error. Other
//! connections of the process continue, and only valid messages change memory.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::peer::{self, ScriptedPeer};
use common::requests::{atomic_request, read_request};
use common::{Endpoint, Host, Memory, connect, init_attr, init_mask, next_event, poll_one, to_rts};
use weft_engine::access::Access;
use weft_engine::event::{Element, EventKind};
use weft_engine::mw::{Mw, WindowType};
use weft_engine::pd::Pd;
use weft_engine::qp::QpState;
use weft_engine::wc::Status;
use weft_engine::wr::{Data, Operation, SendFlags, SendRequest, WindowBind};
use weft_testing::seeds;
use weft_wire::ddp::Header;
use weft_wire::rdmap::{AtomicRequest, AtomicResponse, Opcode, ReadRequest, Terminate};

const MEMORY_LEN: usize = 4096;
const RECEIVE_LEN: usize = 64;

/// A queue pair that the peer is connected to, with memory and connections that the peer must not
/// affect.
struct Victim {
    host: Host,
    end: Endpoint,
    /// Grants every right.
    memory: Memory,
    /// Grants no remote access.
    private: Memory,
    /// Grants every right, but in another protection domain.
    foreign: Memory,
    receive: Memory,
    bystanders: (Endpoint, Endpoint),
}

impl Victim {
    /// Creates a victim that waits for the peer to dial, with one receive posted.
    fn new() -> Self {
        let host = Host::new();
        let all = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::MW_BIND;
        let memory = Memory::new(&host, MEMORY_LEN, all);
        memory.fill(|i| i as u8);
        let private = Memory::new(&host, MEMORY_LEN, Access::LOCAL_WRITE);
        let foreign = Memory::in_domain(&Pd::new(&host.context), MEMORY_LEN, all);
        let receive = Memory::new(&host, RECEIVE_LEN, Access::LOCAL_WRITE);
        let end = host.endpoint();
        end.qp.modify(&init_attr(), init_mask()).expect("INIT");
        end.receive(7, &[receive.sge(0, RECEIVE_LEN)]);
        to_rts(&end.qp, peer::gid(), peer::NUMBER);
        let bystanders = (host.endpoint(), host.endpoint());
        connect(&bystanders.0, &bystanders.1);
        Self { host, end, memory, private, foreign, receive, bystanders }
    }

    /// Posts an RDMA Read from the peer; returns the request, which the test may answer.
    fn read_from_peer(&self, peer: &mut ScriptedPeer) -> ReadRequest {
        let operation = Operation::Read { remote_addr: 0x1000, rkey: 0x77 };
        let data = Data::Gather(&[self.private.sge(0, 128)]);
        self.end.post(&SendRequest { wr_id: 3, operation, flags: SendFlags::SIGNALED, data });
        loop {
            let received = peer.receive().expect("a request");
            if let Header::Untagged { qn: 1, .. } = received.header {
                return ReadRequest::parse(&received.payload).expect("a read request");
            }
        }
    }

    /// Binds a window over the victim's memory to a queue pair that the peer is not connected to.
    fn window_of_bystander(&self) -> Arc<Mw> {
        let window = Mw::allocate(&self.host.pd, WindowType::Two).expect("a key");
        let bind = WindowBind {
            region: Some(Arc::clone(&self.memory.mr)),
            addr: self.memory.addr(0),
            length: MEMORY_LEN as u64,
            access: Access::REMOTE_WRITE,
        };
        let operation =
            Operation::BindWindow { window: window.clone(), rkey: window.next_key(), bind };
        let (flags, data) = (SendFlags::SIGNALED, Data::Gather(&[]));
        let owner = &self.bystanders.0;
        owner.post(&SendRequest { wr_id: 4, operation, flags, data });
        assert_eq!(poll_one(&owner.send_cq).status, Status::Success);
        window
    }

    fn check_memory(&self) {
        let pattern: Vec<u8> = (0..MEMORY_LEN).map(|i| i as u8).collect();
        assert_eq!(self.memory.bytes(), pattern);
        for quiet in [&self.private, &self.foreign] {
            assert_eq!(quiet.bytes(), vec![0; MEMORY_LEN]);
        }
        for memory in [&self.memory, &self.private, &self.foreign, &self.receive] {
            memory.check_guards();
        }
    }

    fn check_bystanders(&self) {
        let (a, b) = &self.bystanders;
        b.receive(1, &[]);
        a.post(&send(2));
        assert_eq!(poll_one(&b.recv_cq).status, Status::Success);
        assert_eq!(poll_one(&a.send_cq).status, Status::Success);
    }

    fn check_event(&self, kind: EventKind) {
        let event = next_event(&self.host.context);
        assert_eq!(event.kind, kind);
        assert!(matches!(event.element, Element::Qp(qp) if qp.is(&*self.end.qp)));
    }

    /// Checks the victim after a violation that it has answered with a Terminate.
    //= type=test
    //= rfc5040#section-7.1
    //# If an error occurs at the Local Peer, the RDMAP layer MUST attempt to inform the local ULP
    //# that the error has occurred.
    fn check_end(&self, receive: Status, kind: EventKind) {
        let received = poll_one(&self.end.recv_cq);
        assert_eq!((received.wr_id, received.status), (7, receive));
        self.check_event(kind);
        assert_eq!(self.end.qp.state(), QpState::Err);
        self.end.post(&send(9));
        assert_eq!(poll_one(&self.end.send_cq).status, Status::WrFlushErr);
        self.check_memory();
        self.check_bystanders();
    }
}

fn send(wr_id: u64) -> SendRequest<'static> {
    let operation = Operation::Send { imm: None, invalidate: None };
    SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, data: Data::Inline(&[]) }
}

fn codes(terminate: &Terminate) -> (u8, u8, u8) {
    (terminate.layer, terminate.etype, terminate.code)
}

fn untagged(opcode: Opcode, qn: u32, msn: u32, mo: u32, last: bool) -> Header {
    Header::Untagged { last, ulp: opcode.control(), ulp_word: 0, qn, msn, mo }
}

fn bytes_of(header: Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; header.len()];
    header.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

/// A violation, with the Terminate codes and the event that it must cause.
struct Case {
    what: &'static str,
    attack: fn(&Victim, &mut ScriptedPeer),
    codes: (u8, u8, u8),
    event: EventKind,
}

const fn case(
    what: &'static str,
    codes: (u8, u8, u8),
    event: EventKind,
    attack: fn(&Victim, &mut ScriptedPeer),
) -> Case {
    Case { what, attack, codes, event }
}

fn run(case: &Case, crc: bool) -> Terminate {
    eprintln!("{}, crc {crc}", case.what);
    let victim = Victim::new();
    let mut peer = ScriptedPeer::dial(&victim.end, crc);
    (case.attack)(&victim, &mut peer);
    //= type=test
    //= rfc5040#section-5.4
    //# After sending a Terminate Message on an RDMAP Stream, the Local Peer MUST NOT send any more
    //# Messages on that specific RDMAP Stream.
    //= rfc5040#section-6.2.1
    //# RDMAP defines a Terminate operation that SHOULD be invoked when either an RDMAP error is
    //# encountered or an LLP error is surfaced to the RDMAP layer by the LLP.
    //= rfc5040#section-7
    //# If errors are detected at the RDMAP or DDP layer, then the RDMAP, DDP, and LLP Streams are
    //# Abortively Terminated (see Section 4.8, "Terminate Header").
    let terminate = peer.terminate();
    assert_eq!(codes(&terminate), case.codes, "{}", case.what);
    victim.check_end(Status::WrFlushErr, case.event);
    terminate
}

fn run_all(cases: &[Case]) {
    for case in cases {
        for crc in [false, true] {
            run(case, crc);
        }
    }
}

/// Invalid headers: RFC 5041 section 7, RFC 5040 sections 5.5 and 7.2.
#[test]
fn invalid_headers_are_terminated() {
    use EventKind::QpReqErr;
    run_all(&[
        case("DDP version of a tagged segment", (1, 1, 4), QpReqErr, |victim, peer| {
            let (stag, to) = (victim.memory.key(), victim.memory.addr(0));
            let header = Header::Tagged { last: true, ulp: Opcode::Write.control(), stag, to };
            let mut bytes = bytes_of(header, b"never");
            bytes[0] = bytes[0] & !3 | 2;
            peer.ulpdu(&bytes);
        }),
        case("DDP version of an untagged segment", (1, 2, 6), QpReqErr, |_, peer| {
            let mut bytes = bytes_of(untagged(Opcode::Send, 0, 1, 0, true), b"never");
            bytes[0] &= !3;
            peer.ulpdu(&bytes);
        }),
        case("RDMAP version", (0, 2, 5), QpReqErr, |_, peer| {
            let mut bytes = bytes_of(untagged(Opcode::Send, 0, 1, 0, true), b"never");
            bytes[1] = bytes[1] & 0x3f | 0x80;
            peer.ulpdu(&bytes);
        }),
        case("unknown opcode", (0, 2, 6), QpReqErr, |_, peer| {
            let mut bytes = bytes_of(untagged(Opcode::Send, 0, 1, 0, true), b"never");
            bytes[1] = bytes[1] & 0xf0 | 0x0e;
            peer.ulpdu(&bytes);
        }),
        case("a tagged Send", (0, 2, 6), QpReqErr, |victim, peer| {
            let (stag, to) = (victim.memory.key(), victim.memory.addr(0));
            let header = Header::Tagged { last: true, ulp: Opcode::Send.control(), stag, to };
            peer.segment(header, b"never");
        }),
        case("a Send on the queue of Read Requests", (0, 2, 6), QpReqErr, |_, peer| {
            peer.segment(untagged(Opcode::Send, 1, 1, 0, true), b"never");
        }),
        case("a queue that does not exist", (1, 2, 1), QpReqErr, |_, peer| {
            peer.segment(untagged(Opcode::Send, 4, 1, 0, true), b"never");
        }),
        case("a message number ahead", (1, 2, 3), QpReqErr, |_, peer| {
            peer.segment(untagged(Opcode::Send, 0, 2, 0, true), b"never");
        }),
        case("a message number of the past", (1, 2, 3), QpReqErr, |_, peer| {
            peer.segment(untagged(Opcode::Send, 0, 0, 0, true), b"never");
        }),
        case("an offset that does not start at 0", (1, 2, 4), QpReqErr, |_, peer| {
            peer.segment(untagged(Opcode::Send, 0, 1, 8, true), b"never");
        }),
        case("a ULPDU shorter than a header", (0, 2, 0xff), QpReqErr, |_, peer| {
            peer.ulpdu(&[0x41]);
        }),
        case("an empty ULPDU", (0, 2, 0xff), QpReqErr, |_, peer| {
            peer.ulpdu(&[]);
        }),
    ]);
}

/// Accesses without a right to the memory: RFC 5041 section 8.2, RFC 5040 sections 7.2 and 8.1.1.
#[test]
fn accesses_without_a_right_are_terminated() {
    use EventKind::QpAccessErr;
    run_all(&[
        case("Write to an unknown key", (1, 1, 0), QpAccessErr, |victim, peer| {
            peer.write(victim.memory.key() ^ 1, victim.memory.addr(0), b"never");
        }),
        //= type=test
        //= rfc5041#section-8.3
        //# STags are only valid over the exact byte range established by the ULP.
        //= rfc5041#section-8.3.1
        //# An RNIC MUST ensure that a Remote Peer is not able to access memory outside the buffer
        //# specified when the STag was enabled for remote access.
        case("Write past the end", (1, 1, 1), QpAccessErr, |victim, peer| {
            peer.write(victim.memory.key(), victim.memory.addr(MEMORY_LEN - 3), b"never");
        }),
        case("Write before the start", (1, 1, 1), QpAccessErr, |victim, peer| {
            peer.write(victim.memory.key(), victim.memory.addr(0) - 1, b"never");
        }),
        case("the longest possible Write", (1, 1, 1), QpAccessErr, |victim, peer| {
            let (stag, to) = (victim.memory.key(), victim.memory.addr(0));
            let header = Header::Tagged { last: true, ulp: Opcode::Write.control(), stag, to };
            peer.ulpdu(&bytes_of(header, &vec![0xee; 65_535 - header.len()]));
        }),
        //= type=test
        //= rfc5040#section-8.1.1
        //# An RNIC MUST ensure that a specific Stream in a specific Protection Domain cannot access
        //# an STag in a different Protection Domain.
        //= rfc5041#section-8.2
        //# For an incoming DDP Segment of a Tagged DDP Message on a DDP Stream, if the PD ID of the
        //# DDP Stream is not the same as the PD ID of the STag targeted by the Tagged DDP Message,
        //# then the DDP Segment is not Placed, and the DDP layer MUST surface a local error to the
        //# ULP.
        case("Write to another domain", (1, 1, 2), QpAccessErr, |victim, peer| {
            peer.write(victim.foreign.key(), victim.foreign.addr(0), b"never");
        }),
        case("Write to deregistered memory", (1, 1, 0), QpAccessErr, |v, peer| {
            let gone = Memory::new(&v.host, 64, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
            gone.mr.deregister().expect("no window");
            peer.write(gone.key(), gone.addr(0), b"never");
        }),
        case("Write to another queue pair's window", (1, 1, 2), QpAccessErr, |victim, peer| {
            let window = victim.window_of_bystander();
            peer.write(window.key(), victim.memory.addr(0), b"never");
        }),
        case("Write to a window that is not bound", (1, 1, 0), QpAccessErr, |victim, peer| {
            let window = Mw::allocate(&victim.host.pd, WindowType::Two).expect("a key");
            peer.write(window.key(), victim.memory.addr(0), b"never");
        }),
        case("Write beyond the last address", (1, 1, 3), QpAccessErr, |victim, peer| {
            peer.write(victim.memory.key(), u64::MAX - 1, b"never");
        }),
        //= type=test
        //= rfc5040#section-8.1.1
        //# An RNIC MUST provide a mechanism for the ULP to establish and revoke read, write, or
        //# read and write access to the ULP Buffer referenced by an STag.
        case("Write without the right", (0, 1, 2), QpAccessErr, |victim, peer| {
            peer.write(victim.private.key(), victim.private.addr(0), b"never");
        }),
        case("Write of bytes to the key of acknowledgements", (1, 1, 0), QpAccessErr, |_, peer| {
            peer.write(peer.victim.ack_stag, 0, b"never");
        }),
        case("Read of an unknown key", (0, 1, 0), QpAccessErr, |victim, peer| {
            let request = read_request(victim.memory.key() ^ 1, victim.memory.addr(0), 8);
            peer.untagged(Opcode::ReadRequest, 1, &request);
        }),
        case("Read past the end", (0, 1, 1), QpAccessErr, |victim, peer| {
            let request = read_request(victim.memory.key(), victim.memory.addr(MEMORY_LEN), 1);
            peer.untagged(Opcode::ReadRequest, 1, &request);
        }),
        case("Read without the right", (0, 1, 2), QpAccessErr, |victim, peer| {
            let request = read_request(victim.private.key(), victim.private.addr(0), 8);
            peer.untagged(Opcode::ReadRequest, 1, &request);
        }),
        case("Read of another domain", (0, 1, 3), QpAccessErr, |victim, peer| {
            let request = read_request(victim.foreign.key(), victim.foreign.addr(0), 8);
            peer.untagged(Opcode::ReadRequest, 1, &request);
        }),
        case("Read beyond the last address", (0, 1, 4), QpAccessErr, |victim, peer| {
            let request = read_request(victim.memory.key(), u64::MAX - 1, 8);
            peer.untagged(Opcode::ReadRequest, 1, &request);
        }),
        case("atomic on an unknown key", (0, 1, 0), QpAccessErr, |victim, peer| {
            let request = atomic_request(victim.memory.key() ^ 1, victim.memory.addr(0));
            peer.untagged(Opcode::AtomicRequest, 1, &request);
        }),
        case("atomic past the end", (0, 1, 1), QpAccessErr, |victim, peer| {
            let request = atomic_request(victim.memory.key(), victim.memory.addr(MEMORY_LEN));
            peer.untagged(Opcode::AtomicRequest, 1, &request);
        }),
        case("atomic without the right", (0, 1, 2), QpAccessErr, |victim, peer| {
            let request = atomic_request(victim.private.key(), victim.private.addr(0));
            peer.untagged(Opcode::AtomicRequest, 1, &request);
        }),
    ]);
}

/// A Terminate contains the length and the headers of the segment in error.
#[test]
fn a_terminate_contains_the_headers_of_the_segment() {
    let write = case("Write", (1, 1, 0), EventKind::QpAccessErr, |victim, peer| {
        peer.write(victim.memory.key() ^ 1, 0x1234, b"never");
    });
    let terminate = run(&write, true);
    let Some(Header::Tagged { to: 0x1234, .. }) = terminate.ddp_header else { panic!("a header") };
    //= type=test
    //= rfc5040#section-4.8
    //# The length handed up by the DDP layer when the error was detected.
    assert_eq!(terminate.segment_len, Some(14 + 5));
    assert_eq!(terminate.read_request, None);
    let read = case("Read", (0, 1, 1), EventKind::QpAccessErr, |victim, peer| {
        let request = read_request(victim.memory.key(), victim.memory.addr(MEMORY_LEN), 1);
        peer.untagged(Opcode::ReadRequest, 1, &request);
    });
    let terminate = run(&read, true);
    assert_eq!(terminate.segment_len, Some(18 + 28));
    assert_eq!(terminate.read_request.map(|request| request.size), Some(1));
}

/// Malformed requests, and responses without a request.
#[test]
fn malformed_requests_and_unexpected_responses_are_terminated() {
    use EventKind::QpReqErr;
    run_all(&[
        case("a read response without a request", (0, 2, 6), QpReqErr, |_, peer| {
            let ulp = Opcode::ReadResponse.control();
            let stag = peer.victim.ack_stag;
            peer.segment(Header::Tagged { last: true, ulp, stag, to: 0 }, b"never");
        }),
        case("an atomic response without a request", (0, 2, 6), QpReqErr, |_, peer| {
            let mut payload = [0; AtomicResponse::LEN];
            AtomicResponse { request_id: 0, original_value: 7 }.emit(&mut payload);
            peer.untagged(Opcode::AtomicResponse, 1, &payload);
        }),
        case("a read request cut short", (0, 2, 0xff), QpReqErr, |_, peer| {
            peer.untagged(Opcode::ReadRequest, 1, &[0; ReadRequest::LEN - 1]);
        }),
        case("an atomic request cut short", (0, 2, 0xff), QpReqErr, |_, peer| {
            peer.untagged(Opcode::AtomicRequest, 1, &[0; AtomicRequest::LEN - 1]);
        }),
        case("immediate data of nine bytes", (1, 2, 5), QpReqErr, |_, peer| {
            peer.untagged(Opcode::Immediate, 1, &[0; 9]);
        }),
        case("a read request too long", (1, 2, 5), QpReqErr, |_, peer| {
            peer.untagged(Opcode::ReadRequest, 1, &[0; 64]);
        }),
        //= type=test
        //= rfc7306#section-8.2
        //# The RDMAP layer MUST validate that the Remote Peer's Tagged ULP Buffer address
        //# references a ULP Buffer address that is 64-bit aligned.
        case("an atomic on an odd address", (0, 2, 7), QpReqErr, |victim, peer| {
            let request = atomic_request(victim.memory.key(), victim.memory.addr(4));
            peer.untagged(Opcode::AtomicRequest, 1, &request);
        }),
        case("an undefined atomic operation", (0, 2, 6), QpReqErr, |victim, peer| {
            let mut request = atomic_request(victim.memory.key(), victim.memory.addr(0));
            request[3] = 9;
            peer.untagged(Opcode::AtomicRequest, 1, &request);
        }),
        case("more acknowledged than was sent", (0, 2, 0xff), QpReqErr, |_, peer| {
            peer.write(peer.victim.ack_stag, 1, &[]);
        }),
        case(
            "invalidation of a key that is not the peer's",
            //= type=test
            //= rfc5040#section-5.3
            //# Invalidate the STag if it is associated with the RDMAP Stream; or issue a Terminate
            //# Message with the STag Cannot be Invalidated Terminate Error Code, if the STag is not
            //# associated with the RDMAP Stream.
            (0, 2, 9),
            QpReqErr,
            |victim, peer| {
                let header = Header::Untagged {
                    last: true,
                    ulp: Opcode::SendInv.control(),
                    ulp_word: victim.private.key(),
                    qn: 0,
                    msn: 1,
                    mo: 0,
                };
                peer.segment(header, &[]);
            },
        ),
    ]);
}

/// More Read Requests than the depth of 16 that the victim announced: RFC 5041 section 7.1.
#[test]
fn more_reads_than_the_depth_are_terminated() {
    let victim = Victim::new();
    let mut peer = ScriptedPeer::dial(&victim.end, true);
    let requests: Vec<Vec<u8>> = (1..=17)
        .map(|msn| {
            let request = read_request(victim.memory.key(), victim.memory.addr(0), 8);
            let header = untagged(Opcode::ReadRequest, 1, msn, 0, true);
            peer.frame(&bytes_of(header, &request))
        })
        .collect();
    // Send all requests at once, so that the victim has all of them before it answers one.
    peer.raw(&requests.concat());
    assert_eq!(codes(&peer.terminate()), (1, 2, 2));
    victim.check_end(Status::WrFlushErr, EventKind::QpReqErr);
}

/// A Send longer than its receive fails that receive, too (ibv_poll_cq(3): `IBV_WC_LOC_LEN_ERR`).
#[test]
fn a_send_longer_than_its_receive_fails_both_sides() {
    for in_two_segments in [false, true] {
        let victim = Victim::new();
        let mut peer = ScriptedPeer::dial(&victim.end, true);
        let bytes = vec![0xee; RECEIVE_LEN + 1];
        if in_two_segments {
            peer.segment(untagged(Opcode::Send, 0, 1, 0, false), &bytes[..40]);
            peer.segment(untagged(Opcode::Send, 0, 1, 40, true), &bytes[40..]);
        } else {
            peer.segment(untagged(Opcode::Send, 0, 1, 0, true), &bytes);
        }
        assert_eq!(codes(&peer.terminate()), (1, 2, 5));
        victim.check_end(Status::LocLenErr, EventKind::QpReqErr);
    }
}

/// A gap inside a message ends the connection, and the receive does not complete successfully.
#[test]
fn a_wrong_offset_inside_a_message_is_terminated() {
    let victim = Victim::new();
    let mut peer = ScriptedPeer::dial(&victim.end, true);
    peer.segment(untagged(Opcode::Send, 0, 1, 0, false), &[1; 8]);
    peer.segment(untagged(Opcode::Send, 0, 1, 16, true), &[2; 8]);
    assert_eq!(codes(&peer.terminate()), (1, 2, 4));
    victim.check_end(Status::WrFlushErr, EventKind::QpReqErr);
}

/// A CRC error ends the connection: RFC 5044 section 8.
#[test]
fn a_crc_error_is_terminated() {
    let victim = Victim::new();
    let mut peer = ScriptedPeer::dial(&victim.end, true);
    let header = untagged(Opcode::Send, 0, 1, 0, true);
    let mut frame = peer.frame(&bytes_of(header, b"never"));
    let at = frame.len() - 6;
    frame[at] ^= 0x10;
    peer.raw(&frame);
    assert_eq!(codes(&peer.terminate()), (2, 0, 2));
    victim.check_end(Status::WrFlushErr, EventKind::QpReqErr);
}

/// The first message must be the negotiated ready-to-receive message: RFC 6581 section 9.2.
#[test]
fn a_first_message_other_than_the_negotiated_rtr_is_terminated() {
    let victim = Victim::new();
    let mut peer = ScriptedPeer::dial_without_rtr(&victim.end, true);
    peer.segment(untagged(Opcode::Send, 0, 1, 0, true), b"too early");
    assert_eq!(codes(&peer.terminate()), (2, 0, 7));
    victim.check_end(Status::WrFlushErr, EventKind::QpReqErr);
}

/// Read responses that do not match the request end the connection.
#[test]
fn read_responses_that_do_not_match_are_terminated() {
    type Answer = fn(&ReadRequest) -> (u32, u64, usize, bool);
    let answers: [(&str, Answer); 5] = [
        ("another key", |r| (r.sink_stag ^ 1, r.sink_to, 128, true)),
        ("another offset", |r| (r.sink_stag, r.sink_to + 8, 120, true)),
        ("too long", |r| (r.sink_stag, r.sink_to, 129, true)),
        ("too short", |r| (r.sink_stag, r.sink_to, 127, true)),
        ("no end", |r| (r.sink_stag, r.sink_to, 128, false)),
    ];
    for (what, answer) in answers {
        eprintln!("{what}");
        let victim = Victim::new();
        let mut peer = ScriptedPeer::dial(&victim.end, true);
        let request = victim.read_from_peer(&mut peer);
        let (stag, to, len, last) = answer(&request);
        let ulp = Opcode::ReadResponse.control();
        peer.segment(Header::Tagged { last, ulp, stag, to }, &vec![0xee; len]);
        assert_eq!(codes(&peer.terminate()), (1, 1, 1));
        let flushed = poll_one(&victim.end.send_cq);
        assert_eq!((flushed.wr_id, flushed.status), (3, Status::WrFlushErr));
        victim.check_end(Status::WrFlushErr, EventKind::QpAccessErr);
    }
}

/// After a Terminate from the peer the oldest request fails with the peer's reason, and the victim
/// sends nothing.
#[test]
fn a_terminate_from_the_peer_fails_the_oldest_request() {
    let victim = Victim::new();
    let mut peer = ScriptedPeer::dial(&victim.end, true);
    victim.read_from_peer(&mut peer);
    let terminate = Terminate {
        layer: 0,
        etype: 1,
        code: 0,
        segment_len: None,
        ddp_header: None,
        read_request: None,
    };
    let mut payload = [0; Terminate::LEN_MAX];
    let len = terminate.emit(&mut payload);
    peer.untagged(Opcode::Terminate, 1, &payload[..len]);
    assert!(peer.receive().is_none(), "a Terminate is not answered");
    let failed = poll_one(&victim.end.send_cq);
    assert_eq!((failed.wr_id, failed.status), (3, Status::RemAccessErr));
    victim.check_end(Status::WrFlushErr, EventKind::QpFatal);
}

/// When the stream ends inside an FPDU, outstanding requests fail as if the peer had died.
#[test]
fn a_truncated_frame_fails_outstanding_requests() {
    let victim = Victim::new();
    let mut peer = ScriptedPeer::dial(&victim.end, true);
    victim.read_from_peer(&mut peer);
    let frame = peer.frame(&bytes_of(untagged(Opcode::Send, 0, 1, 0, true), &[0xee; 48]));
    peer.raw(&frame[..frame.len() - 5]);
    peer.finish();
    while peer.receive().is_some() {}
    //= type=test
    //= rfc5041#section-7
    //# All LLP errors reported to DDP SHOULD be passed up to the ULP.
    //= rfc5041#section-3
    //# For a specific LLP Stream, the LLP MUST provide a mechanism to indicate that the LLP Stream
    //# has been gracefully torn down.
    //= rfc5041#section-5.4
    //# At the Data Sink, DDP MUST Deliver a DDP Message if and only if all of the following are
    //# true: * the last DDP Segment of the DDP Message had its Last flag set,
    //= rfc5041#section-6.2.2
    //# Thus, any of the following fatal errors on a DDP Stream MUST cause DDP to indicate to the
    //# ULP that a fatal error has occurred: * Underlying LLP Connection or LLP Stream is lost.
    let failed = poll_one(&victim.end.send_cq);
    assert_eq!((failed.wr_id, failed.status), (3, Status::RetryExcErr));
    let flushed = poll_one(&victim.end.recv_cq);
    assert_eq!((flushed.wr_id, flushed.status), (7, Status::WrFlushErr));
    assert_eq!(victim.receive.bytes(), vec![0; RECEIVE_LEN]);
    victim.check_memory();
    victim.check_bystanders();
}

/// An acknowledgement count that decreases ends the connection.
#[test]
fn a_decreasing_acknowledgement_is_terminated() {
    let victim = Victim::new();
    let mut peer = ScriptedPeer::dial(&victim.end, true);
    victim.end.post(&send(1));
    assert!(peer.receive().is_some(), "the victim's Send");
    peer.write(peer.victim.ack_stag, 1, &[]);
    assert_eq!(poll_one(&victim.end.send_cq).status, Status::Success);
    peer.write(peer.victim.ack_stag, 0, &[]);
    assert_eq!(codes(&peer.terminate()), (0, 2, 0xff));
    victim.check_end(Status::WrFlushErr, EventKind::QpReqErr);
}

/// A victim buffers a bounded number of bytes of messages without a receive, whatever their length;
/// then it stops reading this connection only.
#[test]
fn a_flood_of_sends_without_receives_is_bounded() {
    // Far more than the socket buffers hold of a stream that the victim does not read.
    const MOST: usize = 64 << 20;
    for len in [0, 60_000] {
        let victim = Victim::new();
        let mut peer = ScriptedPeer::dial(&victim.end, true);
        // This Send takes the posted receive.
        peer.segment(untagged(Opcode::Send, 0, 1, 0, true), &[]);
        let mut msn = 1;
        let mut taken = 0;
        loop {
            let frames: Vec<u8> = (0..16 + 4096 / (1 + len))
                .flat_map(|_| {
                    msn += 1;
                    peer.frame(&bytes_of(untagged(Opcode::Send, 0, msn, 0, true), &vec![7; len]))
                })
                .collect();
            if !peer.push(&frames) {
                break;
            }
            taken += frames.len();
            assert!(taken < MOST, "the victim has read more than {taken} bytes");
        }
        victim.check_bystanders();
    }
}

/// Well-formed frames with random headers and payloads that aim at real keys, from a seed. Only
/// memory that the peer has rights to may change, and the process must go on.
#[test]
fn random_frames() {
    seeds::run(24, |seed| {
        eprintln!("seed {seed} (replay it by WEFT_SIM_SEED)");
        let mut rng = fastrand::Rng::with_seed(seed);
        let victim = Victim::new();
        let mut peer = ScriptedPeer::dial(&victim.end, rng.bool());
        for _ in 0..rng.usize(1..200) {
            let noise = noise(&mut rng, &victim, &peer);
            peer.ulpdu(&noise);
        }
        peer.finish();
        while peer.receive().is_some() {}
        for memory in [&victim.private, &victim.foreign] {
            assert_eq!(memory.bytes(), vec![0; MEMORY_LEN]);
        }
        for memory in [&victim.memory, &victim.private, &victim.foreign, &victim.receive] {
            memory.check_guards();
        }
        victim.check_bystanders();
        None
    });
}

fn noise(rng: &mut fastrand::Rng, victim: &Victim, peer: &ScriptedPeer) -> Vec<u8> {
    let keys = [victim.memory.key(), victim.private.key(), victim.foreign.key()];
    let stag = match rng.u8(0..5) {
        0 => rng.u32(..),
        1 => peer.victim.ack_stag,
        _ => keys[rng.usize(..keys.len())],
    };
    let memory = if stag == keys[0] { &victim.memory } else { &victim.private };
    let to = match rng.u8(0..4) {
        0 => rng.u64(..),
        _ => memory.addr(0).wrapping_add(rng.u64(0..5000)).wrapping_sub(64),
    };
    let mut payload: Vec<u8> = (0..rng.usize(0..200)).map(|_| rng.u8(..)).collect();
    let opcode = rng.u8(0..13);
    match opcode {
        1 => payload = read_request(stag, to, rng.u32(0..6000)).to_vec(),
        10 => payload = atomic_request(stag, to & !7).to_vec(),
        _ => {}
    }
    let ulp = 0x40 | opcode;
    let header = if matches!(opcode, 0 | 2) {
        Header::Tagged { last: rng.bool(), ulp, stag, to }
    } else {
        let qn = match opcode {
            1 | 10 => 1,
            7 => 2,
            11 => 3,
            _ => 0,
        };
        let msn = if rng.u8(0..3) == 0 { rng.u32(0..4) } else { 1 };
        Header::Untagged { last: rng.bool(), ulp, ulp_word: stag, qn, msn, mo: 0 }
    };
    let mut bytes = bytes_of(header, &payload);
    if rng.u8(0..20) == 0 {
        let at = rng.usize(..bytes.len());
        bytes[at] ^= 1 << rng.u8(0..8);
    }
    bytes
}

// ---- Before the connection is established ----

/// Whether the listener closes the connection without sending anything.
fn is_refused(stream: &mut TcpStream, timeout: Duration) -> bool {
    stream.set_read_timeout(Some(timeout)).expect("a socket option");
    let mut bytes = [0; 64];
    match stream.read(&mut bytes) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn an_invalid_mpa_request_is_refused() {
    let victim = Victim::new();
    let number = victim.end.qp.number();
    let good = peer::request(number, true).request().to_vec();
    let mut cases: Vec<(&str, Vec<u8>)> = vec![
        ("another protocol", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()),
        ("zeros", vec![0; 64]),
        ("bytes behind the request", [good.as_slice(), &[0; 8]].concat()),
    ];
    let change = |what, at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        (what, bytes)
    };
    cases.push(change("a reply", 9, b'p'));
    cases.push(change("revision 0", 17, 0));
    cases.push(change("revision 3", 17, 3));
    cases.push(change("more private data than allowed", 18, 0xff));
    cases.push(change("no trailer", 24, 0));
    //= type=test
    //= rfc5040#section-6.1
    //# Once in RDMA enabled mode, an implementation MUST send only RDMA Messages across the
    //# transport Stream until the RDMAP Stream is torn down.
    for (what, bytes) in cases {
        eprintln!("{what}");
        let mut stream = TcpStream::connect(peer::address_of(number)).expect("a listener");
        stream.write_all(&bytes).expect("the socket buffer has room");
        assert!(is_refused(&mut stream, peer::TIMEOUT), "{what}");
    }
    // The victim is unaffected: its real peer can still connect.
    let mut peer = ScriptedPeer::dial(&victim.end, true);
    peer.segment(untagged(Opcode::Send, 0, 1, 0, true), b"hello");
    assert_eq!(poll_one(&victim.end.recv_cq).byte_len, 5);
}

/// The victim keeps a request from a peer that its queue pair does not expect, without an answer,
/// and still accepts the expected peer.
#[test]
fn a_request_from_an_unexpected_peer_is_held() {
    let victim = Victim::new();
    let number = victim.end.qp.number();
    let identity = weft_engine::hello::Identity {
        qp_num: 2,
        ack_stag: peer::ACK_STAG,
        gid: peer::gid(),
        process: [0; 16],
    };
    let private_data = weft_engine::hello::append(&[], &identity, number);
    let initiator =
        weft_wire::mpa::negotiate::Initiator::new(peer::params(true), &private_data).expect("fits");
    let mut stream = TcpStream::connect(peer::address_of(number)).expect("a listener");
    stream.write_all(initiator.request()).expect("the socket buffer has room");
    assert!(!is_refused(&mut stream, Duration::from_millis(100)), "held, not answered");
    let mut peer = ScriptedPeer::dial(&victim.end, true);
    peer.segment(untagged(Opcode::Send, 0, 1, 0, true), b"hello");
    assert_eq!(poll_one(&victim.end.recv_cq).byte_len, 5);
}

#[test]
fn an_incomplete_request_times_out() {
    let victim = Victim::new();
    let number = victim.end.qp.number();
    let good = peer::request(number, true).request().to_vec();
    let start = Instant::now();
    let mut streams: Vec<TcpStream> = [0, 1, 19, good.len() - 1]
        .into_iter()
        .map(|len| {
            let mut stream = TcpStream::connect(peer::address_of(number)).expect("a listener");
            stream.write_all(&good[..len]).expect("the socket buffer has room");
            stream
        })
        .collect();
    for stream in &mut streams {
        assert!(is_refused(stream, peer::TIMEOUT), "the victim closes the connection");
    }
    assert!(
        start.elapsed() > Duration::from_secs(2),
        "the victim waits for the rest of the request"
    );
    let mut peer = ScriptedPeer::dial(&victim.end, true);
    peer.segment(untagged(Opcode::Send, 0, 1, 0, true), b"hello");
    assert_eq!(poll_one(&victim.end.recv_cq).byte_len, 5);
}

#[test]
fn a_flood_of_connections_keeps_out_no_peer() {
    let victim = Victim::new();
    let number = victim.end.qp.number();
    let streams: Vec<TcpStream> = (0..400)
        .filter_map(|i| {
            let mut stream = TcpStream::connect(peer::address_of(number)).ok()?;
            if i % 2 == 0 {
                let _ = stream.write_all(b"MPA ID Req Fra");
            }
            Some(stream)
        })
        .collect();
    victim.check_bystanders();
    let mut peer = ScriptedPeer::dial(&victim.end, true);
    peer.segment(untagged(Opcode::Send, 0, 1, 0, true), b"hello");
    assert_eq!(poll_one(&victim.end.recv_cq).byte_len, 5);
    drop(streams);
}
