//! All open files, and the effects of changes on other files.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::{Mutex, PoisonError};

use libc::{c_int, epoll_event};
use rustix::event::PollFlags;
use rustix::io::Errno;
use weft_sys::calls;

use super::instance::Instance;
use super::socket::{Packet, Socket};
use crate::descriptor::Descriptor;

/// How far the clock advances with each reading.
const TICK_NS: u64 = 1_000;
/// How often a thread may read the clock without sleeping.
const LOOKS: u32 = 1_000_000;
/// The events that the kernel signals when data arrives, whichever of them a waiter wants.
const INCOMING: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLRDHUP) as u32;
const ROOM: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;

static HOST: Mutex<Option<Host>> = Mutex::new(None);

/// Runs `act` with the host, after a disturbance that is due.
pub(super) fn with<R>(act: impl FnOnce(&mut Host) -> R) -> R {
    super::disturbance::moment();
    let mut host = HOST.lock().unwrap_or_else(PoisonError::into_inner);
    act(host.get_or_insert_default())
}

#[derive(Debug)]
pub(super) enum File {
    Socket(Box<Socket>),
    Epoll(Instance),
}

#[derive(Debug)]
pub(super) struct Host {
    pub(super) now: u64,
    /// Readings of the clock since a thread last slept.
    pub(super) looks: u32,
    /// Whether a signal has come for the sleeping thread.
    pub(super) is_interrupted: bool,
    /// Whether what is sent by TCP stays in flight until it is delivered.
    pub(super) is_slow: bool,
    /// Whether processes may fetch each other's sockets.
    pub(super) can_fetch: bool,
    pub(super) calls: BTreeMap<&'static str, u64>,
    /// The open files, each with a real descriptor that reserves the number.
    files: BTreeMap<RawFd, (UnixDatagram, File)>,
    next: u16,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            now: 1_000_000_000,
            looks: 0,
            is_interrupted: false,
            is_slow: false,
            can_fetch: false,
            calls: BTreeMap::new(),
            files: BTreeMap::new(),
            next: 1_000,
        }
    }
}

impl Host {
    pub(super) fn tick(&mut self) -> u64 {
        self.looks += 1;
        assert!(self.looks < LOOKS, "a thread spins without ever sleeping");
        self.now += TICK_NS;
        self.now
    }

    pub(super) fn count(&mut self, call: &'static str) {
        *self.calls.entry(call).or_default() += 1;
    }

    pub(super) fn next_address(&mut self) -> SocketAddr {
        self.next += 1;
        SocketAddr::from(([127, 0, 0, 1], self.next))
    }

    pub(super) fn open(&mut self, file: impl FnOnce(u64) -> File) -> RawFd {
        let number = UnixDatagram::unbound().expect("a descriptor");
        let fd = number.as_raw_fd();
        let file = file(inode(number.as_fd()));
        self.files.insert(fd, (number, file));
        fd
    }

    pub(super) fn is_fake(&self, fd: RawFd) -> bool {
        self.files.contains_key(&fd)
    }

    pub(super) fn socket(&mut self, fd: RawFd) -> Result<&mut Socket, Errno> {
        match self.files.get_mut(&fd) {
            Some((_, File::Socket(socket))) => Ok(socket),
            Some((_, File::Epoll(_))) => Err(Errno::NOTSOCK),
            None => Err(Errno::BADF),
        }
    }

    pub(super) fn instance(&mut self, fd: RawFd) -> Option<&mut Instance> {
        match self.files.get_mut(&fd) {
            Some((_, File::Epoll(instance))) => Some(instance),
            _ => None,
        }
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.files.values().filter_map(|(_, file)| match file {
            File::Socket(socket) => Some(&**socket),
            File::Epoll(_) => None,
        })
    }

    pub(super) fn datagram_socket_at(&self, address: SocketAddr) -> Option<RawFd> {
        let is_it = |file: &File| match file {
            File::Socket(socket) => socket.is_datagram && socket.own == address,
            File::Epoll(_) => false,
        };
        self.files.iter().find(|(_, (_, file))| is_it(file)).map(|(&fd, _)| fd)
    }

    /// Moves the file of one descriptor to another, which is closed first (`dup2(2)`).
    pub(super) fn move_to(&mut self, from: RawFd, to: RawFd) {
        let (_, file) = self.files.remove(&from).expect("a descriptor");
        let number = self.end(to).expect("a descriptor");
        if let File::Socket(socket) = &file
            && let Some(other) = socket.other
        {
            self.socket(other).expect("its other end").other = Some(to);
        }
        self.files.insert(to, (number, file));
    }

    pub(super) fn close(&mut self, fd: RawFd) {
        drop(self.end(fd));
    }

