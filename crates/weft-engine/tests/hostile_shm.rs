//! A hostile peer on the same host that shares memory and violates the protocol of the rings. Each
//! violation ends its own connection at most; nothing hangs, other connections of the process
//! continue, and only valid messages change memory.

mod common;

use std::time::{Duration, Instant};

use common::local::{BULK, BULK_LEN, GRANT, INLINE, Local, PULL, SLOTS};
use common::requests::{atomic_request, read_request};
use common::victim::{Attack, MEMORY_LEN, Victim, alone, ignored, pattern};
use common::{Memory, poll_one, poll_some, send, to_state};
use weft_engine::access::Access;
use weft_engine::qp::QpState;
use weft_engine::wc::Status;
use weft_engine::wr::{Data, Operation};
use weft_wire::ddp::Header;
use weft_wire::rdmap::{AtomicRequest, Opcode, ReadRequest};

fn untagged(opcode: Opcode, qn: u32, msn: u32, mo: u32, last: bool) -> Header {
    Header::Untagged { last, ulp: opcode.control(), ulp_word: 0, qn, msn, mo }
}

fn bulk_place(at: u32, len: u32) -> Vec<u8> {
    [at.to_ne_bytes(), len.to_ne_bytes()].concat()
}

fn pieces(pieces: &[(u64, u32)]) -> Vec<u8> {
    let piece =
        |&(addr, len): &(u64, u32)| [&addr.to_ne_bytes()[..], &len.to_ne_bytes()[..]].concat();
    pieces.iter().flat_map(piece).collect()
}

fn own(bytes: &[u8]) -> Vec<u8> {
    pieces(&[(bytes.as_ptr() as u64, bytes.len() as u32)])
}

/// Checks that the victim answers each attack with a Terminate, as it would over TCP.
fn refused(attacks: &[Attack]) {
    for (what, attack) in attacks {
        eprintln!("{what}");
        let victim = Victim::new();
        let mut peer = Local::dial(&victim.end);
        attack(&victim, &mut peer);
        victim.check_refused();
        peer.terminate();
    }
}

/// Checks that the victim answers each attack with a Terminate of the given codes, the same as over
/// TCP.
fn refused_with(attacks: &[((u8, u8, u8), Attack)]) {
    for (codes, (what, attack)) in attacks {
        eprintln!("{what}");
        let victim = Victim::new();
        let mut peer = Local::dial(&victim.end);
        attack(&victim, &mut peer);
        victim.check_refused();
        let terminate = peer.terminate();
        assert_eq!((terminate.layer, terminate.etype, terminate.code), *codes, "{what}");
    }
}

/// Checks the tests' own peer: its valid messages are accepted.
#[test]
fn valid_messages_of_the_test_peer_are_accepted() {
    let _alone = alone();
    let victim = Victim::new();
    let mut peer = Local::dial(&victim.end);
    victim.check_well(&mut peer);
    assert_eq!(victim.end.qp.transport(), "shm");
    for (kind, rest) in
        [(INLINE, b"bytes".to_vec()), (BULK, bulk_place(3, 5)), (PULL, own(b"bytes"))]
    {
        peer.fill_bulk(3, b"bytes");
        victim.expect_send(8);
        peer.untagged(kind, Opcode::Send, &rest);
        assert_eq!(poll_one(&victim.end.recv_cq).byte_len, 5);
        assert_eq!(&victim.receive.bytes()[..5], b"bytes");
        victim.receive.fill(|_| 0);
        peer.write(kind, victim.memory.key(), victim.memory.addr(8), &rest);
        victim.expect_send(8);
        peer.send(b"");
        poll_one(&victim.end.recv_cq);
        assert_eq!(&victim.memory.bytes()[8..13], b"bytes");
        victim.memory.fill(pattern);
    }
    victim.end.post(&send(3, Data::Inline(&[b"back"])));
    let (kind, _, payload) = peer.receive();
    assert_eq!((kind, payload.as_slice()), (INLINE, &b"back"[..]));
    peer.publish_placed(1);
    assert_eq!(poll_one(&victim.end.send_cq).status, Status::Success);
}

