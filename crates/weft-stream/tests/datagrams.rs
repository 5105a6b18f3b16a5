//! Tests of an inbox from the view of its senders and its owner, including hostile ones.
#![allow(unsafe_code)]

use std::net::SocketAddr;

use rustix::time::Timespec;
use weft_stream::datagram::{Arrival, DATAGRAM_LEN_MAX, Datagrams, Inbox, Owner, Put};
use weft_sys::Buffers;

const PORT: u16 = 5_353;
const LIMIT: u32 = 200_000;

/// An inbox, and its file.
fn inbox() -> (tempfile::TempDir, &'static Datagrams, Inbox) {
    let dir = tempfile::tempdir().expect("a directory");
    let datagrams = Box::leak(Box::new(Datagrams::open(dir.path()).expect("a file")));
    let owner = Owner { port: PORT, cookie: 1, pid: 1, limit: LIMIT, shared: false };
    let inbox = Inbox::register(datagrams, &owner).expect("room");
    (dir, datagrams, inbox)
}

fn sender(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn put(inbox: &Inbox, from: u16, bytes: &[u8]) -> Put {
    let list = [libc_iovec(bytes.as_ptr().cast_mut(), bytes.len())];
    // SAFETY: the list and its buffer live to the end of the call, which only reads them.
    let buffers = unsafe { Buffers::new(list.as_ptr(), 1) }.expect("few bytes");
    inbox.put(sender(from), buffers)
}

fn take(inbox: &Inbox, room: &mut [u8], keep: bool) -> Option<Arrival> {
    let list = [libc_iovec(room.as_mut_ptr(), room.len())];
    // SAFETY: the list and its buffer live to the end of the call, which only reads them; the
    // buffer is ours to write to.
    let buffers = unsafe { Buffers::new(list.as_ptr(), 1) }.expect("few bytes");
    inbox.take(buffers, keep)
}

fn libc_iovec(place: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: place.cast(), iov_len: len }
}

#[test]
fn datagrams_keep_their_boundaries_and_senders() {
    let (_dir, datagrams, inbox) = inbox();
    inbox.open();
    let mut room = [0; 16];
    for bytes in [&b"first"[..], b"", b"a longer one than there is room for"] {
        assert_eq!(put(&inbox, 7, bytes), Put::Done);
    }
    let peeked = take(&inbox, &mut room, true).expect("the first");
    assert_eq!(take(&inbox, &mut room, false), Some(peeked));
    assert_eq!((peeked.len, peeked.copied, peeked.from), (5, 5, sender(7)));
    assert_eq!(&room[..5], b"first");
    assert_eq!(take(&inbox, &mut room, false).map(|arrival| arrival.len), Some(0));
    assert_eq!(inbox.next_len(), Some(35));
    let cut = take(&inbox, &mut room, false).expect("the last");
    assert_eq!((cut.len, cut.copied), (35, 16));
    assert_eq!(take(&inbox, &mut room, false), None);
    let totals = datagrams.totals();
    assert_eq!((totals.datagrams, totals.bytes), (3, 40));
}

#[test]
fn only_an_open_inbox_takes_datagrams() {
    let (_dir, datagrams, inbox) = inbox();
    assert_eq!(put(&inbox, 7, b"x"), Put::Shut, "nobody has looked yet");
    inbox.open();
    assert_eq!(put(&inbox, 7, b"x"), Put::Done);
    inbox.begin_sleep();
    assert_eq!(put(&inbox, 7, b"x"), Put::Shut);
    inbox.open();
    assert_eq!(put(&inbox, 7, b"x"), Put::Shut, "another thread looks, one sleeps");
    inbox.end_sleep();
    assert_eq!(put(&inbox, 7, b"x"), Put::Done);
    let found = datagrams.find(PORT, 1).expect("the same");
    inbox.release();
    assert_eq!(put(&found, 7, b"x"), Put::Gone);
    assert!(datagrams.find(PORT, 1).is_none());
    let totals = datagrams.totals();
    assert_eq!((totals.datagrams, totals.by_kernel), (2, 3));
}

