//! Queue pairs of the engine, with one completion queue for a whole lane.

use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use weft_engine::channel::CompChannel;
use weft_engine::cq::Cq;
use weft_engine::device;
use weft_engine::limits::CQE_MAX;
use weft_engine::qp::QpType;
use weft_engine::wc::{Completion, Opcode, Status};
use weft_engine::wr::Sge;
use weft_engine::wr::{Data, Destination, Operation as Verb, RecvRequest, SendFlags, SendRequest};
use weft_sys::wait_readable;

use super::queue_pair::{Host, QueuePair, Remote};
use super::queued::Queued;
use super::{Arrival, Blocking, Lane, Rotation};
use crate::limits::{INLINE_MAX, LOSS_AFTER, WINDOW_MAX};
use crate::memory::Memory;
use crate::plan::{Address, LaneSpec, Operation, Over, Registration};

/// Completions that one poll takes.
const BATCH: usize = 32;
const ATOMIC_LEN: usize = 8;
/// Length of the global routing header in front of each received datagram.
const GRH_LEN: usize = 40;
/// Number of receives for each outstanding message: enough also for messages that the program has
/// not taken yet, and more where a message without a receive is lost.
const RECEIVES: usize = 4;
const RECEIVES_IF_LOSSY: usize = 8;
/// A queue that was full is filled again when one REFILL-th of it is free.
const REFILL: usize = 4;
/// `wr_id`: the connection in the low bits, the buffer above them, and the kind of request in the
/// top bit.
const SLOT_SHIFT: u32 = 32;
const RECEIVE: u64 = 1 << 63;

/// Queue pairs that are not connected yet.
#[derive(Debug)]
pub(super) struct Opening {
    spec: LaneSpec,
    // Declared before the memory, so that it is dropped first.
    queue_pairs: Vec<QueuePair>,
    cq: Arc<Cq>,
    channel: Arc<CompChannel>,
    memory: Memory,
    /// The index of this side's address in the device's GID table.
    sgid_index: u8,
}

impl Opening {
    pub(super) fn new(spec: &LaneSpec) -> Result<Self> {
        let host = Host::open(spec.address)?;
        let gid = device::gid_of(spec.address);
        let sgid_index = host.context.device().gids().iter().position(|&own| own == gid);
        let sgid_index = u8::try_from(sgid_index.unwrap_or(0))?;
        let channel = CompChannel::new(&host.context)?;
        let receives = receives(spec);
        let room = spec.connections * (spec.window + receives);
        let cqe = u32::try_from(room).unwrap_or(CQE_MAX).min(CQE_MAX);
        let cq = Cq::new(&host.context, cqe, Some(Arc::clone(&channel)))?;
        let make = |_| host.queue_pair(type_of(spec.over), &cq, spec.window + 1, receives);
        let queue_pairs = (0..spec.connections).map(make).collect::<Result<_>>()?;
        // Buffers to send, as many to receive, and one for the peers' one-sided operations.
        let size = spec.send_size.max(spec.receive_size + header_len(spec.over)).max(ATOMIC_LEN);
        let memory = Memory::new(&host.pd, 2 * spec.slots + 1, size, spec.registration)?;
        Ok(Self { spec: spec.clone(), queue_pairs, cq, channel, memory, sgid_index })
    }
}

fn type_of(over: Over) -> QpType {
    match over {
        Over::Ud => QpType::Ud,
        Over::Uc => QpType::Uc,
        _ => QpType::Rc,
    }
}

fn header_len(over: Over) -> usize {
    if over == Over::Ud { GRH_LEN } else { 0 }
}

fn receives(spec: &LaneSpec) -> usize {
    let factor = match spec.registration {
        _ if spec.over.is_lossy() => RECEIVES_IF_LOSSY,
        Registration::Before => RECEIVES,
        // A waiting receive would keep other messages' buffers registered.
        Registration::EachTime | Registration::Cached => 1,
    };
    (spec.window * factor).min(WINDOW_MAX)
}

