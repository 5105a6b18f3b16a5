//! A queue pair's connection: the protocol state and the socket that its bytes go through.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_sys::Lock;
use weft_sys::calls;
use weft_sys::calls::net::{Shutdown, shutdown, sockopt};
use weft_wire::mpa::negotiate::Negotiated;

use super::{Qp, first_fpdu, stalled};
use crate::hello::Identity;
use crate::limits::{SOCKET_RECEIVE_MAX, SOCKET_SEND_MAX};
use crate::link::host::Work;
use crate::link::ring::Ring;
use crate::link::{Agreement, Link};
use crate::log::{self, Level};
use crate::reactor::{Handle, Source};
use crate::shm::{self, Choice, Endpoint, Offer, Rings, Session, ShmPeer};
use crate::tcp;
use crate::timer::Timer;
use crate::watched::{PolledGuard, Watched};
use crate::{Errno, Result};

/// How long a closed connection waits for the peer to close it, too.
const LINGER: Duration = Duration::from_secs(2);

/// A stream whose MPA exchange is complete.
#[derive(Debug)]
pub struct Connection {
    /// The socket, non-blocking.
    pub socket: OwnedFd,
    /// A second socket to read from, for a queue pair that is connected to itself.
    pub read_from: Option<OwnedFd>,
    /// Our address.
    pub local: Option<SocketAddr>,
    /// The peer's address; `None` within one process.
    pub peer: Option<SocketAddr>,
    /// Whether this side sent the MPA request.
    pub initiator: bool,
    /// The result of the negotiation.
    pub negotiated: Negotiated,
    /// The peer's identity; `None` for a foreign iWARP peer.
    pub peer_identity: Option<Identity>,
    /// Bytes that came behind the peer's MPA frame.
    pub early: Vec<u8>,
}

#[derive(Debug)]
struct Wire {
    socket: Watched,
    read_from: Option<Watched>,
    peer: Option<SocketAddr>,
    initiator: bool,
    peer_identity: Option<Identity>,
    fin_sent: bool,
}

#[derive(Debug)]
pub(super) struct Conn {
    pub(super) link: Link<Qp>,
    wire: Option<Wire>,
    /// Whether the socket's buffer was full at the last send. An event resets this.
    blocked: bool,
    sharing: Sharing,
    /// Whether this connection, which the peer opened, must not be used without shared memory.
    must_share: bool,
    /// Ends the wait for a foreign initiator's first message.
    hold: Option<Timer>,
    /// Repeats the check that the peer is alive while nothing is read from it.
    stalled: Option<Timer>,
}

/// How far the two sides are with replacing the socket by shared memory.
#[derive(Debug)]
enum Sharing {
    /// Shared memory is in use, or will not be.
    Decided,
    /// We have offered shared memory; nothing is sent before the answer.
    Offered { session: Arc<Session> },
    /// The peer's offer has arrived before its connection.
    Early(Box<Offer>),
}

impl Conn {
    pub(super) fn new(link: Link<Qp>) -> Self {
        let sharing = Sharing::Decided;
        Self {
            link,
            wire: None,
            blocked: false,
            sharing,
            must_share: false,
            hold: None,
            stalled: None,
        }
    }

