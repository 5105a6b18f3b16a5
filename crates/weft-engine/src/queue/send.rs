//! Send queues: posted send requests, in order, until they complete.

use std::collections::VecDeque;

use crate::wc::{Completion, Opcode, Status};
use crate::wr::{Data, Operation, SendFlags, SendRequest, Sge};
use crate::{Errno, Result};

/// The progress of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Not yet handed to the connection.
    Queued,
    /// Handed over completely; complete when the connection's count reaches this value.
    Sent(u64),
    /// A read or atomic; complete when its response has arrived.
    Awaiting,
    /// Complete, but earlier requests may not be.
    Done,
}

/// A posted send work request.
#[derive(Debug)]
pub(crate) struct SendWork {
    pub(crate) wr_id: u64,
    pub(crate) operation: Operation,
    pub(crate) flags: SendFlags,
    pub(crate) length: u32,
    pub(crate) progress: Progress,
    /// The peer's shared receive queue, on an extended connection; otherwise 0.
    pub(crate) srqn: u32,
    sge_count: u32,
    inline_len: u32,
}

impl SendWork {
    fn opcode(&self) -> Opcode {
        match self.operation {
            Operation::Send { .. } | Operation::Datagram { .. } => Opcode::Send,
            Operation::Write { .. } => Opcode::RdmaWrite,
            Operation::Read { .. } => Opcode::RdmaRead,
            Operation::FetchAdd { .. } => Opcode::FetchAdd,
            Operation::CompareSwap { .. } => Opcode::CompSwap,
            Operation::LocalInvalidate { .. } => Opcode::LocalInv,
            Operation::BindWindow { .. } => Opcode::BindMw,
        }
    }

    /// The completion of this request.
    pub(crate) fn completion(&self, status: Status, qp_num: u32) -> Completion {
        let byte_len = if status == Status::Success { self.length } else { 0 };
        Completion { byte_len, ..Completion::new(self.wr_id, status, self.opcode(), qp_num) }
    }
}

/// The bytes of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Source<'a> {
    Piece(Sge),
    Inline(&'a [u8]),
}

/// The limits with which a queue pair was created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLimits {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    /// Bytes of one message.
    pub(crate) max_message: u32,
    pub(crate) sq_sig_all: bool,
}

/// Posted send requests, oldest first. Their gather lists and inline bytes are in two further
/// queues in the same order, so that a request needs no allocation of its own.
#[derive(Debug)]
pub(crate) struct SendQueue {
    limits: SendLimits,
    work: VecDeque<SendWork>,
    sges: VecDeque<Sge>,
    inline: VecDeque<u8>,
    /// Number of the oldest request. Requests are numbered from 0 in the order of posting.
    base: u64,
    /// Number of the next request to hand to the connection.
    next: u64,
    /// Index of the gather list of request `next`, and of its inline bytes.
    next_sge: usize,
    next_inline: usize,
    /// Bytes not yet handed to the connection.
    unsent_bytes: u64,
}

impl SendQueue {
    pub(crate) fn new(limits: SendLimits) -> Self {
        Self {
            limits,
            work: VecDeque::new(),
            sges: VecDeque::new(),
            inline: VecDeque::new(),
            base: 0,
            next: 0,
            next_sge: 0,
            next_inline: 0,
            unsent_bytes: 0,
        }
    }

    /// Adds a request; `srqn` is the peer's shared receive queue, or 0.
    pub(crate) fn push(&mut self, request: &SendRequest<'_>, srqn: u32) -> Result<()> {
        if self.work.len() >= self.limits.max_wr as usize {
            return Err(Errno::NOMEM);
        }
        let (length, sge_count, inline_len) = self.measure(request)?;
        let takes_answer = matches!(
            request.operation,
            Operation::Read { .. } | Operation::FetchAdd { .. } | Operation::CompareSwap { .. }
        );
        if takes_answer && matches!(request.data, Data::Inline(_)) {
            return Err(Errno::INVAL);
        }
        match request.data {
            Data::Gather(sges) => self.sges.extend(sges),
            Data::Inline(pieces) => pieces.iter().for_each(|piece| self.inline.extend(*piece)),
        }
        let mut flags = request.flags;
        flags.set(
            SendFlags::SIGNALED,
            self.limits.sq_sig_all || flags.contains(SendFlags::SIGNALED),
        );
        self.unsent_bytes += u64::from(length);
        self.work.push_back(SendWork {
            wr_id: request.wr_id,
            operation: request.operation.clone(),
            flags,
            length,
            progress: Progress::Queued,
            srqn,
            sge_count,
            inline_len,
        });
        Ok(())
    }

