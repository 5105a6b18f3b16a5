//! An endpoint: the protocol with a socket, a clock and the process's registered memory.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use weft_sys::calls::event::{EventfdFlags, eventfd};
use weft_sys::{Bounce, NoteLock, RecvBatch, Spin, UdpSocket, consume, notify, wait_readable};
use weft_wire::rd::HEADER_LEN;

use super::connections::{Connections, LISTENER};
use super::limits::{
    BATCHES_MAX, BOUNCES_MAX, DATAGRAM_LEN, DATAGRAM_LEN_MAX, DATAGRAM_LEN_MIN, PEERS_MAX,
    RECEIVE_BYTES_MAX, RECEIVE_COST,
};
use super::machine::Machine;
use super::memory::Registered;
use super::request::{Event, PeerAddress, Request};
use super::shared::Settings;
use super::wakeups::Wakeups;
use crate::pd::Pd;
use crate::reactor::{self, Handle, Source, TimerId, Token};
use crate::udp::{self, Outbox};
use crate::{Errno, Result, random};

/// The limits of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Largest datagram in bytes. Datagrams above the path's MTU are sent in IP fragments.
    pub datagram_len: usize,
    /// Maximum number of peers whose state is kept.
    pub peers_max: usize,
    /// Bytes of received messages that may wait for the program. Senders wait when they are used
    /// up.
    pub receive_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { datagram_len: DATAGRAM_LEN, peers_max: PEERS_MAX, receive_bytes: RECEIVE_BYTES_MAX }
    }
}

/// Sends and receives messages without connections. Requests and messages that are open when it is
/// dropped are lost.
pub struct Endpoint {
    inner: Arc<Inner>,
    token: Token,
}

struct Inner {
    me: Weak<Self>,
    reactor: Handle,
    socket: UdpSocket,
    address: PeerAddress,
    origin: Instant,
    state: NoteLock<State>,
    /// Whether there may be something to receive or to send.
    pending_work: AtomicBool,
    /// Readable while events are queued and a thread sleeps: see `State::raised`.
    wake: OwnedFd,
    sleepers: AtomicUsize,
    spin: Spin,
}

struct State {
    machine: Machine,
    /// The connections, if it is the endpoint of a port.
    port: Option<Box<Switchboard>>,
    memory: Registered,
    incoming: RecvBatch,
    outgoing: Outbox,
    datagram: Vec<u8>,
    /// Whether the kernel may have kept answers of hosts that refuse datagrams.
    has_bounces: bool,
    timer: Option<(u64, TimerId)>,
    /// Whether `wake` is readable.
    raised: bool,
    /// Whether the program has dropped the endpoint. The reactor may still be in a pass.
    closed: bool,
}

/// The connections of a port, and whom to wake.
#[derive(Debug, Default)]
pub(super) struct Switchboard {
    pub(super) connections: Connections,
    pub(super) wakeups: Wakeups,
}

/// What the connections of a port are used with.
pub(super) struct Desk<'a> {
    pub(super) connections: &'a mut Connections,
    pub(super) wakeups: &'a mut Wakeups,
    pub(super) machine: &'a mut Machine,
    pub(super) memory: &'a mut Registered,
    pub(super) now: u64,
}

impl Endpoint {
    /// Binds endpoint `number` to a UDP address of the host; an unspecified address means all of
    /// them, and port 0 any port. Peers may access memory that is registered in `pd`.
    ///
    /// # Errors
    /// `EADDRINUSE` and similar; `EINVAL` for options out of range.
    pub fn bind(pd: &Arc<Pd>, local: SocketAddr, number: u16, options: Options) -> Result<Self> {
        Self::new(pd, local, number, options, None)
    }

    /// Binds the endpoint of a port, which takes the events.
    ///
    /// # Errors
    /// Those of [`Endpoint::bind`].
    pub(super) fn bind_port(pd: &Arc<Pd>, local: SocketAddr, options: Options) -> Result<Self> {
        Self::new(pd, local, LISTENER, options, Some(Box::default()))
    }