    pub(super) fn open(&mut self, qp: &Qp, connection: Connection) -> Result<()> {
        if !self.link.phase.is_idle() {
            return Err(Errno::ISCONN);
        }
        let Connection {
            socket, read_from, peer, initiator, negotiated, peer_identity, early, ..
        } = connection;
        let markers = negotiated.tx_markers;
        log::write(
            Level::Info,
            format_args!(
                "qp {:#08x}: {} to {}, {}, crc {}",
                qp.number(),
                if peer.is_some() { "tcp" } else { "loopback" },
                peer.map_or_else(|| "this process".into(), |peer| peer.to_string()),
                if peer_identity.is_some() { "a weft peer" } else { "a foreign iwarp peer" },
                if negotiated.crc { "on" } else { "off" },
            ),
        );
        let mulpdu = tcp::mulpdu(&socket, peer_identity.is_some(), markers);
        let peer_ack_stag = peer_identity.map(|identity| identity.ack_stag);
        let agreement = Agreement { initiator, negotiated, peer_ack_stag, mulpdu };
        //= rfc5041#section-6.1
        //# After the LLP sets up the LLP Stream, it will enable a DDP Stream on a specific LLP
        //# Stream at an appropriate point.
        //= rfc5044#section-7.1
        //# A DDP endpoint MUST be "bound" to the MPA connection at entry to this phase.
        self.link.open(agreement, &early);
        let socket = Watched::new(qp.reactor(), socket, qp.me())?;
        let read_from =
            read_from.map(|other| Watched::new(qp.reactor(), other, qp.me())).transpose()?;
        self.wire =
            Some(Wire { socket, read_from, peer, initiator, peer_identity, fin_sent: false });
        self.hold = self.link.awaits_first_fpdu().then(|| first_fpdu::wait_for(qp));
        self.start_sharing(qp);
        Ok(())
    }

    /// Handles the end of a wait for the first message, which may be an earlier wait. Unless the
    /// peer's TCP still lacks our reply, this side may now send.
    pub(super) fn stop_holding(&mut self, now: Instant, qp: &Qp) {
        let is_due = self.hold.as_ref().is_some_and(|timer| timer.is_due(now));
        if !is_due || !self.link.awaits_first_fpdu() {
            return;
        }
        let Some(wire) = &self.wire else { return };
        let unread = calls::tcp_outstanding(&wire.socket);
        // An error will show when the socket is used.
        self.hold = (unread.unwrap_or(0) > 0).then(|| first_fpdu::wait_for(qp));
        if self.hold.is_none() {
            self.link.stop_holding();
        }
    }

    /// Starts shared memory: the initiator makes an offer, the responder takes up one that has
    /// already arrived.
    fn start_sharing(&mut self, qp: &Qp) {
        let Some(wire) = self.wire.as_ref().filter(|wire| wire.peer.is_some()) else { return };
        let Some(identity) = wire.peer_identity else {
            return self.fail_if_sharing_is_demanded(qp);
        };
        if !wire.initiator {
            self.must_share = shm::choice() == Choice::Demanded;
            if let Sharing::Early(offer) = std::mem::replace(&mut self.sharing, Sharing::Decided) {
                self.offered(qp, *offer);
            }
        } else if let Some(session) = Session::offer(&endpoint(qp), &identity) {
            self.sharing = Sharing::Offered { session };
        } else {
            self.fail_if_sharing_is_demanded(qp);
        }
    }

    /// Handles the peer's offer to share memory.
    pub(super) fn offered(&mut self, qp: &Qp, offer: Offer) {
        let Some(wire) = &self.wire else {
            let early = Sharing::Early(Box::new(offer));
            if let Sharing::Early(old) = std::mem::replace(&mut self.sharing, early) {
                old.session.close();
            }
            return;
        };
        let suits = !wire.initiator
            && self.link.may_share()
            && wire.peer_identity.is_some_and(|identity| offer.from.is(&identity));
        if suits && offer.session.accept_for(&endpoint(qp)).is_ok() {
            self.share(qp, offer.rings, offer.peer, offer.session);
        } else {
            let number = qp.number();
            log::write(
                Level::Warn,
                format_args!("qp {number:#08x}: the peer's offer to share does not suit"),
            );
            offer.session.close();
        }
    }

    /// Handles that the peer has accepted our offer.
    pub(super) fn offer_accepted(&mut self, qp: &Qp, rings: Rings, peer: ShmPeer) {
        if let Sharing::Offered { session } = std::mem::replace(&mut self.sharing, Sharing::Decided)
        {
            self.share(qp, rings, peer, session);
        }
    }

    /// Handles that the peer has not accepted our offer.
    pub(super) fn offer_refused(&mut self, qp: &Qp) {
        if matches!(self.sharing, Sharing::Offered { .. }) {
            self.sharing = Sharing::Decided;
            self.fail_if_sharing_is_demanded(qp);
        }
    }

