//! Connecting, accepting and parting.

use std::sync::{Arc, Weak};
use std::time::Instant;

use weft_sys::Lock;
use weft_wire::mpa::negotiate::{Request, RtrKinds};

use super::dial::{Call, Caller};
use super::endpoint::{Endpoint, QpEndpoint};
use super::event::{self, EventKind, EventParam, reject};
use super::handshake::{self, Greeted};
use super::held::Held;
use super::id::{Depths, End, Id, Inner, PeerQp, Phase, UnreadWait};
use super::incoming::{self, Incoming};
use super::limits::{UNREAD_INTERVAL, UNREAD_WAIT};
use super::listen::Callee;
use crate::access::Access;
use crate::device::{self, gid_of};
use crate::hello::{self, Identity};
use crate::limits::{PRIVATE_DATA_MAX, READ_DEPTH_MAX, WEFT_PRIVATE_DATA_MAX};
use crate::mpa::dialer::Failure;
use crate::qp::{self, AddressVector, AttrMask, GlobalRoute, Monitor, Qp, QpAttr, QpState};
use crate::reactor::Handle;
use crate::timer::Timer;
use crate::{Errno, Result, shm, strangers};

/// "As many as there are", in a program's read depths (`RDMA_MAX_RESP_RES`).
const DEPTH_ANY: u8 = 0xff;
/// The path MTU of queue pairs, `IBV_MTU_1024`: every Ethernet's.
const PATH_MTU: u32 = 3;
const HOP_LIMIT: u8 = 64;
/// About 0.5 s in the verbs encoding. TCP decides, in truth.
const ACK_TIMEOUT: u8 = 17;
/// Retries without end: a missing receive is waited for, because an identifier has no way to tell
/// the peer its own wish.
const RETRY_FOREVER: u8 = 7;

/// Whose queue pair an identifier connects.
#[derive(Clone, Debug)]
pub enum Via {
    /// The identifier's own, which it moves through its states.
    Own(Arc<Qp>),
    /// One that the program moves itself, by number.
    External(u32),
}

/// `struct rdma_conn_param`, as far as it is the program's to choose.
#[derive(Clone, Debug)]
pub struct ConnectParam {
    /// At most [`PRIVATE_DATA_MAX`] bytes; [`WEFT_PRIVATE_DATA_MAX`] to a Weft peer.
    pub private_data: Vec<u8>,
    /// Reads and atomics that the peer may have outstanding; 255 is as many as possible.
    pub responder_resources: u8,
    /// Reads and atomics that we want to have outstanding; 255 is as many as possible.
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

    /// What the program asks for; where it asks for as many as there are, that is `limit`.
    fn depths(&self, limit: Depths) -> Depths {
        let choose = |wanted, limit| if wanted == DEPTH_ANY { limit } else { wanted };
        Depths {
            responder_resources: choose(self.responder_resources, limit.responder_resources),
            initiator_depth: choose(self.initiator_depth, limit.initiator_depth),
        }
    }
}

impl Id {
    /// `rdma_connect`: asks the peer for a connection. [`EventKind::Established`] tells of success,
    /// or for an external queue pair [`EventKind::ConnectResponse`].
    ///
    /// # Errors
    /// `EINVAL` before the route is resolved, or for parameters out of range; what the system says
    /// at once, such as `ENETUNREACH`.
    pub fn connect(&self, via: &Via, param: &ConnectParam) -> Result<()> {
        if self.is_datagram() {
            return self.connect_datagrams(param);
        }
        self.connect_end(|inner| inner.end(via), param)
    }

    pub(super) fn connect_end(
        &self,
        end: impl FnOnce(&Inner) -> End,
        param: &ConnectParam,
    ) -> Result<()> {
        param.check()?;
        let mut inner = self.lock();
        let (Phase::RouteResolved, Some(local), Some(peer)) =
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
        // The lock is held, so that an outcome waits until we know of the attempt.
        let dial = call.start(inner.channel.reactor())?;
        inner.phase = Phase::Dialling { dial, end };
        Ok(())
    }

