//! Connecting queue pairs whose programs exchanged numbers and GIDs themselves.
//!
//! When both queue pairs know each other (RTR), the one with the lower (GID, number) dials the TCP
//! port in the other's number, and names the wanted queue pair in its MPA private data. The other
//! process ([`acceptor`]) holds the request until its own queue pair wants exactly this peer. Two
//! queue pairs of one process are connected by a socket pair.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use weft_sys::calls::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use weft_sys::{Forkable, Lock};
use weft_wire::mpa::negotiate::{Negotiated, Params};

use crate::device::{self, Gid, address_of};
use crate::hello;
use crate::limits::READ_DEPTH_MAX;
use crate::log::{self, Level};
use crate::mpa::dial::{Caller, Dial, Outcome};
use crate::mpa::dialer::{Agreed, Answer, Failure, Path, Plan, Retry, Wanted};
use crate::qp::{self, Connection, Qp, pending};
use crate::reactor::{self, Handle, Source};
use crate::{Errno, Result, acceptor, numbers, tcp};

/// How long the dialling side tries.
const DIAL_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause between two attempts to dial.
const RETRY: Duration = Duration::from_millis(100);

/// Connects a queue pair that has reached RTR.
pub(crate) fn connect(qp: &Qp) {
    let Some((gid, number)) = qp.wanted_peer() else { return };
    if pending::is_expected(&(gid, number)) {
        return;
    }
    if is_local(gid) && qp::find(number).is_some() {
        connect_inside(qp, number);
        return;
    }
    if (qp.own_gid(), qp.number()) < (gid, number) {
        Dialling::start(qp, gid, number);
        return;
    }
    acceptor::connect(qp);
}

/// Stops dialling for a queue pair that no longer wants its peer.
pub(crate) fn forget(qp: &Qp) {
    let dials: Vec<_> = {
        let mut dials = DIALS.get().lock();
        let (own, others) = dials.drain(..).partition(|dial| dial.caller.number == qp.number());
        *dials = others;
        own
    };
    for dial in dials {
        dial.cancel();
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
    let Some(peer) = qp::find(number) else { return };
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
        // Inside a process neither end has to wait for the other's first message.
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

/// The state of a queue pair that dials its peer.
struct Dialling {
    qp: Weak<Qp>,
    number: u32,
    wanted: u32,
    peer: SocketAddr,
    local: IpAddr,
}

static DIALS: Forkable<Lock<Vec<Arc<Dial<Dialling>>>>> = Forkable::new(|| Lock::new(Vec::new()));

impl Dialling {
    fn start(qp: &Qp, gid: Gid, wanted: u32) {
        let (number, device) = (qp.number(), qp.context().device());
        let peer = tcp::address_on(device, address_of(gid), numbers::port_of(wanted));
        let plan = Plan {
            connect_time: None,
            reply_time: None,
            retry: Retry::Always { pause: RETRY, time: DIAL_TIMEOUT },
            wanted: Some(Wanted { peer: wanted, own: number }),
        };
        let qp_found = qp::find(number).map(|qp| Arc::downgrade(&qp)).unwrap_or_default();
        let caller = Self { qp: qp_found, number, wanted, peer, local: qp.own_address() };
        let dial = Dial::new(qp.context().reactor(), plan, caller);
        DIALS.get().lock().push(Arc::clone(&dial));
        if let Err(failure) = dial.start(reactor::now()) {
            Self::dialled(&dial, Err(failure));
        }
    }

    fn attach(&self, qp: &Qp, socket: OwnedFd, agreed: Agreed) {
        let Agreed { negotiated, early } = agreed;
        let (_, hello) = hello::split(&negotiated.peer_private_data);
        // Fails only if the queue pair was connected or destroyed in the meantime.
        let _ = qp.attach(Connection {
            local: tcp::local_address(&socket).ok(),
            peer: Some(self.peer),
            socket,
            read_from: None,
            initiator: true,
            peer_identity: hello.map(|hello| hello.identity),
            negotiated,
            early,
        });
    }
}

impl Caller for Dialling {
    type PendingQuery = Infallible;

    /// Returns no path to ask for: the queue pair's number names the port.
    fn path(&self, _: Instant) -> Option<Path> {
        None
    }

    fn ask(&self, _: Handle, _: &Arc<dyn Source>) -> Result<Infallible> {
        Err(Errno::OPNOTSUPP)
    }

    fn learn(&self, _: Instant, _: Answer) {}

    fn open(&self, _: Option<u16>, _: Option<OwnedFd>) -> Result<OwnedFd> {
        tcp::dial(Some(self.local), self.peer)
    }

    fn mpa_request(&self, _: bool) -> Result<(Params, Vec<u8>)> {
        let qp = self.qp.upgrade().ok_or(Errno::CONNABORTED)?;
        let private_data = hello::append(&[], &qp.identity(), self.wanted);
        Ok((acceptor::params(&qp, tcp::crc_wanted(self.local, self.peer.ip())), private_data))
    }

    fn retries(&self, failure: &Failure) {
        let (number, peer, error) = (self.number, self.peer, failure.errno());
        log::write(Level::Debug, format_args!("qp {number:#08x}: dialling {peer}: {error}"));
    }

    fn dialled(dial: &Dial<Self>, outcome: Outcome) {
        DIALS.get().lock().retain(|other| !std::ptr::eq(&**other, dial));
        let caller = &dial.caller;
        let qp = caller.qp.upgrade();
        match (outcome, qp) {
            (Ok((socket, agreed)), Some(qp)) => caller.attach(&qp, socket, agreed),
            (Ok(_), None) => {}
            (Err(failure), qp) => {
                let (number, peer, error) = (caller.number, caller.peer, failure.errno());
                log::write(
                    Level::Error,
                    format_args!("qp {number:#08x}: gave up dialling {peer}: {error}"),
                );
                if let Some(qp) = qp {
                    qp.unreachable(error);
                }
            }
        }
    }
}
