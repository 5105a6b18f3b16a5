//! Commands that are not complete: those that wait for data, and those whose data is being sent.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::scsi::{Begun, Failure, Finish, Stream, Unit};
use crate::wire::{NO_TAG, ScsiCommand};

/// The way in which a task handles the initiator's data.
#[derive(Debug)]
pub(super) enum Sink {
    /// The task handles data as it arrives; the range of the store.
    Stream(Range<u64>, Stream),
    /// The task collects all data first.
    Collect(Vec<u8>, Finish),
    /// The command is complete or has failed; what was sent without being asked for is dropped.
    Drop(Result<Vec<u8>, Failure>),
}

/// A command that waits for data from the initiator.
#[derive(Debug)]
pub(super) struct Task {
    /// The command.
    pub(super) command: ScsiCommand,
    /// The unit, and the command among its aborts. `None` if the LUN has none.
    pub(super) unit: Option<(Arc<Unit>, Begun)>,
    /// The way in which the task handles the data.
    pub(super) sink: Sink,
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
    /// Bytes that are sent.
    pub(super) sent: u32,
    /// Data-In PDUs that are sent.
    pub(super) pdus: u32,
    /// When the command came.
    pub(super) since: Duration,
}
