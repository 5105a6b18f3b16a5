//! Connecting queue pairs whose programs exchanged numbers and GIDs themselves.
//!
//! Once both sides know each other (RTR), the one with the lower (GID, number) dials the TCP port
//! in the other's number, and names the queue pair it wants in its MPA private data. The other
//! ([`acceptor`]) holds the request until its own queue pair wants exactly this peer. Two queue
//! pairs of one process are joined by a pair of local sockets.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use weft_sys::{Forkable, Lock};
use weft_wire::mpa::negotiate::{Initiator, InitiatorOutcome, Negotiated, Params, RtrKinds};

use crate::device::{self, Gid, address_of};
use crate::hello::{self, Identity};
use crate::limits::READ_DEPTH_MAX;
use crate::log::{self, Level};
use crate::qp::{Connection, Qp, pending};
use crate::reactor::{Reactor, Source, TimerId, Token};
use crate::{Errno, Result, acceptor, numbers, tcp};

/// How long a dialling side tries.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between attempts to dial.
const RETRY: Duration = Duration::from_millis(100);
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
    acceptor::connect(qp);
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

/// What we want of a connection of this queue pair.
pub(crate) fn params(qp: &Qp, crc: bool) -> Params {
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
                    let identity = self.identity_in(&negotiated)?;
                    Reactor::get().unwatch(socket.as_fd(), *token);
                    let socket = Arc::clone(socket);
                    *stage = Stage::Over;
                    drop(stage);
                    let early = bytes.split_off(taken);
                    return self.succeed(socket, negotiated, identity, early);
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

    /// Who has answered. The port may have gone to somebody else since the program was told of the
    /// number; only an answer of the wanted queue pair to ours is believed.
    fn identity_in(&self, negotiated: &Negotiated) -> Result<Identity> {
        let (_, hello) = hello::split(&negotiated.peer_private_data);
        let hello = hello.ok_or(Errno::PROTO)?;
        let is_wanted = hello.identity.qp_num == self.wanted && hello.wanted_qp == self.number;
        if is_wanted { Ok(hello.identity) } else { Err(Errno::PROTO) }
    }

    fn succeed(
        &self,
        socket: Arc<OwnedFd>,
        negotiated: Negotiated,
        identity: Identity,
        early: Vec<u8>,
    ) -> Result<()> {
        self.finish();
        let qp = self.qp.upgrade().ok_or(Errno::CONNABORTED)?;
        let Ok(socket) = Arc::try_unwrap(socket) else { return Err(Errno::BUSY) };
        qp.attach(Connection {
            local: tcp::local_address(&socket).ok(),
            peer: Some(self.peer),
            socket,
            read_from: None,
            initiator: true,
            negotiated,
            peer_identity: Some(identity),
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