#[test]
fn invalid_slots_are_refused() {
    let _alone = alone();
    refused(&[
        ("a length beyond the slot", |_, peer| peer.slot(121, &[0x41; 120])),
        ("the longest length", |_, peer| peer.slot(255, &[0x41; 120])),
        ("no room for the count", |_, peer| peer.slot(3, &[0; 3])),
        ("nothing at all", |_, peer| peer.slot(0, &[])),
        ("no room for a header", |_, peer| peer.slot(5, &[0, 0, 0, 0, 0x41])),
        ("half a header", |_, peer| peer.slot(12, &[0x41; 12])),
        ("all ones", |_, peer| peer.slot(120, &[0xff; 120])),
        ("all zeros", |_, peer| peer.slot(120, &[0; 120])),
        ("a kind that does not exist", |_, peer| {
            peer.segment(3, untagged(Opcode::Send, 0, 1, 0, true), b"never");
        }),
        ("the last kind", |_, peer| {
            peer.segment(0xff, untagged(Opcode::Send, 0, 1, 0, true), b"never");
        }),
        ("an unknown opcode", |_, peer| {
            let (ulp, ulp_word) = (0x4e, 0);
            let header = Header::Untagged { last: true, ulp, ulp_word, qn: 0, msn: 1, mo: 0 };
            peer.segment(INLINE, header, b"never");
        }),
        ("a message number ahead", |_, peer| {
            peer.segment(INLINE, untagged(Opcode::Send, 0, 2, 0, true), b"never");
        }),
        ("a queue that does not exist", |_, peer| {
            peer.segment(INLINE, untagged(Opcode::Send, 4, 1, 0, true), b"never");
        }),
        ("a Read Response without a request", |_, peer| {
            let ulp = Opcode::ReadResponse.control();
            let header = Header::Tagged { last: true, ulp, stag: 1, to: 0 };
            peer.segment(INLINE, header, b"never");
        }),
    ]);
    ignored(&[
        ("tags of other laps", |_, peer| {
            for tag in [1, 2 << 32, u64::MAX, 129 << 32 | 5, 0xdead_beef] {
                peer.wrong_tag(tag);
            }
        }),
        ("reserved bits of the info word", |victim, peer| {
            let header = untagged(Opcode::Send, 0, 1, 0, true);
            let mut body = vec![0; 4 + header.len()];
            header.emit(&mut body[4..]);
            peer.slot(0xabcd << 16 | body.len() as u32, &body);
            assert_eq!(poll_one(&victim.end.recv_cq).status, Status::Success);
            victim.expect_send(7);
            // The next Send has the next message number.
            peer.untagged(INLINE, Opcode::ReadRequest, &read_request(0, 0, 0));
            peer.segment(INLINE, untagged(Opcode::Send, 0, 2, 0, true), b"two");
            assert_eq!(poll_one(&victim.end.recv_cq).status, Status::Success);
            victim.expect_send(7);
            peer.skip_sends(2);
        }),
    ]);
}

#[test]
fn invalid_bulk_references_are_refused() {
    let _alone = alone();
    const LEN: u32 = BULK_LEN as u32;
    refused(&[
        ("no place", |_, peer| peer.untagged(BULK, Opcode::Send, &[])),
        ("half a place", |_, peer| peer.untagged(BULK, Opcode::Send, &[0; 7])),
        ("an offset at the end", |_, peer| {
            peer.untagged(BULK, Opcode::Send, &bulk_place(LEN, 1));
        }),
        ("a length past the end", |_, peer| {
            peer.untagged(BULK, Opcode::Send, &bulk_place(LEN - 8, 9));
        }),
        ("the largest offset and length", |_, peer| {
            peer.untagged(BULK, Opcode::Send, &bulk_place(u32::MAX, u32::MAX));
        }),
        ("the largest offset", |_, peer| {
            peer.untagged(BULK, Opcode::Send, &bulk_place(u32::MAX, 1));
        }),
        ("a Read Request", |_, peer| {
            peer.untagged(BULK, Opcode::ReadRequest, &bulk_place(0, ReadRequest::LEN as u32));
        }),
        ("a Terminate", |_, peer| peer.untagged(BULK, Opcode::Terminate, &bulk_place(0, 4))),
        ("an atomic", |_, peer| {
            peer.untagged(BULK, Opcode::AtomicRequest, &bulk_place(0, AtomicRequest::LEN as u32));
        }),
        ("immediate data", |_, peer| {
            peer.untagged(BULK, Opcode::Immediate, &bulk_place(0, 8));
        }),
    ]);
}

