//! The system calls of the fake kernel.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use libc::{c_int, epoll_event, pollfd};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::time::Timespec;
use weft_stream::{End, Fetch, Holder, PutBack, Registry, Tuple};
use weft_sys::{Buffers, FutexWord, Linux, Threads};

use super::Fake;
use super::host::with;
use crate::descriptor::Descriptor;
use crate::errno;
use crate::kernel::Kernel;

/// How a sleep has ended.
enum Slept {
    /// A planned act has run.
    On,
    /// The time limit has passed.
    TimedOut,
    /// A signal was handled.
    Interrupted,
}

/// Sleeps: runs the next planned act, or lets the time pass until the limit.
fn sleep(until: Option<u64>) -> Slept {
    let planned = super::disturbances_left();
    with(|host| host.looks = 0);
    let has_acted = super::disturbances_left() < planned;
    if has_acted || super::disturbance::run_next() || with(|host| host.deliver_all(usize::MAX)) {
        return Slept::On;
    }
    let act = super::acts().pop_front();
    match (act, until) {
        (Some(act), _) => {
            act();
            let is_interrupted = with(|host| std::mem::take(&mut host.is_interrupted));
            if is_interrupted { Slept::Interrupted } else { Slept::On }
        }
        (None, Some(until)) => {
            with(|host| host.now = host.now.max(until));
            Slept::TimedOut
        }
        (None, None) => panic!("nothing ends this sleep"),
    }
}

/// Returns the time at which a duration that starts now ends.
fn end_of(time: Duration) -> u64 {
    with(|host| host.now.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
}

fn duration(time: &Timespec) -> Duration {
    Duration::try_from(*time).unwrap_or_default()
}

/// Sleeps for a time, or until an act has run.
fn sleep_for(time: &Timespec) -> Result<(), Errno> {
    match sleep(Some(end_of(duration(time)))) {
        Slept::On => Ok(()),
        Slept::TimedOut => Err(Errno::TIMEDOUT),
        Slept::Interrupted => Err(Errno::INTR),
    }
}

/// Sleeps until `look` returns something.
fn sleep_until_found<R>(
    limit: Option<Duration>,
    mut look: impl FnMut() -> Option<R>,
) -> Result<Option<R>, Errno> {
    let until = limit.map(end_of);
    loop {
        if let Some(found) = look() {
            return Ok(Some(found));
        }
        if limit == Some(Duration::ZERO) {
            return Ok(None);
        }
        match sleep(until) {
            Slept::On => {}
            Slept::TimedOut => return Ok(look()),
            Slept::Interrupted => return Err(Errno::INTR),
        }
    }
}

fn bytes_of(buffers: Buffers<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    buffers.regions().for_each(|region| region.copy_out(&mut bytes));
    bytes
}

fn fill(buffers: Buffers<'_>, mut bytes: &[u8]) {
    for region in buffers.regions() {
        let (now, rest) = bytes.split_at(region.len().min(bytes.len()));
        region.part(0, now.len()).expect("within it").copy_in(now);
        bytes = rest;
    }
}

impl Threads for Fake {
    type Section = <Linux as Threads>::Section;

    fn begin_section() -> Self::Section {
        Linux::begin_section()
    }

    fn own() -> u32 {
        super::disturbance::own()
    }

    fn is_dead(_: u32) -> bool {
        false
    }

    fn offer_core() {
        with(|host| host.count("sched_yield"));
    }

    fn wait(word: &AtomicU32, value: u32) -> bool {
        super::disturbance::wait_for_lock();
        Linux::wait(word, value)
    }

    fn wake(_: &AtomicU32, _: u32) {
        with(|host| host.count("futex_wake")); // The sleeping thread checks after each act.
    }
}

/// Returns whether a process may fetch its peer's socket. Otherwise unread bytes stay in memory.
fn can_fetch() -> bool {
    with(|host| host.can_fetch)
}

impl PutBack for Fake {
    fn fall_back_to_tcp(end: &End<Self>, socket: BorrowedFd<'_>) {
        match can_fetch() {
            true => end.fall_back_and_put_back(socket),
            false => end.fall_back_unread(socket),
        }
    }

    fn put_back_own(end: &End<Self>, socket: BorrowedFd<'_>) {
        if can_fetch() {
            end.put_back_before_the_end(socket);
        }
    }

    fn put_back_rest(end: &End<Self>, socket: BorrowedFd<'_>) {
        if can_fetch() {
            end.put_back_before_later(socket);
        }
    }
}

impl Fetch for Fake {
    type Fetched = Descriptor;

    fn fetch(
        own: BorrowedFd<'_>,
        _: impl Iterator<Item = u32> + Clone,
        _: u32,
    ) -> Option<Descriptor> {
        with(|host| host.socket(own.as_raw_fd()).ok()?.other).map(Descriptor::of)
    }

    fn fetched(fetched: &Descriptor) -> BorrowedFd<'_> {
        fetched.as_fd()
    }

    fn send_at_once(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
        with(|host| host.send(socket.as_raw_fd(), bytes))
    }

    fn has_received(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
        Self::received(socket)
    }

    fn outstanding(socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        with(|host| host.in_flight_from(socket.as_raw_fd()))
    }

    fn has_urgent(socket: BorrowedFd<'_>) -> bool {
        with(|host| host.socket(socket.as_raw_fd()).is_ok_and(|it| it.mark.is_some()))
    }

    fn send_buffer_size(socket: BorrowedFd<'_>) -> usize {
        with(|host| 4 * host.room(socket.as_raw_fd())) // A quarter of it certainly fits.
    }

    fn wait_briefly(_: BorrowedFd<'_>, _: PollFlags) {
        <Self as weft_stream::Kernel>::pause();
    }
}

