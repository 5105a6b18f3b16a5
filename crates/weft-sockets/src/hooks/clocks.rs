//! Clocks of processor time. The vdso cannot read them, and makes a system call of its own, which
//! the kernel reports as a call by hand ([`crate::by_hand`]). That costs five times the call, and
//! HAProxy asks twice in each turn. These functions make the call without a report.
//!
//! # Safety
//! Each function has the signature and the effect of the C library function that it interposes.
#![allow(unsafe_code)]

use libc::{c_int, clock_t, clockid_t, timespec};
use weft_sys::{NextFunction, system_call};

type GetTime = unsafe extern "C" fn(clockid_t, *mut timespec) -> c_int;

static CLOCK_GETTIME: NextFunction = NextFunction::new(c"clock_gettime");

/// Looks up the function before the program runs: a later lookup could deadlock, in an allocator
/// for example.
pub(crate) fn prepare() {
    let _ = CLOCK_GETTIME.address();
}

/// Returns whether the vdso reads the clock itself.
fn is_read_by_vdso(clock: clockid_t) -> bool {
    matches!(
        clock,
        libc::CLOCK_REALTIME
            | libc::CLOCK_MONOTONIC
            | libc::CLOCK_MONOTONIC_RAW
            | libc::CLOCK_REALTIME_COARSE
            | libc::CLOCK_MONOTONIC_COARSE
            | libc::CLOCK_BOOTTIME
            | libc::CLOCK_TAI
    )
}

/// Makes the C library's call where the kernel does not report it.
fn ask_kernel(clock: clockid_t, time: *mut timespec) -> c_int {
    let arguments = [clock.cast_unsigned() as usize, time as usize, 0, 0, 0, 0];
    // SAFETY: the kernel writes to the program's memory, or returns EFAULT.
    let result = unsafe { system_call(libc::SYS_clock_gettime, arguments) };
    result as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    if !is_read_by_vdso(clock) {
        return ask_kernel(clock, time);
    }
    // SAFETY: NULL becomes `None`, and the C library's function of this name has this signature.
    let next = unsafe {
        std::mem::transmute::<*mut std::ffi::c_void, Option<GetTime>>(CLOCK_GETTIME.address())
    };
    // SAFETY: passes on the program's own arguments.
    next.map_or_else(|| ask_kernel(clock, time), |next| unsafe { next(clock, time) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn clock() -> clock_t {
    const PER_SECOND: clock_t = 1_000_000; // POSIX fixes CLOCKS_PER_SEC at this value.
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    if ask_kernel(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) != 0 {
        return -1;
    }
    time.tv_sec * PER_SECOND + time.tv_nsec / 1_000
}
