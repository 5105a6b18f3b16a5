//! Calls of the engine, polling: what `weft-fabric` is compared with.
//!
//! # Safety
//! [`Memory`] is a mapping that this module alone uses, by requests to the engine. It is never
//! unmapped.
#![allow(unsafe_code)]

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use weft_engine::access::Access;
use weft_engine::cm::{Channel, ConnectParam, Event, EventKind, Id, PortSpace, Via};
use weft_engine::cq::Cq;
use weft_engine::mr::Mr;
use weft_engine::pd::Pd;
use weft_engine::qp::{Qp, QpCap, QpInit, QpState, QpType};
use weft_engine::wc::{Completion, Opcode, Status};
use weft_engine::wr::{Data, Operation, RecvRequest, SendFlags, SendRequest, Sge};
use weft_engine::{Context, device};
use weft_sys::Region;

use crate::fabric::WINDOW;
use crate::{Load, Measured, Meter, announce, measure};

/// Receives that are posted: more than the messages under way.
const RECEIVES: usize = 4 * WINDOW;
/// Bytes of each.
const PLACE: usize = 64;
/// Completions that one call takes.
const BATCH: usize = 32;
/// `wr_id` of receives is the number of their place; that of other requests is this.
const SENT: u64 = u64::MAX;

/// Registered memory.
struct Memory {
    address: u64,
    mr: Arc<Mr>,
}

impl Memory {
    fn new(pd: &Arc<Pd>, len: usize, rights: Access) -> Result<Self> {
        let len = len.next_multiple_of(4_096);
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the kernel chooses the address of the new mapping, which replaces none.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, flags) }?;
        // SAFETY: the mapping is readable and writable, stays, and is used by the engine only.
        let region = unsafe { Region::new(start as usize, len) }.context("no region")?;
        let mr = Mr::register(pd, region, start as u64, Access::LOCAL_WRITE | rights)?;
        Ok(Self { address: start as u64, mr })
    }

    fn piece(&self, at: usize, len: usize) -> Sge {
        let length = u32::try_from(len).unwrap_or(u32::MAX);
        Sge { addr: self.address + at as u64, length, lkey: self.mr.key() }
    }
}

/// A connection.
struct Connection {
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    id: Arc<Id>,
    events: Arc<Channel>,
    /// The places of receives.
    places: Memory,
    /// Address and key of the peer's memory.
    peer: (u64, u32),
    /// Requests under way, and messages that have arrived.
    under_way: usize,
    arrived: usize,
}

fn open() -> Result<Arc<Pd>> {
    let devices = device::list()?;
    let context = Context::open(devices.first().context("no interface is up")?)?;
    Ok(Pd::new(&context))
}

fn next(events: &Channel, kind: EventKind) -> Result<Event> {
    loop {
        let event = events.next_event(|_| ())?;
        match event.kind {
            EventKind::AddrResolved | EventKind::RouteResolved => {}
            other if other == kind => return Ok(event),
            other => bail!("{other:?} instead of {kind:?}"),
        }
    }
}

impl Connection {
    fn new(pd: &Arc<Pd>, id: &Arc<Id>, events: &Arc<Channel>) -> Result<Self> {
        let cq = Cq::new(pd.context(), (RECEIVES + 2 * WINDOW) as u32, None)?;
        let cap = QpCap {
            max_send_wr: 2 * WINDOW as u32,
            max_recv_wr: RECEIVES as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: PLACE as u32,
        };
        let (send_cq, recv_cq) = (Arc::clone(&cq), Arc::clone(&cq));
        let (qp_type, srq, xrcd) = (QpType::Rc, None, None);
        let init = QpInit { qp_type, send_cq, recv_cq, srq, xrcd, cap, sq_sig_all: false };
        let qp = Qp::new(pd, init)?;
        let (attr, mask) = id.qp_attributes(QpState::Init)?;
        qp.modify(&attr, mask)?;
        let places = Memory::new(pd, RECEIVES * PLACE, Access::empty())?;
        let (id, events) = (Arc::clone(id), Arc::clone(events));
        let link = Self { qp, cq, id, events, places, peer: (0, 0), under_way: 0, arrived: 0 };
        (0..RECEIVES).try_for_each(|place| link.receive_into(place))?;
        Ok(link)
    }

    fn via(&self) -> Via {
        Via::Own(Arc::clone(&self.qp))
    }

    fn receive_into(&self, place: usize) -> Result<()> {
        let sge = self.places.piece(place * PLACE, PLACE);
        Ok(self.qp.post_recv(&RecvRequest { wr_id: place as u64, sges: &[sge] })?)
    }

    fn post(&mut self, operation: Operation, data: Data<'_>) -> Result<()> {
        let mut flags = SendFlags::SIGNALED;
        flags.set(SendFlags::INLINE, matches!(data, Data::Inline(_)));
        self.under_way += 1;
        let request = SendRequest { wr_id: SENT, operation, flags, data };
        Ok(self.qp.start_post().push(&request)?)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.post(Operation::Send { imm: None, invalidate: None }, Data::Inline(&[bytes]))
    }

