//! The protocol of one endpoint: requests and datagrams in, datagrams and events out.
//!
//! The machine has no socket, clock or random source. Times are in microseconds from any origin;
//! everything random derives from the endpoint's secret.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;

use weft_wire::rd::{HEADER_LEN, Header, Kind, Reason, parse, quoted, seal};

use super::limits::{
    ATOMIC_LEN, BURST, RECEIVE_COST, REQUEST_BYTES_MAX, REQUESTS_MAX, SEND_LEN_MAX,
    TRANSFER_LEN_MAX, UNPROVEN_MAX,
};
use super::memory::Memory;
use super::message::{Message, MessageKind, atomic};
use super::peer::{Bond, RdPeer};
use super::refusals::Refusals;
use super::request::{Data, Event, Notice, PeerAddress, Request, Route, Status};
use super::shared::{EndpointState, Settings};
use super::table::Table;
use super::time::NEVER;
use crate::{Errno, Result};

/// The state of one endpoint.
#[derive(Debug)]
pub(super) struct Machine {
    table: Table,
    shared: EndpointState,
    /// The deadline of each peer with its slot.
    timers: BTreeSet<(u64, u32)>,
    /// The slots of peers that may have something to send.
    ready: VecDeque<u32>,
    refusals: Refusals,
    /// Number of datagrams that the first of them has sent in a row.
    burst: u32,
}

impl Machine {
    pub(super) fn new(config: Settings, secret: [u64; 2]) -> Self {
        Self {
            table: Table::default(),
            shared: EndpointState::new(config, secret),
            timers: BTreeSet::new(),
            ready: VecDeque::new(),
            refusals: Refusals::default(),
            burst: 0,
        }
    }

    /// Number of peers whose state is kept.
    pub(super) fn peers(&self) -> usize {
        self.table.len()
    }

    /// Starts a request; an event with `id` reports its end.
    ///
    /// # Errors
    /// `EMSGSIZE` if it is too long, or an atomic's memory has not eight bytes; `EAGAIN` while too
    /// many are open, `ENOBUFS` if no further peer can be stored.
    pub(super) fn post(
        &mut self,
        now: u64,
        to: PeerAddress,
        id: u64,
        request: Request,
    ) -> Result<()> {
        let route = Route::new(self.shared.config.endpoint, to);
        self.post_on(now, route, id, request)
    }

    /// Starts a request on a route.
    ///
    /// # Errors
    /// Those of [`Machine::post`].
    pub(super) fn post_on(
        &mut self,
        now: u64,
        route: Route,
        id: u64,
        request: Request,
    ) -> Result<()> {
        let (len, max, own_bytes) = match &request {
            Request::Send(bytes) => (bytes.len(), SEND_LEN_MAX, bytes.len()),
            Request::Write { data: Data::Bytes(bytes), .. } => {
                (bytes.len(), TRANSFER_LEN_MAX, bytes.len())
            }
            Request::Write { data: Data::Registered(from), .. } => {
                (from.len as usize, TRANSFER_LEN_MAX, 0)
            }
            Request::Read { into, .. } => (into.len as usize, TRANSFER_LEN_MAX, 0),
            Request::Atomic { into, .. } => (into.len as usize, ATOMIC_LEN, 0),
        };
        let is_short = matches!(request, Request::Atomic { .. }) && len < ATOMIC_LEN as usize;
        if len > max as usize || is_short {
            return Err(Errno::MSGSIZE);
        }
        let bytes = self.shared.request_bytes + own_bytes;
        if self.shared.requests >= REQUESTS_MAX || bytes > REQUEST_BYTES_MAX {
            return Err(Errno::AGAIN);
        }
        let slot = self.slot(now, route)?;
        let Some(peer) = self.table.get_mut(slot) else { return Err(Errno::NOBUFS) };
        let message = match request {
            Request::Send(bytes) => Message::new(id, MessageKind::Send, Data::Bytes(bytes)),
            Request::Write { data, key, addr } => {
                Message::new(id, MessageKind::Write { key, addr }, data)
            }
            Request::Read { into, key, addr } => {
                self.shared.next_read = self.shared.next_read.wrapping_add(1);
                let kind = MessageKind::Read { read: self.shared.next_read, into, key, addr };
                Message::new(id, kind, Data::Bytes(Box::default()))
            }
            Request::Atomic { op, into, key, addr } => {
                self.shared.next_read = self.shared.next_read.wrapping_add(1);
                atomic(id, self.shared.next_read, into, op, (key, addr))
            }
        };
        self.shared.requests += 1;
        self.shared.request_bytes = bytes;
        peer.enqueue(now, &mut self.shared, message);
        self.enlist(slot);
        Ok(())
    }

