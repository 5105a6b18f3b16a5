//! Deferred sends against a model. The receiver takes the available bytes, while the sender moves
//! its deferred sends, reclaims them into the ring, and writes to their buffers as soon as it may.
//! And sources that the sender withdraws: bytes that the receiver has seen do not vanish.

mod common;

use std::io::IoSliceMut;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::io::Errno;
use weft_stream::{Flow, Owner, RecvOptions, SrcAvailNumber};
use weft_sys::Buffers;

use common::{Side, connected};

const BYTES: usize = 48 << 20;
const LEN_MAX: usize = 400_000;
const PERIOD: usize = 251;
/// Steps of the sender for which the receiver sometimes pauses.
const HELD_STEPS: u32 = 8;

static PROOF: AtomicU64 = AtomicU64::new(0x5eed);

fn pattern(at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|at| (at % PERIOD) as u8).collect()
}

fn owner() -> Owner {
    let proof = (PROOF.as_ptr() as u64, PROOF.load(Ordering::Relaxed));
    Owner { pid: std::process::id(), proof }
}

fn pause() {
    (0..fastrand::u32(0..500)).for_each(|_| std::hint::spin_loop());
}

impl Side {
    fn recv(&self, bytes: &mut [u8], keep: bool) -> Result<usize, Errno> {
        let options = RecvOptions { keep, ..RecvOptions::default() };
        let buffers = &mut [IoSliceMut::new(bytes)];
        let is_readable = self.end.unread() > 0;
        pause();
        let received = self.end.try_recv_shown(self.socket.as_fd(), Buffers::of(buffers), options);
        assert!(!is_readable || received != Err(Errno::AGAIN), "bytes have vanished");
        received
    }

    fn send(&self, bytes: &mut [u8]) -> Result<usize, Errno> {
        self.end.try_send(self.socket.as_fd(), Buffers::of(&mut [IoSliceMut::new(bytes)]), 0)
    }
}

/// Both sides of a connection, after a byte each way.
fn sides() -> [Side; 2] {
    let sides = connected(Flow::Packed);
    for _ in 0..2 {
        sides.iter().rev().for_each(|side| side.end.advance(side.socket.as_fd()));
    }
    for (from, to) in [(&sides[0], &sides[1]), (&sides[1], &sides[0])] {
        assert_eq!(from.send(&mut [7]), Ok(1));
        assert_eq!(to.recv(&mut [0], false), Ok(1));
    }
    sides
}

/// A deferred send, and where its bytes are now.
struct DeferredSend {
    number: SrcAvailNumber,
    bytes: Vec<u8>,
    /// A deferred send may move only once.
    may_move: bool,
}

struct Sender {
    side: Side,
    deferred: Vec<DeferredSend>,
    at: usize,
    moved: u32,
    reclaimed: u32,
    /// The receiver pauses, so that there is something to move and to reclaim.
    is_held: Arc<AtomicBool>,
    /// Remaining steps of the pause.
    held: u32,
}

impl Sender {
    fn step(&mut self) {
        self.held = match self.held {
            0 if fastrand::u32(0..32) == 0 => HELD_STEPS,
            held => held.saturating_sub(1),
        };
        self.is_held.store(self.held > 0, Ordering::Relaxed);
        self.deferred.retain(|send| self.side.end.is_deferred(send.number));
        match fastrand::u32(0..10) {
            0..=4 => self.defer(),
            5..=6 => self.touch(),
            7 => self.reclaim(),
            _ => self.send(),
        }
    }

    fn defer(&mut self) {
        let len = fastrand::usize(1..LEN_MAX).min(BYTES - self.at);
        if len == 0 || self.side.end.room() < len {
            return std::thread::yield_now();
        }
        let mut bytes = pattern(self.at, len);
        let cut = fastrand::usize(0..len);
        let (first, second) = bytes.split_at_mut(cut);
        let slices = &mut [IoSliceMut::new(first), IoSliceMut::new(second)];
        let buffers = Buffers::of(slices);
        if let Some(number) = self.side.end.defer_send(self.side.socket.as_fd(), buffers, &owner())
        {
            self.at += len;
            self.deferred.push(DeferredSend { number, bytes, may_move: true });
        }
    }

    /// Moves one deferred send to a copy, once, and overwrites the original.
    fn touch(&mut self) {
        let Some(at) = self.deferred.iter().position(|send| send.may_move) else { return };
        let mut send = self.deferred.remove(at);
        let copy = send.bytes.clone();
        if self.side.end.move_deferred(send.number, copy.as_ptr() as u64) {
            send.bytes.fill(0xff);
            self.moved += 1;
            send.bytes = copy;
            self.deferred.push(DeferredSend { may_move: false, ..send });
        }
    }