    /// `rdma_accept`: answers a connection request. [`EventKind::Established`] is queued by the
    /// time that this returns, before any event that the peer causes on hearing our answer.
    ///
    /// # Errors
    /// `EINVAL` in the wrong state or for parameters out of range; `ECONNRESET` when the peer has
    /// given up; what changing the queue pair's state reports.
    pub fn accept(&self, via: &Via, param: &ConnectParam) -> Result<()> {
        if self.is_datagram() {
            return self.accept_datagrams(via, param);
        }
        self.accept_end(|inner| inner.end(via), param)
    }

    pub(super) fn accept_end(
        &self,
        end: impl FnOnce(&Inner) -> End,
        param: &ConnectParam,
    ) -> Result<()> {
        param.check()?;
        let (incoming, foreign, end, asked, depths, private_data) = {
            let mut inner = self.lock();
            let Phase::Requested { incoming, foreign } = &inner.phase else {
                return Err(Errno::INVAL);
            };
            let (incoming, foreign) = (Arc::clone(incoming), *foreign);
            if !foreign && param.private_data.len() > WEFT_PRIVATE_DATA_MAX {
                return Err(Errno::INVAL);
            }
            let end = end(&inner);
            let asked = inner.depths;
            inner.depths = param.depths(asked);
            inner.phase = Phase::Joining { end: end.clone(), gone: false };
            let private_data = match foreign {
                true => param.private_data.clone(),
                false => hello::append(&param.private_data, &end.endpoint.identity(), 0),
            };
            (incoming, foreign, end, asked, inner.depths, private_data)
        };
        let [local, peer] = incoming.addresses();
        let Depths { responder_resources: ird, initiator_depth: ord } = depths;
        let params = handshake::params(local.ip(), peer.ip(), ird, ord, RtrKinds::ALL);
        // What a peer does when it has our reply is reported behind the reply's own event.
        let _in_order = event::in_order();
        let accepted = incoming::accept(&incoming, params, &private_data);
        if matches!(accepted, Err(Errno::INVAL)) {
            // The request still waits for an answer.
            let mut inner = self.lock();
            if matches!(inner.phase, Phase::Joining { .. }) {
                inner.depths = asked;
                inner.phase = Phase::Requested { incoming, foreign };
            }
            return Err(Errno::INVAL);
        }
        let joined = accepted.and_then(|greeted| {
            self.lock().agree(&greeted);
            self.join(greeted, &end)
        });
        if let Err(error) = joined {
            self.give_up(&end);
            return Err(error);
        }
        let param = self.lock().event_param(Vec::new());
        self.joined(&end, Some(param));
        Ok(())
    }