/// The part of the kernel for connections in memory.
impl weft_stream::Kernel for Fake {
    type Socket<'a> = BorrowedFd<'a>;

    fn moment() {
        super::disturbance::moment();
    }

    fn pause() {
        with(|host| host.deliver_all(1));
    }

    fn send(socket: BorrowedFd<'_>, buffers: Buffers<'_>, flags: i32) -> Result<usize, Errno> {
        let bytes = bytes_of(buffers);
        with(|host| host.count("send"));
        if let ([byte], libc::MSG_OOB) = (&bytes[..], flags & libc::MSG_OOB) {
            return with(|host| host.send_urgent(socket.as_raw_fd(), *byte));
        }
        let is_nonblocking = flags & libc::MSG_DONTWAIT != 0 || Self::is_nonblocking(socket);
        let limit = if is_nonblocking {
            Some(Duration::ZERO)
        } else {
            Self::time_limit(socket, Timeout::Send)
        };
        let mut done = 0;
        let sent = sleep_until_found(limit, || {
            match with(|host| host.send(socket.as_raw_fd(), &bytes[done..])) {
                Ok(more) => {
                    done += more;
                    (done == bytes.len()).then_some(Ok(done))
                }
                Err(Errno::AGAIN) => None,
                Err(error) => Some(Err(error)),
            }
        });
        match sent {
            Ok(Some(Ok(sent))) => Ok(sent),
            _ if done > 0 => Ok(done),
            Ok(Some(Err(error))) | Err(error) => Err(error),
            Ok(None) => Err(Errno::AGAIN),
        }
    }

    fn recv(
        socket: BorrowedFd<'_>,
        buffers: Buffers<'_>,
        most: usize,
        flags: i32,
    ) -> Result<usize, Errno> {
        let fd = socket.as_raw_fd();
        let most = most.min(buffers.len());
        let keep = flags & libc::MSG_PEEK != 0;
        with(|host| host.count("recv"));
        let is_nonblocking = flags & libc::MSG_DONTWAIT != 0 || Self::is_nonblocking(socket);
        let limit = if is_nonblocking {
            Some(Duration::ZERO)
        } else {
            Self::time_limit(socket, Timeout::Recv)
        };
        let received =
            sleep_until_found(limit, || match with(|host| host.receive(fd, most, keep)) {
                Err(Errno::AGAIN) => None,
                received => Some(received),
            });
        let bytes = received?.unwrap_or(Err(Errno::AGAIN))?;
        if flags & libc::MSG_TRUNC == 0 {
            fill(buffers, &bytes);
        }
        Ok(bytes.len())
    }

    fn put(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
        with(|host| {
            host.count("wakeup");
            host.send(socket.as_raw_fd(), bytes)
        })
    }

