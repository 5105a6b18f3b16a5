//! Connecting queue pairs whose programs exchanged numbers and GIDs themselves.
//!
//! Once both sides know each other (RTR), the one with the lower (GID, number) dials the TCP port
//! in the other's number, and names the queue pair it wants in its MPA private data. The other
//! holds the request until its own queue pair wants exactly this peer. Two queue pairs of one
//! process are joined by a pair of local sockets.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use weft_sys::{Forkable, Lock};
use weft_wire::mpa::negotiate::{
    Initiator, InitiatorOutcome, Limits, Negotiated, Params, Responder, RtrKinds,
};

use crate::device::{self, Gid, address_of};
use crate::hello::{self, Hello};
use crate::limits::READ_DEPTH_MAX;
use crate::log::{self, Level};
use crate::qp::{Connection, Qp, pending};
use crate::reactor::{Reactor, Source, TimerId, Token};
use crate::{Errno, Result, numbers, tcp};

/// How long a dialling side tries, and how long a request is held for its queue pair.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between attempts to dial.
const RETRY: Duration = Duration::from_millis(100);
/// How long a stranger may take to send its MPA request.
const REQUEST_PATIENCE: Duration = Duration::from_secs(5);
/// Requests held for queue pairs that are not ready.
const HELD_MAX: usize = 4_096;
/// Bytes that are read of an MPA exchange at a time; a frame is smaller.
const READ_LEN: usize = 1_024;

/// The queue pair has reached RTR: brings its connection about.
pub(crate) fn connect(qp: &Qp) {
    let Some((gid, number)) = qp.wanted_peer() else { return };
    if pending::is_expected(&(gid, number)) {
        return;
    }
    if is_local(gid) && numbers::find(number).is_some() {
        connect_inside(qp, number);
        return;
    }
    if (qp.own_gid(), qp.number()) < (gid, number) {
        Dial::start(qp, gid, number);
        return;
    }
    let held = {
        let mut all = HELD.get().lock();
        let index = all.iter().position(|held| held.suits(qp));
        index.and_then(|index| all.remove(index))
    };
    if let Some(held) = held {
        held.accept(qp);
    }
}

/// The queue pair does not want its peer any more.
pub(crate) fn forget(qp: &Qp) {
    let dials: Vec<Arc<Dial>> = {
        let mut dials = DIALS.get().lock();
        let (own, others) =
            dials.drain(..).partition(|dial: &Arc<Dial>| dial.number == qp.number());
        *dials = others;
        own
    };
    for dial in dials {
        dial.give_up();
    }
}

fn is_local(gid: Gid) -> bool {
    let address = address_of(gid);
    let devices = device::list().unwrap_or_default();
    devices.iter().any(|device| device.owns(address))
}

// ---- Inside one process ----

fn connect_inside(qp: &Qp, number: u32) {
    static JOINING: Forkable<Lock<()>> = Forkable::new(|| Lock::new(()));
    let _joining = JOINING.get().lock();
    let Some(peer) = numbers::find(number) else { return };
    let wants_us = peer.wanted_peer().is_some_and(|(_, wanted)| wanted == qp.number());
    if !wants_us {
        return;
    }
    if let Err(error) = join(qp, &peer) {
        qp.unreachable(error);
    }
}

fn join(qp: &Qp, peer: &Qp) -> Result<()> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    if qp.number() == peer.number() {
        return qp.attach(inside(ours, Some(theirs), peer));
    }
    peer.attach(inside(theirs, None, qp))?;
    qp.attach(inside(ours, None, peer))
}

fn inside(socket: OwnedFd, read_from: Option<OwnedFd>, peer: &Qp) -> Connection {
    let depth = u16::from(READ_DEPTH_MAX);
    Connection {
        socket,
        read_from,
        local: None,
        peer: None,
        // Nobody has to wait for the other's first message.
        initiator: true,
        negotiated: Negotiated {
            revision: 2,
            crc: false,
            tx_markers: false,
            rx_markers: false,
            ird: depth,
            ord: depth,
            rtr: None,
            peer_private_data: Vec::new(),
        },
        peer_identity: Some(peer.identity()),
        early: Vec::new(),
    }
}

// ---- The side that dials ----