    /// The slot of a peer, whose state is made if there is none.
    fn slot(&mut self, now: u64, route: Route) -> Result<u32> {
        if let Some(slot) = self.table.find(&route) {
            return Ok(slot);
        }
        let peer = RdPeer::new(now, &mut self.shared, route, true);
        self.table.insert(now, &mut self.shared, peer).ok_or(Errno::NOBUFS)
    }

    /// Says what a peer is to the connections of this port.
    ///
    /// # Errors
    /// `ENOBUFS` if no further peer can be stored.
    pub(super) fn set_bond(&mut self, now: u64, route: Route, bond: Bond) -> Result<()> {
        let slot = self.slot(now, route)?;
        if let Some(peer) = self.table.get_mut(slot) {
            peer.bond = bond;
        }
        Ok(())
    }

    /// Ends what is between a peer and this port: its access to memory, and all requests to it.
    pub(super) fn sever(&mut self, now: u64, route: &Route) {
        let Some(slot) = self.table.find(route) else { return };
        let Some(peer) = self.table.get_mut(slot) else { return };
        peer.bond = Bond::None;
        if peer.outbox.is_some() {
            peer.fail(now, &mut self.shared, Status::PeerUnreachable);
        }
        self.enlist(slot);
    }

    /// Notes that a peer is nothing to the connections of this port any more. Requests to it go on.
    pub(super) fn release(&mut self, route: &Route) {
        let slot = self.table.find(route);
        if let Some(peer) = slot.and_then(|slot| self.table.get_mut(slot)) {
            peer.bond = Bond::None;
        }
    }

    /// Whether a request that owns so many bytes can be posted.
    pub(super) fn has_room(&self, own_bytes: usize) -> bool {
        self.shared.requests < REQUESTS_MAX
            && self.shared.request_bytes + own_bytes <= REQUEST_BYTES_MAX
    }

    /// Whether there is state of a peer.
    pub(super) fn knows(&self, route: &Route) -> bool {
        self.table.find(route).is_some()
    }

    /// When something last came from a peer.
    pub(super) fn seen_at(&mut self, route: &Route) -> Option<u64> {
        let slot = self.table.find(route)?;
        self.table.get_mut(slot).map(|peer| peer.active_at)
    }

    /// Whether no request is open.
    pub(super) fn is_quiet(&self) -> bool {
        self.shared.requests == 0
    }

    /// Processes a received datagram.
    pub(super) fn input(
        &mut self,
        now: u64,
        from: SocketAddr,
        datagram: &[u8],
        memory: &mut dyn Memory,
    ) {
        let Ok((header, body)) = parse(datagram) else { return };
        let Settings { endpoint, connected, .. } = self.shared.config;
        let ours = connected || header.destination.endpoint == endpoint;
        if !ours || header.source.epoch == 0 {
            return;
        }
        let peer = PeerAddress { socket: from, endpoint: header.source.endpoint };
        let route = Route::new(header.destination.endpoint, peer);
        let slot = match self.table.find(&route) {
            Some(slot) => slot,
            None => match self.admit_sender(now, route, &header) {
                Some(slot) => slot,
                None => return,
            },
        };
        let Some(peer) = self.table.get_mut(slot) else { return };
        self.refusals.clear(from);
        peer.input(now, &mut self.shared, memory, &header, body, datagram.len());
        if std::mem::take(&mut self.shared.no_room) {
            self.table.reclaim(now, &mut self.shared);
        }
        self.enlist(slot);
    }