    fn take(socket: BorrowedFd<'_>, bytes: &mut [u8], keep: bool) -> Result<usize, Errno> {
        let taken = with(|host| host.receive(socket.as_raw_fd(), bytes.len(), keep))?;
        bytes[..taken.len()].copy_from_slice(&taken);
        Ok(taken.len())
    }

    fn unread(socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        with(|host| host.socket(socket.as_raw_fd()).map(|it| it.unread()))
    }

    fn is_hung_up(socket: BorrowedFd<'_>) -> bool {
        with(|host| {
            host.socket(socket.as_raw_fd())
                .map_or(true, |it| it.has_end || it.is_dead || it.error.is_some())
        })
    }

    fn has_error(socket: BorrowedFd<'_>) -> bool {
        with(|host| host.socket(socket.as_raw_fd()).is_ok_and(|it| it.error.is_some()))
    }

    fn undelay(_: BorrowedFd<'_>) -> [bool; 2] {
        [false; 2]
    }

    fn dissolve(socket: BorrowedFd<'_>) {
        with(|host| host.dissolve(socket.as_raw_fd()));
    }

    fn reset(socket: BorrowedFd<'_>) {
        with(|host| host.dissolve(socket.as_raw_fd()));
        let _ = Self::take_error(socket);
    }

    fn reset_at_close(socket: BorrowedFd<'_>) {
        let _ = with(|host| host.socket(socket.as_raw_fd()).map(|it| it.resets_at_close = true));
    }

    fn stays_open(_: BorrowedFd<'_>) -> bool {
        false
    }

    fn holder_of(own: SocketAddr, peer: SocketAddr) -> Result<Option<Holder>, Errno> {
        let is_it = with(|host| host.sockets().any(|it| (it.own, it.peer) == (own, peer)));
        Ok(is_it.then(|| Holder { inode: 1, user: Self::user() }))
    }

    fn is_alive(_: u32) -> bool {
        true // The test is the only process.
    }

    fn connections(namespace: u64) -> HashSet<Tuple> {
        let pairs: Vec<_> = with(|host| host.sockets().map(|it| (it.own, it.peer)).collect());
        let both = pairs
            .into_iter()
            .flat_map(|(own, peer)| [Tuple::new(own, peer), Tuple::new(peer, own)]);
        both.map(|tuple| tuple.in_namespace(namespace)).collect()
    }

    fn namespace() -> Result<u64, Errno> {
        Ok(0)
    }

    fn is_own(_: &Registry) -> bool {
        true
    }

    fn user() -> u32 {
        <Linux as weft_stream::Kernel>::user()
    }

    fn second() -> u64 {
        Self::now() / 1_000_000_000
    }
}

/// The part of the kernel for the core.
impl Kernel for Fake {
    fn now() -> u64 {
        with(super::host::Host::tick)
    }

    fn sleep_for(time: &Timespec) {
        let _ = sleep_for(time);
    }

    fn own_address(socket: BorrowedFd<'_>) -> Option<SocketAddr> {
        with(|host| Some(host.socket(socket.as_raw_fd()).ok()?.own))
    }

    fn peer_address(socket: BorrowedFd<'_>) -> Option<SocketAddr> {
        let peer = with(|host| {
            host.count("getpeername");
            Some(host.socket(socket.as_raw_fd()).ok()?.peer)
        })?;
        (peer.port() != 0).then_some(peer)
    }

    fn addresses(fd: RawFd) -> Option<(SocketAddr, SocketAddr)> {
        let socket = Descriptor::of(fd);
        Some((Self::own_address(socket.as_fd())?, Self::peer_address(socket.as_fd())?))
    }

    fn bind(socket: BorrowedFd<'_>, address: &SocketAddr) -> Result<(), Errno> {
        with(|host| {
            let any = host.next_address().port();
            let socket = host.socket(socket.as_raw_fd())?;
            socket.own = *address;
            if address.port() == 0 {
                socket.own.set_port(any);
            }
            Ok(())
        })
    }

    fn source_towards(target: SocketAddr) -> Option<IpAddr> {
        target.ip().is_loopback().then_some(target.ip())
    }

