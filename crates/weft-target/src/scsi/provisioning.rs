//! Capacity, and commands that give blocks their space or take it away (SBC-4, section 5).

use std::ops::Range;

use super::blocks::range;
use super::call::{Call, Failure, Plan, done, finished, receive};
use super::sense::Sense;
use super::unit::write_error;
use crate::bytes::{be16, be32, be64};
use crate::limits::{PARAMETER_LEN_MAX, UNMAP_DESCRIPTORS_MAX, WRITE_SAME_LEN_MAX};
use crate::store::Extent;

/// READ CAPACITY (10).
pub(super) fn capacity10(call: &Call<'_>) -> Result<Plan, Failure> {
    if call.u32(2) != 0 || call.byte(8) != 0 {
        // Obsolete: PMI and its address.
        return Err(Sense::INVALID_FIELD.in_cdb(2, 7).into());
    }
    let last = call.unit.blocks().saturating_sub(1);
    let mut data = u32::try_from(last).unwrap_or(u32::MAX).to_be_bytes().to_vec();
    data.extend(call.unit.options().block_len.to_be_bytes());
    finished(data, 8)
}

/// READ CAPACITY (16).
pub(super) fn capacity16(call: &Call<'_>) -> Result<Plan, Failure> {
    if call.u64(2) != 0 || call.byte(14) != 0 {
        return Err(Sense::INVALID_FIELD.in_cdb(2, 7).into());
    }
    let mut data = vec![0; 32];
    let last = call.unit.blocks().saturating_sub(1);
    data[0..8].copy_from_slice(&last.to_be_bytes());
    data[8..12].copy_from_slice(&call.unit.options().block_len.to_be_bytes());
    if call.unit.store().is_thin() {
        // LBPME and LBPRZ.
        data[14] = 0xc0;
    }
    finished(data, call.u32(10) as usize)
}

/// GET LBA STATUS.
pub(super) fn block_status(call: &Call<'_>) -> Result<Plan, Failure> {
    range(call.unit, call.u64(2), 1)?;
    Ok(Plan::Run { run: look_up_status, changes: false })
}

fn look_up_status(call: &Call<'_>) -> Result<Vec<u8>, Failure> {
    let unit = call.unit;
    let len = u64::from(unit.options().block_len);
    let mut first = call.u64(2);
    let allocation_len = call.u32(10) as usize;
    let descriptors_max = (allocation_len.saturating_sub(8) / 16).clamp(1, 256);
    let mut descriptors = Vec::new();
    let mut count = 0;
    while first < unit.blocks() && count < descriptors_max {
        let (extent, end) = unit.store().extent(first * len).map_err(|_| Sense::READ_ERROR)?;
        // A block is mapped if a part of it is. The end of what has no space is rounded down, but
        // every step makes progress.
        let (is_mapped, end) = match extent {
            Extent::Mapped => (true, end.div_ceil(len)),
            Extent::Unmapped if end / len > first => (false, end / len),
            Extent::Unmapped => (true, first + 1),
        };
        // The unit may have become shorter meanwhile.
        let end = end.min(unit.blocks()).max(first + 1);
        let blocks = (end - first).min(u64::from(u32::MAX));
        descriptors.extend(first.to_be_bytes());
        descriptors.extend((blocks as u32).to_be_bytes());
        descriptors.extend([u8::from(!is_mapped), 0, 0, 0]);
        first += blocks;
        count += 1;
    }
    let mut data = ((descriptors.len() + 4) as u32).to_be_bytes().to_vec();
    data.extend([0; 4]);
    data.extend(descriptors);
    data.truncate(allocation_len);
    Ok(data)
}