    /// Handles that the host of an address has answered a datagram, which began with `quote`: no
    /// program receives there. No stranger knows the epoch in it, which only that host is sent.
    pub(super) fn refused(&mut self, now: u64, to: SocketAddr, quote: &[u8]) {
        let Ok(header) = quoted(quote) else { return };
        let address = PeerAddress { socket: to, endpoint: header.destination.endpoint };
        let route = Route::new(header.source.endpoint, address);
        let peer = self.table.find(&route).and_then(|slot| self.table.get_mut(slot));
        let Some(peer) = peer.filter(|peer| peer.own.epoch == header.source.epoch) else { return };
        // Nothing is lost with a connection that does not exist yet.
        let is_new = peer.dialled && !peer.proven;
        if !self.refusals.add(now, to) && !is_new {
            return;
        }
        self.refusals.clear(to);
        for slot in self.table.at(to) {
            let Some(peer) = self.table.get_mut(slot) else { continue };
            peer.gone(now, &mut self.shared);
            self.enlist(slot);
        }
    }

    /// Decides whether to keep state of the sender of a datagram. Returns its slot.
    fn admit_sender(&mut self, now: u64, route: Route, header: &Header) -> Option<u32> {
        let data = header.kind == Kind::Data;
        if !(data || header.kind == Kind::Ack && header.probe) {
            return None;
        }
        // Numbers besides the endpoint's own are those of connections that were made here.
        if !header.syn || route.local != self.shared.config.endpoint {
            if data {
                let kind = Kind::Reset(Reason::UnknownStream);
                self.shared.reply(now, route, header, kind, None);
            }
            return None;
        }
        let proof = header.destination.epoch == self.shared.epoch(&route);
        let first = header.destination.epoch == 0 && self.shared.unproven < UNPROVEN_MAX;
        if !proof && !first {
            self.shared.reply(now, route, header, Kind::Challenge, None);
            return None;
        }
        let peer = RdPeer::new(now, &mut self.shared, route, false);
        self.table.insert(now, &mut self.shared, peer)
    }

    /// Produces the next datagram to be sent now, and returns its destination; `None` if there is
    /// none.
    pub(super) fn output(
        &mut self,
        now: u64,
        memory: &mut dyn Memory,
        buf: &mut Vec<u8>,
    ) -> Option<SocketAddr> {
        if let Some((to, header)) = self.shared.replies.pop_front() {
            buf.clear();
            buf.resize(HEADER_LEN, 0);
            header.emit(buf);
            seal(buf);
            return Some(to);
        }
        while let Some(&slot) = self.ready.front() {
            let Some(peer) = self.table.get_mut(slot) else {
                self.ready.pop_front();
                continue;
            };
            let more = self.burst < BURST;
            if more && peer.transmit(now, &mut self.shared, memory, buf) {
                self.burst += 1;
                return Some(peer.route.peer().socket);
            }
            self.burst = 0;
            self.ready.pop_front();
            if more {
                peer.listed = false;
                self.set_timer(slot);
            } else {
                self.ready.push_back(slot);
            }
        }
        None
    }

    /// When [`Machine::expire`] must be called, if nothing else happens.
    pub(super) fn next_timeout(&self) -> Option<u64> {
        self.timers.first().map(|&(at, _)| at)
    }

    /// Handles the deadlines that have passed.
    pub(super) fn expire(&mut self, now: u64) {
        while let Some(&(at, slot)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            let Some(peer) = self.table.get_mut(slot) else { continue };
            peer.deadline = NEVER;
            peer.expired(now, &mut self.shared);
            self.enlist(slot);
        }
    }

    /// Whether there may be a datagram to send.
    pub(super) fn has_output(&self) -> bool {
        !self.ready.is_empty() || !self.shared.replies.is_empty()
    }

