//! Connecting, accepting and disconnecting.

use std::sync::{Arc, Weak};
use std::time::Instant;

use weft_sys::Lock;
use weft_wire::mpa::negotiate::{Request, RtrKinds};

use super::dial::{Call, Caller};
use super::endpoint::{Endpoint, QpEndpoint};
use super::event::{self, EventKind, EventParam, reject};
use super::handshake::{self, Handshaken};
use super::held::StandIn;
use super::id::{CmEnd, CmPhase, Depths, Id, Inner, PeerQp, UnreadWait};
use super::incoming::{self, Incoming};
use super::limits::{UNREAD_INTERVAL, UNREAD_WAIT};
use super::listen::Callee;
use crate::access::Access;
use crate::device::{self, gid_of, loopback_gid};
use crate::hello::{self, Identity};
use crate::limits::{PRIVATE_DATA_MAX, READ_DEPTH_MAX, WEFT_PRIVATE_DATA_MAX};
use crate::mpa::dialer::Failure;
use crate::qp::{
    self, AddressVector, AttrMask, GlobalRoute, Monitor, Qp, QpAttr, QpState, QpType, required,
};
use crate::reactor::Handle;
use crate::timer::Timer;
use crate::{Errno, Result, shm, strangers};

/// A program's read depth that means "as many as possible" (`RDMA_MAX_RESP_RES`).
const DEPTH_ANY: u8 = 0xff;
/// The path MTU of queue pairs, `IBV_MTU_1024`, which fits every Ethernet.
const PATH_MTU: u32 = 3;
const HOP_LIMIT: u8 = 64;
/// About 0.5 s in the verbs encoding. Only reported: TCP has its own timeouts.
const ACK_TIMEOUT: u8 = 17;
/// Retry for ever: a Send waits for a receive, because identifiers cannot exchange another limit.
const RETRY_FOREVER: u8 = 7;

/// The queue pair that an identifier connects.
#[derive(Clone, Debug)]
pub enum Via {
    /// The identifier's own queue pair; the identifier changes its state.
    Own(Arc<Qp>),
    /// A queue pair, by number, whose state the program changes.
    External(u32),
}

/// The fields of `struct rdma_conn_param` that a program sets.
#[derive(Clone, Debug)]
pub struct ConnectParam {
    /// At most [`PRIVATE_DATA_MAX`] bytes; [`WEFT_PRIVATE_DATA_MAX`] to a Weft peer.
    pub private_data: Vec<u8>,
    /// Number of reads and atomics that the peer may have outstanding; 255 is as many as possible.
    pub responder_resources: u8,
    /// Number of reads and atomics that we want to have outstanding; 255 is as many as possible.
    pub initiator_depth: u8,
}

impl Default for ConnectParam {
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            responder_resources: DEPTH_ANY,
            initiator_depth: DEPTH_ANY,
        }
    }
}

