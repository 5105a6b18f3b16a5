//! Variables of each thread, at a fixed distance from the thread pointer (the `initial-exec` TLS
//! model), so that a signal handler finds them without a call. They start as zeros.
//!
//! # Safety
//! Only the owning thread and its signal handlers access the variables.
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

/// A thread's variables.
#[repr(C)]
pub(super) struct ThreadVariables {
    /// Where an odd `clone(2)` resumes.
    pub(super) resume: usize,
    /// Whether the kernel reports this thread's calls.
    pub(super) is_armed: bool,
    /// Whether the program has blocked `SIGSYS`.
    pub(super) blocks_sigsys: bool,
    /// The range of the thread's stack that has enough room below it for a hook; empty if it is not
    /// known.
    pub(super) stack: [usize; 2],
    /// A stack of Weft's for this thread while it runs on a signal stack; mapped on first use.
    pub(super) own_stack: usize,
    /// How many parts of that stack are in use.
    pub(super) own_used: usize,
    /// How many signals of Weft's have interrupted this thread.
    pub(super) interruptions: usize,
}

const _: () = assert!(size_of::<ThreadVariables>() <= 128);

/// Returns the calling thread's variables.
#[inline]
pub(super) fn place() -> *mut ThreadVariables {
    let place: *mut ThreadVariables;
    // SAFETY: fs:0 holds the thread pointer, and the linker has set the distance.
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

/// Reads or writes a variable of the calling thread.
macro_rules! own {
    ($field:ident) => {{
        let place = crate::by_hand::place::place();
        // SAFETY: TLS of the calling thread, which lives as long as the thread.
        unsafe { (*place).$field }
    }};
    ($field:ident = $value:expr) => {{
        let (place, value) = (crate::by_hand::place::place(), $value);
        // SAFETY: TLS of the calling thread, which lives as long as the thread.
        unsafe { (*place).$field = value }
    }};
}
pub(super) use own;
