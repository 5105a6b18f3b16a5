//! Promises against a model: a receiver that takes what there is, while the sender moves what it
//! has promised, takes it back into the ring, and writes to its buffers whenever it may.

use std::io::IoSliceMut;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use weft_stream::{End, Flow, How, Owner, Process, Registry, SourceNumber, Tuple};
use weft_sys::Buffers;

const BYTES: usize = 48 << 20;
const LEN_MAX: usize = 400_000;
const PERIOD: usize = 251;

static PROOF: AtomicU64 = AtomicU64::new(0x5eed);

fn pattern(at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|at| (at % PERIOD) as u8).collect()
}

fn owner() -> Owner {
    let proof = (PROOF.as_ptr() as u64, PROOF.load(Ordering::Relaxed));
    Owner { pid: std::process::id(), proof }
}

/// A socket, and the end of a connection that the rings carry.
struct Side {
    socket: TcpStream,
    end: End,
}

impl Side {
    fn recv(&self, bytes: &mut [u8], keep: bool) -> Result<usize, Errno> {
        let how = How { keep, ..How::default() };
        self.end.try_recv(self.socket.as_fd(), Buffers::of(&mut [IoSliceMut::new(bytes)]), how)
    }

    fn send(&self, bytes: &mut [u8]) -> Result<usize, Errno> {
        self.end.try_send(self.socket.as_fd(), Buffers::of(&mut [IoSliceMut::new(bytes)]), 0)
    }
}

/// Both sides of a connection, after a byte each way.
fn sides() -> [Side; 2] {
    let dir = tempfile::tempdir().expect("a directory");
    let registry: &'static Registry =
        Box::leak(Box::new(Registry::open(dir.path()).expect("a registry")));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (server, _) = listener.accept().expect("accepted");
    let addresses = [client.local_addr().expect("bound"), server.local_addr().expect("bound")];
    let tuple = Tuple::new(addresses[0], addresses[1]);
    let process = |cookie| Process { pid: std::process::id(), fd: 0, cookie, program: [0; 16] };
    let offer = End::offer(registry, &tuple, &process(1), Flow::Packed).expect("room");
    let found = End::find(registry, &tuple, &process(2), (0, 0)).expect("an offer");
    let sides = [Side { socket: client, end: offer }, Side { socket: server, end: found }];
    for _ in 0..2 {
        sides.iter().rev().for_each(|side| side.end.advance(side.socket.as_fd()));
    }
    for (from, to) in [(&sides[0], &sides[1]), (&sides[1], &sides[0])] {
        assert_eq!(from.send(&mut [7]), Ok(1));
        assert_eq!(to.recv(&mut [0], false), Ok(1));
    }
    sides
}

/// What is promised: where its bytes are now.
struct Promise {
    number: SourceNumber,
    bytes: Vec<u8>,
    /// Once only.
    may_move: bool,
}

struct Sender {
    side: Side,
    promised: Vec<Promise>,
    at: usize,
    moved: u32,
    reclaimed: u32,
}

impl Sender {
    fn step(&mut self) {
        self.promised.retain(|promise| self.side.end.is_promised(promise.number));
        match fastrand::u32(0..10) {
            0..=4 => self.promise(),
            5..=6 => self.touch(),
            7 => self.reclaim(),
            _ => self.send(),
        }
    }

    fn promise(&mut self) {
        let len = fastrand::usize(1..LEN_MAX).min(BYTES - self.at);
        if len == 0 || self.side.end.room() < len {
            return std::thread::yield_now();
        }
        let mut bytes = pattern(self.at, len);
        let cut = fastrand::usize(0..len);
        let (first, second) = bytes.split_at_mut(cut);
        let slices = &mut [IoSliceMut::new(first), IoSliceMut::new(second)];
        let buffers = Buffers::of(slices);
        if let Some(number) = self.side.end.promise(self.side.socket.as_fd(), buffers, &owner()) {
            self.at += len;
            self.promised.push(Promise { number, bytes, may_move: true });
        }
    }