impl ConnectParam {
    fn check(&self) -> Result<()> {
        let fits = |depth| depth == DEPTH_ANY || depth <= READ_DEPTH_MAX;
        let ok = self.private_data.len() <= PRIVATE_DATA_MAX
            && fits(self.responder_resources)
            && fits(self.initiator_depth);
        if ok { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// The requested depths, with "as many as possible" replaced by `limit`.
    fn depths(&self, limit: Depths) -> Depths {
        let choose = |wanted, limit| if wanted == DEPTH_ANY { limit } else { wanted };
        Depths {
            responder_resources: choose(self.responder_resources, limit.responder_resources),
            initiator_depth: choose(self.initiator_depth, limit.initiator_depth),
        }
    }
}

impl Id {
    /// `rdma_connect`: requests a connection. Success is reported as [`EventKind::Established`], or
    /// for an external queue pair as [`EventKind::ConnectResponse`].
    ///
    /// # Errors
    /// `EINVAL` before the route is resolved, or for parameters out of range; the system's
    /// immediate errors, such as `ENETUNREACH`.
    pub fn connect(&self, via: &Via, param: &ConnectParam) -> Result<()> {
        if self.is_datagram() {
            return self.connect_datagrams(param);
        }
        self.connect_end(|inner| inner.end(via), param)
    }

    pub(super) fn connect_end(
        &self,
        end: impl FnOnce(&Inner) -> CmEnd,
        param: &ConnectParam,
    ) -> Result<()> {
        param.check()?;
        let mut inner = self.lock();
        let (CmPhase::RouteResolved, Some(local), Some(peer)) =
            (&inner.phase, inner.local, inner.peer)
        else {
            return Err(Errno::INVAL);
        };
        let end = end(&inner);
        let all = Depths { responder_resources: READ_DEPTH_MAX, initiator_depth: READ_DEPTH_MAX };
        inner.depths = param.depths(all);
        let Depths { responder_resources: ird, initiator_depth: ord } = inner.depths;
        let offered = handshake::RTR_OFFERED;
        let call = Call {
            caller: Weak::clone(&self.this) as _,
            local,
            peer,
            stream: Lock::new(inner.port.take().and_then(super::port::Port::into_stream)),
            options: inner.options,
            params: handshake::params(local.ip(), peer.ip(), ird, ord, offered),
            private_data: param.private_data.clone(),
            identity: end.endpoint.identity(),
        };
        // The lock is held, so that the outcome waits until the attempt is stored.
        let dial = call.start(inner.channel.reactor())?;
        inner.phase = CmPhase::Dialling { dial, end };
        Ok(())
    }

    /// `rdma_accept`: accepts a connection request. [`EventKind::Established`] is queued before
    /// this returns, and before any event that the peer causes after our reply.
    ///
    /// # Errors
    /// `EINVAL` in the wrong state or for parameters out of range; `ECONNRESET` if the peer has
    /// given up; the errors of changing the queue pair's state.
    pub fn accept(&self, via: &Via, param: &ConnectParam) -> Result<()> {
        if self.is_datagram() {
            return self.accept_datagrams(via, param);
        }
        self.accept_end(|inner| inner.end(via), param)
    }

    pub(super) fn accept_end(
        &self,
        end: impl FnOnce(&Inner) -> CmEnd,
        param: &ConnectParam,
    ) -> Result<()> {
        param.check()?;
        let (incoming, foreign, end, asked, depths, private_data) = {
            let mut inner = self.lock();
            let CmPhase::Requested { incoming, foreign } = &inner.phase else {
                return Err(Errno::INVAL);
            };
            let (incoming, foreign) = (Arc::clone(incoming), *foreign);
            if !foreign && param.private_data.len() > WEFT_PRIVATE_DATA_MAX {
                return Err(Errno::INVAL);
            }
            let end = end(&inner);
            let asked = inner.depths;
            inner.depths = param.depths(asked);
            inner.phase = CmPhase::Joining { end: end.clone(), gone: false };
            let private_data = match foreign {
                true => param.private_data.clone(),
                false => hello::append(&param.private_data, &end.endpoint.identity(), 0),
            };
            (incoming, foreign, end, asked, inner.depths, private_data)
        };
        let [local, peer] = incoming.addresses();
        let Depths { responder_resources: ird, initiator_depth: ord } = depths;
        let params = handshake::params(local.ip(), peer.ip(), ird, ord, RtrKinds::ALL);
        // Keep events in order: what the peer does after our reply must be reported after the
        // reply's own event.
        let _in_order = event::in_order();
        let accepted = incoming::accept(&incoming, params, &private_data);
        if matches!(accepted, Err(Errno::INVAL)) {
            // The request still waits for an answer.
            let mut inner = self.lock();
            if matches!(inner.phase, CmPhase::Joining { .. }) {
                inner.depths = asked;
                inner.phase = CmPhase::Requested { incoming, foreign };
            }
            return Err(Errno::INVAL);
        }
        let joined = accepted.and_then(|handshaken| {
            self.lock().agree(&handshaken);
            self.join(handshaken, &end)
        });
        if let Err(error) = joined {
            self.give_up(&end);
            return Err(error);
        }
        let param = self.lock().event_param(Vec::new());
        self.joined(&end, Some(param));
        Ok(())
    }

    /// `rdma_reject`: rejects a connection request, or on the active side the connection that the
    /// peer has accepted.
    ///
    /// # Errors
    /// `EINVAL` in the wrong state or for too much private data.
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        if self.is_datagram() {
            return self.reject_datagrams(private_data);
        }
        if private_data.len() > PRIVATE_DATA_MAX {
            return Err(Errno::INVAL);
        }
        let mut inner = self.lock();
        let rejected = match &inner.phase {
            CmPhase::Requested { incoming, .. } => Some(Arc::clone(incoming)),
            CmPhase::Responded { .. } => None,
            _ => return Err(Errno::INVAL),
        };
        inner.stop_expecting();
        let before = std::mem::replace(&mut inner.phase, CmPhase::Disconnected { end: None });
        drop(inner);
        // A stream that the peer has accepted can only be closed.
        drop(before);
        if let Some(incoming) = rejected {
            incoming.reject(private_data);
        }
        Ok(())
    }

    /// `rdma_establish`: attaches the connection that the peer has accepted to the external queue
    /// pair of [`Id::connect`].
    ///
    /// # Errors
    /// `EINVAL` in the wrong state.
    pub fn establish(&self) -> Result<()> {
        let (handshaken, end) = {
            let mut inner = self.lock();
            let phase = std::mem::replace(&mut inner.phase, CmPhase::Disconnected { end: None });
            let CmPhase::Responded { handshaken, identity } = phase else {
                inner.phase = phase;
                return Err(Errno::INVAL);
            };
            // The queue pair's state shows only now whether it can be connected.
            let end = external(inner.channel.reactor(), identity);
            inner.phase = CmPhase::Joining { end: end.clone(), gone: false };
            (*handshaken, end)
        };
        if let Err(error) = self.join(handshaken, &end) {
            self.give_up(&end);
            return Err(error);
        }
        self.joined(&end, None);
        Ok(())
    }

    /// `rdma_disconnect`: ends the connection, and moves the identifier's own queue pair to the
    /// error state.
    ///
    /// # Errors
    /// `EINVAL` if there was never a connection.
    pub fn disconnect(&self) -> Result<()> {
        let (end, was_up) = {
            let mut inner = self.lock();
            let (end, was_up) = match &inner.phase {
                CmPhase::Joining { end, .. } | CmPhase::Connected { end } => {
                    (Some(end.clone()), true)
                }
                CmPhase::Disconnected { end } => (end.clone(), false),
                CmPhase::Responded { .. } => (None, true),
                _ => return Err(Errno::INVAL),
            };
            inner.stop_expecting();
            inner.phase = CmPhase::Disconnected { end: end.clone() };
            (end, was_up)
        };
        if let Some(end) = &end {
            if was_up {
                end.endpoint.disconnect();
            }
            end.fail();
        }
        if was_up {
            self.post_disconnected_soon();
        }
        Ok(())
    }

    /// `rdma_init_qp_attr`: the attributes that move a queue pair of this identifier to `state`.
    ///
    /// # Errors
    /// `EINVAL` for a state other than INIT, RTR and RTS, or before the peer is known.
    pub fn qp_attributes(&self, state: QpState) -> Result<(QpAttr, AttrMask)> {
        if self.is_datagram() {
            return Self::datagram_qp_attributes(state);
        }
        self.lock().qp_attributes(state)
    }

    /// Attaches a connection to its queue pair, and moves the identifier's own queue pair to RTS.
    fn join(&self, handshaken: Handshaken, end: &CmEnd) -> Result<()> {
        let monitor: Weak<dyn Monitor> = Weak::clone(&self.this) as _;
        let attributes = {
            let inner = self.lock();
            [QpState::Rtr, QpState::Rts].map(|state| inner.qp_attributes(state))
        };
        end.endpoint.attach(handshaken.connection, monitor)?;
        self.lock().stop_expecting();
        if end.managed {
            for attributes in attributes {
                let (attr, mask) = attributes?;
                end.endpoint.modify(&attr, mask)?;
            }
        }
        Ok(())
    }

    /// Reports that the queue pair is connected, if the program expects the event, and a disconnect
    /// that arrived in the meantime.
    fn joined(&self, end: &CmEnd, established: Option<EventParam>) {
        let mut inner = self.lock();
        let CmPhase::Joining { gone, .. } = inner.phase else { return };
        inner.phase = CmPhase::Connected { end: end.clone() };
        if let Some(param) = established {
            self.post(&inner, EventKind::Established, 0, param);
        }
        if gone {
            inner.phase = CmPhase::Disconnected { end: Some(end.clone()) };
            self.post_disconnected(&mut inner);
        }
    }

    /// Handles that the peer has disconnected. With InfiniBand this takes several messages, and
    /// earlier completions are there long before it: programs such as libfabric's `ofi_rxm` close
    /// their end on this event and poll no further completions. So the event waits, for a limited
    /// time, until the program has taken its completions.
    fn peer_disconnected(&self, inner: &mut Inner, end: CmEnd) {
        if end.endpoint.has_unread() {
            let reactor = inner.channel.reactor();
            inner.unread.get_or_insert_with(|| UnreadWait {
                limit: Timer::after(reactor, UNREAD_WAIT, self.arc()),
                look: Timer::after(reactor, UNREAD_INTERVAL, self.arc()),
            });
        } else {
            inner.unread = None;
            inner.phase = CmPhase::Disconnected { end: Some(end) };
            self.post_disconnected(inner);
        }
    }

    /// Continues the wait that [`Self::peer_disconnected`] has started.
    pub(super) fn look_for_unread(&self, inner: &mut Inner, mut wait: UnreadWait, now: Instant) {
        let CmPhase::Connected { end } = &inner.phase else { return };
        if wait.limit.is_due(now) || !end.endpoint.has_unread() {
            inner.phase = CmPhase::Disconnected { end: Some(end.clone()) };
            return self.post_disconnected(inner);
        }
        if wait.look.is_due(now) {
            wait.look = Timer::after(inner.channel.reactor(), UNREAD_INTERVAL, self.arc());
        }
        inner.unread = Some(wait);
    }

    /// Cleans up after a connection could not be attached to its queue pair.
    fn give_up(&self, end: &CmEnd) {
        {
            let mut inner = self.lock();
            inner.stop_expecting();
            if matches!(inner.phase, CmPhase::Joining { .. }) {
                inner.phase = CmPhase::Disconnected { end: Some(end.clone()) };
            }
        }
        end.endpoint.disconnect();
        end.fail();
    }

    /// Handles the peer's accepting reply.
    fn accepted(&self, handshaken: Handshaken) {
        // If the passive side is in this process, its event must come first.
        let _in_order = event::in_order();
        let mut inner = self.lock();
        let CmPhase::Dialling { end, .. } = &inner.phase else { return };
        let end = end.clone();
        inner.agree(&handshaken);
        inner.local = Some(handshaken.local);
        let param = inner.event_param(handshaken.private_data.clone());
        if !end.managed {
            inner.expect();
            let (handshaken, identity) = (Box::new(handshaken), end.endpoint.identity());
            inner.phase = CmPhase::Responded { handshaken, identity };
            self.post(&inner, EventKind::ConnectResponse, 0, param);
            return;
        }
        inner.phase = CmPhase::Joining { end: end.clone(), gone: false };
        drop(inner);
        match self.join(handshaken, &end) {
            Ok(()) => self.joined(&end, Some(param)),
            Err(error) => {
                self.give_up(&end);
                let status = -error.raw_os_error();
                self.post(&self.lock(), EventKind::ConnectError, status, EventParam::default());
            }
        }
    }

    /// Reports that connecting failed.
    fn failed(&self, failure: Failure) {
        let system = |error: Errno| -error.raw_os_error();
        let (kind, status, private_data) = match failure {
            Failure::NobodyListens => (EventKind::Rejected, reject::INVALID_SERVICE_ID, vec![]),
            Failure::Rejected(data) => (EventKind::Rejected, reject::CONSUMER_DEFINED, data),
            // A Weft listener that is destroyed, or whose program does not want the request, sends
            // a reject; a foreign one may just close.
            Failure::Closed => (EventKind::Rejected, reject::CONSUMER_DEFINED, vec![]),
            Failure::Unreachable(error) => (EventKind::Unreachable, system(error), vec![]),
            Failure::Protocol(_) | Failure::WrongPeer => {
                (EventKind::ConnectError, system(Errno::PROTO), vec![])
            }
            Failure::System(error) => (EventKind::ConnectError, system(error), vec![]),
        };
        let end = {
            let mut inner = self.lock();
            let CmPhase::Dialling { end, .. } = &inner.phase else { return };
            let end = end.clone();
            inner.phase = CmPhase::Disconnected { end: Some(end.clone()) };
            end
        };
        end.fail();
        let param = EventParam { private_data, ..EventParam::default() };
        self.post(&self.lock(), kind, status, param);
    }
}

impl Caller for Id {
    fn dialled(&self, outcome: std::result::Result<Handshaken, Failure>) {
        match outcome {
            Ok(handshaken) => self.accepted(handshaken),
            Err(failure) => self.failed(failure),
        }
    }
}

impl Callee for Id {
    fn requested(&self, incoming: Arc<Incoming>, request: Request, now: Instant) {
        let inner = self.lock();
        let (private_data, identity) = handshake::split(&request.private_data);
        // The peer's outgoing reads are ours to serve, and the other way round. A peer without RFC
        // 6581 does not state its depths.
        let depths = Depths {
            responder_resources: depth(request.ord.unwrap_or(u16::MAX)),
            initiator_depth: depth(request.ird.unwrap_or(u16::MAX)),
        };
        let taken = if matches!(inner.phase, CmPhase::Listening(_)) {
            let child = self.child(&inner, Arc::clone(&incoming), depths, identity);
            let param = child.lock().event_param(private_data);
            let place = strangers::REQUESTED.acquire(now).ok();
            let taken =
                place.is_some_and(|place| self.post_request(&inner, &child, param, Some(place)));
            taken.then_some(child)
        } else {
            None
        };
        drop(inner);
        match taken {
            Some(child) => incoming::announced(&incoming, &(child as _)),
            None => incoming.reject(&[]),
        }
    }
}

impl Monitor for Id {
    fn disconnected(&self) {
        let mut inner = self.lock();
        match &mut inner.phase {
            CmPhase::Joining { gone, .. } => *gone = true,
            CmPhase::Connected { end } => {
                let end = end.clone();
                self.peer_disconnected(&mut inner, end);
            }
            _ => {}
        }
    }
}

impl CmEnd {
    /// Moves the identifier's own queue pair to the error state, which flushes it. A queue pair
    /// that the program has destroyed has nothing to flush.
    fn fail(&self) {
        if self.managed {
            let attr = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
            let _ = self.endpoint.modify(&attr, AttrMask::STATE);
        }
    }
}

impl Inner {
    fn end(&self, via: &Via) -> CmEnd {
        match via {
            Via::Own(qp) => CmEnd { endpoint: Arc::new(QpEndpoint::new(qp)), managed: true },
            Via::External(qp_num) => {
                let gid = self.local.map_or_else(Default::default, |local| gid_of(local.ip()));
                let process = *shm::own_id();
                let identity = Identity { qp_num: *qp_num, ack_stag: 0, gid, process };
                external(self.channel.reactor(), identity)
            }
        }
    }

