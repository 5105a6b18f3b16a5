//! A command that is being planned or finished, and what becomes of it.

use std::ops::Range;

use super::access::Access;
use super::device::Device;
pub(super) use super::failure::Failure;
use super::nexus::Nexus;
use super::sense::Sense;
use super::unit::{Begun, Stream, Unit};
use crate::bytes::{be16, be32, be64};

/// The next step of a command.
#[derive(Debug)]
pub enum Plan {
    /// It is complete, with data for the initiator.
    Finished(Vec<u8>),
    /// Bytes of the store go to the initiator.
    Read {
        /// The bytes.
        range: Range<u64>,
        /// The store is flushed before.
        flushes: bool,
    },
    /// The store is used, for as long as that takes. The result has data for the initiator.
    Run {
        /// Does it.
        run: Run,
        /// Blocks may change.
        changes: bool,
    },
    /// As many bytes come from the initiator, and are handled as they arrive.
    Stream(Range<u64>, Stream),
    /// This many bytes come from the initiator, and are handled together.
    Receive(usize, Finish),
}

/// Carries out a command that needs no data of the initiator. It waits for the store.
pub type Run = fn(&Call<'_>) -> Result<Vec<u8>, Failure>;

/// Handles the data of a command that needs it whole. It waits for the store.
pub type Finish = fn(&Call<'_>, &[u8]) -> Result<(), Failure>;

/// A command, as the table has it.
#[derive(Debug)]
pub(super) struct Command {
    /// The operation code.
    pub(super) opcode: u8,
    /// The service action, if the operation code has several.
    pub(super) action: Option<u16>,
    /// Its use of the unit.
    pub(super) access: Access,
    /// The bits of the descriptor block that it knows, from the first byte on: its usage data, of
    /// which the first byte is the operation code.
    pub(super) usage: &'static [u8],
    /// Plans it.
    pub(super) plan: fn(&Call<'_>) -> Result<Plan, Failure>,
}

/// A command with all that it may look at.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The device.
    pub(super) device: &'a Device,
    /// The unit.
    pub(super) unit: &'a Unit,
    /// The initiator.
    pub(super) nexus: &'a Nexus,
    /// The command among the aborts of the unit.
    pub(super) begun: Begun,
    /// The command descriptor block.
    pub(super) cdb: &'a [u8; 16],
    /// Bytes that the initiator sends with the command.
    pub(super) sent_len: u32,
    /// All commands.
    pub(super) commands: &'static [Command],
}

impl Call<'_> {
    /// A byte of the descriptor block.
    pub(super) fn byte(&self, at: usize) -> u8 {
        self.cdb[at]
    }

    /// Two bytes of the descriptor block.
    pub(super) fn u16(&self, at: usize) -> u16 {
        be16(self.cdb, at)
    }

    /// Four bytes of the descriptor block.
    pub(super) fn u32(&self, at: usize) -> u32 {
        be32(self.cdb, at)
    }

    /// Eight bytes of the descriptor block.
    pub(super) fn u64(&self, at: usize) -> u64 {
        be64(self.cdb, at)
    }
}

/// Receives all of a command's data at once. The initiator must send exactly `len` bytes.
///
/// # Errors
///
/// If it sends another number of bytes.
pub(super) fn receive(call: &Call<'_>, len: u64, finish: Finish) -> Result<Plan, Failure> {
    if u64::from(call.sent_len) != len {
        return Err(Sense::INVALID_INFORMATION_UNIT.into());
    }
    Ok(Plan::Receive(len as usize, finish))
}

/// Ends a command that returns data, at most the allocation length.
pub(super) fn finished(mut data: Vec<u8>, allocation_len: usize) -> Result<Plan, Failure> {
    data.truncate(allocation_len);
    Ok(Plan::Finished(data))
}

/// A complete command without data.
pub(super) fn done() -> Result<Plan, Failure> {
    Ok(Plan::Finished(Vec::new()))
}
