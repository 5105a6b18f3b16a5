//! A TCP or UDP socket.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;

/// Size of the receive buffer in bytes.
const ROOM: usize = 64 << 10;

/// A part of a TCP stream.
#[derive(Debug)]
pub(super) enum Packet {
    Bytes(Vec<u8>),
    /// A byte sent with `MSG_OOB`.
    Urgent(u8),
    End,
}

impl Packet {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Urgent(_) => 1,
            Self::End => 0,
        }
    }
}

#[derive(Debug)]
pub(super) struct Socket {
    pub(super) cookie: u64,
    pub(super) own: SocketAddr,
    pub(super) peer: SocketAddr,
    /// The other end of a TCP connection, while it is open.
    pub(super) other: Option<RawFd>,
    pub(super) is_datagram: bool,
    pub(super) is_nonblocking: bool,
    pub(super) receive_limit: Option<Duration>,
    pub(super) send_limit: Option<Duration>,
    pub(super) options: BTreeMap<libc::c_int, libc::c_int>,
    /// Unread bytes.
    pub(super) incoming: VecDeque<u8>,
    /// Position of the urgent byte among the unread ones.
    pub(super) mark: Option<usize>,
    /// What the peer has sent and what has not come yet, if the network is slow.
    pub(super) in_flight: VecDeque<Packet>,
    pub(super) datagrams: VecDeque<(SocketAddr, Vec<u8>)>,
    pub(super) received: u64,
    /// The peer has sent a FIN.
    pub(super) has_end: bool,
    /// The peer has closed its socket, and answers with a reset.
    pub(super) is_refused: bool,
    pub(super) is_shut: bool,
    pub(super) is_shut_in: bool,
    /// The connection is dead.
    pub(super) is_dead: bool,
    pub(super) error: Option<Errno>,
    pub(super) resets_at_close: bool,
    /// A send has found too little room, or a poll none (SOCK_NOSPACE): new room is an event.
    pub(super) lacks_room: bool,
}

impl Socket {
    pub(super) fn connected(cookie: u64, own: SocketAddr, peer: SocketAddr) -> Self {
        Self {
            cookie,
            own,
            peer,
            other: None,
            is_datagram: false,
            is_nonblocking: false,
            receive_limit: None,
            send_limit: None,
            options: BTreeMap::new(),
            incoming: VecDeque::new(),
            mark: None,
            in_flight: VecDeque::new(),
            datagrams: VecDeque::new(),
            received: 0,
            has_end: false,
            is_refused: false,
            is_shut: false,
            is_shut_in: false,
            is_dead: false,
            error: None,
            resets_at_close: false,
            lacks_room: false,
        }
    }

    pub(super) fn datagram(cookie: u64, own: SocketAddr) -> Self {
        let nobody = SocketAddr::from(([0, 0, 0, 0], 0));
        Self { is_datagram: true, ..Self::connected(cookie, own, nobody) }
    }

    pub(super) fn room(&self) -> usize {
        ROOM.saturating_sub(self.incoming.len() + self.in_flight())
    }

    /// Returns how many bytes are on their way to it.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.iter().map(Packet::len).sum()
    }

    /// Returns how many bytes can be received before urgent data (tcp_inq).
    pub(super) fn unread(&self) -> usize {
        self.mark.unwrap_or(self.incoming.len())
    }

    /// Takes or peeks at unread bytes: up to urgent data, or behind urgent data that comes first
    /// (tcp_recvmsg).
    pub(super) fn receive(&mut self, most: usize, keep: bool) -> Result<Vec<u8>, Errno> {
        let skipped = usize::from(most > 0 && self.mark == Some(0));
        let end = if skipped > 0 { self.incoming.len() } else { self.unread() };
        let count = most.min(end - skipped);
        let bytes: Vec<u8> = self.incoming.iter().skip(skipped).take(count).copied().collect();
        if !keep {
            self.incoming.drain(..skipped + count);
            self.mark = self.mark.and_then(|mark| mark.checked_sub(skipped + count));
        }
        // A call for no bytes returns at once if there are some (`tcp_recvmsg`).
        if count > 0 || most == 0 && end > skipped {
            return Ok(bytes);
        }
        if self.has_end || self.is_shut_in {
            return Ok(Vec::new());
        }
        match self.error.take() {
            Some(error) => Err(error),
            None if self.is_dead => Ok(Vec::new()),
            None => Err(Errno::AGAIN),
        }
    }

    /// Returns the socket's events, if the peer has this much room (tcp_poll).
    pub(super) fn readiness(&self, peers_room: usize) -> PollFlags {
        let mut ready = PollFlags::empty();
        let is_over = self.is_dead || self.has_end || self.is_shut_in;
        let is_any = self.incoming.len() > usize::from(self.mark == Some(0));
        if is_over || is_any || !self.datagrams.is_empty() {
            ready |= PollFlags::IN | PollFlags::RDNORM;
        }
        if self.mark.is_some() {
            ready |= PollFlags::PRI;
        }
        if self.error.is_some() {
            ready |= PollFlags::ERR | PollFlags::IN | PollFlags::RDNORM;
        }
        if is_over {
            ready |= PollFlags::RDHUP;
        }
        if self.is_dead || (self.is_shut && (self.has_end || self.is_shut_in)) {
            ready |= PollFlags::HUP;
        }
        if peers_room > 0 || self.is_dead || self.is_shut || self.is_refused || self.is_datagram {
            ready |= PollFlags::OUT | PollFlags::WRNORM;
        }
        ready
    }
}
