//! The program of the unit tests: its sockets are the fake kernel's, and its calls enter the core
//! as they do from the hooks.

use std::io::IoSliceMut;
use std::os::fd::{AsFd as _, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use libc::{c_int, c_short, epoll_event, pollfd};
use weft_stream::datagram::Inbox;
use weft_stream::{Carrier, Kernel as _};
use weft_sys::Buffers;
use weft_sys::calls::io::Errno;

use crate::datagram::{Datagram, Received};
use crate::descriptor::Descriptor;
use crate::kernel::fake::{self, Booted};
use crate::kernel::{Host, Kernel as _};
use crate::sockets::{self, Kind};
use crate::stream::Stream;
use crate::{by_hand, epoll, errno, identity, mode, open, poll, settings, shared_files};

/// The program, for the duration of a test.
pub(crate) struct Program(#[allow(dead_code, reason = "it is held")] Booted);

/// Starts the program.
pub(crate) fn start() -> Program {
    static BEGUN: OnceLock<()> = OnceLock::new();
    let booted = fake::boot();
    BEGUN.get_or_init(|| {
        let directory = tempfile::tempdir().expect("a directory");
        assert!(settings::begin_test(directory.path()), "nothing switches it off");
        mode::enable();
        identity::begin();
        by_hand::give_up(); // The tests must not arm real threads.
        assert!(shared_files::registry().is_some() && shared_files::datagrams().is_some());
        // The files are mapped, and need no name any more.
    });
    Program(booted)
}

impl Program {
    /// Opens both ends of a new connection: the connector's, and the acceptor's.
    pub(crate) fn connect(&self) -> [Socket; 2] {
        let [one, other] = fake::connection();
        let connector = Stream::fresh();
        connector.connected(one);
        open::install(one, Kind::Stream(connector));
        let acceptor = Stream::accepted(other, Some(false)).expect("it may leave TCP");
        open::install(other, Kind::Stream(acceptor));
        [one, other].map(|fd| Socket { fd })
    }

    /// Opens a connection, and sends bytes both ways until it is in memory.
    pub(crate) fn connect_in_memory(&self) -> [Socket; 2] {
        let ends = self.connect();
        for _ in 0..2 {
            for (from, to) in [(0, 1), (1, 0)] {
                assert_eq!(ends[from].send(b"w"), Ok(1));
                assert_eq!(ends[to].recv(1), Ok(b"w".to_vec()));
            }
        }
        assert!(ends.iter().all(Socket::is_in_memory));
        ends
    }
}

/// A TCP socket of the program.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) fd: RawFd,
}

impl Drop for Socket {
    fn drop(&mut self) {
        close(self.fd);
    }
}

/// Executes `close(2)`.
pub(crate) fn close(fd: RawFd) {
    forget(fd);
    fake::close(fd);
}

/// Does Weft's part of a close, before the kernel's.
pub(crate) fn forget(fd: RawFd) {
    match sockets::remove(fd) {
        Some(held) => {
            if held.watches().load(Ordering::Relaxed) > 0 {
                epoll::forget(&held);
            }
            match &*held {
                Kind::Stream(stream) => stream.closing(fd),
                Kind::Datagram(datagram) => datagram.closing(fd),
            }
        }
        None => epoll::closing(fd),
    }
}

/// Calls `act` with a stream of the program.
pub(crate) fn with_stream<R>(fd: RawFd, act: impl FnOnce(&Stream) -> R) -> R {
    with_stream_if_known(fd, act).expect("a socket of ours")
}

/// Does the same. `None`: TCP carries the connection for good, and Weft has forgotten it.
pub(crate) fn with_stream_if_known<R>(fd: RawFd, act: impl FnOnce(&Stream) -> R) -> Option<R> {
    let held = sockets::find(fd)?;
    let Kind::Stream(stream) = &*held else { panic!("no stream") };
    Some(act(stream))
}

/// Executes `recv(2)`.
pub(crate) fn recv(fd: RawFd, len: usize, flags: c_int) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; len];
    let received = {
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let buffers = Buffers::of(&mut slices);
        with_stream_if_known(fd, |stream| stream.recv(fd, buffers, flags))
            .flatten()
            .unwrap_or_else(|| Host::recv(Descriptor::of(fd).as_fd(), buffers, usize::MAX, flags))
    };
    bytes.truncate(received?);
    Ok(bytes)
}