    fn reclaim(&mut self) {
        let mut deferred: Vec<_> = self.deferred.drain(..).collect();
        if deferred.is_empty() {
            return;
        }
        deferred.sort_by_key(|send| send.number);
        let numbers: Vec<_> = deferred.iter().map(|send| send.number).collect();
        let mut slices: Vec<_> =
            deferred.iter_mut().map(|send| [IoSliceMut::new(&mut send.bytes)]).collect();
        let buffers = slices.iter_mut().map(|slices| Buffers::of(slices));
        let sends: Vec<_> = numbers.into_iter().zip(buffers).collect();
        assert!(self.side.end.reclaim(self.side.socket.as_fd(), &sends));
        drop(sends);
        deferred.iter_mut().for_each(|send| send.bytes.fill(0xff));
        self.reclaimed += 1;
    }

    /// Sends through the ring, which works only while nothing is deferred.
    fn send(&mut self) {
        let mut bytes = pattern(self.at, fastrand::usize(1..5_000).min(BYTES - self.at));
        match self.side.send(&mut bytes) {
            Ok(sent) => self.at += sent,
            Err(error) => assert_eq!(error, Errno::AGAIN),
        }
    }
}

#[test]
fn deferred_bytes_arrive_whatever_the_sender_does() {
    fastrand::seed(5);
    let [sender, receiver] = sides();
    let is_held = Arc::new(AtomicBool::new(false));
    let pauses = is_held.clone();
    let receives = std::thread::spawn(move || {
        fastrand::seed(6);
        let mut bytes = vec![0; 2 * LEN_MAX];
        let mut at = 0;
        while at < BYTES {
            while pauses.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
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
    let mut sender =
        Sender { side: sender, deferred: vec![], at: 0, moved: 0, reclaimed: 0, is_held, held: 0 };
    while sender.at < BYTES && !receives.is_finished() {
        sender.step();
    }
    while !sender.deferred.is_empty() && !receives.is_finished() {
        sender.step();
    }
    sender.is_held.store(false, Ordering::Relaxed);
    receives.join().expect("no byte was wrong");
    assert!(sender.moved > 10 && sender.reclaimed > 10, "{} {}", sender.moved, sender.reclaimed);
}

/// The sender withdraws its messages before, while and after the receiver pulls them.
#[test]
fn bytes_of_withdrawn_sources_do_not_vanish() {
    const MESSAGES: usize = 20_000;
    const LEN: usize = 300;
    fastrand::seed(7);
    let [sender, receiver] = sides();
    let receives = std::thread::spawn(move || {
        fastrand::seed(8);
        let mut bytes = vec![0; 4 * LEN];
        let mut at = 0;
        while at < MESSAGES * LEN {
            match receiver.recv(&mut bytes, false) {
                Ok(taken) => {
                    assert_eq!(bytes[..taken], pattern(at, taken), "at {at}");
                    at += taken;
                }
                Err(error) => assert_eq!(error, Errno::AGAIN),
            }
        }
    });
    for message in 0..MESSAGES {
        let mut bytes = pattern(message * LEN, LEN);
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        let buffers = Buffers::of(slices);
        let (end, socket) = (&sender.end, sender.socket.as_fd());
        let posted = end.post_source(socket, buffers, &owner());
        pause();
        let mut sent = posted.map_or(0, |number| end.withdraw_source(socket, number, buffers));
        pause();
        while sent < LEN && !receives.is_finished() {
            match end.try_send(socket, buffers.after(sent), 0) {
                Ok(more) => sent += more,
                Err(error) => assert_eq!(error, Errno::AGAIN),
            }
        }
    }
    receives.join().expect("no byte was wrong");
}

/// The bytes of a deferred send are lost when their memory is. The stream must not go on behind
/// them.
#[test]
fn lost_deferred_send_is_reported_as_reset() {
    let [sender, receiver] = sides();
    let mut bytes = pattern(0, 100_000);
    let gone = Owner { pid: std::process::id(), proof: (PROOF.as_ptr() as u64, 1) };
    let buffers = &mut [IoSliceMut::new(&mut bytes)];
    let deferred = sender.end.defer_send(sender.socket.as_fd(), Buffers::of(buffers), &gone);
    assert!(deferred.is_some());
    let mut taken = [0; 100];
    assert_eq!(receiver.recv(&mut taken, false), Err(Errno::CONNRESET));
    assert_eq!(sender.send(&mut [1]), Err(Errno::AGAIN), "nothing goes behind it");
}
