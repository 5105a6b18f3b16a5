//! Hooks of the calls that sleep for a time, or until a signal. A thread continues to sleep after
//! the signal that asks it to arm itself ([`crate::by_hand`]).
//!
//! # Safety
//! Each function has the signature of the C library function that it interposes, and passes its
//! arguments on unchanged. Times are the program's, as its calls guarantee.
#![allow(unsafe_code)]

use libc::{c_int, c_uint, clockid_t, sem_t, siginfo_t, sigset_t, timespec};
use weft_sys::calls::io::Errno;

use super::ready::{is_time, nanoseconds, place, to_timespec};
use crate::by_hand::threads::{Interruptions, go_on};
use crate::errno;
use crate::next::next;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn nanosleep(time: *const timespec, rest: *mut timespec) -> c_int {
    // SAFETY: plain data, for which zero is valid.
    let mut left: timespec = unsafe { std::mem::zeroed() };
    let (mut time, place) = (time, &raw mut left);
    go_on(None, |_| {
        let slept = next!(nanosleep(time: *const timespec, place: *mut timespec) -> c_int);
        if slept != 0 && errno::last() == Errno::INTR {
            if !rest.is_null() {
                // SAFETY: not NULL, so the program passes a valid place.
                unsafe { rest.write(left) };
            }
            time = place;
        }
        slept
    })
}

/// Unlike `nanosleep` it returns -1 for a signal, and less for other errors, and does not set
/// `errno`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn thrd_sleep(time: *const timespec, rest: *mut timespec) -> c_int {
    // SAFETY: plain data, for which zero is valid.
    let mut left: timespec = unsafe { std::mem::zeroed() };
    let (mut time, place) = (time, &raw mut left);
    loop {
        let before = Interruptions::up_to_now();
        let slept = next!(thrd_sleep(time: *const timespec, place: *mut timespec) -> c_int);
        if slept == -1 && !rest.is_null() {
            // SAFETY: not NULL, so the program passes a valid place.
            unsafe { rest.write(left) };
        }
        if slept != -1 || !before.are_ours_alone() {
            return slept;
        }
        time = place;
    }
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
        let before = Interruptions::up_to_now();
        let left = next!(sleep(seconds: c_uint) -> c_int).cast_unsigned();
        if left == 0 || !before.are_ours_alone() {
            return left;
        }
        seconds = left;
    }
}

/// Unlike `nanosleep` it returns its error and does not set `errno`.
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
        let before = Interruptions::up_to_now();
        let failed = next!(clock_nanosleep(
            clock: clockid_t, flags: c_int, time: *const timespec, place: *mut timespec
        ) -> c_int);
        let is_duration = flags & libc::TIMER_ABSTIME == 0;
        if failed == libc::EINTR && is_duration {
            if !rest.is_null() {
                // SAFETY: not NULL, so the program passes a valid place.
                unsafe { rest.write(left) };
            }
            time = place;
        }
        if failed != libc::EINTR || !before.are_ours_alone() {
            return failed;
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pause() -> c_int {
    go_on(None, |_| next!(pause() -> c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigwaitinfo(set: *const sigset_t, info: *mut siginfo_t) -> c_int {
    go_on(None, |_| next!(sigwaitinfo(set: *const sigset_t, info: *mut siginfo_t) -> c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigtimedwait(
    set: *const sigset_t,
    info: *mut siginfo_t,
    limit: *const timespec,
) -> c_int {
    // SAFETY: the program passes NULL or a valid time. The kernel refuses a value out of range.
    let time = unsafe { limit.as_ref() }.filter(|&time| is_time(time));
    let (given, is_time) = (limit, time.is_some());
    go_on(time.map(|&time| nanoseconds(time)), |left| {
        let left = left.map(to_timespec);
        let limit = if is_time { place(&left) } else { given };
        next!(sigtimedwait(
            set: *const sigset_t, info: *mut siginfo_t, limit: *const timespec
        ) -> c_int)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sem_timedwait(semaphore: *mut sem_t, until: *const timespec) -> c_int {
    go_on(None, |_| next!(sem_timedwait(semaphore: *mut sem_t, until: *const timespec) -> c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sem_clockwait(
    semaphore: *mut sem_t,
    clock: clockid_t,
    until: *const timespec,
) -> c_int {
    go_on(None, |_| {
        next!(sem_clockwait(
            semaphore: *mut sem_t, clock: clockid_t, until: *const timespec
        ) -> c_int)
    })
}
