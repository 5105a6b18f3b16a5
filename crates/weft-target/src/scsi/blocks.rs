//! Commands that move blocks (SBC-4, section 5).

use std::ops::Range;

use super::call::{Call, Failure, Plan, done, receive};
use super::sense::Sense;
use super::unit::{Stream, Unit};
use crate::limits::{COMPARE_BLOCKS_MAX, STEP_LEN, TRANSFER_LEN_MAX, WHOLE_LEN_MAX};

/// The blocks that a command addresses.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    first: u64,
    count: u64,
    /// The byte of the descriptor block where the count begins.
    count_at: u16,
}

fn blocks6(call: &Call<'_>) -> Blocks {
    let first = u64::from(call.u32(0) & 0x1f_ffff);
    // No count is 256 blocks (section 5.13).
    let count = if call.byte(4) == 0 { 256 } else { u64::from(call.byte(4)) };
    Blocks { first, count, count_at: 4 }
}

fn blocks10(call: &Call<'_>) -> Blocks {
    Blocks { first: u64::from(call.u32(2)), count: u64::from(call.u16(7)), count_at: 7 }
}

fn blocks12(call: &Call<'_>) -> Blocks {
    Blocks { first: u64::from(call.u32(2)), count: u64::from(call.u32(6)), count_at: 6 }
}

fn blocks16(call: &Call<'_>) -> Blocks {
    Blocks { first: call.u64(2), count: u64::from(call.u32(10)), count_at: 10 }
}

/// The number of bytes of this many blocks.
///
/// # Errors
///
/// If the unit does not have them.
pub(super) fn range(unit: &Unit, first: u64, count: u64) -> Result<Range<u64>, Sense> {
    let end = first.checked_add(count).filter(|&end| end <= unit.blocks() && first < unit.blocks());
    let end = end.ok_or(Sense::OUT_OF_RANGE)?;
    let len = u64::from(unit.options().block_len);
    Ok(first * len..end * len)
}

impl Blocks {
    /// The range in bytes, at most what one command may move.
    fn range(self, call: &Call<'_>) -> Result<Range<u64>, Sense> {
        let range = range(call.unit, self.first, self.count)?;
        if range.end - range.start > TRANSFER_LEN_MAX {
            return Err(Sense::INVALID_FIELD.in_cdb(self.count_at, None));
        }
        Ok(range)
    }
}

/// Refuses protection information, which units do not have.
fn unprotected(call: &Call<'_>) -> Result<(), Sense> {
    if call.byte(1) >> 5 != 0 {
        return Err(Sense::INVALID_FIELD.in_cdb(1, 7));
    }
    Ok(())
}

fn forces_unit_access(call: &Call<'_>) -> bool {
    call.byte(1) & 0x08 != 0
}

fn read(call: &Call<'_>, blocks: Blocks) -> Result<Plan, Failure> {
    unprotected(call)?;
    let range = blocks.range(call)?;
    // What is stored may not be safe yet (section 4.15.2: FUA).
    let flushes = forces_unit_access(call) && call.unit.state().modes.write_back;
    Ok(Plan::Read { range, flushes })
}

pub(super) fn read6(call: &Call<'_>) -> Result<Plan, Failure> {
    Ok(Plan::Read { range: blocks6(call).range(call)?, flushes: false })
}

pub(super) fn read10(call: &Call<'_>) -> Result<Plan, Failure> {
    read(call, blocks10(call))
}

pub(super) fn read12(call: &Call<'_>) -> Result<Plan, Failure> {
    read(call, blocks12(call))
}

pub(super) fn read16(call: &Call<'_>) -> Result<Plan, Failure> {
    read(call, blocks16(call))
}

fn write(call: &Call<'_>, blocks: Blocks, force: bool) -> Result<Plan, Failure> {
    let through = call.unit.writes_through(force);
    Ok(Plan::Stream(blocks.range(call)?, Stream::Write { through }))
}

fn write_with_flags(call: &Call<'_>, blocks: Blocks) -> Result<Plan, Failure> {
    unprotected(call)?;
    write(call, blocks, forces_unit_access(call))
}

pub(super) fn write6(call: &Call<'_>) -> Result<Plan, Failure> {
    write(call, blocks6(call), false)
}

