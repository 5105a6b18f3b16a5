//! Accepts connections for queue pairs whose programs exchanged numbers and GIDs themselves
//! ([`crate::rendezvous`]). It accepts MPA requests on the ports of queue pair numbers, and holds
//! each one until the queue pair that it names wants exactly this peer.

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
use crate::strangers::{HALF_OPEN, HELD, Listener, Permit};
use crate::{Result, tcp};

const LIMITS: Limits = Limits {
    private_data_max: hello::TRAILER_LEN,
    request_time: Duration::from_secs(5),
    // The peer dials for this long.
    answer_time: Duration::from_secs(30),
};

/// Connects a queue pair that has reached RTR and whose peer dials, if the peer's request has
/// arrived.
pub(crate) fn connect(qp: &Qp) {
    let found = {
        let mut all = REQUESTS.get().lock();
        let index = all.iter().position(|request| request.matches(qp));
        index.map(|index| all.remove(index))
    };
    if let Some(request) = found {
        request.accept(qp);
    }
}

/// Accepts connections on a port of queue pair numbers.
///
/// # Errors
/// The reactor's error if it cannot watch the socket.
pub(crate) fn serve(socket: OwnedFd) -> Result<()> {
    Listener::serve(Handle::of_process(), socket, &HALF_OPEN, start)
}

/// The MPA parameters that we propose for a connection of this queue pair.
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

/// A connection that has not been matched with its queue pair.
type Pending = Incoming<RequestMatcher>;

/// Matches each request with its queue pair.
#[derive(Debug)]
struct RequestMatcher;

/// A request that waits for its queue pair.
#[derive(Debug)]
struct Request {
    hello: Hello,
    pending: Arc<Pending>,
}

/// Held requests, oldest first.
static REQUESTS: Forkable<Lock<Vec<Request>>> = Forkable::new(|| Lock::new(Vec::new()));

fn start(reactor: Handle, socket: OwnedFd, permit: Permit) {
    let tuned = tcp::tune(&socket);
    let (local, peer) = (tcp::local_address(&socket), tcp::peer_address(&socket));
    // Close a connection that cannot be set up or has already ended.
    if let (Ok(()), Ok(local), Ok(peer)) = (tuned, local, peer)
        && let Ok(pending) =
            Incoming::start(reactor, socket, [local, peer], LIMITS, permit, RequestMatcher)
    {
        pending.ready();
    }
}

impl Host for RequestMatcher {
    /// Accepts the request for its queue pair, or holds it until that queue pair wants this peer.
    fn requested(pending: &Arc<Pending>, request: negotiate::Request, now: Instant) {
        let (_, hello) = hello::split(&request.private_data);
        let Some((hello, qp)) = hello.and_then(|hello| Some((hello, qp::find(hello.wanted_qp)?)))
        else {
            return pending.abandon();
        };
        let request = Request { hello, pending: Arc::clone(pending) };
        if !request.is_from_its_gid() {
            return pending.abandon();
        }
        // Acquire before locking: `acquire` may evict a held request, whose `ended` takes the lock.
        let permit = HELD.acquire(now);
        let mut evicted = None;
        {
            let mut all = REQUESTS.get().lock();
            // `connect` takes this lock after it has changed the state, so one of the two threads
            // sees the other's change.
            if request.matches(&qp) {
                drop(all);
                return request.accept(&qp);
            }
            let Ok(permit) = permit else {
                drop(all);
                return pending.abandon();
            };
            if !pending.hold(permit) {
                return;
            }
            let same = |other: &&Request| other.hello.wanted_qp == hello.wanted_qp;
            if all.iter().filter(same).count() >= HELD_PER_QP {
                let index = all.iter().position(|other| same(&other));
                evicted = index.map(|index| all.remove(index));
            }
            all.push(request);
        }
        if let Some(evicted) = evicted {
            evicted.pending.abandon();
        }
        // The request may have been evicted before it was on the list.
        if pending.is_over() {
            Self::ended(pending);
        }
    }

    /// Removes the request from the list.
    fn ended(pending: &Pending) {
        let mut all = REQUESTS.get().lock();
        let index = all.iter().position(|request| std::ptr::eq(&*request.pending, pending));
        let removed = index.map(|index| all.remove(index));
        drop(all);
        drop(removed);
    }

    fn overdue(pending: &Pending) {
        pending.abandon();
        Self::ended(pending);
    }
}

impl Request {
    /// Whether the queue pair wants exactly this peer: same number, same GID, and the address that
    /// the connection comes from.
    fn matches(&self, qp: &Qp) -> bool {
        let Hello { identity, wanted_qp } = &self.hello;
        *wanted_qp == qp.number()
            && qp.wanted_peer() == Some((identity.gid, identity.qp_num))
            && self.is_from_its_gid()
    }

    /// Whether the peer's GID is the address that it connects from.
    fn is_from_its_gid(&self) -> bool {
        let [_, peer] = self.pending.addresses();
        address_of(self.hello.identity.gid) == peer.ip()
    }

    fn accept(self, qp: &Qp) {
        let private_data = hello::append(&[], &qp.identity(), self.hello.identity.qp_num);
        let [local, peer] = self.pending.addresses();
        let crc = tcp::crc_wanted(local.ip(), peer.ip());
        let params = params(qp, crc);
        let Ok((socket, negotiated)) = self.pending.accept(params, &private_data) else {
            return self.pending.abandon();
        };
        // Fails only if the queue pair was connected or destroyed in the meantime. The peer then
        // sees its connection closed.
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