impl super::Opening for Opening {
    fn addresses(&self) -> Vec<Address> {
        let memory = self.memory.address(2 * self.spec.slots);
        let key = self.memory.key().unwrap_or(0);
        let gid = device::gid_of(self.spec.address);
        let numbers = self.queue_pairs.iter().map(|queue_pair| queue_pair.qp.number());
        numbers.map(|number| Address::Qp { number, gid, memory, key }).collect()
    }

    fn connect(self: Box<Self>, peers: &[Address]) -> Result<Box<dyn Lane>> {
        let Self { spec, queue_pairs, cq, channel, memory, sgid_index } = *self;
        let mut lane = Verbs {
            peers: Vec::new(),
            queue_pairs,
            cq,
            channel,
            memory,
            inline: vec![0; spec.send_size.min(INLINE_MAX)],
            outgoing: Rotation::new(spec.reuse, spec.slots),
            incoming: Rotation::new(spec.reuse, spec.slots),
            arrivals: VecDeque::new(),
            ended: 0,
            spec,
        };
        for connection in 0..lane.queue_pairs.len() {
            (0..receives(&lane.spec)).try_for_each(|_| lane.post_receive(connection))?;
        }
        for (queue_pair, peer) in lane.queue_pairs.iter().zip(peers) {
            let &Address::Qp { number, gid, memory, key } = peer else {
                bail!("the peer has no queue pair")
            };
            let destination = queue_pair.connect(Remote { number, gid, sgid_index })?;
            lane.peers.push(VerbsPeer { memory, key, destination, under_way: 0, is_full: false });
        }
        Ok(Box::new(lane))
    }
}

/// The other end of a connection.
#[derive(Clone, Debug)]
struct VerbsPeer {
    memory: u64,
    key: u32,
    /// The destination of datagrams.
    destination: Option<Destination>,
    /// Number of operations that have not completed.
    under_way: usize,
    /// Whether the queue was full, and has not enough room yet.
    is_full: bool,
}

/// Connected queue pairs.
#[derive(Debug)]
struct Verbs {
    // Declared before the memory, so that they are dropped first.
    queue_pairs: Vec<QueuePair>,
    peers: Vec<VerbsPeer>,
    cq: Arc<Cq>,
    channel: Arc<CompChannel>,
    memory: Memory,
    spec: LaneSpec,
    inline: Vec<u8>,
    outgoing: Rotation,
    incoming: Rotation,
    arrivals: VecDeque<Arrival>,
    ended: u64,
}

impl Verbs {
    fn post_receive(&mut self, connection: usize) -> Result<()> {
        let slot = self.spec.slots + self.incoming.next();
        let sge = self.piece(slot, self.spec.receive_size + header_len(self.spec.over))?;
        let request = RecvRequest { wr_id: RECEIVE | id_of(connection, slot), sges: &[sge] };
        let qp = &self.queue_pairs[connection].qp;
        qp.post_recv(&request).context("cannot post a receive")
    }

    /// Returns the first bytes of a buffer, registered until the request that uses them has
    /// completed.
    fn piece(&mut self, slot: usize, len: usize) -> Result<Sge> {
        let lkey = self.memory.acquire(slot, len)?;
        Ok(Sge { addr: self.memory.address(slot), length: u32::try_from(len)?, lkey })
    }

