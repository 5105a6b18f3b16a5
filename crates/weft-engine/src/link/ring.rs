//! The protocol over shared memory: DDP segments in the slots of a ring instead of FPDUs in a
//! stream, and direct access to the peer's memory for one-sided operations.
//!
//! A slot holds the number of messages placed here (the acknowledgement), the segment's header, and
//! its payload or a reference to it: a range of the bulk area in shared memory, or pieces of the
//! sender's memory, from which the receiver copies.

use std::sync::Arc;

use smallvec::SmallVec;
use weft_sys::{PIECES_MAX, Piece, Region, SLOT_BODY_LEN, SharedMemory, SharedSlots};
use weft_wire::ddp::{self, Header};
use weft_wire::error::ProtocolError;
use weft_wire::rdmap::Opcode;

use super::control::Control;
use super::header::MessageHeader;
use super::host::{Host, Keys, Pinned};
use super::payload::Payload;
use super::{Fault, Link, Transport, fault, place};
use crate::access::Access;
use crate::limits::{
    BULK_CAPACITY, RING_CHUNK_MAX, RING_GIVE_MAX, RING_SLOTS, RING_TAKE_MAX, RNR_BYTES_MAX,
    STEP_SLOTS_MAX,
};
use crate::queue::send;
use crate::shm::{
    Found, Granted, Grants, PeerKeys, Progress, RingPort, Rings, Session, ShmPeer, Targets,
};
use crate::watched::PolledGuard;
use crate::wr::{Operation, SendFlags, Sge};

/// Length from which the receiver copies a message out of the sender's memory: a system call costs
/// less than the second copy.
const PULL_MIN: u32 = 16 << 10;
/// Length from which a Write or Read waits for the peer's reply to a key request: that takes less
/// time than sending the data through the ring.
const WORTH_WAITING: u32 = 256 << 10;
/// Number of passes that empty a full ring.
const PASSES_PER_RING: u32 = RING_SLOTS.div_ceil(RING_TAKE_MAX);

const PLACED_LEN: usize = 4;
/// Largest payload in a slot behind the longest header.
pub(super) const SLOT_ROOM: usize = SLOT_BODY_LEN - PLACED_LEN - ddp::UNTAGGED_LEN;
/// Maximum number of pieces of the sender's memory in a slot, 12 bytes each.
const SLOT_PIECES: usize = SLOT_ROOM / PIECE_LEN;
const PIECE_LEN: usize = 12;
const _: () = assert!(SLOT_PIECES <= PIECES_MAX);

/// Types of slots: where the payload is.
pub(super) const INLINE: u32 = 0;
const BULK: u32 = 1;
const PULL: u32 = 2;

/// The outcome of an attempt to carry out an operation directly.
pub(super) enum Direct {
    Done,
    /// The operation must wait for earlier Writes in the ring, or for the peer's reply to a key
    /// request.
    Wait,
    /// The operation must go through the ring.
    Ring,
}

/// The receive side's view of the shared segment.
#[derive(Debug)]
pub(super) struct View {
    memory: Arc<SharedMemory>,
    pub(super) rx: Arc<weft_sys::Consumer<SharedSlots>>,
    pub(super) peer: ShmPeer,
    bulk_at: usize,
}

/// The shared memory of a connection.
#[derive(Debug)]
pub(crate) struct Ring {
    rings: Rings,
    /// `None` while a segment is processed, which borrows from it.
    view: Option<Box<View>>,
    pub(super) session: Arc<Session>,
    pub(super) keys: PeerKeys,
    grants: Arc<Grants>,
    port: PolledGuard<RingPort>,

