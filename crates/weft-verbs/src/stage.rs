//! Work requests that the builders of `ibv_qp_ex` collect.

use std::ops::Range;

use weft_engine::qp::Qp;
use weft_engine::wr::{Data, Destination, Operation, SendFlags, SendRequest, Sge};
use weft_engine::{Errno, Result};

/// Work requests that are collected, and not posted yet.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    work: Vec<Work>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    /// Where the inline data of the last request begins.
    inline_start: usize,
    /// The first mistake. It spoils the whole batch.
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

/// Where a request's data stands in its stage.
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
                let flags = flags - SendFlags::INLINE; // The setter says that, not the flag.
                let data = Collected::Gather(0..0);
                self.work.push(Work { wr_id, flags, operation, data, srqn: 0 });
            }
            Err(error) => self.fail(error),
        }
    }

    /// Makes the last request a datagram.
    pub(crate) fn address(&mut self, to: Result<Destination>) {
        match (to, self.work.last_mut().map(|work| &mut work.operation)) {
            (Ok(to), Some(operation)) => {
                // What is no Send stays as it is, and the queue pair refuses it.
                if let Operation::Send { imm, invalidate: None } = *operation {
                    *operation = Operation::Datagram { to, imm };
                }
            }
            (to, _) => self.fail(to.err().unwrap_or(Errno::INVAL)),
        }
    }

    /// Gives the last request its data; it gets one setter (ibv_wr_post(3)).
    fn set(&mut self, data: Collected) {
        match self.work.last_mut() {
            Some(work) => work.data = data,
            None => self.fail(Errno::INVAL),
        }
    }

    /// Says which shared receive queue the last request is for.
    pub(crate) fn aim(&mut self, srqn: u32) {
        match self.work.last_mut() {
            Some(work) => work.srqn = srqn,
            None => self.fail(Errno::INVAL),
        }
    }

    /// One more piece of the last request's inline data, which is copied.
    pub(crate) fn push_inline(&mut self, piece: &[u8]) {
        self.inline.extend_from_slice(piece);
    }

    /// The pieces since the last request's are all of this one's inline data.
    pub(crate) fn end_inline(&mut self) {
        self.set(Collected::Inline(self.inline_start..self.inline.len()));
        self.inline_start = self.inline.len();
    }

    pub(crate) fn gather(&mut self, sges: &[Sge]) {
        let start = self.sges.len();
        self.sges.extend_from_slice(sges);
        self.set(Collected::Gather(start..self.sges.len()));
    }

    /// Posts all of the batch, or, after a mistake or without room, none of it.
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
