//! Measures four ways of copying a message from one process to another: the receiver copies (pull,
//! SDP's Source Avail), the sender copies into a buffer that the receiver has announced (push, Sink
//! Avail), each copies one half, or both copy through a ring.
//!
//!     cargo run --release --package weft-sys --example push_or_pull
//!
//! The receiver waits before the sender comes, polling or asleep; a sleeping receiver is woken
//! before anything is copied. As in programs, the sender has just written its message, and the
//! receiver reads it. A time lasts from the start of the transfer to the end of that reading; the
//! table has the lower quartile of rounds in which the ways take turns. With Yama the child needs
//! the right to read its parent.

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::hint::spin_loop;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use rustix::thread::{CpuSet, futex, sched_setaffinity};
use weft_sys::{SharedMemory, peek_process, poke_process};

const SIZES: [usize; 4] = [64 << 10, 256 << 10, 1 << 20, 4 << 20];
const ROUNDS: usize = 100;
/// Bytes that one call pulls or pushes.
const PIECE_LEN: usize = 256 << 10;
const RING_LEN: usize = 2 << 20;
/// Bytes after which the ring's writer publishes.
const PUBLISH_LEN: usize = 32 << 10;

// Offsets of words, each with a pair of cache lines: the number of the transfer that has begun,
// been pushed and been read; the bytes put into the ring and taken; the addresses of the buffers.
const BEGUN: usize = 0;
const PUSHED: usize = 128;
const READ: usize = 256;
const PUT: usize = 384;
const TAKEN: usize = 512;
const SOURCE: usize = 640;
const SINK: usize = 768;
const RING: usize = 4_096;
const SHARED_LEN: usize = RING + RING_LEN;

#[derive(Clone, Copy, Debug)]
enum Way {
    Ring,
    Pull,
    Push,
    Halves,
}
const WAYS: [Way; 4] = [Way::Ring, Way::Pull, Way::Push, Way::Halves];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, pid, fd] = &arguments[..] {
        return receive(pid.parse().unwrap(), fd);
    }
    let (memory, fd) = SharedMemory::create(SHARED_LEN).unwrap();
    let own = (std::process::id().to_string(), fd.as_raw_fd().to_string());
    let mut child =
        Command::new("/proc/self/exe").args([own.0, own.1]).spawn().expect("the same program");
    send(&memory, child.id());
    child.wait().unwrap();
}

/// Runs the sender, which times each transfer and prints a table.
fn send(memory: &SharedMemory, receiver: u32) {
    pin(0);
    let receiver = Pid::from_raw(receiver.cast_signed()).unwrap();
    let mut bytes = vec![1_u8; SIZES[SIZES.len() - 1]];
    memory.word64(SOURCE).store(bytes.as_ptr() as u64, Ordering::Release);
    println!("receiver      KiB   ring us   pull us   push us   halves us");
    for asleep in [false, true] {
        for len in SIZES {
            let mut times = WAYS.map(|_| Vec::new());
            for _ in 0..ROUNDS {
                for (way, times) in WAYS.into_iter().zip(&mut times) {
                    let number = next(memory);
                    bytes[..len].fill(number.to_le_bytes()[0]);
                    if asleep {
                        std::thread::sleep(Duration::from_micros(300));
                    }
                    let begun = Instant::now();
                    transfer(memory, receiver, way, number, &bytes[..len]);
                    wait_for(memory.word64(READ), number);
                    times.push(begun.elapsed());
                }
            }
            let quartile = |times: &mut Vec<Duration>| {
                times.sort_unstable();
                times[times.len() / 4].as_secs_f64() * 1e6
            };
            let [ring, pull, push, halves] = &mut times;
            println!(
                "{:8} {:8} {:9.1} {:9.1} {:9.1} {:11.1}",
                if asleep { "asleep" } else { "looking" },
                len >> 10,
                quartile(ring),
                quartile(pull),
                quartile(push),
                quartile(halves),
            );
        }
    }
}

fn next(memory: &SharedMemory) -> u64 {
    memory.word64(READ).load(Ordering::Relaxed) + 1
}