/// Executes `send(2)`.
pub(crate) fn send(fd: RawFd, bytes: &[u8], flags: c_int) -> Result<usize, Errno> {
    let mut bytes = bytes.to_vec();
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let buffers = Buffers::of(&mut slices);
    with_stream_if_known(fd, |stream| stream.send(fd, buffers, flags))
        .flatten()
        .unwrap_or_else(|| Host::send(Descriptor::of(fd).as_fd(), buffers, flags))
}

/// Executes `shutdown(2)`.
pub(crate) fn shutdown(fd: RawFd, how: c_int) {
    with_stream_if_known(fd, |stream| stream.shutting(fd, how));
    fake::shutdown(fd, how);
}

impl Socket {
    pub(crate) fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        send(self.fd, bytes, 0)
    }

    pub(crate) fn recv(&self, len: usize) -> Result<Vec<u8>, Errno> {
        recv(self.fd, len, 0)
    }

    pub(crate) fn recv_with(&self, len: usize, flags: c_int) -> Result<Vec<u8>, Errno> {
        recv(self.fd, len, flags)
    }

    /// Executes `shutdown(2)`.
    pub(crate) fn shutdown(&self, how: c_int) {
        shutdown(self.fd, how);
    }

    /// Has the connection fall back to TCP, as the hooks do before a call that only the kernel can
    /// make.
    pub(crate) fn fall_back_to_tcp(&self) {
        with_stream(self.fd, |stream| {
            stream.fall_back_to_tcp(self.fd, crate::reason::Reason::Option)
        });
    }

    /// Returns whether memory carries both directions.
    pub(crate) fn is_in_memory(&self) -> bool {
        with_stream(self.fd, |stream| {
            stream.link().is_some_and(|end| {
                end.carrier_in() == Carrier::Memory && end.carrier_out() == Carrier::Memory
            })
        })
    }

    /// Returns whether memory carries the outgoing direction.
    pub(crate) fn is_in_memory_out(&self) -> bool {
        with_stream(self.fd, |it| it.link().is_some_and(|end| end.carrier_out() == Carrier::Memory))
    }

    /// Returns the events that `poll(2)` reports at once.
    pub(crate) fn ready(&self, events: c_short) -> c_short {
        let mut set = [pollfd { fd: self.fd, events, revents: 0 }];
        poll_all(&mut set, Some(0));
        set[0].revents
    }
}

/// Executes `poll(2)` with a limit in nanoseconds.
pub(crate) fn poll_all(set: &mut [pollfd], limit: Option<u64>) -> c_int {
    let kernel = |set: &mut [pollfd], limit: Option<u64>| {
        Host::poll_as_program(set, limit.map(crate::wait::timespec).as_ref())
    };
    poll::poll(set, limit, &mut { kernel }).unwrap_or_else(|| kernel(set, limit))
}

/// An epoll instance of the program.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) fd: RawFd,
}

impl Drop for Instance {
    fn drop(&mut self) {
        close(self.fd);
    }
}

impl Program {
    pub(crate) fn epoll(&self) -> Instance {
        let fd = fake::epoll();
        epoll::created(fd);
        Instance { fd }
    }
}

/// Executes `epoll_ctl(2)`.
pub(crate) fn control(
    epoll: RawFd,
    operation: c_int,
    fd: RawFd,
    events: c_int,
    data: u64,
) -> Result<(), Errno> {
    let event = Some(epoll_event { events: events.cast_unsigned(), u64: data });
    let done = epoll::control(epoll, operation, fd, event)
        .unwrap_or_else(|| Host::control(epoll, operation, fd, event));
    if done == 0 { Ok(()) } else { Err(errno::last()) }
}

/// Executes `epoll_wait(2)` with a limit in nanoseconds. Returns data and events.
pub(crate) fn wait(epoll: RawFd, limit: Option<u64>) -> Result<Vec<(u64, u32)>, Errno> {
    wait_for::<8>(epoll, limit)
}

/// Waits with a list of `N` events.
pub(crate) fn wait_for<const N: usize>(
    epoll: RawFd,
    limit: Option<u64>,
) -> Result<Vec<(u64, u32)>, Errno> {
    let mut events = fake::no_events::<N>();
    let found = epoll::wait(epoll, &mut events, limit, &mut |events, limit| {
        fake::wait_for_events(epoll, events, limit)
    });
    let found = found.unwrap_or_else(|| fake::wait_for_events(epoll, &mut events, limit));
    let found = usize::try_from(found).map_err(|_| errno::last())?;
    Ok(events[..found].iter().map(|event| (event.u64, event.events)).collect())
}