    /// Takes completions until the condition holds. Returns whether the connection is there still.
    fn poll(&mut self, is_over: impl Fn(&Self) -> bool) -> Result<bool> {
        let mut space = [Completion::new(0, Status::Success, Opcode::Send, 0); BATCH];
        while !is_over(self) {
            let count = self.cq.poll(&mut space);
            for completion in &space[..count] {
                if completion.status != Status::Success {
                    return Ok(false);
                }
                if completion.wr_id == SENT {
                    self.under_way -= 1;
                } else {
                    self.arrived += 1;
                    self.receive_into(completion.wr_id as usize)?;
                }
            }
        }
        Ok(true)
    }

    fn settle(&mut self) -> Result<()> {
        let is_there = self.poll(|link| link.under_way == 0)?;
        ensure!(is_there, "the connection has ended");
        Ok(())
    }

    fn receive(&mut self) -> Result<bool> {
        let is_there = self.poll(|link| link.arrived != 0)?;
        self.arrived -= usize::from(is_there);
        Ok(is_there)
    }

    fn end(&self) {
        let _ = self.id.disconnect();
        self.qp.destroy();
        self.id.destroy();
    }
}

/// Serves one client until it closes the connection. Returns since when.
pub(crate) fn serve(load: Load, at: SocketAddr) -> Result<Meter> {
    let (pd, events) = (open()?, Channel::new()?);
    let id = Id::new(&events, PortSpace::Connected);
    id.bind(at)?;
    id.listen(1)?;
    announce(id.local().context("no address")?)?;
    let rights = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let shared = Memory::new(&pd, load.shared_len(), rights)?;
    let caller = next(&events, EventKind::ConnectRequest)?.id;
    let mut link = Connection::new(&pd, &caller, &events)?;
    let mut answer = shared.address.to_be_bytes().to_vec();
    answer.extend(shared.mr.key().to_be_bytes());
    caller
        .accept(&link.via(), &ConnectParam { private_data: answer, ..ConnectParam::default() })?;
    next(&events, EventKind::Established)?;
    let meter = Meter::start();
    if load.has_messages() {
        let first = load.operations() / 10;
        let all = first + load.operations();
        for count in 1..=all {
            ensure!(link.receive()?, "the connection has ended");
            if load == Load::PingPong || [first, all].contains(&count) {
                link.send(&[0; 8])?;
                link.settle()?;
            }
        }
    }
    // A queue pair of which nothing is sent does not notice it.
    next(&link.events, EventKind::Disconnected)?;
    link.end();
    id.destroy();
    Ok(meter)
}

/// Measures a load as a client.
pub(crate) fn dial(load: Load, to: SocketAddr) -> Result<Measured> {
    let (pd, events) = (open()?, Channel::new()?);
    let id = Id::new(&events, PortSpace::Connected);
    id.resolve_address(None, to)?;
    id.resolve_route()?;
    let mut link = Connection::new(&pd, &id, &events)?;
    id.connect(&link.via(), &ConnectParam::default())?;
    let answer = next(&events, EventKind::Established)?.param.private_data;
    let (address, key) = answer.split_first_chunk().context("no address")?;
    let key = key.first_chunk().context("no key")?;
    link.peer = (u64::from_be_bytes(*address), u32::from_be_bytes(*key));
    let own = Memory::new(&pd, load.shared_len(), Access::empty())?;
    let remote_addr = link.peer.0 + load.shared_at() as u64;
    let rkey = link.peer.1;
    let mut one_by_one = |operation: Operation, len: usize| {
        measure(load, |count| {
            for _ in 0..count {
                link.post(operation.clone(), Data::Gather(&[own.piece(0, len)]))?;
                link.settle()?;
            }
            Ok(())
        })
    };
    let measured = match load {
        Load::Read => one_by_one(Operation::Read { remote_addr, rkey }, 8),
        Load::Write(len) => one_by_one(Operation::Write { remote_addr, rkey, imm: None }, len),
        Load::Add | Load::AddInside => {
            one_by_one(Operation::FetchAdd { remote_addr, rkey, add: 1 }, 8)
        }
        Load::PingPong => measure(load, |count| {
            for _ in 0..count {
                link.send(&[0; 8])?;
                ensure!(link.receive()?, "the connection has ended");
            }
            Ok(())
        }),
        Load::Rate => measure(load, |count| {
            for _ in 0..count {
                link.poll(|link| link.under_way < WINDOW)?;
                link.send(&[7; PLACE])?;
            }
            link.settle()?;
            ensure!(link.receive()?, "the connection has ended");
            Ok(())
        }),
        Load::UnderWay => bail!("that is for futures"),
    }?;
    link.settle()?;
    link.end();
    Ok(measured)
}