    /// Copies what one promise has, once, and spoils the original.
    fn touch(&mut self) {
        let Some(at) = self.promised.iter().position(|promise| promise.may_move) else { return };
        let mut promise = self.promised.remove(at);
        let copy = promise.bytes.clone();
        if self.side.end.move_promise(promise.number, copy.as_ptr() as u64) {
            promise.bytes.fill(0xff);
            self.moved += 1;
            promise.bytes = copy;
            self.promised.push(Promise { may_move: false, ..promise });
        }
    }

    fn reclaim(&mut self) {
        let mut promised: Vec<_> = self.promised.drain(..).collect();
        if promised.is_empty() {
            return;
        }
        promised.sort_by_key(|promise| promise.number);
        let numbers: Vec<_> = promised.iter().map(|promise| promise.number).collect();
        let mut slices: Vec<_> =
            promised.iter_mut().map(|promise| [IoSliceMut::new(&mut promise.bytes)]).collect();
        let buffers = slices.iter_mut().map(|slices| Buffers::of(slices));
        let promises: Vec<_> = numbers.into_iter().zip(buffers).collect();
        assert!(self.side.end.reclaim(self.side.socket.as_fd(), &promises));
        drop(promises);
        promised.iter_mut().for_each(|promise| promise.bytes.fill(0xff));
        self.reclaimed += 1;
    }

    /// Through the ring, which waits until nothing is promised.
    fn send(&mut self) {
        let mut bytes = pattern(self.at, fastrand::usize(1..5_000).min(BYTES - self.at));
        match self.side.send(&mut bytes) {
            Ok(sent) => self.at += sent,
            Err(error) => assert_eq!(error, Errno::AGAIN),
        }
    }
}

#[test]
fn promises_are_kept_whatever_the_sender_does_meanwhile() {
    fastrand::seed(5);
    let [sender, receiver] = sides();
    let receives = std::thread::spawn(move || {
        fastrand::seed(6);
        let mut bytes = vec![0; 2 * LEN_MAX];
        let mut at = 0;
        while at < BYTES {
            let len = fastrand::usize(1..bytes.len());
            let keep = fastrand::u32(0..8) == 0;
            match receiver.recv(&mut bytes[..len], keep) {
                Ok(taken) => {
                    assert_eq!(bytes[..taken], pattern(at, taken), "at {at}");
                    at += if keep { 0 } else { taken };
                }
                Err(error) => assert_eq!(error, Errno::AGAIN),
            }
            if fastrand::u32(0..4) == 0 {
                std::thread::yield_now();
            }
        }
        receiver
    });
    let mut sender = Sender { side: sender, promised: vec![], at: 0, moved: 0, reclaimed: 0 };
    while sender.at < BYTES {
        sender.step();
    }
    while !sender.promised.is_empty() {
        sender.step();
    }
    receives.join().expect("no byte was wrong");
    assert!(sender.moved > 10 && sender.reclaimed > 10, "{} {}", sender.moved, sender.reclaimed);
}

/// The bytes of a promise are lost with the memory that they lie in, and the stream does not go on
/// behind them.
#[test]
fn what_is_lost_is_a_reset() {
    let [sender, receiver] = sides();
    let mut bytes = pattern(0, 100_000);
    let gone = Owner { pid: std::process::id(), proof: (PROOF.as_ptr() as u64, 1) };
    let buffers = &mut [IoSliceMut::new(&mut bytes)];
    let promised = sender.end.promise(sender.socket.as_fd(), Buffers::of(buffers), &gone);
    assert!(promised.is_some());
    let mut taken = [0; 100];
    assert_eq!(receiver.recv(&mut taken, false), Err(Errno::CONNRESET));
    assert_eq!(sender.send(&mut [1]), Err(Errno::AGAIN), "nothing goes behind it");
}