    // Sending.
    /// Bytes of the bulk area used since the beginning, and that count at each slot's end.
    bulk_used: u64,
    bulk_ends: Box<[u64; RING_SLOTS as usize]>,
    scratch: Vec<u8>,
    /// Whether the ring or the bulk area had no room.
    full: bool,
    /// Whether the peer's consumer index is impossible.
    broken: bool,
    /// The peer's progress when it was last read.
    seen: Progress,
    /// Number of messages sent up to and including the last Write that went through the ring.
    pub(super) last_write: u64,
    /// Whether the peer must be woken if it sleeps.
    wakeup_due: bool,

    // Receiving.
    unreleased: u32,
    bulk_unreleased: usize,
}

impl Ring {
    /// Starts to use shared memory with a peer. `port` belongs to `rings`.
    pub(crate) fn new(
        rings: Rings,
        port: PolledGuard<RingPort>,
        peer: ShmPeer,
        session: Arc<Session>,
    ) -> Box<Self> {
        if peer.is_reachable() {
            rings.publish_pull_support();
        }
        let view = View {
            memory: Arc::clone(rings.memory()),
            rx: Arc::clone(&rings.rx),
            peer,
            bulk_at: rings.rx_bulk(),
        };
        Box::new(Self {
            keys: PeerKeys::new(&rings),
            grants: Grants::new(&rings, &session),
            rings,
            view: Some(Box::new(view)),
            session,
            port,
            bulk_used: 0,
            bulk_ends: Box::new([0; RING_SLOTS as usize]),
            scratch: Vec::with_capacity(SLOT_BODY_LEN),
            full: false,
            broken: false,
            seen: Progress::default(),
            last_write: 0,
            wakeup_due: false,
            unreleased: 0,
            bulk_unreleased: 0,
        })
    }

    /// Whether output waits for room. A broken ring will have none.
    pub(super) fn is_full(&self) -> bool {
        self.full && !self.broken
    }

    /// Whether there is room for one more step.
    pub(super) fn has_room(&mut self) -> bool {
        let has_room = self.has_slots(STEP_SLOTS_MAX) && self.has_bulk_room();
        self.full = !has_room;
        has_room
    }

    fn has_slots(&mut self, wanted: u32) -> bool {
        let room = self.rings.tx.room(wanted);
        self.broken |= room.is_err();
        room.is_ok_and(|room| room >= wanted)
    }

    fn has_bulk_room(&mut self) -> bool {
        let needed = self.next_chunk_at(RING_CHUNK_MAX as usize).1 + u64::from(RING_CHUNK_MAX);
        if needed - self.bulk_freed() <= BULK_CAPACITY as u64 {
            return true;
        }
        // The consumer index is a cached one; asking for all slots makes the ring read it again.
        self.has_slots(RING_SLOTS);
        needed - self.bulk_freed() <= BULK_CAPACITY as u64
    }

    /// Bytes of the bulk area that the peer has released, counted as `bulk_used` is.
    fn bulk_freed(&self) -> u64 {
        match self.rings.tx.emptied() {
            0 if self.rings.tx.filled() < RING_SLOTS => 0,
            emptied => self.bulk_ends[(emptied.wrapping_sub(1) % RING_SLOTS) as usize],
        }
    }

    /// Where a chunk of `len` bytes goes: its position in the bulk area, and the count of bytes
    /// used before it. A chunk does not wrap around.
    fn next_chunk_at(&self, len: usize) -> (usize, u64) {
        let at = usize::try_from(self.bulk_used % BULK_CAPACITY as u64).unwrap_or(0);
        if at + len <= BULK_CAPACITY {
            (at, self.bulk_used)
        } else {
            (0, self.bulk_used + (BULK_CAPACITY - at) as u64)
        }
    }

    /// Publishes how many of the peer's messages have been placed. Each slot carries that number,
    /// too.
    pub(super) fn publish_placed(&mut self, placed: u64) {
        self.rings.publish_placed_count(low(placed));
        self.wakeup_due = true;
    }

    /// Sends a segment with its payload in the slot.
    pub(super) fn push(&mut self, header: &Header, payload: &[u8], placed: u64) {
        self.push_slot(INLINE, header, payload, placed);
    }

