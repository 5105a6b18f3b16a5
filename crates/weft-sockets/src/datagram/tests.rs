//! UDP sockets against the fake kernel.

use std::io::IoSliceMut;
use std::time::Duration;

use libc::{EPOLLIN, MSG_DONTWAIT, MSG_PEEK, POLLIN, pollfd};
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use weft_sys::Buffers;

use super::{DatagramReason, Received};
use crate::errno;
use crate::kernel::fake;
use crate::program::{self, Program, UdpSocket, poll_all, start, wait};

/// Returns two sockets. The second has an inbox, because it has received.
fn sockets() -> (Program, [UdpSocket; 2]) {
    let program = start();
    let [one, other] = [(); 2].map(|()| program.udp_socket());
    assert_eq!(one.send(&other, b"first"), Ok(5));
    assert_eq!(other.recv(), Ok((one.port(), b"first".to_vec())));
    assert_eq!((other.received_through_memory(), other.recv_now()), (0, Err(Errno::AGAIN)));
    (program, [one, other])
}

#[test]
fn datagrams_through_memory_keep_order_and_sender_address() {
    let (_program, [one, other]) = sockets();
    for text in [&b"a"[..], b"", b"ccc"] {
        assert_eq!(one.send(&other, text), Ok(text.len()));
    }
    for text in [&b"a"[..], b"", b"ccc"] {
        assert_eq!(other.recv(), Ok((one.port(), text.to_vec())));
    }
    assert_eq!((other.received_through_memory(), other.recv_now()), (3, Err(Errno::AGAIN)));
}

#[test]
fn receiver_is_looked_up_once() {
    let (_program, [one, other]) = sockets();
    assert_eq!(one.send(&other, b"x"), Ok(1));
    let asked = fake::calls("receiver_of");
    for _ in 0..5 {
        assert_eq!(one.send(&other, b"x"), Ok(1));
    }
    assert_eq!(fake::calls("receiver_of"), asked);
}

#[test]
fn receiver_takes_datagrams_from_kernel_and_memory() {
    let (program, [one, other]) = sockets();
    let stranger = program.udp_socket();
    let [to, _] = fake::addresses(other.fd);
    for _ in 0..3 {
        assert_eq!(one.send(&other, b"memory"), Ok(6));
        fake::send_to(stranger.fd, to, b"kernel").expect("sent");
        let mut received = [other.recv().expect("one").1, other.recv().expect("the other").1];
        received.sort();
        assert_eq!(received, [b"kernel".to_vec(), b"memory".to_vec()]);
        assert_eq!(other.recv_now(), Err(Errno::AGAIN));
    }
}

#[test]
fn datagrams_from_before_the_inbox_was_opened_come_first() {
    let program = start();
    let [one, other] = [(); 2].map(|()| program.udp_socket());
    assert_eq!(one.send(&other, b"first"), Ok(5));
    assert_eq!(other.recv(), Ok((one.port(), b"first".to_vec())));
    let mut bytes = [0; 8];
    let mut slices = [IoSliceMut::new(&mut bytes)];
    program::with_datagram(other.fd, |it| {
        let received = it.receive(other.fd, Buffers::of(&mut slices), MSG_DONTWAIT, &mut |flags| {
            assert_eq!(fake::recv_from(other.fd, flags), Err(Errno::AGAIN));
            // A datagram comes at this moment, while the inbox is still shut.
            assert_eq!(one.send(&other, b"kernel"), Ok(6));
            errno::fail(Errno::AGAIN) as libc::ssize_t
        });
        assert!(matches!(received, Received::Kernel(-1)), "{received:?}");
    });
    assert_eq!(one.send(&other, b"memory"), Ok(6));
    assert_eq!(other.recv(), Ok((one.port(), b"kernel".to_vec())));
    assert_eq!(other.recv(), Ok((one.port(), b"memory".to_vec())));
    assert_eq!(other.received_through_memory(), 1);
}

#[test]
fn peeked_datagram_is_the_next_one() {
    let (program, [one, other]) = sockets();
    let stranger = program.udp_socket();
    assert_eq!(one.send(&other, b"memory"), Ok(6));
    let seen = program::recv_from(other.fd, MSG_PEEK | MSG_DONTWAIT).expect("one");
    fake::send_to(stranger.fd, fake::addresses(other.fd)[0], b"kernel").expect("sent");
    assert_eq!(other.recv(), Ok(seen));
    assert_eq!(other.recv(), Ok((stranger.port(), b"kernel".to_vec())));
    // Now with the kernel's datagram first.
    fake::send_to(stranger.fd, fake::addresses(other.fd)[0], b"kernel").expect("sent");
    let seen = program::recv_from(other.fd, MSG_PEEK | MSG_DONTWAIT).expect("one");
    assert_eq!(seen.1, b"kernel");
    assert_eq!(one.send(&other, b"memory"), Ok(6));
    assert_eq!(other.recv(), Ok(seen));
}