impl Instance {
    pub(crate) fn add(&self, socket: &Socket, events: c_int, data: u64) -> Result<(), Errno> {
        control(self.fd, libc::EPOLL_CTL_ADD, socket.fd, events, data)
    }

    pub(crate) fn modify(&self, socket: &Socket, events: c_int, data: u64) -> Result<(), Errno> {
        control(self.fd, libc::EPOLL_CTL_MOD, socket.fd, events, data)
    }

    pub(crate) fn delete(&self, socket: &Socket) -> Result<(), Errno> {
        control(self.fd, libc::EPOLL_CTL_DEL, socket.fd, 0, 0)
    }

    /// Returns the events that the instance reports at once.
    pub(crate) fn now(&self) -> Vec<(u64, u32)> {
        wait(self.fd, Some(0)).expect("events")
    }
}

/// A UDP socket of the program, bound to a port of its own.
#[derive(Debug)]
pub(crate) struct UdpSocket {
    pub(crate) fd: RawFd,
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        close(self.fd);
    }
}

impl Program {
    pub(crate) fn udp_socket(&self) -> UdpSocket {
        let fd = fake::datagram_socket();
        let datagram = Datagram::fresh(false);
        datagram.bound();
        open::install(fd, Kind::Datagram(datagram));
        UdpSocket { fd }
    }
}

/// Executes `sendto(2)`.
pub(crate) fn send_to(fd: RawFd, to: RawFd, bytes: &[u8]) -> Result<usize, Errno> {
    let [to, _] = fake::addresses(to);
    let mut copy = bytes.to_vec();
    let mut slices = [IoSliceMut::new(&mut copy)];
    let buffers = Buffers::of(&mut slices);
    let sent = with_datagram(fd, |datagram| datagram.send(fd, Some(to), buffers, 0));
    sent.unwrap_or_else(|| fake::send_to(fd, to, bytes))
}

/// Calls `act` with a UDP socket of the program.
pub(crate) fn with_datagram<R>(fd: RawFd, act: impl FnOnce(&Datagram) -> R) -> R {
    let held = sockets::find(fd).expect("a socket of ours");
    let Kind::Datagram(datagram) = &*held else { panic!("no UDP socket") };
    act(datagram)
}

/// Executes `recvfrom(2)`. Returns the sender's port and the bytes.
pub(crate) fn recv_from(fd: RawFd, flags: c_int) -> Result<(u16, Vec<u8>), Errno> {
    let mut bytes = [0; 2_048];
    let mut by_kernel = None;
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let received = with_datagram(fd, |datagram| {
        datagram.receive(fd, Buffers::of(&mut slices), flags, &mut |flags| match fake::recv_from(
            fd, flags,
        ) {
            Ok((from, bytes)) => {
                let len = bytes.len().cast_signed();
                by_kernel = Some((from.port(), bytes));
                len
            }
            Err(error) => errno::fail(error) as libc::ssize_t,
        })
    });
    match received {
        Received::Kernel(..0) => Err(errno::last()),
        Received::Kernel(_) => Ok(by_kernel.expect("it has received")),
        Received::Memory(arrival) => Ok((arrival.from.port(), bytes[..arrival.len].to_vec())),
    }
}

impl UdpSocket {
    pub(crate) fn port(&self) -> u16 {
        fake::addresses(self.fd)[0].port()
    }

    pub(crate) fn send(&self, to: &Self, bytes: &[u8]) -> Result<usize, Errno> {
        send_to(self.fd, to.fd, bytes)
    }

    pub(crate) fn recv(&self) -> Result<(u16, Vec<u8>), Errno> {
        recv_from(self.fd, 0)
    }

    pub(crate) fn recv_now(&self) -> Result<(u16, Vec<u8>), Errno> {
        recv_from(self.fd, libc::MSG_DONTWAIT)
    }

    /// Returns how many datagrams the socket has received through memory.
    pub(crate) fn received_through_memory(&self) -> u64 {
        with_datagram(self.fd, |it| it.known_inbox().map_or(0, Inbox::received))
    }
}
