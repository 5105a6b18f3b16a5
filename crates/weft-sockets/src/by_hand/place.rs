//! What each thread has: words at a fixed distance from the thread's pointer (the `initial-exec`
//! model of thread-local storage), so that a signal's handler finds them without a call. A thread
//! begins with zeros.
//!
//! # Safety
//! The words are the calling thread's own: only it and handlers of its signals touch them.
#![allow(unsafe_code)]

use std::arch::{asm, global_asm};

global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".balign 64",
    ".type weft_place, @object",
    ".hidden weft_place",
    ".globl weft_place",
    "weft_place:",
    ".skip 128",
    ".size weft_place, 128",
    ".popsection",
);

/// What a thread has.
#[repr(C)]
pub(super) struct Place {
    /// Where an odd `clone(2)` goes on; [`super::landing`] reads it by its place, the first.
    pub(super) resume: usize,
    /// Whether the kernel reports this thread's calls.
    pub(super) is_armed: bool,
    /// Whether the program has held `SIGSYS` off.
    pub(super) holds_off: bool,
    /// The part of the thread's stack that has room enough below it for a hook; nothing if it is
    /// not known.
    pub(super) stack: [usize; 2],
    /// A stack of ours for threads that are on another one, once it is needed.
    pub(super) own_stack: usize,
    /// The parts of it that are in use.
    pub(super) own_used: usize,
    /// Signals of ours that have interrupted this thread.
    pub(super) interruptions: usize,
}

const _: () = assert!(size_of::<Place>() <= 128);

/// The calling thread's.
#[inline]
pub(super) fn place() -> *mut Place {
    let place: *mut Place;
    // SAFETY: the thread's pointer, and the distance that the linker has set.
    unsafe {
        asm!(
            "mov {place}, fs:[0]",
            "add {place}, qword ptr [rip + weft_place@GOTTPOFF]",
            place = out(reg) place,
            options(nostack, pure, readonly),
        );
    }
    place
}

/// Reads or writes a field of the calling thread's.
macro_rules! own {
    ($field:ident) => {{
        let place = crate::by_hand::place::place();
        // SAFETY: the thread's own, which lives as long as the thread.
        unsafe { (*place).$field }
    }};
    ($field:ident = $value:expr) => {{
        let (place, value) = (crate::by_hand::place::place(), $value);
        // SAFETY: the thread's own, which lives as long as the thread.
        unsafe { (*place).$field = value }
    }};
}
pub(super) use own;