    /// Sends a segment with its payload in the bulk area; `fill` writes `len` bytes to the given
    /// position.
    fn push_chunk<E>(
        &mut self,
        header: &Header,
        len: usize,
        placed: u64,
        fill: impl FnOnce(&SharedMemory, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let (at, used) = self.next_chunk_at(len);
        fill(self.rings.memory(), self.rings.tx_bulk() + at)?;
        self.bulk_used = used + len as u64;
        let mut place = [0; 8];
        place[..4].copy_from_slice(&low(at as u64).to_ne_bytes());
        place[4..].copy_from_slice(&low(len as u64).to_ne_bytes());
        self.push_slot(BULK, header, &place, placed);
        Ok(())
    }

    fn push_slot(&mut self, kind: u32, header: &Header, rest: &[u8], placed: u64) {
        self.fill_slot(kind, header, rest.len(), placed, |room| room.copy_from_slice(rest));
    }

    /// Fills a slot with a header and `len` bytes that `fill` writes behind it.
    #[inline]
    pub(super) fn fill_slot(
        &mut self,
        kind: u32,
        header: &Header,
        len: usize,
        placed: u64,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let mut body = [0; SLOT_BODY_LEN];
        body[..PLACED_LEN].copy_from_slice(&low(placed).to_ne_bytes());
        let at = PLACED_LEN + header.emit(&mut body[PLACED_LEN..]);
        fill(&mut body[at..at + len]);
        let len = at + len;
        let slot = self.rings.tx.filled() % RING_SLOTS;
        self.bulk_ends[slot as usize] = self.bulk_used;
        self.rings.tx.push(kind << 8 | low(len as u64), len, &body);
        self.wakeup_due = true;
    }

    /// Releases a slot. Slots are released in groups, so that the producer, which has plenty of
    /// them, is not disturbed each time.
    pub(super) fn release(&mut self, view: &View, bulk: usize) {
        view.rx.advance();
        self.unreleased += 1;
        self.bulk_unreleased += bulk;
        if self.unreleased >= RING_SLOTS / 4 || self.bulk_unreleased >= BULK_CAPACITY / 4 {
            view.rx.release();
            (self.unreleased, self.bulk_unreleased) = (0, 0);
            self.wakeup_due = true;
        }
    }

    /// Withdraws all grants of our keys to the peer.
    pub(super) fn withdraw_grants(&self) {
        self.grants.withdraw_all();
    }

    /// Stops using the rings, because the peer is lost.
    pub(super) fn end(&self) {
        self.port.settle(false, None, false);
        self.grants.withdraw_all();
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.grants.withdraw_all();
        self.session.close();
    }
}

impl<H: Host> Link<H> {
    /// Switches the connection to shared memory, before any message has been sent.
    pub(crate) fn share(&mut self, ring: Box<Ring>) {
        self.opening.rtr_due = None;
        self.opening.hold = false;
        self.opening.peer_began = true;
        self.transport = Transport::Ring(ring);
    }

    /// Whether the peer, as the initiator, may still choose shared memory.
    pub(crate) fn may_share(&self) -> bool {
        self.phase.is_open() && self.opening.hold && !self.opening.peer_began
    }

    /// The transport's name for users.
    pub(crate) fn carrier(&self) -> &'static str {
        if self.transport.ring().is_some() { "shm" } else { "tcp" }
    }

