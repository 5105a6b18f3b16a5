//! Weft's own engine: shared memory on one host, iWARP over TCP between hosts.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use weft_engine::access::Access;
use weft_engine::channel::CompChannel;
use weft_engine::cm::{self, Channel, ConnectParam, EventKind, Id, PortSpace, Via};
use weft_engine::cq::Cq;
use weft_engine::mr::Mr;
use weft_engine::pd::Pd;
use weft_engine::qp::{Qp, QpCap, QpInit, QpState, QpType};
use weft_engine::{Context, Errno, device};
use weft_sys::{Region, Unused, wait_readable};

use super::{Event, Room};
use crate::error::{Error, Result};

#[derive(Clone, Debug)]
pub(crate) struct Domain(Arc<Pd>);

impl Domain {
    pub(super) fn open(interface: Option<&str>) -> Result<Self> {
        let devices =
            device::list().map_err(|errno| Error::system("list the network interfaces", errno))?;
        let is_chosen =
            |device: &&device::Device| interface.is_none_or(|name| device.interface == name);
        let found = devices.iter().find(is_chosen);
        let found = found.ok_or_else(|| Error::NoDevice { name: interface.map(str::to_owned) })?;
        let context =
            Context::open(found).map_err(|errno| Error::system("open the device", errno))?;
        Ok(Self(Pd::new(&context)))
    }

    /// The protection domain.
    pub(super) fn pd(&self) -> &Arc<Pd> {
        &self.0
    }

    pub(super) fn register(&self, region: Region, access: Access) -> Result<Registration, Errno> {
        Mr::register(&self.0, region, region.addr() as u64, access).map(Registration)
    }

    pub(super) fn register_unused(
        &self,
        region: Region,
        access: Access,
        unused: Unused,
    ) -> Result<Registration, Errno> {
        let at = region.addr() as u64;
        Mr::register_unused(&self.0, region, at, access, unused).map(Registration)
    }
}

#[derive(Debug)]
pub(crate) struct Registration(Arc<Mr>);

impl Registration {
    pub(super) fn key(&self) -> u32 {
        self.0.key()
    }

    pub(super) fn is_mappable(&self) -> bool {
        self.0.is_mappable()
    }

    pub(super) fn end(&self) -> Result<(), Errno> {
        self.0.deregister()
    }
}

/// A channel of events that does not wait.
fn channel() -> Result<Arc<Channel>, Errno> {
    let channel = Channel::new()?;
    unblock(channel.as_fd())?;
    Ok(channel)
}

fn unblock(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)
}

/// The next event of a channel that means something.
fn next(channel: &Channel) -> Option<Event> {
    loop {
        let event = channel.next_event(|_| ()).ok()?;
        let private_data = event.param.private_data;
        let by_program = event.status == cm::reject::CONSUMER_DEFINED;
        return Some(match event.kind {
            EventKind::ConnectRequest => Event::Called(Caller(Some(event.id)).into(), private_data),
            EventKind::Established => Event::Established(private_data),
            EventKind::Rejected => Event::Refused { by_program, private_data },
            EventKind::Unreachable | EventKind::ConnectError => {
                Event::Failed(Errno::from_raw_os_error(event.status.saturating_abs()))
            }
            EventKind::Disconnected => Event::Disconnected,
            _ => continue,
        });
    }
}

#[derive(Debug)]
pub(crate) struct Listening {
    id: Arc<Id>,
    events: Arc<Channel>,
    pub(super) address: SocketAddr,
}

impl Listening {
    pub(super) fn new(address: SocketAddr) -> Result<Self, Errno> {
        let events = channel()?;
        let id = Id::new(&events, PortSpace::Connected);
        let bound = id.bind(address).and_then(|()| id.listen(0));
        match bound.and_then(|()| id.local().ok_or(Errno::INVAL)) {
            Ok(address) => Ok(Self { id, events, address }),
            Err(errno) => {
                id.destroy();
                Err(errno)
            }
        }
    }

    pub(super) fn events_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    pub(super) fn event(&self) -> Option<Event> {
        next(&self.events)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.id.destroy();
    }
}

/// The identifier of a peer that wants to connect; `None` once it has an answer.
pub(crate) struct Caller(Option<Arc<Id>>);

