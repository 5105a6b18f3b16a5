//! EXTENDED COPY and RECEIVE COPY RESULTS (SPC-4, sections 6.4 and 6.17): the target copies blocks
//! between its own units, which are named by their designators.

use std::ops::Range;
use std::sync::Arc;

use super::blocks::range;
use super::call::{Call, Failure, Plan, done, finished};
use super::sense::Sense;
use super::state::CopyStatus;
use super::unit::Unit;
use crate::bytes::{be16, be24, be32, be64};
use crate::limits::{
    COPY_DESCRIPTORS_LEN_MAX, COPY_SEGMENT_LEN, COPY_SEGMENT_LEN_MAX, COPY_SEGMENTS_MAX,
    COPY_TARGET_LEN, COPY_TARGETS_MAX, PARAMETER_LEN_MAX, STEP_LEN,
};

const HEADER_LEN: usize = 16;
const EXTENDED_COPY: u8 = 0x83;

/// Whether a command may use other units than its own.
#[must_use]
pub fn spans_units(cdb: &[u8; 16]) -> bool {
    cdb[0] == EXTENDED_COPY
}

/// EXTENDED COPY (LID1).
pub(super) fn extended(call: &Call<'_>) -> Result<Plan, Failure> {
    match call.u32(10) as usize {
        0 => done(),
        len if len < HEADER_LEN => Err(Sense::PARAMETER_LIST_LENGTH.into()),
        len if len > PARAMETER_LEN_MAX => Err(Sense::INVALID_FIELD.in_cdb(10, 7).into()),
        len => Ok(Plan::Receive(len, finish)),
    }
}

fn finish(call: &Call<'_>, list: &[u8]) -> Result<(), Failure> {
    let targets_len = usize::from(be16(list, 2));
    let segments_len = be32(list, 8) as usize;
    let inline_len = be32(list, 12);
    if inline_len != 0 {
        return Err(Sense::INVALID_PARAMETER.in_parameters(12).into());
    }
    if targets_len + segments_len > COPY_DESCRIPTORS_LEN_MAX {
        return Err(Sense::PARAMETER_LIST_LENGTH.into());
    }
    if targets_len > COPY_TARGETS_MAX * COPY_TARGET_LEN {
        return Err(Sense::TOO_MANY_TARGET_DESCRIPTORS.into());
    }
    let (targets, rest) =
        list[HEADER_LEN..].split_at_checked(targets_len).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
    let segments = rest.get(..segments_len).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
    if targets_len % COPY_TARGET_LEN != 0 {
        return Err(Sense::INVALID_PARAMETER.in_parameters(2).into());
    }
    let units = targets
        .chunks_exact(COPY_TARGET_LEN)
        .map(|descriptor| target(call, descriptor))
        .collect::<Result<Vec<_>, Sense>>()?;
    let copies = parse_segments(segments, &units)?;
    let count = copies.len() as u16;
    let copied = copies.into_iter().try_for_each(|copy| copy.run(call));
    let status = CopyStatus { list: list[0], is_complete: copied.is_ok(), segments: count };
    call.unit.state().keep_copy(call.nexus.id, status);
    copied
}

/// The unit of an identification descriptor (SPC-4, section 6.4.5.2).
fn target(call: &Call<'_>, descriptor: &[u8]) -> Result<Arc<Unit>, Sense> {
    if descriptor[0] != 0xe4 {
        return Err(Sense::TARGET_DESCRIPTOR_TYPE);
    }
    // The designator alone says which unit it is: the type of the LU ID field is ignored.
    // NUL: there is no unit.
    if descriptor[1] & 0x20 != 0 {
        return Err(Sense::COPY_TARGET_NOT_REACHABLE);
    }
    let len = usize::from(descriptor[7]);
    let designator = descriptor.get(8..8 + len).ok_or(Sense::INVALID_PARAMETER)?;
    let unit = call.device.unit_by_designator(designator);
    let unit = unit.ok_or(Sense::COPY_TARGET_NOT_REACHABLE)?;
    let block_len = be24(descriptor, 29);
    if block_len != unit.options().block_len {
        return Err(Sense::INVALID_PARAMETER);
    }
    Ok(unit)
}

/// One segment.
struct Copy {
    from: (Arc<Unit>, Range<u64>),
    to: (Arc<Unit>, Range<u64>),
}

fn parse_segments(mut list: &[u8], units: &[Arc<Unit>]) -> Result<Vec<Copy>, Sense> {
    let mut copies = Vec::new();
    while !list.is_empty() {
        if copies.len() == COPY_SEGMENTS_MAX {
            return Err(Sense::TOO_MANY_SEGMENT_DESCRIPTORS);
        }
        let head = list.first_chunk::<4>().ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        // Block device to block device.
        if head[0] != 0x02 {
            return Err(Sense::SEGMENT_DESCRIPTOR_TYPE);
        }
        let len = 4 + usize::from(be16(head, 2));
        let (segment, rest) = list.split_at_checked(len).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        if segment.len() != COPY_SEGMENT_LEN {
            return Err(Sense::INVALID_PARAMETER);
        }
        copies.push(parse_segment(segment, units)?);
        list = rest;
    }
    Ok(copies)
}

