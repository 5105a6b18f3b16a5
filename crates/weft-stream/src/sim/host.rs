//! State of the simulated kernel: processes and their descriptors, open sockets, TCP.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::RawFd;

use rustix::io::Errno;

/// An open socket, as the kernel numbers it.
pub(super) type SocketId = usize;
/// A process number.
pub(super) type Pid = u32;

/// The listener's port. Connecting sockets share a few ports, so that addresses are reused.
const PORT: u16 = 80;
const FIRST_PORT: u16 = 40_000;
const PORTS: u16 = 6;

/// One end of a TCP connection in the kernel.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) cookie: u64,
    pub(super) own: SocketAddr,
    pub(super) peer: SocketAddr,
    other: SocketId,
    /// The socket is not connected yet.
    is_fresh: bool,
    /// Number of descriptors, and of messages under way, that refer to the socket.
    open: usize,
    /// The socket waits in a listener's queue, and no process has it.
    is_pending: bool,
    is_closed: bool,
    /// Bytes that have come and have not been read.
    queue: VecDeque<u8>,
    /// Maximum length of the queue.
    room: usize,
    /// The peer sends no more.
    has_end: bool,
    /// The peer has closed its socket, and answers with a reset.
    is_refused: bool,
    is_shut: bool,
    /// The connection is gone.
    is_dead: bool,
    error: Option<Errno>,
    resets_at_close: bool,
}

impl Socket {
    /// The peer's address, as `getpeername(2)` reports it: not of a connection that is over.
    pub(super) fn peer_name(&self) -> Option<SocketAddr> {
        let is_over = self.is_dead || (self.has_end && self.is_shut);
        (!is_over).then_some(self.peer)
    }
}

/// A process, as the kernel sees it.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    pub(super) open: BTreeMap<RawFd, (SocketId, bool)>,
    /// Descriptors that no call has returned to the program yet. Neither the program nor a child
    /// born meanwhile uses them.
    pub(super) unknown: BTreeSet<RawFd>,
    /// Sockets that other processes have passed to this one, and that it has not received.
    pub(super) passed: VecDeque<SocketId>,
}

/// The whole state of the kernel.
#[derive(Debug, Default)]
pub(super) struct Host {
    pub(super) sockets: Vec<Socket>,
    pub(super) processes: BTreeMap<Pid, Descriptors>,
    /// Connections that no process has accepted.
    backlog: VecDeque<SocketId>,
    /// Sockets that have lost their last descriptor since this list was read.
    pub(super) closed: Vec<SocketId>,
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

impl Host {
    /// Creates a socket, and the one that will be its peer.
    pub(super) fn socket(&mut self, pid: Pid, room: usize, cookie: u64) -> RawFd {
        let first = self.sockets.len();
        for index in 0..2 {
            self.sockets.push(Socket {
                cookie: cookie + index as u64,
                own: address(0),
                peer: address(0),
                is_fresh: true,
                other: first + 1 - index,
                open: 0,
                is_pending: index == 1,
                is_closed: false,
                queue: VecDeque::new(),
                room,
                has_end: false,
                is_refused: false,
                is_shut: false,
                is_dead: false,
                error: None,
                resets_at_close: false,
            });
        }
        self.install(pid, first, false)
    }

    /// Connects a socket. Its peer waits in the listener's queue from here on.
    ///
    /// # Errors
    /// `EISCONN`; `EADDRNOTAVAIL` if all ports are in use.
    pub(super) fn connect(&mut self, id: SocketId) -> Result<(), Errno> {
        if !self.sockets[id].is_fresh {
            return Err(Errno::ISCONN);
        }
        let is_used = |port: u16| {
            let is_of = |socket: &&Socket| socket.own.port() == port || socket.peer.port() == port;
            self.sockets.iter().filter(is_of).any(|socket| !socket.is_closed)
        };
        let port = (FIRST_PORT..FIRST_PORT + PORTS).find(|&port| !is_used(port));
        let port = port.ok_or(Errno::ADDRNOTAVAIL)?;
        for (index, [own, peer]) in [[port, PORT], [PORT, port]].into_iter().enumerate() {
            let socket = &mut self.sockets[id + index];
            (socket.own, socket.peer, socket.is_fresh) = (address(own), address(peer), false);
        }
        self.backlog.push_back(id + 1);
        Ok(())
    }

