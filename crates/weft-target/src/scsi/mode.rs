//! MODE SENSE and MODE SELECT (SPC-5, sections 6.13 to 6.16), and the mode pages.

use super::call::{Call, Failure, Plan, done, finished};
use super::sense::Sense;
use super::state::Modes;
use crate::bytes::be16;
use crate::limits::PARAMETER_LEN_MAX;

const READ_WRITE_RECOVERY: u8 = 0x01;
const CACHING: u8 = 0x08;
const CONTROL: u8 = 0x0a;
const EXCEPTIONS: u8 = 0x1c;
const ALL: u8 = 0x3f;

/// The pages, in the order in which all are returned.
const PAGES: [u8; 4] = [READ_WRITE_RECOVERY, CACHING, CONTROL, EXCEPTIONS];

/// Which values are asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Values {
    Current,
    /// The bits that MODE SELECT may change.
    Changeable,
    Default,
}

pub(super) fn sense6(call: &Call<'_>) -> Result<Plan, Failure> {
    let pages = sensed(call)?;
    let descriptor = descriptor(call, false);
    let parameter = device_specific(call);
    let len = 3 + descriptor.len() + pages.len();
    let mut data = vec![len as u8, 0, parameter, descriptor.len() as u8];
    data.extend(descriptor);
    data.extend(pages);
    finished(data, usize::from(call.byte(4)))
}

pub(super) fn sense10(call: &Call<'_>) -> Result<Plan, Failure> {
    let pages = sensed(call)?;
    let long = call.byte(1) & 0x10 != 0;
    let descriptor = descriptor(call, long);
    let mut data = Vec::new();
    data.extend(((6 + descriptor.len() + pages.len()) as u16).to_be_bytes());
    data.extend([0, device_specific(call), u8::from(long && !descriptor.is_empty()), 0]);
    data.extend((descriptor.len() as u16).to_be_bytes());
    data.extend(descriptor);
    data.extend(pages);
    finished(data, usize::from(call.u16(7)))
}

/// WP and DPOFUA.
fn device_specific(call: &Call<'_>) -> u8 {
    let is_protected = call.unit.options().is_read_only || modes(call).write_protected;
    u8::from(is_protected) << 7 | 0x10
}

/// The block descriptor, unless it is not wanted.
fn descriptor(call: &Call<'_>, long: bool) -> Vec<u8> {
    let wants_none = call.byte(1) & 0x08 != 0;
    if wants_none {
        return Vec::new();
    }
    let (blocks, len) = (call.unit.blocks(), call.unit.options().block_len);
    let mut descriptor = Vec::new();
    if long {
        descriptor.extend(blocks.to_be_bytes());
        descriptor.extend([0; 4]);
    } else {
        descriptor.extend(u32::try_from(blocks).unwrap_or(u32::MAX).to_be_bytes());
    }
    descriptor.extend(len.to_be_bytes());
    descriptor
}

fn modes(call: &Call<'_>) -> Modes {
    call.unit.state().modes
}

/// The pages that are asked for.
fn sensed(call: &Call<'_>) -> Result<Vec<u8>, Sense> {
    let (values, page, subpage) = (call.byte(2) >> 6, call.byte(2) & 0x3f, call.byte(3));
    let values = match values {
        0 => Values::Current,
        1 => Values::Changeable,
        2 => Values::Default,
        _ => return Err(Sense::SAVING_NOT_SUPPORTED.in_cdb(2, 7)),
    };
    let wanted = PAGES.iter().filter(|&&other| page == ALL || page == other);
    let found: Vec<u8> = wanted.flat_map(|&page| content(call, page, values)).collect();
    // 255 is all subpages too.
    if found.is_empty() {
        return Err(Sense::INVALID_FIELD.in_cdb(2, 5));
    }
    if subpage != 0 && subpage != 0xff {
        return Err(Sense::INVALID_FIELD.in_cdb(3, 7));
    }
    Ok(found)
}