    fn receiver_of(_: SocketAddr, to: SocketAddr) -> Option<u64> {
        with(|host| {
            host.count("receiver_of");
            host.sockets().find(|it| it.is_datagram && it.own == to).map(|it| it.cookie)
        })
    }

    fn cookie(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
        with(|host| Ok(host.socket(socket.as_raw_fd())?.cookie))
    }

    fn network_of(_: BorrowedFd<'_>) -> u64 {
        0
    }

    fn inode(file: BorrowedFd<'_>) -> Option<u64> {
        with(|host| host.inode(file.as_raw_fd()))
    }

    fn is_open(file: BorrowedFd<'_>) -> bool {
        with(|host| host.is_fake(file.as_raw_fd())) || Linux::is_open(file)
    }

    fn is_nonblocking(file: BorrowedFd<'_>) -> bool {
        with(|host| host.socket(file.as_raw_fd()).is_ok_and(|socket| socket.is_nonblocking))
    }

    fn is_listening(_: BorrowedFd<'_>) -> bool {
        false
    }

    fn is_at_mark(socket: BorrowedFd<'_>) -> bool {
        with(|host| host.socket(socket.as_raw_fd()).is_ok_and(|it| it.mark == Some(0)))
    }

    fn time_limit(socket: BorrowedFd<'_>, which: Timeout) -> Option<Duration> {
        with(|host| {
            let socket = host.socket(socket.as_raw_fd()).ok()?;
            match which {
                Timeout::Recv => socket.receive_limit,
                Timeout::Send => socket.send_limit,
            }
        })
    }

    fn option(socket: BorrowedFd<'_>, option: c_int) -> Result<c_int, Errno> {
        let value = with(|host| {
            host.socket(socket.as_raw_fd()).map(|it| it.options.get(&option).copied())
        })?;
        Ok(value.unwrap_or(if option == libc::SO_RCVBUF { 212_992 } else { 0 }))
    }

    fn take_error(socket: BorrowedFd<'_>) -> Option<Errno> {
        with(|host| host.socket(socket.as_raw_fd()).ok()?.error.take())
    }

    fn received(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
        with(|host| Ok(host.socket(socket.as_raw_fd())?.received))
    }

    fn wait_for_bytes(socket: BorrowedFd<'_>) -> Result<(), Errno> {
        with(|host| host.count("wait_for_bytes"));
        let is_nonblocking = Self::is_nonblocking(socket);
        let limit = Self::time_limit(socket, Timeout::Recv);
        let limit = if is_nonblocking { Some(Duration::ZERO) } else { limit };
        let found = sleep_until_found(limit, || {
            match with(|host| host.receive(socket.as_raw_fd(), 1, true)) {
                Err(Errno::AGAIN) => None,
                received => Some(received.map(drop)),
            }
        });
        found?.unwrap_or(Err(Errno::AGAIN))
    }

    fn poll(
        file: BorrowedFd<'_>,
        events: PollFlags,
        timeout: Option<&Timespec>,
    ) -> Result<PollFlags, Errno> {
        with(|host| host.count("poll"));
        let found = sleep_until_found(timeout.map(duration), || {
            let now = with(|host| host.poll(file.as_raw_fd())) & reported(events);
            (!now.is_empty()).then_some(now)
        })?;
        Ok(found.unwrap_or(PollFlags::empty()))
    }

    fn poll_as_program(set: &mut [pollfd], timeout: Option<&Timespec>) -> c_int {
        with(|host| host.count("poll"));
        let found = sleep_until_found(timeout.map(duration), || {
            for place in set.iter_mut() {
                let asked = PollFlags::from_bits_retain(place.events);
                place.revents = match place.fd {
                    ..0 => 0,
                    fd if !Self::is_open(Descriptor::of(fd).as_fd()) => libc::POLLNVAL,
                    fd => {
                        let now = with(|host| host.poll(fd)) & reported(asked);
                        now.bits()
                    }
                };
            }
            let ready = set.iter().filter(|place| place.revents != 0).count();
            (ready > 0).then_some(ready as c_int)
        });
        found.map_or_else(errno::fail, Option::unwrap_or_default)
    }

    fn wait_on_word(word: &AtomicU32, value: u32, time: &Timespec) -> Result<(), Errno> {
        with(|host| host.count("futex_wait"));
        if word.load(Ordering::SeqCst) != value {
            return Err(Errno::AGAIN);
        }
        sleep_for(time)
    }

