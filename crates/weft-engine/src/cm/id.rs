//! Identifiers: the objects behind `struct rdma_cm_id`.

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
use super::handshake::Handshaken;
use super::incoming::{Incoming, ProgramRequest};
use super::limits::{BACKLOG_MAX, DISCONNECT_TIME, TIMEWAIT};
use super::listen::{Callee, Listener};
use super::lookup::Lookup;
use super::option::{IdOption, Options};
use super::port::Port;
use super::service::{Service, ServiceRequest};
use super::sidr;
use super::socket::{concrete, source_for};
use crate::device::{self, Gid, gid_of};
use crate::hello::Identity;
use crate::mpa::dial::Dial;
use crate::qp::pending;
use crate::reactor::Source;
use crate::strangers::Permit;
use crate::timer::Timer;
use crate::{Errno, Result};

/// The port space of an identifier (`enum rdma_port_space`).
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
    /// The identifier that the event is about; for a connection request the new one.
    pub id: Arc<Id>,
    /// For a connection request, the listener.
    pub listener: Option<Arc<Id>>,
    /// The type of the event.
    pub kind: EventKind,
    /// 0; a negative `errno`; or for a rejection its reason, see [`reject`](super::reject).
    pub status: i32,
    /// The parameters of the event.
    pub param: EventParam,
    /// For a connection request that the program has not taken, its permit.
    permit: Option<Permit>,
}

/// A channel for events of identifiers.
pub type Channel = EventChannel<Event>;

/// An identifier: a connection, a connection attempt, or a listener.
pub struct Id {
    pub(super) this: Weak<Self>,
    /// The C library's pointer for this object; events carry it to the program.
    pub cookie: AtomicUsize,
    space: PortSpace,
    /// Number of connection requests that the program has not taken.
    requests_waiting: AtomicU32,
    inner: Lock<Inner>,
}

pub(super) struct Inner {
    pub(super) channel: Arc<Channel>,
    pub(super) options: Options,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) port: Option<Port>,
    /// The UDP socket of an identifier for datagrams, which has no `port`.
    pub(super) socket: Option<UdpSocket>,
    /// The multicast groups that the identifier has joined.
    pub(super) groups: Vec<Membership>,
    pub(super) depths: Depths,
    pub(super) peer_qp: Option<PeerQp>,
    /// Whether `peer_qp` is registered as a peer that we connect to (`qp::pending`).
    expecting: bool,
    backlog: u32,
    /// Runs until the program's own disconnect is reported to it.
    disconnecting: Option<Timer>,
    /// Runs until `TIMEWAIT_EXIT` is reported.
    timewait: Option<Timer>,
    /// The wait after the peer has disconnected, until that is reported.
    pub(super) unread: Option<UnreadWait>,
    pub(super) phase: CmPhase,
}

/// The wait for the program to take what completed before the peer disconnected.
pub(super) struct UnreadWait {
    /// Expires when the disconnect is reported in any case.
    pub(super) limit: Timer,
    /// Expires when the completions are checked again.
    pub(super) look: Timer,
}

/// Limits of outstanding reads and atomics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Depths {
    /// Limit of the peer's outstanding requests.
    pub(super) responder_resources: u8,
    /// Limit of this side's outstanding requests.
    pub(super) initiator_depth: u8,
}

/// The address of the peer's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerQp {
    pub(super) gid: Gid,
    pub(super) number: u32,
    /// Whether the peer is foreign and the number made up.
    pub(super) foreign: bool,
}

/// Our end of a connection.
#[derive(Clone, Debug)]
pub(super) struct CmEnd {
    pub(super) endpoint: Arc<dyn Endpoint>,
    /// Whether the queue pair belongs to the identifier, which changes its state.
    pub(super) managed: bool,
}

/// A multicast group that an identifier has joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Membership {
    pub(super) group: IpAddr,
}

