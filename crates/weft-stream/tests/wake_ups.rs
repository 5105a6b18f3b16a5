//! Tests that two threads which sleep like the sockets library are woken, at whatever moment they
//! fall asleep.

mod common;

use std::io::IoSliceMut;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::time::Timespec;
use weft_stream::{Flow, RecvOptions};
use weft_sys::Buffers;

use common::Side;

const ROUNDS: u32 = 4_000;
/// A thread that is woken sleeps no longer than this.
const TIMEOUT: Duration = Duration::from_secs(240);
const LOOK: RecvOptions = RecvOptions { keep: false, discard: false, look: true, has_part: false };

impl Side {
    fn send(&self, byte: u8) {
        let mut bytes = [byte];
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        assert_eq!(self.end.try_send(self.socket.as_fd(), Buffers::of(slices), 0x4000), Ok(1));
    }

    fn try_recv(&self, options: RecvOptions) -> Option<u8> {
        let mut bytes = [0];
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        match self.end.try_recv(self.socket.as_fd(), Buffers::of(slices), options) {
            Ok(1) => Some(bytes[0]),
            Err(Errno::AGAIN) => None,
            other => panic!("received {other:?}"),
        }
    }

    /// Waits for a byte like a blocking call, on the kernel's socket or first on the futex word.
    fn recv(&self, futex_waits: bool) -> u8 {
        let began = Instant::now();
        let byte = loop {
            if futex_waits {
                let time = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
                let _ = self.end.futex_wait(&time);
                if let Some(byte) = self.try_recv(RecvOptions::default()) {
                    break byte;
                }
            }
            self.end.begin_sleep();
            let mut byte = self.try_recv(LOOK);
            if byte.is_none() {
                // The socket's timeout ends a sleep that no wakeup ends.
                let _ = recv(&self.socket, &mut [0; 1], RecvFlags::PEEK);
            }
            self.end.end_sleep();
            byte = byte.or_else(|| self.try_recv(LOOK));
            if let Some(byte) = byte {
                break byte;
            }
        };
        assert!(began.elapsed() < TIMEOUT, "nobody woke it");
        byte
    }
}

/// Both ends of a connection that has not been used yet.
fn connected(flow: Flow) -> [Side; 2] {
    let sides = common::connected(flow);
    for side in &sides {
        side.socket.set_read_timeout(Some(TIMEOUT)).expect("an option");
    }
    sides
}

fn play(side: &Side, begins: bool, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..ROUNDS {
        let byte = round as u8;
        if begins {
            side.send(byte);
        }
        // Fall asleep shortly before or after the peer sends.
        (0..random.u32(..300)).for_each(|_| std::hint::spin_loop());
        assert_eq!(side.recv(random.u32(..4) == 0), byte);
        if !begins {
            side.send(byte);
        }
    }
}

#[test]
fn no_reader_or_writer_misses_its_wakeup() {
    for (seed, flow) in [(1, Flow::Packed), (2, Flow::Credit)] {
        let [client, server] = connected(flow);
        std::thread::scope(|scope| {
            scope.spawn(|| play(&server, false, seed));
            play(&client, true, seed + 10);
        });
        assert!(client.end.bytes().0 > 0, "all went over TCP");
    }
}

#[test]
fn wakeup_that_a_full_socket_refuses_is_sent_later() {
    let [client, server] = connected(Flow::Packed);
    let mut bytes = vec![0; 1 << 20];
    let slices = &mut [IoSliceMut::new(&mut bytes)];
    let buffers = Buffers::of(slices);
    let mut sent = 0;
    while let Ok(more) = client.end.try_send(client.socket.as_fd(), buffers, 0) {
        sent += more;
    }
    server.end.begin_sleep();
    server.end.advance(server.socket.as_fd());
    client.end.advance(client.socket.as_fd());
    client.send(1);
    let mut received = 0;
    while received <= sent {
        received += server.end.try_recv(server.socket.as_fd(), buffers, LOOK).unwrap_or(0);
    }
    assert_eq!(server.try_recv(LOOK), None);
    client.send(2);
    let woken = recv(&server.socket, &mut [0; 1], RecvFlags::PEEK);
    assert!(woken.is_ok(), "nobody woke it: {woken:?}");
    assert_eq!(server.try_recv(LOOK), Some(2));
}