pub(super) fn write10(call: &Call<'_>) -> Result<Plan, Failure> {
    write_with_flags(call, blocks10(call))
}

pub(super) fn write12(call: &Call<'_>) -> Result<Plan, Failure> {
    write_with_flags(call, blocks12(call))
}

pub(super) fn write16(call: &Call<'_>) -> Result<Plan, Failure> {
    write_with_flags(call, blocks16(call))
}

/// WRITE AND VERIFY: what the store has taken and made safe is what it returns.
fn write_verify(call: &Call<'_>, blocks: Blocks) -> Result<Plan, Failure> {
    unprotected(call)?;
    if byte_check(call) > 1 {
        return Err(Sense::INVALID_FIELD.in_cdb(1, 2).into());
    }
    write(call, blocks, true)
}

pub(super) fn write_verify10(call: &Call<'_>) -> Result<Plan, Failure> {
    write_verify(call, blocks10(call))
}

pub(super) fn write_verify12(call: &Call<'_>) -> Result<Plan, Failure> {
    write_verify(call, blocks12(call))
}

pub(super) fn write_verify16(call: &Call<'_>) -> Result<Plan, Failure> {
    write_verify(call, blocks16(call))
}

fn byte_check(call: &Call<'_>) -> u8 {
    call.byte(1) >> 1 & 3
}

fn verify(call: &Call<'_>, blocks: Blocks) -> Result<Plan, Failure> {
    unprotected(call)?;
    let range = blocks.range(call)?;
    match byte_check(call) {
        0 => Ok(Plan::Run { run: check, changes: false }),
        1 => Ok(Plan::Stream(range, Stream::Verify)),
        3 if range.is_empty() => done(),
        // One block, that all others have to be like (section 5.34).
        3 => receive(call, u64::from(call.unit.options().block_len), verify_same),
        _ => Err(Sense::INVALID_FIELD.in_cdb(1, 2).into()),
    }
}

/// The range of a VERIFY, whose length the operation code tells.
fn verified(call: &Call<'_>) -> Result<Range<u64>, Sense> {
    let blocks = match call.byte(0) {
        0x2f => blocks10(call),
        0xaf => blocks12(call),
        _ => blocks16(call),
    };
    blocks.range(call)
}

fn check(call: &Call<'_>) -> Result<Vec<u8>, Failure> {
    call.unit.check(verified(call)?)?;
    Ok(Vec::new())
}

fn verify_same(call: &Call<'_>, block: &[u8]) -> Result<(), Failure> {
    let range = verified(call)?;
    let _step = call.unit.share_steps();
    for at in range.clone().step_by(block.len()) {
        if let Some(differs) = call.unit.compare(at, block)? {
            return Err(Sense::MISCOMPARE.with_information(differs - range.start).into());
        }
    }
    Ok(())
}

pub(super) fn verify10(call: &Call<'_>) -> Result<Plan, Failure> {
    verify(call, blocks10(call))
}

pub(super) fn verify12(call: &Call<'_>) -> Result<Plan, Failure> {
    verify(call, blocks12(call))
}

pub(super) fn verify16(call: &Call<'_>) -> Result<Plan, Failure> {
    verify(call, blocks16(call))
}

/// PRE-FETCH (section 5.9): the store's cache decides. That the blocks are there is not claimed.
fn prefetch(call: &Call<'_>, blocks: Blocks) -> Result<Plan, Failure> {
    range(call.unit, blocks.first, blocks.count)?;
    done()
}

pub(super) fn prefetch10(call: &Call<'_>) -> Result<Plan, Failure> {
    prefetch(call, blocks10(call))
}

pub(super) fn prefetch16(call: &Call<'_>) -> Result<Plan, Failure> {
    prefetch(call, blocks16(call))
}

/// SYNCHRONIZE CACHE (section 5.31). All blocks are made safe, which includes those that are asked
/// for.
fn synchronize(call: &Call<'_>, blocks: Blocks) -> Result<Plan, Failure> {
    range(call.unit, blocks.first, blocks.count)?;
    Ok(Plan::Run { run: flush, changes: false })
}

fn flush(call: &Call<'_>) -> Result<Vec<u8>, Failure> {
    call.unit.flush()?;
    Ok(Vec::new())
}