    /// The name for users of how one-sided operations reach the peer's memory.
    pub(crate) fn reach(&self) -> Option<&'static str> {
        let view = self.transport.ring()?.view.as_ref()?;
        Some(if view.peer.is_reachable() { "direct" } else { "ring" })
    }

    /// Takes the view out, so that it can be borrowed while the rest changes.
    pub(super) fn take_view(&mut self) -> Option<Box<View>> {
        self.transport.ring_mut().and_then(|ring| ring.view.take())
    }

    /// Puts the view back.
    pub(super) fn put_view(&mut self, view: Option<Box<View>>) {
        if let Some(ring) = self.transport.ring_mut() {
            ring.view = view;
        }
    }

    /// Handles the peer's reply to a key request.
    pub(crate) fn learn_key(&mut self, key: u32, granted: Option<Granted>) {
        if let Some(ring) = self.transport.ring_mut() {
            ring.keys.learn(key, granted);
        }
    }

    /// The grants of our keys to the peer.
    pub(crate) fn grants(&self) -> Option<Arc<Grants>> {
        self.transport.ring().map(|ring| Arc::clone(&ring.grants))
    }

    // ---- Receiving ----

    /// Processes slots of the ring, up to a bound. Returns whether there is a ring.
    pub(crate) fn input_ring(&mut self, host: &H) -> bool {
        let Some(view) = self.take_view() else { return self.transport.ring().is_some() };
        let mut taken = 0;
        let result = self.take_slots(&view, &mut taken, host);
        let result = result.and_then(|()| self.take_progress(host));
        self.put_view(Some(view));
        if let Err(fault) = result {
            self.refuse(host, &fault);
        }
        true
    }

    /// Processes everything that the ring holds now, but not what a peer keeps adding. Returns
    /// whether there is a ring.
    pub(crate) fn input_rest_of_ring(&mut self, host: &H) -> bool {
        (0..PASSES_PER_RING).all(|_| self.input_ring(host))
    }

    fn take_slots(&mut self, view: &View, taken: &mut u32, host: &H) -> Result<(), Fault> {
        while *taken < RING_TAKE_MAX && self.takes_slots() {
            let Some(info) = view.rx.peek() else { break };
            let small = self.take_small_sends(view, RING_TAKE_MAX - *taken, host)?;
            *taken += small;
            if small != 0 {
                continue;
            }
            let Some(bulk) = self.take_slot(view, info, host)? else { break };
            *taken += 1;
            if let Some(ring) = self.transport.ring_mut() {
                ring.release(view, bulk);
            }
        }
        Ok(())
    }

    fn takes_slots(&self) -> bool {
        self.receives() && self.rnr.bytes <= RNR_BYTES_MAX
    }

    /// Processes one slot. Returns how much of the bulk area it used; `None` if the message must
    /// wait in the ring for a receive.
    fn take_slot(&mut self, view: &View, info: u32, host: &H) -> Result<Option<usize>, Fault> {
        let broken = || Fault::from(ProtocolError::RdmapCatastrophic);
        let (len, kind) = len_and_kind(info);
        let mut body = [0; SLOT_BODY_LEN];
        view.rx.read(len, &mut body);
        let body = body.get(..len).ok_or_else(broken)?;
        let (placed, segment) = body.split_first_chunk().ok_or_else(broken)?;
        self.acknowledged(u32::from_ne_bytes(*placed), host)?;
        if self.waits_for_receive(segment, host) {
            return Ok(None);
        }
        let (header, header_len) = Header::parse(segment)?;
        let rest = &segment[header_len..];
        match kind {
            INLINE => self.take_parsed(&header, Payload::Bytes(rest), host).map(|()| Some(0)),
            BULK => {
                let (at, len) = bulk_place(rest).ok_or_else(broken)?;
                let memory = &*view.memory;
                let payload = Payload::Shared { memory, at: view.bulk_at + at, len };
                self.take_parsed(&header, payload, host).map(|()| Some(len))
            }
            PULL if is_whole(&header) => {
                let pieces = pull_pieces(rest);
                let len = pieces.iter().map(|(_, len)| len).sum();
                let payload = Payload::Remote { peer: &view.peer, pieces: &pieces, len };
                self.take_parsed(&header, payload, host).map(|()| Some(0))
            }
            _ => Err(broken()),
        }
    }

    /// Handles an acknowledgement: the number of our messages that the peer has placed, modulo
    /// 2^32. It may be an old number.
    pub(super) fn acknowledged(&mut self, placed: u32, host: &H) -> Result<(), Fault> {
        let ahead = self.newly_placed(placed);
        if ahead == 0 { Ok(()) } else { self.placed_there(self.sender.peer_placed + ahead, host) }
    }

    /// How many more messages the peer has placed than we knew; 0 for an old number.
    pub(super) fn newly_placed(&self, placed: u32) -> u64 {
        let ahead = placed.wrapping_sub(low(self.sender.peer_placed));
        if ahead > u32::MAX / 2 { 0 } else { ahead.into() }
    }

    /// Reads the peer's progress.
    fn take_progress(&mut self, host: &H) -> Result<(), Fault> {
        let Some(ring) = self.transport.ring_mut() else { return Ok(()) };
        if ring.broken {
            return Err(ProtocolError::RdmapCatastrophic.into());
        }
        ring.seen = ring.port.progress();
        let placed = ring.seen.placed;
        self.acknowledged(placed, host)
    }

    // ---- Sending ----

    /// Sends what may be sent now. Returns whether there is more.
    fn fill_ring(&mut self, host: &H) -> bool {
        let before = self.sender.appended;
        let mut has_more = true;
        while has_more && self.sender.appended - before < RING_GIVE_MAX {
            has_more = self.step(host);
        }
        self.sender.taken = self.sender.appended;
        if !self.is_acknowledged() {
            self.complete_sends(host);
        }
        if self.transport.ring().is_some_and(|ring| ring.broken) && self.phase.is_open() {
            self.refuse(host, &ProtocolError::RdmapCatastrophic.into());
        }
        has_more
    }

    /// Sends what may be sent, up to a bound, and wakes the peer if it sleeps. Returns whether
    /// there may be more, and `None` without a ring.
    pub(crate) fn output_ring(&mut self, host: &H) -> Option<bool> {
        self.transport.ring()?;
        let has_more = self.fill_ring(host);
        self.settle_ring(false);
        Some(has_more)
    }

    /// Leaves acknowledgements to a later pass. Returns whether that needs a timer: with a ring it
    /// does not, because the peer looks for them there.
    pub(crate) fn defer_acks(&mut self) -> bool {
        let is_stream = self.transport.ring().is_none();
        if !is_stream {
            self.settle_ring(true);
        }
        is_stream && self.acks_due() != 0
    }

    /// Ends a pass: publishes what this side waits for, and wakes the peer if it sleeps. If a
    /// thread `polls_soon`, acknowledgements may wait for the next pass.
    fn settle_ring(&mut self, polls_soon: bool) {
        // A message that waits for a receive is processed again once there is one.
        let takes_slots = self.takes_slots() && !self.service.is_starved();
        let is_awaiting = self.sender.messages != self.sender.peer_placed;
        let owes = polls_soon && self.acks_due() != 0;
        let Some(ring) = self.transport.ring_mut() else { return };
        let awaits = is_awaiting || ring.full;
        ring.port.settle(takes_slots, awaits.then_some(ring.seen), owes);
        if std::mem::take(&mut ring.wakeup_due)
            && let Some(view) = &ring.view
            && view.peer.is_asleep()
        {
            ring.session.wake_peer();
        }
    }

    /// Sends the next segment of the current message.
    pub(super) fn next_ring_segment(&mut self, header: MessageHeader, host: &H) -> bool {
        let context = host.context();
        let (offset, length) = (self.sender.outgoing.offset, self.sender.outgoing.length);
        let rest = length - offset;
        let placed = self.receiver.placed;
        // Without acknowledgements the program may change its buffer as soon as the message has
        // been sent.
        let reliable = self.is_acknowledged();
        let Some(ring) = self.transport.ring_mut() else { return false };
        let (sges, inline) = (&self.sender.outgoing.sges, &self.sender.outgoing.inline);
        let keys = &mut self.sender.keys;
        let may_pull = offset == 0
            && reliable
            && rest >= PULL_MIN
            && inline.is_empty()
            && ring.rings.peer_pulls();
        let list = if may_pull { pull_list(keys, context, sges) } else { None };
        let count = if list.is_some() { rest } else { rest.min(RING_CHUNK_MAX) };
        let segment = header.segment(offset, count == rest);
        let gathered = if let Some(list) = list {
            ring.push_slot(PULL, &segment, &list, placed);
            Ok(())
        } else if !inline.is_empty() && count as usize <= SLOT_ROOM {
            ring.push(&segment, &inline[offset as usize..(offset + count) as usize], placed);
            Ok(())
        } else if count as usize <= SLOT_ROOM {
            let mut scratch = std::mem::take(&mut ring.scratch);
            scratch.clear();
            let (offset, count) = (offset.into(), count.into());
            let gathered = place::gather(keys, context, sges, offset, count, &mut scratch);
            if gathered.is_ok() {
                ring.push(&segment, &scratch, placed);
            }
            ring.scratch = scratch;
            gathered
        } else {
            ring.push_chunk(&segment, count as usize, placed, |memory, mut at| {
                if !inline.is_empty() {
                    let (from, to) = (offset as usize, (offset + count) as usize);
                    memory.copy_in(at, &inline[from..to]);
                    return Ok(());
                }
                place::pieces(sges, offset.into(), count.into()).try_for_each(|(key, addr, len)| {
                    let pin = keys.access(context, key, addr, len, Access::empty())?;
                    at += copy_to_chunk(memory, at, &pin);
                    Ok(())
                })
            })
        };
        if gathered.is_err() {
            // Earlier requests complete first, if there are any.
            return !host.sends().is_awaiting() && self.break_off(host);
        }
        self.receiver.placed_reported = placed;
        self.sender.appended += u64::from(count);
        self.sender.outgoing.offset += count;
        if count == rest {
            let is_write = matches!(header, MessageHeader::Tagged { .. });
            self.finish_message(host);
            if is_write && let Some(ring) = self.transport.ring_mut() {
                ring.last_write = self.sender.messages;
            }
        }
        true
    }

    /// Sends a segment of an RDMA Read response: `len` bytes at `addr` of the region `key`.
    pub(super) fn share_read_response(
        &mut self,
        header: &Header,
        (key, addr, len): (u32, u64, u64),
        host: &H,
    ) -> bool {
        let context = host.context();
        let placed = self.receiver.placed;
        let Some(ring) = self.transport.ring_mut() else { return false };
        let keys = &mut self.sender.keys;
        let size = usize::try_from(len).unwrap_or(0);
        let copied = if size == 0 {
            ring.push(header, &[], placed);
            Ok(())
        } else {
            ring.push_chunk(header, size, placed, |memory, at| {
                let pin = keys.access(context, key, addr, len, Access::REMOTE_READ)?;
                copy_to_chunk(memory, at, &pin);
                Ok(())
            })
        };
        if let Err(error) = copied {
            return self.break_off_response(fault::requested(error, key), host);
        }
        self.receiver.placed_reported = placed;
        self.sender.appended += len;
        if header.is_last() {
            self.responder.queue.pop_front();
        }
        true
    }

    /// Carries out an operation directly on the peer's memory, if that can be reached.
    pub(super) fn direct(
        &mut self,
        operation: &Operation,
        length: u32,
        flags: SendFlags,
        srqn: u32,
        host: &H,
    ) -> Direct {
        let (key, at, needs) = match *operation {
            Operation::Write { remote_addr, rkey, .. } => (rkey, remote_addr, Access::REMOTE_WRITE),
            Operation::Read { remote_addr, rkey } => (rkey, remote_addr, Access::REMOTE_READ),
            Operation::FetchAdd { remote_addr, rkey, .. }
            | Operation::CompareSwap { remote_addr, rkey, .. } => {
                (rkey, remote_addr, Access::REMOTE_ATOMIC)
            }
            _ => return Direct::Ring,
        };
        let context = host.context();
        let Some(ring) = self.transport.ring_mut() else { return Direct::Ring };
        let Some(view) = &ring.view else { return Direct::Ring };
        if length != 0 {
            let Found::Direct(mut targets, _in_use) =
                ring.keys.find(&*ring.session, key, at, length.into(), needs)
            else {
                let waits = length >= WORTH_WAITING && ring.keys.is_awaited(key);
                return if waits { Direct::Wait } else { Direct::Ring };
            };
            // The kernel can copy to the peer's memory, but not do atomics on it.
            let is_atomic = needs == Access::REMOTE_ATOMIC;
            if !targets.are_mapped() && (is_atomic || !view.peer.is_reachable()) {
                return Direct::Ring;
            }
            if ring.last_write > self.sender.peer_placed || self.sender.awaits_atomic() {
                return Direct::Wait;
            }
            let (sges, inline) = (&self.sender.outgoing.sges, &self.sender.outgoing.inline);
            let keys = &mut self.sender.keys;
            let is_read = needs == Access::REMOTE_READ;
            let local = if is_read { Access::LOCAL_WRITE } else { Access::empty() };
            let mut copy = |(key, addr, len)| {
                let pin = keys.access(context, key, addr, len, local).ok()?;
                pin.extents()
                    .try_for_each(|place| copy_direct(&view.peer, &mut targets, &place, is_read))
            };
            let done = if is_atomic {
                let mapped = targets.single().and_then(|target| target.mapped);
                let old = mapped.and_then(|at| atomic(operation, at.memory, at.offset));
                old.map(|old| {
                    let old = old.to_ne_bytes();
                    // The list has been checked. If the program deregisters the memory meanwhile,
                    // it gets no old value.
                    let _ = place::scatter(keys, context, sges, 0, Payload::Bytes(&old));
                })
            } else if inline.is_empty() {
                place::pieces(sges, 0, length.into()).try_for_each(&mut copy)
            } else {
                write_inline(&view.peer, &mut targets, inline)
            };
            if done.is_none() {
                // Leave the request to the target, which finds the error and reports it.
                return Direct::Ring;
            }
        }
        self.finish_direct(operation, length, flags, srqn, host);
        Direct::Done
    }

    fn finish_direct(
        &mut self,
        operation: &Operation,
        length: u32,
        flags: SendFlags,
        srqn: u32,
        host: &H,
    ) {
        self.sender.appended += u64::from(length);
        let Operation::Write { imm: Some(imm), .. } = *operation else {
            host.sends().advance(send::Progress::Done);
            return self.complete_sends(host);
        };
        if let Some(stag) = self.peer_ack_stag() {
            let to = Control::Written { length }.to_offset();
            self.whole(MessageHeader::Tagged { opcode: Opcode::Write, stag, to }, &[]);
        }
        let solicited = flags.contains(SendFlags::SOLICITED);
        let opcode = if solicited { Opcode::ImmediateSe } else { Opcode::Immediate };
        self.immediate_message(opcode, srqn, imm, [0; 4]);
        self.sender.messages += 1;
        host.sends().advance(send::Progress::Sent(self.sender.messages));
    }
}

