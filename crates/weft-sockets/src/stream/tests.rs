//! Streams against the fake kernel: what a program observes before, during and after the time in
//! which memory carries the bytes.

use std::io::IoSliceMut;
use std::os::fd::AsFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use weft_sys::{Buffers, note_handled};

use super::Stream;
use crate::descriptor::Descriptor;
use crate::kernel::{Host, Kernel as _, fake};
use crate::open;
use crate::program::{self, Program, Socket, start};
use crate::reason::Reason;
use crate::sockets::Kind;

const DONTWAIT: libc::c_int = libc::MSG_DONTWAIT;
const PEEK: libc::c_int = libc::MSG_PEEK;
const WAITALL: libc::c_int = libc::MSG_WAITALL;

fn in_memory() -> (Program, [Socket; 2]) {
    let program = start();
    let ends = program.connect_in_memory();
    (program, ends)
}

/// Returns bytes whose values depend on their position.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

#[test]
fn bytes_come_once_and_in_order_while_the_connection_moves_to_memory() {
    let program = start();
    let [one, other] = program.connect();
    let sent = pattern(4_000);
    let mut received = [Vec::new(), Vec::new()];
    let mut in_memory = 0;
    for piece in sent.chunks(100) {
        assert_eq!(one.send(piece), Ok(100));
        assert_eq!(other.send(piece), Ok(100));
        // Some bytes stay unread while the connection moves.
        for (socket, received) in [&other, &one].into_iter().zip(&mut received) {
            received.extend(socket.recv_with(70, DONTWAIT).expect("bytes"));
        }
        in_memory += u32::from(one.is_in_memory() && other.is_in_memory());
    }
    assert!(in_memory > 30, "memory must carry all but the first messages: {in_memory}");
    for (socket, received) in [&other, &one].into_iter().zip(&mut received) {
        while let Ok(rest) = socket.recv_with(300, DONTWAIT) {
            received.extend(rest);
        }
        assert!(*received == sent);
    }
}

#[test]
fn bytes_in_memory_do_not_pass_the_kernel() {
    let (_program, [one, other]) = in_memory();
    let before = fake::calls("send");
    assert_eq!(one.send(b"abc"), Ok(3));
    assert_eq!((fake::unread(other.fd), fake::calls("send")), (0, before));
    assert_eq!(other.recv(8), Ok(b"abc".to_vec()));
}

#[test]
fn bytes_over_tcp_follow_those_in_memory() {
    let (_program, [one, other]) = in_memory();
    assert_eq!(one.send(b"memory"), Ok(6));
    one.fall_back_to_tcp();
    assert_eq!(one.send(b"tcp"), Ok(3));
    assert_eq!(other.recv_with(9, WAITALL), Ok(b"memorytcp".to_vec()));
    assert_eq!(other.send(b"back"), Ok(4));
    assert_eq!(one.recv(8), Ok(b"back".to_vec()));
    assert!(!one.is_in_memory() && !other.is_in_memory());
}

#[test]
fn nonblocking_recv_without_bytes_is_eagain() {
    let (_program, [one, other]) = in_memory();
    assert_eq!(one.recv_with(1, DONTWAIT), Err(Errno::AGAIN));
    fake::set_nonblocking(one.fd);
    assert_eq!(one.recv(1), Err(Errno::AGAIN));
    assert_eq!(other.send(b"x"), Ok(1));
    assert_eq!(one.recv(1), Ok(b"x".to_vec()));
}

#[test]
fn receiver_sleeps_until_the_peer_sends() {
    let (_program, [one, other]) = in_memory();
    let from = other.fd;
    fake::while_asleep(move || assert_eq!(program::send(from, b"late", 0), Ok(4)));
    assert_eq!(one.recv(8), Ok(b"late".to_vec()));
    assert_eq!(fake::acts_left(), 0);
}

#[test]
fn peer_wakes_a_receiver_that_sleeps_in_the_kernel() {
    let (_program, [one, other]) = in_memory();
    let from = other.fd;
    fake::while_asleep(|| {}); // The futex wait times out.
    fake::while_asleep(move || {
        let before = fake::calls("wakeup");
        assert_eq!(program::send(from, b"late", 0), Ok(4));
        assert_eq!(fake::calls("wakeup"), before + 1);
    });
    assert_eq!(one.recv(8), Ok(b"late".to_vec()));
    assert_eq!(fake::acts_left(), 0);
    // The wakeup must not be read as a byte.
    assert_eq!(one.recv_with(8, DONTWAIT), Err(Errno::AGAIN));
    assert_eq!(fake::unread(one.fd), 0);
}