    /// Drops the peer's offer, whose session has ended.
    pub(super) fn offer_withdrawn(&mut self, session: &Session) {
        let is_from_session = |offer: &Offer| std::ptr::eq(&*offer.session, session);
        if matches!(&self.sharing, Sharing::Early(offer) if is_from_session(offer)) {
            self.sharing = Sharing::Decided;
        }
    }

    fn share(&mut self, qp: &Qp, rings: Rings, peer: ShmPeer, session: Arc<Session>) {
        self.must_share = false;
        let port = PolledGuard::new(qp.reactor(), rings.port(qp.me()));
        self.link.share(Ring::new(rings, port, peer, session));
        log::write(
            Level::Info,
            format_args!(
                "qp {:#08x}: shares memory, one-sided operations: {}",
                qp.number(),
                self.link.reach().unwrap_or("none"),
            ),
        );
    }

    /// Ends a connection that does not share memory, if the user demands shared memory.
    fn fail_if_sharing_is_demanded(&mut self, qp: &Qp) {
        if shm::choice() == Choice::Demanded {
            log::write(
                Level::Error,
                format_args!("qp {:#08x}: the peer shares no memory (WEFT_TRANSPORT)", qp.number()),
            );
            self.link.lost(qp, Errno::HOSTUNREACH.raw_os_error().unsigned_abs());
        }
    }

    /// Processes what is in shared memory.
    pub(super) fn receive_shared(&mut self, qp: &Qp) {
        self.link.input_ring(qp);
    }

    /// Checks whether the socket, which carries nothing else now, has ended. What was sent before
    /// is processed first.
    fn receive_end(&mut self, qp: &Qp) {
        let Some(wire) = &self.wire else { return };
        let mut byte = Vec::with_capacity(1);
        let errno = match weft_sys::recv(wire.socket.as_fd(), &mut byte) {
            Err(Errno::AGAIN | Errno::INTR) => return,
            Ok(0) => 0,
            Ok(_) => Errno::PROTO.raw_os_error().unsigned_abs(),
            Err(error) => error.raw_os_error().unsigned_abs(),
        };
        self.end_sharing(qp, errno);
    }

    /// Handles the end of the session's socket; the connection will end soon, too.
    pub(super) fn session_ended(&mut self, qp: &Qp) {
        self.end_sharing(qp, 0);
    }

    /// Ends a connection that shares memory, after processing what the peer sent before. Another
    /// connection goes on.
    fn end_sharing(&mut self, qp: &Qp, errno: u32) {
        if self.link.input_rest_of_ring(qp) {
            self.link.lost(qp, errno);
        }
    }

