//! Queue pairs of the engine, with one completion queue for all of a lane.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use weft_engine::access::Access;
use weft_engine::channel::CompChannel;
use weft_engine::cq::Cq;
use weft_engine::device::Gid;
use weft_engine::limits::CQE_MAX;
use weft_engine::pd::Pd;
use weft_engine::qp::{
    AddressVector, AttrMask, GlobalRoute, Qp, QpAttr, QpCap, QpInit, QpState, QpType,
};
use weft_engine::wc::{Completion, Opcode, Status};
use weft_engine::wr::{Data, Operation as Verb, RecvRequest, SendFlags, SendRequest, Sge};
use weft_engine::{Context, device};

use super::{Arrival, Deadline, Lane, Patience, Rotation};
use crate::memory::Memory;
use crate::plan::{Address, LaneSpec, Operation, Registration};

/// Messages up to this length are sent inline, as perftest does where latency counts.
const INLINE_MAX: usize = 220;
/// Completions taken at once.
const BATCH: usize = 32;
/// Reads and atomics under way on one queue pair.
const READS_MAX: u8 = 16;
const ATOMIC_LEN: usize = 8;
/// `wr_id`: the connection below, the buffer above it, and on top what kind of request it was.
const SLOT_SHIFT: u32 = 32;
const RECEIVE: u64 = 1 << 63;

/// A device with a protection domain.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) context: Arc<Context>,
    pub(crate) pd: Arc<Pd>,
}

impl Host {
    /// Opens the device that has an address.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn open(address: IpAddr) -> Result<Self> {
        let devices = device::list().context("cannot list the devices")?;
        let found = devices.iter().find(|device| device.owns(address));
        let found = found.with_context(|| format!("no device has the address {address}"))?;
        let context = Context::open(found).context("cannot open the device")?;
        let pd = Pd::new(&context);
        Ok(Self { context, pd })
    }

    /// A queue pair with room for `window` requests each way.
    ///
    /// # Errors
    /// What the engine reports.
    pub(crate) fn queue_pair(&self, cq: &Arc<Cq>, window: usize) -> Result<QueuePair> {
        let window = u32::try_from(window)?;
        let cap = QpCap {
            max_send_wr: window + 1,
            max_recv_wr: window + 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: INLINE_MAX as u32,
        };
        let (send_cq, recv_cq) = (Arc::clone(cq), Arc::clone(cq));
        let qp_type = QpType::Rc;
        let init =
            QpInit { qp_type, send_cq, recv_cq, srq: None, xrcd: None, cap, sq_sig_all: true };
        let qp = Qp::new(&self.pd, init).context("cannot make a queue pair")?;
        Ok(QueuePair(qp))
    }
}

/// A queue pair that is destroyed with this value.
#[derive(Debug)]
pub(crate) struct QueuePair(pub(crate) Arc<Qp>);

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.0.destroy();
    }
}

/// Queue pairs that are not connected yet.
#[derive(Debug)]
pub(super) struct Opening {
    spec: LaneSpec,
    // Before the host and the memory, so that it goes first.
    queue_pairs: Vec<QueuePair>,
    cq: Arc<Cq>,
    channel: Arc<CompChannel>,
    memory: Memory,
    /// The index of this side's own address among the device's.
    sgid_index: u8,
}

impl Opening {
    pub(super) fn new(spec: &LaneSpec) -> Result<Self> {
        let host = Host::open(spec.address)?;
        let gid = device::gid_of(spec.address);
        let sgid_index = host.context.device().gids().iter().position(|&own| own == gid);
        let channel = CompChannel::new(&host.context)?;
        let room = spec.connections * (2 * spec.window + 2);
        let cqe = u32::try_from(room).unwrap_or(CQE_MAX).min(CQE_MAX);
        let cq = Cq::new(&host.context, cqe, Some(Arc::clone(&channel)))?;
        let queue_pairs = (0..spec.connections).map(|_| host.queue_pair(&cq, spec.window));
        let queue_pairs = queue_pairs.collect::<Result<_>>()?;
        // Buffers to send, as many to receive, and one for what peers do by themselves.
        let size = spec.send_size.max(spec.receive_size).max(ATOMIC_LEN);
        let memory = Memory::new(&host.pd, 2 * spec.slots + 1, size, spec.registration)?;
        let sgid_index = u8::try_from(sgid_index.unwrap_or(0))?;
        Ok(Self { spec: spec.clone(), queue_pairs, cq, channel, memory, sgid_index })
    }
}

impl super::Opening for Opening {
    fn addresses(&self) -> Vec<Address> {
        let memory = self.memory.address(2 * self.spec.slots);
        let key = self.memory.key().unwrap_or(0);
        let of = |QueuePair(qp): &QueuePair| Address::Qp {
            number: qp.number(),
            gid: device::gid_of(self.spec.address),
            memory,
            key,
        };
        self.queue_pairs.iter().map(of).collect()
    }

