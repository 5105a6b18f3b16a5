//! Tests that unread bytes go back to the kernel when an end falls back: a reader without Weft gets
//! the whole stream, whatever the peer sends meanwhile. If the process is killed during the
//! fallback, the other processes get all bytes or a reset.
//!
//! # Safety
//! `ptrace` stops and ends a child of this test's; it names no memory of this process.
#![allow(unsafe_code)]

use std::io::{ErrorKind, IoSliceMut, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::sockopt;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};
use weft_stream::{Carrier, End, Flow, Process, RecvOptions, Registry, Tuple};
use weft_sys::{Buffers, network_namespace};

/// Environment variables by which a child finds the registry and its socket.
const DIRECTORY: &str = "WEFT_TEST_PUT_BACK";
const SOCKET: &str = "WEFT_TEST_PUT_BACK_SOCKET";
const PERIOD: usize = 251;
/// Bytes that go over TCP before memory is used.
const FIRST_LEN: usize = 5_000;
/// Bytes in memory, enough for several sends.
const RING_LEN: usize = 30_000;
/// Bytes that the peer sends afterwards.
const LAST_LEN: usize = 700;
const ALL_LEN: usize = FIRST_LEN + RING_LEN + LAST_LEN;
const WAIT: Duration = Duration::from_secs(240);

fn pattern(at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|at| (at % PERIOD) as u8).collect()
}

/// What is unread when the end falls back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unread {
    /// Bytes in memory only.
    Ring,
    /// Bytes of the first TCP phase, and behind them in the kernel's queue a wakeup, which is not
    /// data.
    FirstPhase,
}

struct Side {
    socket: TcpStream,
    end: End,
}

impl Side {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let mut bytes = bytes.to_vec();
        let flags = libc::MSG_NOSIGNAL;
        self.end.try_send(self.fd(), Buffers::of(&mut [IoSliceMut::new(&mut bytes)]), flags)
    }

    fn recv(&self, bytes: &mut [u8]) -> Result<usize, Errno> {
        let options = RecvOptions { look: true, ..RecvOptions::default() };
        self.end.try_recv(self.fd(), Buffers::of(&mut [IoSliceMut::new(bytes)]), options)
    }
}

/// A connection whose falling end other processes share: this process has the peer, and also holds
/// the end that falls back.
struct Connection {
    peer: Side,
    sharer: Side,
    directory: tempfile::TempDir,
}

fn registry(directory: &Path) -> &'static Registry {
    Box::leak(Box::new(Registry::open(directory).expect("a registry")))
}

fn me(socket: &TcpStream) -> Process {
    let cookie = sockopt::socket_cookie(socket).expect("a number");
    let fd = socket.as_raw_fd().unsigned_abs();
    Process { pid: std::process::id(), fd, cookie, program: [0; 16] }
}

