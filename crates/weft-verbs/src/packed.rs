//! Scatter/gather lists of programs that pack their structures.
//!
//! # Safety
//! A program passes a list with the number of entries that it states, aligned or not. `ibv_sge` has
//! the layout of the engine's `Sge` (see `layout`).
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::slice;

use weft_engine::wr::Sge;

use crate::abi::ibv_sge;
use crate::limits::INLINE_PIECES_MAX;

/// Room for a copy of the list of a program that packs its structures, as libiscsi does. It has one
/// entry more than a list may have, so that too long a list still is.
pub(crate) type Room = [MaybeUninit<Sge>; INLINE_PIECES_MAX + 1];

/// Returns room for a copy.
pub(crate) const fn room() -> Room {
    [MaybeUninit::uninit(); INLINE_PIECES_MAX + 1]
}

/// Returns a scatter/gather list. It is copied to `room`, as far as it fits, if it is not aligned.
///
/// # Safety
/// `list` must have `count` elements, which is more than none, and not change while the result is
/// used.
pub(crate) unsafe fn aligned(list: *const ibv_sge, count: usize, room: &mut Room) -> &[Sge] {
    let list: *const Sge = list.cast();
    if list.is_aligned() {
        // SAFETY: the caller guarantees `count` elements, whose layout is that of `Sge` (see
        // `layout`).
        return unsafe { slice::from_raw_parts(list, count) };
    }
    let room = &mut room[..count.min(INLINE_PIECES_MAX + 1)];
    for (at, place) in room.iter_mut().enumerate() {
        // SAFETY: `at` is below the number of elements that the caller guarantees.
        place.write(unsafe { list.wrapping_add(at).read_unaligned() });
    }
    // SAFETY: the loop above has filled all of it.
    unsafe { room.assume_init_ref() }
}