    /// Gives a process the connection that has waited longest.
    pub(super) fn accept(&mut self, pid: Pid) -> Option<RawFd> {
        let socket = self.backlog.pop_front()?;
        self.sockets[socket].is_pending = false;
        Some(self.install(pid, socket, false))
    }

    /// Closes the listener, which resets the connections in its queue.
    pub(super) fn close_listener(&mut self) {
        while let Some(socket) = self.backlog.pop_front() {
            self.sockets[socket].resets_at_close = true;
            self.end(socket);
        }
    }

    pub(super) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Makes a process's lowest free descriptor refer to a socket.
    pub(super) fn install(&mut self, pid: Pid, socket: SocketId, is_cloexec: bool) -> RawFd {
        self.sockets[socket].open += 1;
        let open = &mut self.processes.get_mut(&pid).expect("it lives").open;
        let fd = (3..).find(|fd| !open.contains_key(fd)).expect("a number");
        open.insert(fd, (socket, is_cloexec));
        fd
    }

    /// Hides a descriptor that a call is about to return.
    pub(super) fn hide(&mut self, pid: Pid, fd: RawFd) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.unknown.insert(fd);
        }
    }

    /// Hides from a child what other threads have opened since the call that creates it began.
    pub(super) fn hide_all_but(&mut self, pid: Pid, known: &[RawFd]) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.unknown.extend(process.open.keys().filter(|fd| !known.contains(fd)));
        }
    }

    /// Shows a descriptor whose call has returned.
    pub(super) fn show(&mut self, pid: Pid, fd: RawFd) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.unknown.remove(&fd);
        }
    }

    /// The sockets of a process that have unread bytes.
    pub(super) fn unread_of(&self, pid: Pid) -> Vec<SocketId> {
        let Some(process) = self.processes.get(&pid) else { return Vec::new() };
        let open = process.open.values().map(|&(socket, _)| socket).chain(process.passed.clone());
        open.filter(|&socket| !self.sockets[socket].queue.is_empty()).collect()
    }

    /// The descriptors that a program may use.
    pub(super) fn known(&self, pid: Pid) -> Vec<(RawFd, SocketId)> {
        let Some(process) = self.processes.get(&pid) else { return Vec::new() };
        let open = process.open.iter().filter(|(fd, _)| !process.unknown.contains(fd));
        open.map(|(&fd, &(socket, _))| (fd, socket)).collect()
    }

    pub(super) fn socket_of(&self, pid: Pid, fd: RawFd) -> Option<SocketId> {
        Some(self.processes.get(&pid)?.open.get(&fd)?.0)
    }

    pub(super) fn close(&mut self, pid: Pid, fd: RawFd) {
        let process = self.processes.get_mut(&pid).expect("it lives");
        process.unknown.remove(&fd);
        if let Some((socket, _)) = process.open.remove(&fd) {
            self.drop_reference(socket);
        }
    }

    /// Copies a descriptor, to the lowest free number or to `to`.
    pub(super) fn dup(&mut self, pid: Pid, fd: RawFd, to: Option<RawFd>) -> Option<RawFd> {
        let socket = self.socket_of(pid, fd)?;
        let Some(to) = to else { return Some(self.install(pid, socket, false)) };
        self.sockets[socket].open += 1;
        let process = self.processes.get_mut(&pid).expect("it lives");
        if let Some((before, _)) = process.open.insert(to, (socket, false)) {
            self.drop_reference(before);
        }
        Some(to)
    }

    pub(super) fn set_cloexec(&mut self, pid: Pid, fd: RawFd, is_cloexec: bool) {
        let process = self.processes.get_mut(&pid).expect("it lives");
        if let Some(open) = process.open.get_mut(&fd) {
            open.1 = is_cloexec;
        }
    }

    /// Gives a child copies of all descriptors.
    pub(super) fn fork(&mut self, parent: Pid, child: Pid) {
        let (open, unknown) =
            (self.processes[&parent].open.clone(), self.processes[&parent].unknown.clone());
        for (socket, _) in open.values() {
            self.sockets[*socket].open += 1;
        }
        self.processes.insert(child, Descriptors { open, unknown, passed: VecDeque::new() });
    }

    /// Closes what an `exec` closes.
    pub(super) fn exec(&mut self, pid: Pid) {
        let open = &self.processes[&pid].open;
        let closes =
            |(&fd, &(_, is_cloexec)): (&RawFd, &(SocketId, bool))| is_cloexec.then_some(fd);
        let closed: Vec<_> = open.iter().filter_map(closes).collect();
        closed.into_iter().for_each(|fd| self.close(pid, fd));
    }

    pub(super) fn pass(&mut self, from: Pid, fd: RawFd, to: Pid) {
        let Some(socket) = self.socket_of(from, fd) else { return };
        let Some(process) = self.processes.get_mut(&to) else { return };
        process.passed.push_back(socket);
        self.sockets[socket].open += 1;
    }

    pub(super) fn receive(&mut self, pid: Pid) -> Option<RawFd> {
        let socket = self.processes.get_mut(&pid)?.passed.pop_front()?;
        let fd = self.install(pid, socket, false);
        self.drop_reference(socket); // The message's reference.
        Some(fd)
    }

    /// Ends a process, however it dies.
    pub(super) fn exit(&mut self, pid: Pid) {
        let Some(process) = self.processes.remove(&pid) else { return };
        let sockets = process.open.into_values().map(|(socket, _)| socket);
        sockets.chain(process.passed).for_each(|socket| self.drop_reference(socket));
    }

    fn drop_reference(&mut self, socket: SocketId) {
        self.sockets[socket].open -= 1;
        if self.sockets[socket].open == 0 {
            self.end(socket);
        }
    }

    /// Ends a socket that has lost its last reference.
    fn end(&mut self, id: SocketId) {
        let socket = &mut self.sockets[id];
        let resets = socket.resets_at_close || !socket.queue.is_empty();
        let (other, is_dead) = (socket.other, socket.is_dead);
        let is_fresh = socket.is_fresh;
        (socket.is_closed, socket.is_dead, socket.is_pending) = (true, true, false);
        socket.queue.clear();
        self.closed.push(id);
        if is_fresh {
            self.sockets[other].is_closed = true; // It has never been connected.
        } else if resets && !is_dead {
            self.reset_peer(other);
        } else if !is_dead {
            (self.sockets[other].has_end, self.sockets[other].is_refused) = (true, true);
        }
    }

    /// Delivers a reset (`tcp_reset`).
    fn reset_peer(&mut self, id: SocketId) {
        let socket = &mut self.sockets[id];
        if !socket.is_dead {
            let error = if socket.has_end { Errno::PIPE } else { Errno::CONNRESET };
            (socket.is_dead, socket.error) = (true, Some(error));
        }
    }

    pub(super) fn send(&mut self, id: SocketId, bytes: &[u8]) -> Result<usize, Errno> {
        let socket = &mut self.sockets[id];
        if let Some(error) = socket.error.take() {
            return Err(error);
        }
        if socket.is_dead || socket.is_shut || socket.is_fresh {
            return Err(Errno::PIPE);
        }
        if socket.is_refused {
            self.reset_peer(id);
            return Ok(bytes.len());
        }
        let other = socket.other;
        let other = &mut self.sockets[other];
        let count = bytes.len().min(other.room - other.queue.len());
        if count == 0 && !bytes.is_empty() {
            return Err(Errno::AGAIN);
        }
        other.queue.extend(&bytes[..count]);
        Ok(count)
    }

    pub(super) fn receive_bytes(
        &mut self,
        id: SocketId,
        most: usize,
        keep: bool,
    ) -> Result<Vec<u8>, Errno> {
        let socket = &mut self.sockets[id];
        let count = most.min(socket.queue.len());
        // A call for no bytes returns at once if there are some (`tcp_recvmsg`).
        if !socket.queue.is_empty() {
            let bytes = socket.queue.iter().take(count).copied().collect();
            if !keep {
                socket.queue.drain(..count);
            }
            return Ok(bytes);
        }
        if socket.is_fresh {
            return Err(Errno::NOTCONN);
        }
        if socket.has_end {
            return Ok(Vec::new());
        }
        match socket.error.take() {
            Some(error) => Err(error),
            None if socket.is_dead => Ok(Vec::new()),
            None => Err(Errno::AGAIN),
        }
    }

    /// Whether a receiving call returns at once.
    pub(super) fn is_readable(&self, id: SocketId) -> bool {
        let socket = &self.sockets[id];
        !socket.queue.is_empty()
            || socket.is_fresh
            || socket.has_end
            || socket.is_dead
            || socket.error.is_some()
    }

    /// Whether a sending call returns at once.
    pub(super) fn is_writable(&self, id: SocketId) -> bool {
        let (socket, other) = (&self.sockets[id], &self.sockets[self.sockets[id].other]);
        other.queue.len() < other.room
            || socket.is_fresh
            || socket.is_dead
            || socket.is_shut
            || socket.is_refused
    }

    pub(super) fn is_hung_up(&self, id: SocketId) -> bool {
        let socket = &self.sockets[id];
        socket.has_end || socket.is_dead || socket.is_fresh || socket.error.is_some()
    }

    pub(super) fn has_error(&self, id: SocketId) -> bool {
        self.sockets[id].error.is_some()
    }

    pub(super) fn shut_write(&mut self, id: SocketId) {
        let socket = &mut self.sockets[id];
        if !socket.is_dead && !socket.is_fresh {
            socket.is_shut = true;
            let other = socket.other;
            self.sockets[other].has_end = true;
        }
    }

    /// Does what `connect(2)` with `AF_UNSPEC` does (`tcp_disconnect`).
    pub(super) fn dissolve(&mut self, id: SocketId) {
        let socket = &mut self.sockets[id];
        if socket.is_dead || socket.is_fresh {
            return;
        }
        (socket.is_dead, socket.error) = (true, Some(Errno::CONNRESET));
        socket.queue.clear();
        let other = socket.other;
        self.reset_peer(other);
    }

    pub(super) fn unread(&self, id: SocketId) -> usize {
        self.sockets[id].queue.len()
    }

    pub(super) fn take_error(&mut self, id: SocketId) {
        self.sockets[id].error = None;
    }

    pub(super) fn reset_at_close(&mut self, id: SocketId) {
        self.sockets[id].resets_at_close = true;
    }

    pub(super) fn other(&self, id: SocketId) -> SocketId {
        self.sockets[id].other
    }

    /// Whether a socket is closed, so that its owner neither receives nor sends.
    pub(super) fn is_closed(&self, id: SocketId) -> bool {
        self.sockets[id].is_closed
    }

    pub(super) fn is_fresh(&self, id: SocketId) -> bool {
        self.sockets[id].is_fresh
    }

    /// Whether nothing more can come from the peer.
    pub(super) fn has_end(&self, id: SocketId) -> bool {
        self.sockets[id].has_end || self.sockets[id].is_dead
    }

    /// Whether a process has a socket between these addresses (`sock_diag(7)`).
    pub(super) fn holder_of(&self, own: SocketAddr, peer: SocketAddr) -> bool {
        self.sockets.iter().any(|socket| {
            (socket.own, socket.peer) == (own, peer)
                && !socket.is_fresh
                && !socket.is_closed
                && !socket.is_pending
        })
    }

    /// The addresses of all sockets that a process has.
    pub(super) fn connections(&self) -> impl Iterator<Item = (SocketAddr, SocketAddr)> {
        let held = self.sockets.iter().filter(|socket| !socket.is_closed && !socket.is_pending);
        held.map(|socket| (socket.own, socket.peer))
    }
}