impl From<Caller> for super::Caller {
    fn from(caller: Caller) -> Self {
        Self::Engine(caller)
    }
}

impl Caller {
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.0.as_ref()?.peer()
    }

    pub(super) fn refuse(mut self, private_data: &[u8]) {
        if let Some(id) = self.0.take() {
            refuse(&id, private_data);
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if let Some(id) = self.0.take() {
            refuse(&id, &[]);
        }
    }
}

fn refuse(id: &Id, private_data: &[u8]) {
    // It fails if the peer has gone, which is as well.
    let _ = id.reject(private_data);
    id.destroy();
}

#[derive(Debug)]
pub(crate) struct EngineLink {
    pub(super) qp: Arc<Qp>,
    pub(super) cq: Arc<Cq>,
    channel: Arc<CompChannel>,
    id: Arc<Id>,
    events: Arc<Channel>,
}

impl EngineLink {
    pub(super) fn to(domain: &Domain, peer: SocketAddr, room: &Room) -> Result<Self, Errno> {
        let events = channel()?;
        let id = Id::new(&events, PortSpace::Connected);
        let resolved = id.resolve_address(None, peer).and_then(|()| id.resolve_route());
        let link = resolved.and_then(|()| Self::on(domain, &id, events, room));
        link.inspect_err(|_| id.destroy())
    }

    pub(super) fn of(domain: &Domain, caller: Caller, room: &Room) -> Result<Self, Errno> {
        let mut caller = caller;
        let id = caller.0.as_ref().ok_or(Errno::INVAL)?;
        let events = channel()?;
        // The listener's channel is for requests only.
        id.migrate(&events);
        let link = Self::on(domain, id, events, room)?;
        caller.0 = None;
        Ok(link)
    }

    fn on(domain: &Domain, id: &Arc<Id>, events: Arc<Channel>, room: &Room) -> Result<Self, Errno> {
        let Domain(pd) = domain;
        let context = pd.context();
        let channel = CompChannel::new(context)?;
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let depth = number(room.sends + room.receives);
        let cq = Cq::new(context, depth, Some(Arc::clone(&channel)))?;
        let cap = QpCap {
            max_send_wr: number(room.sends),
            max_recv_wr: number(room.receives),
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: number(room.value),
        };
        let (send_cq, recv_cq) = (Arc::clone(&cq), Arc::clone(&cq));
        let (qp_type, srq, xrcd) = (QpType::Rc, None, None);
        let init = QpInit { qp_type, send_cq, recv_cq, srq, xrcd, cap, sq_sig_all: false };
        let qp = Qp::new(pd, init)?;
        let (attr, mask) = id.qp_attributes(QpState::Init)?;
        qp.modify(&attr, mask)?;
        Ok(Self { qp, cq, channel, id: Arc::clone(id), events })
    }

    fn via(&self) -> Via {
        Via::Own(Arc::clone(&self.qp))
    }

    pub(super) fn connect(&self, private_data: &[u8]) -> Result<(), Errno> {
        self.id.connect(&self.via(), &parameters(private_data))
    }

    pub(super) fn accept(&self, private_data: &[u8]) -> Result<(), Errno> {
        self.id.accept(&self.via(), &parameters(private_data))
    }

    pub(super) fn events_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    pub(super) fn event(&self) -> Option<Event> {
        next(&self.events)
    }

    pub(super) fn disconnect(&self) {
        let _ = self.id.disconnect();
    }

    pub(super) fn destroy(&self) {
        self.qp.destroy();
        self.id.destroy();
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    pub(super) fn await_event(&self, limit: Option<Duration>) {
        let may_take = match limit {
            Some(limit) => wait_readable([self.fd()], Some(limit)) == Ok([true]),
            None => true,
        };
        if may_take {
            // A signal is as good as an event: the thread looks again.
            let _ = self.channel.next_event();
        }
    }

    pub(super) fn take_events(&self) {
        while wait_readable([self.fd()], Some(Duration::ZERO)) == Ok([true]) {
            if self.channel.next_event().is_err() {
                break;
            }
        }
    }

    pub(super) fn be_watched(&self) -> Result<(), Errno> {
        unblock(self.fd())
    }
}

fn parameters(private_data: &[u8]) -> ConnectParam {
    ConnectParam { private_data: private_data.to_vec(), ..ConnectParam::default() }
}