    /// Closes the file of a descriptor. Returns the real descriptor that reserves the number.
    fn end(&mut self, fd: RawFd) -> Option<UnixDatagram> {
        let (number, file) = self.files.remove(&fd)?;
        self.end_file(fd, file);
        Some(number)
    }

    fn end_file(&mut self, fd: RawFd, file: File) {
        for (_, other) in self.files.values_mut() {
            if let File::Epoll(instance) = other {
                instance.forget(fd);
            }
        }
        let File::Socket(socket) = file else { return };
        let Some(other) = socket.other else { return };
        if socket.resets_at_close || !socket.incoming.is_empty() {
            self.reset(other, Errno::CONNRESET);
        } else if !socket.is_dead
            && let Ok(peer) = self.socket(other)
        {
            (peer.has_end, peer.is_refused) = (true, true);
            self.note(other, INCOMING | ROOM);
        }
        if let Ok(peer) = self.socket(other) {
            peer.other = None;
        }
    }

    pub(super) fn shutdown(&mut self, fd: RawFd, how: c_int) {
        let Ok(socket) = self.socket(fd) else { return };
        let other = socket.other;
        if how != libc::SHUT_RD {
            socket.is_shut = true;
        }
        if how != libc::SHUT_WR {
            socket.is_shut_in = true;
        }
        self.note(fd, u32::MAX);
        if how != libc::SHUT_RD
            && let Some(other) = other
        {
            self.arrive(other, Packet::End);
        }
    }

    /// Sends a packet to a socket.
    fn arrive(&mut self, fd: RawFd, packet: Packet) {
        let is_slow = self.is_slow;
        let Ok(socket) = self.socket(fd) else { return };
        socket.in_flight.push_back(packet);
        if !is_slow {
            self.deliver(fd);
        }
    }

    /// Delivers the oldest packet in flight to a socket. Returns whether there was one.
    fn deliver(&mut self, fd: RawFd) -> bool {
        let Ok(socket) = self.socket(fd) else { return false };
        match socket.in_flight.pop_front() {
            Some(Packet::Bytes(bytes)) => {
                socket.received += bytes.len() as u64;
                socket.incoming.extend(bytes);
            }
            Some(Packet::Urgent(byte)) => {
                socket.received += 1;
                socket.mark = Some(socket.incoming.len());
                socket.incoming.push_back(byte);
            }
            Some(Packet::End) => socket.has_end = true,
            None => return false,
        }
        self.note(fd, INCOMING);
        true
    }

    /// Returns how many bytes that a socket has sent have not come.
    pub(super) fn in_flight_from(&mut self, fd: RawFd) -> Result<usize, Errno> {
        match self.socket(fd)?.other {
            Some(other) => Ok(self.socket(other)?.in_flight()),
            None => Ok(0),
        }
    }

    /// Delivers at most this many packets to each socket. Returns whether there was one.
    pub(super) fn deliver_all(&mut self, most: usize) -> bool {
        let sockets: Vec<RawFd> = self.files.keys().copied().collect();
        let mut is_any = false;
        for fd in sockets {
            for _ in 0..most {
                if !self.deliver(fd) {
                    break;
                }
                is_any = true;
            }
        }
        is_any
    }

    /// Handles the arrival of a reset (tcp_reset).
    pub(super) fn reset(&mut self, fd: RawFd, error: Errno) {
        let Ok(socket) = self.socket(fd) else { return };
        if !socket.is_dead {
            let error = if socket.has_end { Errno::PIPE } else { error };
            (socket.is_dead, socket.error) = (true, Some(error));
            self.note(fd, u32::MAX);
        }
    }

    /// Executes `connect(2)` with `AF_UNSPEC` (tcp_disconnect).
    pub(super) fn dissolve(&mut self, fd: RawFd) {
        let Ok(socket) = self.socket(fd) else { return };
        if socket.is_dead {
            return;
        }
        (socket.is_dead, socket.error) = (true, Some(Errno::CONNRESET));
        socket.incoming.clear();
        let other = socket.other;
        self.note(fd, u32::MAX);
        other.into_iter().for_each(|other| self.reset(other, Errno::CONNRESET));
    }

    /// Sends one byte over TCP as urgent data.
    pub(super) fn send_urgent(&mut self, fd: RawFd, byte: u8) -> Result<usize, Errno> {
        let other = self.socket(fd)?.other.ok_or(Errno::PIPE)?;
        self.arrive(other, Packet::Urgent(byte));
        Ok(1)
    }