#[test]
fn receive_ends_at_its_time_limit() {
    let (_program, [one, _other]) = in_memory();
    fake::set_time_limit(one.fd, Timeout::Recv, Duration::from_secs(3));
    let before = fake::time();
    assert_eq!(one.recv(1), Err(Errno::AGAIN));
    assert!(fake::time() - before >= 3_000_000_000);
}

#[test]
fn handled_signal_ends_a_receive() {
    let (_program, [one, _other]) = in_memory();
    fake::while_asleep(|| {});
    fake::interrupt_sleep();
    assert_eq!(one.recv(1), Err(Errno::INTR));
}

#[test]
fn peeked_bytes_stay_unread() {
    let (_program, [one, other]) = in_memory();
    assert_eq!(other.send(b"abcd"), Ok(4));
    assert_eq!(one.recv_with(2, PEEK), Ok(b"ab".to_vec()));
    assert_eq!(one.recv_with(9, PEEK), Ok(b"abcd".to_vec()));
    assert_eq!(one.recv(9), Ok(b"abcd".to_vec()));
}

#[test]
fn waitall_waits_for_all_bytes() {
    let (_program, [one, other]) = in_memory();
    let from = other.fd;
    assert_eq!(other.send(b"ab"), Ok(2));
    for part in [b"c", b"d"] {
        fake::while_asleep(move || assert_eq!(program::send(from, part, 0), Ok(1)));
    }
    assert_eq!(one.recv_with(4, WAITALL), Ok(b"abcd".to_vec()));
    assert_eq!(fake::acts_left(), 0);
}

#[test]
fn waitall_returns_a_part_at_eof() {
    let (_program, [one, other]) = in_memory();
    assert_eq!(other.send(b"ab"), Ok(2));
    other.shutdown(libc::SHUT_WR);
    assert_eq!(one.recv_with(4, WAITALL), Ok(b"ab".to_vec()));
    assert_eq!(one.recv(4), Ok(Vec::new()));
}

#[test]
fn msg_trunc_discards_bytes() {
    let (_program, [one, other]) = in_memory();
    assert_eq!(other.send(b"abcd"), Ok(4));
    assert_eq!(one.recv_with(2, libc::MSG_TRUNC), Ok(vec![0; 2]), "bytes are counted, not copied");
    assert_eq!(one.recv(9), Ok(b"cd".to_vec()));
}

#[test]
fn shutdown_is_eof_after_the_last_byte() {
    let (_program, [one, other]) = in_memory();
    assert_eq!(one.send(b"last"), Ok(4));
    one.shutdown(libc::SHUT_WR);
    assert_eq!(one.send(b"x"), Err(Errno::PIPE));
    assert_eq!(other.recv(2), Ok(b"la".to_vec()));
    assert_eq!(other.recv(9), Ok(b"st".to_vec()));
    assert_eq!(other.recv(9), Ok(Vec::new()));
    assert_eq!(other.recv(9), Ok(Vec::new()), "EOF repeats");
    // The other direction continues.
    assert_eq!(other.send(b"answer"), Ok(6));
    assert_eq!(one.recv(9), Ok(b"answer".to_vec()));
}

#[test]
fn eof_is_not_reported_before_all_bytes() {
    let (_program, [one, other]) = in_memory();
    let sent = pattern(100_000);
    assert_eq!(one.send(&sent), Ok(sent.len()));
    drop(one);
    let mut received = Vec::new();
    loop {
        match other.recv(4_096).expect("bytes, or the end") {
            more if more.is_empty() => break,
            more => received.extend(more),
        }
    }
    assert!(received == sent, "{} bytes", received.len());
}

#[test]
fn write_after_peer_close_is_epipe() {
    let (_program, [one, other]) = in_memory();
    drop(other);
    let sent: Vec<_> = (0..3).map(|_| one.send(b"x")).collect();
    assert_eq!(sent.last(), Some(&Err(Errno::PIPE)), "{sent:?}");
}