#[test]
fn full_inbox_drops_datagrams_until_it_is_read() {
    let (_dir, datagrams, inbox) = inbox();
    inbox.open();
    let big = vec![7; DATAGRAM_LEN_MAX];
    let mut room = vec![0; DATAGRAM_LEN_MAX];
    for _ in 0..50 {
        let fit = (0..9).take_while(|_| put(&inbox, 7, &big) == Put::Done).count();
        assert_eq!(fit, 4, "65,536 bytes each, 200,000 may wait when the next one comes");
        for _ in 0..fit {
            room.fill(0);
            let arrival = take(&inbox, &mut room, false).expect("a datagram");
            assert_eq!((arrival.len, arrival.copied), (big.len(), big.len()));
            assert_eq!(room, big);
        }
    }
    assert_eq!(datagrams.totals().dropped, 50);
}

/// Random lengths wrap around the ring at every offset.
#[test]
fn ring_delivers_datagrams_in_order() {
    fastrand::seed(1);
    let (_dir, _, inbox) = inbox();
    inbox.open();
    let mut model = std::collections::VecDeque::new();
    let mut room = vec![0; 4_096];
    for round in 0..20_000_u32 {
        if fastrand::bool() {
            let bytes = vec![round as u8; fastrand::usize(..3_000)];
            match put(&inbox, round as u16, &bytes) {
                Put::Done => model.push_back((round as u16, bytes)),
                other => assert_eq!(other, Put::Dropped),
            }
        } else {
            let arrival = take(&inbox, &mut room, false);
            let expected = model.pop_front();
            assert_eq!(arrival.is_some(), expected.is_some());
            if let (Some(arrival), Some((from, bytes))) = (arrival, expected) {
                assert_eq!(arrival.from, sender(from));
                assert_eq!(&room[..arrival.copied], bytes);
            }
        }
    }
}

/// Whatever another process of the user writes into the shared words, the owner neither panics nor
/// reads outside the ring.
#[test]
fn corrupt_words_cause_neither_panic_nor_read_outside_the_ring() {
    use std::os::unix::fs::FileExt as _;
    fastrand::seed(2);
    let (dir, _, inbox) = inbox();
    let path = std::fs::read_dir(dir.path()).expect("a directory").next().expect("a file");
    let path = path.expect("a file").path();
    let file = std::fs::File::options().write(true).open(path).expect("our own");
    let start = file.metadata().expect("a file").len();
    // The first inbox starts behind the common part of the file.
    let slot = start - 1_024 * (4_096 + (256 << 10));
    let mut room = vec![0; 70_000];
    for _ in 0..2_000 {
        inbox.open();
        let _ = put(&inbox, 7, &vec![1; fastrand::usize(..2_000)]);
        let noise: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(64).collect();
        let at = match fastrand::u8(..3) {
            0 => slot + 128,
            1 => slot + 4_096 + fastrand::u64(..4_000),
            _ => slot + 2,
        };
        let len = if at == slot + 2 {
            6
        } else if at == slot + 128 {
            8
        } else {
            64
        };
        file.write_all_at(&noise[..len], at).expect("written");
        for _ in 0..4 {
            let _ = inbox.next_len();
            if let Some(arrival) = take(&inbox, &mut room, false) {
                assert!(arrival.len <= DATAGRAM_LEN_MAX && arrival.copied <= arrival.len);
            }
        }
    }
}

#[test]
fn futex_waiter_is_woken_by_a_datagram() {
    let (_dir, _, inbox) = inbox();
    let long = Timespec { tv_sec: 240, tv_nsec: 0 };
    assert_eq!(inbox.futex_wait(&long), Ok(()), "nobody waits at a shut inbox");
    inbox.open();
    for _ in 0..200 {
        let sender = std::thread::spawn(move || assert_eq!(put(&inbox, 7, b"x"), Put::Done));
        while inbox.is_empty() {
            assert_eq!(inbox.futex_wait(&long), Ok(()));
        }
        assert_eq!(inbox.futex_wait(&long), Ok(()), "nor at one that is not empty");
        assert!(take(&inbox, &mut [0; 1], false).is_some());
        sender.join().expect("no panic");
    }
    assert_eq!(inbox.futex_wait(&Timespec { tv_sec: 0, tv_nsec: 1 }), Ok(()), "the time is over");
}