/// The state of an identifier.
pub(super) enum CmPhase {
    /// New, or bound to a local address.
    Idle,
    AddressResolved,
    RouteResolved,
    Listening(Arc<Listener>),
    /// Active side: the attempt is in progress.
    Dialling {
        dial: Arc<Dial<Call>>,
        end: CmEnd,
    },
    /// Active side: the peer accepted, and the program has to connect its queue pair.
    Responded {
        handshaken: Box<Handshaken>,
        identity: Identity,
    },
    /// Passive side: the program has to accept or reject. `foreign`: the peer does not run Weft.
    Requested {
        incoming: Arc<Incoming>,
        foreign: bool,
    },
    /// The connection is being attached to its queue pair. `gone`: the peer has already
    /// disconnected.
    Joining {
        end: CmEnd,
        gone: bool,
    },
    Connected {
        end: CmEnd,
    },
    /// Datagrams, passive side: lookups of the service's queue pair are answered.
    Serving(Arc<Service>),
    /// Datagrams, active side: a lookup is in progress.
    Asking(Arc<Lookup>),
    /// Datagrams, passive side: the program has to answer a lookup.
    Asked(Arc<ServiceRequest>),
    /// Datagrams: the lookup is complete.
    Answered,
    /// The connection has ended, or was never made.
    Disconnected {
        end: Option<CmEnd>,
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
                phase: CmPhase::Idle,
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

    /// Creates the identifier of a connection request to this listener, whose `inner` is given.
    pub(super) fn child(
        &self,
        inner: &Inner,
        incoming: Arc<Incoming>,
        depths: Depths,
        identity: Option<Identity>,
    ) -> Arc<Self> {
        let ends = incoming.addresses();
        let phase = CmPhase::Requested { incoming, foreign: identity.is_none() };
        let child = self.child_for(inner, ends, phase);
        {
            let mut inner = child.lock();
            inner.depths = depths;
            inner.peer_qp = Some(PeerQp::new(identity, ends[1].ip()));
            inner.expect();
        }
        child
    }

    /// Creates the identifier of a request to this listener, with our address and the peer's.
    pub(super) fn child_for(
        &self,
        inner: &Inner,
        [local, peer]: [SocketAddr; 2],
        phase: CmPhase,
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

    /// Our address, once it is bound, resolved or requested.
    #[must_use]
    pub fn local(&self) -> Option<SocketAddr> {
        self.lock().local
    }

    /// The peer's address, once it is resolved or requested.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.lock().peer
    }

    /// `rdma_set_option`.
    ///
    /// # Errors
    /// `EINVAL` if it is too late for the option; `EADDRINUSE` if the bound port is not free under
    /// the new options.
    pub fn set_option(&self, option: IdOption) -> Result<()> {
        let mut inner = self.lock();
        let idle = matches!(inner.phase, CmPhase::Idle);
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

    /// `rdma_bind_addr`: binds to a local address, wildcard or not, and a port, which may be 0.
    ///
    /// # Errors
    /// `EINVAL` if it is already bound; `EADDRNOTAVAIL` for an address that is not ours, `ENODEV`
    /// for one without a device; `EADDRINUSE` for a port in use.
    pub fn bind(&self, address: SocketAddr) -> Result<()> {
        let mut inner = self.lock();
        if !matches!(inner.phase, CmPhase::Idle) || inner.local.is_some() {
            return Err(Errno::INVAL);
        }
        check_ours(address)?;
        inner.local = Some(address);
        // Other sockets may have bound a port that is to be shared; `listen` finds out whether it
        // is free.
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

    /// `rdma_resolve_addr`: finds the local address for `destination`, and binds to it if unbound.
    /// Nothing has to be waited for, so the event is queued at once.
    ///
    /// # Errors
    /// `EINVAL` in the wrong state or for addresses of two families; `ENETUNREACH` without a route;
    /// as [`Id::bind`] for `source`.
    pub fn resolve_address(
        &self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
    ) -> Result<()> {
        let mut inner = self.lock();
        if !matches!(inner.phase, CmPhase::Idle) {
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
        inner.phase = CmPhase::AddressResolved;
        self.post(&inner, EventKind::AddrResolved, 0, EventParam::default());
        Ok(())
    }

    /// `rdma_resolve_route`: queues the event at once.
    ///
    /// # Errors
    /// `EINVAL` before the address is resolved.
    pub fn resolve_route(&self) -> Result<()> {
        let mut inner = self.lock();
        if !matches!(inner.phase, CmPhase::AddressResolved) {
            return Err(Errno::INVAL);
        }
        inner.phase = CmPhase::RouteResolved;
        self.post(&inner, EventKind::RouteResolved, 0, EventParam::default());
        Ok(())
    }

    /// `rdma_listen`: a backlog of 0, or beyond [`BACKLOG_MAX`], means [`BACKLOG_MAX`], as in the
    /// Linux kernel.
    ///
    /// # Errors
    /// `EINVAL` in the wrong state; `EADDRINUSE` if another socket listens on the port.
    pub fn listen(&self, backlog: u32) -> Result<()> {
        if self.is_datagram() {
            return self.listen_for_datagrams(backlog);
        }
        let mut inner = self.lock();
        if !matches!(inner.phase, CmPhase::Idle) {
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
        inner.phase = CmPhase::Listening(Listener::start(reactor, port, inner.options, callee)?);
        Ok(())
    }

    /// `rdma_migrate_id`: moves the identifier, with its queued events, to another channel.
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

    /// `rdma_destroy_id`: cancels what is in progress and ends the connection. Events that the
    /// program has not taken are dropped.
    pub fn destroy(&self) {
        let (phase, events) = {
            let mut inner = self.lock();
            inner.stop_expecting();
            inner.port = None;
            inner.socket = None;
            let events = inner.channel.extract(|event| self.owns(event));
            (std::mem::replace(&mut inner.phase, CmPhase::Destroyed), events)
        };
        match phase {
            CmPhase::Listening(listener) => listener.close(),
            CmPhase::Dialling { dial, .. } => dial.cancel(),
            CmPhase::Requested { incoming, .. } => incoming.reject(&[]),
            CmPhase::Joining { end, .. } | CmPhase::Connected { end } => end.endpoint.disconnect(),
            CmPhase::Serving(service) => service.close(),
            CmPhase::Asking(lookup) => lookup.cancel(),
            CmPhase::Asked(inquiry) => inquiry.answer(sidr::REJECTED, 0, 0, &[]),
            CmPhase::Answered
            | CmPhase::Idle
            | CmPhase::AddressResolved
            | CmPhase::RouteResolved
            | CmPhase::Responded { .. }
            | CmPhase::Disconnected { .. }
            | CmPhase::Destroyed => {}
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

    /// Called when the program takes an event of this identifier, with the channel locked.
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
            permit: None,
        });
    }

    /// Queues the connection request of `child`. Returns false if the backlog is full.
    pub(super) fn post_request(
        &self,
        inner: &Inner,
        child: &Arc<Self>,
        param: EventParam,
        permit: Option<Permit>,
    ) -> bool {
        if self.requests_waiting.load(Ordering::Acquire) >= inner.backlog {
            return false;
        }
        self.requests_waiting.fetch_add(1, Ordering::AcqRel);
        let _in_order = event::in_order();
        let (listener, kind) = (Some(self.arc()), EventKind::ConnectRequest);
        let id = Arc::clone(child);
        inner.channel.post(Event { id, listener, kind, status: 0, param, permit });
        true
    }

    /// Reports a connection's end that the program itself has caused, after a short time.
    pub(super) fn post_disconnected_soon(&self) {
        // Lock before starting the timer, because it may expire at once.
        let mut inner = self.lock();
        let reactor = inner.channel.reactor();
        inner.disconnecting = Some(Timer::after(reactor, DISCONNECT_TIME, self.arc()));
    }

    /// Reports the end of the connection, and starts the time until `TIMEWAIT_EXIT`.
    pub(super) fn post_disconnected(&self, inner: &mut Inner) {
        self.post(inner, EventKind::Disconnected, 0, EventParam::default());
        let reactor = inner.channel.reactor();
        inner.timewait = Some(Timer::after(reactor, TIMEWAIT, self.arc()));
    }
}

impl Event {
    /// The identifier that must not be destroyed before the event has been acknowledged.
    #[must_use]
    pub fn owner(&self) -> &Arc<Id> {
        self.listener.as_ref().unwrap_or(&self.id)
    }
}

impl Delivery for Event {
    fn taken(&mut self) {
        self.permit = None;
        self.owner().event_taken(self);
    }
}

impl PeerQp {
    /// The queue pair of a Weft peer with this identity, or of a foreign peer at this address. A
    /// foreign peer does not send its number, so it gets one that no Weft queue pair has: Weft's
    /// numbers contain a port and are greater than 255.
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

    /// Registers that a connection to `peer_qp` is being made (`qp::pending`).
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
    /// The event stays queued: see [`EventChannel::extract`](super::channel::EventChannel).
    fn lapse(&self) {
        let is_request = |event: &Event| {
            event.kind == EventKind::ConnectRequest && std::ptr::eq(&*event.id, self)
        };
        let incoming = match &*self.lock() {
            Inner { phase: CmPhase::Requested { incoming, .. }, channel, .. }
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
        if matches!(inner.phase, CmPhase::Disconnected { .. }) && is_due(&inner.disconnecting) {
            inner.disconnecting = None;
            self.post_disconnected(&mut inner);
        }
        if matches!(inner.phase, CmPhase::Disconnected { .. }) && is_due(&inner.timewait) {
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

/// Checks that a local address can be bound: that of a device, or a wildcard. All devices own the
/// loopback network.
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