#[test]
fn reset_is_reported_once() {
    let (_program, [one, other]) = in_memory();
    fake::reset(one.fd);
    assert_eq!(one.recv(1), Err(Errno::CONNRESET));
    assert_eq!(one.recv(1), Ok(Vec::new()));
    drop(other);
}

/// Another process that holds the socket, or the program after an exec, may be the first to ask.
#[test]
fn reset_that_poll_has_reported_stays_with_the_kernel() {
    let (_program, [one, other]) = in_memory();
    fake::reset(one.fd);
    let mut set = [libc::pollfd { fd: one.fd, events: libc::POLLIN, revents: 0 }];
    assert_eq!(program::poll_all(&mut set, Some(0)), 1);
    assert_eq!(set[0].revents, libc::POLLIN | libc::POLLERR | libc::POLLHUP);
    assert_eq!(fake::recv_now(one.fd, 1), Err(Errno::CONNRESET));
    drop(other);
}

#[test]
fn bytes_in_memory_come_before_a_reset() {
    let (_program, [one, other]) = in_memory();
    assert_eq!(other.send(b"abc"), Ok(3));
    fake::reset(one.fd);
    assert_eq!(one.recv(9), Ok(b"abc".to_vec()));
    assert_eq!(one.recv(9), Err(Errno::CONNRESET));
}

#[test]
fn bytes_in_memory_come_before_a_reset_that_ends_a_sleep() {
    let (_program, [one, other]) = in_memory();
    let (from, to) = (other.fd, one.fd);
    fake::while_asleep(|| {});
    fake::while_asleep(move || {
        assert_eq!(program::send(from, b"abc", 0), Ok(3));
        fake::recv_now(to, 1).expect("another thread takes the wakeup");
        fake::reset(to);
    });
    assert_eq!(one.recv(9), Ok(b"abc".to_vec()));
    assert_eq!(one.recv(9), Err(Errno::CONNRESET));
}

/// The peer may move to memory, send, and close, between any two steps of the reader.
#[test]
fn message_comes_before_the_end_whenever_the_peer_moves_to_memory() {
    const MOMENTS: u32 = 60;
    for (asks_first, moments) in
        [false, true].into_iter().flat_map(|asks| (0..MOMENTS).map(move |at| (asks, at)))
    {
        let program = start();
        let [one, other] = program.connect();
        // The connector waits for the answer of a peer that has taken part, or the acceptor for
        // the first message.
        let (reader, writer) = if asks_first { (one, other) } else { (other, one) };
        if asks_first {
            assert_eq!((reader.send(b"ask"), writer.recv(9)), (Ok(3), Ok(b"ask".to_vec())));
        }
        let from = writer.fd;
        fake::disturb_after(moments, 0, move || {
            assert_eq!(program::send(from, b"message", 0), Ok(7));
            if asks_first {
                program::close(from);
            }
        });
        let received = catch_unwind(AssertUnwindSafe(|| reader.recv(9)));
        fake::forget_disturbances();
        match received {
            Err(panic) if panic.is::<fake::Impossible>() => {}
            Err(panic) => resume_unwind(panic),
            Ok(received) => {
                assert_eq!(received, Ok(b"message".to_vec()), "after {moments} moments");
            }
        }
    }
}

/// A poll that the program does not repeat has asked for room. The kernel would reset a connection
/// that is closed with the wakeup unread.
#[test]
fn end_that_closes_is_not_woken_for_room() {
    for moments in 0..40 {
        let (_program, [one, other]) = in_memory();
        assert_eq!(one.send(b"last"), Ok(4));
        program::with_stream(one.fd, |it| it.end().expect("in memory").want_room());
        let (reader, received) = (other.fd, Arc::new(Mutex::new(Vec::new())));
        let read = Arc::clone(&received);
        fake::disturb_after(moments, 1, move || {
            let bytes = program::recv(reader, 9, DONTWAIT).expect("the bytes, or the end");
            read.lock().expect("no panic").extend(bytes);
        });
        let close = || fake::as_threads(2, || program::close(one.fd));
        let closed = catch_unwind(AssertUnwindSafe(close));
        fake::forget_disturbances();
        match closed {
            Err(panic) if panic.is::<fake::Impossible>() => continue,
            Err(panic) => resume_unwind(panic),
            Ok(()) => {}
        }
        let mut received = received.lock().expect("no panic");
        if received.is_empty() {
            received.extend(other.recv(9).expect("the bytes"));
        }
        assert_eq!(*received, b"last", "after {moments} moments");
        assert_eq!(other.recv(9), Ok(Vec::new()), "after {moments} moments");
    }
}

