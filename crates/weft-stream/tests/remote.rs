//! Tests of an end to another host: urgent data, and the decision whether it gets a wire.

use std::io::{IoSliceMut, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use weft_stream::RecvOptions;
use weft_stream::remote::{Remote, StateWord, Ticket, Wire};
use weft_sys::Buffers;
use weft_sys::calls::is_at_mark;

/// A wire on which nothing arrives. The reference shows whether it still exists.
#[derive(Debug)]
struct TestWire(#[allow(dead_code, reason = "it is held")] Arc<()>);

impl Wire for TestWire {
    fn post(&self, _: &[(usize, usize)], _: StateWord, _: u64) -> Option<Ticket> {
        None
    }

    fn post_head(&self, _: &[(usize, usize)], _: u64, _: &AtomicU64) -> Option<Ticket> {
        None
    }

    fn done(&self) -> Ticket {
        0
    }

    fn is_crowded(&self) -> bool {
        false
    }

    fn drive(&self) {}

    fn rest(&self) {}

    fn is_broken(&self) -> bool {
        false
    }
}

fn wait_for(socket: &TcpStream, events: PollFlags) {
    let mut set = [PollFd::new(socket, events)];
    poll(&mut set, None).expect("events");
}

fn recv(end: &Remote<TestWire>, socket: &TcpStream, has_part: bool) -> Result<Vec<u8>, Errno> {
    let mut bytes = [0; 8];
    let options = RecvOptions { look: true, has_part, ..RecvOptions::default() };
    let slices = &mut [IoSliceMut::new(&mut bytes)];
    let received = end.try_recv(socket.as_fd(), Buffers::of(slices), options)?;
    Ok(bytes[..received].to_vec())
}

#[test]
fn urgent_data_is_not_skipped_behind_a_part() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let mut peer = TcpStream::connect(address).expect("a connection");
    let (socket, _) = listener.accept().expect("a connection");
    let end = Remote::<TestWire>::new().expect("an end");

    peer.write_all(b"before").expect("a send");
    wait_for(&socket, PollFlags::IN);
    assert_eq!(recv(&end, &socket, true), Ok(b"before".to_vec()));
    assert_eq!(send(&peer, b"!", SendFlags::OOB), Ok(1));
    wait_for(&socket, PollFlags::PRI);
    assert_eq!(recv(&end, &socket, true), Err(Errno::AGAIN));
    peer.write_all(b"behind").expect("a send");
    wait_for(&socket, PollFlags::IN);
    assert_eq!(recv(&end, &socket, true), Err(Errno::AGAIN));
    assert!(is_at_mark(&socket));

    assert_eq!(recv(&end, &socket, false), Ok(b"behind".to_vec()));
    drop(peer);
    wait_for(&socket, PollFlags::RDHUP);
    assert_eq!(recv(&end, &socket, true), Ok(Vec::new()));
}

/// The peer may have connected meanwhile. It must not send by a wire from which nobody reads.
#[test]
fn end_that_has_given_up_drops_a_wire_that_comes_later() {
    let (end, wire) = (Remote::new().expect("an end"), Arc::new(()));
    end.give_up();
    end.begin(TestWire(Arc::clone(&wire)));
    assert_eq!(Arc::strong_count(&wire), 1);
    assert!(end.is_off() && !end.is_pending());
}

#[test]
fn end_with_a_wire_does_not_give_up() {
    let (end, wire) = (Remote::new().expect("an end"), Arc::new(()));
    end.begin(TestWire(Arc::clone(&wire)));
    end.give_up();
    assert_eq!(Arc::strong_count(&wire), 2);
    assert!(!end.is_off() && !end.is_pending());
}