fn parse_segment(segment: &[u8], units: &[Arc<Unit>]) -> Result<Copy, Sense> {
    let unit = |at: usize| {
        let unit = units.get(usize::from(be16(segment, at)));
        unit.cloned().ok_or(Sense::COPY_TARGET_NOT_REACHABLE)
    };
    let (from, to) = (unit(4)?, unit(6)?);
    // DC: the count is of blocks of the destination instead of the source.
    let counts_destination = segment[1] & 0x02 != 0;
    let counted = if counts_destination { &to } else { &from };
    let len = u64::from(be16(segment, 10)) * u64::from(counted.options().block_len);
    if len > COPY_SEGMENT_LEN_MAX {
        return Err(Sense::INVALID_PARAMETER);
    }
    let range = |unit: &Unit, first: u64| {
        let block_len = u64::from(unit.options().block_len);
        if len % block_len != 0 {
            return Err(Sense::INVALID_PARAMETER);
        }
        range(unit, first, len / block_len).map_err(|_| Sense::COPY_TARGET_NOT_REACHABLE)
    };
    let (from_range, to_range) = (range(&from, be64(segment, 12))?, range(&to, be64(segment, 20))?);
    Ok(Copy { from: (from, from_range), to: (to, to_range) })
}

impl Copy {
    fn run(self, call: &Call<'_>) -> Result<(), Failure> {
        let ((source, from), (destination, to)) = (self.from, self.to);
        for (unit, access) in
            [(&source, super::access::Access::Read), (&destination, super::access::Access::Write)]
        {
            // The unit of the command itself has been checked for writes.
            let state = unit.state();
            if state.conflicts(access, call.nexus) {
                return Err(Failure::Conflict);
            }
            if state.medium.failure().is_some() {
                return Err(Sense::COPY_FAILED.into());
            }
        }
        if destination.options().is_read_only || destination.state().modes.write_protected {
            return Err(Sense::WRITE_PROTECTED.into());
        }
        let step = destination.own_step();
        if call.unit.is_aborted(call.begun) {
            return Err(Failure::Aborted);
        }
        let len = (from.end - from.start) as usize;
        let mut buffer = vec![0; len.min(STEP_LEN)];
        // Ranges of one unit that overlap are copied from the end if the destination is behind.
        let is_backwards = Arc::ptr_eq(&source, &destination) && to.start > from.start;
        let steps = len.div_ceil(STEP_LEN);
        for index in 0..steps {
            let index = if is_backwards { steps - 1 - index } else { index };
            let at = index * STEP_LEN;
            let part = &mut buffer[..STEP_LEN.min(len - at)];
            // Of one unit the step is owned; of two, other steps of the source are not waited for.
            let read = source.read_in_step(from.start + at as u64, part);
            read.map_err(|_| Sense::COPY_FAILED)?;
            let written = destination.store().write(to.start + at as u64, part);
            written.map_err(|_| Sense::COPY_FAILED)?;
        }
        drop(step);
        Ok(destination.settle(false)?)
    }
}

/// RECEIVE COPY RESULTS, COPY STATUS (SPC-4, section 6.17.2): of one of the last copies of this
/// session, which are complete.
pub(super) fn status(call: &Call<'_>) -> Result<Plan, Failure> {
    let Some(copy) = call.unit.state().copy(call.nexus.id, call.byte(2)) else {
        return Err(Sense::INVALID_FIELD.in_cdb(2, 7).into());
    };
    let mut data = vec![0, 0, 0, 8, if copy.is_complete { 0x01 } else { 0x02 }];
    data.extend(copy.segments.to_be_bytes());
    // The count of bytes is not reported.
    data.extend([0; 5]);
    finished(data, call.u32(10) as usize)
}

/// RECEIVE COPY RESULTS, OPERATING PARAMETERS (SPC-4, section 6.17.4).
pub(super) fn parameters(call: &Call<'_>) -> Result<Plan, Failure> {
    let mut data = vec![0; 44];
    // SNLID: the list identifier may be left out.
    data[4] = 0x01;
    let mut put = |at: usize, value: &[u8]| data[at..at + value.len()].copy_from_slice(value);
    put(8, &(COPY_TARGETS_MAX as u16).to_be_bytes());
    put(10, &(COPY_SEGMENTS_MAX as u16).to_be_bytes());
    put(12, &(COPY_DESCRIPTORS_LEN_MAX as u32).to_be_bytes());
    put(16, &(COPY_SEGMENT_LEN_MAX as u32).to_be_bytes());
    // One copy at a time, in units of 512 bytes.
    put(34, &1_u16.to_be_bytes());
    put(36, &[1, 9, 9, 9]);
    // Implemented descriptors: block to block, identification.
    data[43] = 2;
    data.extend([0x02, 0xe4]);
    let len = (data.len() - 4) as u32;
    data[0..4].copy_from_slice(&len.to_be_bytes());
    finished(data, call.u32(10) as usize)
}