    fn connect(self: Box<Self>, peers: &[Address]) -> Result<Box<dyn Lane>> {
        let Self { spec, queue_pairs, cq, channel, memory, sgid_index } = *self;
        let mut connections = Vec::new();
        for (QueuePair(qp), peer) in queue_pairs.iter().zip(peers) {
            let &Address::Qp { number, gid, memory, key } = peer else {
                bail!("the peer has no queue pair")
            };
            to_init(qp)?;
            connections.push((number, gid, Peer { memory, key, under_way: 0 }));
        }
        let mut lane = Verbs {
            peers: connections.iter().map(|(_, _, peer)| *peer).collect(),
            queue_pairs,
            cq,
            channel,
            memory,
            poll: spec.poll,
            window: spec.window,
            send_size: spec.send_size,
            receive_size: spec.receive_size,
            slots: spec.slots,
            inline: vec![0; spec.send_size.min(INLINE_MAX)],
            is_fixed: spec.registration == Registration::Before,
            outgoing: Rotation::new(spec.reuse, spec.slots),
            incoming: Rotation::new(spec.reuse, spec.slots),
            arrivals: VecDeque::new(),
            ended: 0,
        };
        for connection in 0..lane.queue_pairs.len() {
            (0..lane.window).try_for_each(|_| lane.post_receive(connection))?;
        }
        for (QueuePair(qp), (number, gid, _)) in lane.queue_pairs.iter().zip(connections) {
            to_rts(qp, gid, number, sgid_index)?;
        }
        Ok(Box::new(lane))
    }
}

/// What is known of a connection's other end.
#[derive(Clone, Copy, Debug)]
struct Peer {
    memory: u64,
    key: u32,
    /// Operations that have not ended.
    under_way: usize,
}

/// Connected queue pairs.
#[derive(Debug)]
struct Verbs {
    // Before the memory, so that they go first.
    queue_pairs: Vec<QueuePair>,
    peers: Vec<Peer>,
    cq: Arc<Cq>,
    channel: Arc<CompChannel>,
    memory: Memory,
    poll: bool,
    window: usize,
    send_size: usize,
    receive_size: usize,
    slots: usize,
    inline: Vec<u8>,
    /// All memory is registered, so that inline data need none.
    is_fixed: bool,
    outgoing: Rotation,
    incoming: Rotation,
    arrivals: VecDeque<Arrival>,
    ended: u64,
}

impl Verbs {
    fn post_receive(&mut self, connection: usize) -> Result<()> {
        let slot = self.slots + self.incoming.next();
        let lkey = self.memory.acquire(slot, self.receive_size)?;
        let length = u32::try_from(self.receive_size)?;
        let sge = Sge { addr: self.memory.address(slot), length, lkey };
        let request = RecvRequest { wr_id: RECEIVE | id_of(connection, slot), sges: &[sge] };
        let QueuePair(qp) = &self.queue_pairs[connection];
        qp.post_recv(&request).context("cannot post a receive")
    }

    fn post(&mut self, connection: usize, operation: Operation, last: bool) -> Result<()> {
        let Peer { memory: remote_addr, key: rkey, .. } = self.peers[connection];
        let (verb, len) = match operation {
            Operation::Send => (Verb::Send { imm: None, invalidate: None }, self.send_size),
            Operation::Write => (Verb::Write { remote_addr, rkey, imm: None }, self.send_size),
            Operation::Read => (Verb::Read { remote_addr, rkey }, self.send_size),
            Operation::Atomic => (Verb::FetchAdd { remote_addr, rkey, add: 1 }, ATOMIC_LEN),
        };
        let slot = self.outgoing.next();
        let is_short = len <= INLINE_MAX && matches!(operation, Operation::Send | Operation::Write);
        let (inline, sge);
        let mut flags = SendFlags::SIGNALED;
        let data = if last {
            // A message of no bytes is the last one; nothing else has none.
            self.memory.acquire(slot, len)?;
            Data::Gather(&[])
        } else if is_short && self.is_fixed {
            flags |= SendFlags::INLINE;
            inline = [&self.inline[..]];
            Data::Inline(&inline)
        } else {
            let lkey = self.memory.acquire(slot, len)?;
            sge = Sge { addr: self.memory.address(slot), length: u32::try_from(len)?, lkey };
            Data::Gather(std::slice::from_ref(&sge))
        };
        let wr_id = id_of(connection, slot);
        let QueuePair(qp) = &self.queue_pairs[connection];
        let posted = qp.start_post().push(&SendRequest { wr_id, operation: verb, flags, data });
        posted.context("cannot post")?;
        self.peers[connection].under_way += 1;
        Ok(())
    }

    /// Takes completions and says whether there was one.
    fn reap(&mut self) -> Result<bool> {
        let mut space = [Completion::new(0, Status::Success, Opcode::Send, 0); BATCH];
        let count = self.cq.poll(&mut space);
        for completion in &space[..count] {
            self.complete(completion)?;
        }
        Ok(count != 0)
    }