fn params(qp: &Qp, crc: bool) -> Params {
    let (ird, ord) = qp.depths();
    let rtr = RtrKinds { send: false, write: true, read: false };
    Params {
        crc,
        markers_wanted: tcp::markers_wanted(),
        ird,
        ord,
        enhanced: true,
        peer_to_peer: true,
        rtr,
    }
}

#[derive(Debug)]
enum Stage {
    Waiting,
    Connecting { socket: Arc<OwnedFd>, token: Token },
    Asking { socket: Arc<OwnedFd>, token: Token, initiator: Initiator },
    Over,
}

#[derive(Debug)]
struct Dial {
    me: Weak<Self>,
    qp: Weak<Qp>,
    number: u32,
    wanted: u32,
    peer: SocketAddr,
    local: IpAddr,
    deadline: Instant,
    stage: Lock<Stage>,
    timer: Lock<Option<TimerId>>,
}

static DIALS: Forkable<Lock<Vec<Arc<Dial>>>> = Forkable::new(|| Lock::new(Vec::new()));

impl Dial {
    fn start(qp: &Qp, gid: Gid, wanted: u32) {
        let peer =
            tcp::address_on(qp.context().device(), address_of(gid), numbers::port_of(wanted));
        let dial = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            qp: numbers::find(qp.number()).map(|qp| Arc::downgrade(&qp)).unwrap_or_default(),
            number: qp.number(),
            wanted,
            peer,
            local: qp.own_address(),
            deadline: Instant::now() + PATIENCE,
            stage: Lock::new(Stage::Waiting),
            timer: Lock::new(None),
        });
        DIALS.get().lock().push(Arc::clone(&dial));
        dial.try_once();
    }

    fn try_once(&self) {
        let Some(me) = self.me.upgrade() else { return };
        let mut stage = self.stage.lock();
        if matches!(*stage, Stage::Over) {
            return;
        }
        let dialled = tcp::dial(Some(self.local), self.peer).and_then(|socket| {
            let token = Reactor::get().watch(socket.as_fd(), me)?;
            Ok((Arc::new(socket), token))
        });
        match dialled {
            Ok((socket, token)) => *stage = Stage::Connecting { socket, token },
            Err(error) => {
                drop(stage);
                self.retry(error);
            }
        }
    }

    fn retry(&self, error: Errno) {
        let old = std::mem::replace(&mut *self.stage.lock(), Stage::Waiting);
        match old {
            Stage::Connecting { socket, token } | Stage::Asking { socket, token, .. } => {
                Reactor::get().unwatch(socket.as_fd(), token);
            }
            Stage::Over => {
                *self.stage.lock() = Stage::Over;
                return;
            }
            Stage::Waiting => {}
        }
        log::write(
            Level::Debug,
            format_args!("qp {:#08x}: dialling {}: {error}", self.number, self.peer),
        );
        if Instant::now() >= self.deadline {
            log::write(
                Level::Error,
                format_args!("qp {:#08x}: gave up dialling {}: {error}", self.number, self.peer),
            );
            self.finish();
            if let Some(qp) = self.qp.upgrade() {
                qp.unreachable(error);
            }
        } else if let Some(me) = self.me.upgrade() {
            *self.timer.lock() = Some(Reactor::get().start_timer(Instant::now() + RETRY, me));
        }
    }

    fn advance(&self) -> Result<()> {
        loop {
            let mut stage = self.stage.lock();
            match &mut *stage {
                Stage::Waiting | Stage::Over => return Ok(()),
                Stage::Connecting { socket, token } => {
                    if !tcp::dial_result(socket)? {
                        return Ok(());
                    }
                    let (socket, token) = (Arc::clone(socket), *token);
                    let initiator = self.ask(&socket)?;
                    *stage = Stage::Asking { socket, token, initiator };
                }
                Stage::Asking { socket, token, initiator } => {
                    let mut bytes = Vec::with_capacity(READ_LEN);
                    match weft_sys::recv(socket.as_fd(), &mut bytes) {
                        Err(Errno::AGAIN) => return Ok(()),
                        Ok(0) => return Err(Errno::CONNRESET),
                        Ok(_) => {}
                        Err(error) => return Err(error),
                    }
                    let (taken, outcome) = initiator.input(&bytes).map_err(|_| Errno::PROTO)?;
                    let Some(outcome) = outcome else { continue };
                    let InitiatorOutcome::Accepted(negotiated) = outcome else {
                        return Err(Errno::CONNREFUSED);
                    };
                    Reactor::get().unwatch(socket.as_fd(), *token);
                    let socket = Arc::clone(socket);
                    *stage = Stage::Over;
                    drop(stage);
                    return self.succeed(socket, negotiated, bytes.split_off(taken));
                }
            }
        }
    }

    fn ask(&self, socket: &OwnedFd) -> Result<Initiator> {
        let qp = self.qp.upgrade().ok_or(Errno::CONNABORTED)?;
        let private_data = hello::append(&[], &qp.identity(), self.wanted);
        let crc = tcp::crc_wanted(self.local, self.peer.ip());
        let initiator =
            Initiator::new(params(&qp, crc), &private_data).map_err(|_| Errno::INVAL)?;
        // A fresh socket has room for a frame.
        weft_sys::send(socket.as_fd(), initiator.request())?;
        Ok(initiator)
    }

    fn succeed(&self, socket: Arc<OwnedFd>, negotiated: Negotiated, early: Vec<u8>) -> Result<()> {
        self.finish();
        let (_, hello) = hello::split(&negotiated.peer_private_data);
        let (Some(qp), Some(hello)) = (self.qp.upgrade(), hello) else {
            return Err(Errno::PROTO);
        };
        let Ok(socket) = Arc::try_unwrap(socket) else { return Err(Errno::BUSY) };
        qp.attach(Connection {
            local: tcp::local_address(&socket).ok(),
            peer: Some(self.peer),
            socket,
            read_from: None,
            initiator: true,
            negotiated,
            peer_identity: Some(hello.identity),
            early,
        })
    }

    fn finish(&self) {
        *self.stage.lock() = Stage::Over;
        DIALS.get().lock().retain(|dial| !std::ptr::eq(&**dial, self));
    }

    fn give_up(&self) {
        let old = std::mem::replace(&mut *self.stage.lock(), Stage::Over);
        if let Stage::Connecting { socket, token } | Stage::Asking { socket, token, .. } = old {
            Reactor::get().unwatch(socket.as_fd(), token);
        }
        if let Some(timer) = self.timer.lock().take() {
            Reactor::get().stop_timer(timer);
        }
    }
}

