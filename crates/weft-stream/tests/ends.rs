//! Both ends of a connection against a model: the bytes of each direction arrive in order, whatever
//! the ends do, and whenever they agree, fall back, shut down or close.

use std::io::IoSliceMut;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use weft_stream::{Carrier, End, Flow, Process, RecvOptions, Registry, Tuple};
use weft_sys::Buffers;
use weft_testing::seeds::cases;

/// `MSG_NOSIGNAL`.
const NOSIGNAL: i32 = 0x4000;
/// Bytes in TCP at a time. The kernel delivers that many at once, whatever its windows are.
const ON_TCP_MAX: usize = 24 << 10;
const LEN_MAX: usize = 3 << 20;
const PERIOD: usize = 251;

/// The mappings of one registry in two processes.
fn registries() -> [&'static Registry; 2] {
    static BOTH: OnceLock<[Registry; 2]> = OnceLock::new();
    let both = BOTH.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a directory");
        [(); 2].map(|()| Registry::open(dir.path()).expect("a registry"))
    });
    [&both[0], &both[1]]
}

/// Bytes that encode their position in a stream.
fn pattern(at: usize, len: usize) -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let bytes = BYTES.get_or_init(|| (0..PERIOD + LEN_MAX).map(|at| (at % PERIOD) as u8).collect());
    &bytes[at % PERIOD..][..len]
}

fn process(cookie: u64) -> Process {
    Process { pid: std::process::id(), fd: 0, cookie, program: *b"ends\0\0\0\0\0\0\0\0\0\0\0\0" }
}

/// Both sockets of a TCP connection.
fn connected() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (server, _) = listener.accept().expect("accepted");
    for socket in [&client, &server] {
        socket.set_nonblocking(true).expect("an option");
        socket.set_nodelay(true).expect("an option");
    }
    [client, server]
}