/// UNMAP.
pub(super) fn unmap(call: &Call<'_>) -> Result<Plan, Failure> {
    // ANCHOR keeps space, which a store does not do.
    if !call.unit.store().is_thin() {
        return Err(Sense::INVALID_OPERATION.in_cdb(0, 7).into());
    }
    if call.byte(1) & 1 != 0 {
        return Err(Sense::INVALID_FIELD.in_cdb(1, 0).into());
    }
    match usize::from(call.u16(7)) {
        0 => done(),
        1..8 => Err(Sense::PARAMETER_LIST_LENGTH.into()),
        len => {
            const { assert!(PARAMETER_LEN_MAX > u16::MAX as usize) };
            Ok(Plan::Receive(len, finish_unmap))
        }
    }
}

fn finish_unmap(call: &Call<'_>, list: &[u8]) -> Result<(), Failure> {
    let ranges = unmapped(call, list)?;
    let step = call.unit.share_steps_of(call.begun)?;
    for range in ranges {
        call.unit.store().discard(range).map_err(|error| write_error(&error))?;
    }
    drop(step);
    Ok(call.unit.settle(false)?)
}

/// The ranges of an UNMAP parameter list. All are checked before the first is discarded.
fn unmapped(call: &Call<'_>, list: &[u8]) -> Result<Vec<Range<u64>>, Sense> {
    let len = usize::from(be16(list, 2));
    let descriptors = &list[8..];
    // A part of a descriptor is ignored (section 5.32.2).
    let descriptors = descriptors[..len.min(descriptors.len())].chunks_exact(16);
    if descriptors.len() > UNMAP_DESCRIPTORS_MAX {
        return Err(Sense::INVALID_PARAMETER.in_parameters(2));
    }
    let mut ranges = Vec::with_capacity(descriptors.len());
    for descriptor in descriptors {
        let (first, count) = (be64(descriptor, 0), u64::from(be32(descriptor, 8)));
        if count > 0 {
            ranges.push(range(call.unit, first, count)?);
        }
    }
    Ok(ranges)
}

fn same_range(call: &Call<'_>) -> Result<Range<u64>, Sense> {
    let (first, count, at) = match call.byte(0) {
        0x41 => (u64::from(call.u32(2)), u64::from(call.u16(7)), 7),
        _ => (call.u64(2), u64::from(call.u32(10)), 10),
    };
    let range = range(call.unit, first, count)?;
    // No count would be all blocks to the end: refused, as the block limits page says (WSNZ).
    if range.is_empty() || range.end - range.start > WRITE_SAME_LEN_MAX {
        return Err(Sense::INVALID_FIELD.in_cdb(at, None));
    }
    Ok(range)
}

const UNMAP: u8 = 0x08;
const ANCHOR: u8 = 0x10;
/// No Data-Out Buffer: the block is zeros.
const NDOB: u8 = 0x01;

/// WRITE SAME (10) and (16).
pub(super) fn write_same(call: &Call<'_>) -> Result<Plan, Failure> {
    let flags = call.byte(1);
    if flags >> 5 != 0 {
        return Err(Sense::INVALID_FIELD.in_cdb(1, 7).into());
    }
    if flags & ANCHOR != 0 || flags & UNMAP != 0 && !call.unit.store().is_thin() {
        return Err(Sense::INVALID_FIELD.in_cdb(1, 4).into());
    }
    same_range(call)?;
    if flags & NDOB != 0 {
        return Ok(Plan::Run { run: write_zeros, changes: true });
    }
    receive(call, u64::from(call.unit.options().block_len), finish_write_same)
}

fn write_zeros(call: &Call<'_>) -> Result<Vec<u8>, Failure> {
    let block = vec![0; call.unit.options().block_len as usize];
    finish_write_same(call, &block)?;
    Ok(Vec::new())
}

fn finish_write_same(call: &Call<'_>, block: &[u8]) -> Result<(), Failure> {
    let range = same_range(call)?;
    let unit = call.unit;
    let step = unit.share_steps_of(call.begun)?;
    let is_zero = block.iter().all(|&byte| byte == 0);
    let done = if is_zero && call.byte(1) & UNMAP != 0 {
        unit.store().discard(range)
    } else {
        unit.fill(range, block)
    };
    done.map_err(|error| write_error(&error))?;
    drop(step);
    Ok(unit.settle(false)?)
}