fn content(call: &Call<'_>, page: u8, values: Values) -> Vec<u8> {
    let modes = match values {
        Values::Current => modes(call),
        Values::Changeable => {
            Modes { write_back: true, descriptor_sense: true, write_protected: true }
        }
        Values::Default => Modes { write_back: call.unit.options().write_back, ..Modes::default() },
    };
    let is_value = u8::from(values != Values::Changeable);
    let mut bytes = match page {
        READ_WRITE_RECOVERY => vec![0; 12],
        CACHING => vec![0; 20],
        CONTROL => vec![0; 12],
        _ => vec![0; 12],
    };
    bytes[0] = page;
    bytes[1] = (bytes.len() - 2) as u8;
    match page {
        // WCE.
        CACHING => bytes[2] = u8::from(modes.write_back) << 2,
        CONTROL => {
            bytes[2] = u8::from(modes.descriptor_sense) << 2;
            // Tasks may be reordered without limits; UA_INTLCK is off.
            bytes[3] = 0x10 * is_value;
            bytes[4] = u8::from(modes.write_protected) << 3;
        }
        // No exceptions are reported: DEXCPT.
        EXCEPTIONS => bytes[2] = 0x08 * is_value,
        _ => {}
    }
    bytes
}

pub(super) fn select6(call: &Call<'_>) -> Result<Plan, Failure> {
    select(call, usize::from(call.byte(4)), |call, list| finish_select(call, list, 4))
}

pub(super) fn select10(call: &Call<'_>) -> Result<Plan, Failure> {
    select(call, usize::from(call.u16(7)), |call, list| finish_select(call, list, 8))
}

fn select(call: &Call<'_>, len: usize, finish: super::call::Finish) -> Result<Plan, Failure> {
    const { assert!(PARAMETER_LEN_MAX > u16::MAX as usize) };
    if call.byte(1) & 0x01 != 0 {
        return Err(Sense::INVALID_FIELD.in_cdb(1, 0).into());
    }
    if len == 0 { done() } else { Ok(Plan::Receive(len, finish)) }
}

fn finish_select(call: &Call<'_>, list: &[u8], header_len: usize) -> Result<(), Failure> {
    let mut changed = modes(call);
    let before = changed;
    let header = list.get(..header_len).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
    let descriptors_len = match header {
        [_, _, _, len] => usize::from(*len),
        header => usize::from(be16(header, 6)),
    };
    let mut at = header_len + descriptors_len;
    if at > list.len() {
        return Err(Sense::PARAMETER_LIST_LENGTH.into());
    }
    while at < list.len() {
        let page = &list[at..];
        let Some((&[code, len], _)) = page.split_first_chunk::<2>() else {
            return Err(Sense::PARAMETER_LIST_LENGTH.into());
        };
        let whole = 2 + usize::from(len);
        let new = page.get(..whole).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        let code = code & 0x3f;
        if !PAGES.contains(&code) {
            return Err(Sense::INVALID_PARAMETER.in_parameters(at as u16).into());
        }
        let current = content(call, code, Values::Current);
        let changeable = content(call, code, Values::Changeable);
        if new.len() != current.len() {
            return Err(Sense::INVALID_PARAMETER.in_parameters(at as u16 + 1).into());
        }
        for index in 2..whole {
            if (new[index] ^ current[index]) & !changeable[index] != 0 {
                return Err(Sense::INVALID_PARAMETER.in_parameters((at + index) as u16).into());
            }
        }
        match code {
            CACHING => changed.write_back = new[2] & 0x04 != 0,
            CONTROL => {
                changed.descriptor_sense = new[2] & 0x04 != 0;
                changed.write_protected = new[4] & 0x08 != 0;
            }
            _ => {}
        }
        at += whole;
    }
    // What was written so far has to be safe before that is claimed of all.
    if before.write_back && !changed.write_back {
        call.unit.flush()?;
    }
    if changed != before {
        let mut state = call.unit.state();
        state.modes = changed;
        let by = call.nexus.id;
        state.notify(|nexus| nexus != by, Sense::MODE_PARAMETERS_CHANGED);
    }
    Ok(())
}