/// An offer to a program that does not run on Weft stays open as long as its connection.
#[test]
fn acceptor_looks_once_for_each_new_offer_and_not_at_each_call() {
    let begun = start();
    let accepted = || {
        let [one, other] = fake::connection();
        let acceptor = Stream::accepted(other, Some(false)).expect("it may leave TCP");
        open::install(other, Kind::Stream(acceptor));
        [one, other].map(|fd| Socket { fd })
    };
    let [offering, _plain] = accepted();
    let connector = Stream::fresh();
    connector.connected(offering.fd);
    open::install(offering.fd, Kind::Stream(connector));
    let [one, other] = accepted();
    let looks = fake::calls("getpeername");
    let receive = || {
        assert_eq!(program::send(one.fd, b"a", 0), Ok(1));
        assert_eq!(other.recv(1), Ok(b"a".to_vec()));
        fake::calls("getpeername")
    };
    assert_eq!([receive(), receive(), receive()], [looks; 3]);
    let _others = begun.connect();
    assert!(receive() > looks, "there is a new offer");
}

#[test]
fn writer_without_room_sleeps_until_the_peer_reads() {
    let (_program, [one, other]) = in_memory();
    while one.send_now(&pattern(50_000)).is_ok() {}
    let reader = other.fd;
    fake::while_asleep(move || drop(program::recv(reader, 1 << 20, 0)));
    assert_eq!(one.send(&pattern(1_000)), Ok(1_000));
    assert_eq!(fake::acts_left(), 0);
}

/// The handler may run at any moment: while the writer spins, and just before it sleeps.
#[test]
fn handled_signal_ends_a_send_whenever_it_comes() {
    for moments in (0..40).chain((40..2_000).step_by(140)) {
        let (_program, [one, _other]) = in_memory();
        while one.send_now(&pattern(50_000)).is_ok() {}
        fake::disturb_after(moments, 0, || note_handled(false));
        assert_eq!(one.send(&pattern(1_000)), Err(Errno::INTR), "after {moments} moments");
    }
}

#[test]
fn writer_without_room_is_reset_when_its_peer_is_killed() {
    let (_program, [one, other]) = in_memory();
    while one.send_now(&pattern(50_000)).is_ok() {}
    let killed = other.fd;
    fake::while_asleep(move || fake::close(killed));
    assert_eq!(one.send(&pattern(1_000)), Err(Errno::CONNRESET));
    assert_eq!(one.send(&pattern(1_000)), Err(Errno::PIPE));
    assert_eq!((fake::acts_left(), one.recv(1)), (0, Ok(Vec::new())));
}

#[test]
fn poll_reports_room_of_tcp_while_bytes_and_the_end_are_unread() {
    let (_program, [one, other]) = in_memory();
    while one.send_now(&pattern(50_000)).is_ok() {}
    assert_eq!(other.send(&pattern(10_000)), Ok(10_000));
    let peer = other.fd;
    fake::while_asleep(move || {
        program::with_stream(peer, |it| {
            it.fall_back_to_tcp(peer, Reason::Shut);
            it.shutting(peer, libc::SHUT_WR);
        });
        fake::shutdown(peer, libc::SHUT_WR);
    });
    let mut set = [libc::pollfd { fd: one.fd, events: libc::POLLOUT, revents: 0 }];
    assert_eq!(program::poll_all(&mut set, Some(3_000_000_000)), 1);
    assert_eq!((fake::acts_left(), set[0].revents), (0, libc::POLLOUT));
    assert_eq!(one.recv_with(10_000, WAITALL), Ok(pattern(10_000)));
}

#[test]
fn nonblocking_send_without_room_is_partial() {
    let (_program, [one, _other]) = in_memory();
    let huge = vec![7; 16 << 20];
    let part = one.send_now(&huge).expect("a part");
    assert!(part > 0 && part < huge.len(), "{part}");
    assert_eq!(one.send_now(&huge), Err(Errno::AGAIN));
    fake::set_time_limit(one.fd, Timeout::Send, Duration::from_millis(500));
    assert_eq!(one.send(&huge), Err(Errno::AGAIN));
    assert!(one.is_in_memory());
}

