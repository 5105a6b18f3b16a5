//! Clocks.
//!
//! # Safety
//! Each call passes addresses of its own arguments, which live until it returns.
#![allow(unsafe_code)]

/// rustix reads these clocks in the kernel's vdso, without a call. It finds the vdso by the C
/// library (its feature `use-libc-auxv`), also without one.
pub use rustix::time::{ClockId, Timespec, clock_gettime};

use super::raw::call;

/// The resolution of a clock.
#[must_use]
pub fn clock_getres(clock: ClockId) -> Timespec {
    let mut time = Timespec { tv_sec: 0, tv_nsec: 1 };
    let arguments = [clock as usize, &raw mut time as usize, 0, 0, 0, 0];
    // SAFETY: the kernel writes the answer to a local variable. Each of these clocks exists.
    let _ = unsafe { call(libc::SYS_clock_getres, arguments) };
    time
}
