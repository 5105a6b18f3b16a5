//! Sleeping for a time, or until a signal: a thread that is asked to arm itself
//! ([`crate::by_hand`]) sleeps on.
//!
//! # Safety
//! Each function has the signature of the C library's that it stands in front of, and hands its
//! arguments on as they are. Times are the program's, as its calls promise.
#![allow(unsafe_code)]

use libc::{c_int, c_uint, clockid_t, siginfo_t, sigset_t, timespec};
use rustix::io::Errno;

use crate::by_hand::threads::{go_on, interruptions};
use crate::next::next;
use crate::{errno, wait};

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn nanosleep(time: *const timespec, rest: *mut timespec) -> c_int {
    // SAFETY: plain data, for which zero is valid.
    let mut left: timespec = unsafe { std::mem::zeroed() };
    let (mut time, place) = (time, &raw mut left);
    go_on(None, |_| {
        let slept = next!(nanosleep(time: *const timespec, place: *mut timespec) -> c_int);
        if slept != 0 && errno::last() == Errno::INTR {
            if !rest.is_null() {
                // SAFETY: the program's own.
                unsafe { rest.write(left) };
            }
            time = place;
        }
        slept
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn usleep(time: c_uint) -> c_int {
    const MICRO: u64 = 1_000;
    let mut time = time;
    go_on(Some(u64::from(time) * MICRO), |left| {
        time = left.and_then(|left| c_uint::try_from(left.div_ceil(MICRO)).ok()).unwrap_or(time);
        next!(usleep(time: c_uint) -> c_int)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sleep(seconds: c_uint) -> c_uint {
    let mut seconds = seconds;
    loop {
        let before = interruptions();
        let left = next!(sleep(seconds: c_uint) -> c_int).cast_unsigned();
        if left == 0 || interruptions() == before {
            return left;
        }
        seconds = left;
    }
}

/// Returns its error instead of setting `errno`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    rest: *mut timespec,
) -> c_int {
    // SAFETY: plain data, for which zero is valid.
    let mut left: timespec = unsafe { std::mem::zeroed() };
    let (mut time, place) = (time, &raw mut left);
    loop {
        let before = interruptions();
        let failed = next!(clock_nanosleep(
            clock: clockid_t, flags: c_int, time: *const timespec, place: *mut timespec
        ) -> c_int);
        let is_relative = flags & libc::TIMER_ABSTIME == 0;
        if failed == libc::EINTR && is_relative {
            if !rest.is_null() {
                // SAFETY: the program's own.
                unsafe { rest.write(left) };
            }
            time = place;
        }
        if failed != libc::EINTR || interruptions() == before {
            return failed;
        }
    }
}

/// Waits by `call` for a signal, whichever of ours come. It has the results of C.
pub(super) fn wait_for_signal(mut call: impl FnMut() -> c_int) -> c_int {
    loop {
        let before = (interruptions(), weft_sys::handled());
        let result = call();
        let is_ours = result < 0
            && errno::last() == Errno::INTR
            && interruptions() != before.0
            && weft_sys::handled() == before.1;
        if !is_ours {
            return result;
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pause() -> c_int {
    wait_for_signal(|| next!(pause() -> c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigwaitinfo(set: *const sigset_t, info: *mut siginfo_t) -> c_int {
    wait_for_signal(|| next!(sigwaitinfo(set: *const sigset_t, info: *mut siginfo_t) -> c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigtimedwait(
    set: *const sigset_t,
    info: *mut siginfo_t,
    limit: *const timespec,
) -> c_int {
    const SECOND: u64 = 1_000_000_000;
    // SAFETY: NULL or the program's own.
    let time = unsafe { limit.as_ref() };
    let ns = |time: &timespec| {
        let parts = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
        let (Ok(seconds), Ok(rest)) = parts else { return None }; // The kernel refuses it.
        (rest < SECOND).then(|| seconds.saturating_mul(SECOND).saturating_add(rest))
    };
    let until = time.and_then(ns).map(|ns| wait::now().saturating_add(ns));
    let (mut left, mut limit, mut is_again) = (None, limit, false);
    wait_for_signal(|| {
        if is_again && let Some(until) = until {
            let time = wait::timespec(until.saturating_sub(wait::now()));
            let left = left.insert(timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_nsec });
            limit = std::ptr::from_ref(left);
        }
        is_again = true;
        next!(sigtimedwait(
            set: *const sigset_t, info: *mut siginfo_t, limit: *const timespec
        ) -> c_int)
    })
}