    fn new(
        pd: &Arc<Pd>,
        local: SocketAddr,
        number: u16,
        options: Options,
        port: Option<Box<Switchboard>>,
    ) -> Result<Self> {
        let Options { datagram_len, peers_max, receive_bytes } = options;
        if !(DATAGRAM_LEN_MIN..=DATAGRAM_LEN_MAX).contains(&datagram_len)
            || !(1..=PEERS_MAX).contains(&peers_max)
            || receive_bytes < RECEIVE_COST
        {
            return Err(Errno::INVAL);
        }
        let secret = [random::bytes()?, random::bytes()?].map(u64::from_ne_bytes);
        let socket = udp::bind_at(canonical(local))?;
        let address = SocketAddr::new(local.ip().to_canonical(), socket.port()?);
        if port.is_some() {
            // Without it, time alone shows that a peer is gone.
            let _ = socket.keep_bounces();
        }
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let reactor = pd.context().reactor();
        let connected = port.is_some();
        let settings =
            Settings { endpoint: number, datagram_len, peers_max, receive_bytes, connected };
        let state = State {
            machine: Machine::new(settings, secret),
            port,
            memory: Registered::new(pd),
            incoming: RecvBatch::default(),
            outgoing: Outbox::new(socket.can_segment()),
            datagram: Vec::new(),
            has_bounces: false,
            timer: None,
            raised: false,
            closed: false,
        };
        let inner = Arc::new_cyclic(|me| Inner {
            me: Weak::clone(me),
            reactor,
            socket,
            address: PeerAddress { socket: address, endpoint: number },
            origin: reactor::now(),
            state: NoteLock::new(state),
            pending_work: AtomicBool::new(false),
            wake,
            sleepers: AtomicUsize::new(0),
            spin: Spin::new(),
        });
        let source = Arc::clone(&inner) as Arc<dyn Source>;
        let token = reactor.get().watch(inner.socket.as_fd(), source)?;
        Ok(Self { inner, token })
    }

    /// The bound address: as requested, with the port.
    #[must_use]
    pub fn address(&self) -> PeerAddress {
        self.inner.address
    }

    /// Starts a request to a peer. An event with `id` reports its end.
    ///
    /// # Errors
    /// `EMSGSIZE` if it is too long, or an atomic's memory has not eight bytes; `EAGAIN` while too
    /// many are open, `ENOBUFS` if no further peer can be stored.
    pub fn post(&self, to: PeerAddress, id: u64, request: Request) -> Result<()> {
        let to = PeerAddress { socket: canonical(to.socket), ..to };
        let now = self.inner.now();
        self.inner.with(|state| {
            let posted = state.machine.post(now, to, id, request);
            self.inner.pending_work.store(true, Ordering::SeqCst);
            posted
        })
    }

    /// Returns the next event, if there is one. Makes progress if there is none yet.
    pub fn poll(&self) -> Option<Event> {
        self.inner.take().or_else(|| {
            self.inner.reactor.get().poll();
            self.inner.take()
        })
    }