    fn complete(&mut self, completion: &Completion) -> Result<()> {
        let &Completion { wr_id, status, vendor_err, byte_len, .. } = completion;
        ensure!(status == Status::Success, "a request failed: {status:?} ({vendor_err})");
        let connection = (wr_id & u64::from(u32::MAX)) as usize;
        let slot = ((wr_id & !RECEIVE) >> SLOT_SHIFT) as usize;
        self.memory.release(slot)?;
        if wr_id & RECEIVE == 0 {
            self.peers[connection].under_way -= 1;
            self.ended += 1;
            return Ok(());
        }
        let last = byte_len == 0;
        self.arrivals.push_back(Arrival { connection, messages: 1, last });
        // After the last one there is nothing to receive.
        if last { Ok(()) } else { self.post_receive(connection) }
    }

    /// Waits until `is_done`. Returns whether it was in time.
    fn wait_until(&mut self, is_done: impl Fn(&Self) -> bool) -> Result<bool> {
        let mut deadline = Deadline::new(self.silence());
        while !is_done(self) {
            if !self.reap()? {
                if deadline.is_over() {
                    return Ok(false);
                }
                self.wait()?;
            }
        }
        Ok(true)
    }
}

impl Lane for Verbs {
    fn send(
        &mut self,
        connection: usize,
        operation: Operation,
        last: bool,
        patience: Patience,
    ) -> Result<bool> {
        let has_room = |lane: &Self| lane.peers[connection].under_way < lane.window;
        if !has_room(self) {
            if patience == Patience::Now {
                self.reap()?;
            } else {
                let in_time = self.wait_until(has_room)?;
                ensure!(in_time, "no request has ended for {:?}", self.silence());
            }
        }
        let can = has_room(self);
        if can {
            self.post(connection, operation, last)?;
        }
        Ok(can)
    }

    fn receive(&mut self, patience: Patience) -> Result<Option<Arrival>> {
        if self.arrivals.is_empty() {
            match patience {
                Patience::Now => drop(self.reap()?),
                Patience::Wait => drop(self.wait_until(|lane| !lane.arrivals.is_empty())?),
            }
        }
        Ok(self.arrivals.pop_front())
    }

    fn flush(&mut self) -> Result<()> {
        let in_time = self.wait_until(|lane| lane.peers.iter().all(|peer| peer.under_way == 0))?;
        ensure!(in_time, "no request has ended for {:?}", self.silence());
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        if self.poll {
            return Ok(());
        }
        self.cq.arm(false);
        // What came before the queue was armed tells of no event.
        if !self.reap()? {
            self.channel.next_event().context("cannot wait for completions")?;
        }
        Ok(())
    }

    fn ended(&self) -> u64 {
        self.ended
    }

    fn transport(&self) -> (String, Option<String>) {
        (self.queue_pairs[0].0.transport().into(), None)
    }
}

fn id_of(connection: usize, slot: usize) -> u64 {
    connection as u64 | (slot as u64) << SLOT_SHIFT
}

/// Brings a fresh queue pair to INIT.
///
/// # Errors
/// What the engine reports.
pub(crate) fn to_init(qp: &Arc<Qp>) -> Result<()> {
    let rights = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let attr = QpAttr {
        qp_state: QpState::Init,
        qp_access_flags: rights,
        port_num: 1,
        ..QpAttr::default()
    };
    let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    qp.modify(&attr, mask).context("cannot bring a queue pair to INIT")
}

fn to_rts(qp: &Arc<Qp>, dgid: Gid, dest_qp_num: u32, sgid_index: u8) -> Result<()> {
    let global = Some(GlobalRoute { dgid, sgid_index, ..GlobalRoute::default() });
    let rtr = QpAttr {
        qp_state: QpState::Rtr,
        path_mtu: 5,
        dest_qp_num,
        max_dest_rd_atomic: READS_MAX,
        min_rnr_timer: 12,
        ah_attr: AddressVector { global, port_num: 1, ..AddressVector::default() },
        ..QpAttr::default()
    };
    let mask = AttrMask::STATE
        | AttrMask::AV
        | AttrMask::PATH_MTU
        | AttrMask::DEST_QPN
        | AttrMask::RQ_PSN
        | AttrMask::MAX_DEST_RD_ATOMIC
        | AttrMask::MIN_RNR_TIMER;
    qp.modify(&rtr, mask).context("cannot bring a queue pair to RTR")?;
    let rts = QpAttr {
        qp_state: QpState::Rts,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: READS_MAX,
        ..QpAttr::default()
    };
    let mask = AttrMask::STATE
        | AttrMask::TIMEOUT
        | AttrMask::RETRY_CNT
        | AttrMask::RNR_RETRY
        | AttrMask::SQ_PSN
        | AttrMask::MAX_QP_RD_ATOMIC;
    qp.modify(&rts, mask).context("cannot bring a queue pair to RTS")
}
