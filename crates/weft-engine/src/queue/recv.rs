//! Receive queues, shared or a queue pair's own.

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::wr::{RecvRequest, Sge};
use crate::{Errno, Result};

/// A posted receive that was taken out of its queue.
#[derive(Debug, Default)]
pub(crate) struct RecvWork {
    pub(crate) wr_id: u64,
    pub(crate) sges: SmallVec<[Sge; 2]>,
}

/// Whether a receive was taken for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Taken,
    Empty,
    /// The oldest receive is too small for the message, and stays in the queue.
    TooSmall,
}

/// Posted receives, in order. The queue grows up to its capacity, and then allocates no more.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    work: VecDeque<(u64, u32)>,
    sges: VecDeque<Sge>,
    capacity: u32,
    max_sge: u32,
}

impl RecvQueue {
    pub(crate) fn new(capacity: u32, max_sge: u32) -> Self {
        Self { work: VecDeque::new(), sges: VecDeque::new(), capacity, max_sge }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(crate) fn set_capacity(&mut self, capacity: u32) {
        self.capacity = capacity;
    }

    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    pub(crate) fn len(&self) -> usize {
        self.work.len()
    }

    pub(crate) fn push(&mut self, request: &RecvRequest<'_>) -> Result<()> {
        if self.work.len() >= self.capacity as usize {
            return Err(Errno::NOMEM);
        }
        let count = u32::try_from(request.sges.len()).map_err(|_| Errno::INVAL)?;
        if count > self.max_sge {
            return Err(Errno::INVAL);
        }
        self.work.push_back((request.wr_id, count));
        self.sges.extend(request.sges);
        Ok(())
    }

    /// Puts a receive back that [`RecvQueue::pop`] has taken, as the oldest one.
    pub(crate) fn give_back(&mut self, work: &RecvWork) {
        let count = u32::try_from(work.sges.len()).unwrap_or(u32::MAX);
        self.work.push_front((work.wr_id, count));
        work.sges.iter().rev().for_each(|&sge| self.sges.push_front(sge));
    }

    /// The `wr_id` and the memory of the oldest receive, if it has one piece of memory.
    pub(crate) fn front_piece(&self) -> Option<(u64, Sge)> {
        match self.work.front()? {
            &(wr_id, 1) => self.sges.front().map(|&sge| (wr_id, sge)),
            _ => None,
        }
    }

    /// Removes the receive that [`RecvQueue::front_piece`] returned.
    pub(crate) fn pop_front_piece(&mut self) {
        self.work.pop_front();
        self.sges.pop_front();
    }

    /// Moves the oldest receive to `work` if it has room for `length` bytes.
    pub(crate) fn pop_for(&mut self, length: u64, work: &mut RecvWork) -> Fit {
        let Some(&(_, count)) = self.work.front() else { return Fit::Empty };
        let room: u64 = self.sges.range(..count as usize).map(|sge| u64::from(sge.length)).sum();
        if room < length {
            return Fit::TooSmall;
        }
        self.pop(work);
        Fit::Taken
    }

    /// Moves the oldest receive to `work`; returns false if there is none.
    pub(crate) fn pop(&mut self, work: &mut RecvWork) -> bool {
        let Some((wr_id, count)) = self.work.pop_front() else { return false };
        work.wr_id = wr_id;
        work.sges.clear();
        work.sges.extend(self.sges.drain(..count as usize));
        true
    }

    #[cfg(test)]
    pub(crate) fn wr_ids(&self) -> Vec<u64> {
        self.work.iter().map(|&(wr_id, _)| wr_id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receive_that_is_given_back_is_the_oldest_with_its_memory() {
        let sge = |addr| Sge { addr, length: 1, lkey: 0 };
        let mut queue = RecvQueue::new(4, 2);
        queue.push(&RecvRequest { wr_id: 1, sges: &[sge(10), sge(11)] }).expect("room");
        queue.push(&RecvRequest { wr_id: 2, sges: &[sge(20)] }).expect("room");
        let mut work = RecvWork::default();
        assert!(queue.pop(&mut work));
        queue.give_back(&work);
        for (wr_id, sges) in [(1, &[sge(10), sge(11)][..]), (2, &[sge(20)])] {
            assert!(queue.pop(&mut work));
            assert_eq!((work.wr_id, work.sges.as_slice()), (wr_id, sges));
        }
        assert!(!queue.pop(&mut work));
    }
}
