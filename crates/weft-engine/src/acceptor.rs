//! The side that is dialled, of queue pairs whose programs exchanged numbers and GIDs themselves
//! ([`crate::rendezvous`]): takes requests at the ports of queue pair numbers, and holds them until
//! their queue pair wants exactly this peer.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_sys::{Forkable, Lock};
use weft_wire::mpa::negotiate::{self, Params, RtrKinds};

use crate::device::address_of;
use crate::hello::{self, Hello};
use crate::limits::HELD_PER_QP;
use crate::mpa::incoming::{Host, Incoming};
use crate::mpa::responder::Limits;
use crate::qp::{self, Connection, Qp};
use crate::reactor::{Handle, Source};
use crate::strangers::{HALF_OPEN, HELD, Listener, Place};
use crate::{Result, tcp};

const LIMITS: Limits = Limits {
    private_data_max: hello::TRAILER_LEN,
    request_time: Duration::from_secs(5),
    // As long as the peer dials.
    answer_time: Duration::from_secs(30),
};

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
    Listener::serve(Handle::of_process(), socket, &HALF_OPEN, start)
}

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

/// A connection that has not found its queue pair.
type Caller = Incoming<Reception>;

/// Finds the queue pair of each caller.
#[derive(Debug)]
struct Reception;

/// A request that is held.
#[derive(Debug)]
struct Request {
    hello: Hello,
    caller: Arc<Caller>,
}

/// The oldest first.
static REQUESTS: Forkable<Lock<Vec<Request>>> = Forkable::new(|| Lock::new(Vec::new()));

fn start(reactor: Handle, socket: OwnedFd, place: Place) {
    let tuned = tcp::tune(&socket);
    let (local, peer) = (tcp::local_address(&socket), tcp::peer_address(&socket));
    // A connection that cannot be set up, or is over already, is closed.
    if let (Ok(()), Ok(local), Ok(peer)) = (tuned, local, peer)
        && let Ok(caller) =
            Incoming::start(reactor, socket, [local, peer], LIMITS, place, Reception)
    {
        caller.ready();
    }
}

impl Host for Reception {
    /// Finds the request's queue pair, or holds it until that wants this peer.
    fn requested(caller: &Arc<Caller>, request: negotiate::Request, now: Instant) {
        let (_, hello) = hello::split(&request.private_data);
        let Some((hello, qp)) = hello.and_then(|hello| Some((hello, qp::find(hello.wanted_qp)?)))
        else {
            return caller.abandon();
        };
        let request = Request { hello, caller: Arc::clone(caller) };
        if !request.is_honest() {
            return caller.abandon();
        }
        // Before the lock: who has to leave is taken off the list.
        let place = HELD.enter(now);
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
                return caller.abandon();
            };
            if !caller.hold(place) {
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
            surplus.caller.abandon();
        }
        // It may have been turned out before it was on the list.
        if caller.is_over() {
            Self::ended(caller);
        }
    }

    /// Takes the request off the list.
    fn ended(caller: &Caller) {
        let mut all = REQUESTS.get().lock();
        let index = all.iter().position(|request| std::ptr::eq(&*request.caller, caller));
        let removed = index.map(|index| all.remove(index));
        drop(all);
        drop(removed);
    }

    fn overdue(caller: &Caller) {
        caller.abandon();
        Self::ended(caller);
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
        let [_, peer] = self.caller.addresses();
        address_of(self.hello.identity.gid) == peer.ip()
    }

    fn accept(self, qp: &Qp) {
        let private_data = hello::append(&[], &qp.identity(), self.hello.identity.qp_num);
        let [local, peer] = self.caller.addresses();
        let crc = tcp::crc_wanted(local.ip(), peer.ip());
        let params = params(qp, crc);
        let Ok((socket, negotiated)) = self.caller.accept(params, &private_data) else {
            return self.caller.abandon();
        };
        // Fails only if the queue pair has been connected or destroyed meanwhile; the peer sees
        // its connection closed.
        let _ = qp.attach(Connection {
            socket,
            read_from: None,
            local: Some(local),
            peer: Some(peer),
            initiator: false,
            negotiated,
            peer_identity: Some(self.hello.identity),
            early: Vec::new(),
        });
    }
}