#[test]
fn writer_that_finds_no_room_tries_again_if_its_peer_has_left_memory() {
    let (_program, [one, other]) = in_memory();
    while one.send_now(&pattern(50_000)).is_ok() {}
    let is_to_try_again = || program::with_stream(one.fd, Stream::be_full);
    assert!(!is_to_try_again(), "the peer reports room in memory");
    other.fall_back_to_tcp();
    assert!(is_to_try_again(), "the kernel has refused nothing");
}

#[test]
fn stalled_connection_falls_back_to_tcps_buffers() {
    let (_program, [one, other]) = in_memory();
    let huge = pattern(64 << 20);
    let part = one.send_now(&huge).expect("a part");
    fake::set_time_limit(one.fd, Timeout::Send, Duration::from_secs(2));
    let rest = one.send(&huge[part..]).expect("what TCP takes");
    assert!(!one.is_in_memory());
    assert!(other.recv_with(part + rest, WAITALL).as_deref() == Ok(&huge[..part + rest]));
}

#[test]
fn sleeping_acceptor_wakes_for_first_bytes_in_memory() {
    let program = start();
    let [one, other] = program.connect();
    let (from, to) = (one.fd, other.fd);
    fake::while_asleep(move || {
        assert_eq!(program::send(from, b"a", 0), Ok(1));
        program::with_stream(to, |stream| assert!(stream.end().is_some()));
    });
    assert_eq!(other.recv(8), Ok(b"a".to_vec()));
}

/// Sends while the peer receives in each of the sender's sleeps.
fn send_to_a_reader(one: &Socket, other: &Socket, sent: &[u8]) -> Vec<u8> {
    static RECEIVED: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    let receive = |fd| {
        let more = program::recv(fd, 100_000, DONTWAIT).unwrap_or_default();
        let mut received = RECEIVED.lock().unwrap_or_else(PoisonError::into_inner);
        received.extend(&more);
        !more.is_empty()
    };
    let reader = other.fd;
    for _ in 0..200 {
        fake::while_asleep(move || {
            receive(reader);
        });
    }
    assert_eq!(one.send(sent), Ok(sent.len()));
    while receive(reader) {}
    fake::forget_acts();
    std::mem::take(&mut *RECEIVED.lock().unwrap_or_else(PoisonError::into_inner))
}

#[test]
fn long_messages_arrive_complete_by_either_copy_path() {
    let (_program, [one, other]) = in_memory();
    for len in [256 << 10, (1 << 20) + 4_097] {
        for _ in 0..3 {
            let sent = pattern(len);
            assert!(send_to_a_reader(&one, &other, &sent) == sent, "{len}");
        }
    }
}

/// Defers a message where memory can be protected. Then the program overwrites its buffer, if
/// `uses_buffer`, and closes the socket.
fn defer_and_close(uses_buffer: bool) {
    let (_program, [one, other]) = in_memory();
    let sent = pattern(1 << 20);
    let mut buffer = sent.clone();
    let deferred = {
        let mut slices = [IoSliceMut::new(&mut buffer)];
        let buffers = Buffers::of(&mut slices);
        program::with_stream(one.fd, |it| it.send_from(one.fd, buffers, DONTWAIT, true))
    };
    let count = deferred.expect("ours").expect("sent");
    assert!(count > 0);
    if uses_buffer {
        buffer.fill(0xee);
    }
    drop(one);
    let mut received = Vec::new();
    while received.len() < count {
        received.extend(other.recv_with(50_000, DONTWAIT).expect("bytes"));
    }
    assert!(received == sent[..count], "{} of {count} bytes", received.len());
    assert_eq!(other.recv(1), Ok(Vec::new()));
}

#[test]
fn deferred_send_delivers_what_the_buffer_held_at_the_call() {
    defer_and_close(true);
}

#[test]
fn deferred_send_is_delivered_after_close() {
    defer_and_close(false);
}