#[test]
fn invalid_pulls_are_refused() {
    let _alone = alone();
    refused(&[
        ("from an unmapped address", |_, peer| {
            peer.untagged(PULL, Opcode::Send, &pieces(&[(8, 8)]))
        }),
        ("from the kernel", |_, peer| {
            peer.untagged(PULL, Opcode::Send, &pieces(&[(0xffff_ffff_8000_0000, 8)]));
        }),
        ("around the end of memory", |_, peer| {
            peer.untagged(PULL, Opcode::Send, &pieces(&[(u64::MAX - 3, 8)]));
        }),
        ("half from an unmapped address", |_, peer| {
            let good = *peer.process;
            let list = [(good.as_ptr() as u64, 8), (8, 8)];
            peer.untagged(PULL, Opcode::Send, &pieces(&list));
        }),
        ("in parts", |_, peer| {
            peer.segment(PULL, untagged(Opcode::Send, 0, 1, 0, false), &own(b"half"));
        }),
        ("a Write in parts", |victim, peer| {
            let (stag, to) = (victim.foreign.key(), victim.foreign.addr(0));
            let ulp = Opcode::Write.control();
            let header = Header::Tagged { last: false, ulp, stag, to };
            peer.segment(PULL, header, &own(b"half"));
        }),
        ("the second part", |_, peer| {
            peer.segment(INLINE, untagged(Opcode::Send, 0, 1, 0, false), b"one");
            peer.segment(PULL, untagged(Opcode::Send, 0, 1, 3, true), &own(b"two"));
        }),
        ("a Read Request", |victim, peer| {
            let request = read_request(victim.memory.key(), victim.memory.addr(0), 8);
            peer.untagged(PULL, Opcode::ReadRequest, &own(&request));
        }),
        ("a Write from an unmapped address", |victim, peer| {
            // Pulled bytes come from addresses that the peer names; this one is not mapped.
            let (key, to) = (victim.memory.key(), victim.memory.addr(0));
            peer.write(PULL, key, to, &pieces(&[(8, 8)]));
        }),
        ("the answer to a Read", |victim, peer| {
            let read = Operation::Read { remote_addr: 0x1000, rkey: 0x77 };
            victim.post(3, read, 8);
            let request = peer.receive_read_request();
            let ulp = Opcode::ReadResponse.control();
            let (stag, to) = (request.sink_stag, request.sink_to);
            peer.segment(PULL, Header::Tagged { last: true, ulp, stag, to }, &pieces(&[(8, 8)]));
        }),
    ]);
    // Without a receive the victim keeps the list of pieces, and copies them when a receive is
    // posted.
    let victim = Victim::new();
    let mut peer = Local::dial(&victim.end);
    peer.send(b"");
    poll_one(&victim.end.recv_cq);
    peer.untagged(PULL, Opcode::Send, &pieces(&[(8, 8)]));
    assert!(poll_some(&victim.end.recv_cq, 1).is_empty());
    victim.expect_send(7);
    victim.check_refused();
}