    /// Reads from the socket, up to a bound. Without `drain`, a read that does not fill the buffer
    /// is taken for the last. Returns whether there may be more.
    pub(super) fn receive(&mut self, qp: &Qp, drain: bool) -> bool {
        if self.link.input_ring(qp) {
            if drain {
                self.receive_end(qp);
            }
            return false;
        }
        // The event may mean that the socket has room again.
        self.blocked = false;
        let Some(wire) = &self.wire else { return false };
        let socket = wire.read_from.as_ref().unwrap_or(&wire.socket);
        let mut received = 0;
        // Process what an earlier pass left in the buffer.
        self.link.input(qp);
        while received < SOCKET_RECEIVE_MAX {
            let Some(room) = self.link.rx_room() else {
                self.stall(qp, drain);
                return false;
            };
            let space = room.capacity() - room.len();
            let result = weft_sys::recv(socket.as_fd(), room);
            match result {
                Ok(0) => {
                    self.link.lost(qp, 0);
                    self.link.input(qp);
                    return false;
                }
                Ok(count) => {
                    received += count;
                    self.link.count_received(count);
                    self.link.input(qp);
                    if self.must_share && self.link.has_received_messages() {
                        self.fail_if_sharing_is_demanded(qp);
                        return false;
                    }
                    if count < space && !drain {
                        return false;
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => {
                    self.link.input(qp);
                    return false;
                }
                Err(error) => {
                    self.link.lost(qp, error.raw_os_error().unsigned_abs());
                    self.link.input(qp);
                    return false;
                }
            }
        }
        true
    }

    /// Stops reading for now. An error of the socket is still noticed: by the event that reports
    /// it, or after a send by [`Conn::ask_stalled_peer`].
    #[cold]
    fn stall(&mut self, qp: &Qp, is_event: bool) {
        let Some(wire) = &self.wire else { return };
        if is_event && let Ok(Err(error)) = sockopt::socket_error(&wire.socket) {
            self.link.lost(qp, error.raw_os_error().unsigned_abs());
            self.link.input(qp);
        } else if self.stalled.is_none() && wire.peer.is_some() && wire.peer_identity.is_some() {
            self.stalled = Some(stalled::wait_for(qp));
        }
    }

    /// Repeats an acknowledgement to a peer from whom nothing has been read for some time.
    pub(super) fn ask_stalled_peer(&mut self, now: Instant, qp: &Qp) {
        if self.stalled.take_if(|timer| timer.is_due(now)).is_some()
            && self.wire.is_some()
            && self.link.rx_room().is_none()
        {
            self.link.repeat_acknowledgement();
            self.stalled = Some(stalled::wait_for(qp));
        }
    }

    /// Sends what may be sent, until the socket is full or a bound is reached.
    pub(super) fn transmit(&mut self, qp: &Qp) {
        let mut total = 0;
        loop {
            if self.wire.is_none() {
                // The request is on a queue pair whose connection is lost or was never made.
                return self.link.await_peer(qp);
            }
            if self.blocked || matches!(self.sharing, Sharing::Offered { .. }) {
                return;
            }
            // The RTR message may be the peer's last one on TCP, so do not wait for another.
            if self.must_share && !self.link.may_share() && qp.may_have_unsent() {
                self.must_share = false;
                return self.fail_if_sharing_is_demanded(qp);
            }
            if let Some(has_more) = self.link.output_ring(qp) {
                if has_more {
                    qp.requeue();
                }
                break;
            }
            if !self.link.output(qp) {
                break;
            }
            let Some(wire) = &self.wire else { return };
            match weft_sys::send(wire.socket.as_fd(), self.link.unsent()) {
                Ok(count) => {
                    total += count;
                    self.link.sent(count, qp);
                }
                Err(Errno::AGAIN | Errno::INTR) => {
                    self.blocked = true;
                    return;
                }
                Err(error) => {
                    self.link.discard_output();
                    // Process what the peer sent before it closed.
                    while self.receive(qp, true) {}
                    self.link.lost(qp, error.raw_os_error().unsigned_abs());
                    return;
                }
            }
            if total >= SOCKET_SEND_MAX {
                qp.requeue();
                return;
            }
        }
        self.finish();
    }

    pub(super) fn fail_unreachable(&mut self, qp: &Qp, errno: u32) {
        if self.link.phase.is_idle() {
            self.link.unreachable(qp, errno);
        }
    }

    /// Sends FIN once everything is sent; closes the socket once the stream has ended.
    fn finish(&mut self) {
        if self.link.is_drained()
            && let Some(wire) = &mut self.wire
            && !wire.fin_sent
        {
            //= rfc5041#section-6.2.1
            //# If the Local Peer ULP indicates graceful teardown, the DDP layer on the Local Peer
            //# SHOULD ensure that all ULP data would be transferred before the underlying LLP
            //# Stream and Connection are torn down, and any further data transfer requests by the
            //# Local Peer ULP MUST return an error.
            //= rfc5044#section-7.2
            //# Each half connection of MPA terminates when DDP closes the corresponding TCP half
            //# connection.
            wire.fin_sent = true;
            let _ = shutdown(&wire.socket, Shutdown::Write);
        }
        if self.link.phase.is_closed() {
            self.wire = None;
        }
    }

    /// Lets the connection outlive its queue pair until the output has been sent.
    pub(super) fn linger(mut self, qp: &Qp) {
        match &self.sharing {
            Sharing::Decided => {}
            // Keep the socket, so that the peer sees a connection and its end.
            Sharing::Offered { session } => session.close(),
            Sharing::Early(offer) => offer.session.close(),
        }
        self.link.close();
        self.link.give_back_receive(qp);
        if self.link.output_ring(qp).is_none() {
            self.link.output(qp);
        }
        let Some(wire) = self.wire.take() else { return };
        // A queue pair connected to itself closes both ends at once.
        if !self.link.phase.is_closed() && wire.read_from.is_none() {
            Lingering::start(qp.reactor(), wire.socket.release(), self.link.take_unsent());
        }
    }

    /// The transport's name.
    pub(super) fn transport(&self) -> &'static str {
        match &self.wire {
            None => "none",
            Some(wire) if wire.peer.is_none() => "loopback",
            Some(_) => self.link.carrier(),
        }
    }

    /// The peer's address on a TCP connection.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.wire.as_ref().and_then(|wire| wire.peer)
    }
}

