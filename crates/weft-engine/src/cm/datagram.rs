//! Identifiers of the datagram port spaces, `RDMA_PS_UDP` and `RDMA_PS_IPOIB`. They have no
//! connection: a client asks a service for its queue pair number, its Q_Key and the address of its
//! host.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};

use weft_sys::UdpSocket;
use weft_wire::datagram::MULTICAST_QP;

use super::connect::{ConnectParam, Via};
use super::event::{DatagramParam, EventKind, EventParam, sidr_status};
use super::id::{CmPhase, Id, Inner, Membership, PeerQp};
use super::lookup::{Lookup, Querier};
use super::service::{Host, Service, ServiceRequest};
use super::sidr::{REJECTED, Reply, SUCCESS};
use crate::device::{address_of, gid_of, loopback_gid};
use crate::limits::{DATAGRAM_PRIVATE_DATA_MAX, MULTICAST_GROUPS_MAX};
use crate::qp::{AttrMask, QpAttr, QpState, QpType, required};
use crate::{Errno, Result};

/// The Q_Key of all queue pairs of these port spaces (`RDMA_UDP_QKEY`).
const QKEY: u32 = 0x0123_4567;

impl Inner {
    /// Binds a UDP port, whose number is the identifier's port.
    pub(super) fn bind_datagrams(&mut self, address: SocketAddr) -> Result<()> {
        let only_ipv6 = self.options.af_only == Some(true);
        let socket = UdpSocket::bind_address(address, only_ipv6)?;
        self.local = Some(SocketAddr::new(address.ip(), socket.port()?));
        self.socket = Some(socket);
        Ok(())
    }

    fn datagram_param(&self, ip: IpAddr, qkey: u32) -> Result<DatagramParam> {
        let peer = PeerQp { gid: gid_of(ip), number: 0, foreign: false };
        let mut address = self.address_vector(peer)?;
        if let Some(route) = address.global.as_mut()
            && ip.is_loopback()
        {
            (route.sgid_index, route.dgid) = loopback_gid(ip)?;
        }
        Ok(DatagramParam { address, qkey, context: 0, sends_only: false })
    }
}

impl Id {
    pub(super) fn listen_for_datagrams(&self, backlog: u32) -> Result<()> {
        let mut inner = self.lock();
        if !matches!(inner.phase, CmPhase::Idle) {
            return Err(Errno::INVAL);
        }
        if inner.socket.is_none() {
            let any = SocketAddr::from(([0, 0, 0, 0], 0));
            let local = inner.local.unwrap_or(any);
            inner.bind_datagrams(local)?;
        }
        let socket = inner.socket.take().ok_or(Errno::INVAL)?;
        let port = socket.port()?;
        let host: Weak<dyn Host> = Weak::clone(&self.this) as _;
        inner.set_backlog(backlog);
        let reactor = inner.channel.reactor();
        inner.phase = CmPhase::Serving(Service::start(reactor, socket, port, host)?);
        Ok(())
    }

    pub(super) fn connect_datagrams(&self, param: &ConnectParam) -> Result<()> {
        if param.private_data.len() > DATAGRAM_PRIVATE_DATA_MAX {
            return Err(Errno::INVAL);
        }
        let mut inner = self.lock();
        let (CmPhase::RouteResolved, Some(local), Some(peer)) =
            (&inner.phase, inner.local, inner.peer)
        else {
            return Err(Errno::INVAL);
        };
        let socket = inner.socket.take().ok_or(Errno::INVAL)?;
        let inquirer: Weak<dyn Querier> = Weak::clone(&self.this) as _;
        let reactor = inner.channel.reactor();
        // The lock is held, so that an answer waits until the lookup is stored.
        let lookup = Lookup::start(reactor, socket, [local, peer], &param.private_data, inquirer)?;
        inner.phase = CmPhase::Asking(lookup);
        Ok(())
    }

    pub(super) fn accept_datagrams(&self, via: &Via, param: &ConnectParam) -> Result<()> {
        let (number, qkey) = match via {
            Via::Own(qp) => (qp.number(), qp.query().0.qkey),
            Via::External(number) => (*number, QKEY),
        };
        self.answer(SUCCESS, number, qkey, &param.private_data)
    }

    pub(super) fn reject_datagrams(&self, private_data: &[u8]) -> Result<()> {
        self.answer(REJECTED, 0, 0, private_data)
    }

    fn answer(&self, status: u8, qp_num: u32, qkey: u32, private_data: &[u8]) -> Result<()> {
        if private_data.len() > DATAGRAM_PRIVATE_DATA_MAX {
            return Err(Errno::INVAL);
        }
        let mut inner = self.lock();
        let CmPhase::Asked(inquiry) = &inner.phase else { return Err(Errno::INVAL) };
        let inquiry = Arc::clone(inquiry);
        inner.phase = CmPhase::Answered;
        drop(inner);
        inquiry.answer(status, qp_num, qkey, private_data);
        Ok(())
    }