/// A message may consist of any number of empty segments; they take no memory.
#[test]
fn message_of_endless_empty_segments_takes_no_memory() {
    let _alone = alone();
    let victim = Victim::new();
    let mut peer = Local::dial(&victim.end);
    victim.check_well(&mut peer);
    for _ in 0..20_000 {
        while peer.filled.wrapping_sub(peer.emptied_there()) >= SLOTS {
            poll_some(&victim.end.recv_cq, 1);
        }
        peer.segment(BULK, untagged(Opcode::Send, 0, 2, 0, false), &bulk_place(0, 0));
    }
    victim.check_bystanders();
    assert!(victim.end.qp.state() != QpState::Err);
}

/// Accesses without a right get the same answers as over TCP: RFC 5041 section 8.2, RFC 5040
/// sections 7.2 and 8.1.1.
#[test]
fn accesses_without_a_right_are_terminated() {
    let _alone = alone();
    for kind in [INLINE, BULK, PULL] {
        fn bytes(kind: u32) -> Vec<u8> {
            match kind {
                INLINE => b"never".to_vec(),
                BULK => bulk_place(0, 5),
                _ => own(b"never"),
            }
        }
        type Target = fn(&Victim) -> (u32, u64);
        let targets: [(&str, (u8, u8, u8), Target); 7] = [
            ("an unknown key", (1, 1, 0), |v| (v.memory.key() ^ 1, v.memory.addr(0))),
            ("past the end", (1, 1, 1), |v| (v.memory.key(), v.memory.addr(MEMORY_LEN - 3))),
            ("before the start", (1, 1, 1), |v| (v.memory.key(), v.memory.addr(0) - 1)),
            ("another domain", (1, 1, 2), |v| (v.foreign.key(), v.foreign.addr(0))),
            ("without the right", (0, 1, 2), |v| (v.private.key(), v.private.addr(0))),
            ("for reading only", (0, 1, 2), |v| (v.readonly.key(), v.readonly.addr(0))),
            ("beyond the last address", (1, 1, 3), |v| (v.memory.key(), u64::MAX - 1)),
        ];
        for (what, codes, target) in targets {
            eprintln!("Write, kind {kind}: {what}");
            let victim = Victim::new();
            let mut peer = Local::dial(&victim.end);
            let (key, to) = target(&victim);
            peer.write(kind, key, to, &bytes(kind));
            victim.check_refused();
            let terminate = peer.terminate();
            assert_eq!((terminate.layer, terminate.etype, terminate.code), codes, "{what}");
        }
    }
    refused_with(&[
        (
            (0, 1, 0),
            ("Read of an unknown key", |victim, peer| {
                let request = read_request(victim.memory.key() ^ 1, victim.memory.addr(0), 8);
                peer.untagged(INLINE, Opcode::ReadRequest, &request);
            }),
        ),
        (
            (0, 1, 1),
            ("Read past the end", |victim, peer| {
                let at = victim.memory.addr(MEMORY_LEN - 7);
                peer.untagged(
                    INLINE,
                    Opcode::ReadRequest,
                    &read_request(victim.memory.key(), at, 8),
                );
            }),
        ),
        (
            (0, 1, 2),
            ("Read without the right", |victim, peer| {
                let request = read_request(victim.private.key(), victim.private.addr(0), 8);
                peer.untagged(INLINE, Opcode::ReadRequest, &request);
            }),
        ),
        (
            (0, 1, 2),
            ("atomic without the right", |victim, peer| {
                let request = atomic_request(victim.readonly.key(), victim.readonly.addr(0));
                peer.untagged(INLINE, Opcode::AtomicRequest, &request);
            }),
        ),
    ]);
}