#[test]
fn acceptor_counts_what_it_sends_before_it_finds_the_offer() {
    let _program = start();
    let [one, other] = fake::connection();
    let acceptor = Stream::accepted(other, Some(false)).expect("it may leave TCP");
    open::install(other, Kind::Stream(acceptor));
    let other = Socket { fd: other };
    assert_eq!(other.send(b"early"), Ok(5));
    let connector = Stream::fresh();
    connector.connected(one);
    open::install(one, Kind::Stream(connector));
    let one = Socket { fd: one };
    let mut expected = b"early".to_vec();
    for byte in b"abcd" {
        assert_eq!(other.send(&[*byte]), Ok(1));
        assert_eq!(one.send(&[*byte]), Ok(1));
        assert_eq!(other.recv(9), Ok(vec![*byte]));
        expected.push(*byte);
    }
    assert!(one.is_in_memory_out() && other.is_in_memory_out());
    assert_eq!(one.recv_with(expected.len(), WAITALL), Ok(expected));
}

#[test]
fn reused_descriptor_number_is_not_read_from() {
    let (_program, [one, _other]) = in_memory();
    let fd = one.fd;
    fake::while_asleep(|| {});
    fake::while_asleep(move || {
        program::forget(fd);
        let peer = fake::reuse(fd);
        assert_eq!(fake::send_now(peer, b"of another connection"), Ok(21));
    });
    assert_eq!(one.recv(9), Err(Errno::BADF));
    assert_eq!(fake::unread(fd), 21);
}

#[test]
fn urgent_data_makes_a_connection_fall_back_to_tcp() {
    let (_program, [one, other]) = in_memory();
    assert_eq!(one.send(b"before"), Ok(6));
    assert_eq!(program::send(one.fd, b"!", libc::MSG_OOB), Ok(1));
    assert!(!one.is_in_memory());
    assert_eq!(other.recv_with(7, WAITALL), Ok(b"before".to_vec()));
    assert!(is_at_mark(&other));
    assert_eq!(one.send(b"behind"), Ok(6));
    assert_eq!(other.recv(7), Ok(b"behind".to_vec()));
}

/// The kernel's call ends before urgent data, or returns all bytes if it has ended before they
/// came. In neither case is urgent data skipped.
#[test]
fn urgent_data_ends_a_part_whenever_it_comes() {
    const MOMENTS: u32 = 60;
    let in_memory: fn(&Program) -> [Socket; 2] = Program::connect_in_memory;
    // The acceptor waits for an offer, and counts what the kernel brings.
    let accepted = |_: &Program| {
        let [one, other] = fake::connection();
        let acceptor = Stream::accepted(other, Some(false)).expect("it may leave TCP");
        open::install(other, Kind::Stream(acceptor));
        [one, other].map(|fd| Socket { fd })
    };
    for (connect, moments) in [in_memory, accepted]
        .into_iter()
        .flat_map(|connect| (0..MOMENTS).map(move |moments| (connect, moments)))
    {
        let program = start();
        let [one, other] = connect(&program);
        let from = one.fd;
        fake::while_asleep(move || {
            assert_eq!(program::send(from, b"before", 0), Ok(6));
            fake::disturb_after(moments, 0, move || {
                assert_eq!(program::send(from, b"!", libc::MSG_OOB), Ok(1));
            });
        });
        let received = catch_unwind(AssertUnwindSafe(|| other.recv_with(100, WAITALL)));
        fake::forget_disturbances();
        match received {
            Err(panic) if panic.is::<fake::Impossible>() => {}
            Err(panic) => resume_unwind(panic),
            Ok(received) => {
                assert_eq!(received, Ok(b"before".to_vec()), "after {moments} moments");
                assert!(is_at_mark(&other), "after {moments} moments");
            }
        }
    }
}

fn is_at_mark(socket: &Socket) -> bool {
    Host::is_at_mark(Descriptor::of(socket.fd).as_fd())
}

#[test]
fn descriptor_closed_by_another_thread_ends_a_sleep() {
    let (_program, [one, _other]) = in_memory();
    let fd = one.fd;
    fake::while_asleep(|| {});
    fake::while_asleep(move || program::close(fd));
    assert_eq!(one.recv(1), Err(Errno::BADF));
}

impl Socket {
    fn send_now(&self, bytes: &[u8]) -> Result<usize, Errno> {
        program::send(self.fd, bytes, DONTWAIT)
    }
}
