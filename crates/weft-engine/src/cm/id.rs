//! Identifiers: what a `struct rdma_cm_id` stands for.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use weft_sys::{Lock, LockGuard, UdpSocket, interface_addresses};

use super::channel::{Delivery, EventChannel};
use super::dial::Call;
use super::endpoint::Endpoint;
use super::event::{self, EventKind, EventParam};
use super::handshake::Greeted;
use super::incoming::{Incoming, ProgramRequest};
use super::limits::{BACKLOG_MAX, DISCONNECT_TIME, TIMEWAIT};
use super::listen::{Callee, Listener};
use super::lookup::Lookup;
use super::option::{IdOption, Options};
use super::port::Port;
use super::service::{Inquiry, Service};
use super::sidr;
use super::socket::{concrete, source_for};
use crate::device::{self, Gid, gid_of};
use crate::hello::Identity;
use crate::mpa::dial::Dial;
use crate::qp::pending;
use crate::reactor::Source;
use crate::strangers::Place;
use crate::timer::Timer;
use crate::{Errno, Result};

/// `enum rdma_port_space`: what an identifier is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortSpace {
    /// Connections: `RDMA_PS_TCP`, and `RDMA_PS_IB` with IP addresses.
    Connected,
    /// Datagrams: `RDMA_PS_UDP` and `RDMA_PS_IPOIB`.
    Datagram,
}

/// An event of an identifier.
#[derive(Debug)]
pub struct Event {
    /// The identifier that it happened to; of a connection request the new one.
    pub id: Arc<Id>,
    /// Of a connection request, the listener.
    pub listener: Option<Arc<Id>>,
    /// What happened.
    pub kind: EventKind,
    /// 0; a negative `errno`; or of a rejection the reason, see [`reject`](super::reject).
    pub status: i32,
    /// What came with it.
    pub param: EventParam,
    /// Of a connection request that the program has not taken, a place among those.
    place: Option<Place>,
}

/// The channel of the events of identifiers.
pub type Channel = EventChannel<Event>;

/// An identifier: a connection, a connection attempt, or a listener.
pub struct Id {
    pub(super) this: Weak<Self>,
    /// The C library's own name for this object; events carry it to the program.
    pub cookie: AtomicUsize,
    space: PortSpace,
    /// Connection requests that the program has not taken.
    requests_waiting: AtomicU32,
    inner: Lock<Inner>,
}

pub(super) struct Inner {
    pub(super) channel: Arc<Channel>,
    pub(super) options: Options,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) port: Option<Port>,
    /// In the place of a port, with datagrams.
    pub(super) socket: Option<UdpSocket>,
    /// Multicast groups that it has joined.
    pub(super) groups: Vec<Membership>,
    pub(super) depths: Depths,
    pub(super) peer_qp: Option<PeerQp>,
    /// Whether queue pairs know that we connect them to `peer_qp`.
    expecting: bool,
    backlog: u32,
    /// When the end that the program has made is to be reported to it.
    disconnecting: Option<Timer>,
    /// When the end of the connection is to be reported as forgotten.
    timewait: Option<Timer>,
    /// The peer has disconnected, which has not been reported to the program.
    pub(super) unread: Option<UnreadWait>,
    pub(super) phase: Phase,
}

/// The wait for the program to take what completed before the peer disconnected.
pub(super) struct UnreadWait {
    /// When the end is reported in any case.
    pub(super) limit: Timer,
    /// When to look next.
    pub(super) look: Timer,
}

/// Reads and atomics outstanding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Depths {
    /// The peer's, with us.
    pub(super) responder_resources: u8,
    /// Ours, with the peer.
    pub(super) initiator_depth: u8,
}

/// Where the peer's queue pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerQp {
    pub(super) gid: Gid,
    pub(super) number: u32,
    /// It is no Weft peer's, and the number is made up.
    pub(super) foreign: bool,
}

/// Our end of a connection.
#[derive(Clone, Debug)]
pub(super) struct End {
    pub(super) endpoint: Arc<dyn Endpoint>,
    /// The queue pair belongs to the identifier, which changes its state.
    pub(super) managed: bool,
}

/// A multicast group that an identifier has joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Membership {
    pub(super) group: IpAddr,
}