#[test]
fn invalid_counts_are_refused() {
    let _alone = alone();
    refused(&[
        ("in a slot: more placed than has been sent", |_, peer| {
            let header = untagged(Opcode::Send, 0, 1, 0, true);
            peer.segment_after(1, INLINE, header, b"never");
        }),
        ("in a slot: many more placed than have been sent", |_, peer| {
            let header = untagged(Opcode::Send, 0, 1, 0, true);
            peer.segment_after(u32::MAX / 2, INLINE, header, b"never");
        }),
        ("in the control words: more placed than has been sent", |_, peer| peer.publish_placed(1)),
        ("in the control words: many more placed than have been sent", |_, peer| {
            peer.publish_placed(u32::MAX / 2)
        }),
        ("acknowledged by a Write: more placed than has been sent", |_, peer| {
            let ack = peer.tcp.victim.ack_stag;
            peer.write(INLINE, ack, 1, &[]);
        }),
    ]);
    let attacks: [Attack; 2] = [
        ("more emptied than has been filled", |victim, peer| {
            peer.publish_emptied(1_000);
            for wr_id in 0..u64::from(SLOTS) + 8 {
                victim.end.post(&send(wr_id, Data::Inline(&[b"x"])));
            }
        }),
        ("fewer emptied than before", |victim, peer| {
            for wr_id in 0..u64::from(SLOTS) - 8 {
                victim.end.post(&send(wr_id, Data::Inline(&[b"x"])));
            }
            for _ in 0..8 {
                peer.receive();
            }
            peer.publish_emptied(8);
            for wr_id in 0..12 {
                victim.end.post(&send(wr_id, Data::Inline(&[b"x"])));
            }
            // The last four need slots that the count of 8 freed, so that the victim has read that
            // count.
            for _ in 8..SLOTS + 4 {
                peer.receive();
            }
            peer.publish_emptied(7);
            for wr_id in 0..8 {
                victim.end.post(&send(wr_id, Data::Inline(&[b"x"])));
            }
        }),
    ];
    for (what, attack) in attacks {
        eprintln!("{what}");
        let victim = Victim::new();
        let mut peer = Local::dial(&victim.end);
        attack(&victim, &mut peer);
        victim.check_refused();
        // The ring has no room for a Terminate, so the victim just closes the connection.
        while peer.tcp.receive().is_some() {}
    }
    ignored(&[
        ("an old count", |_, peer| peer.publish_placed(u32::MAX)),
        ("garbage in the words of the keys", |_, peer| {
            (0..64).for_each(|slot| peer.grant(slot, u64::MAX));
            peer.use_key(u32::MAX);
            peer.publish_pulls(u32::MAX);
            peer.use_key(0);
        }),
    ]);
}

/// A peer that never empties its ring is like one that does not read: requests wait, and nothing
/// else is affected.
#[test]
fn requests_wait_while_the_ring_stays_full() {
    let _alone = alone();
    let victim = Victim::new();
    let peer = Local::dial(&victim.end);
    peer.publish_pulls(1);
    let large = Memory::new(&victim.host, 256 << 10, Access::LOCAL_WRITE);
    for wr_id in 0..200 {
        let data = [large.sge(0, if wr_id % 2 == 0 { 256 << 10 } else { 8 << 10 })];
        victim.end.post(&send(wr_id, Data::Gather(&data)));
    }
    assert!(poll_some(&victim.end.send_cq, 1).is_empty());
    victim.check_bystanders();
    to_state(&victim.end.qp, QpState::Err);
    for wr_id in 0..200 {
        let flushed = poll_one(&victim.end.send_cq);
        assert_eq!((flushed.wr_id, flushed.status), (wr_id, Status::WrFlushErr));
    }
    victim.check_memory();
}

/// A peer that never stops using a key delays deregistration once, and for a bounded time.
#[test]
fn a_key_in_use_forever_delays_deregistration_for_a_bounded_time() {
    // Half of the time that the deregistrations would take if each of them was delayed.
    const BOUND: Duration = Duration::from_secs(60);
    const KEYS: usize = 60;
    let _alone = alone();
    let victim = Victim::new();
    let peer = Local::dial(&victim.end);
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let memories: Vec<Memory> = (0..KEYS).map(|_| Memory::new(&victim.host, 64, all)).collect();
    for memory in &memories {
        assert_eq!(peer.ask(memory.key()).bytes[0], GRANT);
    }
    let start = Instant::now();
    for memory in &memories {
        peer.use_key(memory.key());
        memory.mr.deregister().expect("no window");
    }
    assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
    victim.check_bystanders();
    peer.use_key(victim.memory.key());
    drop(victim);
    assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
}