    /// `rdma_reject`: refuses a connection request, or on the active side the connection that the
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
            Phase::Requested { incoming, .. } => Some(Arc::clone(incoming)),
            Phase::Responded { .. } => None,
            _ => return Err(Errno::INVAL),
        };
        inner.stop_expecting();
        let before = std::mem::replace(&mut inner.phase, Phase::Disconnected { end: None });
        drop(inner);
        // A stream that the peer has accepted can only be closed.
        drop(before);
        if let Some(incoming) = rejected {
            incoming.reject(private_data);
        }
        Ok(())
    }

    /// `rdma_establish`: gives the connection that the peer has accepted to the external queue pair
    /// that [`Id::connect`] named.
    ///
    /// # Errors
    /// `EINVAL` in the wrong state.
    pub fn establish(&self) -> Result<()> {
        let (greeted, end) = {
            let mut inner = self.lock();
            let phase = std::mem::replace(&mut inner.phase, Phase::Disconnected { end: None });
            let Phase::Responded { greeted, identity } = phase else {
                inner.phase = phase;
                return Err(Errno::INVAL);
            };
            // Only now is the queue pair in a state that tells whether it takes a connection.
            let end = external(inner.channel.reactor(), identity);
            inner.phase = Phase::Joining { end: end.clone(), gone: false };
            (*greeted, end)
        };
        if let Err(error) = self.join(greeted, &end) {
            self.give_up(&end);
            return Err(error);
        }
        self.joined(&end, None);
        Ok(())
    }

    /// `rdma_disconnect`: ends the connection; the identifier's own queue pair goes to the error
    /// state.
    ///
    /// # Errors
    /// `EINVAL` when there was never a connection.
    pub fn disconnect(&self) -> Result<()> {
        let (end, was_up) = {
            let mut inner = self.lock();
            let (end, was_up) = match &inner.phase {
                Phase::Joining { end, .. } | Phase::Connected { end } => (Some(end.clone()), true),
                Phase::Disconnected { end } => (end.clone(), false),
                Phase::Responded { .. } => (None, true),
                _ => return Err(Errno::INVAL),
            };
            inner.stop_expecting();
            inner.phase = Phase::Disconnected { end: end.clone() };
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

    /// `rdma_init_qp_attr`: the attributes that take a queue pair of this identifier to `state`.
    ///
    /// # Errors
    /// `EINVAL` for a state that is not on the way, or before the peer is known.
    pub fn qp_attributes(&self, state: QpState) -> Result<(QpAttr, AttrMask)> {
        if self.is_datagram() {
            return Self::datagram_qp_attributes(state);
        }
        self.lock().qp_attributes(state)
    }

    /// Gives a connection to its queue pair, and moves a queue pair of our own to where messages
    /// flow.
    fn join(&self, greeted: Greeted, end: &End) -> Result<()> {
        let monitor: Weak<dyn Monitor> = Weak::clone(&self.this) as _;
        let attributes = {
            let inner = self.lock();
            [QpState::Rtr, QpState::Rts].map(|state| inner.qp_attributes(state))
        };
        end.endpoint.attach(greeted.connection, monitor)?;
        self.lock().stop_expecting();
        if end.managed {
            for attributes in attributes {
                let (attr, mask) = attributes?;
                end.endpoint.modify(&attr, mask)?;
            }
        }
        Ok(())
    }

    /// The queue pair has its connection: reports that, if there is something to report, and what
    /// happened meanwhile.
    fn joined(&self, end: &End, established: Option<EventParam>) {
        let mut inner = self.lock();
        let Phase::Joining { gone, .. } = inner.phase else { return };
        inner.phase = Phase::Connected { end: end.clone() };
        if let Some(param) = established {
            self.post(&inner, EventKind::Established, 0, param);
        }
        if gone {
            inner.phase = Phase::Disconnected { end: Some(end.clone()) };
            self.post_disconnected(&mut inner);
        }
    }

    /// The peer has disconnected. With InfiniBand that news takes a slow way, and what completed
    /// before it is long there: programs such as libfabric's `ofi_rxm` close their end on it and
    /// look for no completion any more. So it waits, for a while, until they have taken them all.
    fn peer_left(&self, inner: &mut Inner, end: End) {
        if end.endpoint.has_unread() {
            let reactor = inner.channel.reactor();
            inner.unread.get_or_insert_with(|| UnreadWait {
                limit: Timer::after(reactor, UNREAD_WAIT, self.arc()),
                look: Timer::after(reactor, UNREAD_INTERVAL, self.arc()),
            });
        } else {
            inner.unread = None;
            inner.phase = Phase::Disconnected { end: Some(end) };
            self.post_disconnected(inner);
        }
    }

    /// Goes on with a wait that [`Self::peer_left`] has begun.
    pub(super) fn look_for_unread(&self, inner: &mut Inner, mut wait: UnreadWait, now: Instant) {
        let Phase::Connected { end } = &inner.phase else { return };
        if wait.limit.is_due(now) || !end.endpoint.has_unread() {
            inner.phase = Phase::Disconnected { end: Some(end.clone()) };
            return self.post_disconnected(inner);
        }
        if wait.look.is_due(now) {
            wait.look = Timer::after(inner.channel.reactor(), UNREAD_INTERVAL, self.arc());
        }
        inner.unread = Some(wait);
    }

    /// A connection could not be given to its queue pair.
    fn give_up(&self, end: &End) {
        {
            let mut inner = self.lock();
            inner.stop_expecting();
            if matches!(inner.phase, Phase::Joining { .. }) {
                inner.phase = Phase::Disconnected { end: Some(end.clone()) };
            }
        }
        end.endpoint.disconnect();
        end.fail();
    }

    /// The peer accepted.
    fn accepted(&self, greeted: Greeted) {
        // If the passive side is in this process, its event comes first.
        let _in_order = event::in_order();
        let mut inner = self.lock();
        let Phase::Dialling { end, .. } = &inner.phase else { return };
        let end = end.clone();
        inner.agree(&greeted);
        inner.local = Some(greeted.local);
        let param = inner.event_param(greeted.private_data.clone());
        if !end.managed {
            inner.expect();
            let (greeted, identity) = (Box::new(greeted), end.endpoint.identity());
            inner.phase = Phase::Responded { greeted, identity };
            self.post(&inner, EventKind::ConnectResponse, 0, param);
            return;
        }
        inner.phase = Phase::Joining { end: end.clone(), gone: false };
        drop(inner);
        match self.join(greeted, &end) {
            Ok(()) => self.joined(&end, Some(param)),
            Err(error) => {
                self.give_up(&end);
                let status = -error.raw_os_error();
                self.post(&self.lock(), EventKind::ConnectError, status, EventParam::default());
            }
        }
    }

    /// The connection did not come about.
    fn failed(&self, failure: Failure) {
        let system = |error: Errno| -error.raw_os_error();
        let (kind, status, private_data) = match failure {
            Failure::NobodyListens => (EventKind::Rejected, reject::INVALID_SERVICE_ID, vec![]),
            Failure::Rejected(data) => (EventKind::Rejected, reject::CONSUMER_DEFINED, data),
            // A listener that is destroyed, or whose program does not want the request, says so by
            // a reject; a foreign one just closes.
            Failure::Closed => (EventKind::Rejected, reject::CONSUMER_DEFINED, vec![]),
            Failure::Unreachable(error) => (EventKind::Unreachable, system(error), vec![]),
            Failure::Protocol(_) | Failure::WrongPeer => {
                (EventKind::ConnectError, system(Errno::PROTO), vec![])
            }
            Failure::System(error) => (EventKind::ConnectError, system(error), vec![]),
        };
        let end = {
            let mut inner = self.lock();
            let Phase::Dialling { end, .. } = &inner.phase else { return };
            let end = end.clone();
            inner.phase = Phase::Disconnected { end: Some(end.clone()) };
            end
        };
        end.fail();
        let param = EventParam { private_data, ..EventParam::default() };
        self.post(&self.lock(), kind, status, param);
    }
}

impl Caller for Id {
    fn dialled(&self, outcome: std::result::Result<Greeted, Failure>) {
        match outcome {
            Ok(greeted) => self.accepted(greeted),
            Err(failure) => self.failed(failure),
        }
    }
}

impl Callee for Id {
    fn requested(&self, incoming: Arc<Incoming>, request: Request, now: Instant) {
        let inner = self.lock();
        let (private_data, identity) = handshake::split(&request.private_data);
        // The peer's reads are ours to serve, and the other way round. A peer of RFC 5044 does not
        // say how many.
        let depths = Depths {
            responder_resources: depth(request.ord.unwrap_or(u16::MAX)),
            initiator_depth: depth(request.ird.unwrap_or(u16::MAX)),
        };
        let taken = if matches!(inner.phase, Phase::Listening(_)) {
            let child = self.child(&inner, Arc::clone(&incoming), depths, identity);
            let param = child.lock().event_param(private_data);
            let place = strangers::REQUESTED.enter(now).ok();
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
            Phase::Joining { gone, .. } => *gone = true,
            Phase::Connected { end } => {
                let end = end.clone();
                self.peer_left(&mut inner, end);
            }
            _ => {}
        }
    }
}

impl End {
    /// Moves a queue pair of the identifier's to the error state, which flushes it. One that the
    /// program has destroyed meanwhile has nothing to flush.
    fn fail(&self) {
        if self.managed {
            let attr = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
            let _ = self.endpoint.modify(&attr, AttrMask::STATE);
        }
    }
}

impl Inner {
    fn end(&self, via: &Via) -> End {
        match via {
            Via::Own(qp) => End { endpoint: Arc::new(QpEndpoint::new(qp)), managed: true },
            Via::External(qp_num) => {
                let gid = self.local.map_or_else(Default::default, |local| gid_of(local.ip()));
                let process = *shm::own_id();
                let identity = Identity { qp_num: *qp_num, ack_stag: 0, gid, process };
                external(self.channel.reactor(), identity)
            }
        }
    }

    /// Remembers what was agreed with the peer.
    fn agree(&mut self, greeted: &Greeted) {
        let connection = &greeted.connection;
        self.depths = Depths {
            responder_resources: depth(connection.negotiated.ird),
            initiator_depth: depth(connection.negotiated.ord),
        };
        let peer = || PeerQp::new(connection.peer_identity, greeted.peer.ip());
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
        let mask = match state {
            QpState::Init => {
                attr.qp_access_flags =
                    Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
                AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS
            }
            QpState::Rtr => {
                let peer = self.peer_qp.ok_or(Errno::INVAL)?;
                attr.ah_attr = self.address_vector(peer)?;
                attr.path_mtu = PATH_MTU;
                attr.dest_qp_num = peer.number;
                attr.max_dest_rd_atomic = self.depths.responder_resources;
                AttrMask::AV
                    | AttrMask::PATH_MTU
                    | AttrMask::DEST_QPN
                    | AttrMask::RQ_PSN
                    | AttrMask::MAX_DEST_RD_ATOMIC
                    | AttrMask::MIN_RNR_TIMER
            }
            QpState::Rts => {
                self.peer_qp.ok_or(Errno::INVAL)?;
                attr.timeout = self.options.ack_timeout.unwrap_or(ACK_TIMEOUT);
                attr.retry_cnt = RETRY_FOREVER;
                attr.rnr_retry = RETRY_FOREVER;
                attr.max_rd_atomic = self.depths.initiator_depth;
                AttrMask::TIMEOUT
                    | AttrMask::RETRY_CNT
                    | AttrMask::RNR_RETRY
                    | AttrMask::SQ_PSN
                    | AttrMask::MAX_QP_RD_ATOMIC
            }
            _ => return Err(Errno::INVAL),
        };
        Ok((attr, mask | AttrMask::STATE))
    }

    pub(super) fn address_vector(&self, peer: PeerQp) -> Result<AddressVector> {
        let local = self.local.ok_or(Errno::INVAL)?.ip();
        let devices = device::list()?;
        let index = devices
            .iter()
            .find_map(|device| device.addresses.iter().position(|&address| address == local));
        let global = GlobalRoute {
            dgid: peer.gid,
            flow_label: 0,
            sgid_index: index.and_then(|index| u8::try_from(index).ok()).unwrap_or(0),
            hop_limit: HOP_LIMIT,
            traffic_class: self.options.tos.unwrap_or(0),
        };
        Ok(AddressVector { global: Some(global), dlid: 0, sl: 0, port_num: 1 })
    }
}

/// The end for a queue pair that the program connects itself. It is held for the program when the
/// queue pair is not one of ours, or in no state to take a connection.
fn external(reactor: Handle, mut identity: Identity) -> End {
    let qp = qp::find(identity.qp_num);
    if let Some(qp) = &qp {
        identity = qp.identity();
    }
    let takes = |qp: &Arc<Qp>| matches!(qp.state(), QpState::Init | QpState::Rtr | QpState::Rts);
    let endpoint: Arc<dyn Endpoint> = match qp.filter(takes) {
        Some(qp) => Arc::new(QpEndpoint::new(&qp)),
        None => Held::new(reactor, identity),
    };
    End { endpoint, managed: false }
}

fn depth(value: u16) -> u8 {
    u8::try_from(value).map_or(READ_DEPTH_MAX, |value| value.min(READ_DEPTH_MAX))
}
