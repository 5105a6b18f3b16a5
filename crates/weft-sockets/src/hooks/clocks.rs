//! Clocks of processor time. The kernel's code in the program (vdso) cannot read them, and makes a
//! system call of its own, which the kernel reports where calls by hand are reported
//! ([`crate::by_hand`]): that costs five times the call. HAProxy asks twice a turn.
//!
//! # Safety
//! Each function has the signature of the C library's that it stands in front of, and does what
//! that does.
#![allow(unsafe_code)]

use libc::{c_int, clock_t, clockid_t, timespec};
use weft_sys::{NextFunction, system_call};

type GetTime = unsafe extern "C" fn(clockid_t, *mut timespec) -> c_int;

static CLOCK_GETTIME: NextFunction = NextFunction::new(c"clock_gettime");

/// Looks the function up before the program runs: it may be called where to look for one would be
/// waited for, in an allocator say.
pub(crate) fn prepare() {
    let _ = CLOCK_GETTIME.address();
}

/// Whether the vdso reads the clock itself.
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

/// The call that the C library makes, where it is not reported.
fn ask_kernel(clock: clockid_t, time: *mut timespec) -> c_int {
    let arguments = [clock.cast_unsigned() as usize, time as usize, 0, 0, 0, 0];
    // SAFETY: the kernel writes to the program's own place, or refuses it.
    let result = unsafe { system_call(libc::SYS_clock_gettime, arguments) };
    result as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    if !is_read_by_vdso(clock) {
        return ask_kernel(clock, time);
    }
    // SAFETY: NULL is `None`, and what is found by this name has this signature.
    let next = unsafe {
        std::mem::transmute::<*mut std::ffi::c_void, Option<GetTime>>(CLOCK_GETTIME.address())
    };
    // SAFETY: the program's own arguments.
    next.map_or_else(|| ask_kernel(clock, time), |next| unsafe { next(clock, time) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn clock() -> clock_t {
    const PER_SECOND: clock_t = 1_000_000; // As POSIX has it, whatever the kernel's unit.
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    if ask_kernel(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) != 0 {
        return -1;
    }
    time.tv_sec * PER_SECOND + time.tv_nsec / 1_000
}