    pub(super) fn datagram_qp_attributes(state: QpState) -> Result<(QpAttr, AttrMask)> {
        let attr = QpAttr { qp_state: state, port_num: 1, qkey: QKEY, ..QpAttr::default() };
        Ok((attr, required(QpType::Ud, state).ok_or(Errno::INVAL)?))
    }

    /// `rdma_join_multicast`: queues the event at once, with the address of the group, and with
    /// `context` and `sends_only`. To receive, a queue pair must be attached
    /// ([`crate::qp::Qp::attach_multicast`]).
    ///
    /// # Errors
    /// `EINVAL` for an address that is not a multicast group, or before the identifier has a
    /// device; `EADDRINUSE` if it has already joined; `ENOMEM` for too many groups.
    pub fn join_multicast(&self, group: IpAddr, sends_only: bool, context: usize) -> Result<()> {
        let mut inner = self.lock();
        let has_device = inner.local.is_some_and(|local| !local.ip().is_unspecified());
        if !group.is_multicast() || !has_device || !self.is_datagram() {
            return Err(Errno::INVAL);
        }
        let membership = Membership { group };
        if inner.groups.contains(&membership) {
            return Err(Errno::ADDRINUSE);
        }
        if inner.groups.len() >= MULTICAST_GROUPS_MAX as usize {
            return Err(Errno::NOMEM);
        }
        let way = inner.datagram_param(group, QKEY)?;
        let datagram = Some(DatagramParam { context, sends_only, ..way });
        let param = EventParam { qp_num: MULTICAST_QP, datagram, ..EventParam::default() };
        inner.groups.push(membership);
        self.post(&inner, EventKind::MulticastJoin, 0, param);
        Ok(())
    }

    /// `rdma_leave_multicast`.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if it has not joined.
    pub fn leave_multicast(&self, group: IpAddr) -> Result<()> {
        let mut inner = self.lock();
        let before = inner.groups.len();
        inner.groups.retain(|membership| membership.group != group);
        if inner.groups.len() == before {
            return Err(Errno::ADDRNOTAVAIL);
        }
        // Drop the join event if the program has not taken it.
        let gid = gid_of(group);
        let is_this = |param: &EventParam| {
            let global = param.datagram.as_ref().and_then(|datagram| datagram.address.global);
            global.is_some_and(|route| address_of(route.dgid) == address_of(gid))
        };
        inner.channel.extract(|event| {
            event.kind == EventKind::MulticastJoin
                && std::ptr::eq(Arc::as_ptr(event.owner()), self)
                && is_this(&event.param)
        });
        Ok(())
    }
}

impl Host for Id {
    fn asked(&self, inquiry: Arc<ServiceRequest>, private_data: Vec<u8>) -> bool {
        let inner = self.lock();
        if !matches!(inner.phase, CmPhase::Serving(_)) {
            return false;
        }
        let ends = [inquiry.to, inquiry.from];
        let child = self.child_for(&inner, ends, CmPhase::Asked(inquiry));
        let datagram = child.lock().datagram_param(ends[1].ip(), QKEY).ok();
        let param = EventParam { private_data, datagram, ..EventParam::default() };
        self.post_request(&inner, &child, param, None)
    }
}

impl Querier for Id {
    fn answered(&self, outcome: Result<Reply>) {
        let mut inner = self.lock();
        let (CmPhase::Asking(_), Some(peer)) = (&inner.phase, inner.peer) else { return };
        inner.phase = CmPhase::Answered;
        let unreachable = EventKind::Unreachable;
        let (kind, status, param) = match outcome {
            Ok(reply) if reply.status == SUCCESS => {
                let Reply { qp_num, qkey, private_data, .. } = reply;
                match inner.datagram_param(peer.ip(), qkey) {
                    Ok(datagram) => {
                        let datagram = Some(datagram);
                        let param =
                            EventParam { private_data, qp_num, datagram, ..EventParam::default() };
                        (EventKind::Established, 0, param)
                    }
                    Err(error) => (unreachable, -error.raw_os_error(), EventParam::default()),
                }
            }
            Ok(Reply { status, private_data, .. }) => {
                (unreachable, i32::from(status), EventParam { private_data, ..Default::default() })
            }
            Err(Errno::CONNREFUSED) => {
                (unreachable, sidr_status::UNSUPPORTED, EventParam::default())
            }
            Err(error) => (unreachable, -error.raw_os_error(), EventParam::default()),
        };
        self.post(&inner, kind, status, param);
    }
}