    /// Stores the negotiated depths and the peer's queue pair.
    fn agree(&mut self, handshaken: &Handshaken) {
        let connection = &handshaken.connection;
        self.depths = Depths {
            responder_resources: depth(connection.negotiated.ird),
            initiator_depth: depth(connection.negotiated.ord),
        };
        let peer = || PeerQp::new(connection.peer_identity, handshaken.peer.ip());
        self.peer_qp.get_or_insert_with(peer);
    }

    fn event_param(&self, private_data: Vec<u8>) -> EventParam {
        EventParam {
            private_data,
            responder_resources: self.depths.responder_resources,
            initiator_depth: self.depths.initiator_depth,
            qp_num: self.peer_qp.map_or(0, |peer| peer.number),
            datagram: None,
        }
    }

    fn qp_attributes(&self, state: QpState) -> Result<(QpAttr, AttrMask)> {
        let mut attr = QpAttr { qp_state: state, port_num: 1, ..QpAttr::default() };
        match state {
            QpState::Init => {
                attr.qp_access_flags =
                    Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            }
            QpState::Rtr => {
                let peer = self.peer_qp.ok_or(Errno::INVAL)?;
                attr.ah_attr = self.address_vector(peer)?;
                attr.path_mtu = PATH_MTU;
                attr.dest_qp_num = peer.number;
                attr.max_dest_rd_atomic = self.depths.responder_resources;
            }
            QpState::Rts => {
                self.peer_qp.ok_or(Errno::INVAL)?;
                attr.timeout = self.options.ack_timeout.unwrap_or(ACK_TIMEOUT);
                attr.retry_cnt = RETRY_FOREVER;
                attr.rnr_retry = RETRY_FOREVER;
                attr.max_rd_atomic = self.depths.initiator_depth;
            }
            _ => return Err(Errno::INVAL),
        }
        Ok((attr, required(QpType::Rc, state).ok_or(Errno::INVAL)?))
    }

