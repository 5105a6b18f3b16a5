//! What the peer does between two steps of a read, which the simulation cannot do: it has no
//! sources, whose bytes lie in another process.

#[path = "../../tests/common/mod.rs"]
mod common;

use std::io::IoSliceMut;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use weft_sys::Buffers;

use crate::flow::Flow;
use crate::kernel::meanwhile;
use crate::recv_options::RecvOptions;
use crate::src_avail::Owner;

use common::{Side, connected};

/// Moments of a read, and some more.
const MOMENTS: u32 = 8;

static PROOF: AtomicU64 = AtomicU64::new(0x5eed);

impl Side {
    fn recv(&self, bytes: &mut [u8]) -> Result<usize, Errno> {
        let buffers = &mut [IoSliceMut::new(bytes)];
        let options = RecvOptions::default();
        self.end.try_recv_shown(self.socket.as_fd(), Buffers::of(buffers), options)
    }

    fn send(&self, bytes: &mut [u8]) {
        let buffers = &mut [IoSliceMut::new(bytes)];
        let sent = self.end.try_send(self.socket.as_fd(), Buffers::of(buffers), 0);
        assert_eq!(sent, Ok(bytes.len()));
    }

    /// Defers a send of bytes that stay where they are for good.
    fn defer(&self, bytes: &'static mut [u8]) {
        let proof = (PROOF.as_ptr() as u64, PROOF.load(Ordering::Relaxed));
        let owner = Owner { pid: std::process::id(), proof };
        let buffers = &mut [IoSliceMut::new(bytes)];
        let number = self.end.defer_send(self.socket.as_fd(), Buffers::of(buffers), &owner);
        assert!(number.is_some(), "the rings carry the connection");
    }
}

/// Both sides of a connection, after a byte each way.
fn sides() -> [Side; 2] {
    let sides = connected(Flow::Packed);
    for side in &sides {
        side.socket.set_nonblocking(true).expect("an option");
    }
    for _ in 0..2 {
        sides.iter().rev().for_each(|side| side.end.advance(side.socket.as_fd()));
    }
    for (from, to) in [(&sides[0], &sides[1]), (&sides[1], &sides[0])] {
        from.send(&mut [7]);
        assert_eq!(to.recv(&mut [0]), Ok(1));
    }
    sides
}

#[test]
fn bytes_of_sources_come_before_those_that_follow_by_tcp() {
    for moments in 0..MOMENTS {
        let [sender, receiver] = sides();
        let sender = Arc::new(sender);
        let theirs = Arc::clone(&sender);
        meanwhile::after(moments, move || {
            theirs.defer(Box::leak(Box::new(*b"deferred, ")));
            theirs.end.fall_back_unread(theirs.socket.as_fd());
            theirs.send(&mut b"sent".to_vec());
        });
        let mut all = Vec::new();
        while all.len() < 14 {
            let bytes = &mut [0; 32];
            match receiver.recv(bytes) {
                Ok(0) => panic!("the stream has ended after {all:?}"),
                Ok(received) => all.extend_from_slice(&bytes[..received]),
                Err(Errno::AGAIN) => meanwhile::now(),
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(all, b"deferred, sent", "moment {moments}");
    }
}

#[test]
fn a_call_for_no_bytes_returns_if_a_source_has_some() {
    let [sender, receiver] = sides();
    assert_eq!(receiver.recv(&mut []), Err(Errno::AGAIN));
    sender.defer(Box::leak(Box::new(*b"deferred")));
    assert_eq!(receiver.recv(&mut []), Ok(0));
    assert_eq!(receiver.recv(&mut [0; 16]), Ok(8));
}