impl Connection {
    /// Makes a connection on which everything sent is unread: `FIRST_LEN` and `RING_LEN` bytes from
    /// the peer, and one byte from the other end.
    fn new(unread: Unread, flow: Flow) -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let peer = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (socket, _) = listener.accept().expect("accepted");
        let own = peer.local_addr().expect("connected");
        let there = peer.peer_addr().expect("connected");
        let tuple = Tuple::new(own, there).in_namespace(network_namespace(&peer));
        let offered = registry(directory.path());
        let end = End::offer(offered, &tuple, &me(&peer), flow).expect("room");
        let peer = Side { socket: peer, end };
        let end = End::find(registry(directory.path()), &tuple, &me(&socket), (0, 0));
        let sharer = Side { socket, end: end.expect("offered") };
        for side in [&peer, &sharer] {
            side.socket.set_nodelay(true).expect("an option");
            side.socket.set_read_timeout(Some(WAIT)).expect("an option");
        }
        // Sent before both ends have agreed.
        assert_eq!(peer.send(&pattern(0, FIRST_LEN)), Ok(FIRST_LEN));
        if unread == Unread::Ring {
            let mut first = vec![0; FIRST_LEN];
            assert_eq!(sharer.recv(&mut first), Ok(FIRST_LEN));
        }
        for side in [&sharer, &peer, &sharer] {
            side.end.advance(side.fd());
        }
        sharer.end.begin_sleep();
        assert_eq!(peer.send(&pattern(FIRST_LEN, RING_LEN)), Ok(RING_LEN));
        sharer.end.end_sleep();
        assert_eq!(sharer.send(b"x"), Ok(1));
        assert_eq!(peer.end.carrier_in(), Carrier::Memory);
        assert_eq!(peer.end.carrier_out(), Carrier::Memory);
        Self { peer, sharer, directory }
    }

    /// The position of the first unread byte.
    fn start(unread: Unread) -> usize {
        if unread == Unread::Ring { FIRST_LEN } else { 0 }
    }

    /// Starts a child that holds the end, too, and falls back. With `traced` this process stops it
    /// before.
    fn leaver(&self, traced: bool) -> Child {
        let fd = self.sharer.socket.as_raw_fd();
        fcntl_setfd(self.sharer.fd(), FdFlags::empty()).expect("a descriptor");
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.env(DIRECTORY, self.directory.path()).env(SOCKET, fd.to_string());
        if traced {
            // SAFETY: between `fork` and `exec` the closure makes one system call, which is
            // async-signal-safe, and allocates nothing.
            unsafe { command.pre_exec(be_traced) };
        }
        command.spawn().expect("a child")
    }

    /// Reads by the kernel's calls, like a program without Weft.
    fn read_as_others(&self, from: usize, len: usize) {
        let mut got = vec![0; len];
        let mut socket = &self.sharer.socket;
        socket.read_exact(&mut got).expect("the whole stream");
        assert!(got == pattern(from, len), "other bytes");
    }
}

/// Lets the parent trace this process.
fn be_traced() -> std::io::Result<()> {
    let none: *mut libc::c_void = null_mut();
    // SAFETY: `PTRACE_TRACEME` ignores its other arguments, so it touches no memory.
    match unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, none, none) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// A child runs this before `main`, so it has one thread and runs no tests.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    if let (Some(directory), Some(socket)) = (std::env::var_os(DIRECTORY), std::env::var_os(SOCKET))
    {
        let socket = socket.to_str().and_then(|fd| fd.parse().ok()).expect("a number");
        fall_back_to_tcp(Path::new(&directory), socket);
    }
}