    /// Waits for the next event, without a `timeout` for ever. `None` after the timeout.
    ///
    /// # Errors
    /// `EINTR` after a signal.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<Event>> {
        let end = timeout.map(|timeout| reactor::now() + timeout);
        if let Some(event) = self.poll() {
            return Ok(Some(event));
        }
        let _sleeper = Sleeper::new(&self.inner.sleepers);
        let Some(end) = end else {
            let wait =
                self.inner.reactor.get().wait(self.inner.wake.as_fd(), &self.inner.spin, |pass| {
                    pass();
                    self.inner.take()
                });
            return wait.map(Some);
        };
        self.inner.reactor.get().about_to_wait();
        loop {
            if let Some(event) = self.inner.take() {
                return Ok(Some(event));
            }
            let left = end.saturating_duration_since(reactor::now());
            if left.is_zero() {
                return Ok(None);
            }
            wait_readable([self.inner.wake.as_fd()], Some(left))?;
        }
    }

    /// Uses the connections of a port; `None` if this is not the endpoint of one.
    pub(super) fn at_desk<T>(&self, work: impl FnOnce(&mut Desk<'_>) -> T) -> Option<T> {
        self.inner.with(|state| {
            let State { machine, memory, port, .. } = state;
            let Switchboard { connections, wakeups } = port.as_deref_mut()?;
            let now = self.inner.now();
            let mut desk = Desk { connections, wakeups, machine, memory, now };
            let result = work(&mut desk);
            desk.settle();
            if desk.machine.has_output() {
                self.inner.pending_work.store(true, Ordering::SeqCst);
            }
            Some(result)
        })
    }

    /// The reactor.
    pub(super) fn reactor(&self) -> Handle {
        self.inner.reactor
    }

    /// Number of peers whose state is kept.
    #[must_use]
    pub fn peers(&self) -> usize {
        self.inner.with(|state| state.machine.peers())
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("address", &self.inner.address).finish_non_exhaustive()
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.inner.reactor.get().unwatch(self.inner.socket.as_fd(), self.token);
        let mut state = self.inner.state.lock();
        state.closed = true;
        if let Some((_, timer)) = state.timer.take() {
            self.inner.reactor.get().stop_timer(timer);
        }
    }
}

/// Counts a sleeping thread. A thread that is cancelled in its sleep stays counted, which costs
/// only a needless wakeup.
struct Sleeper<'a>(&'a AtomicUsize);

impl<'a> Sleeper<'a> {
    fn new(sleepers: &'a AtomicUsize) -> Self {
        sleepers.fetch_add(1, Ordering::SeqCst);
        Self(sleepers)
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Desk<'_> {
    /// Handles what has happened below, and wakes who waits for it.
    fn settle(&mut self) {
        let Self { connections, wakeups, machine, memory, now } = self;
        connections.run(*now, machine, *memory);
        connections.rung().for_each(|wakeup| wakeups.raise(wakeup));
    }
}

impl Inner {
    /// Microseconds since the endpoint was made, plus one second, because some code uses time 0 for
    /// "none".
    fn now(&self) -> u64 {
        u64::try_from((reactor::now() - self.origin).as_micros()).unwrap_or(u64::MAX) + 1_000_000
    }

    /// Calls `look` with the state locked, and then does the work that other threads left because
    /// they found it locked.
    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        let result = look(&mut self.state.lock());
        if self.pending_work.load(Ordering::SeqCst) {
            self.drive();
        }
        result
    }

    fn take(&self) -> Option<Event> {
        self.with(|state| {
            let event = state.machine.next_event(self.now());
            if state.raised && !state.machine.has_event() {
                state.raised = false;
                consume(&self.wake);
            }
            // Senders that found no room may have to be notified.
            if state.machine.has_output() {
                self.pending_work.store(true, Ordering::SeqCst);
            }
            event
        })
    }

    /// Does everything that does not block. If another thread holds the state, leaves the work to
    /// it.
    fn drive(&self) {
        self.pending_work.store(true, Ordering::SeqCst);
        while self.pending_work.load(Ordering::SeqCst) {
            let Some(mut state) = self.state.try_lock() else { return };
            self.pending_work.store(false, Ordering::SeqCst);
            let more = self.pass(&mut state);
            // A thread that is not counted yet looks for events before it sleeps.
            let wanted = state.machine.has_event() && self.sleepers.load(Ordering::SeqCst) != 0;
            if wanted && !std::mem::replace(&mut state.raised, true) {
                notify(&self.wake);
            }
            drop(state);
            if more && let Some(me) = self.me.upgrade() {
                self.reactor.get().requeue(me);
            }
        }
    }

    /// Makes one pass over socket, timers and peers. Returns whether there may be more to receive.
    fn pass(&self, state: &mut State) -> bool {
        if state.closed {
            return false;
        }
        let more = self.receive(state);
        self.take_bounces(state);
        let now = self.now();
        let State { machine, memory, port, .. } = state;
        machine.expire(now);
        if let Some(Switchboard { connections, wakeups }) = port.as_deref_mut() {
            connections.expire(now, machine);
            Desk { connections, wakeups, machine, memory, now }.settle();
        }
        self.send(state);
        if state.outgoing.take_failed() {
            state.has_bounces = true;
            self.pending_work.store(true, Ordering::SeqCst);
        }
        self.set_timer(state);
        more
    }

