//! Body of the target for streams to other hosts: a peer that writes anything into its part of the
//! window, and anything over TCP.
//!
//! The first byte of the input selects how late the wire completes its operations. Records follow:
//!
//! ```text
//! byte 0:       the state word that the peer writes; or bytes over TCP; or the end of TCP
//! bytes 1 to 8: the value of the word, or the bytes
//! byte 9:       the call that follows on this end
//! byte 10:      the length of the call, in units of 257 bytes
//! ```

use std::io::{IoSliceMut, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use weft_stream::RecvOptions;
use weft_stream::remote::window::is_fallback_request;
use weft_stream::remote::{Closing, Remote, StateWord, Ticket, Wire};
use weft_sys::Buffers;

const RECORD_LEN: usize = 11;
/// Most records of one input. Each may cost a system call.
const RECORDS_MAX: usize = 64;
const MSG_NOSIGNAL: i32 = 0x4000;
/// Number of polls after which a wire breaks, so that a call that waits for it ends.
const LOOKS_MAX: u64 = 100;
const WORDS: [StateWord; 6] = [
    StateWord::Head,
    StateWord::Tail,
    StateWord::Switch,
    StateWord::Back,
    StateWord::State,
    StateWord::Leaves,
];

/// A wire that transfers nothing. It completes its operations after some polls.
#[derive(Debug, Default)]
struct Nowhere {
    posted: AtomicU64,
    done: AtomicU64,
    looks: AtomicU64,
    /// Number of polls that an operation takes.
    late: u64,
    is_broken: AtomicBool,
}

/// Shares the wire between the end and the test.
struct SharedWire(Arc<Nowhere>);

impl Wire for SharedWire {
    fn post(&self, _: &[(usize, usize)], _: StateWord, _: u64) -> Option<Ticket> {
        (!self.is_crowded() && !self.is_broken())
            .then(|| self.0.posted.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn post_head(&self, bytes: &[(usize, usize)], head: u64, _: &AtomicU64) -> Option<Ticket> {
        self.post(bytes, StateWord::Head, head)
    }

    fn done(&self) -> Ticket {
        self.0.done.load(Ordering::Relaxed)
    }

    fn is_crowded(&self) -> bool {
        self.0.posted.load(Ordering::Relaxed) > self.done() + 8
    }

    fn rest(&self) {}

    fn drive(&self) {
        let looks = self.0.looks.fetch_add(1, Ordering::Relaxed);
        if looks.is_multiple_of(self.0.late.max(1)) {
            self.0.done.store(self.0.posted.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        if looks > LOOKS_MAX {
            self.0.is_broken.store(true, Ordering::Relaxed);
        }
    }

    fn is_broken(&self) -> bool {
        self.0.is_broken.load(Ordering::Relaxed)
    }
}

/// Whatever the peer writes, each call returns, and nothing outside of the window changes.
pub fn remote(data: &[u8]) {
    let Some((&late, records)) = data.split_first() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let socket = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let mut peer = Some(listener.accept().expect("accepted").0);
    let end = Remote::new().expect("memory");
    let wire = Arc::new(Nowhere { late: u64::from(late % 32), ..Nowhere::default() });
    end.begin(SharedWire(Arc::clone(&wire)));
    for record in records.chunks_exact(RECORD_LEN).take(RECORDS_MAX) {
        let (bytes, what) = (&record[1..9], usize::from(record[0]) % 16);
        let value = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        match (what, &mut peer) {
            (0..10, _) => peer_writes(&end, WORDS[what % WORDS.len()], value),
            (10..14, Some(peer)) => drop(peer.write(&bytes[..1 + usize::from(record[10] % 8)])),
            (14, Some(peer)) => drop(peer.shutdown(Shutdown::Write)),
            _ if value & 7 == 0 => peer = None,
            _ => {}
        }
        wire.looks.store(0, Ordering::Relaxed);
        call(&end, &socket, record[9], usize::from(record[10]) * 257);
    }
    if let Closing::Flushing(mut farewell) = end.close(false) {
        while end.is_closed(&mut farewell).is_none() {}
    }
}

/// Writes a word as the peer, and delivers the notification of the write.
fn peer_writes(end: &Remote<SharedWire>, word: StateWord, value: u64) {
    let place = 8 * word as usize;
    end.window().peer_state(word).store(value, Ordering::Release);
    end.wakeup_fd().written(place, 8);
    if is_fallback_request(place, 8) {
        end.answer_leave();
    }
}

/// Calls one of an end's operations, except its close.
fn call(end: &Remote<SharedWire>, socket: &TcpStream, which: u8, len: usize) {
    let fd = socket.as_fd();
    let mut bytes = vec![0; len];
    let slices = &mut [IoSliceMut::new(&mut bytes)];
    let buffers = Buffers::of(slices);
    let options = RecvOptions {
        keep: which & 1 != 0,
        discard: which & 2 != 0,
        look: which & 4 != 0,
        has_part: which & 8 != 0,
    };
    match which / 8 % 16 {
        0..=2 => drop(end.try_recv(fd, buffers, options)),
        3..=5 => drop(end.try_send(fd, buffers, MSG_NOSIGNAL)),
        6 => drop(end.settle(fd, options.keep, 0)),
        7 if options.keep => end.fall_back_to_tcp(fd),
        8 => end.want_room(),
        9 => end.begin_sleep(),
        10 => end.end_sleep(),
        11 if options.look => end.shut_read(),
        12 => end.hang_up(),
        13 if options.look => end.shut_write(fd),
        _ => end.drive(),
    }
    let _ = (end.carrier_in(), end.carrier_out(), end.unread(), end.room(), end.progress());
    let _ = (end.is_writable(), end.is_full(), end.can_be_woken(), end.is_ending());
    let _ = (end.seen(), end.is_peer_gone(), end.has_peer_shut(), end.has_fallen_back());
}
