//! Clocks.
//!
//! # Safety
//! Each call passes addresses of its own arguments, which live until it returns. The kernel's vdso
//! is never unmapped, and its function of this name has the declared type.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

pub use rustix::time::{ClockId, Timespec};

use super::raw::call;

type GetTime = unsafe extern "C" fn(libc::clockid_t, *mut Timespec) -> libc::c_int;

/// The function of the kernel's vdso, once it has been found.
static CLOCK: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Has [`clock_gettime`] call the kernel's vdso from here on, if it is found, and not the C
/// library's function, which a preloaded library may have replaced.
pub fn find_clock() {
    // SAFETY: the name is a C string; with RTLD_NOLOAD no initialiser runs.
    let vdso =
        unsafe { libc::dlopen(c"linux-vdso.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if vdso.is_null() {
        return;
    }
    let names = [c"__vdso_clock_gettime", c"__kernel_clock_gettime"];
    let found = names.into_iter().map(|name: &CStr| {
        // SAFETY: the handle is that of a loaded library, and the name is a C string.
        unsafe { libc::dlsym(vdso, name.as_ptr()) }
    });
    if let Some(function) = found.into_iter().find(|function| !function.is_null()) {
        CLOCK.store(function, Ordering::Relaxed);
    }
}

/// Returns the time of a clock, without a call.
#[must_use]
pub fn clock_gettime(clock: ClockId) -> Timespec {
    let function = CLOCK.load(Ordering::Relaxed);
    if function.is_null() {
        return rustix::time::clock_gettime(clock);
    }
    let mut time = Timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it is the vdso's function, which has this type.
    let function = unsafe { transmute::<*mut c_void, GetTime>(function) };
    // SAFETY: the time is a local variable. Each of these clocks exists, so that it cannot fail.
    unsafe { function(clock as libc::clockid_t, &raw mut time) };
    time
}

/// The resolution of a clock.
#[must_use]
pub fn clock_getres(clock: ClockId) -> Timespec {
    let mut time = Timespec { tv_sec: 0, tv_nsec: 1 };
    let arguments = [clock as usize, &raw mut time as usize, 0, 0, 0, 0];
    // SAFETY: the kernel writes the answer to a local variable. Each of these clocks exists.
    let _ = unsafe { call(libc::SYS_clock_getres, arguments) };
    time
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vdso_has_the_time_of_the_c_library() {
        find_clock();
        assert!(!CLOCK.load(Ordering::Relaxed).is_null(), "the C library would be asked");
        for clock in [ClockId::Monotonic, ClockId::MonotonicRaw, ClockId::Realtime] {
            let nanoseconds = |time: Timespec| time.tv_sec * 1_000_000_000 + time.tv_nsec;
            let before = nanoseconds(rustix::time::clock_gettime(clock));
            let found = nanoseconds(clock_gettime(clock));
            let after = nanoseconds(rustix::time::clock_gettime(clock));
            assert!(before <= found && found <= after, "{before} {found} {after}");
        }
    }
}
