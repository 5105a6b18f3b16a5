//! Tests that an end to another host leaves urgent data in the socket for a call that has received
//! bytes before.

use std::io::{IoSliceMut, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::atomic::AtomicU64;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use weft_stream::RecvOptions;
use weft_stream::remote::{Remote, StateWord, Ticket, Wire};
use weft_sys::Buffers;
use weft_sys::calls::is_at_mark;

/// The wire of a connection that stays on TCP.
#[derive(Debug)]
enum NoWire {}

impl Wire for NoWire {
    fn post(&self, _: &[(usize, usize)], _: StateWord, _: u64) -> Option<Ticket> {
        match *self {}
    }

    fn post_head(&self, _: &[(usize, usize)], _: u64, _: &AtomicU64) -> Option<Ticket> {
        match *self {}
    }

    fn done(&self) -> Ticket {
        match *self {}
    }

    fn is_crowded(&self) -> bool {
        match *self {}
    }

    fn drive(&self) {
        match *self {}
    }

    fn rest(&self) {
        match *self {}
    }

    fn is_broken(&self) -> bool {
        match *self {}
    }
}

fn wait_for(socket: &TcpStream, events: PollFlags) {
    let mut set = [PollFd::new(socket, events)];
    poll(&mut set, None).expect("events");
}

fn recv(end: &Remote<NoWire>, socket: &TcpStream, has_part: bool) -> Result<Vec<u8>, Errno> {
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
    let end = Remote::new().expect("an end");

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