/// Encodes the addresses of a message that the receiver copies from our memory. `None` if they do
/// not fit a slot, or the list is invalid.
fn pull_list<K: Keys>(
    keys: &mut K,
    context: K::Context<'_>,
    sges: &[Sge],
) -> Option<SmallVec<[u8; SLOT_PIECES * PIECE_LEN]>> {
    let mut list = SmallVec::new();
    for (key, addr, len) in place::pieces(sges, 0, place::total(sges)) {
        let pin = keys.access(context, key, addr, len, Access::empty()).ok()?;
        for place in pin.extents() {
            list.extend_from_slice(&(place.addr() as u64).to_ne_bytes());
            list.extend_from_slice(&low(place.len() as u64).to_ne_bytes());
        }
    }
    (list.len() <= SLOT_PIECES * PIECE_LEN).then_some(list)
}

/// Copies registered memory to the bulk area at `at`. Returns the number of bytes.
fn copy_to_chunk(memory: &SharedMemory, at: usize, pin: &impl Pinned) -> usize {
    let mut done = 0;
    for place in pin.extents() {
        memory.copy_from(at + done, &place);
        done += place.len();
    }
    done
}

/// Copies between a range of our memory and the next bytes of the peer's. `None` if the kernel
/// refuses.
fn copy_direct(
    peer: &ShmPeer,
    targets: &mut Targets<'_>,
    place: &Region,
    is_read: bool,
) -> Option<()> {
    let mut done = 0;
    while done < place.len() {
        let target = targets.take((place.len() - done) as u64)?;
        let part = place.part(done, usize::try_from(target.len).ok()?)?;
        match target.mapped {
            Some(at) if is_read => at.memory.copy_to(at.offset, &part),
            Some(at) => at.memory.place(at.offset, &part),
            None if is_read => peer.read(&[(target.address, part.len())], &part).ok()?,
            None => peer.write(target.address, &part).ok()?,
        }
        done += part.len();
    }
    Some(())
}