    fn receive(&self, state: &mut State) -> bool {
        let State { machine, memory, incoming, has_bounces, .. } = state;
        let own = self.address.socket.ip();
        for _ in 0..BATCHES_MAX {
            match self.socket.receive(incoming) {
                Ok(more) => {
                    let now = self.now();
                    let for_us = incoming
                        .datagrams()
                        .filter(|(arrival, _)| own.is_unspecified() || arrival.to == own);
                    for (arrival, datagram) in for_us {
                        machine.input(now, arrival.from, datagram, memory);
                    }
                    if !more {
                        return false;
                    }
                }
                Err(Errno::AGAIN) => return false,
                // Interrupted, or an earlier datagram has not arrived.
                Err(_) => *has_bounces = true,
            }
        }
        true
    }

    /// Takes the answers of hosts that refuse datagrams, if there may be any.
    fn take_bounces(&self, state: &mut State) {
        if state.port.is_none() || !std::mem::take(&mut state.has_bounces) {
            return;
        }
        let mut quote = [0; HEADER_LEN];
        for _ in 0..BOUNCES_MAX {
            match self.socket.take_bounce(&mut quote) {
                Ok(Bounce { to, is_refused: true, len }) => {
                    state.machine.refused(self.now(), canonical(to), &quote[..len]);
                }
                Ok(_) => {}
                Err(_) => return,
            }
        }
        state.has_bounces = true;
        self.pending_work.store(true, Ordering::SeqCst);
    }

    fn send(&self, state: &mut State) {
        let State { machine, memory, outgoing, datagram, .. } = state;
        // Datagrams that the socket did not take before go first.
        while outgoing.is_empty() || outgoing.send(&self.socket) {
            let now = self.now();
            while outgoing.has_room(DATAGRAM_LEN_MAX)
                && let Some(to) = machine.output(now, memory, datagram)
            {
                let append = |bytes: &mut Vec<u8>| {
                    bytes.extend_from_slice(datagram);
                    Ok::<_, Errno>(())
                };
                // Appending cannot fail.
                let _ = outgoing.push(to, (self.source(&to), 0), append);
            }
            if outgoing.is_empty() {
                // Return the buffer to the pool.
                return outgoing.clear();
            }
        }
    }

    fn source(&self, to: &SocketAddr) -> IpAddr {
        match (self.address.socket.ip(), to) {
            (own, _) if !own.is_unspecified() => own,
            (_, SocketAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
            (_, SocketAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// Starts a reactor timer for the next deadline. A timer that expires too early is harmless.
    fn set_timer(&self, state: &mut State) {
        let port = state.port.as_ref().and_then(|port| port.connections.next_timeout());
        let all = state.machine.next_timeout().into_iter().chain(port);
        let Some(deadline) = all.min() else { return };
        if let Some((at, timer)) = state.timer {
            if at <= deadline {
                return;
            }
            self.reactor.get().stop_timer(timer);
        }
        let Some(me) = self.me.upgrade() else { return };
        let at = self.origin + Duration::from_micros(deadline.saturating_sub(1_000_000));
        state.timer = Some((deadline, self.reactor.get().start_timer(at, me)));
    }
}

impl Source for Inner {
    fn ready(&self) {
        self.drive();
    }

    fn requeued(&self) {
        self.drive();
    }

    fn expired(&self, _: Instant) {
        self.with(|state| {
            state.timer = None;
            self.pending_work.store(true, Ordering::SeqCst);
        });
    }
}

/// The canonical form of a peer's address, in which datagrams also arrive.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => address,
        SocketAddr::V6(mut v6) => match v6.ip().to_canonical() {
            IpAddr::V4(v4) => SocketAddr::from((v4, v6.port())),
            IpAddr::V6(_) => {
                v6.set_flowinfo(0);
                v6.into()
            }
        },
    }
}
