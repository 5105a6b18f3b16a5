//! Commands that report what the device has and knows: its units, its commands, its ports, its
//! defects (SPC-5, section 6; SBC-4, section 5).

use super::call::{Call, Failure, Plan, finished};
use super::device::Device;
use super::lookup::{Found, find_action};
use super::nexus::NexusId;
use super::sense::Sense;
use crate::bytes::be32;
use crate::wire::lun_field;

/// REQUEST SENSE (SPC-5, section 6.39): a pending unit attention, or why the unit is not ready, or
/// nothing.
pub(super) fn sense(call: &Call<'_>) -> Result<Plan, Failure> {
    let mut state = call.unit.state();
    let pending = state.take_attention(call.nexus.id).or_else(|| state.medium.failure());
    let as_descriptors = call.byte(1) & 1 != 0;
    let data = match pending {
        Some(sense) => sense.bytes(as_descriptors),
        None if as_descriptors => vec![0x72, 0, 0, 0, 0, 0, 0, 0],
        None => {
            let mut data = vec![0; 18];
            data[0] = 0x70;
            data[7] = 10;
            data
        }
    };
    finished(data, usize::from(call.byte(4)))
}

/// REPORT LUNS, to a unit.
pub(super) fn luns(call: &Call<'_>) -> Result<Plan, Failure> {
    units(call.device, call.nexus.id, call.cdb)
}

/// REPORT LUNS (SPC-5, section 6.34).
pub(super) fn units(device: &Device, nexus: NexusId, cdb: &[u8; 16]) -> Result<Plan, Failure> {
    let allocation_len = be32(cdb, 6) as usize;
    if allocation_len < 16 {
        return Err(Sense::INVALID_FIELD.in_cdb(6, 7).into());
    }
    device.forget_changes(nexus);
    let numbers = match cdb[2] {
        0x00 | 0x02 => device.numbers(),
        // Well known units: none.
        0x01 => Vec::new(),
        _ => return Err(Sense::INVALID_FIELD.in_cdb(2, 7).into()),
    };
    let mut data = (8 * numbers.len() as u32).to_be_bytes().to_vec();
    data.extend([0; 4]);
    data.extend(numbers.into_iter().flat_map(lun_field));
    finished(data, allocation_len)
}

/// REPORT SUPPORTED OPERATION CODES (SPC-5, section 6.36).
pub(super) fn opcodes(call: &Call<'_>) -> Result<Plan, Failure> {
    let (with_times, options) = (call.byte(2) & 0x80 != 0, call.byte(2) & 0x07);
    let (opcode, action) = (call.byte(3), call.u16(4));
    let data = match options {
        0 => all_opcodes(call, with_times),
        1..=3 => {
            let found = find_action(call.commands, opcode, action);
            let has_actions =
                call.commands.iter().any(|each| each.opcode == opcode && each.action.is_some());
            // 1 is for codes without service actions, 2 for codes with them, 3 for both.
            if options == 1 && has_actions || options == 2 && !has_actions && is_known(call, opcode)
            {
                return Err(Sense::INVALID_FIELD.in_cdb(4, 7).into());
            }
            let is_wrong_action = options == 3 && !has_actions && action != 0;
            match found {
                Found::Command(command) if !is_wrong_action && is_supported(call, opcode) => {
                    let mut data = vec![0, u8::from(with_times) << 7 | 0x03];
                    data.extend((command.usage.len() as u16).to_be_bytes());
                    let at = data.len();
                    data.extend(command.usage);
                    if let Some(action) = command.action {
                        // Usage data has the service action in its place.
                        data[at + 1] = data[at + 1] & 0xe0 | action as u8;
                    }
                    if with_times {
                        data.extend(TIMES);
                    }
                    data
                }
                _ => vec![0, 0x01, 0, 0],
            }
        }
        _ => return Err(Sense::INVALID_FIELD.in_cdb(2, 2).into()),
    };
    finished(data, call.u32(6) as usize)
}

/// A command timeouts descriptor without times.
const TIMES: [u8; 12] = [0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn is_known(call: &Call<'_>, opcode: u8) -> bool {
    call.commands.iter().any(|command| command.opcode == opcode)
}

/// UNMAP is there for units that free space, WRITE ATOMIC for those that can.
fn is_supported(call: &Call<'_>, opcode: u8) -> bool {
    match opcode {
        0x42 => call.unit.store().is_thin(),
        0x9c => call.unit.atomic_len() > 0,
        _ => true,
    }
}

fn all_opcodes(call: &Call<'_>, with_times: bool) -> Vec<u8> {
    let mut list = Vec::new();
    for command in call.commands.iter().filter(|command| is_supported(call, command.opcode)) {
        list.extend([command.opcode, 0]);
        list.extend(command.action.unwrap_or(0).to_be_bytes());
        let flags = u8::from(with_times) << 1 | u8::from(command.action.is_some());
        list.extend([0, flags]);
        list.extend((command.usage.len() as u16).to_be_bytes());
        if with_times {
            list.extend(TIMES);
        }
    }
    let mut data = (list.len() as u32).to_be_bytes().to_vec();
    data.extend(list);
    data
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-5, section 6.37).
pub(super) fn task_management(call: &Call<'_>) -> Result<Plan, Failure> {
    // ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET, TARGET RESET.
    let mut data = vec![0xda, 0, 0, 0];
    if call.byte(2) & 0x80 != 0 {
        data[3] = 12;
        data.extend([0; 12]);
    }
    finished(data, call.u32(6) as usize)
}

/// REPORT TARGET PORT GROUPS (SPC-5, section 6.38): one group with one port, active and optimised.
pub(super) fn port_groups(call: &Call<'_>) -> Result<Plan, Failure> {
    let group: [u8; 12] = [0x00, 0x01, 0, 1, 0, 0x02, 0, 1, 0, 0, 0, 1];
    let mut data = match call.byte(1) >> 5 {
        0 => vec![0, 0, 0, group.len() as u8],
        // The extended header, with an implicit transition time of 0.
        1 => vec![0, 0, 0, 4 + group.len() as u8, 0x10, 0, 0, 0],
        _ => return Err(Sense::INVALID_FIELD.in_cdb(1, 7).into()),
    };
    data.extend(group);
    finished(data, call.u32(6) as usize)
}

/// READ DEFECT DATA (10): an empty list.
pub(super) fn defects10(call: &Call<'_>) -> Result<Plan, Failure> {
    let data = vec![0, call.byte(2) & 0x1f, 0, 0];
    finished(data, usize::from(call.u16(7)))
}

/// READ DEFECT DATA (12): an empty list.
pub(super) fn defects12(call: &Call<'_>) -> Result<Plan, Failure> {
    let data = vec![0, call.byte(1) & 0x1f, 0, 0, 0, 0, 0, 0];
    finished(data, call.u32(6) as usize)
}