pub(super) fn synchronize10(call: &Call<'_>) -> Result<Plan, Failure> {
    synchronize(call, blocks10(call))
}

pub(super) fn synchronize16(call: &Call<'_>) -> Result<Plan, Failure> {
    synchronize(call, blocks16(call))
}

fn compared(call: &Call<'_>) -> Result<Range<u64>, Sense> {
    let count = u64::from(call.byte(13));
    const { assert!(COMPARE_BLOCKS_MAX == u8::MAX as u64) };
    range(call.unit, call.u64(2), count)
}

/// COMPARE AND WRITE (section 5.4): the first half of the data is compared, the second written.
pub(super) fn compare_write(call: &Call<'_>) -> Result<Plan, Failure> {
    unprotected(call)?;
    let range = compared(call)?;
    if range.is_empty() && call.sent_len == 0 {
        return done();
    }
    // Its count has one byte: more data belongs to more blocks than that can say.
    if u64::from(call.sent_len) > 2 * COMPARE_BLOCKS_MAX * u64::from(call.unit.options().block_len)
    {
        return Err(Sense::INVALID_FIELD.in_cdb(13, 7).into());
    }
    receive(call, 2 * (range.end - range.start), finish_compare_write)
}

fn finish_compare_write(call: &Call<'_>, data: &[u8]) -> Result<(), Failure> {
    let range = compared(call)?;
    let (expected, new) = data.split_at(data.len() / 2);
    let unit = call.unit;
    let step = unit.own_step_of(call.begun)?;
    if let Some(at) = unit.compare(range.start, expected)? {
        return Err(Sense::MISCOMPARE.with_information(at - range.start).into());
    }
    unit.write_in_step(range.start, new)?;
    drop(step);
    Ok(unit.settle(forces_unit_access(call))?)
}

/// WRITE ATOMIC (16) (section 5.48): no other command sees a part of it, nor does the store keep
/// one. The boundary, at which it could be split, need not be looked at.
pub(super) fn write_atomic(call: &Call<'_>) -> Result<Plan, Failure> {
    if call.unit.atomic_len() == 0 {
        return Err(Sense::INVALID_OPERATION.in_cdb(0, 7).into());
    }
    unprotected(call)?;
    let range = atomic(call)?;
    if range.end - range.start > call.unit.atomic_len() {
        return Err(Sense::INVALID_FIELD.in_cdb(12, 7).into());
    }
    if range.is_empty() {
        return done();
    }
    receive(call, range.end - range.start, finish_write_atomic)
}

fn atomic(call: &Call<'_>) -> Result<Range<u64>, Sense> {
    range(call.unit, call.u64(2), u64::from(call.u16(12)))
}

fn finish_write_atomic(call: &Call<'_>, data: &[u8]) -> Result<(), Failure> {
    let range = atomic(call)?;
    let step = call.unit.own_step_of(call.begun)?;
    call.unit.write_in_step(range.start, data)?;
    drop(step);
    Ok(call.unit.settle(forces_unit_access(call))?)
}

/// ORWRITE (section 5.7).
pub(super) fn or_write(call: &Call<'_>) -> Result<Plan, Failure> {
    unprotected(call)?;
    let range = blocks16(call).range(call)?;
    if range.is_empty() {
        return done();
    }
    if range.end - range.start > WHOLE_LEN_MAX {
        return Err(Sense::INVALID_FIELD.in_cdb(10, 7).into());
    }
    receive(call, range.end - range.start, finish_or_write)
}

fn finish_or_write(call: &Call<'_>, data: &[u8]) -> Result<(), Failure> {
    let range = blocks16(call).range(call)?;
    let unit = call.unit;
    let step = unit.own_step_of(call.begun)?;
    let mut stored = vec![0; data.len().min(STEP_LEN)];
    let mut at = range.start;
    for part in data.chunks(STEP_LEN) {
        let stored = &mut stored[..part.len()];
        unit.read_in_step(at, stored)?;
        stored.iter_mut().zip(part).for_each(|(stored, new)| *stored |= new);
        unit.write_in_step(at, stored)?;
        at += part.len() as u64;
    }
    drop(step);
    Ok(unit.settle(forces_unit_access(call))?)
}