/// Writes local bytes to the peer's memory. `None` if the kernel refuses.
fn write_inline(peer: &ShmPeer, targets: &mut Targets<'_>, mut bytes: &[u8]) -> Option<()> {
    while !bytes.is_empty() {
        let target = targets.take(bytes.len() as u64)?;
        let (part, rest) = bytes.split_at_checked(usize::try_from(target.len).ok()?)?;
        match target.mapped {
            Some(at) => at.memory.place_bytes(at.offset, part),
            None => peer.write_bytes(target.address, part).ok()?,
        }
        bytes = rest;
    }
    Some(())
}

/// Performs an atomic and returns the old value.
fn atomic(operation: &Operation, memory: &SharedMemory, offset: usize) -> Option<u64> {
    memory.update_u64(offset, |old| match *operation {
        Operation::FetchAdd { add, .. } => old.wrapping_add(add),
        Operation::CompareSwap { compare, swap, .. } if old == compare => swap,
        _ => old,
    })
}

/// The low 32 bits of a count.
fn low(count: u64) -> u32 {
    let [a, b, c, d, ..] = count.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// Whether a segment is a whole message: a message that the receiver copies is never split.
fn is_whole(header: &Header) -> bool {
    match *header {
        Header::Tagged { last, .. } => last,
        Header::Untagged { last, mo, .. } => last && mo == 0,
    }
}

/// Decodes a reference to the bulk area: offset and length; `None` if they are outside it.
fn bulk_place(rest: &[u8]) -> Option<(usize, usize)> {
    let (at, rest) = rest.split_first_chunk()?;
    let (len, _) = rest.split_first_chunk()?;
    let (at, len) = (u32::from_ne_bytes(*at) as usize, u32::from_ne_bytes(*len) as usize);
    (at.checked_add(len)? <= BULK_CAPACITY).then_some((at, len))
}

/// Decodes the word of a slot: the length and the type of its contents.
pub(super) fn len_and_kind(info: u32) -> (usize, u32) {
    let [len, kind, ..] = info.to_le_bytes();
    (len.into(), kind.into())
}

fn pull_pieces(rest: &[u8]) -> SmallVec<[Piece; SLOT_PIECES]> {
    let pieces = rest.chunks_exact(PIECE_LEN).filter_map(|piece| {
        let (addr, len) = piece.split_first_chunk()?;
        let len = len.first_chunk()?;
        Some((u64::from_ne_bytes(*addr), u32::from_ne_bytes(*len) as usize))
    });
    pieces.collect()
}