    pub(super) fn address_vector(&self, peer: PeerQp) -> Result<AddressVector> {
        let local = self.local.ok_or(Errno::INVAL)?.ip();
        let sgid_index = if local.is_loopback() {
            loopback_gid(local)?.0
        } else {
            let index = device::list()?
                .iter()
                .find_map(|device| device.addresses.iter().position(|&address| address == local));
            index.and_then(|index| u8::try_from(index).ok()).unwrap_or(0)
        };
        let global = GlobalRoute {
            dgid: peer.gid,
            flow_label: 0,
            sgid_index,
            hop_limit: HOP_LIMIT,
            traffic_class: self.options.tos.unwrap_or(0),
        };
        Ok(AddressVector { global: Some(global), dlid: 0, sl: 0, port_num: 1 })
    }
}

/// The end for a queue pair whose state the program changes. If the queue pair is not ours, or its
/// state does not allow connecting it, a stand-in holds the connection.
fn external(reactor: Handle, mut identity: Identity) -> CmEnd {
    let qp = qp::find(identity.qp_num);
    if let Some(qp) = &qp {
        identity = qp.identity();
    }
    let takes = |qp: &Arc<Qp>| matches!(qp.state(), QpState::Init | QpState::Rtr | QpState::Rts);
    let endpoint: Arc<dyn Endpoint> = match qp.filter(takes) {
        Some(qp) => Arc::new(QpEndpoint::new(&qp)),
        None => StandIn::new(reactor, identity),
    };
    CmEnd { endpoint, managed: false }
}

fn depth(value: u16) -> u8 {
    u8::try_from(value).map_or(READ_DEPTH_MAX, |value| value.min(READ_DEPTH_MAX))
}