/// Falls back, in the child.
fn fall_back_to_tcp(directory: &Path, socket: RawFd) -> ! {
    // SAFETY: the parent has left this descriptor open for this process, and nothing else here owns
    // or uses the number.
    let socket = unsafe { <TcpStream as std::os::fd::FromRawFd>::from_raw_fd(socket) };
    let ends = (socket.local_addr().expect("own"), socket.peer_addr().ok());
    let numbers = (network_namespace(&socket), me(&socket).cookie);
    let end: Option<End> = End::inherited(registry(directory), ends, numbers, std::process::id());
    let end = end.expect("the parent's connection");
    kill_process(rustix::process::getpid(), Signal::STOP).expect("a signal");
    end.fall_back_to_tcp(socket.as_fd());
    std::process::exit(0);
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Waits until the child has stopped or ended.
fn wait(child: &Child) -> WaitStatus {
    waitpid(Some(pid(child)), WaitOptions::UNTRACED).expect("a child").expect("it waits").1
}

fn go_on(child: &Child, request: libc::c_uint) {
    let none: *mut libc::c_void = null_mut();
    // SAFETY: the child is stopped, and with null pointers these requests touch no memory of this
    // process.
    let done = unsafe { libc::ptrace(request, pid(child).as_raw_nonzero().get(), none, none) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// Runs the traced child up to the point where it is about to fall back.
fn until_it_leaves(child: &Child) {
    while wait(child).stopping_signal() != Some(Signal::STOP.as_raw()) {
        go_on(child, libc::PTRACE_CONT);
    }
}

#[test]
fn kernel_has_the_whole_stream_after_falling_back() {
    for flow in Flow::ALL {
        for unread in [Unread::Ring, Unread::FirstPhase] {
            let connection = Connection::new(unread, flow);
            let mut child = connection.leaver(false);
            assert!(wait(&child).stopped());
            kill_process(pid(&child), Signal::CONT).expect("a signal");
            assert!(child.wait().expect("a child").success());
            let Connection { peer, sharer, .. } = &connection;
            assert_eq!([peer.end.carrier_in(), sharer.end.carrier_in()], [Carrier::Tcp; 2]);
            assert_eq!(peer.send(&pattern(FIRST_LEN + RING_LEN, LAST_LEN)), Ok(LAST_LEN));
            let start = Connection::start(unread);
            connection.read_as_others(start, ALL_LEN - start);
            let mut byte = [0; 2];
            assert_eq!((&peer.socket).read(&mut byte).expect("one byte"), 1, "{unread:?}");
            assert_eq!(byte[0], b'x');
        }
    }
}

/// Does the same while the peer sends and receives all the time.
#[test]
fn bytes_sent_while_the_end_falls_back_come_behind() {
    const LEN: usize = 3_000_000;
    for _ in 0..12 {
        let connection = Connection::new(Unread::Ring, Flow::Packed);
        let peer = &connection.peer;
        let leaves = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut sent = FIRST_LEN + RING_LEN;
                while sent < LEN {
                    match peer.send(&pattern(sent, 997.min(LEN - sent))) {
                        Ok(more) => sent += more,
                        Err(Errno::AGAIN) => std::thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                    // Send most of it while the child falls back.
                    let limit = Instant::now() + WAIT;
                    while sent > LEN / 6 && !leaves.load(Ordering::Acquire) {
                        assert!(Instant::now() < limit, "the child does not leave");
                        std::thread::yield_now();
                    }
                }
            });
            let mut child = connection.leaver(false);
            assert!(wait(&child).stopped());
            leaves.store(true, Ordering::Release);
            kill_process(pid(&child), Signal::CONT).expect("a signal");
            assert!(child.wait().expect("a child").success());
            connection.read_as_others(FIRST_LEN, LEN - FIRST_LEN);
        });
    }
}

/// Bytes left in memory are put back before those that the peer has sent by TCP since.
#[test]
fn bytes_left_in_memory_are_put_back_before_later_bytes() {
    for flow in Flow::ALL {
        for unread in [Unread::Ring, Unread::FirstPhase] {
            let connection = Connection::new(unread, flow);
            let (peer, own) = (&connection.peer, &connection.sharer);
            own.end.fall_back_unread(own.fd());
            assert_eq!(peer.send(&pattern(FIRST_LEN + RING_LEN, LAST_LEN)), Ok(LAST_LEN));
            assert!(!own.end.is_over());
            own.end.put_back_rest(own.fd());
            assert!(own.end.is_over(), "{unread:?}");
            let start = Connection::start(unread);
            connection.read_as_others(start, ALL_LEN - start);
        }
    }
}