    fn wait_for_peer(_: FutexWord<'_>, time: &Timespec) -> Result<(), Errno> {
        with(|host| host.count("futex_wait"));
        if sleep_for(time) == Err(Errno::INTR) { Err(Errno::INTR) } else { Ok(()) }
    }

    fn wait_for_peers<'a>(
        _: impl Iterator<Item = FutexWord<'a>>,
        until: &Timespec,
    ) -> Result<(), Errno> {
        with(|host| host.count("futex_wait"));
        let until = u64::try_from(duration(until).as_nanos()).unwrap_or(u64::MAX);
        match sleep(Some(until)) {
            Slept::Interrupted => Err(Errno::INTR),
            Slept::On | Slept::TimedOut => Ok(()),
        }
    }

    fn control(epoll: RawFd, operation: c_int, fd: RawFd, event: Option<epoll_event>) -> c_int {
        let done = with(|host| {
            host.count("epoll_ctl");
            host.control(epoll, operation, fd, event)
        });
        done.map_or_else(errno::fail, |()| 0)
    }

    fn take_events(epoll: BorrowedFd<'_>, events: &mut [epoll_event]) -> Result<usize, Errno> {
        with(|host| host.take_events(epoll.as_raw_fd(), events))
    }

    fn registrations(epoll: RawFd) -> String {
        with(|host| host.instance(epoll).map(|it| it.text()).unwrap_or_default())
    }
}

/// Returns the events that poll reports if these are requested.
fn reported(events: PollFlags) -> PollFlags {
    events | PollFlags::ERR | PollFlags::HUP
}

/// Waits like `epoll_wait(2)`, with a limit in nanoseconds.
pub(crate) fn wait_for_events(
    epoll: RawFd,
    events: &mut [epoll_event],
    limit: Option<u64>,
) -> c_int {
    with(|host| host.count("epoll_wait"));
    let found = sleep_until_found(limit.map(Duration::from_nanos), || {
        match with(|host| host.take_events(epoll, events)) {
            Ok(0) => None,
            found => Some(found.map_or_else(errno::fail, |found| found as c_int)),
        }
    });
    if matches!(found, Ok(Some(1..))) {
        let act = super::act_before_return().take();
        act.into_iter().for_each(|act| act());
    }
    found.map_or_else(errno::fail, Option::unwrap_or_default)
}

/// Sends over TCP, bypassing the core.
pub(crate) fn send_now(fd: RawFd, bytes: &[u8]) -> Result<usize, Errno> {
    with(|host| host.send(fd, bytes))
}

/// Receives from TCP, bypassing the core.
pub(crate) fn recv_now(fd: RawFd, most: usize) -> Result<Vec<u8>, Errno> {
    with(|host| host.receive(fd, most, false))
}

/// Executes `sendto(2)` in the fake kernel.
pub(crate) fn send_to(fd: RawFd, to: SocketAddr, bytes: &[u8]) -> Result<usize, Errno> {
    with(|host| {
        let from = host.socket(fd)?.own;
        let receiver = host.datagram_socket_at(to).ok_or(Errno::CONNREFUSED)?;
        host.socket(receiver)?.datagrams.push_back((from, bytes.to_vec()));
        host.note(receiver, u32::MAX);
        Ok(bytes.len())
    })
}

/// Executes `recvfrom(2)` in the fake kernel.
pub(crate) fn recv_from(fd: RawFd, flags: c_int) -> Result<(SocketAddr, Vec<u8>), Errno> {
    let socket = Descriptor::of(fd);
    let is_nonblocking = flags & libc::MSG_DONTWAIT != 0 || Fake::is_nonblocking(socket.as_fd());
    let limit = if is_nonblocking {
        Some(Duration::ZERO)
    } else {
        Fake::time_limit(socket.as_fd(), Timeout::Recv)
    };
    let found = sleep_until_found(limit, || {
        with(|host| {
            let socket = host.socket(fd).ok()?;
            if flags & libc::MSG_PEEK != 0 {
                socket.datagrams.front().cloned()
            } else {
                socket.datagrams.pop_front()
            }
        })
    });
    found?.ok_or(Errno::AGAIN)
}