    /// Returns the length of the message, the number of gather entries, and the number of inline
    /// bytes.
    fn measure(&self, request: &SendRequest<'_>) -> Result<(u32, u32, u32)> {
        let (length, sge_count, inline_len) = match request.data {
            Data::Gather(sges) => {
                let total: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
                (total, u32::try_from(sges.len()).map_err(|_| Errno::INVAL)?, 0)
            }
            Data::Inline(pieces) => {
                let total: usize = pieces.iter().map(|piece| piece.len()).sum();
                let inline_len = u32::try_from(total).map_err(|_| Errno::INVAL)?;
                (u64::from(inline_len), 0, inline_len)
            }
        };
        if length > u64::from(self.limits.max_message)
            || sge_count > self.limits.max_sge
            || inline_len > self.limits.max_inline
        {
            return Err(Errno::INVAL);
        }
        Ok((u32::try_from(length).map_err(|_| Errno::INVAL)?, sge_count, inline_len))
    }

    /// The next request to hand to the connection, with its number.
    pub(crate) fn peek_next(&self) -> Option<(u64, &SendWork)> {
        Some((self.next, self.work.get(self.index(self.next)?)?))
    }

    /// The bytes of the next request, if they are contiguous.
    pub(crate) fn next_source(&self) -> Option<Source<'_>> {
        let (_, work) = self.peek_next()?;
        match (work.sge_count, work.inline_len as usize) {
            (1, 0) => self.sges.get(self.next_sge).map(|&sge| Source::Piece(sge)),
            (0, len) => {
                let (front, back) = self.inline.as_slices();
                let bytes = match self.next_inline.checked_sub(front.len()) {
                    Some(at) => back.get(at..at + len),
                    None => front.get(self.next_inline..self.next_inline + len),
                };
                bytes.map(Source::Inline)
            }
            _ => None,
        }
    }

    /// Copies the gather list and inline bytes of the next request.
    pub(crate) fn copy_next(&self, sges: &mut Vec<Sge>, inline: &mut Vec<u8>) {
        sges.clear();
        inline.clear();
        let Some((_, work)) = self.peek_next() else { return };
        extend_from(sges, &self.sges, self.next_sge, work.sge_count as usize);
        extend_from(inline, &self.inline, self.next_inline, work.inline_len as usize);
    }

    /// Marks the next request as handed over, with this progress.
    pub(crate) fn advance(&mut self, progress: Progress) {
        let Some(index) = self.index(self.next) else { return };
        if let Some(work) = self.work.get_mut(index) {
            work.progress = progress;
            self.next += 1;
            self.next_sge += work.sge_count as usize;
            self.next_inline += work.inline_len as usize;
            self.unsent_bytes -= u64::from(work.length);
        }
    }

    /// Sets the progress of a request that has been handed over.
    pub(crate) fn set_progress(&mut self, number: u64, progress: Progress) {
        if let Some(work) = self.index(number).and_then(|index| self.work.get_mut(index)) {
            work.progress = progress;
        }
    }

    /// Takes the oldest request if it is complete at the connection's count `count`.
    pub(crate) fn pop_complete(&mut self, count: u64) -> Option<SendWork> {
        let complete = match self.work.front()?.progress {
            Progress::Done => true,
            Progress::Sent(at) => at <= count,
            Progress::Queued | Progress::Awaiting => false,
        };
        complete.then(|| self.pop()).flatten()
    }

    /// Takes the oldest request, complete or not.
    pub(crate) fn pop(&mut self) -> Option<SendWork> {
        let work = self.work.pop_front()?;
        let (sges, inline) = (work.sge_count as usize, work.inline_len as usize);
        for _ in 0..sges {
            self.sges.pop_front();
        }
        if inline != 0 {
            self.inline.drain(..inline);
        }
        if self.next == self.base {
            self.next += 1;
            self.unsent_bytes -= u64::from(work.length);
        } else {
            self.next_sge -= sges;
            self.next_inline -= inline;
        }
        self.base += 1;
        Some(work)
    }

    /// Removes the `count` requests that were posted last. None of them has been handed over.
    pub(crate) fn take_back(&mut self, count: usize) {
        for work in self.work.drain(self.work.len() - count..) {
            self.sges.truncate(self.sges.len() - work.sge_count as usize);
            self.inline.truncate(self.inline.len() - work.inline_len as usize);
            self.unsent_bytes -= u64::from(work.length);
        }
    }

    /// Removes all requests, for a reset.
    pub(crate) fn clear(&mut self) {
        while self.pop().is_some() {}
    }

    /// Number of requests that are not complete.
    pub(crate) fn len(&self) -> usize {
        self.work.len()
    }

    /// Number of requests that have not been handed over.
    pub(crate) fn unsent(&self) -> u64 {
        self.base + self.work.len() as u64 - self.next
    }

    /// Whether a request has been handed over and is not complete.
    pub(crate) fn is_awaiting(&self) -> bool {
        self.next != self.base
    }

    /// Number of bytes that have not been handed over.
    pub(crate) fn unsent_bytes(&self) -> u64 {
        self.unsent_bytes
    }

    fn index(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.base)?).ok()
    }
}