impl Source for Dial {
    fn ready(&self) {
        if let Err(error) = self.advance() {
            self.retry(error);
        }
    }

    fn expired(&self) {
        *self.timer.lock() = None;
        self.try_once();
    }
}

// ---- The side that is dialled ----

/// Accepts strangers on a port of queue pair numbers.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
}

impl Listener {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }
}

impl Source for Listener {
    fn ready(&self) {
        loop {
            match tcp::accept(&self.socket) {
                Ok(socket) => Stranger::start(socket),
                // One that went away before it was accepted does not stop the others.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

/// A connection whose MPA request is not complete.
#[derive(Debug)]
struct Stranger {
    me: Weak<Self>,
    state: Lock<Option<StrangerState>>,
}

#[derive(Debug)]
struct StrangerState {
    socket: OwnedFd,
    token: Option<Token>,
    timer: Option<TimerId>,
    responder: Responder,
}

impl Stranger {
    fn start(socket: OwnedFd) {
        let responder = Responder::new(Limits { private_data_max: hello::TRAILER_LEN });
        let state = StrangerState { socket, token: None, timer: None, responder };
        let stranger =
            Arc::new_cyclic(|me| Self { me: Weak::clone(me), state: Lock::new(Some(state)) });
        let reactor = Reactor::get();
        let mut state = stranger.state.lock();
        if let Some(state) = &mut *state {
            let source = Arc::clone(&stranger) as Arc<dyn Source>;
            let Ok(token) = reactor.watch(state.socket.as_fd(), Arc::clone(&source)) else {
                return;
            };
            state.token = Some(token);
            state.timer = Some(reactor.start_timer(Instant::now() + REQUEST_PATIENCE, source));
        }
        drop(state);
        stranger.ready();
    }

    fn advance(&self, state: &mut StrangerState) -> Result<Option<Hello>> {
        let mut bytes = Vec::with_capacity(READ_LEN);
        loop {
            bytes.clear();
            match weft_sys::recv(state.socket.as_fd(), &mut bytes) {
                Err(Errno::AGAIN) => return Ok(None),
                Ok(0) => return Err(Errno::CONNRESET),
                Ok(_) => {}
                Err(error) => return Err(error),
            }
            let (taken, request) = state.responder.input(&bytes).map_err(|_| Errno::PROTO)?;
            let Some(request) = request else { continue };
            // Nothing may follow the request before the reply.
            let hello = hello::split(&request.private_data).1.filter(|_| taken == bytes.len());
            return hello.map(Some).ok_or(Errno::PROTO);
        }
    }
}

impl Source for Stranger {
    fn ready(&self) {
        let mut guard = self.state.lock();
        let Some(state) = &mut *guard else { return };
        let advanced = self.advance(state);
        if matches!(advanced, Ok(None)) {
            return;
        }
        let Some(state) = guard.take() else { return };
        drop(guard);
        let reactor = Reactor::get();
        if let Some(token) = state.token {
            reactor.unwatch(state.socket.as_fd(), token);
        }
        if let Some(timer) = state.timer {
            reactor.stop_timer(timer);
        }
        if let Ok(Some(hello)) = advanced {
            Held::arrive(state.socket, state.responder, hello);
        }
    }

    fn expired(&self) {
        let state = self.state.lock().take();
        if let Some(StrangerState { socket, token: Some(token), .. }) = state {
            Reactor::get().unwatch(socket.as_fd(), token);
        }
        let _ = &self.me;
    }
}

/// A request for a queue pair that does not want this peer yet.
#[derive(Debug)]
struct Held {
    socket: OwnedFd,
    responder: Responder,
    hello: Hello,
    peer: SocketAddr,
    since: Instant,
}

static HELD: Forkable<Lock<VecDeque<Held>>> = Forkable::new(|| Lock::new(VecDeque::new()));

impl Held {
    fn arrive(socket: OwnedFd, responder: Responder, hello: Hello) {
        let Ok(peer) = tcp::peer_address(&socket) else { return };
        let held = Self { socket, responder, hello, peer, since: Instant::now() };
        let qp = numbers::find(hello.wanted_qp);
        let mut all = HELD.get().lock();
        all.retain(|other| other.since.elapsed() < PATIENCE);
        // Under the lock that `connect` looks under after the state has changed, so that one of the
        // two sees the other.
        match qp.filter(|qp| held.suits(qp)) {
            Some(qp) => {
                drop(all);
                held.accept(&qp);
            }
            None => {
                if all.len() >= HELD_MAX {
                    all.pop_front();
                }
                all.push_back(held);
            }
        }
    }

    /// Whether this is exactly the peer that the queue pair wants: by number, by GID, and by the
    /// address that it comes from.
    fn suits(&self, qp: &Qp) -> bool {
        let Hello { identity, wanted_qp } = &self.hello;
        *wanted_qp == qp.number()
            && qp.wanted_peer() == Some((identity.gid, identity.qp_num))
            && address_of(identity.gid) == self.peer.ip()
    }

    fn accept(mut self, qp: &Qp) {
        let private_data = hello::append(&[], &qp.identity(), self.hello.identity.qp_num);
        let local = tcp::local_address(&self.socket).ok();
        let crc = local.is_none_or(|local| tcp::crc_wanted(local.ip(), self.peer.ip()));
        let accepted = self.responder.accept(params(qp, crc), &private_data);
        let Ok((reply, negotiated)) = accepted else { return };
        if weft_sys::send(self.socket.as_fd(), &reply) != Ok(reply.len()) {
            return;
        }
        // Fails only if the queue pair has been connected or destroyed meanwhile; the peer sees
        // its connection closed.
        let _ = qp.attach(Connection {
            socket: self.socket,
            read_from: None,
            local,
            peer: Some(self.peer),
            initiator: false,
            negotiated,
            peer_identity: Some(self.hello.identity),
            early: Vec::new(),
        });
    }
}
