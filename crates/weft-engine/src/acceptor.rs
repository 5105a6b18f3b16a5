//! The side that is dialled, of queue pairs whose programs exchanged numbers and GIDs themselves
//! ([`crate::rendezvous`]): takes requests at the ports of queue pair numbers, and holds them until
//! their queue pair wants exactly this peer.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use weft_sys::{Forkable, Lock};
use weft_wire::mpa::negotiate::{Limits, Responder};

use crate::device::address_of;
use crate::hello::{self, Hello};
use crate::limits::HELD_PER_QP;
use crate::qp::{Connection, Qp};
use crate::reactor::{Reactor, Source, TimerId};
use crate::strangers::{HALF_OPEN, HELD, Listener, Place, Stranger};
use crate::watched::Watched;
use crate::{Errno, Result, numbers, rendezvous, tcp};

/// How long a peer may take to send its MPA request.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// How long a request is held for its queue pair: as long as its peer dials.
const HELD_TIME: Duration = Duration::from_secs(30);
/// Bytes that are read of a request at a time; a request is smaller.
const READ_LEN: usize = 1_024;

/// The queue pair has reached RTR, and its peer is the side that dials: takes the peer's request,
/// if that is here.
pub(crate) fn connect(qp: &Qp) {
    let found = {
        let mut all = REQUESTS.get().lock();
        let index = all.iter().position(|request| request.suits(qp));
        index.map(|index| all.remove(index))
    };
    if let Some(request) = found {
        request.accept(qp);
    }
}

/// Accepts connections on a port of queue pair numbers.
///
/// # Errors
/// What the reactor reports.
pub(crate) fn serve(socket: OwnedFd) -> Result<()> {
    Listener::serve(socket, &HALF_OPEN, Caller::start)
}

/// A connection that has not found its queue pair.
#[derive(Debug)]
struct Caller {
    this: Weak<Self>,
    phase: Lock<Phase>,
}

#[derive(Debug)]
enum Phase {
    /// The request is coming in.
    Reading { socket: Watched, responder: Responder, timer: TimerId, _place: Place },
    /// The queue pair does not want this peer yet.
    Held { socket: Watched, responder: Responder, timer: TimerId, _place: Place },
    /// Accepted or closed.
    Over,
}

/// A request that is held.
#[derive(Debug)]
struct Request {
    hello: Hello,
    peer: SocketAddr,
    caller: Arc<Caller>,
}

/// The oldest first.
static REQUESTS: Forkable<Lock<Vec<Request>>> = Forkable::new(|| Lock::new(Vec::new()));

/// What reading has led to.
enum Read {
    More,
    Request(Hello),
    Failed,
}

impl Caller {
    fn start(socket: OwnedFd, place: Place) {
        if tcp::tune(&socket).is_err() {
            return;
        }
        let phase = Lock::new(Phase::Over);
        let caller = Arc::new_cyclic(|this| Self { this: Weak::clone(this), phase });
        let owner: Arc<dyn Source> = Arc::clone(&caller) as _;
        let mut phase = caller.phase.lock();
        let Ok(socket) = Watched::new(socket, Arc::clone(&owner)) else { return };
        let responder = Responder::new(Limits { private_data_max: hello::TRAILER_LEN });
        let timer = Reactor::get().start_timer(Instant::now() + REQUEST_TIME, owner);
        place.give_to(Weak::clone(&caller.this) as _);
        *phase = Phase::Reading { socket, responder, timer, _place: place };
        drop(phase);
        caller.ready();
    }

    fn read(&self) -> Read {
        let mut phase = self.phase.lock();
        let read = match &mut *phase {
            Phase::Reading { socket, responder, .. } => read_request(socket, responder),
            // Nothing may come before our reply (RFC 5044 section 7.1.2) but the end of the stream.
            Phase::Held { socket, .. } => {
                match weft_sys::recv(socket.as_fd(), &mut Vec::with_capacity(1)) {
                    Err(Errno::AGAIN | Errno::INTR) => Read::More,
                    Ok(_) | Err(_) => Read::Failed,
                }
            }
            Phase::Over => Read::More,
        };
        if matches!(read, Read::Failed) {
            drop(phase.take());
        }
        read
    }