    /// Whether there is an event for the program.
    pub(super) fn has_event(&self) -> bool {
        !self.shared.notices.is_empty()
    }

    /// Returns the next event for the program of an endpoint without connections.
    pub(super) fn next_event(&mut self, now: u64) -> Option<Event> {
        loop {
            return Some(match self.next_notice(now)? {
                Notice::Received { route, bytes } => Event::Received { from: route.peer(), bytes },
                Notice::Completed { id, status } => Event::Completed { id, status },
                Notice::Lost { .. } => continue,
            });
        }
    }

    /// Returns the next thing that has happened.
    pub(super) fn next_notice(&mut self, now: u64) -> Option<Notice> {
        let notice = self.shared.notices.pop_front()?;
        if let Notice::Received { bytes, .. } = &notice {
            self.shared.receive_room += bytes.len() + RECEIVE_COST;
            let half = self.shared.config.receive_bytes / 2;
            if self.shared.receive_room >= half || self.shared.notices.is_empty() {
                self.notify_starved(now);
            }
        }
        Some(notice)
    }

    /// Notifies the peers that found no room that there is some.
    fn notify_starved(&mut self, now: u64) {
        for route in std::mem::take(&mut self.shared.starved) {
            let Some(slot) = self.table.find(&route) else { continue };
            let Some(peer) = self.table.get_mut(slot) else { continue };
            peer.starved = false;
            if std::mem::replace(&mut peer.closed, false) {
                peer.ack_at = now;
                self.enlist(slot);
            }
        }
    }

    fn enlist(&mut self, slot: u32) {
        if let Some(peer) = self.table.get_mut(slot)
            && !std::mem::replace(&mut peer.listed, true)
        {
            self.ready.push_back(slot);
        }
    }

    fn set_timer(&mut self, slot: u32) {
        let Some(peer) = self.table.get_mut(slot) else { return };
        let deadline = peer.next_deadline(&self.shared);
        if deadline != peer.deadline {
            self.timers.remove(&(peer.deadline, slot));
            peer.deadline = deadline;
            if deadline != NEVER {
                self.timers.insert((deadline, slot));
            }
        }
    }
}

/// The receive state that the simulation changes to make a defect: the next sequence, and the
/// queues.
#[cfg(test)]
pub(super) type ReceiveState = (u32, [weft_wire::ddp::UntaggedQueue; 2]);

#[cfg(test)]
impl Machine {
    fn peer(&mut self, address: &PeerAddress) -> Option<&mut RdPeer> {
        let route = Route::new(self.shared.config.endpoint, *address);
        let slot = self.table.find(&route)?;
        self.table.get_mut(slot)
    }

    pub(super) fn receive_state(&mut self, address: &PeerAddress) -> Option<ReceiveState> {
        self.peer(address).map(|peer| (peer.recv_next, peer.queues))
    }

    pub(super) fn set_receive_state(&mut self, address: &PeerAddress, state: Option<ReceiveState>) {
        if let (Some(peer), Some(state)) = (self.peer(address), state) {
            (peer.recv_next, peer.queues) = state;
        }
    }

    /// Number of our stream to a peer, and its next sequence.
    pub(super) fn send_state(&mut self, address: &PeerAddress) -> Option<(u32, u32)> {
        self.peer(address).map(|peer| (peer.own.stream, peer.next_seq))
    }

    pub(super) fn sweep(&mut self, now: u64) {
        self.table.sweep(now, &mut self.shared);
    }

    /// Whether all shared resources have been returned. All peers must have been forgotten.
    pub(super) fn is_clean(&self) -> bool {
        let EndpointState { config, requests, request_bytes, .. } = &self.shared;
        let EndpointState { receive_room, early_room, unproven, .. } = &self.shared;
        (*requests, *request_bytes, *unproven) == (0, 0, 0)
            && (*receive_room, *early_room)
                == (config.receive_bytes, super::limits::EARLY_BYTES_MAX)
            && self.timers.is_empty()
            && self.peers() == 0
    }
}
