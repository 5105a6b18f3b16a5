//! The state of an endpoint: what waits, what is under way, what has arrived.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use smallvec::SmallVec;
use weft_engine::Errno;
use weft_engine::wc::{Completion, Opcode, Status};
use weft_engine::wr::{Data, Operation as Verb, RecvRequest, SendFlags, SendRequest, Sge};

use crate::carrier::{EndpointLink, Poster};
use crate::credits::{Credits, Violation};
use crate::error::Error;
use crate::header::{Header, Kind};
use crate::limits::{BATCH, CREDIT_RECEIVES_MAX, HEADER_LEN, WAITING_MAX};
use crate::memory::{Buffer, Lent, Place, Places};
use crate::table::{Key, Table, receive_id, receive_number};
use crate::wakers::Wakers;
use crate::work::{InUse, Needs, Operation, OperationPhase, Work};

/// Bytes of a place for a header or for the result of an atomic.
pub(crate) const SMALL_PLACE: usize = 8;

/// Wakers to call, and buffers to drop, when no lock is held.
#[derive(Debug, Default)]
pub(crate) struct Later {
    wakers: SmallVec<[Waker; 4]>,
    buffers: SmallVec<[Buffer; 1]>,
}

impl Later {
    /// Does it.
    pub(crate) fn run(self) {
        // Hardly ever is there anything.
        if !self.wakers.is_empty() {
            self.wakers.into_iter().for_each(Waker::wake);
        }
        drop(self.buffers);
    }
}

/// A message that the program has not taken.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) place: Place,
    /// The bytes after the header.
    pub(crate) len: usize,
    pub(crate) immediate: Option<u32>,
}

/// The parts of an endpoint that never change.
#[derive(Debug)]
pub(crate) struct Parts {
    // The queues end before the memory does: `Core` destroys them when it is dropped.
    pub(crate) link: Arc<EndpointLink>,
    pub(crate) receives: Places,
    pub(crate) smalls: Places,
    /// Bytes of the longest message, without its header, that this end receives.
    pub(crate) message_max: usize,
    /// Work requests that may be under way, those of credits besides.
    pub(crate) depth: usize,
}

/// The state that a lock protects.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) operations: Table<Operation>,
    /// Operations that wait for their turn, in order.
    waiting: VecDeque<Key>,
    /// Work requests under way that are not for credits.
    under_way: usize,
    /// Messages of credits alone under way.
    credits_under_way: usize,
    credits: Credits,
    pub(crate) arrivals: VecDeque<Arrived>,
    /// Who waits for a message.
    pub(crate) receivers: Wakers,
    /// Who waits until nothing is under way.
    pub(crate) idlers: Wakers,
    /// The places of posted receives, by their number.
    posted: Vec<Option<Lent<Place>>>,
    /// The numbers of receives that are not posted.
    numbers: Vec<usize>,
    smalls: Vec<Place>,
    /// Why there will be no more completions.
    pub(crate) end: Option<Error>,
    /// Whether the connection is still to be ended at this side, because it has failed.
    pub(crate) must_disconnect: bool,
    /// Batches that are being made; nothing is posted before the last one ends.
    pub(crate) batches: usize,
    /// Operations with a waker.
    pub(crate) awaited: usize,
    /// Room for completions that a look takes.
    space: Vec<Completion>,
}

/// The identifier of work requests that only carry credits. No key has it, because generations are
/// of 31 bits.
const CREDITS_ID: u64 = u64::MAX;

/// A message of the fabric.
const SEND: Verb = Verb::Send { imm: None, invalidate: None };

/// Posts a message by value: a header, and the bytes after it.
fn push_value(
    poster: &mut Poster<'_>,
    wr_id: u64,
    header: Header,
    bytes: &[u8],
) -> Result<(), Errno> {
    let header = header.encode();
    let data = Data::Inline(&[&header, bytes]);
    let flags = SendFlags::SIGNALED | SendFlags::INLINE;
    poster.push(&SendRequest { wr_id, operation: SEND, flags, data })
}