/// How far an identifier has come.
pub(super) enum Phase {
    /// New, or bound.
    Idle,
    AddressResolved,
    RouteResolved,
    Listening(Arc<Listener>),
    /// Active side: the request is under way.
    Dialling {
        dial: Arc<Dial<Call>>,
        end: End,
    },
    /// Active side: the peer accepted; the program is to connect its queue pair.
    Responded {
        greeted: Box<Greeted>,
        identity: Identity,
    },
    /// Passive side: the program is to accept or reject. `foreign`: the peer is no Weft peer.
    Requested {
        incoming: Arc<Incoming>,
        foreign: bool,
    },
    /// The queue pair gets its connection. `gone`: the peer has left already.
    Joining {
        end: End,
        gone: bool,
    },
    Connected {
        end: End,
    },
    /// Datagrams: who wants to know the queue pair is answered.
    Serving(Arc<Service>),
    /// Datagrams, active side: the service is asked.
    Asking(Arc<Lookup>),
    /// Datagrams, passive side: the program is to answer.
    Asked(Arc<Inquiry>),
    /// Datagrams: there is nothing more to do.
    Answered,
    /// Over, or never come about.
    Disconnected {
        end: Option<End>,
    },
    Destroyed,
}

impl Id {
    /// `rdma_create_id`.
    #[must_use]
    pub fn new(channel: &Arc<Channel>, space: PortSpace) -> Arc<Self> {
        Self::with(
            Inner {
                channel: Arc::clone(channel),
                options: Options::default(),
                local: None,
                peer: None,
                port: None,
                socket: None,
                groups: Vec::new(),
                depths: Depths::default(),
                peer_qp: None,
                expecting: false,
                backlog: 0,
                disconnecting: None,
                timewait: None,
                unread: None,
                phase: Phase::Idle,
            },
            space,
        )
    }

