//! How commands are planned, and what their responses carry.

use std::sync::Arc;

use super::portal::Session;
use crate::scsi::{self, Begun, Device, Failure, Plan, Sense, Unit};
use crate::wire::{Pdu, Residual, ScsiCommand};

/// Plans a command.
pub(super) fn plan(
    session: &Session,
    unit: Option<&(Arc<Unit>, Begun)>,
    command: &ScsiCommand,
    pdu: &Pdu<'_>,
) -> Result<Plan, Failure> {
    // Longer descriptor blocks, which no command here has, come in an additional header segment.
    if !pdu.additional.is_empty() {
        return Err(Sense::INVALID_OPERATION.in_cdb(0, 7).into());
    }
    let device = session.device();
    match unit {
        Some((unit, begun)) => {
            let nexus = (&session.nexus, *begun);
            scsi::plan(device, unit, nexus, &command.cdb, command.write_len())
        }
        None => scsi::plan_without_unit(device, session.nexus.id, &command.cdb),
    }
}

impl ScsiCommand {
    /// The bytes that the initiator expects to receive.
    pub(super) fn read_len(&self) -> u32 {
        if self.reads && !self.writes { self.expected_len } else { 0 }
    }

    /// The bytes that the initiator is going to send.
    pub(super) fn write_len(&self) -> u32 {
        if self.writes { self.expected_len } else { 0 }
    }
}

/// How many bytes were wanted and expected.
pub(super) fn residual(wanted: u64, expected: u32) -> Residual {
    let clamp = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    match u64::from(expected) {
        expected if wanted < expected => Residual::Underflow(clamp(expected - wanted)),
        expected if wanted > expected => Residual::Overflow(clamp(wanted - expected)),
        _ => Residual::None,
    }
}

/// The data segment of a failed command's response (RFC 7143, section 11.4.7).
pub(super) fn sense_segment(device: &Device, unit: Option<&Unit>, sense: Sense) -> Vec<u8> {
    let sense = device.sense_bytes(unit, sense);
    let mut segment = (sense.len() as u16).to_be_bytes().to_vec();
    segment.extend(sense);
    segment
}