    /// The request is whole: finds its queue pair, or holds it until that wants this peer.
    fn requested(&self, hello: Hello) {
        let Some(caller) = self.this.upgrade() else { return };
        let peer = match &*self.phase.lock() {
            Phase::Reading { socket, .. } => tcp::peer_address(socket),
            Phase::Held { .. } | Phase::Over => return,
        };
        let (Ok(peer), Some(qp)) = (peer, numbers::find(hello.wanted_qp)) else {
            return self.close();
        };
        let request = Request { hello, peer, caller };
        if !request.is_honest() {
            return self.close();
        }
        // Before the lock: who has to leave is taken off the list.
        let place = HELD.enter();
        let mut surplus = None;
        {
            let mut all = REQUESTS.get().lock();
            // Under the lock that `connect` looks under after the state has changed, so that one
            // of the two sees the other.
            if request.suits(&qp) {
                drop(all);
                return request.accept(&qp);
            }
            let Ok(place) = place else {
                drop(all);
                return self.close();
            };
            if !self.hold(place) {
                return;
            }
            let same = |other: &&Request| other.hello.wanted_qp == hello.wanted_qp;
            if all.iter().filter(same).count() >= HELD_PER_QP {
                let index = all.iter().position(|other| same(&other));
                surplus = index.map(|index| all.remove(index));
            }
            all.push(request);
        }
        if let Some(surplus) = surplus {
            surplus.caller.close();
        }
        // It may have been turned out before it was on the list, or its peer have left before we
        // looked for that: the socket does not tell again.
        if matches!(self.read(), Read::Failed) || matches!(*self.phase.lock(), Phase::Over) {
            self.forget();
        }
    }

    /// Leaves the place of those that are half open. Returns false if it is closed already.
    fn hold(&self, place: Place) -> bool {
        let mut phase = self.phase.lock();
        let (Phase::Reading { socket, responder, .. }, Some(me)) =
            (phase.take(), self.this.upgrade())
        else {
            return false;
        };
        place.give_to(Weak::clone(&self.this) as _);
        let timer = Reactor::get().start_timer(Instant::now() + HELD_TIME, me);
        *phase = Phase::Held { socket, responder, timer, _place: place };
        true
    }

    /// Closes the connection.
    fn close(&self) {
        let closed = self.phase.lock().take();
        drop(closed);
    }

    /// Takes its request off the list.
    fn forget(&self) {
        let mut all = REQUESTS.get().lock();
        let index = all.iter().position(|request| std::ptr::eq(&*request.caller, self));
        let removed = index.map(|index| all.remove(index));
        drop(all);
        drop(removed);
    }
}

impl Phase {
    /// Leaves `Over` behind and stops the timer.
    fn take(&mut self) -> Self {
        let phase = std::mem::replace(self, Self::Over);
        if let Self::Reading { timer, .. } | Self::Held { timer, .. } = &phase {
            Reactor::get().stop_timer(*timer);
        }
        phase
    }
}

impl Request {
    /// Whether this is exactly the peer that the queue pair wants: by number, by GID, and by the
    /// address that it comes from.
    fn suits(&self, qp: &Qp) -> bool {
        let Hello { identity, wanted_qp } = &self.hello;
        *wanted_qp == qp.number()
            && qp.wanted_peer() == Some((identity.gid, identity.qp_num))
            && self.is_honest()
    }

    /// Whether the peer is at the address that it names.
    fn is_honest(&self) -> bool {
        address_of(self.hello.identity.gid) == self.peer.ip()
    }

    fn accept(self, qp: &Qp) {
        let phase = self.caller.phase.lock().take();
        let (Phase::Reading { socket, mut responder, .. }
        | Phase::Held { socket, mut responder, .. }) = phase
        else {
            return;
        };
        let private_data = hello::append(&[], &qp.identity(), self.hello.identity.qp_num);
        let socket = socket.release();
        let local = tcp::local_address(&socket).ok();
        let crc = local.is_none_or(|local| tcp::crc_wanted(local.ip(), self.peer.ip()));
        let accepted = responder.accept(rendezvous::params(qp, crc), &private_data);
        let Ok((reply, negotiated)) = accepted else { return };
        if weft_sys::send(socket.as_fd(), &reply) != Ok(reply.len()) {
            return;
        }
        // Fails only if the queue pair has been connected or destroyed meanwhile; the peer sees
        // its connection closed.
        let _ = qp.attach(Connection {
            socket,
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

impl Source for Caller {
    fn ready(&self) {
        match self.read() {
            Read::More => {}
            Read::Request(hello) => self.requested(hello),
            Read::Failed => self.forget(),
        }
    }

    fn expired(&self) {
        self.turn_out();
    }
}

impl Stranger for Caller {
    fn turn_out(&self) {
        self.close();
        self.forget();
    }
}

fn read_request(socket: &Watched, responder: &mut Responder) -> Read {
    let mut bytes = Vec::with_capacity(READ_LEN);
    loop {
        bytes.clear();
        match weft_sys::recv(socket.as_fd(), &mut bytes) {
            Err(Errno::AGAIN | Errno::INTR) => return Read::More,
            Ok(0) | Err(_) => return Read::Failed,
            Ok(_) => {}
        }
        match responder.input(&bytes) {
            Ok((_, None)) => {}
            // Nothing may follow the request before the reply.
            Ok((taken, Some(_))) if taken < bytes.len() => return Read::Failed,
            Ok((_, Some(request))) => {
                return hello::split(&request.private_data).1.map_or(Read::Failed, Read::Request);
            }
            Err(_) => return Read::Failed,
        }
    }
}