fn is_readable(socket: BorrowedFd<'_>) -> bool {
    let mut set = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    poll(&mut set, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("an answer") > 0
}

#[derive(Clone, Debug)]
enum Step {
    /// The acceptor looks for the offer.
    Find,
    Advance,
    Send {
        len: usize,
        cut: usize,
    },
    Recv {
        len: usize,
        cut: usize,
        keep: bool,
        discard: bool,
        look: bool,
    },
    Drain,
    Sleep,
    WantRoom,
    Settle {
        may_have_ended: bool,
    },
    DrainWakeups,
    Acknowledge,
    Leave,
    ShutWrite,
    Close,
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![
        6 => 1..100_usize,
        4 => 1..20_000_usize,
        1 => 1..300_000_usize,
        1 => 1..LEN_MAX,
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let cut = 0..1_000_usize;
    let recv =
        (len(), cut.clone(), 0..6_u8, any::<bool>()).prop_map(|(len, cut, options, look)| {
            Step::Recv { len, cut, keep: options == 0, discard: options == 1, look }
        });
    prop_oneof![
        6 => Just(Step::Find),
        12 => Just(Step::Advance),
        80 => (len(), cut).prop_map(|(len, cut)| Step::Send { len, cut }),
        80 => recv,
        15 => Just(Step::Drain),
        30 => Just(Step::Sleep),
        20 => Just(Step::WantRoom),
        15 => any::<bool>().prop_map(|may_have_ended| Step::Settle { may_have_ended }),
        6 => Just(Step::DrainWakeups),
        6 => Just(Step::Acknowledge),
        3 => Just(Step::Leave),
        2 => Just(Step::ShutWrite),
        1 => Just(Step::Close),
    ]
}

/// One side: its socket and end, and the model's state.
struct Side {
    socket: Option<TcpStream>,
    end: Option<End>,
    /// Bytes that this side has sent, and of them those that the other side has received.
    sent: usize,
    received: usize,
    /// Bytes sent and received before it had an end.
    before: (u64, u64),
    asleep: bool,
    wants_room: bool,
    has_shut: bool,
    has_fallen_back: bool,
    closed: bool,
    /// The side may get a reset, or has got one.
    reset_is_due: bool,
}

impl Side {
    fn new(socket: TcpStream) -> Self {
        Self {
            socket: Some(socket),
            end: None,
            sent: 0,
            received: 0,
            before: (0, 0),
            asleep: false,
            wants_room: false,
            has_shut: false,
            has_fallen_back: false,
            closed: false,
            reset_is_due: false,
        }
    }

    fn unread(&self) -> usize {
        self.sent - self.received
    }

    fn carrier_out(&self) -> Carrier {
        self.end.map_or(Carrier::Tcp, |end| end.carrier_out())
    }

    fn wake(&mut self) {
        if std::mem::take(&mut self.asleep) {
            self.end.expect("it slept").end_sleep();
        }
    }
}

struct Pair {
    tuple: Tuple,
    sides: [Side; 2],
}

impl Pair {
    fn new(flow: Flow) -> Self {
        let [client, server] = connected();
        let own = client.local_addr().expect("connected");
        let peer = client.peer_addr().expect("connected");
        let tuple = Tuple::new(own, peer);
        let end = End::offer(registries()[0], &tuple, &process(1), flow).expect("room");
        let mut sides = [client, server].map(Side::new);
        sides[0].end = Some(end);
        Self { tuple, sides }
    }

    fn apply(&mut self, at: usize, step: &Step) -> Result<(), TestCaseError> {
        if self.sides[at].closed {
            return Ok(());
        }
        let Some(end) = self.sides[at].end else {
            return self.apply_without_end(at, step);
        };
        let socket = self.sides[at].socket.as_ref().expect("open").try_clone().expect("a copy");
        let fd = socket.as_fd();
        match *step {
            Step::Find => {}
            Step::Advance => end.advance(fd),
            Step::Send { len, cut } => self.send(at, len, cut)?,
            Step::Recv { len, cut, keep, discard, look } if !self.sides[at].asleep => {
                let options =
                    RecvOptions { keep, discard: discard && !keep, look, has_part: false };
                self.recv(at, len, cut, options).map(drop)?;
            }
            Step::Drain if !self.sides[at].asleep => self.drain(at)?,
            Step::Sleep if !self.sides[at].asleep => {
                end.begin_sleep();
                self.sides[at].asleep = true;
                if self.recv(at, 1, 0, RecvOptions { look: true, ..RecvOptions::default() })?
                    != Err(Errno::AGAIN)
                {
                    self.sides[at].wake();
                }
            }
            Step::WantRoom => {
                end.want_room();
                self.sides[at].wants_room = !end.is_writable();
            }
            Step::Settle { may_have_ended } if !self.sides[at].asleep => {
                let ended = end.settle(fd, may_have_ended, 0);
                self.sides[at].wants_room = false;
                let peer = &self.sides[1 - at];
                match ended {
                    Ok(true) => prop_assert!(peer.has_shut || peer.closed, "ended"),
                    Ok(false) => {}
                    Err(error) => {
                        prop_assert!(self.sides[at].reset_is_due, "settle: {error}");
                    }
                }
            }
            Step::DrainWakeups if !self.sides[at].asleep => {
                end.drain_wakeups(fd);
                self.sides[at].wants_room = false;
            }
            Step::Acknowledge => end.acknowledge(fd),
            Step::Leave => self.fall_back_to_tcp(at)?,
            Step::ShutWrite => {
                end.put_back_own(fd);
                self.sides[at].has_fallen_back |= end.has_fallen_back();
                end.shut_write();
                let _ = socket.shutdown(Shutdown::Write);
                self.sides[at].has_shut = true;
            }
            Step::Close => {
                drop(socket);
                self.close(at);
            }
            _ => {} // The side sleeps.
        }
        Ok(())
    }

    /// Applies a step to an acceptor that has not found the offer yet.
    fn apply_without_end(&mut self, at: usize, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Find => {
                let before = self.sides[at].before;
                let end = End::find(registries()[1], &self.tuple, &process(2), before);
                prop_assert!(end.is_some() || self.sides[1 - at].closed, "not offered");
                self.sides[at].end = end;
            }
            Step::Send { len, cut } if !self.sides[at].reset_is_due => self.send(at, len, cut)?,
            Step::Recv { len, cut, .. } if !self.sides[at].reset_is_due => {
                self.recv(at, len, cut, RecvOptions::default()).map(drop)?;
            }
            Step::Close => self.close(at),
            _ => {}
        }
        Ok(())
    }

    fn send(&mut self, at: usize, len: usize, cut: usize) -> Result<(), TestCaseError> {
        let peer_closed = self.sides[1 - at].closed;
        let side = &mut self.sides[at];
        let mut len = len;
        if side.carrier_out() == Carrier::Tcp && !peer_closed {
            len = len.min(ON_TCP_MAX.saturating_sub(side.unread()));
            if len == 0 {
                return Ok(());
            }
        }
        let mut bytes = pattern(side.sent, len).to_vec();
        let (first, second) = bytes.split_at_mut(cut.min(len));
        let slices = &mut [IoSliceMut::new(first), IoSliceMut::new(second)];
        let buffers = Buffers::of(slices);
        let fd = side.socket.as_ref().expect("open").as_fd();
        let sent = match side.end {
            Some(end) => end.try_send(fd, buffers, NOSIGNAL),
            None => buffers.send(fd, NOSIGNAL),
        };
        side.reset_is_due |= peer_closed;
        match sent {
            Ok(sent) => {
                prop_assert!(0 < sent && sent <= len, "{sent} of {len}");
                prop_assert!(!side.has_shut, "sent after the end");
                side.sent += sent;
                if side.end.is_none() {
                    side.before.0 += sent as u64;
                }
            }
            Err(Errno::AGAIN) => {
                prop_assert!(peer_closed || side.unread() > 0, "empty and full");
            }
            Err(error @ (Errno::PIPE | Errno::CONNRESET)) => {
                let known = side.has_shut || peer_closed || side.reset_is_due;
                prop_assert!(known, "send: {error}");
            }
            Err(error) => prop_assert!(false, "send: {error}"),
        }
        Ok(())
    }

    /// Falls back. Afterwards nothing is in memory, unless the other side has shut down or closed,
    /// so that the kernel sends nothing for it any more.
    fn fall_back_to_tcp(&mut self, at: usize) -> Result<(), TestCaseError> {
        let side = &mut self.sides[at];
        let end = side.end.expect("it leaves");
        let leaves = !end.has_fallen_back();
        end.fall_back_to_tcp(side.socket.as_ref().expect("open").as_fd());
        side.has_fallen_back = true;
        for reader in [at, 1 - at] {
            let [side, writer] = [&self.sides[reader], &self.sides[1 - reader]];
            let Some(end) = side.end.filter(|_| leaves && !side.closed) else { continue };
            let may_send = !writer.closed && !writer.has_shut && !side.closed;
            if may_send && !self.sides.iter().any(|side| side.reset_is_due) {
                prop_assert_eq!(end.unread(), 0, "left in memory");
                prop_assert_eq!(end.carrier_in(), Carrier::Tcp);
            }
        }
        Ok(())
    }

    fn recv(
        &mut self,
        at: usize,
        len: usize,
        cut: usize,
        options: RecvOptions,
    ) -> Result<Result<usize, Errno>, TestCaseError> {
        let mut bytes = vec![0; len];
        let (first, second) = bytes.split_at_mut(cut.min(len));
        let slices = &mut [IoSliceMut::new(first), IoSliceMut::new(second)];
        let buffers = Buffers::of(slices);
        let [first_side, second_side] = &mut self.sides;
        let (side, peer) =
            if at == 0 { (first_side, second_side) } else { (second_side, first_side) };
        let fd = side.socket.as_ref().expect("open").as_fd();
        let result = match side.end {
            Some(end) => end.try_recv(fd, buffers, options),
            None => buffers.recv(fd, 0),
        };
        side.wants_room = false; // This call may have taken the wakeup.
        match result {
            Ok(0) => {
                prop_assert!(peer.has_shut || peer.closed, "ended");
                prop_assert!(peer.unread() == 0 || side.reset_is_due, "ended early");
            }
            Ok(got) => {
                prop_assert!(got <= len.min(peer.unread()), "{got} of {}", peer.unread());
                if !options.discard {
                    let expected = pattern(peer.received, got);
                    prop_assert!(bytes[..got] == *expected, "other bytes");
                }
                if !options.keep {
                    peer.received += got;
                    if side.end.is_none() {
                        side.before.1 += got as u64;
                    }
                }
            }
            Err(Errno::AGAIN) => {
                prop_assert!(peer.unread() == 0 || side.reset_is_due, "{} unread", peer.unread());
                let ended = (peer.has_shut || peer.closed) && options.look;
                prop_assert!(!ended || side.reset_is_due, "the end is not reported");
            }
            Err(error) => prop_assert!(side.reset_is_due, "recv: {error}"),
        }
        Ok(result)
    }

    /// Receives everything that is there.
    fn drain(&mut self, at: usize) -> Result<(), TestCaseError> {
        let options = RecvOptions { look: true, ..RecvOptions::default() };
        while self.recv(at, LEN_MAX, 0, options)?.is_ok_and(|got| got > 0) {}
        Ok(())
    }

    /// Closes like the sockets library.
    fn close(&mut self, at: usize) {
        let unread = self.sides[1 - at].unread() > 0;
        let side = &mut self.sides[at];
        side.wake();
        let socket = side.socket.take().expect("open");
        if let Some(end) = side.end {
            let in_memory = end.unread() > 0;
            end.put_back_own(socket.as_fd());
            side.has_fallen_back |= end.has_fallen_back();
            end.part();
            end.drain_wakeups(socket.as_fd());
            if end.release(std::process::id()) && in_memory {
                let _ = sockopt::set_socket_linger(socket.as_fd(), Some(Duration::ZERO));
            }
        }
        side.closed = true;
        self.sides[1 - at].reset_is_due |= unread;
    }

    /// Checks that every thread that has to wake has been woken, and that the ends report their
    /// true state.
    fn check(&mut self) -> Result<(), TestCaseError> {
        for at in 0..2 {
            let [first, second] = &mut self.sides;
            let (side, peer) = if at == 0 { (first, second) } else { (second, first) };
            let (Some(end), Some(socket)) = (side.end, side.socket.as_ref()) else { continue };
            let woken = is_readable(socket.as_fd());
            if side.asleep && (peer.unread() > 0 || peer.has_shut || peer.closed) {
                prop_assert!(woken, "{at} sleeps on {} bytes", peer.unread());
                side.wake();
            }
            let may = side.carrier_out() == Carrier::Memory
                && end.is_writable()
                && end.can_be_woken()
                && !peer.closed;
            if side.wants_room && may {
                prop_assert!(woken, "{at} waits for room");
                side.wants_room = false;
            }
            if !side.reset_is_due {
                prop_assert!(end.unread() <= peer.unread(), "more than was sent");
                prop_assert!(end.unsent() <= side.unread(), "more than was sent");
                let all = end.carrier_in() == Carrier::Memory
                    && !peer.has_fallen_back
                    && !side.has_fallen_back;
                prop_assert!(!all || end.unread() == peer.unread(), "not everything is reported");
            }
        }
        Ok(())
    }

    fn run(&mut self, steps: &[(bool, Step)]) -> Result<(), TestCaseError> {
        for (at, step) in steps {
            self.apply(usize::from(*at), step)?;
            self.check()?;
        }
        for at in 0..2 {
            if !self.sides[at].closed {
                self.sides[at].wake();
                self.drain(at)?;
            }
        }
        Ok(())
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for at in 0..2 {
            if !self.sides[at].closed {
                self.close(at);
            }
        }
    }
}

/// The registries are one for all tests of this process, and a case counts what is in them: a
/// test that has connections holds this.
fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs one case. All connections are over at its end, so that the registry is empty again.
fn follows_the_model(flow: Flow, steps: &[(bool, Step)]) -> Result<(), TestCaseError> {
    let _alone = alone();
    let in_use = || registries().map(|registry| registry.in_use());
    let before = in_use();
    let mut pair = Pair::new(flow);
    // In most cases the ends agree early.
    if !steps.len().is_multiple_of(8) {
        pair.apply(1, &Step::Find)?;
        for at in [1, 0, 1] {
            pair.apply(at, &Step::Advance)?;
        }
    }
    pair.run(steps)?;
    drop(pair);
    prop_assert_eq!(in_use(), before);
    Ok(())
}

fn steps() -> impl Strategy<Value = Vec<(bool, Step)>> {
    prop::collection::vec((any::<bool>(), step()), 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases(64))
    })]

    #[test]
    fn packed_streams_follow_the_model(steps in steps()) {
        follows_the_model(Flow::Packed, &steps)?;
    }

    #[test]
    fn streams_under_credits_follow_the_model(steps in steps()) {
        follows_the_model(Flow::Credit, &steps)?;
    }
}

