//! Commands that are not complete: those that wait for data, and those whose data is being sent.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::scsi::{Begun, Failure, Finish, Kind, Plan, Run, Sense, Stream, Unit};
use crate::wire::{NO_TAG, ScsiCommand};

/// The way in which a task handles the initiator's data.
#[derive(Debug)]
pub(super) enum Sink {
    /// The task handles data as it arrives; the range of the store.
    Stream(Range<u64>, Stream),
    /// The task collects all data first.
    Collect(Vec<u8>, Finish),
    /// The task is carried out without data.
    Run {
        /// Does it.
        run: Run,
        /// Blocks may change.
        changes: bool,
    },
    /// The command is complete or has failed; what was sent without being asked for is dropped.
    Drop(Result<Vec<u8>, Failure>),
}

impl Sink {
    /// The way in which a planned command handles the `expected` bytes that its initiator sends,
    /// and how many it wants. There is `room` for so many that are collected.
    pub(super) fn of(
        plan: Result<Plan, Failure>,
        unit: Option<&(Arc<Unit>, Begun)>,
        expected: u64,
        room: usize,
    ) -> (Self, u64) {
        match plan {
            Ok(Plan::Stream(range, stream)) if range.end - range.start > expected => {
                let wanted = range.end - range.start;
                match unit {
                    // The blocks that come are handled.
                    Some((unit, _)) if expected.is_multiple_of(unit.options().block_len.into()) => {
                        (Self::Stream(range.start..range.start + expected, stream), wanted)
                    }
                    // A part of a block cannot be.
                    _ => (Self::Drop(Err(Sense::INVALID_INFORMATION_UNIT.into())), wanted),
                }
            }
            Ok(Plan::Receive(len, _)) if len as u64 > expected => {
                (Self::Drop(Err(Sense::INVALID_INFORMATION_UNIT.into())), len as u64)
            }
            Ok(Plan::Stream(range, stream)) => {
                let len = range.end - range.start;
                (Self::Stream(range, stream), len)
            }
            Ok(Plan::Receive(len, _)) if len > room => {
                (Self::Drop(Err(Sense::INTERNAL_FAILURE.into())), len as u64)
            }
            Ok(Plan::Receive(len, finish)) => {
                (Self::Collect(Vec::with_capacity(len), finish), len as u64)
            }
            Ok(Plan::Run { run, changes }) => (Self::Run { run, changes }, 0),
            // The initiator expects no data, and gets none.
            Ok(Plan::Read { .. }) => (Self::Drop(Ok(Vec::new())), 0),
            Ok(Plan::Finished(data)) => (Self::Drop(Ok(data)), 0),
            Err(failure) => (Self::Drop(Err(failure)), 0),
        }
    }
}

/// A command that waits for data from the initiator, or for the store.
#[derive(Debug)]
pub(super) struct Task {
    /// The command.
    pub(super) command: ScsiCommand,
    /// The unit, and the command among its aborts. `None` if the LUN has none.
    pub(super) unit: Option<(Arc<Unit>, Begun)>,
    /// A number that no other task of the connection has.
    pub(super) serial: u64,
    /// What it is counted as.
    pub(super) kind: Kind,
    /// The way in which the task handles the data.
    pub(super) sink: Sink,
    /// Its jobs that have not ended.
    pub(super) pending: u32,
    /// Bytes that it counts for among those that are collected.
    pub(super) held_len: usize,
    /// Why the data could not be handled.
    pub(super) failure: Option<Failure>,
    /// Bytes that the command wants, by its descriptor block.
    pub(super) wanted_len: u64,
    /// Bytes that have arrived.
    pub(super) received: u32,
    /// Bytes that are going to arrive: `received` ends here.
    pub(super) end: u32,
    /// The sequence that is arriving.
    pub(super) sequence: DataSequence,
    /// R2Ts that have been sent.
    pub(super) r2ts: u32,
    /// When the command came.
    pub(super) since: Duration,
}

impl Task {
    /// Notes that data at an offset of the command's data has come. Returns what is to be handled.
    pub(super) fn receive<'a>(&mut self, offset: u32, data: &'a [u8]) -> &'a [u8] {
        let wanted = data.len().min(self.end.saturating_sub(offset) as usize);
        self.received = offset + data.len() as u32;
        if self.failure.is_some() || self.is_aborted() { &[] } else { &data[..wanted] }
    }

    /// Whether no more data comes, or is asked for.
    pub(super) fn has_all(&self) -> bool {
        self.sequence.is_over && self.received >= self.end
    }

    /// Whether another command has aborted it.
    pub(super) fn is_aborted(&self) -> bool {
        self.unit.as_ref().is_some_and(|(unit, begun)| unit.is_aborted(*begun))
    }
}

/// A sequence of Data-Out PDUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DataSequence {
    /// The target's transfer tag, `NO_TAG` for unsolicited data.
    pub(super) transfer: u32,
    /// The number that the next PDU has.
    pub(super) number: u32,
    /// The offset at which it ends. Unsolicited data may end earlier.
    pub(super) end: u32,
    /// No more PDUs of it come.
    pub(super) is_over: bool,
}

impl DataSequence {
    /// The unsolicited data of a command, up to an offset.
    pub(super) fn unsolicited(command: &ScsiCommand, end: u32) -> Self {
        Self { transfer: NO_TAG, number: 0, end, is_over: command.is_final }
    }
}

/// A command whose data is being sent.
#[derive(Debug)]
pub(super) struct Reading {
    /// The command.
    pub(super) command: ScsiCommand,
    /// The unit.
    pub(super) unit: Arc<Unit>,
    /// The command among the aborts of the unit.
    pub(super) begun: Begun,
    /// The bytes of the store, as many as the command asks for.
    pub(super) range: Range<u64>,
    /// The store is flushed before the first byte is read.
    pub(super) flushes: bool,
    /// Bytes that a job has read, and that follow those that are sent; how many of them are sent.
    pub(super) loaded: (Vec<u8>, usize),
    /// Bytes that are sent.
    pub(super) sent: u32,
    /// Data-In PDUs that are sent.
    pub(super) pdus: u32,
    /// When the command came.
    pub(super) since: Duration,
}