impl State {
    /// The peer's window is 0 until its hello has come.
    pub(crate) fn new(window: u16, peer_window: u16, smalls: Vec<Place>) -> Self {
        let count = usize::from(window) + CREDIT_RECEIVES_MAX;
        Self {
            operations: Table::new(),
            waiting: VecDeque::new(),
            under_way: 0,
            credits_under_way: 0,
            credits: Credits::new(window, peer_window),
            arrivals: VecDeque::with_capacity(window.into()),
            receivers: Wakers::default(),
            idlers: Wakers::default(),
            posted: (0..count).map(|_| None).collect(),
            numbers: (0..count).collect(),
            smalls,
            end: None,
            must_disconnect: false,
            batches: 0,
            awaited: 0,
            space: vec![Completion::new(0, Status::Success, Opcode::Send, 0); BATCH],
        }
    }

    /// Notes the peer's window, when its hello has come.
    pub(crate) fn connected(&mut self, window: u16, peer_window: u16) {
        self.credits = Credits::new(window, peer_window);
    }

    /// Posts a receive into a place.
    pub(crate) fn post_receive(&mut self, parts: &Parts, place: Place) {
        let Some(number) = self.numbers.pop() else { return };
        let (sge, lent) = parts.receives.lend(place, HEADER_LEN + parts.message_max);
        // Before it is posted, because it may complete at once.
        self.posted[number] = Some(lent);
        let request = RecvRequest { wr_id: receive_id(number), sges: &[sge] };
        // It fails only when the queue pair has ended, and then nothing more arrives.
        let _ = parts.link.post_receive(&request);
    }