/// The sender's part of one transfer.
fn transfer(memory: &SharedMemory, receiver: Pid, way: Way, number: u64, bytes: &[u8]) {
    memory.word64(BEGUN).store(number, Ordering::Release);
    let _ = futex::wake(memory.word32(BEGUN), futex::Flags::empty(), 1);
    let sink = memory.word64(SINK).load(Ordering::Acquire);
    let mut pushed = match way {
        Way::Pull => return,
        Way::Ring => return put(memory, bytes),
        Way::Push => 0,
        Way::Halves => bytes.len() / 2,
    };
    while pushed < bytes.len() {
        let len = PIECE_LEN.min(bytes.len() - pushed);
        poke_process(receiver, sink + pushed as u64, &bytes[pushed..pushed + len]).unwrap();
        pushed += len;
    }
    memory.word64(PUSHED).store(number, Ordering::Release);
}

/// Runs the receiver, in a process that takes the transfers in the same order.
fn receive(sender: i32, fd: &str) {
    pin(1);
    let file = File::options().read(true).write(true).open(format!("/proc/{sender}/fd/{fd}"));
    let file = file.expect("the parent waits");
    let memory = SharedMemory::open(file.as_fd(), SHARED_LEN, true).unwrap();
    let sender = Pid::from_raw(sender).unwrap();
    let mut bytes = vec![1_u8; SIZES[SIZES.len() - 1]];
    memory.word64(SINK).store(bytes.as_mut_ptr() as u64, Ordering::Release);
    for asleep in [false, true] {
        for len in SIZES {
            for _ in 0..ROUNDS {
                for way in WAYS {
                    let number = next(&memory);
                    while asleep && memory.word64(BEGUN).load(Ordering::Acquire) < number {
                        let low = u32::try_from((number - 1) & u64::from(u32::MAX)).unwrap();
                        let word = memory.word32(BEGUN);
                        let _ = futex::wait(word, futex::Flags::empty(), low, None);
                    }
                    wait_for(memory.word64(BEGUN), number);
                    take(&memory, sender, way, number, &mut bytes[..len]);
                    let bytes = std::hint::black_box(&bytes); // Another process has written.
                    let read: u64 = bytes[..len].iter().map(|&byte| u64::from(byte)).sum();
                    assert_eq!(read, (number & 0xff) * len as u64, "{way:?}");
                    memory.word64(READ).store(number, Ordering::Release);
                }
            }
        }
    }
}

/// The receiver's part of one transfer.
fn take(memory: &SharedMemory, sender: Pid, way: Way, number: u64, bytes: &mut [u8]) {
    let len = match way {
        Way::Ring => return get(memory, bytes),
        Way::Pull => bytes.len(),
        Way::Push => 0,
        Way::Halves => bytes.len() / 2,
    };
    let source = memory.word64(SOURCE).load(Ordering::Acquire);
    for (index, piece) in bytes[..len].chunks_mut(PIECE_LEN).enumerate() {
        peek_process(sender, source + (index * PIECE_LEN) as u64, piece).unwrap();
    }
    if !matches!(way, Way::Pull) {
        wait_for(memory.word64(PUSHED), number);
    }
}

fn put(memory: &SharedMemory, bytes: &[u8]) {
    let mut at = memory.word64(PUT).load(Ordering::Relaxed);
    for piece in bytes.chunks(PUBLISH_LEN) {
        let end = at + piece.len() as u64;
        wait_for(memory.word64(TAKEN), end.saturating_sub(RING_LEN as u64));
        memory.copy_in(RING + place(at), piece);
        at = end;
        memory.word64(PUT).store(at, Ordering::Release);
    }
}

fn get(memory: &SharedMemory, bytes: &mut [u8]) {
    let mut at = memory.word64(TAKEN).load(Ordering::Relaxed);
    for piece in bytes.chunks_mut(PUBLISH_LEN) {
        let end = at + piece.len() as u64;
        wait_for(memory.word64(PUT), end);
        memory.copy_out(RING + place(at), piece);
        at = end;
        memory.word64(TAKEN).store(at, Ordering::Release);
    }
}

/// The ring's length is a multiple of the length of all pieces.
fn place(position: u64) -> usize {
    usize::try_from(position).unwrap() % RING_LEN
}

fn wait_for(word: &AtomicU64, value: u64) {
    while word.load(Ordering::Acquire) < value {
        spin_loop();
    }
}

fn pin(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).unwrap();
}