    fn post(&mut self, connection: usize, operation: Operation, last: bool) -> Result<()> {
        let peer = &mut self.peers[connection];
        peer.under_way += 1;
        let (remote_addr, rkey) = (peer.memory, peer.key);
        let verb = match (operation, &peer.destination) {
            (Operation::Send, Some(to)) => Verb::Datagram { to: to.clone(), imm: None },
            (Operation::Send, None) => Verb::Send { imm: None, invalidate: None },
            (Operation::Write, _) => Verb::Write { remote_addr, rkey, imm: None },
            (Operation::Read, _) => Verb::Read { remote_addr, rkey },
            (Operation::Atomic, _) => Verb::FetchAdd { remote_addr, rkey, add: 1 },
        };
        let len = if operation == Operation::Atomic { ATOMIC_LEN } else { self.spec.send_size };
        let is_short = len <= INLINE_MAX && matches!(operation, Operation::Send | Operation::Write);
        // Inline data needs no registration, whose cost the other modes measure.
        let is_inline = is_short && self.spec.registration == Registration::Before;
        let slot = self.outgoing.next();
        let sge = self.piece(slot, len)?;
        let inline = [&self.inline[..]];
        let mut flags = SendFlags::SIGNALED;
        let data = if last {
            // An empty message is the last one; all others have bytes.
            Data::Gather(&[])
        } else if is_inline {
            flags |= SendFlags::INLINE;
            Data::Inline(&inline)
        } else {
            Data::Gather(std::slice::from_ref(&sge))
        };
        let request = SendRequest { wr_id: id_of(connection, slot), operation: verb, flags, data };
        let qp = &self.queue_pairs[connection].qp;
        qp.start_post().push(&request).context("cannot post")
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
        let last = byte_len as usize == header_len(self.spec.over);
        self.arrivals.push_back(Arrival { connection, messages: 1, last });
        // Nothing follows the last message, so no receive is needed.
        if last { Ok(()) } else { self.post_receive(connection) }
    }
}

impl Queued for Verbs {
    fn take_next(&mut self) -> Result<bool> {
        let mut space = [Completion::new(0, Status::Success, Opcode::Send, 0); BATCH];
        let count = self.cq.poll(&mut space);
        for completion in &space[..count] {
            self.complete(completion)?;
        }
        Ok(count != 0)
    }

    fn spins(&self) -> bool {
        self.spec.poll
    }

    fn has_arrivals(&self) -> bool {
        !self.arrivals.is_empty()
    }

    fn take_arrival(&mut self) -> Option<Arrival> {
        self.arrivals.pop_front()
    }
}

impl Lane for Verbs {
    fn send(
        &mut self,
        connection: usize,
        operation: Operation,
        last: bool,
        blocking: Blocking,
    ) -> Result<bool> {
        let (full, window) = (self.peers[connection].is_full, self.spec.window);
        // A queue that was full is filled again in one go, like in programs that request one
        // completion for many operations. Operations that are posted together can be sent together.
        let room_below = if full { window - window / REFILL } else { window };
        let has_room = |lane: &Self| lane.peers[connection].under_way < room_below;
        let can = self.make_room(blocking, has_room)?;
        if can {
            self.post(connection, operation, last)?;
        }
        let peer = &mut self.peers[connection];
        peer.is_full = !can || peer.under_way == window;
        Ok(can)
    }

    fn receive(&mut self, blocking: Blocking) -> Result<Option<Arrival>> {
        self.next_arrival(blocking)
    }

    fn flush(&mut self) -> Result<()> {
        self.wait_for_completions(|lane| lane.peers.iter().all(|peer| peer.under_way == 0))
    }

    fn wait(&mut self) -> Result<()> {
        if self.spec.poll {
            return Ok(());
        }
        self.cq.arm(false);
        // Completions from before the arming raise no event.
        if self.take_next()? {
            return Ok(());
        }
        // A lost message raises no event at all.
        let limit = self.is_lossy().then_some(LOSS_AFTER);
        let may_block = match limit {
            Some(_) => wait_readable([self.channel.as_fd()], limit)? == [true],
            None => true,
        };
        if may_block {
            self.channel.next_event().context("cannot wait for completions")?;
        }
        Ok(())
    }

    fn ended(&self) -> u64 {
        self.ended
    }

    fn transport(&self) -> (String, Option<String>) {
        (self.queue_pairs[0].qp.transport().into(), None)
    }

    fn is_lossy(&self) -> bool {
        self.spec.over.is_lossy()
    }
}

fn id_of(connection: usize, slot: usize) -> u64 {
    connection as u64 | (slot as u64) << SLOT_SHIFT
}
