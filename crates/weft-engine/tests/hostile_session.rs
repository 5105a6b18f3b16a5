//! A hostile peer on the same host: violations on the session (Unix) socket, false statements about
//! keys, and connections that end at a bad time. Each violation affects its own connection at most,
//! or leaves it on TCP; nothing hangs and nothing leaks.

mod common;

use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use common::local::{
    ASK, DENY, Dialled, GRANT, INLINE, Local, OFFER, Offer, SEGMENT_LEN, SLOTS, Session, Stranger,
    WAKEUP, answer, listener_above, random_process,
};
use common::peer::{self, ScriptedPeer};
use common::victim::{Victim, alone, ignored};
use common::{
    Memory, init_attr, init_mask, poll_one, poll_some, send, signalled, to_rts, to_state,
};
use weft_engine::access::Access;
use weft_engine::mw::{Mw, WindowType};
use weft_engine::qp::{AttrMask, QpAttr, QpState};
use weft_engine::wc::Status;
use weft_engine::wr::{Data, Operation, WindowBind};
use weft_sys::{OwnPresence, SharedMemory};

/// An invalid packet on the session socket ends the connection; unexpected valid ones are ignored.
#[test]
fn invalid_session_packets_end_the_connection() {
    let _alone = alone();
    let half_of_pages = [&[GRANT], &[0xff; 60][..]].concat();
    let packets: [(&str, &[u8]); 15] = [
        ("of no bytes", &[]),
        ("of kind 0", &[0]),
        ("of kind 7", &[7]),
        ("of kind 255", &[255; 96]),
        ("longer than any", &[WAKEUP; 97]),
        ("a second offer", &[OFFER; 46]),
        ("a cut offer", &[OFFER]),
        ("an acceptance of nothing", &[2, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("a key request without a key", &[ASK]),
        ("half a key request", &[ASK, 1, 2, 3]),
        ("a grant of nothing", &[GRANT]),
        ("half a grant", &[GRANT, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]),
        ("half of a grant's pages", &half_of_pages),
        ("a denial of nothing", &[DENY]),
        ("half a denial", &[DENY, 1]),
    ];
    for (what, packet) in packets {
        eprintln!("{what}");
        let victim = Victim::new();
        let peer = Local::dial(&victim.end);
        peer.session.send(packet, &[]);
        assert!(peer.session.is_closed(), "{what}");
        victim.check_lost();
    }
    ignored(&[
        ("answers without a key request", |_, peer| {
            peer.session.send(&[&[GRANT], &[0xff; 64][..]].concat(), &[]);
            peer.session.send(&[DENY, 1, 2, 3, 4], &[]);
        }),
        ("a flood of wakeups", |_, peer| (0..10_000).for_each(|_| peer.wake())),
        ("descriptors with a wakeup", |_, peer| {
            let (_memory, fd) = SharedMemory::create(4096).expect("memory");
            (0..1_000).for_each(|_| peer.session.send(&[WAKEUP], &[fd.as_fd(), fd.as_fd()]));
        }),
        ("key requests whose answers the peer does not read", |victim, peer| {
            let [a, b, c, d] = victim.memory.key().to_ne_bytes();
            (0..2_000).for_each(|_| peer.session.send(&[ASK, a, b, c, d], &[]));
        }),
    ]);
    let victim = Victim::new();
    let peer = Local::dial(&victim.end);
    let (_memory, fd) = SharedMemory::create(4096).expect("memory");
    peer.session.send(&[WAKEUP], &[fd.as_fd(); 3]);
    assert!(peer.session.is_closed(), "more descriptors than any packet has");
    victim.check_lost();
}

/// The victim grants no key that the peer may not use, and no right that the queue pair withholds.
#[test]
fn keys_are_granted_only_within_their_rights() {
    let _alone = alone();
    let victim = Victim::new();
    let peer = Local::dial(&victim.end);
    let window = Mw::allocate(&victim.host.pd, WindowType::Two).expect("a key");
    let bind = WindowBind {
        region: Some(std::sync::Arc::clone(&victim.memory.mr)),
        addr: victim.memory.addr(0),
        length: 64,
        access: Access::REMOTE_WRITE,
    };
    let rkey = window.next_key();
    let operation = Operation::BindWindow { window: window.clone(), rkey, bind };
    victim.end.post(&signalled(4, operation, Data::Gather(&[])));
    assert_eq!(poll_one(&victim.end.send_cq).status, Status::Success);
    let gone = Memory::new(&victim.host, 64, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    gone.mr.deregister().expect("no window");
    for key in [
        0,
        victim.memory.key() ^ 1,
        victim.private.key(),
        victim.foreign.key(),
        window.key(),
        gone.key(),
        peer.tcp.victim.ack_stag,
    ] {
        assert_eq!(peer.ask(key).bytes[0], DENY, "{key:#x}");
    }
    assert!((0..64).all(|slot| peer.granted(slot) == 0), "nothing has been granted");

    let answer = peer.ask(victim.memory.key());
    assert_eq!(answer.bytes[0], GRANT);
    let slot = (0..64).find(|&slot| peer.granted(slot) as u32 == victim.memory.key());
    let slot = slot.expect("a granted key");
    // The victim withdraws a grant when the queue pair loses a right, and the next grant has the
    // remaining rights only.
    let mut attr = QpAttr { qp_access_flags: Access::REMOTE_READ, ..init_attr() };
    victim.end.qp.modify(&attr, AttrMask::ACCESS_FLAGS).expect("allowed in RTS");
    assert_eq!(peer.granted(slot), 0);
    let answer = peer.ask(victim.memory.key());
    assert_eq!(answer.bytes[0], GRANT);
    assert!(answer.fds.is_empty(), "memory that the peer can map it can also write");
    attr.qp_access_flags = Access::empty();
    victim.end.qp.modify(&attr, AttrMask::ACCESS_FLAGS).expect("allowed in RTS");
    assert_eq!(peer.ask(victim.memory.key()).bytes[0], DENY);
    window.deallocate();
}

/// The victim refuses an invalid offer, and the connection stays on TCP.
#[test]
fn invalid_offers_are_refused() {
    fn unsealed(len: u64, seals: SealFlags) -> std::os::fd::OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("hostile", flags).expect("a memfd");
        ftruncate(&fd, len).expect("room");
        fcntl_add_seals(&fd, seals).expect("seals");
        fd
    }
    let _alone = alone();
    let (_memory, segment) = SharedMemory::create(SEGMENT_LEN).expect("memory");
    let presence = OwnPresence::new().expect("a page");
    let (segment, presence) = (segment.as_fd(), presence.fd());
    let shrinkable = unsealed(SEGMENT_LEN as u64, SealFlags::GROW);
    let short = unsealed(SEGMENT_LEN as u64 - 4096, SealFlags::SHRINK);
    let long = unsealed(SEGMENT_LEN as u64 + 4096, SealFlags::SHRINK);
    let readonly = unsealed(SEGMENT_LEN as u64, SealFlags::SHRINK | SealFlags::FUTURE_WRITE);
    let page = unsealed(4096, SealFlags::empty());
    let file = std::fs::File::open("/proc/self/exe").expect("a file");
    let fds: [(&str, Vec<BorrowedFd<'_>>); 10] = [
        ("no descriptors", vec![]),
        ("one descriptor", vec![segment]),
        ("three descriptors", vec![segment, presence, presence]),
        ("the wrong way round", vec![presence, segment]),
        ("a segment that can shrink", vec![shrinkable.as_fd(), presence]),
        ("a segment that is too short", vec![short.as_fd(), presence]),
        ("a segment that is too long", vec![long.as_fd(), presence]),
        ("a segment that cannot be written", vec![readonly.as_fd(), presence]),
        ("a segment that is a file", vec![file.as_fd(), presence]),
        ("a page that can shrink", vec![segment, page.as_fd()]),
    ];
    for (what, fds) in &fds {
        eprintln!("{what}");
        let victim = Victim::new();
        let mut stranger = Stranger::dial(&victim.end);
        let session = Session::dial(&stranger.tcp.victim.process);
        session.send(&stranger.offer().bytes(), fds);
        assert!(session.is_closed(), "{what}");
        victim.check_well_over_tcp(&mut stranger);
    }
    type Spoil = fn(&Victim, &mut Offer);
    let spoilt: [(&str, Spoil); 7] = [
        ("another version", |_, offer| offer.version = 1),
        ("for no queue pair", |_, offer| offer.wanted = 0),
        ("for another connection", |victim, offer| {
            offer.wanted = victim.bystanders.0.qp.number();
        }),
        ("from another queue pair", |_, offer| offer.qp_num += 1),
        ("with another key", |_, offer| offer.ack_stag += 1),
        ("from another process", |_, offer| offer.process = random_process()),
        ("from no process", |_, offer| offer.process = [0; 16]),
    ];
    for (what, spoil) in spoilt {
        eprintln!("{what}");
        let victim = Victim::new();
        let mut stranger = Stranger::dial(&victim.end);
        let session = Session::dial(&stranger.tcp.victim.process);
        let mut offer = stranger.offer();
        spoil(&victim, &mut offer);
        session.send(&offer.bytes(), &[segment, presence]);
        assert!(session.is_closed(), "{what}");
        victim.check_well_over_tcp(&mut stranger);
    }
    for (what, bytes) in [("a cut offer", 20), ("a longer one", 47)] {
        let victim = Victim::new();
        let mut stranger = Stranger::dial(&victim.end);
        let session = Session::dial(&stranger.tcp.victim.process);
        let mut offer = stranger.offer().bytes();
        offer.resize(bytes, 0);
        session.send(&offer, &[segment, presence]);
        assert!(bytes > 38 || session.is_closed(), "{what}");
        if session.answer().is_none() {
            victim.check_well_over_tcp(&mut stranger);
        }
    }
    for first in [WAKEUP, ASK, GRANT, DENY, 2, 77] {
        let victim = Victim::new();
        let mut stranger = Stranger::dial(&victim.end);
        let session = Session::dial(&stranger.tcp.victim.process);
        session.send(&[first; 48], &[segment, presence]);
        assert!(session.is_closed(), "{first} from a stranger");
        victim.check_well_over_tcp(&mut stranger);
    }
    // An offer after the first message over TCP is too late, and a connection takes one offer only.
    let victim = Victim::new();
    let mut stranger = Stranger::dial(&victim.end);
    victim.check_well_over_tcp(&mut stranger);
    let session = Session::dial(&stranger.tcp.victim.process);
    session.send(&stranger.offer().bytes(), &[segment, presence]);
    assert!(session.is_closed(), "too late");

    let victim = Victim::new();
    let stranger = Stranger::dial(&victim.end);
    let offer = stranger.offer();
    let mut peer = stranger.share();
    let session = Session::dial(&peer.tcp.victim.process);
    session.send(&offer.bytes(), &[segment, presence]);
    assert!(session.is_closed(), "a second offer");
    victim.check_well(&mut peer);
}

/// A session on which the peer sends nothing delays no other connection, and is closed in the end.
#[test]
fn a_silent_session_is_closed() {
    let _alone = alone();
    // The machine may stall for so long that the session is closed before the other connection is
    // served.
    const ROUNDS_MAX: usize = 20;
    let is_served_first = (0..ROUNDS_MAX).any(|_| {
        let victim = Victim::new();
        let mut stranger = Stranger::dial(&victim.end);
        let session = Session::dial(&stranger.tcp.victim.process);
        victim.check_well_over_tcp(&mut stranger);
        let is_open = session.is_open();
        assert!(session.is_closed(), "after a while");
        is_open
    });
    assert!(is_served_first, "the silent session delays another connection");
}

/// The victim keeps an offer for a queue pair without a connection for a limited time, and frees it
/// when its session ends.
#[test]
fn an_offer_without_a_connection_is_kept_for_a_limited_time() {
    let _alone = alone();
    let victim = Victim::idle();
    let identity = victim.end.qp.identity();
    let (_memory, segment) = SharedMemory::create(SEGMENT_LEN).expect("memory");
    let presence = OwnPresence::new().expect("a page");
    let process = random_process();
    let offer = Offer {
        version: 2,
        wanted: identity.qp_num,
        qp_num: peer::NUMBER,
        ack_stag: peer::ACK_STAG,
        process,
        probe: process.as_ptr() as u64,
    };
    let make_offer = || {
        let session = Session::dial(&identity.process);
        session.send(&offer.bytes(), &[segment.as_fd(), presence.fd()]);
        session
    };
    let before = settled();
    let session = make_offer();
    let wait_until = |is_so: &dyn Fn() -> bool, what| {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < peer::TIMEOUT, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    // A kept offer shows as a mapping of its segment.
    wait_until(&|| in_use().1 > before.1, "the offer is kept");
    drop(session);
    wait_until(&|| is_within(in_use(), before), "the offer is freed");
    assert!(make_offer().is_closed(), "after a while");
    victim.check_bystanders();
}

/// A presence page with false contents makes the victim send needless wakeups, or none, and does no
/// other harm.
#[test]
fn a_presence_page_of_garbage_is_harmless() {
    let _alone = alone();
    let victim = Victim::new();
    let stranger = Stranger::dial(&victim.end);
    let (page, fd) = SharedMemory::create(4096).expect("memory");
    page.copy_in(0, &[0xff; 4096]);
    let (_segment, segment) = SharedMemory::create(SEGMENT_LEN).expect("memory");
    let session = Session::dial(&stranger.tcp.victim.process);
    session.send(&stranger.offer().bytes(), &[segment.as_fd(), fd.as_fd()]);
    let accept = session.answer().expect("an answer");
    assert_eq!(accept.bytes[0], 2);
    // More wakeups than the socket buffer holds; the peer reads none.
    for round in 0..250 {
        victim.end.post(&send(round, Data::Inline(&[])));
        page.copy_in(0, &round.to_ne_bytes());
        victim.check_bystanders();
    }
    stranger.tcp.finish();
    victim.check_bystanders();
}

/// The TCP connection of a pair that shares memory only reports whether the peer is alive.
#[test]
fn idle_tcp_connection_only_reports_the_end_of_the_peer() {
    let _alone = alone();
    let victim = Victim::new();
    let mut peer = Local::dial(&victim.end);
    peer.tcp.raw(b"bytes that nobody expects");
    victim.check_well(&mut peer);
    victim.expect_send(7);
    peer.tcp.finish();
    victim.check_lost();

    let victim = Victim::new();
    let mut peer = Local::dial(&victim.end);
    peer.send(b"last words");
    peer.tcp.finish();
    let received = poll_one(&victim.end.recv_cq);
    assert_eq!((received.status, received.byte_len), (Status::Success, 10));
    victim.expect_send(7);
    victim.check_lost();

    // Without the session socket the peer could not wake the victim: the connection ends.
    let victim = Victim::new();
    let Local { tcp, session, memory: _memory, .. } = Local::dial(&victim.end);
    drop(session);
    victim.check_lost();
    drop(tcp);
}

/// A peer that keeps filling the ring while its connection ends does not delay the end.
#[test]
fn ring_filled_during_teardown_ends_the_connection() {
    let _alone = alone();
    let victim = Victim::new();
    let mut peer = Local::dial(&victim.end);
    let stop = AtomicBool::new(false);
    let written = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let (stop, written) = (&stop, &written);
        scope.spawn(move || {
            peer.tcp.finish();
            let ack = peer.tcp.victim.ack_stag;
            while !stop.load(Ordering::Relaxed) {
                peer.write(INLINE, ack, 0, &[]);
                written.fetch_add(1, Ordering::Relaxed);
                while peer.filled.wrapping_sub(peer.emptied_there()) >= SLOTS
                    && !stop.load(Ordering::Relaxed)
                {
                    std::hint::spin_loop();
                }
            }
        });
        // The ring has been full at least once, even if the victim reads no more.
        while written.load(Ordering::Relaxed) < SLOTS {
            std::thread::yield_now();
        }
        victim.check_lost();
        stop.store(true, Ordering::Relaxed);
    });
}

/// Each invalid answer to the victim's offer leaves the connection on TCP.
#[test]
fn invalid_answers_to_an_offer_leave_the_connection_on_tcp() {
    let _alone = alone();
    let (_memory, segment) = SharedMemory::create(SEGMENT_LEN).expect("memory");
    let presence = OwnPresence::new().expect("a page");
    type Answer = fn(&Dialled, BorrowedFd<'_>, BorrowedFd<'_>);
    let answers: [(&str, Answer); 8] = [
        ("a refusal", |_, _, _| ()),
        ("no descriptor", |dialled, _, _| dialled.session.send(&dialled.acceptance(), &[])),
        ("two descriptors", |dialled, _, presence| {
            dialled.session.send(&dialled.acceptance(), &[presence, presence]);
        }),
        ("a descriptor that is no page", |dialled, segment, _| {
            dialled.session.send(&dialled.acceptance(), &[segment]);
        }),
        ("a cut acceptance", |dialled, _, presence| dialled.session.send(&[2], &[presence])),
        ("an offer in return", |dialled, segment, presence| {
            dialled.session.send(&dialled.offer.bytes, &[segment, presence]);
        }),
        ("a wakeup", |dialled, _, _| dialled.session.send(&[WAKEUP], &[])),
        ("a key request", |dialled, _, _| dialled.session.send(&[ASK, 1, 2, 3, 4], &[])),
    ];
    for (what, answer) in answers {
        eprintln!("{what}");
        let victim = Victim::idle();
        let dialled = Dialled::by(&victim.host, &victim.end);
        victim.end.post(&send(3, Data::Inline(&[b"over TCP"])));
        answer(&dialled, segment.as_fd(), presence.fd());
        let Dialled { mut tcp, session, .. } = dialled;
        drop(session);
        while tcp.receive().expect("the victim goes on").payload != b"over TCP" {}
        assert_eq!(victim.end.qp.transport(), "tcp");
        victim.check_bystanders();
    }
    // Without an answer requests wait, as for a peer that does not read.
    let victim = Victim::idle();
    let dialled = Dialled::by(&victim.host, &victim.end);
    victim.end.post(&send(3, Data::Inline(&[])));
    assert!(poll_some(&victim.end.send_cq, 1).is_empty());
    victim.check_bystanders();
    to_state(&victim.end.qp, QpState::Err);
    assert_eq!(poll_one(&victim.end.send_cq).status, Status::WrFlushErr);
    drop(dialled);
}

/// Whatever the peer grants, the victim reads and writes only the peer's memory and its own
/// scatter/gather lists.
#[test]
fn invalid_grants_are_not_used() {
    let _alone = alone();
    const KEY: u32 = 0x77;
    const AT: u64 = 0x5000;
    fn grant(slot: u32, rights: u32, longs: &[u64]) -> Vec<u8> {
        let mut bytes = vec![GRANT];
        for word in [KEY, slot, 1, rights] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        longs.iter().for_each(|long| bytes.extend_from_slice(&long.to_ne_bytes()));
        bytes
    }
    const ALL: u32 = u32::MAX;
    let (memory, fd) = SharedMemory::create(8192).expect("memory");
    let shrinkable = {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("hostile", flags).expect("a memfd");
        ftruncate(&fd, 8192).expect("room");
        fd
    };
    let file = std::fs::File::open("/proc/self/exe").expect("a file");
    // Name, slot, rights, (address, length and local address of the key; start, length and address
    // of the pages), and descriptor.
    let all_of_it = [0, u64::MAX, 0, AT, 8192, 0x10];
    type Case<'a> = (&'static str, u32, u32, &'a [u64], Option<BorrowedFd<'a>>);
    let segment = Some(fd.as_fd());
    let cases: [Case<'_>; 14] = [
        ("nothing", 0, 0, &[AT, 64, 0x1000], None),
        ("an address that is not mapped", 0, ALL, &[AT, 64, 0x10], None),
        ("an address in the kernel", 0, ALL, &[AT, 64, 1 << 63], None),
        ("all there is", 0, ALL, &[0, u64::MAX, 0], None),
        ("around the end", 0, ALL, &[AT, u64::MAX, u64::MAX - 8], None),
        ("an absurd slot", u32::MAX, ALL, &[AT, 64, 0x10], None),
        ("pages that end behind", 0, ALL, &[AT, 64, 0x10, 0, 8192, 0x10], segment),
        ("pages that start behind", 0, ALL, &[AT, 64, 0x10, 65, 0, 0x10], segment),
        ("pages around the end", 0, ALL, &[AT, 64, 0x10, u64::MAX, 8192, 0x10], segment),
        ("pages in the middle of an access", 0, ALL, &[AT, 64, 0x10, 4, 8, 0x10], segment),
        ("a segment that is not long enough", 0, ALL, &[0, u64::MAX, 0, AT, 8196, 0x10], segment),
        (
            "a segment of an absurd length",
            0,
            ALL,
            &[0, u64::MAX, 0, AT, u64::MAX - AT, 0x10],
            segment,
        ),
        ("a segment that can shrink", 0, ALL, &all_of_it, Some(shrinkable.as_fd())),
        ("a segment that is a file", 0, ALL, &all_of_it, Some(file.as_fd())),
    ];
    for (what, slot, rights, longs, fd) in cases {
        eprintln!("{what}");
        let victim = Victim::idle();
        let mut peer = Dialled::by(&victim.host, &victim.end).share();
        for operation in [
            Operation::Write { remote_addr: AT, rkey: KEY, imm: None },
            Operation::FetchAdd { remote_addr: AT, rkey: KEY, add: 1 },
            // Post the Read last: the requests that change the same bytes would wait for it.
            Operation::Read { remote_addr: AT, rkey: KEY },
        ] {
            // The first request goes through the ring and asks for the key; later requests go
            // through the ring unless the grant is usable.
            victim.post(3, operation, 8);
            peer.receive();
        }
        assert_eq!(peer.session.answer().expect("a question").bytes[0], ASK);
        peer.grant(slot as usize % 64, 1 << 32 | u64::from(KEY));
        peer.session.send(&grant(slot, rights, longs), fd.as_slice());
        // The victim processes packets in order: once it has answered this one, it has seen the
        // grant.
        assert_eq!(peer.ask(0).bytes[0], DENY);
        peer.publish_placed(1);
        poll_one(&victim.end.send_cq);
        for (wr_id, operation) in [
            (10, Operation::Write { remote_addr: AT, rkey: KEY, imm: None }),
            (11, Operation::FetchAdd { remote_addr: AT, rkey: KEY, add: 1 }),
            (12, Operation::Read { remote_addr: AT, rkey: KEY }),
        ] {
            victim.post(wr_id, operation, 8);
        }
        // No request completes, since the peer has answered nothing, and none has changed memory.
        assert!(poll_some(&victim.end.send_cq, 1).is_empty(), "{what}");
        victim.check_memory();
        victim.check_bystanders();
    }
    // The victim uses a valid grant until the grant word changes.
    let victim = Victim::idle();
    let mut peer = Dialled::by(&victim.host, &victim.end).share();
    let write = Operation::Write { remote_addr: AT + 16, rkey: KEY, imm: None };
    victim.post(3, write.clone(), 8);
    peer.receive();
    peer.session.answer().expect("a question");
    peer.grant(5, 1 << 32 | u64::from(KEY));
    memory.copy_in(0, &[9; 64]);
    let sound = grant(5, ALL, &[AT, 8192, 0x10, 0, 8192, 0x10]);
    peer.session.send(&sound, &[fd.as_fd()]);
    assert_eq!(peer.ask(0).bytes[0], DENY);
    peer.publish_placed(1);
    poll_one(&victim.end.send_cq);
    victim.post(4, write.clone(), 8);
    assert_eq!(poll_one(&victim.end.send_cq).status, Status::Success);
    let mut found = [0; 64];
    memory.copy_out(0, &mut found);
    assert_eq!(found, [&[9; 16][..], &[0; 8], &[9; 40]].concat()[..]);
    // A grant word with another serial number withdraws the grant.
    peer.grant(5, 2 << 32 | u64::from(KEY));
    victim.post(5, write, 8);
    assert!(poll_some(&victim.end.send_cq, 1).is_empty());
    victim.check_bystanders();
}

/// Attacks leak neither descriptors nor mappings.
#[test]
fn attacks_leak_no_descriptors_or_mappings() {
    let _alone = alone();
    let attacks: [fn(&Victim, &mut Local); 6] = [
        |_, peer| peer.slot(255, &[0x41; 120]),
        |_, peer| peer.publish_placed(7),
        |_, peer| peer.session.send(&[77], &[]),
        |_, peer| peer.tcp.raw(b"?"),
        |_, peer| peer.tcp.finish(),
        |victim, peer| drop(peer.ask(victim.memory.key())),
    ];
    let round = || {
        for attack in attacks {
            let victim = Victim::new();
            let mut peer = Local::dial(&victim.end);
            attack(&victim, &mut peer);
            poll_some(&victim.end.recv_cq, 1);
            drop(peer);
            let victim = Victim::new();
            let stranger = Stranger::dial(&victim.end);
            let session = Session::dial(&stranger.tcp.victim.process);
            session.send(&stranger.offer().bytes(), &[]);
            let victim = Victim::idle();
            let mut peer = Dialled::by(&victim.host, &victim.end).share();
            attack(&victim, &mut peer);
        }
    };
    round();
    let before = settled();
    (0..5).for_each(|_| round());
    // Closed connections linger, on a busy machine for longer.
    let start = Instant::now();
    loop {
        let after = in_use();
        if is_within(after, before) {
            break;
        }
        assert!(
            start.elapsed() < peer::TIMEOUT,
            "descriptors and mappings: {before:?} before, {after:?} after"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until closing connections are gone; returns the numbers of descriptors and of shared
/// mappings of this process.
fn settled() -> (usize, usize) {
    // Longer than connections linger, and than the victim waits for an offer on a session.
    const STILL: Duration = Duration::from_millis(5_500);
    let (mut last, mut since) = (in_use(), Instant::now());
    while since.elapsed() < STILL {
        std::thread::sleep(Duration::from_millis(20));
        let now = in_use();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last
}

fn is_within(now: (usize, usize), before: (usize, usize)) -> bool {
    now.0 <= before.0 && now.1 <= before.1
}

fn in_use() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("a list").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a list");
    (descriptors, maps.lines().filter(|line| line.contains("/memfd:")).count())
}

/// The victim rejects an MPA reply that does not name the peer's queue pair number and the victim's
/// own.
#[test]
fn an_mpa_reply_of_another_queue_pair_is_rejected() {
    let _alone = alone();
    let victim = Victim::idle();
    let (listener, number) = listener_above(victim.end.qp.number());
    victim.end.qp.modify(&init_attr(), init_mask()).expect("INIT");
    to_rts(&victim.end.qp, peer::gid(), number);
    victim.end.post(&send(3, Data::Inline(&[b"12345678"])));
    for (own, beside) in [(number ^ 1, 0), (number, 1)] {
        let (mut stream, ..) = answer(&listener, own, [0; 16], beside);
        let mut rest = Vec::new();
        // The victim closes the connection without sending anything.
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{rest:?}");
    }
    let (stream, identity, crc) = answer(&listener, number, [0; 16], 0);
    let mut peer = ScriptedPeer::dialled(stream, identity, crc);
    let sent = std::iter::from_fn(|| peer.receive()).find(|segment| !segment.payload.is_empty());
    assert_eq!(sent.expect("the message").payload, b"12345678");
    victim.check_bystanders();
}