/// Appends `count` elements of `queue` from index `first` on, slice by slice.
fn extend_from<T: Copy>(out: &mut Vec<T>, queue: &VecDeque<T>, first: usize, count: usize) {
    let (front, back) = queue.as_slices();
    let end = first + count;
    let split = front.len();
    out.extend_from_slice(&front[first.min(split)..end.min(split)]);
    out.extend_from_slice(&back[first.saturating_sub(split)..end.saturating_sub(split)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: SendLimits =
        SendLimits { max_wr: 4, max_sge: 2, max_inline: 16, max_message: 64, sq_sig_all: false };

    fn send(wr_id: u64, data: Data<'_>) -> SendRequest<'_> {
        let operation = Operation::Send { imm: None, invalidate: None };
        SendRequest { wr_id, operation, flags: SendFlags::empty(), data }
    }

    #[test]
    fn each_request_keeps_its_gather_list_and_inline_bytes() {
        let mut queue = SendQueue::new(LIMITS);
        let sge = |addr| Sge { addr, length: 8, lkey: 1 };
        queue.push(&send(1, Data::Gather(&[sge(10), sge(20)])), 0).expect("room");
        queue.push(&send(2, Data::Inline(&[b"ab", b"c"])), 0).expect("room");
        queue.push(&send(3, Data::Gather(&[sge(30)])), 0).expect("room");
        let (mut sges, mut inline) = (Vec::new(), Vec::new());
        for (wr_id, addrs, bytes) in [(1, vec![10, 20], ""), (2, vec![], "abc"), (3, vec![30], "")]
        {
            assert_eq!(queue.peek_next().expect("one more").1.wr_id, wr_id);
            queue.copy_next(&mut sges, &mut inline);
            let source = match wr_id {
                1 => None,
                2 => Some(Source::Inline(b"abc")),
                _ => Some(Source::Piece(sge(30))),
            };
            assert_eq!(queue.next_source(), source);
            assert_eq!(sges.iter().map(|sge| sge.addr).collect::<Vec<_>>(), addrs);
            assert_eq!(inline, bytes.as_bytes());
            queue.advance(Progress::Sent(wr_id));
            if wr_id == 2 {
                assert_eq!(queue.pop_complete(1).expect("the first").wr_id, 1);
                assert!(queue.pop_complete(1).is_none());
            }
        }
        assert_eq!(queue.unsent_bytes(), 0);
        queue.set_progress(2, Progress::Done);
        assert!(queue.pop_complete(1).is_none(), "completions stay in order");
        assert_eq!(queue.pop_complete(2).expect("the second").wr_id, 2);
        assert_eq!(queue.pop_complete(2).expect("the third").wr_id, 3);
    }

    #[test]
    fn requests_posted_last_can_be_taken_back() {
        let mut queue = SendQueue::new(LIMITS);
        let sge = |addr| Sge { addr, length: 8, lkey: 1 };
        queue.push(&send(1, Data::Gather(&[sge(10)])), 0).expect("room");
        queue.advance(Progress::Awaiting);
        queue.push(&send(2, Data::Inline(&[b"stays"])), 0).expect("room");
        queue.push(&send(3, Data::Gather(&[sge(20), sge(30)])), 0).expect("room");
        queue.push(&send(4, Data::Inline(&[b"goes"])), 0).expect("room");
        queue.take_back(2);
        assert_eq!((queue.len(), queue.unsent(), queue.unsent_bytes()), (2, 1, 5));
        queue.push(&send(5, Data::Gather(&[sge(40)])), 0).expect("room again");
        let (mut sges, mut inline) = (Vec::new(), Vec::new());
        queue.copy_next(&mut sges, &mut inline);
        assert_eq!((sges.len(), inline.as_slice()), (0, b"stays".as_slice()));
        queue.advance(Progress::Awaiting);
        queue.copy_next(&mut sges, &mut inline);
        assert_eq!((sges[0].addr, inline.len()), (40, 0));
    }

    #[test]
    fn requests_beyond_the_limits_are_refused() {
        let mut queue = SendQueue::new(LIMITS);
        let sge = Sge::default();
        assert_eq!(queue.push(&send(1, Data::Gather(&[sge; 3])), 0), Err(Errno::INVAL));
        assert_eq!(queue.push(&send(1, Data::Inline(&[&[0; 17]])), 0), Err(Errno::INVAL));
        let long = Sge { length: 65, ..sge };
        assert_eq!(queue.push(&send(1, Data::Gather(&[long])), 0), Err(Errno::INVAL));
        for wr_id in 0..4 {
            queue.push(&send(wr_id, Data::Gather(&[])), 0).expect("room");
        }
        assert_eq!(queue.push(&send(5, Data::Gather(&[])), 0), Err(Errno::NOMEM));
        queue.pop().expect("unsent work");
        assert_eq!(queue.unsent(), 3);
    }
}