/// Bytes for which the kernel has no room stay in memory, and are read between those that it has
/// and those that are sent later.
#[test]
fn bytes_that_the_kernel_does_not_take_stay_in_memory() {
    let connection = Connection::new(Unread::Ring, Flow::Packed);
    let Connection { peer, sharer, .. } = &connection;
    peer.socket.set_nonblocking(true).expect("an option");
    sockopt::set_socket_send_buffer_size(&peer.socket, 1).expect("an option");
    sockopt::set_socket_recv_buffer_size(&sharer.socket, 1).expect("an option");
    const LEN: usize = 500_000;
    let mut sent = FIRST_LEN + RING_LEN;
    while sent < LEN {
        sent += peer.send(&pattern(sent, 10_000.min(LEN - sent))).expect("room in memory");
    }
    sharer.end.fall_back_to_tcp(sharer.fd());
    assert_eq!(peer.end.carrier_in(), Carrier::Tcp);
    assert!(!sharer.end.is_over(), "not all of it fits");
    let mut read = FIRST_LEN;
    let all = sent + LAST_LEN;
    while read < all {
        let mut bytes = [0; 7_000];
        match sharer.recv(&mut bytes) {
            Ok(more) => {
                assert!(bytes[..more] == pattern(read, more), "other bytes from {read} on");
                read += more;
            }
            Err(error) => assert_eq!(error, Errno::AGAIN),
        }
        if sent < all {
            match (&peer.socket).write(&pattern(sent, all - sent)) {
                Ok(more) => sent += more,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }
    assert!(sharer.end.is_over());
}

/// Continues a connection after a child was killed while falling back. Returns what became of the
/// stream.
fn go_on_after(connection: &Connection, unread: Unread) -> &'static str {
    let Connection { peer, sharer, .. } = connection;
    let mut read = Connection::start(unread);
    let mut sent = FIRST_LEN + RING_LEN;
    while read < ALL_LEN {
        let mut bytes = [0; 4_000];
        let is_all_sent = sent == ALL_LEN;
        match sharer.recv(&mut bytes) {
            Ok(0) | Err(Errno::CONNRESET) => {
                let sent = peer.send(b"?");
                assert!(matches!(sent, Err(Errno::CONNRESET | Errno::PIPE)), "{sent:?}");
                return "reset";
            }
            Ok(more) => {
                assert!(bytes[..more] == pattern(read, more), "other bytes from {read} on");
                read += more;
            }
            Err(Errno::AGAIN) if is_all_sent => panic!("{} bytes are missing", ALL_LEN - read),
            Err(Errno::AGAIN) => match peer.send(&pattern(sent, ALL_LEN - sent)) {
                Ok(more) => sent += more,
                Err(Errno::CONNRESET | Errno::PIPE) => return "reset",
                Err(error) => panic!("{error}"),
            },
            Err(error) => panic!("{error}"),
        }
    }
    "whole"
}

#[test]
fn process_killed_at_any_step_of_falling_back_loses_no_byte_unnoticed() {
    fastrand::seed(1);
    for unread in [Unread::Ring, Unread::FirstPhase] {
        let mut outcomes = Vec::new();
        let mut ended = false;
        let mut stops = 0;
        while !ended {
            let connection = Connection::new(unread, Flow::Packed);
            let mut child = connection.leaver(true);
            until_it_leaves(&child);
            // Stop before and after each system call, and some instructions later.
            let calls = std::iter::repeat_n(libc::PTRACE_SYSCALL, stops);
            let instructions =
                std::iter::repeat_n(libc::PTRACE_SINGLESTEP, fastrand::usize(0..300));
            for request in calls.chain(instructions) {
                go_on(&child, request);
                ended = !wait(&child).stopped();
                if ended {
                    break;
                }
            }
            if !ended {
                kill_process(pid(&child), Signal::KILL).expect("a child");
            }
            // A child that has been waited for has no status any more.
            let status = child.wait();
            assert!(ended || status.is_ok_and(|it| it.signal() == Some(libc::SIGKILL)));
            outcomes.push(go_on_after(&connection, unread));
            stops += 1;
        }
        assert!(stops > 40, "{stops}: each of them is a step");
        assert_eq!(outcomes.first(), Some(&"whole"), "{unread:?}: before anything was done");
        assert_eq!(outcomes.last(), Some(&"whole"), "{unread:?}: when all was done");
        assert!(outcomes.contains(&"reset"), "{unread:?}: in the middle");
    }
}
