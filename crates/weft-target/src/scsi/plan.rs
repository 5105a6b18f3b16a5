//! Planning and finishing of commands: what all of them have in common.

use super::access::Access;
use super::call::{Call, Command, Failure, Finish, Plan, Run, finished};
use super::device::Device;
use super::inquiry;
use super::lookup::{Found, find};
use super::nexus::{Nexus, NexusId};
use super::report;
use super::sense::Sense;
use super::state::Medium;
use super::table::COMMANDS;
use super::unit::{Begun, Unit};
use crate::bytes::be16;

/// Plans a command for a unit that is not there (SAM-5, section 5.11).
///
/// # Errors
///
/// If the command needs a unit.
pub fn plan_without_unit(device: &Device, nexus: NexusId, cdb: &[u8; 16]) -> Result<Plan, Failure> {
    match cdb[0] {
        INQUIRY => finished(inquiry::of_no_unit(), usize::from(be16(cdb, 3))),
        REQUEST_SENSE => finished(Sense::NO_UNIT.bytes(cdb[1] & 1 != 0), usize::from(cdb[4])),
        REPORT_LUNS => report::units(device, nexus, cdb),
        _ => Err(Sense::NO_UNIT.into()),
    }
}

const REQUEST_SENSE: u8 = 0x03;
const INQUIRY: u8 = 0x12;
const REPORT_LUNS: u8 = 0xa0;

/// Plans a command that has begun, with which the initiator sends `sent_len` bytes.
///
/// # Errors
///
/// If the command is not known or not valid, or if the state of the unit refuses it.
pub fn plan(
    device: &Device,
    unit: &Unit,
    (nexus, begun): (&Nexus, Begun),
    cdb: &[u8; 16],
    sent_len: u32,
) -> Result<Plan, Failure> {
    let found = find(&COMMANDS, cdb);
    let access = match found {
        Found::Command(command) => command.access,
        Found::NoAction | Found::NoCommand => Access::Free,
    };
    admit(unit, nexus, access)?;
    let command = match found {
        Found::Command(command) => command,
        Found::NoAction => return Err(Sense::INVALID_FIELD.in_cdb(1, 4).into()),
        Found::NoCommand => return Err(Sense::INVALID_OPERATION.in_cdb(0, 7).into()),
    };
    check_usage(command, cdb)?;
    (command.plan)(&Call { device, unit, nexus, begun, cdb, sent_len, commands: &COMMANDS })
}

/// Carries out what a plan has left to do. Returns data for the initiator.
///
/// # Errors
///
/// As the command has it.
pub fn run(
    device: &Device,
    unit: &Unit,
    (nexus, begun): (&Nexus, Begun),
    cdb: &[u8; 16],
    run: Run,
) -> Result<Vec<u8>, Failure> {
    run(&Call { device, unit, nexus, begun, cdb, sent_len: 0, commands: &COMMANDS })
}

/// Finishes a command with its data.
///
/// # Errors
///
/// As the command has it.
pub fn finish(
    device: &Device,
    unit: &Unit,
    (nexus, begun): (&Nexus, Begun),
    cdb: &[u8; 16],
    finish: Finish,
    data: &[u8],
) -> Result<(), Failure> {
    let sent_len = data.len() as u32;
    finish(&Call { device, unit, nexus, begun, cdb, sent_len, commands: &COMMANDS }, data)
}

/// Checks unit attentions, reservations, medium and write protection, in the order of SAM-5,
/// section 5.3.3 and SPC-5, section 5.14.
fn admit(unit: &Unit, nexus: &Nexus, access: Access) -> Result<(), Failure> {
    let mut state = unit.state();
    if access.reports_attentions()
        && let Some(attention) = state.take_attention(nexus.id)
    {
        return Err(attention.into());
    }
    if state.conflicts(access, nexus) {
        return Err(Failure::Conflict);
    }
    if access.needs_medium()
        && let Some(failure) = state.medium.failure()
    {
        return Err(failure.into());
    }
    if matches!(state.medium, Medium::Sanitizing) && access == Access::Manage {
        return Err(Sense::SANITIZE_IN_PROGRESS.into());
    }
    if access == Access::Write && (unit.options().is_read_only || state.modes.write_protected) {
        return Err(Sense::WRITE_PROTECTED.into());
    }
    Ok(())
}

/// Refuses bits that the command does not have (SPC-5, section 4.2.5.2: reserved bits may be
/// checked).
fn check_usage(command: &Command, cdb: &[u8; 16]) -> Result<(), Sense> {
    for (at, (&byte, &usage)) in cdb.iter().zip(command.usage).enumerate().skip(1) {
        let wrong = byte & !usage;
        if wrong != 0 {
            let bit = 7 - wrong.leading_zeros() as u8;
            return Err(Sense::INVALID_FIELD.in_cdb(at as u16, bit));
        }
    }
    Ok(())
}