/// Another thread may close the descriptor during a call, and its number may then refer to another
/// file. The call's error must not affect the connection.
#[test]
fn call_on_a_descriptor_of_another_file_does_not_affect_the_connection() {
    let _alone = alone();
    let [registry, other_registry] = registries();
    let [client, server] = connected();
    let ends = client.local_addr().and_then(|own| Ok((own, client.peer_addr()?)));
    let (own, peer) = ends.expect("connected");
    let tuple = Tuple::new(own, peer);
    let offered = End::offer(registry, &tuple, &process(1), Flow::Packed).expect("room");
    let found: End = End::find(other_registry, &tuple, &process(2), (0, 0)).expect("offered");
    found.advance(server.as_fd());
    offered.advance(client.as_fd());
    found.advance(server.as_fd());
    let look = RecvOptions { keep: false, discard: false, look: true, has_part: false };
    let recv = |end: &End, socket: BorrowedFd<'_>| {
        let mut bytes = [0; 8];
        end.try_recv(socket, Buffers::of(&mut [IoSliceMut::new(&mut bytes)]), look)
    };
    let send = |end: &End, socket: BorrowedFd<'_>| {
        end.try_send(socket, Buffers::of(&mut [IoSliceMut::new(&mut b"bytes".to_vec())]), NOSIGNAL)
    };
    let (pipe, _writer) = rustix::pipe::pipe().expect("a pipe");
    assert_eq!(recv(&offered, pipe.as_fd()), Err(Errno::NOTSOCK));
    found.begin_sleep();
    assert_eq!(send(&offered, pipe.as_fd()), Ok(5), "the bytes are in memory, and no wakeup is");
    found.end_sleep();
    assert_eq!(offered.carrier_out(), Carrier::Memory);
    found.begin_sleep();
    assert_eq!(send(&offered, client.as_fd()), Ok(5));
    assert!(is_readable(server.as_fd()), "it is woken by the next");
    found.end_sleep();
    assert_eq!(recv(&found, server.as_fd()), Ok(8));
    assert_eq!(recv(&found, server.as_fd()), Ok(2));
    for (end, socket) in [(&offered, &client), (&found, &server)] {
        assert_eq!(recv(end, socket.as_fd()), Err(Errno::AGAIN));
        end.release(std::process::id());
    }
}