    fn with(inner: Inner, space: PortSpace) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            cookie: AtomicUsize::new(0),
            space,
            requests_waiting: AtomicU32::new(0),
            inner: Lock::new(inner),
        })
    }

    /// The identifier of a connection request to this listener, whose `inner` is given.
    pub(super) fn child(
        &self,
        inner: &Inner,
        incoming: Arc<Incoming>,
        depths: Depths,
        identity: Option<Identity>,
    ) -> Arc<Self> {
        let ends = incoming.addresses();
        let phase = Phase::Requested { incoming, foreign: identity.is_none() };
        let child = self.child_for(inner, ends, phase);
        {
            let mut inner = child.lock();
            inner.depths = depths;
            inner.peer_qp = Some(PeerQp::new(identity, ends[1].ip()));
            inner.expect();
        }
        child
    }

    /// An identifier for a request to this listener: our address and the peer's.
    pub(super) fn child_for(
        &self,
        inner: &Inner,
        [local, peer]: [SocketAddr; 2],
        phase: Phase,
    ) -> Arc<Self> {
        let child = Self::new(&inner.channel, self.space);
        {
            let mut fresh = child.lock();
            fresh.options = inner.options;
            (fresh.local, fresh.peer) = (Some(local), Some(peer));
            fresh.phase = phase;
        }
        child
    }

    pub(super) fn is_datagram(&self) -> bool {
        self.space == PortSpace::Datagram
    }

    pub(super) fn lock(&self) -> LockGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(super) fn arc(&self) -> Arc<Self> {
        self.this.upgrade().expect("called through an `Arc` of it")
    }

    /// Our address, once bound, resolved or requested.
    #[must_use]
    pub fn local(&self) -> Option<SocketAddr> {
        self.lock().local
    }

    /// The peer's address, once resolved or requested.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.lock().peer
    }

    /// `rdma_set_option`.
    ///
    /// # Errors
    /// `EINVAL` when it is too late for the option; `EADDRINUSE` when the bound port is not free
    /// under the new rules.
    pub fn set_option(&self, option: IdOption) -> Result<()> {
        let mut inner = self.lock();
        let idle = matches!(inner.phase, Phase::Idle);
        match option {
            IdOption::Tos(tos) => inner.options.tos = Some(tos),
            IdOption::AckTimeout(timeout) => inner.options.ack_timeout = Some(timeout),
            IdOption::ReuseAddress(reuse) if idle => inner.options.reuse_address = reuse,
            IdOption::AfOnly(only) if idle => {
                inner.options.af_only = Some(only);
                if let Some(port) = inner.port.take() {
                    let address = port.address();
                    drop(port);
                    inner.port = Some(Port::bind(address, &inner.options)?);
                }
            }
            IdOption::ReuseAddress(_) | IdOption::AfOnly(_) => return Err(Errno::INVAL),
        }
        Ok(())
    }

    /// `rdma_bind_addr`: takes a local address, wildcard or not, and a port, which may be 0.
    ///
    /// # Errors
    /// `EINVAL` when bound already; `EADDRNOTAVAIL` for an address that is not ours, `ENODEV` for
    /// one without a device; `EADDRINUSE` for a port that is taken.
    pub fn bind(&self, address: SocketAddr) -> Result<()> {
        let mut inner = self.lock();
        if !matches!(inner.phase, Phase::Idle) || inner.local.is_some() {
            return Err(Errno::INVAL);
        }
        check_ours(address)?;
        inner.local = Some(address);
        // Others may have bound a port that is to be shared; who may listen is found out then.
        let shared = inner.options.reuse_address && address.port() != 0;
        if self.is_datagram() {
            inner.bind_datagrams(address).inspect_err(|_| inner.local = None)?;
        } else if !shared {
            let port = Port::bind(address, &inner.options);
            inner.local = port.as_ref().ok().map(Port::address);
            inner.port = Some(port?);
        }
        Ok(())
    }

    /// `rdma_resolve_addr`: finds the local address that leads to `destination`, and binds to it
    /// unless bound already. There is nothing to wait for: the event comes at once.
    ///
    /// # Errors
    /// `EINVAL` in the wrong state or for addresses of two families; `ENETUNREACH` when there is no
    /// route; as [`Id::bind`] for `source`.
    pub fn resolve_address(
        &self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
    ) -> Result<()> {
        let mut inner = self.lock();
        if !matches!(inner.phase, Phase::Idle) {
            return Err(Errno::INVAL);
        }
        let wanted = inner.local.or(source);
        if wanted.is_some_and(|wanted| wanted.is_ipv4() != destination.is_ipv4()) {
            return Err(Errno::INVAL);
        }
        let peer = concrete(destination);
        let mut local = match wanted.filter(|wanted| !wanted.ip().is_unspecified()) {
            Some(address) => address,
            None => source_for(peer)?,
        };
        check_ours(local)?;
        local.set_port(wanted.map_or(0, |wanted| wanted.port()));
        if self.is_datagram() {
            if inner.socket.is_none() {
                inner.bind_datagrams(local)?;
            }
            local.set_port(inner.local.map_or(0, |local| local.port()));
        } else {
            if inner.port.is_none() {
                inner.port = Some(Port::bind_source(local, &inner.options)?);
            }
            local.set_port(inner.port.as_ref().map_or(0, |port| port.address().port()));
        }
        inner.local = Some(local);
        inner.peer = Some(peer);
        inner.phase = Phase::AddressResolved;
        self.post(&inner, EventKind::AddrResolved, 0, EventParam::default());
        Ok(())
    }

    /// `rdma_resolve_route`: the event comes at once.
    ///
    /// # Errors
    /// `EINVAL` before the address is resolved.
    pub fn resolve_route(&self) -> Result<()> {
        let mut inner = self.lock();
        if !matches!(inner.phase, Phase::AddressResolved) {
            return Err(Errno::INVAL);
        }
        inner.phase = Phase::RouteResolved;
        self.post(&inner, EventKind::RouteResolved, 0, EventParam::default());
        Ok(())
    }

    /// `rdma_listen`: a backlog of 0, or beyond [`BACKLOG_MAX`], is [`BACKLOG_MAX`], as in the
    /// Linux kernel.
    ///
    /// # Errors
    /// `EINVAL` in the wrong state; `EADDRINUSE` when somebody else listens on the port.
    pub fn listen(&self, backlog: u32) -> Result<()> {
        if self.is_datagram() {
            return self.listen_for_datagrams(backlog);
        }
        let mut inner = self.lock();
        if !matches!(inner.phase, Phase::Idle) {
            return Err(Errno::INVAL);
        }
        let port = match inner.port.take() {
            Some(port) => port,
            None => {
                let any = SocketAddr::from(([0, 0, 0, 0], 0));
                Port::bind(inner.local.unwrap_or(any), &inner.options)?
            }
        };
        inner.local = Some(port.address());
        inner.set_backlog(backlog);
        let callee: Weak<dyn Callee> = Weak::clone(&self.this) as _;
        let reactor = inner.channel.reactor();
        inner.phase = Phase::Listening(Listener::start(reactor, port, inner.options, callee)?);
        Ok(())
    }

    /// `rdma_migrate_id`: events go to another channel from now on, those that wait as well.
    pub fn migrate(&self, channel: &Arc<Channel>) {
        let mut inner = self.lock();
        let waiting = inner.channel.extract(|event| self.owns(event));
        inner.channel = Arc::clone(channel);
        for event in waiting {
            if event.listener.is_some() {
                event.id.lock().channel = Arc::clone(channel);
            }
            channel.post(event);
        }
    }

    /// `rdma_destroy_id`: cancels what is under way and ends the connection. Events that the
    /// program has not taken are dropped.
    pub fn destroy(&self) {
        let (phase, events) = {
            let mut inner = self.lock();
            inner.stop_expecting();
            inner.port = None;
            inner.socket = None;
            let events = inner.channel.extract(|event| self.owns(event));
            (std::mem::replace(&mut inner.phase, Phase::Destroyed), events)
        };
        match phase {
            Phase::Listening(listener) => listener.close(),
            Phase::Dialling { dial, .. } => dial.cancel(),
            Phase::Requested { incoming, .. } => incoming.reject(&[]),
            Phase::Joining { end, .. } | Phase::Connected { end } => end.endpoint.disconnect(),
            Phase::Serving(service) => service.close(),
            Phase::Asking(lookup) => lookup.cancel(),
            Phase::Asked(inquiry) => inquiry.answer(sidr::REJECTED, 0, 0, &[]),
            Phase::Answered
            | Phase::Idle
            | Phase::AddressResolved
            | Phase::RouteResolved
            | Phase::Responded { .. }
            | Phase::Disconnected { .. }
            | Phase::Destroyed => {}
        }
        for event in events {
            if event.listener.is_some() {
                event.id.destroy();
            }
        }
    }

    fn owns(&self, event: &Event) -> bool {
        std::ptr::eq(Arc::as_ptr(event.owner()), self)
    }

    /// The program takes an event of ours. Called with the channel locked.
    fn event_taken(&self, event: &Event) {
        if event.kind == EventKind::ConnectRequest {
            self.requests_waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Queues an event of this identifier.
    pub(super) fn post(&self, inner: &Inner, kind: EventKind, status: i32, param: EventParam) {
        inner.channel.post(Event {
            id: self.arc(),
            listener: None,
            kind,
            status,
            param,
            place: None,
        });
    }

    /// Queues the request of `child`. `false` when the program lags behind by the backlog.
    pub(super) fn post_request(
        &self,
        inner: &Inner,
        child: &Arc<Self>,
        param: EventParam,
        place: Option<Place>,
    ) -> bool {
        if self.requests_waiting.load(Ordering::Acquire) >= inner.backlog {
            return false;
        }
        self.requests_waiting.fetch_add(1, Ordering::AcqRel);
        let _in_order = event::in_order();
        let (listener, kind) = (Some(self.arc()), EventKind::ConnectRequest);
        let id = Arc::clone(child);
        inner.channel.post(Event { id, listener, kind, status: 0, param, place });
        true
    }

    /// Reports the end of a connection that the program ends, soon.
    pub(super) fn post_disconnected_soon(&self) {
        // Locked before, for the timer may expire at once.
        let mut inner = self.lock();
        let reactor = inner.channel.reactor();
        inner.disconnecting = Some(Timer::after(reactor, DISCONNECT_TIME, self.arc()));
    }

    /// Reports the end of the connection, and later that it is forgotten.
    pub(super) fn post_disconnected(&self, inner: &mut Inner) {
        self.post(inner, EventKind::Disconnected, 0, EventParam::default());
        let reactor = inner.channel.reactor();
        inner.timewait = Some(Timer::after(reactor, TIMEWAIT, self.arc()));
    }
}

impl Event {
    /// Whose acknowledgement is due: the identifier that the event keeps from being destroyed.
    #[must_use]
    pub fn owner(&self) -> &Arc<Id> {
        self.listener.as_ref().unwrap_or(&self.id)
    }
}

impl Delivery for Event {
    fn taken(&mut self) {
        self.place = None;
        self.owner().event_taken(self);
    }
}

impl PeerQp {
    /// The peer of this identity, or a foreign one at this address. A foreign peer does not tell
    /// its queue pair's number and gets one that is no Weft queue pair's: in those a port comes
    /// first, which makes them greater than 255.
    pub(super) fn new(identity: Option<Identity>, address: IpAddr) -> Self {
        const NUMBERS: u32 = 254;
        static NEXT: AtomicU32 = AtomicU32::new(0);
        match identity {
            Some(Identity { gid, qp_num: number, .. }) => Self { gid, number, foreign: false },
            None => {
                let number = NEXT.fetch_add(1, Ordering::Relaxed) % NUMBERS + 2;
                Self { gid: gid_of(address), number, foreign: true }
            }
        }
    }
}

impl Inner {
    pub(super) fn set_backlog(&mut self, backlog: u32) {
        self.backlog = if backlog == 0 { BACKLOG_MAX } else { backlog.min(BACKLOG_MAX) };
    }

    /// Tells queue pairs that a connection to `peer_qp` is on its way to them.
    pub(super) fn expect(&mut self) {
        if let Some(peer) = self.peer_qp
            && !self.expecting
        {
            pending::expect((peer.gid, peer.number));
            self.expecting = true;
        }
    }

    pub(super) fn stop_expecting(&mut self) {
        if let Some(peer) = self.peer_qp
            && self.expecting
        {
            pending::unexpect((peer.gid, peer.number));
            self.expecting = false;
        }
    }
}

impl ProgramRequest for Id {
    /// The event stays: see [`EventChannel::extract`](super::channel::EventChannel).
    fn lapse(&self) {
        let is_request = |event: &Event| {
            event.kind == EventKind::ConnectRequest && std::ptr::eq(&*event.id, self)
        };
        let incoming = match &*self.lock() {
            Inner { phase: Phase::Requested { incoming, .. }, channel, .. }
                if channel.has(is_request) =>
            {
                Arc::clone(incoming)
            }
            _ => return,
        };
        incoming.reject(&[]);
    }
}

impl Source for Id {
    fn ready(&self) {}

    fn expired(&self, now: Instant) {
        let is_due = |timer: &Option<Timer>| timer.as_ref().is_some_and(|timer| timer.is_due(now));
        let mut inner = self.lock();
        if let Some(wait) = inner.unread.take() {
            self.look_for_unread(&mut inner, wait, now);
        }
        if matches!(inner.phase, Phase::Disconnected { .. }) && is_due(&inner.disconnecting) {
            inner.disconnecting = None;
            self.post_disconnected(&mut inner);
        }
        if matches!(inner.phase, Phase::Disconnected { .. }) && is_due(&inner.timewait) {
            inner.timewait = None;
            self.post(&inner, EventKind::TimewaitExit, 0, EventParam::default());
        }
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Id").field("space", &self.space).finish_non_exhaustive()
    }
}

/// Checks that a local address can be bound: one of a device, or a wildcard. The whole loopback
/// network belongs to every host, whichever device stands for it.
fn check_ours(address: SocketAddr) -> Result<()> {
    let ip = address.ip();
    if ip.is_unspecified() {
        return Ok(());
    }
    let devices = device::list()?;
    if devices.iter().any(|device| device.owns(ip)) || ip.is_loopback() && !devices.is_empty() {
        return Ok(());
    }
    let exists = interface_addresses()?.iter().any(|own| own.address == ip);
    Err(if exists { Errno::NODEV } else { Errno::ADDRNOTAVAIL })
}
