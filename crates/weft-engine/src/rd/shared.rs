//! State that the peers of an endpoint share: its settings, its limits, and replies that need no
//! peer state.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;

use weft_wire::rd::{Acknowledgement, Header, Kind, RdEnd};

use super::limits::{EARLY_BYTES_MAX, REPLIES_MAX, SPARE_MAX};
use super::outbox::Outbox;
use super::request::{Notice, Route, Status};
use super::time::stamp;

/// The settings of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// The endpoint's number.
    pub(super) endpoint: u16,
    /// Largest datagram in bytes.
    pub(super) datagram_len: usize,
    /// Maximum number of peers whose state is kept.
    pub(super) peers_max: usize,
    /// Bytes of received Sends that may wait for the program.
    pub(super) receive_bytes: usize,
    /// Whether it has connections: see [`super::connections`].
    pub(super) connected: bool,
}

/// The shared state.
#[derive(Debug)]
pub(super) struct EndpointState {
    pub(super) config: Settings,
    /// The secret from which epochs are derived.
    secret: [u64; 2],
    next_stream: u32,
    pub(super) next_read: u32,
    /// Number of open requests, and of the bytes that they own.
    pub(super) requests: usize,
    pub(super) request_bytes: usize,
    pub(super) receive_room: usize,
    pub(super) early_room: usize,
    pub(super) unproven: usize,
    /// Peers that found no room for a Send.
    pub(super) starved: Vec<Route>,
    /// Whether a Send has just found no room.
    pub(super) no_room: bool,
    pub(super) notices: VecDeque<Notice>,
    pub(super) replies: VecDeque<(SocketAddr, Header)>,
    #[allow(clippy::vec_box)] // They move into peers, which keep a pointer.
    pub(super) spare: Vec<Box<Outbox>>,
}

impl EndpointState {
    pub(super) fn new(config: Settings, secret: [u64; 2]) -> Self {
        Self {
            config,
            secret,
            next_stream: 0,
            // A response to an earlier process at this address must not be taken for ours.
            next_read: secret[0] as u32,
            requests: 0,
            request_bytes: 0,
            receive_room: config.receive_bytes,
            early_room: EARLY_BYTES_MAX,
            unproven: 0,
            starved: Vec::new(),
            no_room: false,
            notices: VecDeque::new(),
            replies: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    pub(super) fn datagram_len(&self) -> u32 {
        // A datagram has at most 65,507 bytes.
        self.config.datagram_len as u32
    }

    /// Our epoch towards an address. It cannot be guessed, and it need not be stored: a sender that
    /// repeats it has received something at that address.
    pub(super) fn epoch(&self, route: &Route) -> u32 {
        #[allow(deprecated)] // SipHash with a key; the hasher that replaces it has none.
        let mut hasher = std::hash::SipHasher::new_with_keys(self.secret[0], self.secret[1]);
        route.hash(&mut hasher);
        (hasher.finish() as u32).max(1)
    }

    pub(super) fn new_stream(&mut self) -> u32 {
        self.next_stream = self.next_stream.wrapping_add(1);
        self.next_stream
    }

    pub(super) fn complete(&mut self, id: u64, own_bytes: usize, status: Status) {
        self.requests -= 1;
        self.request_bytes -= own_bytes;
        self.notices.push_back(Notice::Completed { id, status });
    }

    pub(super) fn keep_spare(&mut self, mut outbox: Box<Outbox>) {
        if self.spare.len() < SPARE_MAX {
            outbox.clear();
            self.spare.push(outbox);
        }
    }

    /// Replies to a datagram without peer state: at most one reply for each, and not longer than
    /// it.
    pub(super) fn reply(
        &mut self,
        now: u64,
        to: Route,
        header: &Header,
        kind: Kind,
        next: Option<u32>,
    ) {
        if self.replies.len() >= REPLIES_MAX {
            return;
        }
        let reply = Header {
            kind,
            syn: false,
            probe: false,
            lost: false,
            source: RdEnd {
                endpoint: to.local,
                epoch: self.epoch(&to),
                stream: header.destination.stream,
            },
            destination: header.source,
            window: 0,
            sequence: 0,
            ack: next.map(|next| Acknowledgement { next, selective: 0 }),
            timestamp: stamp(now),
            echo: header.timestamp,
        };
        self.replies.push_back((to.peer().socket, reply));
    }
}