    /// Sends as many bytes over TCP as there is room for.
    pub(super) fn send(&mut self, fd: RawFd, bytes: &[u8]) -> Result<usize, Errno> {
        let socket = self.socket(fd)?;
        if let Some(error) = socket.error.take() {
            return Err(error);
        }
        if socket.is_dead || socket.is_shut {
            return Err(Errno::PIPE);
        }
        let other = socket.other.filter(|_| !socket.is_refused);
        let Some(other) = other else {
            self.reset(fd, Errno::CONNRESET);
            return Ok(bytes.len());
        };
        let peer = self.socket(other)?;
        let count = bytes.len().min(peer.room());
        if count == 0 && !bytes.is_empty() {
            self.socket(fd)?.lacks_room = true;
            return Err(Errno::AGAIN);
        }
        self.arrive(other, Packet::Bytes(bytes[..count].to_vec()));
        self.socket(fd)?.lacks_room |= count < bytes.len();
        Ok(count)
    }

    pub(super) fn receive(&mut self, fd: RawFd, most: usize, keep: bool) -> Result<Vec<u8>, Errno> {
        let socket = self.socket(fd)?;
        let received = socket.receive(most, keep);
        let has_room = socket.room() > 0;
        if let Some(other) = socket.other
            && has_room
            && std::mem::take(&mut self.socket(other)?.lacks_room)
        {
            self.note(other, ROOM);
        }
        received
    }

    /// Polls a descriptor: returns the events that it has now.
    pub(super) fn poll(&mut self, fd: RawFd) -> PollFlags {
        let now = self.readiness(fd);
        if let Ok(socket) = self.socket(fd)
            && !now.contains(PollFlags::OUT)
        {
            socket.lacks_room = true;
        }
        now
    }

    /// Returns how many bytes a socket can send.
    pub(super) fn room(&self, fd: RawFd) -> usize {
        let socket = |fd| match self.files.get(&fd) {
            Some((_, File::Socket(socket))) => Some(&**socket),
            _ => None,
        };
        socket(fd).and_then(|own| socket(own.other?)).map_or(0, Socket::room)
    }

    fn readiness(&self, fd: RawFd) -> PollFlags {
        match self.files.get(&fd) {
            Some((_, File::Socket(socket))) => socket.readiness(self.room(fd)),
            Some((_, File::Epoll(instance))) => {
                let is_ready =
                    instance.is_ready(|fd| u32::from(self.readiness(fd).bits().cast_unsigned()));
                if is_ready { PollFlags::IN | PollFlags::RDNORM } else { PollFlags::empty() }
            }
            None => really_ready(fd),
        }
    }

    /// Notifies the instances that watch a file of a change.
    pub(super) fn note(&mut self, fd: RawFd, change: u32) {
        let now = u32::from(self.readiness(fd).bits().cast_unsigned());
        let instances: Vec<RawFd> = self.files.keys().copied().collect();
        for epoll in instances {
            if self.instance(epoll).is_some_and(|instance| instance.note(fd, now, change)) {
                self.note(epoll, INCOMING);
            }
        }
    }

    pub(super) fn control(
        &mut self,
        epoll: RawFd,
        operation: c_int,
        fd: RawFd,
        event: Option<epoll_event>,
    ) -> Result<(), Errno> {
        let inode = self.inode(fd).ok_or(Errno::BADF)?;
        let now = u32::from(self.poll(fd).bits().cast_unsigned());
        let instance = self.instance(epoll).ok_or(Errno::BADF)?;
        instance.control(operation, fd, event, inode, now)?;
        self.note(epoll, INCOMING);
        Ok(())
    }

    pub(super) fn take_events(
        &mut self,
        epoll: RawFd,
        events: &mut [epoll_event],
    ) -> Result<usize, Errno> {
        let watched = self.instance(epoll).ok_or(Errno::BADF)?.watches();
        let now: BTreeMap<RawFd, u32> = watched
            .iter()
            .map(|&fd| (fd, u32::from(self.poll(fd).bits().cast_unsigned())))
            .collect();
        let real: Vec<RawFd> = watched.into_iter().filter(|fd| !self.is_fake(*fd)).collect();
        let instance = self.instance(epoll).ok_or(Errno::BADF)?;
        for fd in real {
            instance.note(fd, now[&fd], u32::MAX);
        }
        Ok(instance.take(events, |fd| now.get(&fd).copied().unwrap_or(0)))
    }

    pub(super) fn inode(&self, fd: RawFd) -> Option<u64> {
        match self.files.get(&fd) {
            Some((number, _)) => Some(inode(number.as_fd())),
            None => rustix::fs::fstat(Descriptor::of(fd)).ok().map(|it| it.st_ino),
        }
    }
}

fn inode(file: BorrowedFd<'_>) -> u64 {
    rustix::fs::fstat(file).expect("an open file").st_ino
}

/// Returns the events of a file of the real kernel, such as the pipe of an alarm.
fn really_ready(fd: RawFd) -> PollFlags {
    calls::events_now(Descriptor::of(fd), PollFlags::IN)
}
