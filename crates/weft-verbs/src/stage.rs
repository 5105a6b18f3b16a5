//! The batch of work requests that the builders of `ibv_qp_ex` collect.

use std::ops::Range;

use weft_engine::qp::Qp;
use weft_engine::wr::{Data, Destination, Operation, SendFlags, SendRequest, Sge};
use weft_engine::{Errno, Result};

/// A batch of work requests that are collected and not posted yet.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    work: Vec<Work>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    /// The offset at which the inline data of the last request begins.
    inline_start: usize,
    /// The first error, which fails the whole batch.
    error: Option<Errno>,
}

#[derive(Debug)]
struct Work {
    wr_id: u64,
    flags: SendFlags,
    operation: Operation,
    data: Collected,
    /// The peer's shared receive queue, on an extended connection.
    srqn: u32,
}

/// The position of a request's data in its stage.
#[derive(Debug)]
enum Collected {
    Gather(Range<usize>),
    Inline(Range<usize>),
}

impl Stage {
    pub(crate) fn clear(&mut self) {
        self.work.clear();
        self.sges.clear();
        self.inline.clear();
        self.inline_start = 0;
        self.error = None;
    }

    pub(crate) fn fail(&mut self, error: Errno) {
        self.error.get_or_insert(error);
    }

    pub(crate) fn begin(&mut self, wr_id: u64, flags: u32, operation: Result<Operation>) {
        let flags = SendFlags::from_bits(flags).ok_or(Errno::INVAL);
        match flags.and_then(|flags| operation.map(|operation| (flags, operation))) {
            Ok((flags, operation)) => {
                let flags = flags - SendFlags::INLINE; // Set by the data setter instead.
                let data = Collected::Gather(0..0);
                self.work.push(Work { wr_id, flags, operation, data, srqn: 0 });
            }
            Err(error) => self.fail(error),
        }
    }

    /// Makes the last request a datagram.
    pub(crate) fn set_destination(&mut self, to: Result<Destination>) {
        match (to, self.work.last_mut().map(|work| &mut work.operation)) {
            (Ok(to), Some(operation)) => {
                // Other operations stay unchanged, and the queue pair refuses them.
                if let Operation::Send { imm, invalidate: None } = *operation {
                    *operation = Operation::Datagram { to, imm };
                }
            }
            (to, _) => self.fail(to.err().unwrap_or(Errno::INVAL)),
        }
    }

    /// Sets the data of the last request; programs call one setter per request (ibv_wr_post(3)).
    fn set(&mut self, data: Collected) {
        match self.work.last_mut() {
            Some(work) => work.data = data,
            None => self.fail(Errno::INVAL),
        }
    }

    /// Sets the shared receive queue of the last request.
    pub(crate) fn set_srqn(&mut self, srqn: u32) {
        match self.work.last_mut() {
            Some(work) => work.srqn = srqn,
            None => self.fail(Errno::INVAL),
        }
    }

    /// Copies another piece of the last request's inline data.
    pub(crate) fn push_inline(&mut self, piece: &[u8]) {
        self.inline.extend_from_slice(piece);
    }

    /// Makes the pieces since the previous request the inline data of the last one.
    pub(crate) fn end_inline(&mut self) {
        self.set(Collected::Inline(self.inline_start..self.inline.len()));
        self.inline_start = self.inline.len();
    }

    pub(crate) fn gather(&mut self, sges: &[Sge]) {
        let start = self.sges.len();
        self.sges.extend_from_slice(sges);
        self.set(Collected::Gather(start..self.sges.len()));
    }

    /// Posts the whole batch, or none of it after an error or without room in the queue.
    pub(crate) fn post(&self, qp: &Qp) -> Result<()> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let mut poster = qp.start_post();
        let posted = self.work.iter().try_for_each(|work| {
            let piece;
            let data = match &work.data {
                Collected::Gather(range) => Data::Gather(&self.sges[range.clone()]),
                Collected::Inline(range) => {
                    piece = [&self.inline[range.clone()]];
                    Data::Inline(&piece)
                }
            };
            let (wr_id, flags) = (work.wr_id, work.flags);
            let operation = work.operation.clone();
            poster.push_to(&SendRequest { wr_id, operation, flags, data }, work.srqn)
        });
        if posted.is_err() {
            poster.cancel();
        }
        posted
    }
}