    /// Whether an operation can be added.
    ///
    /// # Errors
    /// If the connection has ended, or too many wait.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match &self.end {
            Some(end) => Err(end.clone()),
            None if self.waiting.len() >= WAITING_MAX => {
                Err(Error::Busy { count: self.waiting.len() })
            }
            None => Ok(()),
        }
    }

    /// Adds an operation, and posts it if it is its turn.
    pub(crate) fn add(
        &mut self,
        parts: &Parts,
        work: Work,
        buffer: Option<Buffer>,
        later: &mut Later,
    ) -> Key {
        if self.is_next() && self.admit(parts, work.needs()) {
            return self.post_new(parts, work, buffer, later);
        }
        let phase = OperationPhase::Waiting(work, buffer);
        let key = self.operations.insert(Operation::new(phase));
        self.waiting.push_back(key);
        self.post_waiting(parts, later);
        key
    }

    /// Notes that nobody asks for an operation any more.
    pub(crate) fn abandon(&mut self, key: Key, later: &mut Later) {
        let Some(operation) = self.operations.get_mut(key) else { return };
        operation.is_abandoned = true;
        self.awaited -= usize::from(operation.waker.take().is_some());
        if matches!(operation.phase, OperationPhase::Ended(..)) {
            self.ended(key, later);
        }
    }

    /// Whether anybody has to be woken when something happens.
    pub(crate) fn has_sleepers(&self) -> bool {
        self.awaited != 0 || !self.receivers.is_empty() || !self.idlers.is_empty()
    }

    /// Whether no operation waits or is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.under_way == 0
    }

    /// Whether a new operation is the next one to be posted.
    fn is_next(&self) -> bool {
        self.end.is_none() && self.batches == 0 && self.waiting.is_empty()
    }

    /// Whether there is room for an operation, and the credit that it needs, which it then has.
    fn admit(&mut self, parts: &Parts, needs: Needs) -> bool {
        let has_room = self.under_way + needs.requests <= parts.depth.max(needs.requests)
            && (!needs.place || !self.smalls.is_empty());
        has_room && (!needs.credit || self.credits.spend())
    }

    /// Sends a message by value at once, if nothing waits before it and there is room.
    pub(crate) fn send_now(
        &mut self,
        parts: &Parts,
        bytes: &[u8],
        later: &mut Later,
    ) -> Option<Key> {
        if !self.is_next() || self.under_way >= parts.depth || !self.credits.spend() {
            return None;
        }
        let requests = 1;
        let in_use = InUse { buffer: None, place: None, has_result: false, requests };
        let key = self.operations.insert(Operation::new(OperationPhase::Posted(in_use)));
        self.under_way += requests;
        let header = Header { kind: Kind::Message, credits: self.credits.give_back() };
        let posted = push_value(&mut parts.link.start_post(), key.to_id(), header, bytes);
        if let Err(errno) = posted {
            self.refused(key, errno, later);
        }
        Some(key)
    }

    /// Posts the operations whose turn it is: in order, as far as there are credits and room.
    pub(crate) fn post_waiting(&mut self, parts: &Parts, later: &mut Later) {
        if self.waiting.is_empty() || self.batches != 0 || self.end.is_some() {
            return;
        }
        let mut poster = None;
        while let Some(&key) = self.waiting.front() {
            let Some(Operation { phase: OperationPhase::Waiting(work, _), .. }) =
                self.operations.get_mut(key)
            else {
                self.waiting.pop_front();
                continue;
            };
            let needs = work.needs();
            if !self.admit(parts, needs) {
                break;
            }
            self.waiting.pop_front();
            let poster = poster.get_or_insert_with(|| parts.link.start_post());
            self.post(parts, key, poster, later);
        }
    }

    /// Posts an operation that has waited, for which there is room.
    fn post(&mut self, parts: &Parts, key: Key, poster: &mut Poster<'_>, later: &mut Later) {
        let Some(operation) = self.operations.get_mut(key) else { return };
        let empty = OperationPhase::Ended(Ok(0), None);
        let OperationPhase::Waiting(work, buffer) = std::mem::replace(&mut operation.phase, empty)
        else {
            return;
        };
        let (pieces, in_use) = self.lend(parts, &work, buffer);
        if let Some(operation) = self.operations.get_mut(key) {
            operation.phase = OperationPhase::Posted(in_use);
        }
        if let Err(errno) = self.push(poster, key, work, pieces) {
            self.refused(key, errno, later);
        }
    }

    /// Posts a new operation, for which there is room.
    fn post_new(
        &mut self,
        parts: &Parts,
        work: Work,
        buffer: Option<Buffer>,
        later: &mut Later,
    ) -> Key {
        let (pieces, in_use) = self.lend(parts, &work, buffer);
        let key = self.operations.insert(Operation::new(OperationPhase::Posted(in_use)));
        let posted = self.push(&mut parts.link.start_post(), key, work, pieces);
        if let Err(errno) = posted {
            self.refused(key, errno, later);
        }
        key
    }

    /// Lends the engine what an operation needs. Returns its place and the range of its buffer as
    /// pieces.
    fn lend(&mut self, parts: &Parts, work: &Work, buffer: Option<Buffer>) -> ([Sge; 2], InUse) {
        let Needs { requests, place, .. } = work.needs();
        let mut place = if place { self.smalls.pop() } else { None };
        let range = match work {
            Work::Message(range) | Work::Write(range, ..) | Work::Read(range, _) => range.clone(),
            Work::Value(_) | Work::Add(..) | Work::Swap(..) => 0..0,
        };
        if let (Work::Message(_), Some(place)) = (work, &mut place) {
            let header = self.header(Kind::Message).encode();
            parts.smalls.bytes_mut(place)[..HEADER_LEN].copy_from_slice(&header);
        }
        let (small, place) = place.map(|place| parts.smalls.lend(place, SMALL_PLACE)).unzip();
        let (piece, buffer) = buffer.map(|buffer| buffer.lend(&range)).unzip();
        let has_result = matches!(work, Work::Add(..) | Work::Swap(..));
        self.under_way += requests;
        let pieces = [small.unwrap_or_default(), piece.unwrap_or_default()];
        (pieces, InUse { buffer, place, has_result, requests })
    }

    /// A header that returns the credits that are owed.
    fn header(&mut self, kind: Kind) -> Header {
        Header { kind, credits: self.credits.give_back() }
    }

    /// Gives the requests of an operation to the carrier.
    fn push(
        &mut self,
        poster: &mut Poster<'_>,
        key: Key,
        work: Work,
        pieces: [Sge; 2],
    ) -> Result<(), Errno> {
        let (wr_id, signaled) = (key.to_id(), SendFlags::SIGNALED);
        let push = |poster: &mut Poster<'_>, operation, flags, data: &[Sge]| {
            let data = Data::Gather(data);
            poster.push(&SendRequest { wr_id, operation, flags, data })
        };
        let [small, piece] = [&pieces[..1], &pieces[1..]];
        match work {
            Work::Value(bytes) => push_value(poster, wr_id, self.header(Kind::Message), &bytes),
            Work::Message(_) => push(poster, SEND, signaled, &pieces),
            Work::Write(_, target, immediate) => {
                let (remote_addr, rkey) = (target.address, target.key);
                let write = Verb::Write { remote_addr, rkey, imm: None };
                match immediate {
                    None => push(poster, write, signaled, piece),
                    // The message comes after the bytes (RFC 5040 section 5.5), and its
                    // completion stands for both.
                    Some(immediate) => {
                        let header = self.header(Kind::Immediate(immediate));
                        push(poster, write, SendFlags::empty(), piece)
                            .and_then(|()| push_value(poster, wr_id, header, &[]))
                    }
                }
            }
            Work::Read(_, target) => {
                let read = Verb::Read { remote_addr: target.address, rkey: target.key };
                push(poster, read, signaled, piece)
            }
            Work::Add(target, add) => {
                let (remote_addr, rkey) = (target.address, target.key);
                push(poster, Verb::FetchAdd { remote_addr, rkey, add }, signaled, small)
            }
            Work::Swap(target, compare, swap) => {
                let (remote_addr, rkey) = (target.address, target.key);
                let operation = Verb::CompareSwap { remote_addr, rkey, compare, swap };
                push(poster, operation, signaled, small)
            }
        }
    }

    /// Fails an operation that the carrier has refused, and the connection with it. The engine does
    /// so only if this module counts wrongly, a device also when it has failed. A part of the
    /// operation may be under way, so its memory is never used again.
    #[cold]
    fn refused(&mut self, key: Key, errno: Errno, later: &mut Later) {
        let Some(operation) = self.operations.get_mut(key) else { return };
        let error = Error::system("post an operation", errno);
        let failed = OperationPhase::Ended(Err(error.clone()), None);
        std::mem::forget(std::mem::replace(&mut operation.phase, failed));
        self.ended(key, later);
        self.finish(error, later);
    }

    /// Takes what has completed and arrived, and posts what has room now. Returns whether there was
    /// anything.
    pub(crate) fn progress(
        &mut self,
        parts: &Parts,
        lost: &impl Fn(Status) -> Error,
        later: &mut Later,
    ) -> bool {
        let mut space = std::mem::take(&mut self.space);
        let mut any = false;
        loop {
            let count = parts.link.poll(&mut space);
            for completion in &space[..count] {
                self.complete(parts, completion, lost, later);
            }
            any |= count != 0;
            if count < BATCH {
                break;
            }
        }
        self.space = space;
        if any {
            self.return_credits(parts);
            self.post_waiting(parts, later);
        }
        any
    }

    fn complete(
        &mut self,
        parts: &Parts,
        completion: &Completion,
        lost: &impl Fn(Status) -> Error,
        later: &mut Later,
    ) {
        let status = completion.status;
        let key = Key::from_id(completion.wr_id);
        if completion.wr_id == CREDITS_ID {
            self.credits_under_way -= 1;
        } else if let Some(key) = key {
            let result = if status == Status::Success { Ok(()) } else { Err(lost(status)) };
            self.end_operation(parts, key, result, later);
        } else {
            let number = receive_number(completion.wr_id);
            if let Some(place) = self.posted.get_mut(number).and_then(Option::take) {
                self.numbers.push(number);
                let place = place.end();
                // What comes after the end is of a peer that did not keep to the protocol.
                let is_message = status == Status::Success && self.end.is_none();
                let is_sound = !is_message
                    || self.arrive(parts, place, completion.byte_len as usize, later).is_ok();
                if !is_sound {
                    self.finish(lost(Status::BadRespErr), later);
                    return;
                }
            }
        }
        if status != Status::Success {
            self.finish(lost(status), later);
        }
    }

    /// Takes a message from a receive.
    fn arrive(
        &mut self,
        parts: &Parts,
        place: Place,
        len: usize,
        later: &mut Later,
    ) -> Result<(), Violation> {
        let bytes = parts.receives.bytes(&place);
        let header = bytes.get(..len).and_then(Header::decode).ok_or(Violation)?;
        let immediate = match header.kind {
            Kind::Credits => {
                self.post_receive(parts, place);
                return self.credits.got_back(header.credits);
            }
            Kind::Immediate(immediate) => Some(immediate),
            Kind::Message => None,
        };
        self.credits.got_back(header.credits)?;
        self.credits.arrived()?;
        self.arrivals.push_back(Arrived { place, len: len - HEADER_LEN, immediate });
        self.wake_receivers(later);
        Ok(())
    }

    /// Wakes all who sleep, so that they look for themselves.
    pub(crate) fn wake_all(&mut self, later: &mut Later) {
        self.wake_receivers(later);
        self.wake_idlers(later);
        for key in self.operations.keys() {
            if let Some(operation) = self.operations.get_mut(key)
                && let Some(waker) = operation.waker.take()
            {
                self.awaited -= 1;
                later.wakers.push(waker);
            }
        }
    }

    fn wake_receivers(&mut self, later: &mut Later) {
        if !self.receivers.is_empty() {
            later.wakers.extend(self.receivers.drain());
        }
    }

    fn wake_idlers(&mut self, later: &mut Later) {
        if !self.idlers.is_empty() {
            later.wakers.extend(self.idlers.drain());
        }
    }

    /// Ends an operation that the engine has completed.
    fn end_operation(
        &mut self,
        parts: &Parts,
        key: Key,
        result: Result<(), Error>,
        later: &mut Later,
    ) {
        let Some(operation) = self.operations.get_mut(key) else { return };
        let empty = OperationPhase::Ended(Ok(0), None);
        let in_use = match std::mem::replace(&mut operation.phase, empty) {
            OperationPhase::Posted(in_use) => in_use,
            other => {
                operation.phase = other;
                return;
            }
        };
        self.under_way -= in_use.requests;
        let mut value = 0;
        if let Some(place) = in_use.place {
            let place = place.end();
            if in_use.has_result
                && let Some(bytes) = parts.smalls.bytes(&place).first_chunk()
            {
                value = u64::from_ne_bytes(*bytes);
            }
            self.smalls.push(place);
        }
        let buffer = in_use.buffer.and_then(Lent::<Buffer>::end);
        operation.phase = OperationPhase::Ended(result.map(|()| value), buffer);
        self.ended(key, later);
        if self.is_idle() {
            self.wake_idlers(later);
        }
    }

    /// Wakes who waits for an operation that has ended, or removes it if nobody does.
    fn ended(&mut self, key: Key, later: &mut Later) {
        let Some(operation) = self.operations.get_mut(key) else { return };
        if let Some(waker) = operation.waker.take() {
            self.awaited -= 1;
            later.wakers.push(waker);
        }
        if operation.is_abandoned
            && let Some(Operation { phase: OperationPhase::Ended(_, Some(buffer)), .. }) =
                self.operations.remove(key)
        {
            later.buffers.push(buffer);
        }
    }

    /// Ends the connection for the program: what waits fails now, and what is under way when the
    /// engine completes it, or when the queue pair is destroyed.
    pub(crate) fn finish(&mut self, why: Error, later: &mut Later) {
        if self.end.is_some() {
            return;
        }
        self.end = Some(why.clone());
        self.must_disconnect = true;
        for key in std::mem::take(&mut self.waiting) {
            let Some(operation) = self.operations.get_mut(key) else { continue };
            let empty = OperationPhase::Ended(Ok(0), None);
            if let OperationPhase::Waiting(_, buffer) =
                std::mem::replace(&mut operation.phase, empty)
            {
                operation.phase = OperationPhase::Ended(Err(why.clone()), buffer);
            }
            self.ended(key, later);
        }
        self.wake_receivers(later);
        self.wake_idlers(later);
    }

    /// Ends what the engine will not complete any more, because the queue pair is destroyed.
    pub(crate) fn flush(&mut self, parts: &Parts, later: &mut Later) {
        let why = self.end.clone();
        for key in self.operations.keys() {
            if let Some(why) = &why {
                self.end_operation(parts, key, Err(why.clone()), later);
            }
        }
    }

    /// Frees the place of a message that the program has dropped.
    pub(crate) fn free(&mut self, parts: &Parts, place: Place) {
        self.post_receive(parts, place);
        self.credits.freed();
        self.return_credits(parts);
    }

    /// Returns credits by a message of their own if no other has returned them in time.
    fn return_credits(&mut self, parts: &Parts) {
        // The peer has read all but one of them when it can use the credits of the next.
        if !self.credits.is_overdue()
            || self.credits_under_way >= CREDIT_RECEIVES_MAX
            || self.end.is_some()
        {
            return;
        }
        let header = Header { kind: Kind::Credits, credits: self.credits.give_back() };
        if push_value(&mut parts.link.start_post(), CREDITS_ID, header, &[]).is_ok() {
            self.credits_under_way += 1;
        }
    }
}