fn endpoint(qp: &Qp) -> Arc<dyn Endpoint> {
    qp.me()
}

/// A connection without a queue pair, kept until the peer has closed it, too. If we closed it while
/// the peer still sends, TCP would reset it and our last bytes would be lost.
#[derive(Debug)]
struct Lingering {
    socket: Arc<OwnedFd>,
    state: Lock<LingerState>,
}

#[derive(Debug)]
struct LingerState {
    watched: Option<Watched<Arc<OwnedFd>>>,
    timer: Option<Timer>,
    rest: Vec<u8>,
    sent: usize,
    fin_sent: bool,
    over: bool,
    buffer: Vec<u8>,
}

impl Lingering {
    fn start(reactor: Handle, socket: OwnedFd, rest: Vec<u8>) {
        let buffer = Vec::with_capacity(16 << 10);
        let state = LingerState {
            watched: None,
            timer: None,
            rest,
            sent: 0,
            fin_sent: false,
            over: false,
            buffer,
        };
        let lingering = Arc::new(Self { socket: Arc::new(socket), state: Lock::new(state) });
        if lingering.pass() {
            return;
        }
        let source = Arc::clone(&lingering) as Arc<dyn Source>;
        let mut state = lingering.state.lock();
        let socket = Arc::clone(&lingering.socket);
        let Ok(watched) = Watched::new(reactor, socket, Arc::clone(&source)) else { return };
        state.watched = Some(watched);
        state.timer = Some(Timer::after(reactor, LINGER, source));
        drop(state);
        lingering.ready();
    }

    /// Sends and reads what is possible. Returns true once the connection has ended.
    fn pass(&self) -> bool {
        let mut state = self.state.lock();
        let LingerState { rest, sent, fin_sent, over, buffer, .. } = &mut *state;
        if *over {
            return true;
        }
        while *sent < rest.len() {
            match weft_sys::send(self.socket.as_fd(), &rest[*sent..]) {
                Ok(count) => *sent += count,
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    *over = true;
                    return true;
                }
            }
        }
        if *sent == rest.len() && !*fin_sent {
            *fin_sent = true;
            let _ = shutdown(&self.socket, Shutdown::Write);
        }
        loop {
            buffer.clear();
            match weft_sys::recv(self.socket.as_fd(), buffer) {
                Ok(0) => break,
                Ok(_) => {}
                Err(Errno::AGAIN | Errno::INTR) => return false,
                Err(_) => {
                    *over = true;
                    return true;
                }
            }
        }
        *over = *fin_sent;
        *over
    }

    fn end(&self) {
        let mut state = self.state.lock();
        state.over = true;
        // Both values own a reference to this one, so drop them after unlocking.
        let held = (state.watched.take(), state.timer.take());
        drop(state);
        drop(held);
    }
}

impl Source for Lingering {
    fn ready(&self) {
        if self.pass() {
            self.end();
        }
    }

    fn expired(&self, _: Instant) {
        self.end();
    }
}