#[test]
fn datagram_from_kernel_or_memory_wakes_a_sleeping_receiver() {
    let (program, [one, other]) = sockets();
    let stranger = program.udp_socket();
    for _ in 0..3 {
        let (from, to) = (one.fd, other.fd);
        fake::while_asleep(move || assert_eq!(program::send_to(from, to, b"x"), Ok(1)));
        assert_eq!(other.recv(), Ok((one.port(), b"x".to_vec())));
        let (from, [to, _]) = (stranger.fd, fake::addresses(other.fd));
        fake::while_asleep(move || assert_eq!(fake::send_to(from, to, b"k"), Ok(1)));
        assert_eq!(other.recv(), Ok((stranger.port(), b"k".to_vec())));
        assert_eq!(fake::acts_left(), 0);
    }
}

#[test]
fn receive_ends_at_its_time_limit() {
    let (_program, [_one, other]) = sockets();
    fake::set_time_limit(other.fd, Timeout::Recv, Duration::from_secs(1));
    program::with_datagram(other.fd, |it| {
        it.option(other.fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, 1);
    });
    assert_eq!(other.recv(), Err(Errno::AGAIN));
}

#[test]
fn after_fallback_the_kernel_delivers() {
    let (_program, [one, other]) = sockets();
    assert_eq!(one.send(&other, b"before"), Ok(6));
    program::with_datagram(other.fd, |it| it.fall_back_to_udp(DatagramReason::Option));
    assert_eq!(one.send(&other, b"behind"), Ok(6));
    assert_eq!(other.recv(), Ok((one.port(), b"before".to_vec())));
    assert_eq!(other.recv(), Ok((one.port(), b"behind".to_vec())));
    assert_eq!(other.received_through_memory(), 1);
}

#[test]
fn send_to_a_closed_receiver_is_econnrefused() {
    let (_program, [one, other]) = sockets();
    assert_eq!(one.send(&other, b"x"), Ok(1));
    let [address, _] = fake::addresses(other.fd);
    drop(other);
    assert_eq!(fake::send_to(one.fd, address, b"x"), Err(Errno::CONNREFUSED));
}

#[test]
fn kernel_only_options_make_a_socket_fall_back() {
    for (level, name, value, leaves) in [
        (libc::SOL_SOCKET, libc::SO_TIMESTAMP, 1, true),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMP, 0, false),
        (libc::SOL_SOCKET, libc::SO_SNDBUF, 1, false),
        (libc::IPPROTO_IP, libc::IP_PKTINFO, 1, true),
    ] {
        let (_program, [_one, other]) = sockets();
        let is_off = program::with_datagram(other.fd, |it| {
            it.option(other.fd, level, name, value);
            it.is_off()
        });
        assert_eq!(is_off, leaves, "{level} {name} {value}");
    }
}

#[test]
fn poll_and_epoll_report_datagrams_in_memory() {
    let (program, [one, other]) = sockets();
    let mut set = [pollfd { fd: other.fd, events: POLLIN, revents: 0 }];
    let instance = program.epoll();
    program::control(instance.fd, libc::EPOLL_CTL_ADD, other.fd, EPOLLIN, 3).expect("added");
    assert_eq!((poll_all(&mut set, Some(0)), instance.now()), (0, vec![]));
    assert_eq!(one.send(&other, b"x"), Ok(1));
    assert_eq!((poll_all(&mut set, Some(0)), set[0].revents), (1, POLLIN));
    assert_eq!(instance.now(), [(3, EPOLLIN.cast_unsigned())]);
    assert_eq!(other.recv_now(), Ok((one.port(), b"x".to_vec())));
    assert_eq!((poll_all(&mut set, Some(0)), instance.now()), (0, vec![]));
}

#[test]
fn sender_wakes_threads_in_poll_and_epoll() {
    let (program, [one, other]) = sockets();
    let (from, to) = (one.fd, other.fd);
    let mut set = [pollfd { fd: other.fd, events: POLLIN, revents: 0 }];
    for _ in 0..3 {
        fake::while_asleep(move || assert_eq!(program::send_to(from, to, b"x"), Ok(1)));
        assert_eq!((poll_all(&mut set, None), set[0].revents), (1, POLLIN));
        assert_eq!(other.recv_now(), Ok((one.port(), b"x".to_vec())));
        assert_eq!(other.recv_now(), Err(Errno::AGAIN));
    }
    let instance = program.epoll();
    program::control(instance.fd, libc::EPOLL_CTL_ADD, other.fd, EPOLLIN, 3).expect("added");
    for _ in 0..3 {
        fake::while_asleep(move || assert_eq!(program::send_to(from, to, b"x"), Ok(1)));
        assert_eq!(wait(instance.fd, None), Ok(vec![(3, EPOLLIN.cast_unsigned())]));
        assert_eq!(other.recv_now(), Ok((one.port(), b"x".to_vec())));
        assert_eq!(other.recv_now(), Err(Errno::AGAIN));
    }
}
